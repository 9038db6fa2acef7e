"""Where somebody speaks: an energy detector over frames of 10 ms that adapts to the noise around it.

Finds pauses, not voices: loud music is speech to it. Knows nothing of texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.tape import LEVEL_FRAMES_PER_SECOND, FrameLevels, RollingAudioBuffer

__all__ = [
    "Pause",
    "compute_speech_thresholds",
    "detect_speech_frames",
    "find_pauses",
    "find_runs",
    "get_speech_frames",
]

DIGITAL_SILENCE_DB = -95.0
"""Zeros that a program has put there: they say nothing of the noise in the rest."""
MIN_SPEECH_DB = -62.0
"""Quieter than this nobody speaks, whatever is around."""
MIN_DYNAMIC_RANGE_DB = 6.0
"""Where loud and soft differ by less, there is no telling."""
MIN_PAUSE_SECONDS = 0.09
"""Stops inside words are shorter."""
MIN_SPEECH_RUN_SECONDS = 0.03
MAX_SOFT_EDGE_SECONDS = 0.3
SPEECH_CACHE_SIZE = 256
MAX_CLICK_SECONDS, CLICK_ISOLATION_SECONDS = 0.08, 0.3
"""A sound so short with so much silence on both sides is a click or a knock: no word is."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A stretch without speech, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


@dataclass(frozen=True, slots=True)
class SpeechThresholds:
    """Levels in dB: above `high` somebody speaks; from there on until it is below `low`."""

    high: float
    low: float


def compute_speech_thresholds(levels: FrameLevels) -> SpeechThresholds:
    """What counts as speech, by how loud and how soft the surroundings are."""
    heard = levels[levels > DIGITAL_SILENCE_DB]
    if len(heard) < 2:
        return SpeechThresholds(MIN_SPEECH_DB, MIN_SPEECH_DB)
    soft, loud = (float(value) for value in np.percentile(heard, (2, 97)))
    if loud - soft < MIN_DYNAMIC_RANGE_DB:
        flat = MIN_SPEECH_DB if loud > MIN_SPEECH_DB + 10 else loud + 1.0
        return SpeechThresholds(flat, flat)
    high = max(MIN_SPEECH_DB, soft + min(14.0, max(4.0, 0.28 * (loud - soft))))
    return SpeechThresholds(high, min(high, max(MIN_SPEECH_DB - 6.0, soft + 4.0)))


def detect_speech_frames(levels: FrameLevels, thresholds: SpeechThresholds) -> NDArray[np.bool_]:
    """Whether each frame is speech: soft ends are kept, short stops are bridged, clicks are not speech."""
    active = _drop_short_runs(levels > thresholds.high, wanted=True, seconds=MIN_SPEECH_RUN_SECONDS)
    active = _extend_soft_edges(_remove_clicks(active), levels > thresholds.low)
    return _drop_short_runs(active, wanted=False, seconds=MIN_PAUSE_SECONDS)


def get_speech_frames(tape: RollingAudioBuffer, start: float, end: float) -> tuple[NDArray[np.bool_], float]:
    """Whether each frame of a stretch is speech, judged by the stretch itself, and where the first of them begins."""
    levels, begins = tape.levels(start, end)
    # Levels never change once measured, so the place says it all. Cues that crowd together ask for the same frames.
    place = round(begins * LEVEL_FRAMES_PER_SECOND), len(levels)
    if (known := tape.judged.get(place)) is not None:
        return known, begins
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    voiced = tape.voice_frames(begins, len(levels))
    if len(tape.judged) >= SPEECH_CACHE_SIZE:
        tape.judged.clear()
    active = tape.judged[place] = active if voiced is None else active & voiced
    return active, begins


def find_pauses(active: NDArray[np.bool_], start: float) -> list[Pause]:
    """The stretches without speech; `start` is where the first frame begins."""
    return [
        Pause(start + first / LEVEL_FRAMES_PER_SECOND, start + last / LEVEL_FRAMES_PER_SECOND)
        for first, last in find_runs(~active)
    ]


def find_runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First place and place after the last of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _extend_soft_edges(active: NDArray[np.bool_], audible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Words begin and end softly: frames next to speech that can still be heard belong to it."""
    made = active.copy()
    most = round(MAX_SOFT_EDGE_SECONDS * LEVEL_FRAMES_PER_SECOND)
    for first, last in find_runs(active):
        before, after = audible[max(0, first - most) : first][::-1], audible[last : last + most]
        made[first - _leading_run_length(before) : first] = True
        made[last : last + _leading_run_length(after)] = True
    return made


def _leading_run_length(flags: NDArray[np.bool_]) -> int:
    """How many are true in a row from the beginning."""
    return int(np.argmin(flags)) if not flags.all() else len(flags)


def _drop_short_runs(flags: NDArray[np.bool_], *, wanted: bool, seconds: float) -> NDArray[np.bool_]:
    made = flags.copy()
    for first, last in find_runs(flags if wanted else ~flags):
        inside = first > 0 and last < len(flags)
        if last - first < seconds * LEVEL_FRAMES_PER_SECOND and inside:
            made[first:last] = not wanted
    return made


def _remove_clicks(active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    made = active.copy()
    found = find_runs(active)
    for place, (first, last) in enumerate(found):
        before = first - found[place - 1][1] if place else len(active)
        after = found[place + 1][0] - last if place + 1 < len(found) else len(active)
        if (
            last - first < MAX_CLICK_SECONDS * LEVEL_FRAMES_PER_SECOND
            and min(before, after) >= CLICK_ISOLATION_SECONDS * LEVEL_FRAMES_PER_SECOND
        ):
            made[first:last] = False
    return made
