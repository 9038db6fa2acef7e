"""Trainings that are really killed, again and again, and gone on with: do they end as the one that was left alone?

    python -m tests.kill_runs --kills 100 --in-saves 40

Every round trains in processes of their own. One kind of kill hits anywhere, after a random number of lines of the journal;
the other hits inside a save, at a random crossing of it. Then the run is gone on with to its end, and everything is
compared with the straight run: trained tensors, moments, and the journal without its clocks, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.trainers import Place
from voxgraft.journal import Journal, without_clock
from voxgraft.run import RunFolder
from voxgraft.training.faults import VARIABLE
from voxgraft.training.saving import load_step

ROOT = Path(__file__).resolve().parent.parent
MOST_CROSSINGS = 60
"""About as many points as the saves of one run cross."""


@dataclass(frozen=True)
class Round:
    """One run that was killed at least once."""

    kind: str
    at: int
    was_killed: bool
    same: bool


def worker(place: Place, run: Path, fault: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop(VARIABLE, None)
    if fault:
        environment[VARIABLE] = fault
    command = [sys.executable, "-m", "tests.train_worker", str(place.folder), str(run), "{}"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(place: Place, run: Path) -> None:
    process = worker(place, run)
    errors = process.communicate()[1]
    assert process.returncode == 0, errors[-3000:]


def ending(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Everything that a run ended with."""
    state = load_step(RunFolder(run)).state
    tensors = {f"{group}/{name}": value for group, named in state.tensors.items() for name, value in named.items()}
    return tensors, dict(state.values), [without_clock(line) for line in Journal(RunFolder(run).journal).read()]


def equal(run: Path, straight: Path) -> bool:
    (tensors, values, journal), (want, wanted, lines) = ending(run), ending(straight)
    same = tensors.keys() == want.keys() and all(torch.equal(tensors[name], want[name]) for name in want)
    return same and values == wanted and journal == lines


def killed_anywhere(place: Place, run: Path, lines: int) -> bool:
    """Kill as soon as the journal has so many lines; whether it was still running then."""
    process = worker(place, run)
    path = RunFolder(run).journal
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.001)
    process.communicate()
    return False


def killed_in_a_save(place: Place, run: Path, crossing: int) -> bool:
    """Kill at a crossing, counted over all saves of the run."""
    process = worker(place, run, f"*:{crossing}:kill")
    process.communicate()
    return process.returncode == -signal.SIGKILL


def rounds(place: Place, folder: Path, kills: int, in_saves: int, seed: int = 0) -> list[Round]:
    """That many killed runs, each compared with one that was left alone."""
    draw = random.Random(seed)
    straight = folder / "straight"
    finish(place, straight)
    num_lines = len(Journal(RunFolder(straight).journal).read())
    done = []
    for number in range(kills):
        run = folder / f"run-{number}"
        if number < in_saves:
            at = draw.randrange(1, MOST_CROSSINGS)
            found = Round("in a save", at, killed_in_a_save(place, run, at), False)
        else:
            at = draw.randrange(0, num_lines)
            found = Round("anywhere", at, killed_anywhere(place, run, at), False)
        finish(place, run)
        done.append(Round(found.kind, found.at, found.was_killed, equal(run, straight)))
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--in-saves", type=int, default=40)
    parser.add_argument("--family", default="chatterbox")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place.make(options.family, Path(folder) / options.family)
        found = rounds(place, Path(folder), options.kills, options.in_saves, options.seed)
    for kind in ("in a save", "anywhere"):
        mine = [one for one in found if one.kind == kind]
        killed, same = sum(one.was_killed for one in mine), sum(one.same for one in mine)
        print(f"{kind}: {len(mine)} runs, {killed} killed while running, {same} ended as the straight run")
    sys.exit(0 if all(one.same for one in found) else 1)


if __name__ == "__main__":
    main()
