"""What every body is: a stack of blocks over vectors and a context, with nothing around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from voxgraft.nn.attention import AttentionContext

__all__ = ["Backbone"]


class Backbone(nn.Module, ABC):
    """A stack of pre-norm blocks, its final norm included."""

    num_layers: int
    num_heads: int
    head_width: int
    checkpointing: bool = False
    """Whether activations are computed a second time in the backward pass instead of kept."""

    def __init__(self) -> None:
        super().__init__()
        self._run_block: Callable[..., Tensor] = _run_block

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The blocks, all of one kind."""

    @abstractmethod
    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[T, W] -> [T, W]"""

    def run_blocks(self, x: Tensor, *arguments: Any) -> Tensor:
        """All blocks, forgetful if they shall be. [T, W] -> [T, W]"""
        for layer, block in enumerate(self.blocks):
            if self.checkpointing and torch.is_grad_enabled():
                inside = (block, layer, x, *arguments)
                x = checkpoint(self._run_block, *inside, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self._run_block(block, layer, x, *arguments)
        return x

    def compile_blocks(self, *, deterministic: bool = False) -> None:
        """Compile one block for all of them, for packs of any length. Names of tensors stay as they are.

        On an H200 the whole stack as one took over three minutes before its first step; one block takes ten seconds.
        """
        from torch._inductor import config as inductor_config

        # Which of two kernels is quicker may come out differently next time, and with it the order of a sum.
        fixed = deterministic and hasattr(inductor_config, "deterministic")
        options: dict[str, Any] | None = {"deterministic": True} if fixed else None
        self._run_block = torch.compile(_run_block, dynamic=True, options=options)


def _run_block(block: nn.Module, layer: int, x: Tensor, *arguments: Any) -> Tensor:
    """[T, W] -> [T, W]"""
    out: Tensor = block(x, layer, *arguments)
    return out
