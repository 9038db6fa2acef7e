"""The built-in listener's network: log-mel frames to letters and phones, each by its own CTC head.

Convolutions and attention over one clip; what stands behind a clip's end in a batch changes nothing. Not its training.

Shapes: B clips, S samples, F frames (100 a second), T steps (50 a second), M mel bands, C channels, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voxgraft.audio.log_mel import HOP, LogMel

__all__ = ["CTC_BLANK", "SAMPLES_PER_STEP", "CTCNetwork", "CTCNetworkConfig", "num_ctc_steps"]

CTC_BLANK = 0
"""Number of the CTC blank in both heads."""
SAMPLES_PER_STEP = 2 * HOP
ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class CTCNetworkConfig:
    """Sizes."""

    num_letters: int
    num_phones: int
    """Both without the blank."""
    num_languages: int
    num_mels: int = 80
    width: int = 256
    heads: int = 4
    layers: int = 5
    reach: int = 15
    """Steps under a layer's convolution."""


class CTCNetwork(nn.Module):
    """Waves to scores of letters and phones at every step."""

    def __init__(self, config: CTCNetworkConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Conv1d(config.num_mels, width, 5, padding=2)
        self.halving = nn.Conv1d(width, width, 4, stride=2, padding=1)
        self.language = nn.Embedding(config.num_languages, width)
        self.layers = nn.ModuleList(CTCLayer(config, dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.letters = nn.Linear(width, config.num_letters + 1)
        self.phones = nn.Linear(width, config.num_phones + 1)

    def forward(self, waves: Tensor, lengths: Tensor, languages: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S], [B], [B] -> letters [B, T, .] and phones [B, T, .]; S is a multiple of 320."""
        return self.scores(self.mel(waves), lengths, languages)

    def scores(self, frames: Tensor, lengths: Tensor, languages: Tensor) -> tuple[Tensor, Tensor]:
        """The same from mel frames [B, F, M]; `lengths` stay in samples."""
        steps = num_ctc_steps(lengths)
        own = torch.arange(frames.shape[1], device=frames.device) < 2 * steps[:, None]  # [B, F]
        frames = (frames * own[..., None]).transpose(1, 2)  # [B, M, F]
        frames = nn.functional.gelu(self.enter(frames)) * own[:, None]  # [B, C, F]
        mask = own[:, ::2, None]  # [B, T, 1]
        hidden = nn.functional.gelu(self.halving(frames)).transpose(1, 2) + self.language(languages)[:, None]
        hidden = hidden * mask  # [B, T, C]
        turns = build_rope_table(hidden.shape[1], self.config.width // self.config.heads, hidden.device)
        for layer in self.layers:
            hidden = layer(hidden, mask, turns)
        hidden = self.norm(hidden)
        return self.letters(hidden), self.phones(hidden)


class CTCLayer(nn.Module):
    """Attention, a convolution over time, two layers over channels; each beside a straight way."""

    def __init__(self, config: CTCNetworkConfig, dropout: float) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.time_norm = nn.LayerNorm(width)
        self.time_in = nn.Linear(width, 2 * width)
        self.time = nn.Conv1d(width, width, config.reach, padding=config.reach // 2, groups=width)
        self.time_middle = nn.LayerNorm(width)
        self.time_out = nn.Linear(width, width)
        self.channel_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor, turns: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden), mask, turns))
        hidden = hidden + self.dropout(self._convolve_time(self.time_norm(hidden), mask))
        widened = nn.functional.gelu(self.widen(self.channel_norm(hidden)))
        out: Tensor = hidden + self.dropout(self.narrow(widened))
        return out

    def _attend(self, hidden: Tensor, mask: Tensor, turns: Tensor) -> Tensor:
        query, key, value = self.attention_in(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = mask[:, None].transpose(-1, -2)  # [B, 1, 1, T]
        mixed = nn.functional.scaled_dot_product_attention(
            apply_rope(query, turns), apply_rope(key, turns), value, attn_mask=seen
        )
        out: Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return out

    def _convolve_time(self, hidden: Tensor, mask: Tensor) -> Tensor:
        gated = nn.functional.glu(self.time_in(hidden)) * mask
        mixed = self.time(gated.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.time_out(nn.functional.silu(self.time_middle(mixed)))
        return out


def num_ctc_steps(lengths: Tensor) -> Tensor:
    """Steps that a wave of so many samples has: one for every 20 ms that has begun."""
    return -(-lengths // SAMPLES_PER_STEP)


def build_rope_table(count: int, width: int, device: torch.device) -> Tensor:
    """Cosines and sines by which each position is turned, [2, T, width / 2]"""
    rates = ROPE_BASE ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(count, device=device)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()])


def apply_rope(vectors: Tensor, turns: Tensor) -> Tensor:
    """Vectors [B, H, T, W] turned by their positions, so that attention sees distances."""
    first, second = vectors.chunk(2, -1)
    cosine, sine = turns.to(vectors.dtype)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
