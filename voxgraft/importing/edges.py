"""The edges of clips: for each pair of neighbouring cues, the pause in which one ends and the next begins.

Cue times are only rough. Neither clip reaches over the middle of its pause, so no word is in two clips or in half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voxgraft.importing.activity import Pause, find_pauses, get_speech_frames
from voxgraft.importing.cues import Cue
from voxgraft.importing.tape import LEVEL_FRAMES_PER_SECOND, RollingAudioBuffer

__all__ = ["AlignedCue", "CutOptions", "align_cues"]

MAX_CUE_OFFSET_SECONDS = 1.2
"""How far the edge of a cue may be off."""
LEVEL_CONTEXT_SECONDS = 8.0
"""Surroundings that loud and soft are judged by."""
GOOD_PAUSE_SECONDS = 0.45
STOP_CONSONANT_SECONDS, STOP_CONSONANT_COST = (0.09, 0.18), 0.5
"""A pause of the first length may be a stop inside a word, which costs so much; one of the second is none."""
OFFSET_COST_PER_SECOND = 2.2
"""What a second away from the cue's own time costs, where a good pause is worth one."""
MIN_TRUNCATION_SECONDS = 0.1
"""A cue that outlasts the recording by more, with speech up to the very end: the rest of it was never recorded."""
LOST_SPEECH_COST_PER_SECOND = 6.0
"""What a second of speech between two cues costs that their times do not explain."""


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How clips are cut. Lengths are in seconds."""

    shortest: float = 1.0
    longest: float = 15.0
    lead: float = 0.10
    tail: float = 0.15
    join_gap: float = 0.6
    refine: bool = True
    """Whether edges are moved to pauses; else the cue's own times are taken, with margins up to the neighbours."""
    language: str = ""
    """By which it is known how long a text takes to say."""


@dataclass(frozen=True, slots=True)
class AlignedCue:
    """A cue with the edges that its clip shall have."""

    cue: Cue
    start: float
    end: float
    has_pause_after: bool = True
    """Whether a pause was found between it and the next."""
    has_pause_before: bool = True
    speech: float = 0.0
    """Seconds of speech between its edges."""


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Where one cue ends and the next begins."""

    end: float
    start: float
    has_pause: bool


def align_cues(tape: RollingAudioBuffer, cues: list[Cue], options: CutOptions) -> Iterator[AlignedCue]:
    """Cues with their edges, in order, as far as the recording goes."""
    start = end = 0.0
    parted = True
    for place, cue in enumerate(cues):
        before = cues[place - 1] if place else None
        after = cues[place + 1] if place + 1 < len(cues) else None
        tape.read_until(
            cue.end + MAX_CUE_OFFSET_SECONDS + LEVEL_CONTEXT_SECONDS / 2,
            keep_from=cue.start - 2 * MAX_CUE_OFFSET_SECONDS,
        )
        if tape.is_exhausted and cue.start - MAX_CUE_OFFSET_SECONDS > tape.seconds:
            # Subtitles of another, longer recording can be many: nothing is looked for where no sound is.
            start, end, parted = cue.start, tape.seconds, True
            yield AlignedCue(cue, start, end)
            continue
        if not _share_boundary(before, cue):
            opening = _find_boundary(tape, None, cue, options)
            start, parted = max(end, opening.start), opening.has_pause
        edge = _find_boundary(tape, cue, after if _share_boundary(cue, after) else None, options)
        end = min(max(start, edge.end), tape.seconds)
        whole = edge.has_pause and not _is_truncated(tape, cue)
        yield AlignedCue(cue, start, end, whole, parted, _speech_seconds(tape, start, end))
        start, parted = edge.start, edge.has_pause


def _share_boundary(one: Cue | None, two: Cue | None) -> bool:
    """Whether two cues share a pause. Where they are far apart, what lies between is nobody's."""
    return one is not None and two is not None and two.start - one.end <= 2 * MAX_CUE_OFFSET_SECONDS


def _find_boundary(tape: RollingAudioBuffer, one: Cue | None, two: Cue | None, options: CutOptions) -> _Boundary:
    """Between two cues; None stands for the beginning or the end of the recording, or a neighbour far away."""
    if not options.refine:
        return _boundary_from_times(one, two, options)
    first = (
        max(one.middle, one.end - MAX_CUE_OFFSET_SECONDS)
        if one
        else max(0.0, _require_cue(two).start - MAX_CUE_OFFSET_SECONDS)
    )
    last = (
        min(two.middle, two.start + MAX_CUE_OFFSET_SECONDS) if two else _require_cue(one).end + MAX_CUE_OFFSET_SECONDS
    )
    best = _best_pauses(_pauses_near(tape, first, max(last, first + 0.05)), one, two)
    if best is None:
        at = _quietest_time(tape, one, two)
        return _Boundary(at, at, False)
    closing, opening = best
    end = min(closing.start + options.tail, closing.middle if closing == opening else closing.end)
    start = max(opening.end - options.lead, opening.middle if closing == opening else opening.start, 0.0)
    return _Boundary(end, start, True)


def _is_truncated(tape: RollingAudioBuffer, cue: Cue) -> bool:
    """Whether the recording ends in the midst of a cue's speech."""
    if not tape.is_exhausted or cue.end <= tape.seconds + MIN_TRUNCATION_SECONDS or cue.start >= tape.seconds:
        return False
    active, _ = get_speech_frames(tape, tape.seconds - LEVEL_CONTEXT_SECONDS, tape.seconds)
    return bool(active[-2:].any())


def _require_cue(cue: Cue | None) -> Cue:
    assert cue is not None
    return cue


def _boundary_from_times(one: Cue | None, two: Cue | None, options: CutOptions) -> _Boundary:
    end = one.end + options.tail if one else 0.0
    start = max(0.0, two.start - options.lead) if two else end
    if one and two and start < end:
        middle = (one.end + two.start) / 2
        end, start = min(end, max(middle, one.end)), max(start, min(middle, two.start))
    return _Boundary(end, start, True)


def _pauses_near(tape: RollingAudioBuffer, first: float, last: float) -> list[Pause]:
    """Pauses that reach into a stretch, judged by its surroundings."""
    around, begins = get_speech_frames(tape, first - LEVEL_CONTEXT_SECONDS, last + LEVEL_CONTEXT_SECONDS / 2)
    found = find_pauses(around, begins)
    if tape.is_exhausted and tape.seconds <= last:  # after the end nobody speaks
        end = begins + len(around) / LEVEL_FRAMES_PER_SECOND
        found = [pause for pause in found if pause.end < end] + [Pause(_last_speech_end(found, end), end + 1.0)]
    if begins == 0.0 and (not found or found[0].start > 0.0):
        found.insert(0, Pause(-1.0, 0.0))
    return [pause for pause in found if pause.end > first and pause.start < last]


def _last_speech_end(found: list[Pause], end: float) -> float:
    return found[-1].start if found and found[-1].end >= end else end


def _best_pauses(pauses: list[Pause], one: Cue | None, two: Cue | None) -> tuple[Pause, Pause] | None:
    """The pause after `one` and the pause before `two`, which are usually the same."""
    if one is None or two is None:
        scored = [(_score_pause(pause, one, two), pause) for pause in pauses]
        chosen = max(scored, key=lambda item: item[0], default=None)
        return (chosen[1], chosen[1]) if chosen else None
    explained = max(0.0, two.start - one.end)
    best: tuple[float, Pause, Pause] | None = None
    for place, closing in enumerate(pauses):
        for opening in pauses[place:]:
            between = max(0.0, opening.start - closing.end)
            score = _score_pause(closing, one, None) + _score_pause(opening, None, two)
            score -= LOST_SPEECH_COST_PER_SECOND * max(0.0, between - explained * 0.8) + (
                0.5 if closing != opening else 0.0
            )
            if best is None or score > best[0]:
                best = score, closing, opening
    return (best[1], best[2]) if best else None


def _score_pause(pause: Pause, one: Cue | None, two: Cue | None) -> float:
    """How well a pause ends one cue or begins the other."""
    away = abs(pause.start - one.end) if one else abs(pause.end - _require_cue(two).start)
    if one and pause.start < one.end < pause.end:  # subtitles stand a little longer than the voice
        away *= 0.4
    shortest, longest = STOP_CONSONANT_SECONDS
    stop = min(1.0, max(0.0, (longest - pause.seconds) / (longest - shortest)))
    return (
        min(pause.seconds, GOOD_PAUSE_SECONDS) / GOOD_PAUSE_SECONDS
        - STOP_CONSONANT_COST * stop
        - OFFSET_COST_PER_SECOND * away
    )


def _quietest_time(tape: RollingAudioBuffer, one: Cue | None, two: Cue | None) -> float:
    """The softest place near the cues' own times, where there is no pause at all."""
    middle = (one.end + two.start) / 2 if one and two else (one.end if one else _require_cue(two).start)
    levels, begins = tape.levels(middle - 0.2, middle + 0.2)
    if not len(levels):
        return middle
    smooth = np.convolve(levels, np.ones(5) / 5, mode="same") if len(levels) >= 5 else levels
    return begins + (int(np.argmin(smooth)) + 0.5) / LEVEL_FRAMES_PER_SECOND


def _speech_seconds(tape: RollingAudioBuffer, start: float, end: float) -> float:
    active, begins = get_speech_frames(tape, start - LEVEL_CONTEXT_SECONDS, end + LEVEL_CONTEXT_SECONDS / 2)
    first, last = (max(0, round((at - begins) * LEVEL_FRAMES_PER_SECOND)) for at in (start, end))
    return float(np.count_nonzero(active[first:last])) / LEVEL_FRAMES_PER_SECOND
