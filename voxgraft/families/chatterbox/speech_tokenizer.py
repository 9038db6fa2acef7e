"""Chatterbox's speech tokenizer (S3, version 2): speech at 16 kHz to 25 codes a second. Tensor names are upstream's.

Clips go through in batches of about one length, masked so that each gets the codes that it would get alone, as many
as it is long. Does not resample. Frozen: it is never trained here.

Shapes: B clips, N samples, M mel bands, F frames (100 a second), T positions (25 a second), W width, H heads, D = 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.exact import exact_float32
from voxgraft.audio.spectra import mel_filters, power_spectrum
from voxgraft.audio.waves import Waveform, WaveformLimits, batch_by_length, pad_rows, validate_waveforms
from voxgraft.nn.unfilled import init_empty_weights

__all__ = ["NUM_CODES", "SpeechTokenizer", "SpeechTokenizerSize", "count_codes"]

TENSOR_PREFIX = "tokenizer."
COMPUTED_TENSORS = ("_mel_filters", "window")
"""Tensors that follow from the sizes; one of the published files lacks them."""

SAMPLE_RATE = 16_000
FRAME = 400
HOP = 160
NUM_MELS = 128
MAX_WIDTH = 1 << 14
"""No network of this kind is wider; a damaged file can claim any number."""
FRAMES_PER_CODE = 4
MAX_FRAMES = 3000
TOKENIZER_LIMITS = WaveformLimits(SAMPLE_RATE, min_samples=HOP * FRAMES_PER_CODE, max_samples=HOP * MAX_FRAMES)
"""One code; 30 s, the longest that the tokenizer was made for."""
HEAD_WIDTH = 64
ROPE_THETA = 10_000.0
FSMN_KERNEL = 31
LEVELS = 3
NUM_DIGITS = 8
NUM_CODES = LEVELS**NUM_DIGITS
ROUNDING_SCALE = 0.9990000128746033
"""What upstream multiplies by before it rounds: 0.999 in float32."""
BATCH_FRAMES = 12_000


@dataclass(frozen=True, slots=True)
class SpeechTokenizerSize:
    """The sizes that may differ; as published by default. Heads are 64 wide, always."""

    width: int = 1280
    layers: int = 6

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> SpeechTokenizerSize:
        """The size that the tensors of a file have; as published where they do not say."""
        conv = shapes.get("encoder.conv1.weight", ())
        layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.blocks.")}
        width = conv[0] if conv else 0
        if not layers or width % HEAD_WIDTH or not HEAD_WIDTH <= width <= MAX_WIDTH:
            return cls()
        return cls(width, len(layers))


def count_codes(num_samples: int) -> int:
    """How many codes a clip of that many samples has."""
    return -(-(num_samples // HOP) // FRAMES_PER_CODE)


class SpeechTokenizer(nn.Module):
    """A small transformer whose last eight numbers, each rounded to one of three levels, spell the code."""

    _mel_filters: Tensor
    window: Tensor

    def __init__(self, size: SpeechTokenizerSize | None = None) -> None:
        super().__init__()
        self.size = size or SpeechTokenizerSize()
        self.encoder = SpeechTokenizerEncoder(self.size)
        self.quantizer = SpeechTokenizerQuantizer(self.size.width)
        self.register_buffer("_mel_filters", mel_filters(SAMPLE_RATE, FRAME, NUM_MELS))
        self.register_buffer("window", torch.hann_window(FRAME))
        self.requires_grad_(False).eval()

    @classmethod
    def load(cls, place: Path) -> SpeechTokenizer:
        """From an `s3gen` file, or from the base folder that holds it; of that file only the tokenizer is read."""
        from voxgraft.families.chatterbox.describing import S3GEN_FILES
        from voxgraft.families.tensors import find_part_file, read_tensor_shapes, read_tensors

        path = find_part_file(place, S3GEN_FILES)
        stored = read_tensor_shapes(path, TENSOR_PREFIX)
        size = SpeechTokenizerSize.of(stored)
        with init_empty_weights():
            tokenizer = cls(size)
        shapes = {name: tuple(tensor.shape) for name, tensor in tokenizer.state_dict().items()}
        needed = {name: shape for name, shape in shapes.items() if name in stored or name not in COMPUTED_TENSORS}
        computed = {"_mel_filters": mel_filters(SAMPLE_RATE, FRAME, NUM_MELS), "window": torch.hann_window(FRAME)}
        tokenizer.load_state_dict(computed | read_tensors(path, needed, TENSOR_PREFIX), assign=True)
        return tokenizer.requires_grad_(False)

    def encode(self, waves: Sequence[Waveform], batch_frames: int = BATCH_FRAMES) -> list[NDArray[np.int64]]:
        """The codes of each clip, 0 to 6560, as many as `count_codes` says and as if it were alone. 16 kHz waveforms.

        Silence has codes like any other sound. `batch_frames`: frames (100 a second) in one batch, padding included.
        """
        return [quantize_codes(numbers).cpu().numpy() for numbers in self.numbers(waves, batch_frames)]

    @torch.no_grad()
    def numbers(self, waves: Sequence[Waveform], batch_frames: int = BATCH_FRAMES) -> list[Tensor]:
        """What is rounded to codes: eight numbers for each code of each clip. -> [T, 8] a clip"""
        mels = [self.log_mel(wave) for wave in validate_waveforms(waves, TOKENIZER_LIMITS)]
        numbers: dict[int, Tensor] = {}
        for places in batch_by_length([len(mel) for mel in mels], batch_frames):
            batch, mask = pad_rows([mels[place] for place in places])
            found = self(batch, mask)
            for row, place in enumerate(places):
                numbers[place] = found[row, : count_codes(len(mels[place]) * HOP)].clone()
        return [numbers[place] for place in range(len(mels))]

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, F, M], and where the clips are, [B, F] -> [B, T, 8]"""
        with exact_float32():
            down: Tensor = self.quantizer._codebook.project_down(self.encoder(mel, mask))
        return down

    def log_mel(self, wave: Tensor) -> Tensor:
        """The clip as the network sees it, scaled by its own loudest moment. [N] -> [F, M]"""
        power = power_spectrum(wave.to(self.window), self.window, HOP)[:, :-1]  # [201, F]
        with exact_float32():
            mel = self._mel_filters @ power  # [M, F]
        logarithm = mel.clamp_min(1e-10).log10()
        floored = torch.maximum(logarithm, logarithm.max() - 8.0)
        return ((floored + 4.0) / 4.0).T


def quantize_codes(numbers: Tensor) -> Tensor:
    """Each number rounded to -1, 0 or 1: the digits of the code, lowest first. [..., 8] -> [...]"""
    digits = (ROUNDING_SCALE * numbers.tanh()).round().long() + 1
    return (digits * LEVELS ** torch.arange(NUM_DIGITS, device=numbers.device)).sum(-1)


class SpeechTokenizerEncoder(nn.Module):
    """Two convolutions that halve the frames each, then transformer blocks."""

    def __init__(self, size: SpeechTokenizerSize) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(NUM_MELS, size.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(size.width, size.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(SpeechTokenizerBlock(size.width) for _ in range(size.layers))

    def forward(self, mel: Tensor, mask: Tensor | None) -> Tensor:
        """[B, F, M], [B, F] -> [B, T, W]"""
        x = mel.transpose(1, 2)  # [B, M, F]
        for conv in (self.conv1, self.conv2):
            # What the bias makes of the padding is wiped out again: a clip alone has zeros there.
            mask = None if mask is None else mask[:, ::2]
            x = _apply_mask(F.gelu(conv(x)), None if mask is None else mask[:, None])
        x = x.transpose(1, 2)  # [B, T, W]
        turns = build_rotary_table(x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, turns, mask)
        return x


class SpeechTokenizerBlock(nn.Module):
    """Attention and feed-forward, each normed before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = FsmnAttention(width)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], rotations, [B, T] -> [B, T, W]"""
        x = x + self.attn(self.attn_ln(x), turns, mask)
        fed: Tensor = self.mlp(self.mlp_ln(x))
        return x + fed


class FsmnAttention(nn.Module):
    """Attention over the whole clip, plus a memory of the near surroundings: the values through a depthwise filter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, FSMN_KERNEL, padding=FSMN_KERNEL // 2, groups=width, bias=False)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], rotations, [B, T] -> [B, T, W]"""
        value = _apply_mask(self.value(x), None if mask is None else mask[:, :, None])
        memory = value + self.fsmn_block(value.transpose(1, 2)).transpose(1, 2)
        query, key = rotate_heads(self._split(self.query(x)), turns), rotate_heads(self._split(self.key(x)), turns)
        keys_there = None if mask is None else mask[:, None, None, :]
        heard = F.scaled_dot_product_attention(query, key, self._split(value), attn_mask=keys_there)  # [B, H, T, D]
        attended: Tensor = self.out(heard.transpose(1, 2).flatten(2)) + memory
        return attended

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, W] -> [B, H, T, D]"""
        return x.view(*x.shape[:2], self.heads, HEAD_WIDTH).transpose(1, 2)


class SpeechTokenizerQuantizer(nn.Module):
    """Holds the last projection under the name that upstream gives it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._codebook = FsqCodebook(width)


class FsqCodebook(nn.Module):
    """From the width of the network to the eight numbers that become digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_down = nn.Linear(width, NUM_DIGITS)


def build_rotary_table(num_positions: int, device: torch.device) -> Tensor:
    """Angles of the rotary positions. -> [2, T, D]: cosines, sines"""
    frequencies = ROPE_THETA ** (-torch.arange(0, HEAD_WIDTH, 2, device=device).float() / HEAD_WIDTH)
    angles = torch.arange(num_positions, device=device).float()[:, None] * frequencies  # [T, D / 2]
    angles = torch.cat([angles, angles], dim=-1)
    return torch.stack([angles.cos(), angles.sin()])


def rotate_heads(x: Tensor, turns: Tensor) -> Tensor:
    """Each pair (i, i + D / 2) turned by the angle of its position. [B, H, T, D] -> the same"""
    first, second = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat([-second, first], dim=-1) * turns[1]


def _apply_mask(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
