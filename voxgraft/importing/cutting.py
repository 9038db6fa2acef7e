"""Clips out of a recording: cues with their edges, joined where they are too short and parted where they are too long.

Takes sound from the tape as it goes by; writes no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from voxgraft.importing.activity import find_pauses, get_speech_frames
from voxgraft.importing.cues import Cue
from voxgraft.importing.edges import AlignedCue, CutOptions, align_cues
from voxgraft.importing.media import AudioSamples
from voxgraft.importing.parting import ENDS_WITH_SENTENCE, SENTENCE_END, SpeechSpan, split_long_segment
from voxgraft.importing.tape import RollingAudioBuffer

__all__ = ["NO_PAUSE", "NO_SPEECH", "OVERLAPPING", "TOO_LONG", "TOO_SHORT", "AudioSegment", "cut_segments"]

NO_SPEECH, NO_PAUSE, OVERLAPPING, TOO_LONG, TOO_SHORT = (
    "no-speech",
    "cut-in-speech",
    "overlapping",
    "over-longest",
    "under-shortest",
)
"""The last two by the limits of the import, which a report does not know and therefore never takes back."""
MIN_CLIP_SPEECH_SECONDS = 0.1
MIN_PUNCTUATED_SHARE = 0.2
"""Where fewer cues hold the mark that ends a sentence, the lack of a mark says nothing."""
MIN_CUE_OVERLAP = 0.5
MAX_JOIN_FACTOR = 3
"""So much longer than a clip may be is what is joined up to the end of a sentence, to be parted then."""
MAX_PAUSE_OFFSET_SECONDS = 0.25
"""Where a cue ends inside a sentence, only a pause so near to its time is its own."""
MAX_JOIN_GAP_SECONDS = 6.0
"""Over such a gap nothing is joined."""


@dataclass(frozen=True, slots=True)
class AudioSegment:
    """One clip's sound, with the cues that are said in it."""

    samples: AudioSamples
    start: float
    end: float
    text: str
    cues: tuple[Cue, ...]
    reasons: tuple[str, ...] = ()

    @property
    def original_text(self) -> str:
        return "\n".join(cue.original_text or cue.text for cue in self.cues)


def cut_segments(tape: RollingAudioBuffer, cues: list[Cue], options: CutOptions) -> Iterator[AudioSegment]:
    """Every cue's clip, in order. Cues after the end of the recording give clips without samples."""
    if not cues:
        return
    punctuated = sum(bool(SENTENCE_END.search(cue.text)) for cue in cues) >= MIN_PUNCTUATED_SHARE * len(cues)
    cues = _mark_overlaps(cues)
    group: list[AlignedCue] = []
    for after, placed in zip((*cues[1:], None), align_cues(tape, cues, options), strict=True):
        if group and not _should_join(group, placed, options, punctuated=punctuated):
            if punctuated and _is_ambiguous_boundary(group[-1], placed):
                group[-1] = replace(group[-1], has_pause_after=False)
                placed = replace(placed, has_pause_before=False)
            yield from _segments_from_group(tape, group, options)
            group = []
        group.append(placed)
        tape.pinned_from = group[0].start - 1.0
        if after is None or after.start - placed.end > MAX_JOIN_GAP_SECONDS:  # not kept waiting while an hour goes by
            yield from _segments_from_group(tape, group, options)
            group = []
            tape.pinned_from = float("inf")


def _should_join(group: list[AlignedCue], after: AlignedCue, options: CutOptions, *, punctuated: bool) -> bool:
    """Whether the next cue belongs into the same clip."""
    first, last = group[0], group[-1]
    if last.cue.speaker != after.cue.speaker or last.cue.marks != after.cue.marks or _cues_overlap(last.cue, after.cue):
        return False
    unfinished = punctuated and not ENDS_WITH_SENTENCE.search(last.cue.text)
    longest = options.longest * (MAX_JOIN_FACTOR if unfinished and options.refine else 1)
    if after.end - first.start > longest or after.start - last.end > options.join_gap:
        return False
    short = min(last.end - first.start, after.end - after.start) < options.shortest
    return unfinished or short or not last.has_pause_after


def _is_ambiguous_boundary(one: AlignedCue, two: AlignedCue) -> bool:
    """Whether the pause between two cues may be the end of a sentence that ends in the midst of one of them."""
    if ENDS_WITH_SENTENCE.search(one.cue.text) or one.cue.speaker != two.cue.speaker:
        return False
    return (
        one.cue.end < one.end - MAX_PAUSE_OFFSET_SECONDS
        or one.cue.end > two.start + MAX_PAUSE_OFFSET_SECONDS
        or not (one.end - MAX_PAUSE_OFFSET_SECONDS <= two.cue.start <= two.start + MAX_PAUSE_OFFSET_SECONDS)
    )


def _mark_overlaps(cues: list[Cue]) -> list[Cue]:
    """Cues that stand together with a neighbour are marked: what each voice says cannot be cut apart."""
    both = {place for place, (one, two) in enumerate(pairwise(cues)) if _cues_overlap(one, two)}
    both |= {place + 1 for place in both}
    return [replace(cue, marks=(*cue.marks, OVERLAPPING)) if at in both else cue for at, cue in enumerate(cues)]


def _cues_overlap(one: Cue, two: Cue) -> bool:
    """Whether two cues stand together for most of the shorter one: two voices at once."""
    shared = min(one.end, two.end) - max(one.start, two.start)
    return shared > MIN_CUE_OVERLAP * min(one.end - one.start, two.end - two.start)


def _segments_from_group(
    tape: RollingAudioBuffer, group: list[AlignedCue], options: CutOptions
) -> Iterator[AudioSegment]:
    if group[-1].end - group[0].start <= options.longest or not options.refine:
        yield _build_segment(tape, group, options)
        return
    if parts := _split_long_group(tape, group, options):
        yield from parts
        return
    run: list[AlignedCue] = []
    for placed in group:
        if run and placed.end - run[0].start > options.longest and not _is_ambiguous_boundary(run[-1], placed):
            yield _build_segment(tape, run, options)
            run = []
        run.append(placed)
    yield _build_segment(tape, run, options)


def _build_segment(tape: RollingAudioBuffer, group: list[AlignedCue], options: CutOptions) -> AudioSegment:
    start, end = group[0].start, group[-1].end
    cues = tuple(placed.cue for placed in group)
    text = " ".join(cue.text for cue in cues)
    return AudioSegment(tape.samples(start, end), start, end, text, cues, _segment_reasons(group, options))


def _segment_reasons(group: list[AlignedCue], options: CutOptions) -> tuple[str, ...]:
    found = [mark for placed in group for mark in placed.cue.marks]
    if sum(placed.speech for placed in group) < MIN_CLIP_SPEECH_SECONDS:
        found.append(NO_SPEECH)
    if not (group[0].has_pause_before and group[-1].has_pause_after):
        found.append(NO_PAUSE)
    found += _length_reasons(group[-1].end - group[0].start, options)
    return tuple(dict.fromkeys(found))


def _length_reasons(seconds: float, options: CutOptions) -> list[str]:
    return [TOO_LONG] if seconds > options.longest else [TOO_SHORT] if seconds < options.shortest else []


def _split_long_group(tape: RollingAudioBuffer, group: list[AlignedCue], options: CutOptions) -> list[AudioSegment]:
    """A clip that is too long as several; none if it cannot be parted."""
    start, end = group[0].start, group[-1].end
    cues = tuple(placed.cue for placed in group)
    pauses = find_pauses(*get_speech_frames(tape, start, end))
    cuts = []
    for part in split_long_segment(cues, SpeechSpan(start, end, tuple(pauses)), options):
        found = [mark for cue in cues for mark in cue.marks]
        # Between parts there is a pause; the edges of the whole may lie in speech.
        begins_well = part.start > start or group[0].has_pause_before
        if not (begins_well and (part.end < end or group[-1].has_pause_after)):
            found.append(NO_PAUSE)
        found += _length_reasons(part.end - part.start, options)
        samples = tape.samples(part.start, part.end)
        cuts.append(AudioSegment(samples, part.start, part.end, part.text, cues, tuple(dict.fromkeys(found))))
    return cuts
