"""Cuts clips out of a recording at the pauses around its cues.

Three steps: `align_cues` moves the edges of every cue to a pause in the audio; cues are joined until a clip is long
enough and a sentence is complete; what is then too long is split at sentence ends (`split_long_segment`). Audio comes
from a `RollingAudioBuffer`, so that a film of hours is never in memory. Writes no files.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from voxgraft.audio.files import AudioSamples
from voxgraft.audio.metrics import (
    LEVEL_FRAMES_PER_SECOND,
    Pause,
    RollingAudioBuffer,
    compute_frame_levels,
    compute_speech_thresholds,
    detect_speech_frames,
    find_pauses,
    get_speech_frames,
)
from voxgraft.core.languages import ABUGIDA_SCRIPTS, SYLLABIC_SCRIPTS, script_of
from voxgraft.data.subtitles import Cue
from voxgraft.text.normalize import build_normalizer
from voxgraft.text.spans import remove_markers

# Subtitles are often off by a second. Pauses further away are not considered.
MAX_CUE_OFFSET_SECONDS = 1.2
# Loud and soft are judged relative to this much surrounding audio.
LEVEL_CONTEXT_SECONDS = 8.0
# Scores of pauses: a pause of GOOD_PAUSE_SECONDS or more is worth 1.
GOOD_PAUSE_SECONDS = 0.45
# A pause of the first length may be the closure of a stop consonant inside a word; one of the second cannot.
STOP_CONSONANT_SECONDS, STOP_CONSONANT_COST = (0.09, 0.18), 0.5
# Cost of a second between a pause and the cue's own time.
OFFSET_COST_PER_SECOND = 2.2
# Cost of a second of speech between two cues that their times do not explain.
LOST_SPEECH_COST_PER_SECOND = 6.0
# A cue that outlasts the recording by more, with speech up to the end, was recorded only in part.
MIN_TRUNCATION_SECONDS = 0.1
SENTENCE_END = re.compile(r"(?:[.!?…።፧፨؟।。！？]|፡፡|::)[\"'”’»)\]]*(?=\s|$)")
ENDS_WITH_SENTENCE = re.compile(SENTENCE_END.pattern + r"\s*$")
_SENTENCE = re.compile(r".+?(?:(?:[.!?…።፧፨؟।。！？]|፡፡|::)+[\"'”’»)\]]*(?=\s|$)|$)", re.DOTALL)
# How far a pause may be from where the letters put the end of a sentence: a share of its cue's speech, and at least.
ALIGNMENT_SLACK_SHARE, ALIGNMENT_SLACK_SECONDS = 0.12, 0.6
# Letters per second of two parts may differ by this factor; beyond it a pause inside a sentence was taken for its end.
MAX_PACE_RATIO = 1.2
MIN_SPLIT_PAUSE_SECONDS = 0.15
SPLIT_EDGE_MARGIN_SECONDS = 0.3
# Weight of an alphabetic letter beside letters that are syllables: Latin names occur in every language.
ALPHABETIC_LETTER_WEIGHT = 0.4
# Reasons to reject a clip.
NO_SPEECH, NO_PAUSE, OVERLAPPING = "no-speech", "cut-in-speech", "overlapping"
NOT_FINITE = "not-finite"
# By the limits of the import. A report does not know these limits and therefore keeps the reasons.
TOO_LONG, TOO_SHORT = "over-longest", "under-shortest"
SPLIT_GAP_REASON = "split-gap"
REJECTION_MEANINGS = {
    NO_SPEECH: "no speech at this time",
    NO_PAUSE: "the start or end cuts through speech",
    OVERLAPPING: "it overlaps another subtitle",
    NOT_FINITE: "samples are NaN or infinite",
    TOO_LONG: "longer than the maximum",
    TOO_SHORT: "shorter than the minimum",
    SPLIT_GAP_REASON: "too near to a held-out part of its recording",
}
MIN_CLIP_SPEECH_SECONDS = 0.1
# If fewer cues contain a mark that ends a sentence, a missing mark says nothing.
MIN_PUNCTUATED_SHARE = 0.2
MIN_CUE_OVERLAP = 0.5
# Up to this multiple of the longest clip is joined to complete a sentence, and split again afterwards.
MAX_JOIN_FACTOR = 3
# Where a cue ends inside a sentence, only a pause this near to its time belongs to it.
MAX_PAUSE_OFFSET_SECONDS = 0.25
MAX_JOIN_GAP_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How clips are cut. Lengths are in seconds."""

    shortest: float = 1.0
    longest: float = 15.0
    lead: float = 0.10
    tail: float = 0.15
    join_gap: float = 0.6
    refine: bool = True
    """Whether edges move to pauses; else the cue's own times count, with margins up to the neighbours."""
    language: str = ""
    """Language of the text, for its length when spoken."""


@dataclass(frozen=True, slots=True)
class _AlignedCue:
    """A cue and where it is spoken: its edges are in pauses, as far as there are some."""

    cue: Cue
    start: float
    end: float
    has_pause_after: bool = True
    """Whether a pause was found between this cue and the next."""
    has_pause_before: bool = True
    speech: float = 0.0
    """Seconds of speech between its edges."""


Segment = tuple[Cue, AudioSamples]
"""A clip as it is cut: the text, lines and marks of all cues that are spoken in it, its own times, and its sound."""


def cut_segments(buffer: RollingAudioBuffer, cues: list[Cue], options: CutOptions) -> Iterator[Segment]:
    """The clips of all cues, in order. Cues after the end of the recording give clips without samples."""
    if not cues:
        return
    punctuated = sum(bool(SENTENCE_END.search(cue.text)) for cue in cues) >= MIN_PUNCTUATED_SHARE * len(cues)
    # Voices that speak at the same time cannot be separated: cues that overlap a neighbour are marked.
    both = {place for place, (one, two) in enumerate(pairwise(cues)) if _cues_overlap(one, two)}
    both |= {place + 1 for place in both}
    cues = [replace(cue, marks=(*cue.marks, OVERLAPPING)) if at in both else cue for at, cue in enumerate(cues)]
    group: list[_AlignedCue] = []
    for after, placed in zip((*cues[1:], None), _align_cues(buffer, cues, options), strict=True):
        if group and not _should_join(group, placed, options, punctuated=punctuated):
            if punctuated and _is_ambiguous_boundary(group[-1], placed):
                group[-1] = replace(group[-1], has_pause_after=False)
                placed = replace(placed, has_pause_before=False)
            yield from _segments_from_group(buffer, group, options)
            group = []
        group.append(placed)
        buffer.pinned_from = group[0].start - 1.0
        if after is None or after.start - placed.end > MAX_JOIN_GAP_SECONDS:  # do not keep audio while an hour passes
            yield from _segments_from_group(buffer, group, options)
            group = []
            buffer.pinned_from = float("inf")


def _should_join(group: list[_AlignedCue], after: _AlignedCue, options: CutOptions, *, punctuated: bool) -> bool:
    """Whether the next cue belongs to the same clip."""
    first, last = group[0], group[-1]
    one, two = last.cue, after.cue
    if one.speaker != two.speaker or one.marks != two.marks or _cues_overlap(one, two):
        return False
    unfinished = punctuated and not ENDS_WITH_SENTENCE.search(one.text)
    longest = options.longest * (MAX_JOIN_FACTOR if unfinished and options.refine else 1)
    if after.end - first.start > longest or after.start - last.end > options.join_gap:
        return False
    short = min(last.end - first.start, after.end - after.start) < options.shortest
    return unfinished or short or not last.has_pause_after


def _is_ambiguous_boundary(one: _AlignedCue, two: _AlignedCue) -> bool:
    """Whether the pause between two cues may belong to a sentence end inside one of them."""
    before, after = one.cue, two.cue
    if ENDS_WITH_SENTENCE.search(before.text) or before.speaker != after.speaker:
        return False
    return (
        before.end < one.end - MAX_PAUSE_OFFSET_SECONDS
        or before.end > two.start + MAX_PAUSE_OFFSET_SECONDS
        or not (one.end - MAX_PAUSE_OFFSET_SECONDS <= after.start <= two.start + MAX_PAUSE_OFFSET_SECONDS)
    )


def _cues_overlap(one: Cue, two: Cue) -> bool:
    """Whether two cues overlap for most of the shorter one: two voices at once."""
    shared = min(one.end, two.end) - max(one.start, two.start)
    return shared > MIN_CUE_OVERLAP * min(one.end - one.start, two.end - two.start)


def _segments_from_group(
    buffer: RollingAudioBuffer, group: list[_AlignedCue], options: CutOptions
) -> Iterator[Segment]:
    """A group of joined cues as one clip, or as several if it is too long."""
    start, end = group[0].start, group[-1].end
    if end - start > options.longest and options.refine:
        cues = [one.cue for one in group]
        pauses = find_pauses(*get_speech_frames(buffer, start, end))
        if parts := split_long_segment(cues, start, end, pauses, options):
            for text, first, last in parts:
                # Between parts there is a pause; the edges of the whole may lie in speech.
                begins_well = first > start or group[0].has_pause_before
                ends_well = last < end or group[-1].has_pause_after
                yield _cut(buffer, first, last, text, cues, [] if begins_well and ends_well else [NO_PAUSE], options)
            return
        # It cannot be split by sentences: fill clips cue by cue.
        run: list[_AlignedCue] = []
        for placed in group:
            if run and placed.end - run[0].start > options.longest and not _is_ambiguous_boundary(run[-1], placed):
                yield _cut_joined(buffer, run, options)
                run = []
            run.append(placed)
        group = run
    yield _cut_joined(buffer, group, options)


def _cut_joined(buffer: RollingAudioBuffer, group: list[_AlignedCue], options: CutOptions) -> Segment:
    cues = [one.cue for one in group]
    reasons = [NO_SPEECH] if sum(one.speech for one in group) < MIN_CLIP_SPEECH_SECONDS else []
    if not (group[0].has_pause_before and group[-1].has_pause_after):
        reasons.append(NO_PAUSE)
    return _cut(buffer, group[0].start, group[-1].end, " ".join(cue.text for cue in cues), cues, reasons, options)


def _cut(
    buffer: RollingAudioBuffer,
    start: float,
    end: float,
    text: str,
    cues: Sequence[Cue],
    found: list[str],
    options: CutOptions,
) -> Segment:
    marks = (*(mark for cue in cues for mark in cue.marks), *found, *length_reasons(end - start, options))
    original_text = "\n".join(cue.original_text or cue.text for cue in cues)
    lines = (cues[0].line, cues[-1].last_line)
    clip = Cue(start, end, text, *lines, cues[0].speaker, original_text, tuple(dict.fromkeys(marks)))
    return clip, buffer.samples(start, end)


def has_speech(samples: AudioSamples, rate: int) -> bool:
    """Whether a clip that was cut before has a sound that may be speech, by the rules for subtitles."""
    levels = compute_frame_levels(samples, rate)
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    return bool(np.count_nonzero(active) >= MIN_CLIP_SPEECH_SECONDS * LEVEL_FRAMES_PER_SECOND)


def length_reasons(seconds: float, options: CutOptions) -> list[str]:
    """Why a clip of this length is rejected."""
    return [TOO_LONG] if seconds > options.longest else [TOO_SHORT] if seconds < options.shortest else []


def _align_cues(buffer: RollingAudioBuffer, cues: list[Cue], options: CutOptions) -> Iterator[_AlignedCue]:
    """Cues with their edges, in order, as far as the recording goes."""
    start = end = 0.0
    has_pause = True
    for place, cue in enumerate(cues):
        before = cues[place - 1] if place else None
        after = cues[place + 1] if place + 1 < len(cues) else None
        buffer.read_until(
            cue.end + MAX_CUE_OFFSET_SECONDS + LEVEL_CONTEXT_SECONDS / 2,
            keep_from=cue.start - 2 * MAX_CUE_OFFSET_SECONDS,
        )
        if buffer.is_exhausted and cue.start - MAX_CUE_OFFSET_SECONDS > buffer.seconds:
            # Subtitles of another, longer recording can be many: skip the search where there is no audio.
            start, end, has_pause = cue.start, buffer.seconds, True
            yield _AlignedCue(cue, start, end)
            continue
        if not _share_boundary(before, cue):
            _, first, has_pause = _find_boundary(buffer, None, cue, options)
            start = max(end, first)
        last, next_start, has_pause_after = _find_boundary(
            buffer, cue, after if _share_boundary(cue, after) else None, options
        )
        before_end, end = end, min(max(start, last), buffer.seconds)
        is_truncated = False
        if buffer.is_exhausted and cue.end > buffer.seconds + MIN_TRUNCATION_SECONDS and cue.start < buffer.seconds:
            active, _ = get_speech_frames(buffer, buffer.seconds - LEVEL_CONTEXT_SECONDS, buffer.seconds)
            is_truncated = bool(active[-2:].any())
        active, begins = get_speech_frames(buffer, start - LEVEL_CONTEXT_SECONDS, end + LEVEL_CONTEXT_SECONDS / 2)
        frames = slice(*(max(0, round((at - begins) * LEVEL_FRAMES_PER_SECOND)) for at in (start, end)))
        speech = float(np.count_nonzero(active[frames])) / LEVEL_FRAMES_PER_SECOND
        if end - start < MIN_CLIP_SPEECH_SECONDS and cue.start < buffer.seconds:
            # In silence the next pause is the whole silence, and both edges land at its end. The cue's own times show
            # what is wrong: there is no speech, although the recording does not end before.
            active, begins = get_speech_frames(buffer, cue.start - LEVEL_CONTEXT_SECONDS, cue.end)
            own = slice(*(max(0, round((at - begins) * LEVEL_FRAMES_PER_SECOND)) for at in (cue.start, cue.end)))
            if not active[own].any():
                start, end = max(before_end, cue.start), min(max(before_end, cue.end), buffer.seconds)
        yield _AlignedCue(
            cue,
            start,
            end,
            has_pause_after=has_pause_after and not is_truncated,
            has_pause_before=has_pause,
            speech=speech,
        )
        start, has_pause = next_start, has_pause_after


def _share_boundary(one: Cue | None, two: Cue | None) -> bool:
    """Whether two cues share a pause. If they are far apart, the audio in between belongs to neither."""
    return one is not None and two is not None and two.start - one.end <= 2 * MAX_CUE_OFFSET_SECONDS


def _find_boundary(
    buffer: RollingAudioBuffer, one: Cue | None, two: Cue | None, options: CutOptions
) -> tuple[float, float, bool]:
    """Where one cue ends, where the next begins, and whether a pause was found there.

    None is the beginning or end of the recording, or a neighbour far away.
    """
    assert one or two
    if not options.refine:
        end = one.end + options.tail if one else 0.0
        start = max(0.0, two.start - options.lead) if two else end
        if one and two and start < end:
            middle = (one.end + two.start) / 2
            end, start = min(end, max(middle, one.end)), max(start, min(middle, two.start))
        return end, start, True
    # Search from the middle of the one to the middle of the other, at most MAX_CUE_OFFSET_SECONDS from their times.
    near_end, near_start = (one.end if one else two.start), (two.start if two else one.end)  # type: ignore[union-attr]
    first = max(one.middle if one else 0.0, near_end - MAX_CUE_OFFSET_SECONDS)
    last = min(two.middle if two else math.inf, near_start + MAX_CUE_OFFSET_SECONDS)
    best = _best_pauses(_pauses_near(buffer, first, max(last, first + 0.05)), one, two)
    if best is None:
        # No pause at all: the quietest place near the cues' own times.
        at = (near_end + near_start) / 2
        levels, begins = buffer.levels(at - 0.2, at + 0.2)
        if len(levels):
            smooth = np.convolve(levels, np.ones(5) / 5, mode="same") if len(levels) >= 5 else levels
            at = begins + (int(np.argmin(smooth)) + 0.5) / LEVEL_FRAMES_PER_SECOND
        return at, at, False
    closing, opening = best
    end = min(closing.start + options.tail, closing.middle if closing == opening else closing.end)
    start = max(opening.end - options.lead, opening.middle if closing == opening else opening.start, 0.0)
    return end, start, True


def _pauses_near(buffer: RollingAudioBuffer, first: float, last: float) -> list[Pause]:
    """Pauses that reach into a span, judged by its surroundings."""
    around, begins = get_speech_frames(buffer, first - LEVEL_CONTEXT_SECONDS, last + LEVEL_CONTEXT_SECONDS / 2)
    found = find_pauses(around, begins)
    if buffer.is_exhausted and buffer.seconds <= last:  # after the end of the recording nobody speaks
        end = begins + len(around) / LEVEL_FRAMES_PER_SECOND
        speech_end = found[-1].start if found and found[-1].end >= end else end
        found = [pause for pause in found if pause.end < end] + [Pause(speech_end, end + 1.0)]
    if begins == 0.0 and (not found or found[0].start > 0.0):
        found.insert(0, Pause(-1.0, 0.0))
    return [pause for pause in found if pause.end > first and pause.start < last]


def _best_pauses(pauses: list[Pause], one: Cue | None, two: Cue | None) -> tuple[Pause, Pause] | None:
    """The pause after `one` and the pause before `two`; they are usually the same."""
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
            score -= LOST_SPEECH_COST_PER_SECOND * max(0.0, between - explained * 0.8)
            score -= 0.5 if closing != opening else 0.0
            if best is None or score > best[0]:
                best = score, closing, opening
    return (best[1], best[2]) if best else None


def _score_pause(pause: Pause, one: Cue | None, two: Cue | None) -> float:
    """How well a pause ends one cue or begins the other."""
    if one:
        offset = abs(pause.start - one.end)
        if pause.start < one.end < pause.end:  # subtitles usually stay a little longer than the voice
            offset *= 0.4
    else:
        assert two is not None
        offset = abs(pause.end - two.start)
    shortest, longest = STOP_CONSONANT_SECONDS
    stop = min(1.0, max(0.0, (longest - pause.seconds) / (longest - shortest)))
    length = min(pause.seconds, GOOD_PAUSE_SECONDS) / GOOD_PAUSE_SECONDS
    return length - STOP_CONSONANT_COST * stop - OFFSET_COST_PER_SECOND * offset


def split_long_segment(
    cues: Sequence[Cue], start: float, end: float, pauses: Sequence[Pause], options: CutOptions
) -> list[tuple[str, float, float]]:
    """The parts of a clip as (text, start, end), none longer than allowed; empty if text and pauses leave a doubt."""

    def speech_until(place: float) -> float:
        """Seconds of speech before a time: a clock that stops during pauses."""
        inside = [pause for pause in pauses if pause.start < place and pause.end > start]
        return place - start - sum(min(place, pause.end) - max(start, pause.start) for pause in inside)

    # Splitting at commas too would give more parts, and more wrong ones: people breathe anywhere in a long sentence.
    pieces = split_sentences(" ".join(cue.text for cue in cues))
    # Letters and seconds of speech at the edges of the cues: in between, speech is taken to be even.
    cue_letters = [0.0, *accumulate(_weigh_letters(cue.text, options.language) for cue in cues)]
    inner = [speech_until((one.end + two.start) / 2) for one, two in pairwise(cues)]
    cue_speech = [0.0, *inner, speech_until(end)]
    letters = [0.0, *accumulate(_weigh_letters(piece, options.language) for piece in pieces)]
    long_pauses = [
        pause
        for pause in pauses
        if pause.start > start + SPLIT_EDGE_MARGIN_SECONDS
        and pause.end < end - SPLIT_EDGE_MARGIN_SECONDS
        and pause.seconds >= MIN_SPLIT_PAUSE_SECONDS
    ]
    # The beginning, every end of a sentence that exactly one pause fits, and the end.
    points: list[_SplitPoint] = [(0, 0.0, 0.0, start, start)]
    final: _SplitPoint = (len(pieces), letters[-1], cue_speech[-1], end, end)
    for count, before in enumerate(letters[1:-1], 1):
        at = min(max(1, bisect_left(cue_letters, before)), len(cue_letters) - 1)
        share = (before - cue_letters[at - 1]) / max(1.0, cue_letters[at] - cue_letters[at - 1])
        spoken = cue_speech[at] - cue_speech[at - 1]
        expected = cue_speech[at - 1] + share * spoken
        slack = max(ALIGNMENT_SLACK_SECONDS, ALIGNMENT_SLACK_SHARE * spoken)
        fitting: list[_SplitPoint] = []
        for pause in long_pauses:
            speech = speech_until(pause.start)
            last, first = min(pause.middle, pause.start + options.tail), max(pause.middle, pause.end - options.lead)
            point = (count, before, speech, last, first)
            if abs(speech - expected) <= slack and _paces_agree([points[0], point, final]):
                fitting.append(point)
        if len(fitting) == 1:
            points.append(fitting[0])
    points.append(final)
    # As few parts as possible, each as long as possible. `point[3] - kept[-1][4]` is the length of a part.
    kept = [points[0]]
    for previous, point in pairwise(points):
        if point[3] - kept[-1][4] > options.longest:
            kept.append(previous)
        if point[3] - kept[-1][4] > options.longest or kept[-1] is final:
            return []
    kept.append(final)
    if not _paces_agree(kept):
        return []
    return [(" ".join(pieces[one[0] : two[0]]), one[4], two[3]) for one, two in pairwise(kept)]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, by the marks that end them; an empty line ends one too."""
    paragraphs = re.split(r"\n\s*\n", text)
    return [
        " ".join(piece.split())
        for part in paragraphs
        for piece in _SENTENCE.findall(part)
        if any(map(str.isalnum, piece))
    ]


_SplitPoint = tuple[int, float, float, float, float]
"""Sentences, letters and seconds of speech before a place; end of the part before it, and start of the part after."""


def _weigh_letters(text: str, language: str) -> float:
    """Letters of a text as it is spoken, with numbers in words, weighted by how long they take."""
    said = [letter for letter in build_normalizer(language).normalise(remove_markers(text)).text if letter.isalnum()]
    scripts = SYLLABIC_SCRIPTS | ABUGIDA_SCRIPTS
    syllables = sum(script_of(letter) in scripts for letter in said)
    return syllables + ALPHABETIC_LETTER_WEIGHT * (len(said) - syllables)


def _paces_agree(bounds: Sequence[_SplitPoint]) -> bool:
    """Whether all parts have about the same number of letters per second."""
    parts = [(two[1] - one[1], two[2] - one[2]) for one, two in pairwise(bounds)]
    if any(letters <= 0 or seconds <= 0 for letters, seconds in parts):
        return False
    paces = [letters / seconds for letters, seconds in parts]
    return max(paces) <= MAX_PACE_RATIO * min(paces)
