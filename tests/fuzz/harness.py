"""Runs a target's mutants in a process of its own, survives what they do to it, and counts the outcomes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.targets import make_target
from tests.fuzz.worker import LOADED

PROJECT = Path(__file__).parents[2]
SILENCE_SECONDS = 180
"""Wall time after which a process that neither answers nor computes is given up, however busy the machine is."""
MAX_FAILURES = 20


@dataclass(slots=True)
class Campaign:
    """What became of a target's mutants."""

    target: str
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    """What went wrong, by the number of the mutant."""

    @property
    def inputs(self) -> int:
        return self.outcomes.total()

    @property
    def loaded(self) -> int:
        return self.outcomes[LOADED]

    @property
    def refused(self) -> int:
        return self.inputs - self.loaded

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "seed": self.seed,
            "inputs": self.inputs,
            "loaded": self.loaded,
            "outcomes": dict(self.outcomes.most_common()),
            "failures": len(self.failures),
        }


def fuzz(name: str, seed: int, times: float, folder: Path) -> Campaign:
    """Read `times` as many mutants as the target has in a whole campaign; failing ones are kept in `folder`."""
    target = make_target(name)
    seeds = folder / "seeds"
    seeds.mkdir()
    target.make_seeds(seeds)
    target.load(seeds)
    total, done = target.count if target.fixed else max(target.least, round(target.count * times)), 0
    campaign = Campaign(name, seed)
    while done < total and len(campaign.failures) < MAX_FAILURES:
        errors = folder / "stderr.txt"
        for line in _answers(name, seed, range(done, total), seeds, errors):
            done += 1
            campaign.outcomes[line["outcome"]] += 1
            if line["failure"]:
                campaign.failures[line["number"]] = _failure(line, seed, name, folder)
        if done < total:  # the process ended early: the next mutant is the one that ended it
            line = {"number": done, "outcome": "process ended", "failure": errors.read_text()[-3000:]}
            campaign.outcomes["process ended"] += 1
            campaign.failures[done] = _failure(line, seed, name, folder)
            done += 1
    for number in campaign.failures:
        (folder / f"{name}-{seed}-{number}.bin").write_bytes(target.numbered(seed, number).data)
    return campaign


def _failure(line: dict[str, Any], seed: int, name: str, folder: Path) -> str:
    kept = folder / f"{name}-{seed}-{line['number']}.bin"
    again = f"python -m tests.fuzz.worker {name} --seed {seed} --start {line['number']}"
    what = f"{line.get('seed', '')}: {line.get('how', '')}"
    return f"mutant {line['number']} ({what})\n  {line['outcome']}: {line['failure']}\n  kept: {kept}\n  again: {again}"


def _answers(name: str, seed: int, numbers: range, seeds: Path, errors: Path) -> Iterator[dict[str, Any]]:
    """The lines of one process, until it has read everything or is no more."""
    words = [sys.executable, "-m", "tests.fuzz.worker", name, "--seed", str(seed), "--start", str(numbers.start)]
    words += ["--count", str(len(numbers)), "--seeds", str(seeds)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=PROJECT, env=environment
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        try:
            while line := lines.get(timeout=SILENCE_SECONDS):
                yield json.loads(line)
        except queue.Empty:
            stderr.write(f"no answer in {SILENCE_SECONDS} seconds\n")
        finally:
            process.kill()
            status = process.wait()
            stderr.write(f"exit status {status}\n")


def _pump(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
