"""Where somebody speaks: an energy detector over frames of 10 ms that adapts to the noise around it.

Finds pauses, not voices: loud music is speech to it. Knows nothing of texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxgraft.importing.tape import FRAMES_A_SECOND, Levels, Tape

__all__ = ["Pause", "active_frames", "pauses_of", "runs", "speech_frames", "thresholds_of"]

NOTHING_DB = -95.0
"""Zeros that a program has put there: they say nothing of the noise in the rest."""
SILENT_DB = -62.0
"""Quieter than this nobody speaks, whatever is around."""
FLAT_DB = 6.0
"""Where loud and soft differ by less, there is no telling."""
SHORTEST_PAUSE_SECONDS = 0.09
"""Stops inside words are shorter."""
SHORTEST_SOUND_SECONDS = 0.03
SOFT_END_SECONDS = 0.3
MOST_JUDGED = 256
CLICK_SECONDS, ALONE_SECONDS = 0.08, 0.3
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
class Thresholds:
    """Levels in dB: above `high` somebody speaks; from there on until it is below `low`."""

    high: float
    low: float


def thresholds_of(levels: Levels) -> Thresholds:
    """What counts as speech, by how loud and how soft the surroundings are."""
    heard = levels[levels > NOTHING_DB]
    if len(heard) < 2:
        return Thresholds(SILENT_DB, SILENT_DB)
    soft, loud = (float(value) for value in np.percentile(heard, (2, 97)))
    if loud - soft < FLAT_DB:
        flat = SILENT_DB if loud > SILENT_DB + 10 else loud + 1.0
        return Thresholds(flat, flat)
    high = max(SILENT_DB, soft + min(14.0, max(4.0, 0.28 * (loud - soft))))
    return Thresholds(high, min(high, max(SILENT_DB - 6.0, soft + 4.0)))


def speech_frames(levels: Levels, thresholds: Thresholds) -> NDArray[np.bool_]:
    """Whether each frame is speech: soft ends are kept, short stops are bridged, clicks are not speech."""
    active = _without_short(levels > thresholds.high, wanted=True, seconds=SHORTEST_SOUND_SECONDS)
    active = _with_soft_ends(_without_clicks(active), levels > thresholds.low)
    return _without_short(active, wanted=False, seconds=SHORTEST_PAUSE_SECONDS)


def active_frames(tape: Tape, start: float, end: float) -> tuple[NDArray[np.bool_], float]:
    """Whether each frame of a stretch is speech, judged by the stretch itself, and where the first of them begins."""
    levels, begins = tape.levels(start, end)
    # Levels never change once measured, so the place says it all. Cues that crowd together ask for the same frames.
    place = round(begins * FRAMES_A_SECOND), len(levels)
    if (known := tape.judged.get(place)) is not None:
        return known, begins
    active = speech_frames(levels, thresholds_of(levels))
    voiced = tape.voiced(begins, len(levels))
    if len(tape.judged) >= MOST_JUDGED:
        tape.judged.clear()
    active = tape.judged[place] = active if voiced is None else active & voiced
    return active, begins


def pauses_of(active: NDArray[np.bool_], start: float) -> list[Pause]:
    """The stretches without speech; `start` is where the first frame begins."""
    return [Pause(start + first / FRAMES_A_SECOND, start + last / FRAMES_A_SECOND) for first, last in runs(~active)]


def runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First place and place after the last of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _with_soft_ends(active: NDArray[np.bool_], audible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Words begin and end softly: frames next to speech that can still be heard belong to it."""
    made = active.copy()
    most = round(SOFT_END_SECONDS * FRAMES_A_SECOND)
    for first, last in runs(active):
        before, after = audible[max(0, first - most) : first][::-1], audible[last : last + most]
        made[first - _length(before) : first] = True
        made[last : last + _length(after)] = True
    return made


def _length(flags: NDArray[np.bool_]) -> int:
    """How many are true in a row from the beginning."""
    return int(np.argmin(flags)) if not flags.all() else len(flags)


def _without_short(flags: NDArray[np.bool_], *, wanted: bool, seconds: float) -> NDArray[np.bool_]:
    made = flags.copy()
    for first, last in runs(flags if wanted else ~flags):
        inside = first > 0 and last < len(flags)
        if last - first < seconds * FRAMES_A_SECOND and inside:
            made[first:last] = not wanted
    return made


def _without_clicks(active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    made = active.copy()
    found = runs(active)
    for place, (first, last) in enumerate(found):
        before = first - found[place - 1][1] if place else len(active)
        after = found[place + 1][0] - last if place + 1 < len(found) else len(active)
        if last - first < CLICK_SECONDS * FRAMES_A_SECOND and min(before, after) >= ALONE_SECONDS * FRAMES_A_SECOND:
            made[first:last] = False
    return made
