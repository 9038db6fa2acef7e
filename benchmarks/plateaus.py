"""Whether a run that cannot learn is seen, and one that can is left in peace: plateaus made on purpose, and healthy runs.

    OMP_NUM_THREADS=1 python -m benchmarks.plateaus FOLDER [--first-seed 100] [--healthy 20] [--steps 500]

Tiny bases that read made-up English aloud are taught made-up Amharic by the real verb, each run from another seed and
with other settings. A finding of level warning or error is an alarm. Needs no GPU; about a minute a run on one core.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.made_language import (
    World,
    alone,
    make_speaking_base,
    make_world,
    padded,
    twice,
    with_codes_at_random,
    with_one_voice,
    with_other_texts,
    with_other_tokenizer,
    with_unknowns,
    with_voices_at_random,
)
from voxgraft.corpus.clips import Array, PreparedClip
from voxgraft.course import open_course
from voxgraft.families import family_names
from voxgraft.journal import Journal
from voxgraft.results import Table
from voxgraft.run import RunFolder
from voxgraft.run_settings import DataSettings, TokenizerSettings, TrainSettings
from voxgraft.settings import TrainVerbSettings
from voxgraft.train import _loop, _sentences, _watch, _without_errors, train
from voxgraft.training.loop import Loop
from voxgraft.training.processes import Processes
from voxgraft.training.state_word import Thresholds

CLIPS, HELD_OUT, PIECES = 800, 48, 40
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"schedule": "constant"},
    {"mode": "merged", "full_body": True, "retention_bound": None},
    {"mode": "rows-only", "row_rate": 1e-2},
    {"adapter_rate": 1e-3, "row_rate": 2e-3},
)
"""Settings of healthy runs, in turn."""
SIZES = (800, 300, 1_500)
"""Clips of healthy runs, in turn."""


@dataclass
class Told:
    """What one run was told, and how it ended."""

    name: str
    family: str
    seed: int
    before: list[str] = field(default_factory=list)
    """Alarms before the first step."""
    refused: bool = False
    during: list[tuple[int, str]] = field(default_factory=list)
    """Alarms on the way, with their step."""
    states: list[tuple[int, str]] = field(default_factory=list)
    """Where the state word changed."""
    speech_loss: float = 0.0
    text_use: float = 0.0
    voice_use: float = 0.0
    seconds: float = 0.0

    @property
    def first_alarm(self) -> int | None:
        return 0 if self.before else self.during[0][0] if self.during else None


@dataclass(frozen=True)
class Fault:
    """One way to make a run that cannot learn: what becomes of its sets, its settings or its loop."""

    spoil: Callable[[World], Iterator[PreparedClip]] = lambda world: world.clips(CLIPS, 1)
    held_out: Callable[[World], Iterator[PreparedClip]] = lambda world: world.clips(HELD_OUT, 2)
    data: dict[str, Any] = field(default_factory=dict)
    meddle: Callable[[Loop], None] = lambda _loop: None


def main() -> None:
    """Train all, print the tables, and write them to table.md and table.json."""
    asked = _asked()
    torch.set_num_threads(1)
    bases = {name: _base(name, asked.folder / f"base-{name}") for name in asked.families}
    told = []
    for at in range(asked.healthy):
        told.append(_healthy(bases, at, asked))
        print(_line(told[-1]), flush=True)
    for name, fault in FAULTS.items():
        for at, kind in enumerate(asked.families):
            told.append(_spoiled(name, fault, kind, bases[kind], asked.first_seed + 50 + at, asked))
            print(_line(told[-1]), flush=True)
    page = "\n".join(_page(told))
    print(page)
    (asked.folder / "table.md").write_text(page + "\n", encoding="utf-8")
    (asked.folder / "table.json").write_text(json.dumps([asdict(one) for one in told], ensure_ascii=False, indent=1))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="where bases, runs and tables are left")
    parser.add_argument("--first-seed", type=int, default=100, help="seed of the first run")
    parser.add_argument("--healthy", type=int, default=20, help="healthy runs, shared by the families")
    parser.add_argument("--steps", type=int, default=500, help="of healthy runs")
    parser.add_argument("--spoiled-steps", type=int, default=350, help="of runs that cannot learn")
    parser.add_argument("--families", nargs="+", default=list(family_names()))
    return parser.parse_args()


def _base(name: str, folder: Path) -> Path:
    if not folder.exists():
        make_speaking_base(name, folder)
    return folder / "base"


def _healthy(bases: dict[str, Path], at: int, asked: argparse.Namespace) -> Told:
    name = asked.families[at % len(asked.families)]
    seed, turn = asked.first_seed + at, at // len(asked.families)
    world = make_world(name, asked.folder / f"healthy-{seed}-{name}", bases[name], seed=seed, pieces=PIECES)
    world.write_healthy(clips=SIZES[turn % len(SIZES)], held_out=HELD_OUT)
    settings = _settings(world, seed, asked.steps, WAYS[turn % len(WAYS)])
    told = Told(f"healthy: {_words(WAYS[turn % len(WAYS)])}, {SIZES[turn % len(SIZES)]:,} clips", name, seed)
    started = time.perf_counter()
    train(settings)
    return _read(told, world, started)


def _spoiled(name: str, fault: Fault, kind: str, base: Path, seed: int, asked: argparse.Namespace) -> Told:
    """What `train` would refuse is trained all the same, to see what else would be told on the way."""
    folder = asked.folder / f"{re.sub('[^a-z]+', '-', name)}-{seed}-{kind}"
    world = make_world(kind, folder, base, seed=seed, pieces=PIECES)
    world.write("train", fault.spoil(world))
    world.write("valid", fault.held_out(world), "valid")
    settings = _settings(world, seed, asked.spoiled_steps, {}, fault.data)
    told = Told(name, kind, seed)
    started = time.perf_counter()
    _train_all_the_same(settings, fault)
    return _read(told, world, started)


def _train_all_the_same(settings: TrainVerbSettings, fault: Fault) -> None:
    """What `train` does, but for its refusal."""
    run = RunFolder(settings.run)
    course = open_course(run, settings, *_without_errors(settings))
    loop = _loop(course, Processes())
    watch = _watch(course, loop, _sentences(course, settings))
    watch.tell(0, course.findings)
    fault.meddle(loop)
    loop.go(0)


def _settings(
    world: World, seed: int, steps: int, train_settings: dict[str, Any], data: dict[str, Any] | None = None
) -> TrainVerbSettings:
    usual = {"row_rate": 5e-3, "adapter_rate": 3e-3, "body_rate": 1e-4, "rank": 16, "device": "cpu", "seed": seed}
    every = {"valid_every": 50, "save_every": 250, "sample_every": 250, "log_every": 50}
    size = {"steps": steps, "warmup_steps": 50, "tokens_per_step": 1_500}
    return TrainVerbSettings(
        run=world.run,
        base=world.files.folder,
        language="am",
        tokenizer=TokenizerSettings(pieces=PIECES),
        data=DataSettings(**{"min_prompt_seconds": 0.1, **(data or {})}),
        train=TrainSettings(**{**usual, **every, **size, **train_settings}),
    )


def _read(told: Told, world: World, started: float) -> Told:
    """What the journal says."""
    told.seconds = round(time.perf_counter() - started, 1)
    for entry in Journal(RunFolder(world.run).journal).read():
        if entry["kind"] == "finding" and entry["level"] != "note":
            if entry["step"]:
                told.during.append((entry["step"], entry["code"]))
            else:
                told.before.append(entry["code"])
                told.refused |= entry["level"] == "error"  # as `train` does on any error
        if entry["kind"] == "valid" and "state" in entry:
            told.speech_loss, told.text_use, told.voice_use = (
                entry["speech_loss"],
                entry["text_use"] or 0.0,
                entry["voice_use"] or 0.0,
            )
            if not told.states or told.states[-1][1] != entry["state"]:
                told.states.append((entry["step"], entry["state"]))
    return told


def _unknown(world: World) -> int:
    assert world.spelling.grown is not None
    return world.spelling.grown.unknown_id


def _another(world: World) -> Iterator[PreparedClip]:
    assert world.spelling.grown is not None
    return with_other_tokenizer(world.clips(CLIPS, 1), world.spelling.base.size, world.spelling.grown.size, world.seed)


def _some_voice(world: World) -> Mapping[str, Array]:
    return next(world.clips(1, 3)).voice


def _freeze_half(loop: Loop) -> None:
    """A freeze boundary too high, as the forks set it: new rows below it never get their gradient."""
    for parameter in loop.stepper.trained.parameters["rows"].values():
        boundary = len(parameter) // 2
        parameter.register_hook(_masked(boundary))  # type: ignore[no-untyped-call]


def _masked(boundary: int) -> Callable[[Tensor], Tensor]:
    def mask(gradient: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(gradient[:boundary]), gradient[boundary:]])

    return mask


FAULTS: dict[str, Fault] = {
    "unknown-heavy text": Fault(lambda world: with_unknowns(world.clips(CLIPS, 1), _unknown(world), 0.5, world.seed)),
    "padded codes": Fault(lambda world: padded(list(world.clips(CLIPS, 1)), 7, 16)),
    "dead rows": Fault(meddle=_freeze_half),
    "wrong tokenizer of the same size": Fault(_another),
    "prompt equal to target, recordings twice": Fault(lambda world: twice(list(world.clips(CLIPS // 2, 1)))),
    "prompt equal to target, lone clips": Fault(lambda world: alone(world.clips(CLIPS, 1)), data={"lone_clips": "own"}),
    "beyond the seeds: texts of other clips": Fault(lambda world: with_other_texts(list(world.clips(CLIPS, 1)))),
    "beyond the seeds: voices at random": Fault(
        lambda world: with_voices_at_random(list(world.clips(CLIPS, 1)), world.seed)
    ),
    "beyond the seeds: one voice for all": Fault(
        lambda world: with_one_voice(list(world.clips(CLIPS, 1)), _some_voice(world)),
        held_out=lambda world: with_one_voice(list(world.clips(HELD_OUT, 2)), _some_voice(world)),
    ),
    "beyond the seeds: recordings of noise": Fault(
        lambda world: with_codes_at_random(world.clips(CLIPS, 1), world.seed)
    ),
}


def _line(told: Told) -> str:
    return f"{told.name} ({told.family}, seed {told.seed}): before {told.before}, during {told.during}, {told.states}"


def _words(way: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in way.items()) or "gated"


def _page(told: Sequence[Told]) -> list[str]:
    healthy = [one for one in told if one.name.startswith("healthy")]
    spoiled = [one for one in told if not one.name.startswith("healthy")]
    alarmed = [one for one in healthy if one.first_alarm is not None]
    seen = [one for one in spoiled if one.first_alarm is not None]
    return [
        f"thresholds: {Thresholds()}",
        "",
        *_table(healthy),
        "",
        f"false alarms: {len(alarmed)} of {len(healthy)} healthy runs",
        "",
        *_table(spoiled),
        "",
        f"seen: {len(seen)} of {len(spoiled)}; the last alarm that came first, at step "
        f"{max([one.first_alarm or 0 for one in seen], default=0)}",
    ]


def _table(told: Sequence[Told]) -> list[str]:
    rows = tuple(
        (
            one.name,
            one.family,
            str(one.seed),
            ("refused: " if one.refused else "") + ", ".join(dict.fromkeys(one.before)),
            ", ".join(f"{code} ({step})" for step, code in one.during),
            ", ".join(f"{state} ({step})" for step, state in one.states),
            f"{one.speech_loss:.2f}",
            f"{one.text_use:.2f}",
            f"{one.voice_use:.3f}",
        )
        for one in told
    )
    columns = ("run", "family", "seed", "before step 1", "on the way", "state (from step)", "loss", "text", "voice")
    return Table(columns, rows).lines() if rows else []


if __name__ == "__main__":
    main()
