"""Metrics of one clip without a recognizer (pace, silence, noise, clipping, bandwidth, script), and audio fingerprints.

Fingerprints find clips with the same audio (Haitsma and Kalker: signs of energy differences in time and frequency).
Judges nothing: thresholds are in `data/quality`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.files import AudioSamples
from voxgraft.audio.vad import (
    LEVEL_FRAMES_PER_SECOND,
    compute_frame_levels,
    compute_speech_thresholds,
    detect_speech_frames,
    find_runs,
)
from voxgraft.core.languages import count_letters_by_script, count_scripts, find_exemplar, is_letter

FFT_SIZE = 1024
# Beyond the bandwidth of a recording its spectrum lies more than this below its peak.
BANDWIDTH_FLOOR_DB = 60.0
MAX_SNR_DB = 80.0
CLIPPING_LEVEL = 0.985
# Frames without speech that are needed to estimate the noise level.
MIN_NOISE_FRAMES = 8


@dataclass(frozen=True, slots=True)
class ClipMetrics:
    """One clip, measured. Shares are from 0 to 1."""

    seconds: float
    letters_per_second: float
    silence: float
    """Share of frames without speech."""
    longest_pause: float
    snr_db: float | None
    """Speech above the noise between words; None for clips that are too short."""
    level_db: float
    """Level of the speech relative to full scale."""
    clipped: float
    """Share of samples in runs at the highest or lowest value."""
    bandwidth_hz: float
    """The highest frequency with energy, whatever the sample rate."""
    script: float
    """Share of letters in the script of the language."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


CLIP_METRIC_NAMES = tuple(own.name for own in fields(ClipMetrics))


def compute_clip_metrics(samples: AudioSamples, rate: int, text: str, language: str) -> ClipMetrics:
    """Measure one clip."""
    levels = compute_frame_levels(samples, rate)
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    seconds = len(samples) / rate
    # Power of each frame without its mean (DC offset).
    size = rate // LEVEL_FRAMES_PER_SECOND
    count = len(samples) // size
    frames = samples[: count * size].reshape(count, size).astype(np.float64)
    power = np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1) if count else np.zeros(0)
    letters = sum(map(is_letter, text))
    pauses = [last - first for first, last in find_runs(~active)]
    speech = float(power[active].mean()) if active.any() else 0.0
    return ClipMetrics(
        seconds=round(seconds, 4),
        letters_per_second=round(letters / seconds, 3) if seconds else 0.0,
        silence=round(float(1 - active.mean()), 4) if len(active) else 1.0,
        longest_pause=round(max(pauses, default=0) / LEVEL_FRAMES_PER_SECOND, 2),
        snr_db=_estimate_snr(power, active, speech),
        level_db=round(10 * math.log10(speech + 1e-10), 1),
        clipped=round(_clipped_share(samples), 6),
        bandwidth_hz=round(_estimate_bandwidth(samples, rate)),
        script=round(compute_script_share(text, language), 4),
    )


def compute_script_share(text: str, language: str) -> float:
    """Share of letters in the language's script; 1 if the script is unknown."""
    entry = find_exemplar(language)
    own = count_scripts(entry.letters) if entry else {}
    letters = count_letters_by_script(Counter(text))
    if not own or not letters:
        return 1.0 if not own else 0.0
    return sum(letters[script] for script in own) / letters.total()


def _estimate_snr(power: NDArray[np.float64], active: NDArray[np.bool_], speech: float) -> float | None:
    """Speech against the softer half of the pauses; without a pause, loud frames against the softest."""
    if len(power) < MIN_NOISE_FRAMES or speech <= 0:
        return None
    quiet = np.sort(power[~active])
    if len(quiet) < MIN_NOISE_FRAMES:
        quiet, speech = np.sort(power)[: len(power) // 20 + 1], float(power[power >= np.median(power)].mean())
    noise = max(float(quiet[: max(1, len(quiet) // 2)].mean()), 1e-12)
    return round(min(MAX_SNR_DB, 10 * math.log10(max(speech - noise, 1e-12) / noise)), 1)


def _clipped_share(samples: AudioSamples) -> float:
    """Three or more samples in a row at the same extreme are clipped; a single one is a peak."""
    if not len(samples):
        return 0.0
    peak = float(np.abs(samples).max())
    if peak < CLIPPING_LEVEL:
        return 0.0
    flat = np.abs(samples) >= 0.999 * peak
    return sum(last - first for first, last in find_runs(flat) if last - first >= 3) / len(samples)


def _estimate_bandwidth(samples: AudioSamples, rate: int) -> float:
    """By the loudest frames of each frequency, so that sibilants count."""
    count = len(samples) // FFT_SIZE
    if not count:
        return 0.0
    frames = samples[: count * FFT_SIZE].reshape(count, FFT_SIZE) * np.hanning(FFT_SIZE).astype(np.float32)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    loud = 10 * np.log10(np.percentile(power, 95, axis=0) + 1e-12)
    smooth = np.convolve(loud, np.ones(5) / 5, mode="same")
    bins = np.fft.rfftfreq(FFT_SIZE, 1 / rate)
    peak = smooth[(bins > 100) & (bins < 4_000)].max()
    above = np.flatnonzero(smooth[:-3] > peak - BANDWIDTH_FLOOR_DB)
    return float(bins[above[-1]]) if len(above) else 0.0


AudioFingerprint = NDArray[np.uint32]
FINGERPRINT_HZ = 40
FINGERPRINT_WINDOW_SECONDS = 0.37
FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ = 300.0, 3_400.0
FINGERPRINT_BITS = 24
# Values that occur in this many places say nothing: silence, hum.
MAX_OCCURRENCES = 60
MIN_MATCHING_HITS = 3
MAX_BIT_ERROR_RATE = 0.25
MIN_SHARED_SECONDS = 0.6
MIN_SHARED_SHARE = 0.5  # of the shorter clip


def compute_audio_fingerprint(samples: AudioSamples, rate: int) -> AudioFingerprint:
    """A 24-bit value for every 25 ms."""
    size, hop = round(FINGERPRINT_WINDOW_SECONDS * rate), rate // FINGERPRINT_HZ
    if len(samples) < size + hop:
        return np.zeros(0, np.uint32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    bins = np.fft.rfftfreq(size, 1 / rate)
    edges = np.geomspace(FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ, FINGERPRINT_BITS + 2)
    places = np.searchsorted(bins, edges)
    window = np.hanning(size).astype(np.float32)
    energies = np.empty((len(frames), FINGERPRINT_BITS + 1))
    for first in range(0, len(frames), 256):  # windows overlap 15 times: all at once would take 15 times the memory
        power = np.square(np.abs(np.fft.rfft(frames[first : first + 256] * window, axis=1)))
        energies[first : first + 256] = np.add.reduceat(power[:, : places[-1]], places[:-1], axis=1)
    across = np.diff(energies, axis=1)
    bits = np.diff(across, axis=0) > 0
    made: AudioFingerprint = (bits @ (1 << np.arange(FINGERPRINT_BITS, dtype=np.uint32))).astype(np.uint32)
    return made


def find_duplicate_audio(prints: Mapping[str, AudioFingerprint]) -> Iterator[tuple[str, str]]:
    """Pairs of clips that hold the same sound, each pair once, in the order of the clips."""
    places: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, own in prints.items():
        hits: Counter[tuple[str, int]] = Counter()
        for at, value in enumerate(own.tolist()):
            there = places[value]
            if len(there) <= MAX_OCCURRENCES:
                hits.update((other, at - other_at) for other, other_at in there)
        seen: set[str] = set()
        for (other, shift), count in hits.most_common(20):
            if count < MIN_MATCHING_HITS:
                break
            if other not in seen and _fingerprints_match(own, prints[other], shift):
                seen.add(other)
                yield other, name
        for at, value in enumerate(own.tolist()):
            places[value].append((name, at))


def _fingerprints_match(one: AudioFingerprint, two: AudioFingerprint, shift: int) -> bool:
    """Whether two clips agree in most bits, one shifted against the other, in both halves of what they share.

    Both halves: sentences that begin with the same words agree in the first one.
    """
    first, last = max(0, shift), min(len(one), len(two) + shift)
    if last - first < MIN_SHARED_SECONDS * FINGERPRINT_HZ or last - first < MIN_SHARED_SHARE * min(len(one), len(two)):
        return False
    wrong = np.bitwise_count(one[first:last] ^ two[first - shift : last - shift])
    return all(float(half.mean()) <= MAX_BIT_ERROR_RATE * FINGERPRINT_BITS for half in np.array_split(wrong, 2))
