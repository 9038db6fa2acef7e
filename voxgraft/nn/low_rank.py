"""A linear layer and its low-rank adapter as one matrix product, for training with the layer itself fixed.

x W^T + (x down^T) up^T is [x, x down^T] [W, up]^T: no second result to write, to read and to add. Needs torch only.

Shapes: T positions, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["linear_as_one"]


def linear_as_one(x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    """[..., I], [O, I], [O], [R, I], [O, R] -> [..., O]; gradients flow to `x`, `down` and `up` alone."""
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _AsOne.apply(rows, weight, bias, down.to(weight.dtype), up.to(weight.dtype))  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], len(weight))


class _AsOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
        narrow = x @ down.T  # [T, R]
        ctx.save_for_backward(x, weight, down, up, narrow)
        both = torch.cat([x, narrow], -1) @ torch.cat([weight, up], -1).T
        return both if bias is None else both + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up, narrow = ctx.saved_tensors
        [gradient] = gradients
        to_narrow = gradient @ up  # [T, R]
        to_x = gradient @ weight + to_narrow @ down
        return to_x, None, None, to_narrow.T @ x, gradient.T @ narrow
