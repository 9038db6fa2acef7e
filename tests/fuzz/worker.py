"""The process in which mutants are read: one line of JSON on standard output for each, in order.

A hang or a crash ends the process, and the line that did not come tells which mutant it was. By hand:
`python -m tests.fuzz.worker TARGET --seed 0 --start 123 --count 1 --save mutant.bin`
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import resource
import shutil
import signal
import tempfile
import traceback
from pathlib import Path

from tests.fuzz.target import CANARY, Mutant, Refused, Target
from tests.fuzz.targets import make_target
from voxgraft.core.errors import CATALOGUE, VoxgraftError

CPU_SECONDS = 10
"""A reader that computes longer than this for one small file hangs."""
SPARE_BYTES = 1 << 30
"""Address space that reading may take on top of what the process has when it starts."""
MAX_MESSAGE = 2000
LOADED = "loaded"


def main() -> None:
    """Read the mutants that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seeds", type=Path, help="folder of sound files; made anew if it is not given")
    parser.add_argument("--save", type=Path, help="write the first mutant to this file and stop")
    options = parser.parse_args()
    target = make_target(options.target)
    with tempfile.TemporaryDirectory() as folder:
        seeds = options.seeds or Path(folder) / "seeds"
        if options.seeds is None:
            seeds.mkdir()
            target.make_seeds(seeds)
        target.load(seeds)
        if options.save:
            options.save.write_bytes(target.numbered(options.seed, options.start).data)
            return
        run(target, options.seed, range(options.start, options.start + options.count), Path(folder) / "scratch")


def run(target: Target, seed: int, numbers: range, scratch: Path) -> None:
    """Read each mutant in an empty folder, within limits that end the process."""
    meanings: dict[str, object] = {}
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    _limit_memory()
    for number in numbers:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        mutant = target.numbered(seed, number)
        outcome, failure = _judged(target, mutant, meanings, scratch)
        line = {"number": number, "seed": mutant.seed, "how": mutant.how, "outcome": outcome, "failure": failure}
        print(json.dumps(line), flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)


def _judged(target: Target, mutant: Mutant, meanings: dict[str, object], scratch: Path) -> tuple[str, str | None]:
    """What became of a mutant, and what is wrong with that, if anything is."""
    try:
        meaning = _read(target, mutant.data, mutant.seed, scratch)
    except VoxgraftError as error:
        return error.code, _wrong_refusal(error, mutant)
    except Refused as refusal:
        return refusal.code, "a sound file was refused" if mutant.same else None
    except BaseException as error:  # the very thing that is looked for; a Rust panic is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return type(error).__name__, traceback.format_exc(limit=-12)
    if mutant.same and mutant.seed not in meanings:
        meanings[mutant.seed] = _read(target, target.seeds[mutant.seed], mutant.seed, scratch)
    if mutant.same and meaning != meanings[mutant.seed]:
        return LOADED, f"it is read as something else than its seed: {str(meaning)[:1000]}"
    return LOADED, None


def _wrong_refusal(error: VoxgraftError, mutant: Mutant) -> str | None:
    if mutant.same:
        return f"a sound file was refused: {str(error)[:1000]}"
    if error.code not in CATALOGUE:
        return "the code is not in the catalogue"
    if len(str(error)) > MAX_MESSAGE:
        return f"a message of {len(str(error)):,} characters: {str(error)[:300]}"
    return None


def _read(target: Target, data: bytes, seed: str, scratch: Path) -> object:
    """Read in an empty folder, which is the working folder too: a program that a file starts would leave its mark there."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        with contextlib.chdir(scratch):
            return target.read(data, seed, scratch)
    finally:
        assert not (scratch / CANARY).exists(), "a program in the file was run"


def _limit_memory() -> None:
    size = Path("/proc/self/statm")
    if not size.exists():  # only Linux tells
        return
    limit = int(size.read_text().split()[0]) * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
