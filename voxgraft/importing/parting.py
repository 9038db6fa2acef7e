"""Where the text and the sound of a clip that is too long can be parted: sentence ends and pauses that agree.

A text with the wrong sound is worse than a clip that is left out, so what is in doubt is not parted. Cuts nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import regex

from voxgraft.importing.activity import Pause
from voxgraft.importing.cues import Cue
from voxgraft.importing.edges import CutOptions
from voxgraft.normalising import Normalizer, build_normalizer

__all__ = ["ENDS_WITH_SENTENCE", "SENTENCE_END", "SpeechSpan", "SplitPart", "split_long_segment"]

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


@lru_cache(maxsize=4)
def _normalizer_for_language(language: str) -> Normalizer:
    return build_normalizer(language)


def _weigh_letters(text: str, language: str) -> float:
    """Letters of a text as it is said, numbers in words, by what each counts for."""
    said = [letter for letter in _normalizer_for_language(language).normalise(text).text if letter.isalnum()]
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
