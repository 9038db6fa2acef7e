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
from voxgraft.normalising import Normaliser, normaliser_of

__all__ = ["ENDS_SENTENCE", "SENTENCE_END", "Part", "Stretch", "parted"]

SENTENCE_END = re.compile(r"(?:[.!?…።፧፨؟।。！？]|፡፡|::)[\"'”’»)\]]*(?=\s|$)")
ENDS_SENTENCE = re.compile(SENTENCE_END.pattern + r"\s*$")
_SENTENCE = re.compile(r".+?(?:(?:[.!?…።፧፨؟।。！？]|፡፡|::)+[\"'”’»)\]]*(?=\s|$)|$)", re.DOTALL)
SLACK_SHARE, SLACK_SECONDS = 0.12, 0.6
"""How far a pause may be from where the letters put the end of a piece: of the speech of its cue, and at least."""
PACES_APART = 1.2
"""Letters a second of two parts may differ by so much: else a pause inside a sentence was taken for its end."""
LEAST_PAUSE_SECONDS = 0.15
EDGE_SECONDS = 0.3
SOUND_LETTER = 0.4
"""What the letter of an alphabet counts for beside letters that are syllables: Latin names stand in every language."""
_SYLLABLES = regex.compile(r"[\p{Ethiopic}\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}\p{Devanagari}\p{Bengali}\p{Khmer}]")


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a clip's text, and where it is said."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sound between two places, with a clock that stands still in its pauses."""

    start: float
    end: float
    pauses: tuple[Pause, ...]

    def speech_until(self, place: float) -> float:
        """Seconds of speech before a place."""
        inside = [pause for pause in self.pauses if pause.start < place and pause.end > self.start]
        return place - self.start - sum(min(place, pause.end) - max(self.start, pause.start) for pause in inside)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A place between two parts: how many pieces, letters and seconds of speech lie before it."""

    pieces: int
    letters: float
    speech: float
    end: float
    """Of the part before; `start` is of the one after."""
    start: float


def parted(cues: Sequence[Cue], sound: Stretch, options: CutOptions) -> list[Part]:
    """The parts of a clip, none longer than allowed; nothing where text and pauses leave a doubt."""
    # Commas would give more parts, and more wrong ones: breath is taken anywhere in a long sentence.
    text, clock = " ".join(cue.text for cue in cues), _Clock.of(cues, sound, options.language)
    pieces = [piece.strip() for piece in _SENTENCE.findall(text) if piece.strip()]
    bounds = _packed(_bounds(pieces, clock, sound, options), options.longest)
    if not bounds or not _paces_agree(bounds):
        return []
    return [Part(" ".join(pieces[one.pieces : two.pieces]), one.start, two.end) for one, two in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class _Clock:
    """How much speech lies before a letter, as far as the times of the cues say so."""

    letters: tuple[float, ...]
    """At the edges of the cues, and `speech` likewise."""
    speech: tuple[float, ...]

    @classmethod
    def of(cls, cues: Sequence[Cue], sound: Stretch, language: str) -> _Clock:
        inner = [sound.speech_until((one.end + two.start) / 2) for one, two in pairwise(cues)]
        letters = accumulate((_num_letters(cue.text, language) for cue in cues), initial=0.0)
        return cls(tuple(letters), (0.0, *inner, sound.speech_until(sound.end)))

    def expected(self, letters: float) -> tuple[float, float]:
        """Seconds of speech before that many letters, and how far that may be off."""
        place = min(max(1, bisect_left(self.letters, letters)), len(self.letters) - 1)
        first, last = self.speech[place - 1], self.speech[place]
        share = (letters - self.letters[place - 1]) / max(1.0, self.letters[place] - self.letters[place - 1])
        return first + share * (last - first), max(SLACK_SECONDS, SLACK_SHARE * (last - first))


def _bounds(pieces: Sequence[str], clock: _Clock, sound: Stretch, options: CutOptions) -> list[_Bound]:
    """The beginning, every end of a piece that one pause alone fits to, and the end."""
    letters = [0.0, *accumulate(_num_letters(piece, options.language) for piece in pieces)]
    speech = sound.speech_until(sound.end)
    long_ones = [pause for pause in sound.pauses if _is_inside(pause, sound)]
    found = [_Bound(0, 0.0, 0.0, sound.start, sound.start)]
    last = _Bound(len(pieces), letters[-1], speech, sound.end, sound.end)
    for count, said in enumerate(letters[1:-1], 1):
        expected, slack = clock.expected(said)
        near = [pause for pause in long_ones if abs(sound.speech_until(pause.start) - expected) <= slack]
        fitting = [
            bound
            for pause in near
            if _paces_agree([found[0], bound := _bound(count, said, pause, sound, options), last])
        ]
        if len(fitting) == 1:
            found.append(fitting[0])
    return [*found, last]


def _bound(pieces: int, letters: float, pause: Pause, sound: Stretch, options: CutOptions) -> _Bound:
    end = min(pause.middle, pause.start + options.tail)
    start = max(pause.middle, pause.end - options.lead)
    return _Bound(pieces, letters, sound.speech_until(pause.start), end, start)


def _is_inside(pause: Pause, sound: Stretch) -> bool:
    inside = pause.start > sound.start + EDGE_SECONDS and pause.end < sound.end - EDGE_SECONDS
    return inside and pause.seconds >= LEAST_PAUSE_SECONDS


@lru_cache(maxsize=4)
def _normaliser(language: str) -> Normaliser:
    return normaliser_of(language)


def _num_letters(text: str, language: str) -> float:
    """Letters of a text as it is said, numbers in words, by what each counts for."""
    said = [letter for letter in _normaliser(language).normalise(text).text if letter.isalnum()]
    syllables = sum(bool(_SYLLABLES.match(letter)) for letter in said)
    return syllables + SOUND_LETTER * (len(said) - syllables)


def _paces_agree(bounds: Sequence[_Bound]) -> bool:
    """Whether all parts have about as many letters a second."""
    parts = [(two.letters - one.letters, two.speech - one.speech) for one, two in pairwise(bounds)]
    if any(letters <= 0 or seconds <= 0 for letters, seconds in parts):
        return False
    paces = [letters / seconds for letters, seconds in parts]
    return max(paces) <= PACES_APART * min(paces)


def _packed(bounds: Sequence[_Bound], longest: float) -> list[_Bound]:
    """As few parts as fit, each as long as it can be; nothing where one alone is too long."""
    kept = [bounds[0]]
    for before, bound in pairwise(bounds):
        if bound.end - kept[-1].start > longest:
            kept.append(before)
        if bound.end - kept[-1].start > longest or kept[-1] is bounds[-1]:
            return []
    return [*kept, bounds[-1]]
