"""All speech on the device as one long row, cut into regions of one voice each, from which pieces are drawn at random.

Drawing, filtering and noise happen on the device, so a training step asks the host for nothing and can be captured as
a graph. Each voice is there at several speeds as well: a tape that is played faster or slower is another person.

Shapes: B pieces, S samples, R regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.audio.features import resample_sinc

__all__ = ["SPEEDS", "SoundRow", "Spoken", "disturbed", "filtered"]

SPEEDS = ((1, 1), (6, 5), (9, 8), (16, 15), (15, 16), (8, 9), (5, 6))
"""How much longer a voice becomes, and so deeper: numerator and denominator."""
GAP_SAMPLES = 2_400
"""Of silence between two clips."""
RATE_HZ = 16_000
MIN_REGION_SECONDS = 20.0
EQ_POINTS, EQ_DB = 9, 7.0
"""A random curve over frequency through so many points, at most so strong either way."""
NARROW_SHARE = 0.12
FAINTEST_DB, LOUDEST_DB = -14.0, 4.0
NOISE_SHARE = 0.4
QUIETEST_NOISE_DB, LOUDEST_NOISE_DB = 45.0, 12.0
"""Below the speech."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A clip as the row takes it."""

    voice: str
    wave: NDArray[np.int16]
    symbols: tuple[str, ...]
    """What is said, as letters or phones of its language; empty where that is not known."""
    weight: float
    """How often its voice is drawn, beside its length."""
    has_speeds: bool


class SoundRow:
    """The row, its regions, and how often each is drawn."""

    def __init__(self, clips: Sequence[Spoken], device: torch.device, speeds: Sequence[tuple[int, int]]) -> None:
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
            region = np.concatenate([piece for number in own for piece in (clips[number].wave, gap)])
            sizes = np.array([len(clips[number].wave) for number in own], np.int64)
            begins = np.cumsum(sizes + GAP_SAMPLES) - sizes - GAP_SAMPLES
            wave = torch.from_numpy(region).to(device)
            for longer, by in speeds if clips[own[0]].has_speeds else speeds[:1]:
                made = wave if longer == by else stretched(wave, longer, by)
                if len(made) < MIN_REGION_SECONDS * RATE_HZ:
                    made = made.repeat(int(-(-MIN_REGION_SECONDS * RATE_HZ // len(made))))
                parts.append(made)
                # As recorded a voice is drawn as often as at all other speeds together.
                share = 0.5 if longer == by else 0.5 / max(1, len(speeds) - 1)
                weight = sum(clips[number].weight * len(clips[number].wave) for number in own)
                spans.append((total, total + len(made), weight * (share if clips[own[0]].has_speeds else 1.0)))
                scaled = [begins * longer // by + total, sizes * longer // by]
                starts.append(scaled[0])
                lengths.append(scaled[1])
                numbers.append(np.array(own, np.int64))
                total += len(made)
        self.row = torch.cat(parts)
        self.begins = torch.tensor([begin for begin, _, _ in spans], device=device)
        self.ends = torch.tensor([end for _, end, _ in spans], device=device)
        weights = torch.tensor([weight for _, _, weight in spans], dtype=torch.float64)
        self.cumulated = (weights / weights.sum()).cumsum(0).to(device)
        self.clip_starts = np.concatenate(starts)
        self.clip_lengths = np.concatenate(lengths)
        self.clip_numbers = np.concatenate(numbers)

    def draw(self, rows: int, num_samples: int, num_reference: int) -> tuple[Tensor, Tensor]:
        """Pieces [B, S], and for each another piece of the same voice that does not overlap it."""
        chosen = torch.searchsorted(self.cumulated, torch.rand(rows, device=self.device, dtype=torch.float64))
        chosen = chosen.clamp_max(len(self.begins) - 1)
        begins, ends = self.begins[chosen], self.ends[chosen]
        room = ends - begins - num_samples
        places = (torch.rand(rows, device=self.device, dtype=torch.float64) * room).long()
        # Usually nearby, since the speakers of a set without names may change.
        away = torch.rand(rows, device=self.device, dtype=torch.float64).square() * 20 * RATE_HZ
        after, before = places + num_samples + away.long(), places - num_reference - away.long()
        last = ends - begins - num_reference
        # Behind the piece, else before it; near the start of its region neither fits, and the region's end is free.
        others = torch.where(after <= last, after, torch.where(places < num_reference, last, before.clamp_min(0)))
        return self.at(begins + places, num_samples), self.at(begins + others, num_reference)

    def at(self, starts: Tensor, num_samples: int) -> Tensor:
        """Samples between -1 and 1 from these places on. [B] -> [B, S]"""
        span = starts[:, None] + torch.arange(num_samples, device=self.device)
        return self.row[span.clamp_max(len(self.row) - 1)].float() / 32768.0


def stretched(wave: Tensor, longer: int, by: int) -> Tensor:
    """int16 samples, so many times as many and as deep, in pieces that fit any memory."""
    unit = by * 160_000
    cut = [wave[first : first + unit].float() for first in range(0, len(wave), unit)]
    pieces = [resample_sinc(piece, by, longer)[: -(-len(piece) * longer // by)] for piece in cut]
    return torch.cat(pieces).round().clamp(-32768, 32767).to(torch.int16)


def filtered(waves: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Both pieces of each row through the same random room: a curve over frequency, a level, some of them narrow."""
    rows, device = len(waves), waves.device
    curve = (2 * torch.rand(rows, 1, EQ_POINTS, device=device) - 1) * EQ_DB * torch.rand(rows, 1, 1, device=device)
    cut = 3_200 + 4_800 * torch.rand(rows, 1, device=device)  # Hz
    narrow = torch.rand(rows, 1, device=device) < NARROW_SHARE
    level = FAINTEST_DB + (LOUDEST_DB - FAINTEST_DB) * torch.rand(rows, 1, device=device)
    return _filtered(waves, curve, cut, narrow, level), _filtered(others, curve, cut, narrow, level)


def _filtered(waves: Tensor, curve: Tensor, cut: Tensor, narrow: Tensor, level: Tensor) -> Tensor:
    count = waves.shape[1]
    spectrum = torch.fft.rfft(waves, 2 * count)
    hertz = torch.linspace(0, RATE_HZ / 2, spectrum.shape[1], device=waves.device)
    # Points are equally far on a scale that is logarithmic above 300 Hz.
    places = (1 + hertz / 300).log() / np.log(1 + RATE_HZ / 600) * (EQ_POINTS - 1)
    low = places.long().clamp_max(EQ_POINTS - 2)
    points = curve[:, 0]
    decibels = points[:, low] + (points[:, low + 1] - points[:, low]) * (places - low)
    slope = ((hertz - cut) / 400).clamp(0, 1) * 50 * narrow
    gains = 10 ** ((decibels - slope + level) / 20)
    made: Tensor = torch.fft.irfft(spectrum * gains, 2 * count)[:, :count].clamp(-1, 1)
    return made


def disturbed(waves: Tensor) -> Tensor:
    """Some of the pieces in noise that is anywhere between dull and sharp. [B, S]"""
    rows, device = len(waves), waves.device
    power = waves.square().mean(1, keepdim=True)
    white = torch.randn_like(waves)
    noise = white + (1.9 * torch.rand(rows, 1, device=device) - 0.95) * white.roll(1, 1)
    noise = noise / noise.square().mean(1, keepdim=True).sqrt()
    span = QUIETEST_NOISE_DB - LOUDEST_NOISE_DB
    below = LOUDEST_NOISE_DB + span * torch.rand(rows, 1, device=device)
    chosen = torch.rand(rows, 1, device=device) < NOISE_SHARE
    return waves + chosen * noise * power.sqrt() * 10 ** (-below / 20)
