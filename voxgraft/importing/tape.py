"""The part of a recording that is being looked at: sound that comes in at one end and is forgotten at the other.

Levels of everything heard so far are kept, since they take little room. Decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.media import AudioSamples
from voxgraft.importing.voice_model import SileroVad

__all__ = ["LEVEL_FRAMES_PER_SECOND", "FrameLevels", "RollingAudioBuffer", "compute_frame_levels"]

LEVEL_FRAMES_PER_SECOND = 100
MIN_LEVEL_DB = -100.0
MIN_VOICE_PROBABILITY = 0.3
VOICE_MARGIN_FRAMES = 10
"""The model hears a voice a little late and lets go a little early."""
FrameLevels = NDArray[np.float32]
"""Loudness of frames of 10 ms, in dB below full scale."""


class RollingAudioBuffer:
    """A stream of mono blocks with random access to its newest part."""

    def __init__(self, blocks: Iterator[AudioSamples], rate: int, voice: SileroVad | None = None) -> None:
        self._blocks = blocks
        self._voice = voice
        self.rate = rate
        self._kept: deque[tuple[int, AudioSamples]] = deque()
        self._end = 0
        self._levels = np.zeros(1 << 14, np.float32)
        self._num_levels = 0
        self._rest = np.zeros(0, np.float32)
        self.judged: dict[tuple[int, int], NDArray[np.bool_]] = {}
        """Which frames are speech, by the first one and their number, as far as somebody has asked."""
        self.is_exhausted = False
        self.pinned_from = float("inf")
        """Nothing from this place on is forgotten."""

    @property
    def seconds(self) -> float:
        """How far the recording has been heard."""
        return self._end / self.rate

    @property
    def num_kept(self) -> int:
        """Samples in memory."""
        return sum(len(block) for _, block in self._kept)

    def read_until(self, seconds: float, keep_from: float) -> None:
        """Take in sound up to a place, or to the end; what is before `keep_from` may be forgotten."""
        while self.seconds < seconds and not self.is_exhausted:
            block = next(self._blocks, None)
            if block is None:
                self.is_exhausted = True
                break
            self._kept.append((self._end, block))
            self._end += len(block)
            self._measure(block)
            if self._voice is not None:
                self._voice.hear(block)
            self._forget(min(keep_from, self.pinned_from))

    def samples(self, start: float, end: float) -> AudioSamples:
        """Sound between two places that are kept; shorter where the recording ends."""
        first, last = round(start * self.rate), round(end * self.rate)
        parts = [
            block[max(0, first - at) : max(0, last - at)]
            for at, block in self._kept
            if at < last and at + len(block) > first
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def levels(self, start: float, end: float) -> tuple[FrameLevels, float]:
        """Levels of the frames between two places, and where the first of them begins."""
        first = max(0, int(start * LEVEL_FRAMES_PER_SECOND))
        last = min(self._num_levels, int(np.ceil(end * LEVEL_FRAMES_PER_SECOND)))
        return self._levels[first : max(first, last)], first / LEVEL_FRAMES_PER_SECOND

    def voice_frames(self, start: float, count: int) -> NDArray[np.bool_] | None:
        """Whether a voice is near each of so many frames, where somebody was asked."""
        if self._voice is None or not count:
            return None
        first, reach = round(start * LEVEL_FRAMES_PER_SECOND), VOICE_MARGIN_FRAMES
        chances = self._voice.voice_probabilities(max(0, first - reach), first + count + reach)
        likely = np.pad(chances > MIN_VOICE_PROBABILITY, (reach - min(reach, first), 0))
        near = np.lib.stride_tricks.sliding_window_view(likely, 2 * reach + 1)
        return np.asarray(near.any(axis=1))

    def _measure(self, block: AudioSamples) -> None:
        heard = np.concatenate([self._rest, block])
        made = compute_frame_levels(heard, self.rate)
        self._rest = heard[len(made) * (self.rate // LEVEL_FRAMES_PER_SECOND) :]
        if self._num_levels + len(made) > len(self._levels):
            room = np.zeros(max(2 * len(self._levels), self._num_levels + len(made)), np.float32)
            room[: self._num_levels] = self._levels[: self._num_levels]
            self._levels = room
        self._levels[self._num_levels : self._num_levels + len(made)] = made
        self._num_levels += len(made)

    def _forget(self, seconds: float) -> None:
        first = seconds * self.rate
        while self._kept and self._kept[0][0] + len(self._kept[0][1]) < first:
            self._kept.popleft()


def compute_frame_levels(samples: AudioSamples, rate: int) -> FrameLevels:
    """Loudness of every whole frame. Low hum counts for little: differences of neighbours are measured."""
    size = max(1, rate // LEVEL_FRAMES_PER_SECOND)
    count = len(samples) // size
    if not count:
        return np.zeros(0, np.float32)
    whole = samples[: count * size]
    # Divided by the usual step of speech between samples at 16 kHz, so that levels stay comparable between rates.
    steps = np.diff(whole, prepend=whole[:1]) * np.float32(rate / 16_000)
    power = np.square(steps).reshape(count, size).mean(axis=1)
    made: FrameLevels = np.maximum(10.0 * np.log10(power + 1e-12), MIN_LEVEL_DB).astype(np.float32)
    return made
