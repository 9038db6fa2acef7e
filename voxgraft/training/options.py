"""What training is told, as plain values: the run's settings with everything that was left open decided.

No settings machinery here, so that training runs where only torch is. `train.py` makes these from a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from voxgraft.families.base import EmotionSource

__all__ = ["TRAIN_PARTS", "LRSchedule", "TrainModeOrBaseline", "TrainOptions", "TrainPart", "TrainPrecision"]

TrainModeOrBaseline = Literal["gated", "merged", "rows-only", "as-in-the-seeds"]
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
    clip: float = 1.0
    """Longest gradient of a part; 0 is no limit."""
    schedule: LRSchedule = "cosine"
    steps: int = 10_000
    warmup_steps: int = 500
    final_share: float = 0.1
    """What is left of the rates at the last step."""
    text_weight: float = 1.0
    speech_weight: float = 1.0
    kl_weight: float = 1.0
    """Of staying near the base on replay."""
    tokens_per_step: int = 16_384
    pack_tokens: int = 8_192
    """Most positions that go through the model at once."""
    silent_share: float = 0.1
    """Share of items whose text is not heard, so that guidance keeps its meaning; 0 where a family has none."""
    emotion_from: EmotionSource = "target"
    seed: int = 0
    precision: TrainPrecision = "float32"
    chunk: int | None = None
    """Positions whose logits exist at once in the loss; None is all of a pack."""
    checkpointing: bool = False
    """Compute activations twice and keep few: less memory, about a third slower."""
    compile: bool = False
    deterministic: bool = False
