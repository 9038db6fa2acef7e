"""Waveforms as the front ends take them: one channel of floating-point samples, checked; and clips put into batches.

Reads no files and does not resample. Needs torch and NumPy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.errors import AudioError

__all__ = ["Waveform", "WaveformLimits", "batch_by_length", "pad_rows", "validate_waveform", "validate_waveforms"]

Waveform = Tensor | NDArray[np.floating]
MAX_SAMPLE_VALUE = 16.0
"""Samples lie between -1 and 1, and resampling can overshoot a little. Beyond this they are 16-bit numbers."""

MIN_LENGTH_RATIO = 0.8
"""A clip shorter than this share of the longest beside it costs more in padding than a batch of its own."""


@dataclass(frozen=True, slots=True)
class WaveformLimits:
    """What a front end can take, in samples at its own rate."""

    sample_rate: int
    min_samples: int
    max_samples: int | None = None

    def told(self, num_samples: int) -> str:
        """A number of samples as people read it."""
        return f"{num_samples:,} samples, {num_samples / self.sample_rate:.3f} s at {self.sample_rate:,} Hz"


def validate_waveforms(waves: Sequence[Waveform], limits: WaveformLimits) -> list[Tensor]:
    """Every clip checked as by `validate_waveform`; the error names the first that does not fit."""
    given: object = waves  # an array is a sequence too: of samples, or of channels
    if isinstance(given, Tensor | np.ndarray):
        found = f"one array {list(given.shape)} instead of a list of clips"
        raise AudioError("audio-shape", found, expected="a list of waveforms", cure="put the waveform into a list.")
    return [validate_waveform(wave, limits, f"clip {number} of {len(waves)}") for number, wave in enumerate(waves, 1)]


def validate_waveform(wave: Waveform, limits: WaveformLimits, where: str = "") -> Tensor:
    """One clip as float32 samples on the CPU, [N]; refused unless it is finite, one channel, and long enough."""
    samples = _to_float_samples(wave, where)
    if len(samples) < limits.min_samples:
        expected = f"at least {limits.told(limits.min_samples)}"
        raise AudioError("audio-too-short", _format_length(samples, limits), expected=expected, where=where)
    if limits.max_samples is not None and len(samples) > limits.max_samples:
        expected = f"at most {limits.told(limits.max_samples)}"
        raise AudioError("audio-too-long", _format_length(samples, limits), expected=expected, where=where)
    largest = float(samples.abs().max())  # NaN where any sample is NaN
    if not np.isfinite(largest):
        faults = int((~samples.isfinite()).sum())
        found = f"{faults:,} of {len(samples):,} samples are NaN or infinite"
        raise AudioError("audio-not-finite", found, where=where)
    if largest > MAX_SAMPLE_VALUE:
        found = f"the largest sample is {largest:,.0f}"
        raise AudioError("audio-scale", found, expected="between -1 and 1", where=where)
    return samples


def batch_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of clips of about one length, longest first, so that the longest times their number is within `budget`.

    A clip that is longer than the budget comes alone, and none has a neighbour that is much shorter.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        longest = lengths[batch[0]] if batch else 0
        if batch and (longest * (len(batch) + 1) > budget or lengths[place] < MIN_LENGTH_RATIO * longest):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Clips [T, C] of different lengths as one batch [B, T, C], zeros after each end, and where they are, [B, T].

    There is no mask if nothing had to be padded, so that a clip alone takes the same way as ever.
    """
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    batch = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    if bool((lengths == lengths[0]).all()):
        return batch, None
    return batch, torch.arange(batch.shape[1], device=batch.device) < lengths[:, None]


def _to_float_samples(wave: Waveform, where: str) -> Tensor:
    expected = "one channel: a list of floating-point samples between -1 and 1"
    if isinstance(wave, np.ndarray) and wave.dtype.kind == "f":
        with np.errstate(over="ignore"):  # too large becomes infinite, and is refused as that
            # A copy in native order: torch takes neither negative strides nor the other byte order.
            wave = torch.from_numpy(wave.astype(np.float32))
    if not isinstance(wave, Tensor):
        kind = f"an array of {wave.dtype}" if isinstance(wave, np.ndarray) else f"a {type(wave).__name__}"
        raise AudioError("audio-shape", kind, expected=expected, where=where)
    if not wave.dtype.is_floating_point or wave.dim() != 1:
        found = f"a tensor {list(wave.shape)} of {str(wave.dtype).removeprefix('torch.')}"
        raise AudioError("audio-shape", found, expected=expected, where=where)
    return wave.detach().to("cpu", torch.float32)


def _format_length(samples: Tensor, limits: WaveformLimits) -> str:
    return limits.told(len(samples)) if len(samples) else "no samples at all"
