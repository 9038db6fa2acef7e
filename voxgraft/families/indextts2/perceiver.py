"""IndexTTS-2's perceiver: a few learned vectors read a clip of any length. Needs torch only.

Shapes: B clips, T frames of a clip (padded in a batch), L latents, C width of a frame, W width of a latent, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor, nn

from voxgraft.families.indextts2.shapes import PERCEIVER_HEAD_WIDTH, PERCEIVER_LAYERS, ConditioningEncoderSize

__all__ = ["PerceiverResampler"]


class PerceiverResampler(nn.Module):
    """Latents that look at the clip and at one another, layer by layer, and a norm after the last."""

    def __init__(self, size: ConditioningEncoderSize, width: int, num_latents: int) -> None:
        super().__init__()
        inner = int(width * size.perceiver_mult * 2 / 3)
        self.latents = nn.Parameter(torch.empty(num_latents, width))
        nn.init.normal_(self.latents, std=0.02)
        self.proj_context = nn.Linear(size.width, width) if size.width != width else nn.Identity()
        self.layers = nn.ModuleList(
            nn.ModuleList([_ResamplerAttention(width, size.heads), _build_feed_forward(width, inner)])
            for _ in range(PERCEIVER_LAYERS)
        )
        self.norm = _ResamplerNorm(width)

    def forward(self, frames: Tensor, heard: Tensor | None) -> Tensor:
        """[B, T, C], [B, T] -> [B, L, W]"""
        context = self.proj_context(frames)  # [B, T, W]
        latents = self.latents.expand(len(frames), -1, -1)  # [B, L, W]
        seen = None
        if heard is not None:
            seen = F.pad(heard, (len(self.latents), 0), value=True)[:, None, None]  # [B, 1, 1, L + T]
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            attention, feed_forward = layer
            latents = latents + attention(latents, context, seen)
            latents = latents + feed_forward(latents)
        out: Tensor = self.norm(latents)
        return out


class _ResamplerAttention(nn.Module):
    """Keys and values are the latents and the clip together."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        inner = heads * PERCEIVER_HEAD_WIDTH
        self.heads = heads
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(self, latents: Tensor, context: Tensor, seen: Tensor | None) -> Tensor:
        """[B, L, W], [B, T, W], [B, 1, 1, L + T] -> [B, L, W]"""
        k, v = self.to_kv(torch.cat([latents, context], 1)).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.to_q(latents), k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(-2))
        return out


class _Geglu(nn.Module):
    """The first half of the numbers times the GELU of the second."""

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * F.gelu(gate)


class _ResamplerNorm(nn.Module):
    """x / |x| * sqrt(W) * gamma"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * math.sqrt(len(self.gamma)) * self.gamma


def _build_feed_forward(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * inner), _Geglu(), nn.Linear(inner, width))
