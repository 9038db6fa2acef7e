"""Every command on a disk that fails: no damaged file is taken for whole, and no failure is reported as a bug.

    python -m tests.support.campaigns.disk_faults --out faults.json [--commands import train] [--points 8]

Each case is a process of its own: one call (the Nth) that opens, writes, syncs, renames or makes a folder fails, once
or from then on, with ENOSPC or EIO. It must end without a traceback and without exit code 70. If it ends well, its
files must be those of an undisturbed run. Else the same command is run again without a fault, and then they must be.
A limit on the size of files (RLIMIT_FSIZE) reaches the writes that libraries make from C. Ends with 1 unless all hold.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from tests.support.campaigns.failing_system import OPERATIONS, VARIABLE, Fault, install
from voxgraft.core.run import RunJournal, strip_clock_fields

__all__ = ["VERBS", "Case", "Outcome", "World", "cases_of", "make_world", "run_case"]

SITE = Path(__file__).parent / "failing_site"
TEXTS = Path(str(resources.files("voxgraft") / "assets" / "demo" / "am.txt"))
TERMS = ("--data-licence=CC-BY-4.0", "--consent=written, all speakers", "--accept-terms")
TRAINING = (
    "--train.steps=2", "--train.warmup-steps=1", "--train.batch-tokens=400", "--train.save-every=1",
    "--train.valid-every=1", "--train.log-every=1", "--train.sample-every=1000", "--train.rank=2",
    "--train.sample-texts=am:ሰ", "--train.tensorboard=true", "--data.min-prompt-seconds=0.1",
)  # fmt: skip
VERBS: Mapping[str, Sequence[str]] = {
    "import": ("data", "import", "run/data", "talks", "--language=am", "--workers=1"),
    "split": ("data", "split", "run/data"),
    "graft": ("graft", "run", "--tokenizer.pieces=20"),
    "prepare": ("prepare", "run", "--workers=1"),
    "train": ("train", "run", *TRAINING),
    "export": ("export", "run", "--to=graft", "--output=out", *TERMS),
    "push": ("push", "out", "out.zip"),
    "pull": ("pull", "out.zip", "back"),
}
"""In the order of the work: each begins with what the one before has left."""
WORKERS: Mapping[str, Sequence[str]] = {
    "import": ("data", "import", "run/data", "talks", "--language=am", "--workers=2"),
    "prepare": ("prepare", "run", "--workers=2"),
}
"""The same commands with worker processes, which fail as well."""
ERRORS = (errno.ENOSPC, errno.EIO)
FILE_LIMITS = (1_000, 20_000, 100_000)
"""Bytes that a file may have at most, for the writes that no patch reaches."""
PATIENCE_SECONDS = 240
BUG = 70
PASSING = (".lock", ".workers", ".starting")
"""Files without contents, or whose contents are nobody's result."""


@dataclass(frozen=True)
class Case:
    """One command on one failing disk."""

    verb: str
    operation: str
    """Of `OPERATIONS`, or `size` for a limit on the size of files."""
    number: int
    """Which call fails, or the limit."""
    errno: int
    lasting: bool
    workers: bool = False

    @property
    def name(self) -> str:
        what = f"{self.operation} {self.number} {errno.errorcode[self.errno]} {'lasting' if self.lasting else 'once'}"
        return f"{self.verb}{' with workers' if self.workers else ''}: {what}"


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    case: Case
    exit_code: int
    again: int | None
    """Exit code of the run without a fault after it; None where none was needed."""
    faults: tuple[str, ...]
    """What must not be; empty if all is well."""
    said: str
    """The error in one line."""


@dataclass(frozen=True)
class World:
    """The files before and after each command, and the folder that cases work in: always the same, since paths are noted."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def before(self, verb: str) -> Path:
        return self.folder / "states" / f"{list(VERBS).index(verb)}"

    def after(self, verb: str) -> Path:
        return self.folder / "states" / f"{list(VERBS).index(verb) + 1}"

    def reset(self, verb: str) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.before(verb), self.work)


def make_world(folder: Path, verbs: Sequence[str] = tuple(VERBS)) -> World:
    """Run every command once, undisturbed."""
    world = World(folder)
    world.work.mkdir(parents=True)
    log = folder / "log.txt"
    assert _forked(partial(_write_talks, world.work / "talks"), world.work, log) == 0, log.read_text()
    command = ("new", "run", "--base=tiny", "--language=am", f"--texts={TEXTS}")
    assert _forked(partial(_run, command), world.work, log) == 0, log.read_text()
    last = max(list(VERBS).index(verb) for verb in verbs)
    for number, (verb, words) in enumerate(VERBS.items()):
        shutil.copytree(world.work, world.before(verb))
        if number <= last:
            assert _forked(partial(_run, words), world.work, log) == 0, log.read_text()
    shutil.copytree(world.work, world.after(list(VERBS)[-1]), dirs_exist_ok=True)
    return world


def count_calls(world: World, verb: str, *, workers: bool = False) -> dict[str, int]:
    """How often a command calls each operation below its folder."""
    found = {}
    for operation in OPERATIONS:
        world.reset(verb)
        counter = world.folder / "count"
        counter.unlink(missing_ok=True)
        fault = Fault(str(world.work), str(counter), operation, 0, 0)
        _forked(partial(_run, _words(verb, workers), fault), world.work, world.folder / "log.txt")
        found[operation] = counter.stat().st_size if counter.exists() else 0
    return found


def cases_of(world: World, verb: str, points: int, *, workers: bool = False) -> Iterator[Case]:
    """So many calls of each operation, evenly spread, that fail once; the first, a middle and the last that last."""
    for operation, count in count_calls(world, verb, workers=workers).items():
        for number in _spread(count, points):
            yield from (Case(verb, operation, number, code, False, workers) for code in ERRORS)
        for number in _spread(count, 3):
            yield from (Case(verb, operation, number, code, True, workers) for code in ERRORS)
    if not workers:
        yield from (Case(verb, "size", limit, errno.EFBIG, True) for limit in FILE_LIMITS)


def run_case(world: World, case: Case) -> Outcome:
    world.reset(case.verb)
    counter, log = world.folder / "count", world.folder / "log.txt"
    counter.unlink(missing_ok=True)
    words = _words(case.verb, case.workers)
    if case.operation == "size":
        work = partial(_run, words, None, case.number)
    else:
        fault = Fault(str(world.work), str(counter), case.operation, case.number, case.errno, case.lasting)
        work = partial(_run, words, fault)
    code = _forked(work, world.work, log)
    reported = log.read_text(encoding="utf-8", errors="replace")
    faults = []
    if "Traceback" in reported:
        faults.append("traceback")
    if code not in (0, 1, 2):
        faults.append(f"exit code {code}")
    again = None
    different = _differences(world, case.verb)
    if code == 0 and different:
        faults.append(f"said that all is well, but: {', '.join(different[:4])}")
    if code != 0:
        again = _forked(partial(_run, words), world.work, log)
        if again not in (0, 2):
            faults.append(f"exit code {again} without a fault")
        # An output that was complete before the fault came is refused, and must be whole.
        if different := _differences(world, case.verb):
            said = _error(log.read_text(encoding="utf-8", errors="replace"))
            faults.append(f"after a run without a fault ({again}, {said}): {', '.join(different[:4])}")
    return Outcome(case, code, again, tuple(faults), _error(reported))


def _words(verb: str, workers: bool) -> Sequence[str]:
    return WORKERS[verb] if workers else VERBS[verb]


def _spread(count: int, points: int) -> list[int]:
    if count <= points:
        return list(range(1, count + 1))
    return sorted({1 + round(place * (count - 1) / (points - 1)) for place in range(points)})


def _error(reported: str) -> str:
    return next((line for line in reported.splitlines() if line.startswith(("error ", "error\t"))), "")[:160]


def _differences(world: World, verb: str) -> list[str]:
    """Files of the work that are not as after an undisturbed run. What hidden files are left over does not count."""
    mine, wanted = _contents(world.work), _contents(world.after(verb))
    return sorted(name for name in {*mine, *wanted} if mine.get(name) != wanted.get(name))


def _contents(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") and part.endswith(".part") for part in parts)
        aside = any(part.endswith(".previous") for part in parts)
        if not path.is_file() or hidden or aside or path.name in PASSING or "tensorboard" in parts:
            continue
        name = "/".join(parts)
        if path.name == "journal.jsonl":
            # What went wrong is reported there as a finding.
            found[name] = [strip_clock_fields(line) for line in RunJournal(path).read() if line["kind"] != "finding"]
        elif path.match("steps/*/manifest.json"):  # the hashes of the files beside it
            continue
        elif path.match("steps/*/*.safetensors"):
            found[name] = _tensors(path.read_bytes())
        else:
            found[name] = path.read_bytes()
    return found


def _tensors(data: bytes) -> dict[str, Any]:
    """The bits of each tensor; in which order they lie in the file depends on whether training was resumed."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    places = {name: entry.get("data_offsets", [0, 0]) for name, entry in header.items()}
    return {
        name: ({**entry, "data_offsets": None}, data[8 + size + places[name][0] : 8 + size + places[name][1]])
        for name, entry in header.items()
    }


def _run(words: Sequence[str], fault: Fault | None = None, limit: int | None = None) -> int:
    import torch

    from voxgraft.cli import app

    torch.set_num_threads(1)
    if fault is not None:
        os.environ[VARIABLE] = fault.to_text()
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(SITE.parent.parent)])
        install(fault)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return app.run_cli(words)


def _write_talks(folder: Path) -> int:
    from voxgraft.demo.data import write_talks

    write_talks(folder, 4, 2)
    return 0


def _forked(work: Any, folder: Path, log: Path) -> int:
    """The exit code of a child; it inherits what was imported, so that a case takes no seconds to start."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A pipe, since a limit on the size of files would hold for the log as well.
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 99
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.chdir(folder)
            code = work()
            sys.stdout.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    os.set_blocking(reading, False)
    reported, status, deadline = b"", None, time.monotonic() + PATIENCE_SECONDS
    while status is None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        done, found = os.waitpid(pid, os.WNOHANG)
        status = found if done else None
        time.sleep(0.01)
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(reading, 1 << 16):
                reported += piece
    os.close(reading)
    log.write_bytes(reported)
    return os.waitstatus_to_exitcode(status)


def _warm() -> None:
    """Import what the commands import, without computing: threads would not survive the fork."""
    import torch  # noqa: F401

    from voxgraft.cli.commands import COMMANDS as ALL

    for verb in ALL:
        if verb.name.split()[0] in ("data", "graft", "prepare", "train", "export", "push", "pull", "new"):
            verb.load()


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Cases by command and operation, as a table for the log."""
    lines = [
        "| command | operation | cases | ended with an error | of those whole after the next run | wrong |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        verb = one.case.verb + (" (workers)" if one.case.workers else "")
        groups.setdefault((verb, one.case.operation), []).append(one)
    for (verb, operation), found in groups.items():
        ended = [one for one in found if one.exit_code]
        whole = [one for one in ended if not one.faults]
        wrong = sum(bool(one.faults) for one in found)
        lines.append(f"| {verb} | {operation} | {len(found)} | {len(ended)} | {len(whole)} | {wrong} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS))
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--workers", action="store_true", help="also with worker processes, which takes longer")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    started = time.perf_counter()
    _warm()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder), asked.verbs)
        for workers in (False, True) if asked.workers else (False,):
            for verb in asked.verbs:
                if workers and verb not in WORKERS:
                    continue
                for case in cases_of(world, verb, asked.points, workers=workers):
                    outcomes.append(run_case(world, case))
                    if outcomes[-1].faults:
                        print(f"WRONG {case.name}: {'; '.join(outcomes[-1].faults)} [{outcomes[-1].said}]", flush=True)
                print(
                    f"{verb}{' with workers' if workers else ''} done, {len(outcomes)} cases, {time.perf_counter() - started:.0f} s",
                    flush=True,
                )
    print(table_of(outcomes))
    wrong = sum(bool(one.faults) for one in outcomes)
    codes = Counter(one.said.split(":")[0] for one in outcomes)
    print(f"{len(outcomes)} cases, {wrong} wrong, {time.perf_counter() - started:.0f} s; {dict(codes)}")
    if asked.out:
        asked.out.write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
