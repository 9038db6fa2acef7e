"""GPT-2's linear layer, whose matrix is stored the other way round. Everything else uses `nn.Linear`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["AnyLinear", "TransposedLinear"]


class TransposedLinear(nn.Module):
    """x W + b with W as `[inputs, outputs]`, as GPT-2 checkpoints hold it."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        return nn.functional.linear(x, self.weight.T, self.bias)


AnyLinear = nn.Linear | TransposedLinear
"""The layers of a body that an adapter can sit on."""
