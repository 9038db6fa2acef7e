"""GPT-2 and Llama as stacks of blocks over packed vectors: no embeddings, no heads, no batches.

A backbone asks an attention context which positions see which. Tensor names are those of transformers.

Shapes: T positions, W width, H heads of width D.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from voxgraft.nn.adapter import Gate, LoraLayer, apply_parallel_linears
from voxgraft.nn.attention import AttentionContext, Packing
from voxgraft.nn.gated_blocks import BlockParts, can_run_gated, run_gated
from voxgraft.nn.layers import TransposedLinear


class Backbone(nn.Module, ABC):
    """A stack of pre-norm blocks, its final norm included."""

    num_layers: int
    num_heads: int
    head_width: int
    gradient_checkpointing: bool = False
    """Whether activations are computed a second time in the backward pass instead of kept."""
    fused_gated: bool = False
    """Whether gated training runs all blocks as one function (`nn/gated_blocks.py`). Off: its kernels changed
    after they were measured on a GPU (docs/log.md, 2026-11-19)."""

    def __init__(self) -> None:
        super().__init__()
        self._run_block: Callable[..., Tensor] = _run_block

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The blocks, all of one kind."""

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module: ...

    @staticmethod
    @abstractmethod
    def parts_of(block: Any) -> BlockParts:
        """Norms and linear layers of a block, in the order in which they act."""

    @abstractmethod
    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[T, W] -> [T, W]"""

    def run_body(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None, context: AttentionContext) -> Tensor:
        """All blocks and the final norm. `rotation` is of bodies that have one. [T, W] -> [T, W]"""
        if self.fused_gated and not self.gradient_checkpointing:
            parts = [self.parts_of(block) for block in self.blocks]
            if can_run_gated(parts, self.final_norm, x, context):
                assert isinstance(context, Packing)
                return run_gated(parts, self.final_norm, x, context, self.num_heads, rotation)
        arguments = (context,) if rotation is None else (rotation, context)
        out: Tensor = self.final_norm(self.run_blocks(x, *arguments))
        return out

    def run_blocks(self, x: Tensor, *arguments: Any) -> Tensor:
        """All blocks, with gradient checkpointing if it is on; the last argument is the context. [T, W] -> [T, W]"""
        run = self._run_block
        closed = arguments[-1].closed
        if closed is not None:
            adapted = next((module for module in self.modules() if isinstance(module, LoraLayer)), None)
            # Around every block, not around all: gradient checkpointing runs blocks again when this call has ended.
            run = run if adapted is None else partial(_run_block_closed_at, run, adapted.gate, closed)
        for layer, block in enumerate(self.blocks):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                # Blocks draw no random numbers, so there is no generator state to restore.
                inside = (block, layer, x, *arguments)
                x = checkpoint(run, *inside, use_reentrant=False, preserve_rng_state=False)
            else:
                x = run(block, layer, x, *arguments)
        return x

    def compile_blocks(self, *, deterministic: bool = False) -> None:
        """Compile one block for all of them, for packs of any length. Names of tensors stay as they are.

        On an H200 the whole stack as one took over three minutes before its first step; one block takes ten seconds.
        """
        from torch._inductor import config as inductor_config

        # Autotuning may choose another kernel in the next run, and with it another order of a sum.
        fixed = deterministic and hasattr(inductor_config, "deterministic")
        options: dict[str, Any] | None = {"deterministic": True} if fixed else None
        self._run_block = torch.compile(_run_block, dynamic=True, options=options)


def _run_block(block: nn.Module, layer: int, x: Tensor, *arguments: Any) -> Tensor:
    """[T, W] -> [T, W]"""
    out: Tensor = block(x, layer, *arguments)
    return out


def _run_block_closed_at(run: Callable[..., Tensor], gate: Gate, closed: Tensor, *arguments: Any) -> Tensor:
    """A block with the gate closed at some positions. [T, W] -> [T, W]"""
    with gate.closed_at(closed):
        return run(*arguments)


# Every linear layer of a block, by its name there.
GPT2_LINEAR_LAYERS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


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

    @property
    def final_norm(self) -> nn.Module:
        return self.ln_f

    @staticmethod
    def parts_of(block: _Gpt2Block) -> BlockParts:
        attention, mlp = block.attn, block.mlp
        return BlockParts(block.ln_1, (attention.c_attn,), attention.c_proj, block.ln_2, (mlp.c_fc,), mlp.c_proj)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[T, W] -> [T, W]"""
        return self.run_body(x, None, context)


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


# Llama 3's way to longer contexts: frequencies with less than `low` turns within the trained positions are divided by
# the factor, those with more than `high` are kept, with a ramp between.
ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_TRAINED_POSITIONS = 8.0, 1.0, 4.0, 8192


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """What a Llama body is made of."""

    width: int
    layers: int
    heads: int
    mlp: int
    theta: float = 500_000.0
    eps: float = 1e-5
    unused_rows: int = 8
    """The token table that the published file holds and nothing reads."""


class LlamaBackbone(Backbone):
    """`layers` and `norm`, and the token table that stock loaders insist on."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.size = size
        self.num_layers, self.num_heads, self.head_width = size.layers, size.heads, size.width // size.heads
        # No position reads it, but published files hold it and stock loaders are strict.
        self.embed_tokens = nn.Embedding(size.unused_rows, size.width)
        self.layers = nn.ModuleList(_LlamaBlock(size) for _ in range(size.layers))
        self.norm = RmsNorm(size.width, size.eps)
        self._frequencies: dict[torch.device, Tensor] = {}

    def frequencies_on(self, device: torch.device) -> Tensor:
        """The rotary angle per position, [D / 2]. No buffer: `.to(bfloat16)` would round it."""
        if device not in self._frequencies:
            # Computed on the CPU, so that every device gets the same bits.
            exponents = torch.arange(0, self.head_width, 2, device="cpu").float() / self.head_width
            frequencies = 1.0 / self.size.theta**exponents
            turns = ROPE_TRAINED_POSITIONS * frequencies / (2 * math.pi)
            share_kept = ((turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW)).clamp(0, 1)
            frequencies = frequencies * (share_kept + (1 - share_kept) / ROPE_FACTOR)
            self._frequencies[device] = frequencies.to(device)
        return self._frequencies[device]

    @property
    def blocks(self) -> nn.ModuleList:
        return self.layers

    @property
    def final_norm(self) -> nn.Module:
        return self.norm

    @staticmethod
    def parts_of(block: _LlamaBlock) -> BlockParts:
        attention, mlp = block.self_attn, block.mlp
        return BlockParts(
            block.input_layernorm,
            (attention.q_proj, attention.k_proj, attention.v_proj),
            attention.o_proj,
            block.post_attention_layernorm,
            (mlp.gate_proj, mlp.up_proj),
            mlp.down_proj,
        )

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """[T, W] -> [T, W]"""
        angles = context.positions[:, None, None].float() * self.frequencies_on(x.device)  # [T, 1, D / 2]
        rotation = (angles.cos(), angles.sin())
        return self.run_body(x, rotation, context)


class RmsNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 and rounded before the weight, as transformers does."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., W] -> [..., W]"""
        # Rounded before the weight is applied, as transformers does.
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class _LlamaAttention(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.q_proj = nn.Linear(size.width, size.width, bias=False)
        self.k_proj = nn.Linear(size.width, size.width, bias=False)
        self.v_proj = nn.Linear(size.width, size.width, bias=False)
        self.o_proj = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, layer: int, rotation: tuple[Tensor, Tensor], context: AttentionContext) -> Tensor:
        parts = apply_parallel_linears(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.view(*part.shape[:-1], self.heads, -1) for part in parts)  # [T, H, D]
        # contiguous(), since a view of the joined product would keep all three parts for the backward pass.
        mixed = context.attend(layer, apply_rotary(q, rotation), apply_rotary(k, rotation), v.contiguous())  # [T, H, D]
        out: Tensor = self.o_proj(mixed.flatten(-2))
        return out


class _LlamaMlp(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.width, size.mlp, bias=False)
        self.up_proj = nn.Linear(size.width, size.mlp, bias=False)
        self.down_proj = nn.Linear(size.mlp, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # Not fused into one product: its backward pass would have to write the two gradients side by side first.
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _LlamaBlock(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.self_attn = _LlamaAttention(size)
        self.mlp = _LlamaMlp(size)
        self.input_layernorm = RmsNorm(size.width, size.eps)
        self.post_attention_layernorm = RmsNorm(size.width, size.eps)

    def forward(self, x: Tensor, layer: int, rotation: tuple[Tensor, Tensor], context: AttentionContext) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), layer, rotation, context)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def apply_rotary(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (first half, second half) of a head by its angle. [T, H, D] -> [T, H, D]"""
    cos, sin = rotation
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
