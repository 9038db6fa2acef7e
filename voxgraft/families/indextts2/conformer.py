"""IndexTTS-2's conformer: speech features of a clip to half as many vectors, for the perceiver behind it.

A clip gives the same in a batch as alone. The original's padded batches do not: there the bias of a convolution leaks
from the padding into a shorter clip's last frames, which is not reproduced here. Needs torch only.

Shapes: B clips, F feature frames, T = (F - 1) // 2 frames (padded in a batch), W width, H heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from voxgraft.families.indextts2.shapes import DEPTHWISE_KERNEL, FEATURE_WIDTH, SINUSOID_ROWS, ConditioningEncoderSize

__all__ = ["MAX_FEATURE_FRAMES", "MIN_FEATURE_FRAMES", "Conformer", "build_sinusoid_table"]

MIN_FEATURE_FRAMES = 3
"""Frames that the first convolution needs to give one."""
MAX_FEATURE_FRAMES = 2 * SINUSOID_ROWS + 2
"""Frames of the longest clip that the position table reaches: 200 seconds."""
FRAMES_PER_CHUNK = 128
"""The first convolution makes a quarter of a million numbers of each frame: 1 MB, so a minute would need gigabytes."""


class Conformer(nn.Module):
    """Subsampling, `encoders`, and a norm after them."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.embed = ConvSubsampling(size.width)
        self.after_norm = nn.LayerNorm(size.width)
        self.encoders = nn.ModuleList(_ConformerBlock(size) for _ in range(size.blocks))

    def forward(self, clips: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """B times [F, 1024] -> [B, T, W] and which frames are a clip's own, [B, T]; None where all are."""
        parts = [self.embed(clip) for clip in clips]  # one at a time: nothing of it is spent on padding
        lengths = torch.tensor([len(part) for part in parts], device=parts[0].device)
        x = pad_sequence(parts, batch_first=True)  # [B, T, W]
        positions = self.embed.pos_enc.pe[0, : x.shape[1]]  # [T, W]
        heard = None
        if len({len(part) for part in parts}) > 1:
            heard = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # [B, T]
        for block in self.encoders:
            x = block(x, positions, heard)
        return self.after_norm(x), heard


class ConvSubsampling(nn.Module):
    """One clip to half its frames: a convolution over time and features, and a linear layer over its channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.conv = nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU())
        self.out = nn.Sequential(nn.Linear(width * ((FEATURE_WIDTH - 1) // 2), width))
        self.pos_enc = _SinusoidPositions(width)

    def forward(self, features: Tensor) -> Tensor:
        """[F, 1024] -> [T, W]"""
        num_frames = (len(features) - 1) // 2
        parts = []
        for first in range(0, num_frames, FRAMES_PER_CHUNK):
            end = min(first + FRAMES_PER_CHUNK, num_frames)
            channels = self.conv(features[None, 2 * first : 2 * end + 1])  # [W, frames, 511]
            parts.append(self.out(channels.transpose(0, 1).flatten(1)))
        return torch.cat(parts) * self.scale


class _SinusoidPositions(nn.Module):
    """The position table, which the published file holds although it can be computed."""

    pe: Tensor  # [1, 5000, W]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", build_sinusoid_table(SINUSOID_ROWS, width)[None])


class _ConformerAttention(nn.Module):
    """(q + u) k + (q + v) p for the scores, where p belongs to the key's place in the clip, not to a distance."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.pos_bias_u = nn.Parameter(torch.zeros(size.heads, width // size.heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(size.heads, width // size.heads))
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, heard: Tensor | None) -> Tensor:
        """[B, T, W], [T, W], [B, T] -> [B, T, W]"""
        parts = (self.linear_q(x), self.linear_k(x), self.linear_v(x), self.linear_pos(positions).expand_as(x))
        q, k, v, p = (part.unflatten(-1, (self.heads, -1)) for part in parts)  # [B, T, H, D]
        both_q = torch.cat([q + self.pos_bias_u, q + self.pos_bias_v], -1)  # [B, T, H, 2 D]
        both_k = torch.cat([k, p], -1)
        mixed = F.scaled_dot_product_attention(
            both_q.transpose(1, 2),
            both_k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if heard is None else heard[:, None, None],
            scale=q.shape[-1] ** -0.5,
        )  # [B, H, T, D]
        out: Tensor = self.linear_out(mixed.transpose(1, 2).flatten(-2))
        return out


class _ConformerFeedForward(nn.Module):
    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.w_1 = nn.Linear(size.width, size.mlp)
        self.w_2 = nn.Linear(size.mlp, size.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_2(F.silu(self.w_1(x)))
        return out


class _ConformerConvolution(nn.Module):
    """Gated, then each channel over its neighbours in time; padding is silent there, as beyond the ends of a clip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, DEPTHWISE_KERNEL, padding=DEPTHWISE_KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor, heard: Tensor | None) -> Tensor:
        """[B, T, W], [B, T] -> [B, T, W]"""
        gated = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)  # [B, W, T]
        if heard is not None:
            gated = gated.masked_fill(~heard[:, None], 0.0)
        mixed = self.norm(self.depthwise_conv(gated).transpose(1, 2))  # [B, T, W]
        out: Tensor = self.pointwise_conv2(F.silu(mixed).transpose(1, 2)).transpose(1, 2)
        return out


class _ConformerBlock(nn.Module):
    """Attention, convolution, feed-forward, each behind its norm, and a norm at the end."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.self_attn = _ConformerAttention(size)
        self.feed_forward = _ConformerFeedForward(size)
        self.conv_module = _ConformerConvolution(size.width)
        self.norm_ff = nn.LayerNorm(size.width)
        self.norm_mha = nn.LayerNorm(size.width)
        self.norm_conv = nn.LayerNorm(size.width)
        self.norm_final = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, positions: Tensor, heard: Tensor | None) -> Tensor:
        """[B, T, W], [T, W], [B, T] -> [B, T, W]"""
        x = x + self.self_attn(self.norm_mha(x), positions, heard)
        x = x + self.conv_module(self.norm_conv(x), heard)
        x = x + self.feed_forward(self.norm_ff(x))
        out: Tensor = self.norm_final(x)
        return out


def build_sinusoid_table(rows: int, width: int) -> Tensor:
    """Sine and cosine of a position in turn, from fast to slow. [rows, W]"""
    rates = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))  # [W / 2]
    angles = torch.arange(rows)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
