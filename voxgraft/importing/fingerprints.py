"""Fingerprints of sound: the same recording is known again after other cuts, codecs and levels. Two readings of one
sentence are not the same.

The idea is Haitsma and Kalker's (2002): signs of differences of band energies, across bands and time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.media import Samples

__all__ = ["Print", "alike", "fingerprint_of"]

Print = NDArray[np.uint32]
PRINTS_A_SECOND = 40
WINDOW_SECONDS = 0.37
LOWEST_HZ, HIGHEST_HZ = 300.0, 3_400.0
NUM_BITS = 24
MOST_PLACES = 60
"""Prints that so many places have say nothing: silence, hum."""
LEAST_HITS = 3
MOST_WRONG_BITS = 0.25
LEAST_SHARED_SECONDS = 0.6
LEAST_SHARED = 0.5
"""Of the shorter clip."""


def fingerprint_of(samples: Samples, rate: int) -> Print:
    """One number of 24 bits for each 25 ms."""
    size, hop = round(WINDOW_SECONDS * rate), rate // PRINTS_A_SECOND
    if len(samples) < size + hop:
        return np.zeros(0, np.uint32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    bins = np.fft.rfftfreq(size, 1 / rate)
    edges = np.geomspace(LOWEST_HZ, HIGHEST_HZ, NUM_BITS + 2)
    places = np.searchsorted(bins, edges)
    window = np.hanning(size).astype(np.float32)
    energies = np.empty((len(frames), NUM_BITS + 1))
    for first in range(0, len(frames), 256):  # windows overlap fifteen-fold, and so would memory
        power = np.square(np.abs(np.fft.rfft(frames[first : first + 256] * window, axis=1)))
        energies[first : first + 256] = np.add.reduceat(power[:, : places[-1]], places[:-1], axis=1)
    across = np.diff(energies, axis=1)
    bits = np.diff(across, axis=0) > 0
    made: Print = (bits @ (1 << np.arange(NUM_BITS, dtype=np.uint32))).astype(np.uint32)
    return made


def alike(prints: Mapping[str, Print]) -> Iterator[tuple[str, str]]:
    """Pairs of clips that hold the same sound, each pair once, in the order of the clips."""
    places: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for name, own in prints.items():
        hits: Counter[tuple[str, int]] = Counter()
        for at, value in enumerate(own.tolist()):
            there = places[value]
            if len(there) <= MOST_PLACES:
                hits.update((other, at - other_at) for other, other_at in there)
        seen: set[str] = set()
        for (other, shift), count in hits.most_common(20):
            if count < LEAST_HITS:
                break
            if other not in seen and _same(own, prints[other], shift):
                seen.add(other)
                yield other, name
        for at, value in enumerate(own.tolist()):
            places[value].append((name, at))


def _same(one: Print, two: Print, shift: int) -> bool:
    """Whether two clips agree in most bits, one of them moved by so many prints, in either half of what they share.

    Two sentences that begin with the same words are the same there, to the very sample if a program says them.
    """
    first, last = max(0, shift), min(len(one), len(two) + shift)
    if last - first < LEAST_SHARED_SECONDS * PRINTS_A_SECOND or last - first < LEAST_SHARED * min(len(one), len(two)):
        return False
    wrong = np.bitwise_count(one[first:last] ^ two[first - shift : last - shift])
    return all(float(half.mean()) <= MOST_WRONG_BITS * NUM_BITS for half in np.array_split(wrong, 2))
