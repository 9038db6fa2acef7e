"""What every body is: a stack of blocks over vectors and a context, with nothing around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from voxgraft.nn.attention import Context

__all__ = ["Body"]


class Body(nn.Module, ABC):
    """A stack of pre-norm blocks, its final norm included."""

    num_layers: int
    num_heads: int
    head_width: int
    checkpointing: bool = False
    """Whether a block's activations are computed a second time in the backward pass instead of kept."""

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The blocks, all of one kind."""

    @abstractmethod
    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[T, W] -> [T, W]"""

    def through(self, block: nn.Module, x: Tensor, *arguments: Any) -> Tensor:
        """One block, forgetful if it shall be. [T, W] -> [T, W]"""
        if self.checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(block, x, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            out = block(x, *arguments)
        return out

    def compile_for_packs(self) -> None:
        """Compile one block for all of them, for packs of any length. Names of tensors stay as they are.

        The whole stack as one took over three minutes on an H200 before its first step; a block takes some ten seconds.
        """
        for block in self.blocks:
            block.compile(dynamic=True)
