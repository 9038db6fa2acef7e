"""How many steps fit into some minutes here: a few are taken, of a model that nobody keeps, and timed."""

from __future__ import annotations

import time

import torch

from voxgraft.course import build_training_setup
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.opening import load_model
from voxgraft.run import RunFolder
from voxgraft.settings import TrainCommandSettings
from voxgraft.training.examples import BatchBuilder
from voxgraft.training.parts import build_optimizer, make_trainable
from voxgraft.training.step import TrainStep

__all__ = ["measure_seconds_per_step"]

WARMUP_STEPS, TIMED_STEPS = 2, 4


def measure_seconds_per_step(settings: TrainCommandSettings, family: Family, files: BaseFiles) -> float:
    """The middle of a few steps with the run's own settings and data, after some that do not count."""
    course = build_training_setup(RunFolder(settings.run), settings, family, files)
    model = load_model(family, files, device=course.device)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    trained = make_trainable(model, rows, course.options)
    examples = BatchBuilder(family, trained.model, course.train)
    stepper = TrainStep(trained, build_optimizer(trained, course.options), examples, course.options)
    taken = []
    for number in range(1, WARMUP_STEPS + TIMED_STEPS + 1):
        began = time.perf_counter()
        stepper.step(number, course.stream.step(number))
        taken.append(time.perf_counter() - began)
    return sorted(taken[WARMUP_STEPS:])[TIMED_STEPS // 2]
