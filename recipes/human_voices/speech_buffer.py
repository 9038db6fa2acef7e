"""All training speech in one buffer on the device, in regions of one voice each, and random segments of it.

Sampling and augmentation run on the device, so a training step needs no data from the host and can be captured as a
CUDA graph. Each voice is stored at several speeds: resampling changes pitch and formants, which gives new voices.

Shapes: B segments, S samples, R regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.audio.features import resample_sinc

__all__ = ["SPEEDS", "SpeechBuffer", "TrainingClip", "add_noise", "augment_channel"]

SPEEDS = ((1, 1), (6, 5), (9, 8), (16, 15), (15, 16), (8, 9), (5, 6))
"""Factors of duration (numerator, denominator); a longer copy has a lower pitch."""
GAP_SAMPLES = 2_400
"""Silence between two clips."""
RATE_HZ = 16_000
MIN_REGION_SECONDS = 20.0
EQ_POINTS, EQ_DB = 9, 7.0
"""Random equalizer: number of points of the gain curve, and maximum gain or attenuation."""
LOW_PASS_SHARE = 0.12
FAINTEST_DB, LOUDEST_DB = -14.0, 4.0
NOISE_SHARE = 0.4
QUIETEST_NOISE_DB, LOUDEST_NOISE_DB = 45.0, 12.0
"""Noise levels, in dB below the speech."""


@dataclass(frozen=True, slots=True)
class TrainingClip:
    """One clip of the buffer."""

    voice: str
    wave: NDArray[np.int16]
    symbols: tuple[str, ...]
    """Transcript as letters or phones of its language; empty if unknown."""
    weight: float
    """Sampling weight, multiplied with the duration."""
    has_speeds: bool


class SpeechBuffer:
    """The samples, the regions and their sampling weights."""

    def __init__(self, clips: Sequence[TrainingClip], device: torch.device, speeds: Sequence[tuple[int, int]]) -> None:
        self.device = device
        voices: dict[str, list[int]] = {}
        for number, clip in enumerate(clips):
            voices.setdefault(clip.voice, []).append(number)
        parts: list[Tensor] = []
        spans: list[tuple[int, int, float]] = []
        starts, lengths, numbers = [], [], []
        total = 0
        gap = np.zeros(GAP_SAMPLES, np.int16)
        for own in voices.values():
            region = np.concatenate([segment for number in own for segment in (clips[number].wave, gap)])
            sizes = np.array([len(clips[number].wave) for number in own], np.int64)
            clip_offsets = np.cumsum(sizes + GAP_SAMPLES) - sizes - GAP_SAMPLES
            wave = torch.from_numpy(region).to(device)
            for numerator, denominator in speeds if clips[own[0]].has_speeds else speeds[:1]:
                result = wave if numerator == denominator else change_speed(wave, numerator, denominator)
                if len(result) < MIN_REGION_SECONDS * RATE_HZ:
                    result = result.repeat(int(-(-MIN_REGION_SECONDS * RATE_HZ // len(result))))
                parts.append(result)
                # The original speed is sampled as often as all other speeds together.
                share = 0.5 if numerator == denominator else 0.5 / max(1, len(speeds) - 1)
                weight = sum(clips[number].weight * len(clips[number].wave) for number in own)
                spans.append((total, total + len(result), weight * (share if clips[own[0]].has_speeds else 1.0)))
                scaled = [clip_offsets * numerator // denominator + total, sizes * numerator // denominator]
                starts.append(scaled[0])
                lengths.append(scaled[1])
                numbers.append(np.array(own, np.int64))
                total += len(result)
        self.samples = torch.cat(parts)
        self.region_starts = torch.tensor([start for start, _, _ in spans], device=device)
        self.region_ends = torch.tensor([end for _, end, _ in spans], device=device)
        weights = torch.tensor([weight for _, _, weight in spans], dtype=torch.float64)
        self.cumulative_weights = (weights / weights.sum()).cumsum(0).to(device)
        self.clip_starts = np.concatenate(starts)
        self.clip_lengths = np.concatenate(lengths)
        self.clip_numbers = np.concatenate(numbers)

    def sample_segments(self, rows: int, num_samples: int, num_reference: int) -> tuple[Tensor, Tensor]:
        """Random segments [B, S], and for each a reference segment of the same voice that does not overlap it."""
        chosen = torch.searchsorted(self.cumulative_weights, torch.rand(rows, device=self.device, dtype=torch.float64))
        chosen = chosen.clamp_max(len(self.region_starts) - 1)
        region_starts, region_ends = self.region_starts[chosen], self.region_ends[chosen]
        room = region_ends - region_starts - num_samples
        places = (torch.rand(rows, device=self.device, dtype=torch.float64) * room).long()
        # Usually nearby: in sets without speaker names, the speaker may change within a region.
        away = torch.rand(rows, device=self.device, dtype=torch.float64).square() * 20 * RATE_HZ
        after, before = places + num_samples + away.long(), places - num_reference - away.long()
        last = region_ends - region_starts - num_reference
        # After the segment, else before it. Near the start of a region neither fits, but its end is free.
        others = torch.where(after <= last, after, torch.where(places < num_reference, last, before.clamp_min(0)))
        return self.slice_at(region_starts + places, num_samples), self.slice_at(region_starts + others, num_reference)

    def slice_at(self, starts: Tensor, num_samples: int) -> Tensor:
        """Samples in -1 to 1 from these offsets. [B] -> [B, S]"""
        span = starts[:, None] + torch.arange(num_samples, device=self.device)
        return self.samples[span.clamp_max(len(self.samples) - 1)].float() / 32768.0


def change_speed(wave: Tensor, numerator: int, denominator: int) -> Tensor:
    """Resample int16 audio to numerator / denominator of its length, in chunks that fit into memory."""
    unit = denominator * 160_000
    cut = [wave[first : first + unit].float() for first in range(0, len(wave), unit)]
    segments = [
        resample_sinc(segment, denominator, numerator)[: -(-len(segment) * numerator // denominator)] for segment in cut
    ]
    return torch.cat(segments).round().clamp(-32768, 32767).to(torch.int16)


def augment_channel(waves: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Augment both segments of each row with the same random channel: equalizer, level, and sometimes a low-pass."""
    rows, device = len(waves), waves.device
    curve = (2 * torch.rand(rows, 1, EQ_POINTS, device=device) - 1) * EQ_DB * torch.rand(rows, 1, 1, device=device)
    cut = 3_200 + 4_800 * torch.rand(rows, 1, device=device)  # Hz
    low_pass = torch.rand(rows, 1, device=device) < LOW_PASS_SHARE
    level = FAINTEST_DB + (LOUDEST_DB - FAINTEST_DB) * torch.rand(rows, 1, device=device)
    return _filter_channel(waves, curve, cut, low_pass, level), _filter_channel(others, curve, cut, low_pass, level)


def _filter_channel(waves: Tensor, curve: Tensor, cut: Tensor, low_pass: Tensor, level: Tensor) -> Tensor:
    count = waves.shape[1]
    spectrum = torch.fft.rfft(waves, 2 * count)
    hertz = torch.linspace(0, RATE_HZ / 2, spectrum.shape[1], device=waves.device)
    # The points are evenly spaced on a scale that is logarithmic above 300 Hz.
    places = (1 + hertz / 300).log() / np.log(1 + RATE_HZ / 600) * (EQ_POINTS - 1)
    low = places.long().clamp_max(EQ_POINTS - 2)
    points = curve[:, 0]
    decibels = points[:, low] + (points[:, low + 1] - points[:, low]) * (places - low)
    slope = ((hertz - cut) / 400).clamp(0, 1) * 50 * low_pass
    gains = 10 ** ((decibels - slope + level) / 20)
    result: Tensor = torch.fft.irfft(spectrum * gains, 2 * count)[:, :count].clamp(-1, 1)
    return result


def add_noise(waves: Tensor) -> Tensor:
    """Add noise of random color to some of the segments. [B, S]"""
    rows, device = len(waves), waves.device
    power = waves.square().mean(1, keepdim=True)
    white = torch.randn_like(waves)
    noise = white + (1.9 * torch.rand(rows, 1, device=device) - 0.95) * white.roll(1, 1)
    noise = noise / noise.square().mean(1, keepdim=True).sqrt()
    span = QUIETEST_NOISE_DB - LOUDEST_NOISE_DB
    below = LOUDEST_NOISE_DB + span * torch.rand(rows, 1, device=device)
    chosen = torch.rand(rows, 1, device=device) < NOISE_SHARE
    return waves + chosen * noise * power.sqrt() * 10 ** (-below / 20)
