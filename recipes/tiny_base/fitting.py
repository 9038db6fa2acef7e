"""What the trainings share: a time budget, the learning rate schedule over it, and an EMA of the weights."""

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

__all__ = [
    "TimeBudget",
    "TrainingSetup",
    "WeightEMA",
    "allow_tf32",
    "build_optimizer",
    "half_precision",
    "optimizer_step",
]

Log = Callable[[str], None]
Model = TypeVar("Model", bound=nn.Module)
WARMUP_STEPS = 300
MIN_LR_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Common arguments of the trainings: size by name, seconds, device, seed, and a log function."""

    size: str
    seconds: float
    device: torch.device
    seed: int
    log: Log


class TimeBudget:
    """Elapsed share of a training's time; logs the losses."""

    def __init__(self, name: str, seconds: float, log: Log, every_seconds: float = 15.0) -> None:
        self.name, self.seconds, self._log, self._every = name, seconds, log, every_seconds
        self._started = time.monotonic()
        self._last_log = 0.0
        self.step = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.elapsed / self.seconds)

    def rate(self, peak: float) -> float:
        """Learning rate: linear warm-up over steps, then cosine decay over time."""
        fall = MIN_LR_RATIO + (1 - MIN_LR_RATIO) * 0.5 * (1 + math.cos(math.pi * self.share))
        return peak * min(1.0, (self.step + 1) / WARMUP_STEPS) * fall

    def count_step(self, losses: dict[str, Tensor]) -> None:
        """Count a step. Log the losses every few seconds, and stop if one is not finite."""
        self.step += 1
        if self.elapsed - self._last_log < self._every and self.step > 1:
            return
        self._last_log = self.elapsed
        values = {name: float(value.detach()) for name, value in losses.items()}
        shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
        self._log(f"{self.name}: step {self.step:,}, {self.elapsed:.0f} s  {shown}")
        if not all(math.isfinite(value) for value in values.values()):
            raise RuntimeError(f"{self.name}: a loss is not finite at step {self.step}: {values}")


def build_optimizer(parameters: Iterable[nn.Parameter], device: torch.device, beta2: float = 0.98) -> torch.optim.AdamW:
    """AdamW; the learning rate is set at every step."""
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, beta2), weight_decay=0.01, fused=device.type == "cuda")


def optimizer_step(optimizer: torch.optim.AdamW, parameters: list[nn.Parameter], rate: float) -> None:
    """Clip the gradients, update the parameters, clear the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class WeightEMA(Generic[Model]):
    """Exponential moving average of a model's weights."""

    def __init__(self, model: Model) -> None:
        self.model: Model = copy.deepcopy(model).eval().requires_grad_(False)
        self._means = list(self.model.parameters())
        self._values = list(model.parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average, over about the last eighth of the steps, 600 at most."""
        weight = max(1 / 600, 8 / (8 + step))
        means: list[Tensor] = list(self._means)
        values: list[Tensor] = list(self._values)
        torch._foreach_lerp_(means, values, weight)


def half_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 autocast on CUDA."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


def allow_tf32() -> None:
    """Allow TF32 for float32 operations during training."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
