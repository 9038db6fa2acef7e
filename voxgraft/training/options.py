"""What training is told, as plain values: the run's settings with everything that was left open decided.

No settings machinery here, so that training runs where only torch is. `train.py` makes these from a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from voxgraft.config.train_options import (
    TRAIN_PARTS,
    BaselineMode,
    TrainIntervals,
    TrainModeOrBaseline,
    TrainOptions,
    TrainPart,
    TrainPrecision,
)
from voxgraft.core.errors import Finding, finding

__all__ = [
    "TRAIN_PARTS",
    "BaselineMode",
    "RetentionBound",
    "TrainIntervals",
    "TrainModeOrBaseline",
    "TrainOptions",
    "TrainPart",
    "TrainPrecision",
    "learning_rate_factor",
    "retention_bound_finding",
]


def learning_rate_factor(step: int, options: TrainOptions) -> float:
    """What share of its rate each part has at that step, which counts from 1: a straight warm-up, then the schedule."""
    if step <= options.warmup_steps:
        return step / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    span = max(1, options.steps - options.warmup_steps)
    done = min(1.0, (step - options.warmup_steps) / span)
    left = 1 - done if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * left


@dataclass(frozen=True, slots=True)
class RetentionBound:
    """A share by which the loss of every base language may rise at most."""

    share: float
    languages: frozenset[str]

    def limit(self, first: float) -> float:
        """The highest loss that is still within the bound."""
        return first * (1 + self.share)

    def exceeded(self, first: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
        """By how much of its first loss each language has risen that is past the bound; the worst first.

        A loss that is not a number is past every bound. A language without a first loss cannot be judged.
        """
        rises = {
            name: now[name] / first[name] - 1
            for name in sorted(self.languages & first.keys() & now.keys())
            if not now[name] <= self.limit(first[name])
        }
        return dict(sorted(rises.items(), key=lambda item: -item[1]))


def retention_bound_finding(bound: RetentionBound, passed: Mapping[str, float], step: int, best_step: int) -> Finding:
    """What to say when the bound is passed."""
    rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in passed.items())
    kept = f"step {best_step:,} is the best within the bound" if best_step else "no step was within the bound"
    found = f"at step {step:,} the held-out speech loss of base languages had risen: {rises}; {kept}"
    return finding("retention-bound", found, expected=f"at most {100 * bound.share:g} %")
