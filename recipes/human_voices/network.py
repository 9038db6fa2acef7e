"""The codec that learns from people: attention at 25 and 50 steps a second, dense layers up to an inverse STFT.

Everything is matrix products on [batch, time, channels], so a step on a GPU has few and large kernels, and can be
captured as a graph. Neighbouring steps are mixed by a product over three of them side by side.

Shapes: B clips, S samples, N codes (25 a second), T steps of any rate, C channels, L digits of a code, V voice vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxgraft.audio.features import HOP, LogMel
from voxgraft.models.tiny.model import STFT_WINDOW, FiniteScalarQuantizer, overlap_add

__all__ = ["Ear", "PeopleCodec", "PeopleCodecConfig", "Reader", "Stage", "frame_mask"]

MAX_LOG_MAGNITUDE = 6.0


@dataclass(frozen=True, slots=True)
class PeopleCodecConfig:
    """Sizes. Each pair is (blocks, width) of a rate."""

    levels: tuple[int, ...] = (8, 8, 8, 5, 5)
    num_mels: int = 80
    encoder_fast: tuple[int, int] = (2, 256)
    """At 50 steps a second."""
    encoder_slow: tuple[int, int] = (2, 320)
    """At 25."""
    decoder_slow: tuple[int, int] = (2, 352)
    decoder_fast: tuple[int, int] = (2, 288)
    decoder_frames: tuple[int, int] = (3, 256)
    """At 100: without attention."""
    head_width: int = 32
    reach_seconds: float = 1.0
    """How far attention looks to either side."""
    voice_vector: int = 128
    voice: tuple[int, int] = (3, 160)


class Block(nn.Module):
    """Attention within reach (unless there is none), then two layers over three neighbouring steps."""

    def __init__(self, width: int, heads: int, voice_vector: int = 0) -> None:
        super().__init__()
        self.heads = heads
        if heads:
            self.before = nn.LayerNorm(width)
            self.ask = nn.Linear(width, 3 * width)
            self.answer = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(3 * width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.voice = nn.Linear(voice_vector, 2 * width) if voice_vector else None
        with torch.no_grad():  # each block begins close to doing nothing
            for layer in (self.narrow, *([self.answer] if heads else [])):
                layer.weight.mul_(0.5)
            if self.voice is not None:
                self.voice.weight.mul_(0.5)

    def forward(self, steps: Tensor, reach: int, mask: Tensor | None, voices: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        if self.heads:
            steps = steps + self._attended(self.before(steps), reach, mask)
        inside = self.norm(steps)
        if self.voice is not None and voices is not None:
            scale, shift = self.voice(voices)[:, None].chunk(2, -1)
            inside = inside * (1 + scale) + shift
        return masked(steps + self.narrow(F.gelu(self.widen(beside(masked(inside, mask))))), mask)

    def _attended(self, steps: Tensor, reach: int, mask: Tensor | None) -> Tensor:
        rows, count, width = steps.shape
        q, k, v = self.ask(steps).view(rows, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [B, H, T, D] each
        cosines, sines = turns(count, q.shape[-1], steps.device)
        q, k = turned(q, cosines, sines).to(v.dtype), turned(k, cosines, sines).to(v.dtype)
        near = within(count, reach, steps.device)
        if mask is not None:
            # A row whose keys are all hidden would give NaN: padding sees itself.
            near = (near & mask[:, None, None, :, 0]) | torch.eye(count, dtype=torch.bool, device=steps.device)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        answer: Tensor = self.answer(found.transpose(1, 2).reshape(rows, count, width))
        return answer


class Stage(nn.Module):
    """Blocks of one rate."""

    def __init__(self, blocks: int, width: int, head_width: int, reach: int, voice_vector: int = 0) -> None:
        super().__init__()
        self.reach = reach
        heads = width // head_width if reach else 0
        self.blocks = nn.ModuleList(Block(width, heads, voice_vector) for _ in range(blocks))

    def forward(self, steps: Tensor, mask: Tensor | None = None, voices: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            steps = block(steps, self.reach, mask, voices)
        return steps


class PeopleCodec(nn.Module):
    """Encoder, rounding, decoder, and the encoder of voices."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_code = 4 * HOP
        self.digits = FiniteScalarQuantizer(config.levels)
        self.num_codes = math.prod(config.levels)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.speaker_encoder = VoiceEncoder(config)

    def latents(self, waves: Tensor, counts: Tensor | None = None) -> Tensor:
        """What is rounded, [B, N, L]."""
        found: Tensor = self.encoder(F.pad(waves, (0, -waves.shape[1] % self.samples_per_code)), counts)
        return found

    @torch.no_grad()
    def encode(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Codes [B, N], and how many of each row count."""
        full = torch.full((len(waves),), waves.shape[1], device=waves.device)
        counts = -(-(full if lengths is None else lengths) // self.samples_per_code)
        return self.digits.numbers(self.digits.rounded(self.latents(waves, counts))), counts

    @torch.no_grad()
    def decode(self, codes: Tensor, voices: Tensor, counts: Tensor | None = None) -> Tensor:
        """Codes [B, N] in voices [B, V] -> waves [B, 640 N]."""
        waves: Tensor = self.decoder(self.digits.codes_to_digits(codes), voices, counts)
        return waves


class Encoder(nn.Module):
    """Log-mel frames, two side by side at 50 steps a second, then again at 25."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        (fast, fast_width), (slow, slow_width) = config.encoder_fast, config.encoder_slow
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Linear(6 * config.num_mels, fast_width)
        self.fast = Stage(fast, fast_width, config.head_width, 0)
        self.to_slow = nn.Linear(2 * fast_width, slow_width)
        self.slow = Stage(slow, slow_width, config.head_width, round(config.reach_seconds * 25))
        self.norm = nn.LayerNorm(slow_width)
        self.leave = nn.Linear(slow_width, len(config.levels))

    def forward(self, waves: Tensor, counts: Tensor | None) -> Tensor:
        """[B, S] -> [B, N, L]; S is a multiple of a code's samples."""
        mask = frame_mask(counts, waves.shape[1] // (4 * HOP))
        frames = masked(self.mel(waves), repeated(mask, 4))
        pairs = joined(frames)
        steps = self.fast(masked(self.enter(beside(pairs)), repeated(mask, 2)), repeated(mask, 2))
        steps = self.slow(masked(self.to_slow(joined(steps)), mask), mask)
        latents: Tensor = self.leave(self.norm(steps))
        return latents


class Decoder(nn.Module):
    """Digits, doubled in rate twice, to a spectrum, to a wave."""

    window: Tensor

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        (slow, slow_width), (fast, fast_width) = config.decoder_slow, config.decoder_fast
        frames, width = config.decoder_frames
        voice, reach = config.voice_vector, config.reach_seconds
        self.digits = FiniteScalarQuantizer(config.levels)
        self.enter = nn.Linear(3 * len(config.levels), slow_width)
        self.slow = Stage(slow, slow_width, config.head_width, round(reach * 25), voice)
        self.to_fast = nn.Linear(slow_width, 2 * fast_width)
        self.fast = Stage(fast, fast_width, config.head_width, round(reach * 50), voice)
        self.to_frames = nn.Linear(fast_width, 2 * width)
        self.frames = Stage(frames, width, config.head_width, 0, voice)
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, STFT_WINDOW + 2)
        self.register_buffer("window", torch.hann_window(STFT_WINDOW), persistent=False)

    def forward(self, digits: Tensor, voices: Tensor, counts: Tensor | None = None) -> Tensor:
        """[B, N, L], [B, V] -> [B, 640 N]"""
        mask = frame_mask(counts, digits.shape[1])
        steps = masked(self.enter(beside(masked(self.digits.scale_digits(digits), mask))), mask)
        steps = self.slow(steps, mask, voices)
        steps = self.fast(doubled(self.to_fast(steps), repeated(mask, 2)), repeated(mask, 2), voices)
        steps = self.frames(doubled(self.to_frames(steps), repeated(mask, 4)), repeated(mask, 4), voices)
        waves = self._wave(self.leave(self.norm(steps)).float(), repeated(mask, 4))
        return masked(waves.view(len(waves), -1, 4 * HOP), mask).flatten(1)

    def _wave(self, spectrum: Tensor, mask: Tensor | None) -> Tensor:
        """Log magnitudes and phases [B, T, 2 K] to overlapping frames, added up."""
        magnitude, phase = spectrum.chunk(2, -1)
        magnitude = magnitude.clamp(max=MAX_LOG_MAGNITUDE).exp()
        pieces = torch.fft.irfft(torch.complex(magnitude * phase.cos(), magnitude * phase.sin()), STFT_WINDOW)
        summed = overlap_add(masked(pieces * self.window, mask))
        weight = overlap_add(masked(self.window.square().expand(1, pieces.shape[1], -1), mask))
        margin = (STFT_WINDOW - HOP) // 2
        return summed[:, margin:-margin] / weight[:, margin:-margin].clamp_min(1e-3)


class VoiceEncoder(nn.Module):
    """Whose voice a recording has: steps, and what matters of them over the whole recording (attention pooling)."""

    def __init__(self, config: PeopleCodecConfig) -> None:
        super().__init__()
        blocks, width = config.voice
        self.mel = LogMel(config.num_mels)
        self.enter = nn.Linear(6 * config.num_mels, width)
        self.steps = Stage(blocks, width, config.head_width, 0)
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, width)
        self.leave = nn.Linear(2 * width, config.voice_vector)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Waves [B, S], samples that count of each [B] -> unit vectors [B, V]."""
        padded = F.pad(waves, (0, -waves.shape[1] % (2 * HOP)))
        mask = frame_mask(None if lengths is None else -(-lengths // (2 * HOP)), padded.shape[1] // (2 * HOP))
        pairs = joined(masked(self.mel(padded), repeated(mask, 2)))
        steps = self.norm(self.steps(masked(self.enter(beside(pairs)), mask), mask)).float()
        scores = self.attend(steps).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(1)  # over time, each channel alone
        mean = (weights * steps).sum(1)
        spread = (weights * (steps - mean[:, None]).square()).sum(1).add(1e-5).sqrt()
        return F.normalize(self.leave(torch.cat([mean, spread], 1)).float(), dim=-1)


class Ear(nn.Module):
    """A recognizer of letters and phones at 50 steps a second; what its layers see is a measure of what is said."""

    def __init__(self, num_symbols: int, blocks: int = 6, width: int = 320, num_mels: int = 80) -> None:
        super().__init__()
        self.mel = LogMel(num_mels)
        self.enter = nn.Linear(6 * num_mels, width)
        self.stages = nn.ModuleList(Stage(blocks // 3, width, 64, 50) for _ in range(3))
        self.leave = nn.Linear(width, num_symbols + 1)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """What each third of the layers sees, and scores [B, T, P + 1]; S is a multiple of 320."""
        return self.of_frames(self.mel(waves), lengths)

    def of_frames(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """The same for mel frames."""
        mask = frame_mask(None if lengths is None else -(-lengths // (2 * HOP)), frames.shape[1] // 2)
        pairs = joined(masked(frames, repeated(mask, 2)))
        steps = masked(self.enter(beside(pairs)), mask)
        seen = []
        for stage in self.stages:
            steps = stage(steps, mask)
            seen.append(F.layer_norm(steps.float(), steps.shape[-1:]))
        return seen, self.leave(seen[-1])


class Reader(nn.Module):
    """What an ear would see, from digits alone. It makes the codes keep what was said; it does not ship."""

    def __init__(self, num_digits: int, ear_width: int, num_symbols: int, width: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(3 * num_digits, 2 * width)
        self.stage = Stage(2, width, 64, 50)
        self.leave = nn.Linear(width, 2 * ear_width + num_symbols + 1)
        self.ear_width = ear_width

    def forward(self, digits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, N, L] -> what the ear's last two thirds see [B, 2 N, C] each, and scores [B, 2 N, P + 1]."""
        steps = self.stage(doubled(self.enter(beside(digits)), None))
        num_scores = self.leave.out_features - 2 * self.ear_width
        middle, last, scores = self.leave(steps).split([self.ear_width, self.ear_width, num_scores], -1)
        return middle, last, scores


def beside(steps: Tensor) -> Tensor:
    """Each step with its two neighbours, zeros beyond the ends. [B, T, C] -> [B, T, 3 C]"""
    padded = F.pad(steps, (0, 0, 1, 1))
    return torch.cat([padded[:, :-2], steps, padded[:, 2:]], -1)


def doubled(steps: Tensor, mask: Tensor | None) -> Tensor:
    """[B, T, 2 C] -> [B, 2 T, C]"""
    rows, count, width = steps.shape
    return masked(steps.reshape(rows, 2 * count, width // 2), mask)


def joined(steps: Tensor) -> Tensor:
    """[B, 2 T, C] -> [B, T, 2 C]"""
    rows, count, width = steps.shape
    return steps.reshape(rows, count // 2, 2 * width)


@cache
def within(count: int, reach: int, device: torch.device) -> Tensor:
    """Which steps are near enough to each. [T, T]"""
    places = torch.arange(count, device=device)
    return (places[:, None] - places).abs() <= reach


@cache
def turns(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, [T, D / 2] each."""
    rates = 1000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(count, device=device)[:, None] * rates
    return angles.cos(), angles.sin()


def turned(parts: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs of channels turned by their place. [B, H, T, D]"""
    one, other = parts.float().chunk(2, -1)
    return torch.cat([one * cosines - other * sines, one * sines + other * cosines], -1)


def frame_mask(counts: Tensor | None, longest: int) -> Tensor | None:
    """Which steps of a batch count, [B, T, 1]; None where all do."""
    return None if counts is None else (torch.arange(longest, device=counts.device) < counts[:, None])[..., None]


def repeated(mask: Tensor | None, times: int) -> Tensor | None:
    """The mask at a higher rate."""
    return None if mask is None else mask.repeat_interleave(times, 1)


def masked(steps: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros where the mask is false."""
    return steps if mask is None else steps * mask
