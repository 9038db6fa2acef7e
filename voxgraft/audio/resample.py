"""Another sample rate for a waveform: a sinc under a Kaiser window, below the lower of the two Nyquist limits.

Shapes: N samples in, U phases (the output rate over the rates' common divisor), K taps of a phase.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from numpy.typing import NDArray

from voxgraft.errors import AudioError

__all__ = ["resample"]

NUM_ZERO_CROSSINGS = 32
"""Zero crossings of the sinc on each side."""
ROLLOFF, KAISER_BETA = 0.95, 12.0
"""The filter ends a little below the limit; the window's shape leaves about -118 dB beyond it."""
MAX_PHASES = 4_800
"""The common rates have a few hundred; beyond this a rate is made up."""


def resample(samples: NDArray[np.float32], from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """The same sound at `wanted` samples a second; as it is where the rates are equal."""
    if from_hz == to_hz or not len(samples):
        return samples
    common = math.gcd(from_hz, to_hz) if from_hz > 0 else 1
    up, down = to_hz // common, from_hz // common
    if from_hz < 1 or up > MAX_PHASES or down > MAX_PHASES:
        expected = "a usual one, such as 16,000, 22,050, 24,000, 44,100 or 48,000"
        raise AudioError("audio-shape", f"a sample rate of {from_hz:,}", expected=expected)
    kernel, before = _build_phase_filters(up, down)  # [U, 1, K]
    count = -(-len(samples) * up // down)
    blocks = -(-count // up)
    needed = (blocks - 1) * down + kernel.shape[-1]
    wave = F.pad(torch.from_numpy(samples.astype(np.float32)), (before, max(0, needed - before - len(samples))))
    out = F.conv1d(wave[None, None], kernel, stride=down)[0]  # [U, blocks]
    found: NDArray[np.float32] = out.T.reshape(-1)[:count].numpy()
    return found


def _build_phase_filters(up: int, down: int) -> tuple[torch.Tensor, int]:
    """The filter of each phase, and how many samples before the first one it reaches. [U, 1, K]"""
    cutoff = ROLLOFF * min(1.0, up / down)
    half = math.ceil(NUM_ZERO_CROSSINGS / cutoff)
    taps = np.arange(-half, half + down + 1)
    times = taps[None, :] - np.arange(up)[:, None] * down / up  # [U, K] in samples of the input
    inside = np.clip(times / half, -1, 1)
    window = np.i0(KAISER_BETA * np.sqrt(1 - inside**2)) / np.i0(KAISER_BETA) * (np.abs(times) <= half)
    kernel = cutoff * np.sinc(cutoff * times) * window
    return torch.from_numpy(kernel.astype(np.float32))[:, None], half
