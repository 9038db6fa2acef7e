"""What every body is: a stack of blocks over vectors and a context, with nothing around it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from voxgraft.nn.attention import Context

__all__ = ["Body"]


class Body(nn.Module, ABC):
    """A stack of pre-norm blocks, its final norm included."""

    num_layers: int
    num_heads: int
    head_width: int

    @abstractmethod
    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[T, W] -> [T, W]"""
