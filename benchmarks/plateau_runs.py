"""The runs of benchmarks/plateaus.py: healthy ones, and ones that cannot learn, each made by one call; tells nobody."""

from __future__ import annotations

import resource
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.toy_language import (
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
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import DataSettings, TokenizerSettings, TrainSettings
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.shards import AnyArray
from voxgraft.models import get_family
from voxgraft.models.base import Clip
from voxgraft.pipeline.train import _build_loop, _build_monitor, train
from voxgraft.training.distributed import DistributedContext
from voxgraft.training.setup import build_training_setup
from voxgraft.training.trainer import Trainer

MOST_STEPS = 500
"""Within so many a plateau must be told."""
CLIPS, HELD_OUT, PIECES = 800, 48, 40
ENGLISH, ENGLISH_HELD_OUT = 300, 24
WAYS: dict[str, dict[str, Any]] = {
    "gated": {},
    "merged, full body": {"mode": "merged", "full_backbone": True},
    "rows only": {"mode": "rows-only", "lr_rows": 1e-2},
    "merged, adapter": {"mode": "merged"},
    "gated, constant rates": {"schedule": "constant"},
    "gated, low rates": {"lr_adapter": 1e-3, "lr_rows": 2e-3},
}
"""Settings of healthy runs, in turn. Merged ones have replay and held-out recordings of English."""


@dataclass(frozen=True)
class Task:
    """One run to be made; `fault` is empty for a healthy one."""

    name: str
    family: str
    seed: int
    steps: int
    folder: Path
    base: Path
    fault: str = ""
    way: str = "gated"
    clips: int = CLIPS


@dataclass
class Told:
    """What one run was told, and how it ended."""

    name: str
    family: str
    seed: int
    fault: str = ""
    before: list[str] = field(default_factory=list)
    """Alarms before the first step."""
    refused: bool = False
    """Whether `train` would not have begun."""
    during: list[tuple[int, str]] = field(default_factory=list)
    """Alarms on the way, with their step."""
    notes: list[str] = field(default_factory=list)
    """Findings that are no alarm."""
    states: list[tuple[int, str]] = field(default_factory=list)
    """Where the state word changed."""
    steps: int = 0
    first_loss: float = 0.0
    speech_loss: float = 0.0
    text_use: float = 0.0
    voice_use: float = 0.0
    seconds: float = 0.0
    peak_mb: int = 0
    """Of the process, which may have made other runs before."""
    failed: str = ""
    """The error that ended it, if one did."""

    @property
    def alarms(self) -> list[tuple[int, str]]:
        return [*((0, code) for code in self.before), *self.during]

    @property
    def seen(self) -> tuple[int, str] | None:
        """The first alarm that names the cause."""
        named = FAULTS[self.fault].told_by if self.fault else ()
        return next((alarm for alarm in self.alarms if alarm[1] in named), None)

    @property
    def good(self) -> bool:
        """Whether all is as it should be: the cause told in time; of a healthy run nothing, not even in the state word."""
        if self.failed:
            return False
        if self.fault:
            return self.seen is not None and self.seen[0] <= MOST_STEPS
        return (
            not self.alarms and "stuck" not in dict(self.states).values() and "learning" in dict(self.states).values()
        )


@dataclass(frozen=True)
class Fault:
    """One way to make a run that cannot learn: what becomes of its sets, its settings or its loop."""

    told_by: tuple[str, ...]
    """Findings that name the cause."""
    spoil: Callable[[World], Iterator[Clip]] = lambda world: world.clips(CLIPS, 1)
    held_out: Callable[[World], Iterator[Clip]] = lambda world: world.clips(HELD_OUT, 2)
    data: dict[str, Any] = field(default_factory=dict)
    meddle: Callable[[Trainer], None] = lambda _loop: None


def make_base(name: str, folder: Path) -> Path:
    torch.set_num_threads(1)
    if not folder.exists():
        make_speaking_base(name, folder)
    return folder / "base"


def make_run(task: Task, *, keep: bool) -> Told:
    """One run from nothing to its end, in a process of the pool."""
    torch.set_num_threads(1)
    reported = Told(task.name, task.family, task.seed, task.fault)
    started = time.perf_counter()
    world = make_world(task.family, task.folder, task.base, seed=task.seed, pieces=PIECES)
    try:
        _spoiled(task, world) if task.fault else _healthy(task, world)
    except Exception:  # whatever it is, the other runs are told of, and this one counts as bad
        reported.failed = traceback.format_exc()
    _read(reported, world)
    reported.seconds = round(time.perf_counter() - started, 1)
    reported.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if not keep:
        shutil.rmtree(task.folder)
    return reported


def _healthy(task: Task, world: World) -> None:
    world.write_healthy(clips=task.clips, held_out=HELD_OUT)
    train(_settings(world, task, WAYS[task.way], _replay(world) if "merged" in task.way else {}))


def _replay(world: World) -> dict[str, Any]:
    """English, spelled by the base's own tokenizer: to learn from, and held out."""
    of_base = replace(world, made_from=replace(world.made_from, tokenizer_sha256=world.text_encoder.base.sha256))
    of_base.write("english", of_base.clips(ENGLISH, 11, "en"), "replay", "en")
    of_base.write("english-valid", of_base.clips(ENGLISH_HELD_OUT, 12, "en"), "valid", "en")
    data = world.run / "data"
    return {"replay": (data / "english",), "replay_valid": (data / "english-valid",)}


def _spoiled(task: Task, world: World) -> None:
    """What `train` does, but for its refusal: trained all the same, to see what else would be told on the way."""
    fault = FAULTS[task.fault]
    world.write("train", fault.spoil(world))
    world.write("valid", fault.held_out(world), "valid")
    settings = _settings(world, task, {}, fault.data)
    setup = build_training_setup(RunFolder(world.run), settings, get_family(world.family_name), world.files)
    loop = _build_loop(setup, DistributedContext())
    watch = _build_monitor(setup, loop)
    watch.tell(0, setup.findings)
    fault.meddle(loop)
    loop.train(0)


def _settings(world: World, task: Task, train_settings: dict[str, Any], data: dict[str, Any]) -> TrainCommandSettings:
    usual = {"lr_rows": 5e-3, "lr_adapter": 3e-3, "lr_backbone": 1e-4, "rank": 16, "device": "cpu", "seed": task.seed}
    every = {"valid_every": 50, "save_every": 250, "sample_every": 250, "log_every": 50}
    size = {"steps": task.steps, "warmup_steps": 50, "batch_tokens": 1_500}
    return TrainCommandSettings(
        run=world.run,
        base=world.files.folder,
        language="am",
        tokenizer=TokenizerSettings(pieces=PIECES),
        data=DataSettings(**{"min_prompt_seconds": 0.1, **data}),
        train=TrainSettings(**{**usual, **every, **size, **train_settings}),
    )


def _read(reported: Told, world: World) -> None:
    """What the journal says."""
    for entry in RunJournal(RunFolder(world.run).journal).read():
        reported.steps = max(reported.steps, entry["step"])
        if entry["kind"] == "finding":
            _read_finding(reported, entry)
        if entry["kind"] == "valid" and "state" in entry:
            reported.first_loss = reported.first_loss or entry["speech_loss"]
            reported.speech_loss, reported.text_use, reported.voice_use = (
                entry["speech_loss"],
                entry["text_use"] or 0.0,
                entry["voice_use"] or 0.0,
            )
            if not reported.states or reported.states[-1][1] != entry["state"]:
                reported.states.append((entry["step"], entry["state"]))


def _read_finding(reported: Told, entry: Mapping[str, Any]) -> None:
    if entry["level"] == "note":
        reported.notes += [entry["code"]] if entry["code"] not in reported.notes else []
    elif entry["step"]:
        reported.during.append((entry["step"], entry["code"]))
    else:
        reported.before.append(entry["code"])
        reported.refused |= entry["level"] == "error"  # as `train` does on any error


def _unknown(world: World) -> int:
    assert world.text_encoder.grown is not None
    return world.text_encoder.grown.unknown_id


def _another(world: World) -> Iterator[Clip]:
    assert world.text_encoder.grown is not None
    return with_other_tokenizer(
        world.clips(CLIPS, 1), world.text_encoder.base.size, world.text_encoder.grown.size, world.seed
    )


def _some_voice(world: World) -> Mapping[str, AnyArray]:
    return next(world.clips(1, 3)).voice


def _freeze_half(loop: Trainer) -> None:
    """A freeze boundary too high, as the forks set it: new rows below it never get their gradient."""
    for parameter in loop.stepper.trained.parameters["rows"].values():
        boundary = len(parameter) // 2
        parameter.register_hook(_masked(boundary))  # type: ignore[no-untyped-call]


def _masked(boundary: int) -> Callable[[Tensor], Tensor]:
    def mask(gradient: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(gradient[:boundary]), gradient[boundary:]])

    return mask


FAULTS: dict[str, Fault] = {
    "unknown-heavy text": Fault(
        ("clips-text-unknown",), lambda world: with_unknowns(world.clips(CLIPS, 1), _unknown(world), 0.5, world.seed)
    ),
    "padded codes": Fault(
        ("clips-seconds", "clips-trailing-run"), lambda world: padded(list(world.clips(CLIPS, 1)), 7, 16)
    ),
    "dead rows": Fault(("dead-rows",), meddle=_freeze_half),
    "wrong tokenizer of the same size": Fault(("clips-other-tokenizer", "other-texts"), _another),
    "prompt equal to target, recordings twice": Fault(
        ("prompt-is-target",), lambda world: twice(list(world.clips(CLIPS // 2, 1)))
    ),
    "prompt equal to target, lone clips": Fault(
        ("speakers-one-clip",), lambda world: alone(world.clips(CLIPS, 1)), data={"single_clip_speakers": "own"}
    ),
    "texts of other clips": Fault(
        ("not-reading", "no-gain"), lambda world: with_other_texts(list(world.clips(CLIPS, 1)))
    ),
    "voices at random": Fault(
        ("not-hearing",), lambda world: with_voices_at_random(list(world.clips(CLIPS, 1)), world.seed)
    ),
    "one voice for all": Fault(
        ("not-hearing",),
        lambda world: with_one_voice(list(world.clips(CLIPS, 1)), _some_voice(world)),
        held_out=lambda world: with_one_voice(list(world.clips(HELD_OUT, 2)), _some_voice(world)),
    ),
    "recordings of noise": Fault(
        ("no-gain", "not-reading"), lambda world: with_codes_at_random(world.clips(CLIPS, 1), world.seed)
    ),
}
BEYOND = ("texts of other clips", "voices at random", "one voice for all", "recordings of noise")
"""Faults that are not in the seeds: shown, and no condition."""
