"""Fingerprints of sound: the same recording is known again after other cuts, codecs and levels. Two readings of one
sentence are not the same.

The idea is Haitsma and Kalker's (2002): signs of differences of band energies, across bands and time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.media import AudioSamples

__all__ = ["AudioFingerprint", "compute_audio_fingerprint", "find_duplicate_audio"]

AudioFingerprint = NDArray[np.uint32]
FINGERPRINT_HZ = 40
FINGERPRINT_WINDOW_SECONDS = 0.37
FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ = 300.0, 3_400.0
FINGERPRINT_BITS = 24
MAX_OCCURRENCES = 60
"""Prints that so many places have say nothing: silence, hum."""
MIN_MATCHING_HITS = 3
MAX_BIT_ERROR_RATE = 0.25
MIN_SHARED_SECONDS = 0.6
MIN_SHARED_SHARE = 0.5
"""Of the shorter clip."""


def compute_audio_fingerprint(samples: AudioSamples, rate: int) -> AudioFingerprint:
    """One number of 24 bits for each 25 ms."""
    size, hop = round(FINGERPRINT_WINDOW_SECONDS * rate), rate // FINGERPRINT_HZ
    if len(samples) < size + hop:
        return np.zeros(0, np.uint32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    bins = np.fft.rfftfreq(size, 1 / rate)
    edges = np.geomspace(FINGERPRINT_MIN_HZ, FINGERPRINT_MAX_HZ, FINGERPRINT_BITS + 2)
    places = np.searchsorted(bins, edges)
    window = np.hanning(size).astype(np.float32)
    energies = np.empty((len(frames), FINGERPRINT_BITS + 1))
    for first in range(0, len(frames), 256):  # windows overlap fifteen-fold, and so would memory
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
    """Whether two clips agree in most bits, one of them moved by so many prints, in either half of what they share.

    Two sentences that begin with the same words are the same there, to the very sample if a program says them.
    """
    first, last = max(0, shift), min(len(one), len(two) + shift)
    if last - first < MIN_SHARED_SECONDS * FINGERPRINT_HZ or last - first < MIN_SHARED_SHARE * min(len(one), len(two)):
        return False
    wrong = np.bitwise_count(one[first:last] ^ two[first - shift : last - shift])
    return all(float(half.mean()) <= MAX_BIT_ERROR_RATE * FINGERPRINT_BITS for half in np.array_split(wrong, 2))
