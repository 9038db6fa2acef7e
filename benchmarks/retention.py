"""What each way of training gains in a new language and costs in the old ones, by the ear: the picture of the README.

    python -m benchmarks.retention_data --packages packages --out retention.safetensors     # see there
    python -m benchmarks.retention run --data retention.safetensors --results results.jsonl [--earlier other.jsonl]
    python -m benchmarks.retention draw [--results results.jsonl] --out docs/images/retention [--log log.md]

The shipped base, which speaks English and French, learns Amharic by every method of `retention_training`; the built-in
listener judges 200 sentences of each language. `run` needs torch, NumPy and safetensors only, and is made for one GPU
(several processes share it); with `--device cpu` and small numbers it can be tried anywhere. A second `run` with the same
results goes on with what is missing. `draw` needs matplotlib and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.retention_judge import Judge
from benchmarks.retention_training import JOBS, METHODS, SHARES, Bench, Job, Material, Rig, Run
from voxgraft.models import get_family
from voxgraft.training.trainable import make_trainable
from voxgraft.training.validation import WeightInterpolator

STEPS, TOKENS, SEEDS, DRAWS = 800, 2_560, 3, 3
GRACE_SECONDS = 60.0


def main() -> None:
    asked = _parser().parse_args()
    {"run": _run_all, "job": _run_job, "draw": _draw}[asked.what](asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="what", required=True)
    for name in ("run", "job"):
        verb = verbs.add_parser(name)
        verb.add_argument("--data", type=Path, required=True, help="what benchmarks.retention_data has written")
        verb.add_argument("--results", type=Path, required=True, help="file of results, one line each; gone on with")
        verb.add_argument("--base", type=Path, help="folder of the base (default: the one that ships)")
        verb.add_argument("--device", default="cuda")
        verb.add_argument("--steps", type=int, default=STEPS)
        verb.add_argument("--tokens", type=int, default=TOKENS, help="positions of a step (default: about 32 phrases)")
        verb.add_argument("--seeds", type=int, default=SEEDS)
        verb.add_argument(
            "--draws", type=int, default=DRAWS, help="how often a sentence is said (default: %(default)s)"
        )
        verb.add_argument("--sentences", type=int, help="at most so many of each language (default: all 200)")
        verb.add_argument("--held-out", type=int, help="at most so many held-out recordings (default: all 150)")
        verb.add_argument("--plain", action="store_true", help="compile and record nothing")
        verb.add_argument("--until", type=float, help="no run begins after this time of the clock")
    verbs.choices["run"].add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    verbs.choices["run"].add_argument(
        "--workers", type=int, default=10, help="processes at once (default: %(default)s)"
    )
    verbs.choices["run"].add_argument("--seconds", type=float, help="no run begins after so many")
    verbs.choices["run"].add_argument("--earlier", type=Path, help="results of an earlier call, to go on with")
    verbs.choices["job"].add_argument("--job", required=True, choices=list(JOBS))
    draw = verbs.add_parser("draw")
    draw.add_argument("--results", type=Path, help="file of results (default: the tables in docs/log.md)")
    draw.add_argument("--out", type=Path, required=True, help="the picture without its ending: .png and .svg are made")
    draw.add_argument("--log", type=Path, help="file for the tables (default: they are printed)")
    return parser


def _run_job(asked: argparse.Namespace) -> None:
    """One process."""
    torch.set_num_threads(1)
    base = asked.base or get_family("tiny").shipped_folder()
    assert base is not None
    material = Material(asked.data)
    bench = Bench(material, base, asked.device, asked.steps, asked.tokens, asked.held_out, asked.plain)
    material.require_base(bench.files.checkpoint, base / "codec.safetensors")
    judge = Judge(bench, asked.sentences, asked.draws)
    ledger = Ledger(asked.results, facts_of(bench, judge), asked.until)
    Work(bench, judge, ledger, asked.seeds).do(asked.job)


@dataclass
class _Crew:
    """Processes at work. One that fails is started once more with nothing compiled."""

    command: list[str]
    workers: int
    waiting: list[tuple[str, bool]]
    until: float | None
    at_work: dict[str, tuple[subprocess.Popen[bytes], bool, float]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def work(self) -> None:
        try:
            while self.waiting or self.at_work:
                while self.waiting and len(self.at_work) < self.workers:
                    self._start(*self.waiting.pop(0))
                time.sleep(0.5)
                self._look()
        finally:
            for process, _, _ in self.at_work.values():
                process.kill()

    def _start(self, job: str, plain: bool) -> None:
        extra = ["--job", job, *(["--plain"] if plain else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment["PYTHONUNBUFFERED"] = "1"
        process = subprocess.Popen([*self.command, *extra], env=environment)
        self.at_work[job] = (process, plain, time.time())

    def _look(self) -> None:
        late = self.until is not None and time.time() > self.until + GRACE_SECONDS
        for job, (process, plain, started) in list(self.at_work.items()):
            if late:
                process.kill()
            code = process.poll() if not late else process.wait()
            if code is None:
                continue
            del self.at_work[job]
            print(
                f"job {job}: {'done' if code == 0 else f'exit {code}'} after {time.time() - started:.0f} s", flush=True
            )
            if code != 0 and not plain and not late:
                self.waiting.insert(0, (job, True))
            elif code != 0:
                self.failed.append(job)


def _run_all(asked: argparse.Namespace) -> None:
    """All processes."""
    started = time.time()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever ends this ends its processes
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    if asked.earlier and not asked.results.exists():
        shutil.copyfile(asked.earlier, asked.results)
    until = asked.until or (started + asked.seconds if asked.seconds else None)
    command = [sys.executable, "-m", "benchmarks.retention", "job"]
    for name in ("data", "results", "base", "device", "steps", "tokens", "seeds", "draws", "sentences", "held_out"):
        value = getattr(asked, name)
        command += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    command += ["--until", str(until)] if until else []
    crew = _Crew(command, asked.workers, [(job, asked.plain) for job in JOBS if job in asked.jobs], until)
    crew.work()
    print(f"all jobs ended after {time.time() - started:.0f} s; failed: {', '.join(crew.failed) or 'none'}", flush=True)
    raise SystemExit(1 if crew.failed else 0)


def _draw(asked: argparse.Namespace) -> None:
    from benchmarks.retention_report import draw_logged, drawn, tables  # needs matplotlib, which a bare GPU lacks

    results = read_results(asked.results) if asked.results else None
    log = Path(__file__).resolve().parent.parent / "docs" / "log.md"
    pictures = draw_logged(log.read_text(encoding="utf-8")) if results is None else drawn(results)
    for form, content in pictures.items():
        path = asked.out.with_suffix(f".{form}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if results is None:
        return
    text = tables(results)
    if asked.log:
        asked.log.write_text(text, encoding="utf-8")
    else:
        print(text)


Curve = list[tuple[int, float]]
"""Steps, and the phone error of the new language after each."""

LISTENED = (50, 100, 150, 200, 300, 400, 600, 800)
"""Steps of 800 after which a curve has a point."""
NOISE_DRAWS = 10
BROKEN_RATE = 1e-4
MOST_WAITING_SECONDS = 400.0


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Results by name; a line that was cut short is none."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found[record["name"]] = record
    return found


@dataclass
class Ledger:
    """The file of results, and until when a new run may begin."""

    path: Path
    facts: Mapping[str, Any]
    """What stands beside every result."""
    deadline: float | None = None

    def __post_init__(self) -> None:
        self.done = read_results(self.path)
        other = [name for name, one in self.done.items() if one["settings"] != self.facts["settings"]]
        if other:
            found = self.done[other[0]]["settings"]
            raise SystemExit(f"{self.path}: {other[0]!r} was run with {found}, and this is {self.facts['settings']}")

    def wants(self, *names: str) -> bool:
        """Whether one of them is missing and there is time for it."""
        if all(name in self.done for name in names):
            return False
        late = self.deadline is not None and time.time() > self.deadline
        if late:
            print(f"no time is left for: {names[0]}", flush=True)
        return not late

    def wait_for(self, names: Sequence[str]) -> None:
        """Until another process has told of all of them, or nobody will any more."""
        latest = min(time.time() + MOST_WAITING_SECONDS, self.deadline or math.inf)
        while not all(name in self.done for name in names) and time.time() < latest:
            time.sleep(1.0)
            self.done = read_results(self.path)

    def write(self, name: str, **values: Any) -> None:
        record = {"name": name, **values, **self.facts}
        self.done[name] = record
        line = json.dumps(record, ensure_ascii=False) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())  # one call, so that no other process comes between
        finally:
            os.close(handle)
        print(_told(record), flush=True)


class Work:
    """All that a process has to do with."""

    def __init__(self, bench: Bench, judge: Judge, ledger: Ledger, seeds: int) -> None:
        self.bench, self.judge, self.ledger, self.seeds = bench, judge, ledger, seeds

    def do(self, name: str) -> None:
        special = {"base": self._base, "resume": self._resume}
        if name in special:
            special[name]()
        else:
            self._method(JOBS[name])

    def _method(self, job: Job) -> None:
        """The grid, the choice, and what follows from it."""
        grid = [Run(job.method, rate) for rate in METHODS[job.method].rates] if job.seeds else []
        rig = _Late(lambda: Rig(self.bench, job.method, sorted({60.0, *job.minutes})))
        if job.waits:
            self.ledger.wait_for([run.name for run in grid])
        for run in [] if job.waits else grid:
            self._run(rig, run, job)
        losses = {run.rate: self.ledger.done[run.name]["valid"]["am"] for run in grid if run.name in self.ledger.done}
        further = job.after(min(losses, key=losses.__getitem__), self.seeds) if len(losses) == len(grid) > 0 else []
        for run in [*further, *job.extra]:
            self._run(rig, run, job, points=run.seed == 1 and job.method == "self")

    def _run(self, rig: _Late, run: Run, job: Job, *, points: bool = False) -> None:
        """Train and judge. What else the same training can tell is told of it too."""
        shared = {f"{run.name}, share {share:g}": share for share in SHARES} if points else {}
        is_plain = (run.minutes, run.start) == (60, "romanised")
        opened = f"{run.name}, gate open" if job.method == "gated-32" and is_plain else ""
        if not self.ledger.wants(run.name, *shared, *filter(None, [opened])):
            return
        made, curve = rig.made, Curve()
        made.begin(run)
        seconds = made.train(run, self._listening(made, curve) if job.curve else None)
        values = self._judged(made, run, gated=METHODS[run.method].keeps_base)
        self.ledger.write(run.name, **values, curve=curve, train_seconds=round(seconds, 2))
        if opened:
            self._ungated(made, run, opened, values["scores"]["am"])
        for name, share in shared.items():
            self._point(made, run, name, share)

    def _judged(self, rig: Rig, run: Run, *, gated: bool) -> dict[str, Any]:
        scores = self.judge.scores(rig.model, rig.trained.gate, gated=gated)
        values: dict[str, Any] = {"kind": "run", "run": run.to_json(), "steps": run.times_steps * self.bench.steps}
        values |= {"valid": self.judge.losses(rig.trained, gated=gated), "scores": scores}
        return values | ({"equal": self.judge.is_base(rig.trained)} if gated else {})

    def _ungated(self, rig: Rig, run: Run, name: str, new: dict[str, Any]) -> None:
        """The same adapter where it acts in every language, as if it were folded in."""
        model, gate = rig.model, rig.trained.gate
        assert gate is not None
        old = {
            language: self.judge.of_language(model, gate.opened(), language) for language in self.bench.kind.languages
        }
        valid = self.judge.losses(rig.trained, gated=False)
        self.ledger.write(name, kind="ungated", run=run.to_json(), valid=valid, scores={"am": new, **old})

    def _point(self, rig: Rig, run: Run, name: str, share: float) -> None:
        base = self.bench.base_values(rig.trained.parameters["body"])
        with WeightInterpolator(rig.trained, base).at(share):
            values = self._judged(rig, run, gated=False)
        self.ledger.write(name, **{**values, "kind": "point", "share": share})

    def _listening(self, rig: Rig, curve: Curve) -> dict[int, Callable[[], None]]:
        def listen(step: int) -> None:
            curve.append((step, self.judge.quick(rig.trained)))

        steps = sorted({max(1, step * self.bench.steps // 800) for step in LISTENED})
        return {step: partial(listen, step) for step in steps}

    def _base(self) -> None:
        """The base itself: its errors, how much they vary from draw to draw, and what the listener makes of the codec."""
        if not self.ledger.wants("base"):
            return
        model, languages = self.bench.model(), self.bench.kind.languages
        scores = {one: self.judge.of_language(model, nullcontext(), one) for one in languages}
        noise = {
            one: self.judge.of_language(model, nullcontext(), one, self._noise_draws)["by_draw"] for one in languages
        }
        untrained = make_trainable(
            self.bench.model(), self.bench.rows("romanised"), self.bench.options(Run("rows", 1e-3))
        )
        scores["am"] = self.judge.of_language(untrained.model, nullcontext(), "am")
        valid = self.judge.losses(untrained, gated=True)
        self.ledger.write("base", kind="base", scores=scores, noise=noise, marks=self.judge.marks(), valid=valid)

    @property
    def _noise_draws(self) -> int:
        return NOISE_DRAWS if self.judge.draws > 1 else 2

    def _resume(self) -> None:
        """A run without a mask and from random rows, gone on with under the mask; and the same time from the start."""
        names = ("broken", "resumed", "fresh")
        if not self.ledger.wants(*names):
            return
        before, after = Rig(self.bench, "naive"), Rig(self.bench, "seeds")
        broken = Run("naive", BROKEN_RATE, start="random")
        mended = Run("seeds", BROKEN_RATE, start="random")
        for name, rig, run in (("broken", before, broken), ("resumed", after, mended), ("fresh", after, mended)):
            curve = Curve()
            rig.begin(run)
            if name == "resumed":
                rig.take_over(before)
            seconds = rig.train(run, self._listening(rig, curve))
            values = self._judged(rig, run, gated=False)
            self.ledger.write(name, **{**values, "kind": "resume"}, curve=curve, train_seconds=round(seconds, 2))


class _Late:
    """A rig that is built when it is needed: where all is done already, it is not."""

    def __init__(self, make: Callable[[], Rig]) -> None:
        self._make = make
        self._made: Rig | None = None

    @property
    def made(self) -> Rig:
        if self._made is None:
            started = time.perf_counter()
            self._made = self._make()
            print(f"{self._made.name}: ready in {time.perf_counter() - started:.0f} s", flush=True)
        return self._made


def facts_of(bench: Bench, judge: Judge) -> dict[str, Any]:
    """What stands beside every result. Those of other settings are not gone on with."""
    settings = {"steps": bench.steps, "tokens": bench.tokens, "draws": judge.draws, "held_out": bench.held_out}
    settings |= {"sentences": len(judge.sentences["am"]), "base": bench.material.notes["base_sha256"][:12]}
    device = torch.cuda.get_device_name() if bench.on_gpu else "cpu"
    compiled = bench.on_gpu and not bench.plain
    return {"settings": settings, "device": device, "torch": torch.__version__, "compiled": compiled}


def _told(record: Mapping[str, Any]) -> str:
    errors = ", ".join(f"{one} {100 * score['phone_error']['value']:.1f}" for one, score in record["scores"].items())
    return f"{record['name']}: phone error {errors}; {record.get('train_seconds', 0):.0f} s of training"


if __name__ == "__main__":
    main()
