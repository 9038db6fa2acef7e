"""What training is told, as plain values: the run's settings with everything that was left open decided.

No settings machinery here, so that training runs where only torch is. `train.py` makes these from a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from voxgraft.core.errors import Finding, finding
from voxgraft.models.base import EmotionSource

BaselineMode = Literal["masked-finetune"]
"""Training that is kept for comparison only; not a mode of run.yaml."""
TrainModeOrBaseline = Literal["gated", "merged", "rows-only", "masked-finetune"]
TrainPart = Literal["rows", "adapter", "body"]
TRAIN_PARTS: tuple[TrainPart, ...] = ("rows", "adapter", "body")
LRSchedule = Literal["cosine", "linear", "constant"]
TrainPrecision = Literal["float32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """All that a step depends on, beside the data and the model."""

    mode: TrainModeOrBaseline = "gated"
    full_body: bool = False
    """Merged mode: train the body itself instead of an adapter on it."""
    rank: int = 32
    alpha: float = 32.0
    rates: dict[TrainPart, float] = field(default_factory=lambda: {"rows": 1e-3, "adapter": 1e-3, "body": 2e-5})
    weight_decay: float = 0.01
    """Of adapter and body; rows are never decayed."""
    betas: tuple[float, float] = (0.9, 0.99)
    max_grad_norm: float = 1.0
    """Longest gradient of a part; 0 is no limit."""
    schedule: LRSchedule = "cosine"
    steps: int = 10_000
    warmup_steps: int = 500
    min_lr_ratio: float = 0.1
    """What is left of the rates at the last step."""
    text_weight: float = 1.0
    speech_weight: float = 1.0
    kl_weight: float = 1.0
    """Of staying near the base on replay."""
    batch_tokens: int = 16_384
    microbatch_tokens: int = 8_192
    """Most positions that go through the model at once."""
    text_dropout: float = 0.1
    """Share of items whose text is not heard, so that guidance keeps its meaning; 0 where a family has none."""
    emotion_from: EmotionSource = "target"
    seed: int = 0
    precision: TrainPrecision = "float32"
    chunk: int | None = None
    """Positions whose logits exist at once in the loss; None is all of a pack."""
    gradient_checkpointing: bool = False
    """Compute activations twice and keep few: less memory, about a third slower."""
    compile: bool = False
    deterministic: bool = False


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
