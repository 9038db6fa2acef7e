"""Linear layers and their low-rank adapters as one matrix product, for training with the layers themselves fixed.

x W^T + (x down^T) up^T is [x, x down^T] [W, up]^T: no second result to write, to read and to add. Layers that read the
same x stand below one another, so that a step is made of fewer and larger products. Needs torch only.

Shapes: T positions, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor

__all__ = ["fused_lora_linear", "fused_lora_linears"]


def fused_lora_linears(
    x: Tensor, weights: Sequence[Tensor], downs: Sequence[Tensor], ups: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """What each of several layers without a bias makes of x, as by `fused_lora_linear`."""
    ranks = [len(down) for down in downs]
    below = [F.pad(up, (sum(ranks[:at]), sum(ranks[at + 1 :]))) for at, up in enumerate(ups)]  # each reads its own part
    out = _apply_fused_lora(x, weights, None, torch.cat(list(downs)), torch.cat(below))
    return torch.split(out, [len(weight) for weight in weights], -1)


def fused_lora_linear(x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    """[..., I], [O, I], [O], [R, I], [O, R] -> [..., O]; gradients flow to `x`, `down` and `up` alone."""
    return _apply_fused_lora(x, [weight], bias, down, up)


def _apply_fused_lora(x: Tensor, weights: Sequence[Tensor], bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    rows, dtype = x.reshape(-1, x.shape[-1]), weights[0].dtype
    out: Tensor = _FusedLoraFunction.apply(rows, bias, down.to(dtype), up.to(dtype), *weights)  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], len(up))


class _FusedLoraFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, *weights: Tensor) -> Tensor:
        narrow = x @ down.T  # [T, R]
        ctx.save_for_backward(x, down, up, narrow, *weights)
        both = torch.cat([x, narrow], -1) @ torch.cat([torch.cat(weights), up], -1).T
        return both if bias is None else both + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, down, up, narrow, *weights = ctx.saved_tensors
        [gradient] = gradients
        to_narrow = gradient @ up  # [T, R]
        to_x = to_narrow @ down
        # One by one: below one another they would be a copy of the layers, kept from one pass to the other.
        for part, weight in zip(torch.split(gradient, [len(weight) for weight in weights], -1), weights, strict=True):
            to_x = to_x.addmm(part, weight)
        return to_x, None, to_narrow.T @ x, gradient.T @ narrow, *(None for _ in weights)
