"""Clips out of a recording: cues with their edges, joined where they are too short and parted where they are too long.

Takes sound from the tape as it goes by; writes no files.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import regex

from voxgraft.audio.files import AudioSamples
from voxgraft.audio.vad import LEVEL_FRAMES_PER_SECOND, Pause, RollingAudioBuffer, find_pauses, get_speech_frames
from voxgraft.data.subtitles import Cue
from voxgraft.text.normalize import build_normalizer

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


SENTENCE_END = re.compile(r"(?:[.!?…።፧፨؟।。！？]|፡፡|::)[\"'”’»)\]]*(?=\s|$)")
ENDS_WITH_SENTENCE = re.compile(SENTENCE_END.pattern + r"\s*$")
_SENTENCE = re.compile(r".+?(?:(?:[.!?…።፧፨؟।。！？]|፡፡|::)+[\"'”’»)\]]*(?=\s|$)|$)", re.DOTALL)
ALIGNMENT_SLACK_SHARE, ALIGNMENT_SLACK_SECONDS = 0.12, 0.6
"""How far a pause may be from where the letters put the end of a piece: of the speech of its cue, and at least."""
MAX_PACE_RATIO = 1.2
"""Letters a second of two parts may differ by so much: else a pause inside a sentence was taken for its end."""
MIN_SPLIT_PAUSE_SECONDS = 0.15
SPLIT_EDGE_MARGIN_SECONDS = 0.3
ALPHABETIC_LETTER_WEIGHT = 0.4
"""What the letter of an alphabet counts for beside letters that are syllables: Latin names stand in every language."""
_SYLLABIC_CHARACTER = regex.compile(
    r"[\p{Ethiopic}\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}\p{Devanagari}\p{Bengali}\p{Khmer}]"
)


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Some of a clip's text, and where it is said."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SpeechSpan:
    """Sound between two places, with a clock that stands still in its pauses."""

    start: float
    end: float
    pauses: tuple[Pause, ...]

    def speech_until(self, place: float) -> float:
        """Seconds of speech before a place."""
        inside = [pause for pause in self.pauses if pause.start < place and pause.end > self.start]
        return place - self.start - sum(min(place, pause.end) - max(self.start, pause.start) for pause in inside)


@dataclass(frozen=True, slots=True)
class _SplitPoint:
    """A place between two parts: how many pieces, letters and seconds of speech lie before it."""

    pieces: int
    letters: float
    speech: float
    end: float
    """Of the part before; `start` is of the one after."""
    start: float


def split_long_segment(cues: Sequence[Cue], sound: SpeechSpan, options: CutOptions) -> list[SplitPart]:
    """The parts of a clip, none longer than allowed; nothing where text and pauses leave a doubt."""
    # Commas would give more parts, and more wrong ones: breath is taken anywhere in a long sentence.
    text, clock = " ".join(cue.text for cue in cues), _SpeechClock.of(cues, sound, options.language)
    pieces = [piece.strip() for piece in _SENTENCE.findall(text) if piece.strip()]
    bounds = _choose_split_points(_find_split_points(pieces, clock, sound, options), options.longest)
    if not bounds or not _paces_agree(bounds):
        return []
    return [SplitPart(" ".join(pieces[one.pieces : two.pieces]), one.start, two.end) for one, two in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class _SpeechClock:
    """How much speech lies before a letter, as far as the times of the cues say so."""

    letters: tuple[float, ...]
    """At the edges of the cues, and `speech` likewise."""
    speech: tuple[float, ...]

    @classmethod
    def of(cls, cues: Sequence[Cue], sound: SpeechSpan, language: str) -> _SpeechClock:
        inner = [sound.speech_until((one.end + two.start) / 2) for one, two in pairwise(cues)]
        letters = accumulate((_weigh_letters(cue.text, language) for cue in cues), initial=0.0)
        return cls(tuple(letters), (0.0, *inner, sound.speech_until(sound.end)))

    def expected(self, letters: float) -> tuple[float, float]:
        """Seconds of speech before that many letters, and how far that may be off."""
        place = min(max(1, bisect_left(self.letters, letters)), len(self.letters) - 1)
        first, last = self.speech[place - 1], self.speech[place]
        share = (letters - self.letters[place - 1]) / max(1.0, self.letters[place] - self.letters[place - 1])
        return first + share * (last - first), max(ALIGNMENT_SLACK_SECONDS, ALIGNMENT_SLACK_SHARE * (last - first))


def _find_split_points(
    pieces: Sequence[str], clock: _SpeechClock, sound: SpeechSpan, options: CutOptions
) -> list[_SplitPoint]:
    """The beginning, every end of a piece that one pause alone fits to, and the end."""
    letters = [0.0, *accumulate(_weigh_letters(piece, options.language) for piece in pieces)]
    speech = sound.speech_until(sound.end)
    long_ones = [pause for pause in sound.pauses if _is_split_pause(pause, sound)]
    found = [_SplitPoint(0, 0.0, 0.0, sound.start, sound.start)]
    last = _SplitPoint(len(pieces), letters[-1], speech, sound.end, sound.end)
    for count, said in enumerate(letters[1:-1], 1):
        expected, slack = clock.expected(said)
        near = [pause for pause in long_ones if abs(sound.speech_until(pause.start) - expected) <= slack]
        fitting = [
            bound
            for pause in near
            if _paces_agree([found[0], bound := _split_point_at(count, said, pause, sound, options), last])
        ]
        if len(fitting) == 1:
            found.append(fitting[0])
    return [*found, last]


def _split_point_at(pieces: int, letters: float, pause: Pause, sound: SpeechSpan, options: CutOptions) -> _SplitPoint:
    end = min(pause.middle, pause.start + options.tail)
    start = max(pause.middle, pause.end - options.lead)
    return _SplitPoint(pieces, letters, sound.speech_until(pause.start), end, start)


def _is_split_pause(pause: Pause, sound: SpeechSpan) -> bool:
    inside = pause.start > sound.start + SPLIT_EDGE_MARGIN_SECONDS and pause.end < sound.end - SPLIT_EDGE_MARGIN_SECONDS
    return inside and pause.seconds >= MIN_SPLIT_PAUSE_SECONDS


def _weigh_letters(text: str, language: str) -> float:
    """Letters of a text as it is said, numbers in words, by what each counts for."""
    said = [letter for letter in build_normalizer(language).normalise(text).text if letter.isalnum()]
    syllables = sum(bool(_SYLLABIC_CHARACTER.match(letter)) for letter in said)
    return syllables + ALPHABETIC_LETTER_WEIGHT * (len(said) - syllables)


def _paces_agree(bounds: Sequence[_SplitPoint]) -> bool:
    """Whether all parts have about as many letters a second."""
    parts = [(two.letters - one.letters, two.speech - one.speech) for one, two in pairwise(bounds)]
    if any(letters <= 0 or seconds <= 0 for letters, seconds in parts):
        return False
    paces = [letters / seconds for letters, seconds in parts]
    return max(paces) <= MAX_PACE_RATIO * min(paces)


def _choose_split_points(bounds: Sequence[_SplitPoint], longest: float) -> list[_SplitPoint]:
    """As few parts as fit, each as long as it can be; nothing where one alone is too long."""
    kept = [bounds[0]]
    for before, bound in pairwise(bounds):
        if bound.end - kept[-1].start > longest:
            kept.append(before)
        if bound.end - kept[-1].start > longest or kept[-1] is bounds[-1]:
            return []
    return [*kept, bounds[-1]]


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
    found += length_reasons(group[-1].end - group[0].start, options)
    return tuple(dict.fromkeys(found))


def length_reasons(seconds: float, options: CutOptions) -> list[str]:
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
        found += length_reasons(part.end - part.start, options)
        samples = tape.samples(part.start, part.end)
        cuts.append(AudioSegment(samples, part.start, part.end, part.text, cues, tuple(dict.fromkeys(found))))
    return cuts
