"""What can be measured of one clip without listening: length, pace, silence, noise, clipping, bandwidth, script.

Judges nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.activity import runs, speech_frames, thresholds_of
from voxgraft.importing.media import Samples
from voxgraft.importing.tape import FRAMES_A_SECOND, levels_of
from voxgraft.text.characters import exemplar, is_letter, letters_by_script, scripts_of

__all__ = ["Measures", "measure", "script_share"]

FFT = 1024
BANDWIDTH_DB = 60.0
"""Above the highest frequency of a voice its spectrum lies further below its peak than this."""
MOST_SNR_DB = 80.0
FULL_SCALE = 0.985
LEAST_PAUSE_FRAMES = 8
"""Frames without speech that a noise level can be told from."""


@dataclass(frozen=True, slots=True)
class Measures:
    """One clip, measured. Shares are from 0 to 1."""

    seconds: float
    letters_per_second: float
    silence: float
    """Share of frames without speech."""
    longest_pause: float
    snr_db: float | None
    """Speech above the noise between words; None for clips that are too short to tell."""
    level_db: float
    """Of the speech, below full scale."""
    clipped: float
    """Share of samples that stand at the top or the bottom in a row."""
    bandwidth_hz: float
    """The highest frequency with sound in it, whatever the sampling rate says."""
    script: float
    """Share of letters in the script of the language."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


MEASURE_NAMES = tuple(own.name for own in fields(Measures))


def measure(samples: Samples, rate: int, text: str, language: str) -> Measures:
    """Measure one clip."""
    levels = levels_of(samples, rate)
    active = speech_frames(levels, thresholds_of(levels))
    seconds = len(samples) / rate
    power = _power(samples, rate)
    letters = sum(map(is_letter, text))
    pauses = [last - first for first, last in runs(~active)]
    speech = float(power[active].mean()) if active.any() else 0.0
    return Measures(
        seconds=round(seconds, 4),
        letters_per_second=round(letters / seconds, 3) if seconds else 0.0,
        silence=round(float(1 - active.mean()), 4) if len(active) else 1.0,
        longest_pause=round(max(pauses, default=0) / FRAMES_A_SECOND, 2),
        snr_db=_snr(power, active, speech),
        level_db=round(10 * math.log10(speech + 1e-10), 1),
        clipped=round(_clipped(samples), 6),
        bandwidth_hz=round(_bandwidth(samples, rate)),
        script=round(script_share(text, language), 4),
    )


def script_share(text: str, language: str) -> float:
    """Share of letters that are of the language's script; 1 where nobody knows which that is."""
    entry = exemplar(language)
    own = scripts_of(entry.letters) if entry else {}
    letters = letters_by_script(Counter(text))
    if not own or not letters:
        return 1.0 if not own else 0.0
    return sum(letters[script] for script in own) / letters.total()


def _power(samples: Samples, rate: int) -> NDArray[np.float64]:
    size = rate // FRAMES_A_SECOND
    count = len(samples) // size
    frames = samples[: count * size].reshape(count, size).astype(np.float64)
    return np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1) if count else np.zeros(0)


def _snr(power: NDArray[np.float64], active: NDArray[np.bool_], speech: float) -> float | None:
    """Speech against the softer half of what lies between it; without a pause, loud frames against the softest."""
    if len(power) < LEAST_PAUSE_FRAMES or speech <= 0:
        return None
    quiet = np.sort(power[~active])
    if len(quiet) < LEAST_PAUSE_FRAMES:
        quiet, speech = np.sort(power)[: len(power) // 20 + 1], float(power[power >= np.median(power)].mean())
    noise = max(float(quiet[: max(1, len(quiet) // 2)].mean()), 1e-12)
    return round(min(MOST_SNR_DB, 10 * math.log10(max(speech - noise, 1e-12) / noise)), 1)


def _clipped(samples: Samples) -> float:
    """Three samples or more in a row at the same extreme are cut off; one alone is a peak."""
    if not len(samples):
        return 0.0
    peak = float(np.abs(samples).max())
    if peak < FULL_SCALE:
        return 0.0
    flat = np.abs(samples) >= 0.999 * peak
    return sum(last - first for first, last in runs(flat) if last - first >= 3) / len(samples)


def _bandwidth(samples: Samples, rate: int) -> float:
    """By the loudest frames of each frequency, so that hissing sounds count."""
    count = len(samples) // FFT
    if not count:
        return 0.0
    frames = samples[: count * FFT].reshape(count, FFT) * np.hanning(FFT).astype(np.float32)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    loud = 10 * np.log10(np.percentile(power, 95, axis=0) + 1e-12)
    smooth = np.convolve(loud, np.ones(5) / 5, mode="same")
    bins = np.fft.rfftfreq(FFT, 1 / rate)
    peak = smooth[(bins > 100) & (bins < 4_000)].max()
    above = np.flatnonzero(smooth[:-3] > peak - BANDWIDTH_DB)
    return float(bins[above[-1]]) if len(above) else 0.0
