"""Short-time spectra of one waveform: mel filters after Slaney, power in frames, where the sound begins and ends.

What the front ends share. Needs torch only; every clip is taken alone, so that no neighbour in a batch can change it.

Shapes: N samples, K frequencies, M mel bands, F frames.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["compute_peak_frame_power", "find_sound_bounds", "mel_filters", "power_spectrum"]

MEL_BREAK_HZ = 1000.0
"""Slaney's mel scale is linear up to here and logarithmic above."""
HZ_PER_MEL = 200.0 / 3
MEL_LOG_STEP = math.log(6.4) / 27.0

TRIM_FRAME = 2048
TRIM_HOP = 512
SILENCE_POWER = 1e-10
"""Mean square of a frame, -100 dB: what is quieter than this counts as equally quiet."""


def mel_filters(sample_rate: int, num_fft: int, num_mels: int) -> Tensor:
    """Triangles from 0 Hz to half the sample rate, each of the same area. float32 [M, K]"""
    top = sample_rate / 2
    edges = _mel_to_hz(torch.linspace(0.0, _hz_to_mel(top), num_mels + 2, dtype=torch.float64))  # [M + 2]
    frequencies = torch.linspace(0.0, top, num_fft // 2 + 1, dtype=torch.float64)  # [K]
    widths = edges.diff()[:, None]  # [M + 1, 1]
    distances = frequencies - edges[:, None]  # [M + 2, K]
    rising = distances[:-2] / widths[:-1]
    falling = -distances[2:] / widths[1:]
    triangles = torch.minimum(rising, falling).clamp_min(0.0)  # [M, K]
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).float()


def power_spectrum(wave: Tensor, window: Tensor, hop: int) -> Tensor:
    """Power in frames as long as the window, centred on every `hop`-th sample, the ends mirrored. [N] -> [K, F]

    F = 1 + N // hop. The mirror needs more samples than half a window.
    """
    num_fft = len(window)
    transformed = torch.stft(
        wave, num_fft, hop, window=window, center=True, pad_mode="reflect", normalized=False, return_complex=True
    )
    return transformed.abs().square()


def find_sound_bounds(wave: Tensor, below_loudest_db: float) -> tuple[int, int]:
    """First sample and end of what lies between the first and the last frame that is not too quiet. [N]

    A frame is too quiet if it is `below_loudest_db` or more below the loudest. A clip without any sound is kept whole.
    """
    powers = _frame_powers(wave)  # [F]
    loud = powers > powers.max() * 10 ** (-below_loudest_db / 10)
    places = loud.nonzero().flatten()
    return int(places[0]) * TRIM_HOP, min(len(wave), (int(places[-1]) + 1) * TRIM_HOP)


def compute_peak_frame_power(wave: Tensor) -> float:
    """Mean square of the loudest frame; QUIETEST_POWER for silence."""
    return float(_frame_powers(wave).max())


def _frame_powers(wave: Tensor) -> Tensor:
    """Mean squares of overlapping frames, zeros before the start and after the end. [N] -> [F]"""
    squares = torch.nn.functional.pad(wave.double().square(), (TRIM_FRAME // 2, TRIM_FRAME // 2))
    return squares.unfold(0, TRIM_FRAME, TRIM_HOP).mean(-1).clamp_min(SILENCE_POWER)


def _hz_to_mel(frequency: float) -> float:
    if frequency < MEL_BREAK_HZ:
        return frequency / HZ_PER_MEL
    return MEL_BREAK_HZ / HZ_PER_MEL + math.log(frequency / MEL_BREAK_HZ) / MEL_LOG_STEP


def _mel_to_hz(mels: Tensor) -> Tensor:
    logarithmic = MEL_BREAK_HZ * torch.exp(MEL_LOG_STEP * (mels - MEL_BREAK_HZ / HZ_PER_MEL))
    return torch.where(mels < MEL_BREAK_HZ / HZ_PER_MEL, mels * HZ_PER_MEL, logarithmic)
