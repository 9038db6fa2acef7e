"""How many steps fit into some minutes here: a few are taken, of a model that nobody keeps, and timed."""

from __future__ import annotations

import time

import torch

from voxgraft.course import open_course
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.opening import open_model
from voxgraft.run import RunFolder
from voxgraft.settings import TrainVerbSettings
from voxgraft.training.examples import Examples
from voxgraft.training.parts import make_optimizer, prepare
from voxgraft.training.step import Stepper

__all__ = ["seconds_per_step"]

WARM_UP, TIMED = 2, 4


def seconds_per_step(settings: TrainVerbSettings, family: Family, files: BaseFiles) -> float:
    """The middle of a few steps with the run's own settings and data, after some that do not count."""
    course = open_course(RunFolder(settings.run), settings, family, files)
    model = open_model(family, files, device=course.device)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    trained = prepare(model, rows, course.options)
    examples = Examples(family, trained.model, course.train)
    stepper = Stepper(trained, make_optimizer(trained, course.options), examples, course.options)
    taken = []
    for number in range(1, WARM_UP + TIMED + 1):
        began = time.perf_counter()
        stepper.step(number, course.stream.step(number))
        taken.append(time.perf_counter() - began)
    return sorted(taken[WARM_UP:])[TIMED // 2]
