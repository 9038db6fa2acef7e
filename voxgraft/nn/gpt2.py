"""A GPT-2 body: pre-norm blocks with one fused projection and a tanh-GELU MLP, under transformers' tensor names.

It has no token or position tables: whoever makes the vectors adds those. No dropout.

Shapes: T positions, W width, H heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor, nn

from voxgraft.nn.attention import AttentionContext
from voxgraft.nn.body import Backbone
from voxgraft.nn.linear import TransposedLinear

__all__ = ["GPT2_LINEAR_LAYERS", "Gpt2Backbone", "Gpt2Size"]

GPT2_LINEAR_LAYERS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
"""Every linear layer of a block, by its name there."""


@dataclass(frozen=True, slots=True)
class Gpt2Size:
    """What a GPT-2 body is made of; its MLP is four times as wide."""

    width: int
    layers: int
    heads: int
    eps: float = 1e-5


class Gpt2Backbone(Backbone):
    """`h` and `ln_f`."""

    def __init__(self, size: Gpt2Size) -> None:
        super().__init__()
        self.size = size
        self.num_layers, self.num_heads, self.head_width = size.layers, size.heads, size.width // size.heads
        self.h = nn.ModuleList(_Gpt2Block(size) for _ in range(size.layers))
        self.ln_f = nn.LayerNorm(size.width, size.eps)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.h

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[T, W] -> [T, W]"""
        out: Tensor = self.ln_f(self.run_blocks(x, context))
        return out


class _Gpt2Attention(nn.Module):
    def __init__(self, size: Gpt2Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.c_attn = TransposedLinear(size.width, 3 * size.width)
        self.c_proj = TransposedLinear(size.width, size.width)

    def forward(self, x: Tensor, layer: int, context: AttentionContext) -> Tensor:
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)  # [T, H, D] each
        mixed = context.attend(layer, q, k, v)  # [T, H, D]
        out: Tensor = self.c_proj(mixed.flatten(-2))
        return out


class _Gpt2Mlp(nn.Module):
    def __init__(self, size: Gpt2Size) -> None:
        super().__init__()
        self.c_fc = TransposedLinear(size.width, 4 * size.width)
        self.c_proj = TransposedLinear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class _Gpt2Block(nn.Module):
    def __init__(self, size: Gpt2Size) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.width, size.eps)
        self.attn = _Gpt2Attention(size)
        self.ln_2 = nn.LayerNorm(size.width, size.eps)
        self.mlp = _Gpt2Mlp(size)

    def forward(self, x: Tensor, layer: int, context: AttentionContext) -> Tensor:
        x = x + self.attn(self.ln_1(x), layer, context)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out
