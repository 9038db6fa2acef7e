"""Clips out of a recording: cues with their edges, joined where they are too short and parted where they are too long.

Takes sound from the tape as it goes by; writes no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from voxgraft.importing.activity import active_frames, pauses_of
from voxgraft.importing.cues import Cue
from voxgraft.importing.edges import CutOptions, Placed, placed_cues
from voxgraft.importing.media import Samples
from voxgraft.importing.parting import ENDS_SENTENCE, SENTENCE_END, Stretch, parted
from voxgraft.importing.tape import Tape

__all__ = ["NO_PAUSE", "NO_SPEECH", "OVERLAPPING", "TOO_LONG", "TOO_SHORT", "Cut", "cut_cues"]

NO_SPEECH, NO_PAUSE, OVERLAPPING, TOO_LONG, TOO_SHORT = (
    "no-speech",
    "cut-in-speech",
    "overlapping",
    "over-longest",
    "under-shortest",
)
"""The last two by the limits of the import, which a report does not know and therefore never takes back."""
LEAST_SPEECH_SECONDS = 0.1
PUNCTUATED_SHARE = 0.2
"""Where fewer cues hold the mark that ends a sentence, the lack of a mark says nothing."""
OVERLAP_SHARE = 0.5
MOST_TIMES_LONGEST = 3
"""So much longer than a clip may be is what is joined up to the end of a sentence, to be parted then."""
NEAR_SECONDS = 0.25
"""Where a cue ends inside a sentence, only a pause so near to its time is its own."""
FAR_SECONDS = 6.0
"""Over such a gap nothing is joined."""


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
    if not cues:
        return
    punctuated = sum(bool(SENTENCE_END.search(cue.text)) for cue in cues) >= PUNCTUATED_SHARE * len(cues)
    cues = _with_overlaps(cues)
    group: list[Placed] = []
    for after, placed in zip((*cues[1:], None), placed_cues(tape, cues, options), strict=True):
        if group and not _joins(group, placed, options, punctuated=punctuated):
            if punctuated and _in_doubt(group[-1], placed):
                group[-1] = replace(group[-1], parted_after=False)
                placed = replace(placed, parted_before=False)
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
    unfinished = punctuated and not ENDS_SENTENCE.search(last.cue.text)
    longest = options.longest * (MOST_TIMES_LONGEST if unfinished and options.refine else 1)
    if after.end - first.start > longest or after.start - last.end > options.join_gap:
        return False
    short = min(last.end - first.start, after.end - after.start) < options.shortest
    return unfinished or short or not last.parted_after


def _in_doubt(one: Placed, two: Placed) -> bool:
    """Whether the pause between two cues may be the end of a sentence that ends in the midst of one of them."""
    if ENDS_SENTENCE.search(one.cue.text) or one.cue.speaker != two.cue.speaker:
        return False
    return (
        one.cue.end < one.end - NEAR_SECONDS
        or one.cue.end > two.start + NEAR_SECONDS
        or not (one.end - NEAR_SECONDS <= two.cue.start <= two.start + NEAR_SECONDS)
    )


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
    if group[-1].end - group[0].start <= options.longest or not options.refine:
        yield _cut(tape, group, options)
        return
    if parts := _parted(tape, group, options):
        yield from parts
        return
    run: list[Placed] = []
    for placed in group:
        if run and placed.end - run[0].start > options.longest and not _in_doubt(run[-1], placed):
            yield _cut(tape, run, options)
            run = []
        run.append(placed)
    yield _cut(tape, run, options)


def _cut(tape: Tape, group: list[Placed], options: CutOptions) -> Cut:
    start, end = group[0].start, group[-1].end
    cues = tuple(placed.cue for placed in group)
    text = " ".join(cue.text for cue in cues)
    return Cut(tape.samples(start, end), start, end, text, cues, _reasons(group, options))


def _reasons(group: list[Placed], options: CutOptions) -> tuple[str, ...]:
    found = [mark for placed in group for mark in placed.cue.marks]
    if sum(placed.speech for placed in group) < LEAST_SPEECH_SECONDS:
        found.append(NO_SPEECH)
    if not (group[0].parted_before and group[-1].parted_after):
        found.append(NO_PAUSE)
    found += _length_reasons(group[-1].end - group[0].start, options)
    return tuple(dict.fromkeys(found))


def _length_reasons(seconds: float, options: CutOptions) -> list[str]:
    return [TOO_LONG] if seconds > options.longest else [TOO_SHORT] if seconds < options.shortest else []


def _parted(tape: Tape, group: list[Placed], options: CutOptions) -> list[Cut]:
    """A clip that is too long as several; none if it cannot be parted."""
    start, end = group[0].start, group[-1].end
    cues = tuple(placed.cue for placed in group)
    pauses = pauses_of(*active_frames(tape, start, end))
    cuts = []
    for part in parted(cues, Stretch(start, end, tuple(pauses)), options):
        found = [mark for cue in cues for mark in cue.marks]
        # Between parts there is a pause; the edges of the whole may lie in speech.
        begins_well = part.start > start or group[0].parted_before
        if not (begins_well and (part.end < end or group[-1].parted_after)):
            found.append(NO_PAUSE)
        found += _length_reasons(part.end - part.start, options)
        samples = tape.samples(part.start, part.end)
        cuts.append(Cut(samples, part.start, part.end, part.text, cues, tuple(dict.fromkeys(found))))
    return cuts
