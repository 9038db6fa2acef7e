"""Between base and tuned: the same training taken back by a share, measured on held-out recordings, and which to keep.

What training added to the body is multiplied by a share; the rows are new and stay as they are. Knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxgraft.nn.adapter import find_lora_layers
from voxgraft.training.parts import TrainableModel
from voxgraft.training.validation import Validator

__all__ = [
    "AsrErrorFunction",
    "InterpolationPoint",
    "WeightInterpolator",
    "choose_interpolation_point",
    "interpolate_tensor",
    "measure_interpolation_points",
]

AsrErrorFunction = Callable[[str], float | None]
"""The error of the new language as it is heard from the model as it is now; it is given a word for the progress."""


@dataclass(frozen=True, slots=True)
class InterpolationPoint:
    """A point between base (0) and tuned (1), and the held-out speech losses there, the new language's first."""

    share: float
    losses: dict[str, float]
    exceeded: dict[str, float]
    """Base languages that are past the bound there, and by how much they have risen."""
    error: float | None = None
    """Of the new language as it is heard there, where something listens."""

    def to_json(self) -> dict[str, Any]:
        heard = {} if self.error is None else {"heard_error": self.error}
        return {"share": self.share, "speech_losses": self.losses, "past_bound": self.exceeded, **heard}


class WeightInterpolator:
    """A tuned model that can be taken back towards its base for a while."""

    def __init__(self, trained: TrainableModel, base: Mapping[str, Tensor]) -> None:
        """`base` has the base's own values of the body, where the body itself was trained; else it is empty."""
        self.trained, self.base = trained, base

    @contextmanager
    def at(self, share: float) -> Iterator[None]:
        """The model is at that point inside this block."""
        layers = list(find_lora_layers(self.trained.model).values())
        alphas = [layer.alpha for layer in layers]
        tuned = {name: value.detach().clone() for name, value in self._body().items()}
        try:
            for layer, alpha in zip(layers, alphas, strict=True):
                layer.alpha = alpha * share
            self._load_body_values(
                {
                    name: interpolate_tensor(self.base[name], self._start(name), value, share)
                    for name, value in tuned.items()
                }
            )
            yield
        finally:
            for layer, alpha in zip(layers, alphas, strict=True):
                layer.alpha = alpha
            self._load_body_values(tuned)

    def _body(self) -> dict[str, Any]:
        return dict(self.trained.optimizer_parameters("body")) if "body" in self.trained.parameters else {}

    def _start(self, name: str) -> Tensor:
        return self.base[name].to(self.trained.parameters["body"][name].dtype)

    @torch.no_grad()
    def _load_body_values(self, values: Mapping[str, Tensor]) -> None:
        body = self._body()
        for name, value in values.items():
            body[name].copy_(value)
        self.trained.masters.spread()


def interpolate_tensor(base: Tensor, start: Tensor, tuned: Tensor, share: float) -> Tensor:
    """The base's values plus a share of what training added to those that it started from, in the base's dtype.

    Training may start from rounded values; what was lost there comes back with the base. Summed in float64, so that
    nothing added leaves the base's bits, and all of it gives the tuned ones.
    """
    added = tuned.to(base.device, torch.float64) - start.to(base.device, torch.float64)
    return (base.to(torch.float64) + share * added).to(base.dtype)


def measure_interpolation_points(
    between: WeightInterpolator,
    validations: Mapping[str, Validator],
    shares: Sequence[float],
    passed: Callable[[Mapping[str, float]], dict[str, float]],
    hear: AsrErrorFunction | None = None,
) -> list[InterpolationPoint]:
    """Held-out speech losses of every language at each point, in the order of the shares, and what is heard there.

    `passed` names the base languages whose losses are past their bound.
    """
    points = []
    for share in sorted(set(shares)):
        with between.at(share):
            losses = {name: validation.run().speech_loss for name, validation in validations.items()}
            error = hear(f"a share of {share:g}") if hear else None
        points.append(InterpolationPoint(share, losses, passed(losses), error))
    return points


def choose_interpolation_point(points: Sequence[InterpolationPoint]) -> InterpolationPoint:
    """The best in the new language among the points within the bound; where there is none, nearest to the base.

    By what was heard where every point was listened to, else by loss. Of two that are equal the one nearer to the base.
    """
    within = [point for point in points if not point.exceeded]
    if not within:
        return min(points, key=lambda point: point.share)
    if all(point.error is not None for point in within):
        return min(within, key=lambda point: (point.error, point.share))
    return min(within, key=lambda point: (next(iter(point.losses.values())), point.share))
