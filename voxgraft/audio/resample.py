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

__all__ = ["resampled"]

ZEROS = 32
"""Zero crossings of the sinc on each side."""
ROLLOFF, BETA = 0.95, 12.0
"""The filter ends a little below the limit; the window's shape leaves about -118 dB beyond it."""
MAX_PHASES = 4_800
"""The common rates have a few hundred; beyond this a rate is made up."""


def resampled(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """The same sound at `wanted` samples a second; as it is where the rates are equal."""
    if rate == wanted or not len(samples):
        return samples
    common = math.gcd(rate, wanted) if rate > 0 else 1
    up, down = wanted // common, rate // common
    if rate < 1 or up > MAX_PHASES or down > MAX_PHASES:
        expected = "a usual one, such as 16,000, 22,050, 24,000, 44,100 or 48,000"
        raise AudioError("audio-shape", f"a sample rate of {rate:,}", expected=expected)
    kernel, before = _phases(up, down)  # [U, 1, K]
    count = -(-len(samples) * up // down)
    blocks = -(-count // up)
    needed = (blocks - 1) * down + kernel.shape[-1]
    wave = F.pad(torch.from_numpy(samples.astype(np.float32)), (before, max(0, needed - before - len(samples))))
    out = F.conv1d(wave[None, None], kernel, stride=down)[0]  # [U, blocks]
    found: NDArray[np.float32] = out.T.reshape(-1)[:count].numpy()
    return found


def _phases(up: int, down: int) -> tuple[torch.Tensor, int]:
    """The filter of each phase, and how many samples before the first one it reaches. [U, 1, K]"""
    cutoff = ROLLOFF * min(1.0, up / down)
    half = math.ceil(ZEROS / cutoff)
    taps = np.arange(-half, half + down + 1)
    times = taps[None, :] - np.arange(up)[:, None] * down / up  # [U, K] in samples of the input
    inside = np.clip(times / half, -1, 1)
    window = np.i0(BETA * np.sqrt(1 - inside**2)) / np.i0(BETA) * (np.abs(times) <= half)
    kernel = cutoff * np.sinc(cutoff * times) * window
    return torch.from_numpy(kernel.astype(np.float32))[:, None], half
