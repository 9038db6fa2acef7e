"""Clips out of a recording: cues with their edges, joined where they are too short and parted where they are too long.

Takes sound from the tape as it goes by; writes no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from voxgraft.importing.activity import Pause, active_frames, pauses_of
from voxgraft.importing.cues import Cue
from voxgraft.importing.edges import CutOptions, Placed, placed_cues
from voxgraft.importing.media import Samples
from voxgraft.importing.tape import Tape

__all__ = ["NO_PAUSE", "NO_SPEECH", "OVERLAPPING", "TOO_LONG", "TOO_SHORT", "Cut", "cut_cues"]

NO_SPEECH, NO_PAUSE, OVERLAPPING, TOO_LONG, TOO_SHORT = (
    "no-speech",
    "cut-in-speech",
    "overlapping",
    "too-long",
    "too-short",
)
LEAST_SPEECH_SECONDS = 0.1
PUNCTUATED_SHARE = 0.2
"""Where fewer cues end a sentence by a mark, the lack of a mark says nothing."""
OVERLAP_SHARE = 0.5
FAR_SECONDS = 6.0
"""Over such a gap nothing is joined."""
_ENDS_SENTENCE = re.compile(r"(?:[.!?…።፧፨؟।。！？]|፡፡|::)[\"'”’»)\]]*$")
_SENTENCE = re.compile(r".+?(?:(?:[.!?…።፧፨؟।。！？]|፡፡|::)+[\"'”’»)\]]*(?=\s|$)|$)", re.DOTALL)
_PHRASE = re.compile(r".+?(?:[,;፣፤፥፦،:—]+(?=\s|$)|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cut:
    """One clip's sound, with the cues that are said in it."""

    samples: Samples
    start: float
    end: float
    text: str
    cues: tuple[Cue, ...]
    reasons: tuple[str, ...] = ()

    @property
    def as_found(self) -> str:
        return "\n".join(cue.as_found or cue.text for cue in self.cues)


def cut_cues(tape: Tape, cues: list[Cue], options: CutOptions) -> Iterator[Cut]:
    """Every cue's clip, in order. Cues after the end of the recording give clips without samples."""
    punctuated = sum(bool(_ENDS_SENTENCE.search(cue.text)) for cue in cues) >= PUNCTUATED_SHARE * len(cues)
    cues = _with_overlaps(cues)
    group: list[Placed] = []
    for after, placed in zip((*cues[1:], None), placed_cues(tape, cues, options), strict=True):
        if group and not _joins(group, placed, options, punctuated=punctuated):
            yield from _clips(tape, group, options)
            group = []
        group.append(placed)
        tape.hold = group[0].start - 1.0
        if after is None or after.start - placed.end > FAR_SECONDS:  # not kept waiting while an hour goes by
            yield from _clips(tape, group, options)
            group = []
            tape.hold = float("inf")


def _joins(group: list[Placed], after: Placed, options: CutOptions, *, punctuated: bool) -> bool:
    """Whether the next cue belongs into the same clip."""
    first, last = group[0], group[-1]
    if last.cue.speaker != after.cue.speaker or last.cue.marks != after.cue.marks or _overlap(last.cue, after.cue):
        return False
    if after.end - first.start > options.longest or after.start - last.end > options.join_gap:
        return False
    unfinished = punctuated and not _ENDS_SENTENCE.search(last.cue.text)
    short = min(last.end - first.start, after.end - after.start) < options.shortest
    return unfinished or short or not last.parted_after


def _with_overlaps(cues: list[Cue]) -> list[Cue]:
    """Cues that stand together with a neighbour are marked: what each voice says cannot be cut apart."""
    both = {place for place, (one, two) in enumerate(pairwise(cues)) if _overlap(one, two)}
    both |= {place + 1 for place in both}
    return [replace(cue, marks=(*cue.marks, OVERLAPPING)) if at in both else cue for at, cue in enumerate(cues)]


def _overlap(one: Cue, two: Cue) -> bool:
    """Whether two cues stand together for most of the shorter one: two voices at once."""
    shared = min(one.end, two.end) - max(one.start, two.start)
    return shared > OVERLAP_SHARE * min(one.end - one.start, two.end - two.start)


def _clips(tape: Tape, group: list[Placed], options: CutOptions) -> Iterator[Cut]:
    start, end = group[0].start, group[-1].end
    if end - start > options.longest and options.refine:
        parts = _parted(tape, group, options)
        if parts:
            yield from parts
            return
    yield _cut(tape, group, options)


def _cut(tape: Tape, group: list[Placed], options: CutOptions) -> Cut:
    start, end = group[0].start, group[-1].end
    cues = tuple(placed.cue for placed in group)
    text = " ".join(cue.text for cue in cues)
    return Cut(tape.samples(start, end), start, end, text, cues, _reasons(group, options))


def _reasons(group: list[Placed], options: CutOptions) -> tuple[str, ...]:
    found = [mark for placed in group for mark in placed.cue.marks]
    seconds = group[-1].end - group[0].start
    if sum(placed.speech for placed in group) < LEAST_SPEECH_SECONDS:
        found.append(NO_SPEECH)
    if not group[-1].parted_after:
        found.append(NO_PAUSE)
    if seconds > options.longest:
        found.append(TOO_LONG)
    if seconds < options.shortest:
        found.append(TOO_SHORT)
    return tuple(dict.fromkeys(found))


def _parted(tape: Tape, group: list[Placed], options: CutOptions) -> list[Cut]:
    """A clip that is too long as several, by sentences and pauses that agree; none if they do not."""
    start, end = group[0].start, group[-1].end
    text = " ".join(placed.cue.text for placed in group)
    pauses = _inner_pauses(tape, start, end)
    for pattern in (_SENTENCE, _PHRASE):
        pieces = [piece.strip() for piece in pattern.findall(text) if piece.strip()]
        places = _agreeing(pieces, pauses, start, end)
        if places is None:
            continue
        starts = [start, *(max(pause.middle, pause.end - options.lead) for pause in places)]
        ends = [*(min(pause.middle, pause.start + options.tail) for pause in places), end]
        bounds = _packed(starts, ends, options.longest)
        if bounds is not None:
            cues = tuple(placed.cue for placed in group)
            marks = tuple(dict.fromkeys(mark for cue in cues for mark in cue.marks))
            return [
                Cut(
                    tape.samples(starts[first], ends[last]),
                    starts[first],
                    ends[last],
                    " ".join(pieces[first : last + 1]),
                    cues,
                    marks,
                )
                for first, last in bounds
            ]
    return []


def _inner_pauses(tape: Tape, start: float, end: float) -> list[Pause]:
    found = pauses_of(*active_frames(tape, start, end))
    return [pause for pause in found if pause.start > start + 0.3 and pause.end < end - 0.3 and pause.seconds >= 0.15]


def _agreeing(pieces: list[str], pauses: list[Pause], start: float, end: float) -> list[Pause] | None:
    """For each end of a piece the pause near its place by the number of letters; None if one has none."""
    total, said, chosen = sum(map(len, pieces)), 0, []
    slack = max(0.6, 0.12 * (end - start))
    for piece in pieces[:-1]:
        said += len(piece)
        at = start + (end - start) * said / total
        near = [pause for pause in pauses if abs(pause.middle - at) <= slack and pause not in chosen]
        if not near:
            return None
        chosen.append(max(near, key=lambda pause: pause.seconds - abs(pause.middle - at) / slack * 0.3))
    in_order = all(one.end < two.start for one, two in pairwise(chosen))
    return chosen if chosen and in_order else None


def _packed(starts: list[float], ends: list[float], longest: float) -> list[tuple[int, int]] | None:
    """Pieces put together, as many as fit: the first and the last of each; None if one alone is too long."""
    bounds: list[tuple[int, int]] = []
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end - start > longest:
            return None
        if bounds and end - starts[bounds[-1][0]] <= longest:
            bounds[-1] = bounds[-1][0], place
        else:
            bounds.append((place, place))
    return bounds
