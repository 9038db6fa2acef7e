"""What the trainings share: a clock that a budget of seconds sets, the rate that follows it, averaged weights.

Knows no model and no loss.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["Average", "Clock", "Course", "half_precision", "optimizer_of", "quick_arithmetic", "stepped"]

Tell = Callable[[str], None]
Model = TypeVar("Model", bound=nn.Module)
WARM_STEPS = 300
LAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Course:
    """What every training is told: its size by name, its seconds, where it runs, its seed, and whom to tell."""

    size: str
    seconds: float
    device: torch.device
    seed: int
    tell: Tell


class Clock:
    """How much of a training's time is over."""

    def __init__(self, name: str, seconds: float, tell: Tell, every_seconds: float = 15.0) -> None:
        self.name, self.seconds, self._tell, self._every = name, seconds, tell, every_seconds
        self._started = time.monotonic()
        self._told = 0.0
        self.step = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.elapsed / self.seconds)

    def rate(self, peak: float) -> float:
        """Warm-up by steps, then down along a cosine by time."""
        fall = LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * self.share))
        return peak * min(1.0, (self.step + 1) / WARM_STEPS) * fall

    def tick(self, losses: dict[str, Tensor]) -> None:
        """Count a step; tell the losses now and then, and stop if one is not a number."""
        self.step += 1
        if self.elapsed - self._told < self._every and self.step > 1:
            return
        self._told = self.elapsed
        values = {name: float(value.detach()) for name, value in losses.items()}
        shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
        self._tell(f"{self.name}: step {self.step:,}, {self.elapsed:.0f} s  {shown}")
        if not all(math.isfinite(value) for value in values.values()):
            raise RuntimeError(f"{self.name}: a loss is not finite at step {self.step}: {values}")


def optimizer_of(parameters: Iterable[nn.Parameter], device: torch.device, beta2: float = 0.98) -> torch.optim.AdamW:
    """AdamW; the rate is set at every step."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, beta2), weight_decay=0.01, fused=device.type == "cuda")


def stepped(optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], rate: float) -> None:
    """Clip, move, forget the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class Average(Generic[Model]):
    """A running mean of a model's weights, which is better than any one of them."""

    def __init__(self, model: Model) -> None:
        self.model: Model = copy.deepcopy(model).eval().requires_grad_(False)
        self._means = list(self.model.parameters())
        self._values = list(model.parameters())

    @torch.no_grad()
    def take(self, step: int) -> None:
        """Move towards the weights of now: a mean over about the last eighth of the steps, 600 at most."""
        weight = max(1 / 600, 8 / (8 + step))
        means: list[Tensor] = list(self._means)
        values: list[Tensor] = list(self._values)
        torch._foreach_lerp_(means, values, weight)


def half_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 where the device is quick with it."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def quick_arithmetic() -> None:
    """TF32 for whatever stays in float32 during training."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
