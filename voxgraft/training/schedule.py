"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from voxgraft.training.options import TrainOptions

__all__ = ["learning_rate_factor"]


def learning_rate_factor(step: int, options: TrainOptions) -> float:
    """What share of its rate each part has at that step, which counts from 1: a straight warm-up, then the schedule."""
    if step <= options.warmup_steps:
        return step / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    span = max(1, options.steps - options.warmup_steps)
    done = min(1.0, (step - options.warmup_steps) / span)
    left = 1 - done if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return options.final_share + (1 - options.final_share) * left
