"""AdamW on a CUDA device: the numbers of a part lie in one row, and one kernel moves them all and rounds their copies.

The arithmetic, the names of the state and its place (`state[parameter]`) are those of torch's AdamW, so that a step
saved with one goes on with the other. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FlatAdamW"]

ADAMW_EPS = 1e-8
CLIP_NORM_EPS = 1e-6
"""What torch adds to a length before it divides by it."""


@dataclass(frozen=True)
class _FlatGroup:
    """The parameters of a group one after another, each from the beginning of a block."""

    values: Tensor  # [N] float32
    gradients: Tensor  # [N] float32
    means: Tensor  # [N] float32
    squares: Tensor  # [N] float32
    half_precision_copies: Tensor | None  # [N] in half precision
    owners: Tensor  # [blocks] int32: the parameter that a block belongs to
    steps: Tensor  # [parameters] float32
    spans: list[tuple[int, torch.Size]]

    def parts(self, row: Tensor) -> list[Tensor]:
        """One of the rows as the parameters see it."""
        return [row[start : start + shape.numel()].view(shape) for start, shape in self.spans]


class FlatAdamW(torch.optim.Optimizer):
    """AdamW whose parameters, and the half-precision copies of them, are moved into rows when it is made."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        betas: tuple[float, float],
        copies: Mapping[nn.Parameter, nn.Parameter],
    ) -> None:
        """`copies` are the model's rounded copies of those parameters that have some."""
        super().__init__([dict(group) for group in groups], {"lr": 0.0, "betas": betas, "weight_decay": 0.0})
        self._rows = [_flatten_group(group["params"], copies) for group in self.param_groups]
        moved = [parameter for group in self.param_groups for parameter in group["params"]]
        self._updated_tensors = [*moved, *(copies[parameter] for parameter in moved if parameter in copies)]
        for group, row in zip(self.param_groups, self._rows, strict=True):
            moments = zip(row.parts(row.means), row.parts(row.squares), row.steps, strict=True)
            for parameter, (mean, square, step) in zip(group["params"], moments, strict=True):
                self.state[parameter] = {"exp_avg": mean, "exp_avg_sq": square, "step": step}

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Where the gradient of every parameter is kept: who computes it there saves a copy."""
        return {
            parameter: part
            for group, row in zip(self.param_groups, self._rows, strict=True)
            for parameter, part in zip(group["params"], row.parts(row.gradients), strict=True)
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's interface)
        """Move by the gradients as they are."""
        self.clip_and_step(0.0, torch.zeros((), device=self._rows[0].values.device))

    @torch.no_grad()
    def clip_and_step(self, limit: float, witness: Tensor) -> list[Tensor]:
        """Move each group by its gradient, at most `limit` long (0: as it is); gives the lengths before that.

        Nothing at all moves unless every length and the `witness` are finite.
        """
        reached = [self._gather_gradients(group, row) for group, row in zip(self.param_groups, self._rows, strict=True)]
        norms = [torch.linalg.vector_norm(row.gradients) for row in self._rows]
        fine = torch.isfinite(torch.stack([*norms, witness.sum()])).all()
        for group, row, norm, moving in zip(self.param_groups, self._rows, norms, reached, strict=True):
            factor = (limit / (norm + CLIP_NORM_EPS)).clamp(max=1.0) if limit else torch.ones_like(norm)
            factor = torch.where(fine, factor, torch.full_like(factor, float("nan")))
            self._apply_update(group, row, factor, torch.where(fine, row.steps + moving, row.steps), moving)
        # The kernel writes past torch's back, and who keeps a copy of a parameter looks at its version.
        torch.autograd.graph.increment_version(self._updated_tensors)
        return norms

    def _gather_gradients(self, group: Mapping[str, Any], row: _FlatGroup) -> Tensor:
        """Bring gradients that autograd made elsewhere into their row; 1 for the parameters that have one."""
        places, found, reached = [], [], []
        for parameter, place in zip(group["params"], row.parts(row.gradients), strict=True):
            gradient = parameter.grad
            reached.append(float(gradient is not None))
            if gradient is None:
                place.zero_()
            elif gradient.data_ptr() != place.data_ptr():
                places.append(place)
                found.append(gradient)
        if places:
            torch._foreach_copy_(places, found)
        return torch.tensor(reached).pin_memory().to(row.steps.device, non_blocking=True)

    def _apply_update(
        self, group: Mapping[str, Any], row: _FlatGroup, factor: Tensor, steps: Tensor, moving: Tensor
    ) -> None:
        from voxgraft.training.adamw_kernel import ADAMW_BLOCK_SIZE, adamw_step_kernel

        row.steps.copy_(steps)
        adamw_step_kernel[(len(row.owners),)](
            row.values,
            row.gradients,
            row.means,
            row.squares,
            row.values if row.half_precision_copies is None else row.half_precision_copies,
            row.owners,
            steps * moving,
            factor,
            group["lr"],
            *group["betas"],
            ADAMW_EPS,
            group["weight_decay"],
            COPIED=row.half_precision_copies is not None,
            BLOCK=ADAMW_BLOCK_SIZE,
        )


def _flatten_group(parameters: Sequence[nn.Parameter], copies: Mapping[nn.Parameter, nn.Parameter]) -> _FlatGroup:
    from voxgraft.training.adamw_kernel import ADAMW_BLOCK_SIZE

    blocks = [-(-parameter.numel() // ADAMW_BLOCK_SIZE) for parameter in parameters]
    starts = [ADAMW_BLOCK_SIZE * sum(blocks[:at]) for at in range(len(blocks))]
    device = parameters[0].device
    values, gradients, means, squares = (torch.zeros(ADAMW_BLOCK_SIZE * sum(blocks), device=device) for _ in range(4))
    rounded = [copies[parameter] for parameter in parameters if parameter in copies]
    if rounded and len(rounded) < len(parameters):
        raise ValueError("either all parameters of a group have copies, or none has")
    row = _FlatGroup(
        values,
        gradients,
        means,
        squares,
        torch.zeros(len(values), device=device, dtype=rounded[0].dtype) if rounded else None,
        torch.repeat_interleave(torch.tensor(blocks)).to(device, torch.int32),
        torch.zeros(len(parameters), device=device),
        [(start, parameter.shape) for start, parameter in zip(starts, parameters, strict=True)],
    )
    _move_into_buffer(parameters, row.parts(row.values))
    if row.half_precision_copies is not None:
        _move_into_buffer(rounded, row.parts(row.half_precision_copies))
    return row


def _move_into_buffer(parameters: Sequence[nn.Parameter], places: Sequence[Tensor]) -> None:
    """From now on the parameters live there."""
    for parameter, place in zip(parameters, places, strict=True):
        place.copy_(parameter.detach())
        parameter.data = place
