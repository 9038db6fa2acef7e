"""A talk by one voice that breathes inside sentences and changes its pace, with captions that do not go by sentences.

Its captions hold several sentences each, or end wherever a line is full. Where each sentence really is said is known.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import soxr

from benchmarks.made_film import RATE_HZ, VOICES, Caption, Film, Said, Wave, amharic_sentences, speak
from voxgraft.data.segment import AudioSegment
from voxgraft.text.normalize import build_normalizer

BREATH_CHANCE = 0.4
WORDS_A_LINE = (4, 9)
CAPTION_SECONDS = (17.0, 32.0)
WRONG_SECONDS = 0.1
"""So much of a sentence outside its own clip, or of another inside, is a wrong text."""
WORD_SECONDS = 0.5
"""Where a text ends in the midst of a sentence its place is known only by its letters."""


def make_talk(num_sentences: int, seed: int, *, full_lines: bool = False) -> Film:
    """A talk; with `full_lines` captions end in the midst of sentences, else each holds several."""
    chance = random.Random(seed)
    voice = chance.choice(VOICES)
    pieces: list[Wave] = [_silence(1.0)]
    said, words = [], list[_Word]()
    for number, text in enumerate(chance.sample(amharic_sentences(), num_sentences)):
        start = sum(map(len, pieces))
        pieces += _breathing(text, voice, chance)
        end = sum(map(len, pieces))
        said.append(Said(text, voice, start / RATE_HZ, end / RATE_HZ))
        words += _timed_words(number, said[-1])
        pieces.append(_silence(chance.choice((0.2, 0.3, 0.4, 0.6, 0.9))))
    wave: Wave = np.concatenate([*pieces, _silence(1.0)])
    wave += np.random.default_rng(seed).normal(0, 0.0012, len(wave)).astype(np.float32)
    captions = _lines(words, chance) if full_lines else _paragraphs(said, chance)
    return Film(wave, said, list(captions))


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    sentence: int
    start: float
    end: float


def _breathing(text: str, voice: str, chance: random.Random) -> list[Wave]:
    """A sentence at a pace of its own, sometimes with a pause between two of its words."""
    words = text.split()
    at = chance.randrange(1, len(words)) if chance.random() < BREATH_CHANCE else len(words)
    pace = chance.uniform(0.88, 1.14)
    spoken = [_trimmed(speak(" ".join(part), voice), pace) for part in (words[:at], words[at:]) if part]
    return [spoken[0]] if len(spoken) == 1 else [spoken[0], _silence(chance.uniform(0.15, 0.7)), spoken[1]]


def _trimmed(wave: Wave, pace: float) -> Wave:
    loud = np.flatnonzero(np.abs(wave) > 0.01 * np.abs(wave).max())
    made: Wave = soxr.resample(wave[loud[0] : loud[-1] + 1], RATE_HZ, RATE_HZ / pace).astype(np.float32)
    return made


def _silence(seconds: float) -> Wave:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def _timed_words(number: int, sentence: Said) -> Iterator[_Word]:
    """Words with about the time that they take by their letters."""
    words, at = sentence.text.split(), sentence.start
    letter = (sentence.end - sentence.start) / sum(map(len, words))
    for word in words:
        yield _Word(word, number, at, at + len(word) * letter)
        at += len(word) * letter


def _paragraphs(said: list[Said], chance: random.Random) -> Iterator[Caption]:
    first, wanted = 0, chance.uniform(*CAPTION_SECONDS)
    for number, sentence in enumerate(said):
        if sentence.end - said[first].start >= wanted or number + 1 == len(said):
            text = " ".join(one.text for one in said[first : number + 1])
            yield _off(said[first].start, sentence.end, text, range(first, number + 1), chance)
            first, wanted = number + 1, chance.uniform(*CAPTION_SECONDS)


def _lines(words: list[_Word], chance: random.Random) -> Iterator[Caption]:
    at = 0
    while at < len(words):
        line = words[at : at + chance.randint(*WORDS_A_LINE)]
        sentences = sorted({word.sentence for word in line})
        yield _off(line[0].start, line[-1].end, " ".join(word.text for word in line), sentences, chance)
        at += len(line)


def _off(start: float, end: float, text: str, sentences: Iterable[int], chance: random.Random) -> Caption:
    """A caption about as exact as those that people time."""
    return Caption(max(0.0, start + chance.gauss(0, 0.12)), end + chance.uniform(-0.1, 0.2), text, tuple(sentences))


@dataclass(slots=True)
class Pairing:
    """Whether the texts of clips are those of their sound."""

    right: int = 0
    wrong_cuts: list[AudioSegment] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    num_rejected: int = 0

    @property
    def wrong(self) -> int:
        return len(self.wrong_cuts)


def pairing(film: Film, cuts: Iterable[AudioSegment], into: Pairing | None = None) -> Pairing:
    """Count clips by whether their sound holds just the sentences, and shares of sentences, that their text does."""
    found = into or Pairing()
    normalise = build_normalizer("am").normalise
    letters = [_letters(normalise(sentence.text).text) for sentence in film.said]
    whole, last = "".join(letters), 0
    for cut in cuts:
        own = _letters(normalise(cut.text).text)
        first = whole.find(own, last)
        last = first + len(own) if first >= 0 else last
        if cut.reasons:
            found.rejected.update(cut.reasons)
            found.num_rejected += 1
        elif first >= 0 and _is_right(film, letters, cut, (first, last)):
            found.right += 1
        else:
            found.wrong_cuts.append(cut)
    return found


def _letters(text: str) -> str:
    """Without marks: a dash at the head of a caption is taken for a turn, and nobody says it."""
    return "".join(filter(str.isalnum, text))


def _is_right(film: Film, letters: list[str], cut: AudioSegment, place: tuple[int, int]) -> bool:
    at = 0
    for sentence, own in zip(film.said, letters, strict=True):
        inside = max(0.0, min(cut.end, sentence.end) - max(cut.start, sentence.start))
        share = max(0, min(place[1], at + len(own)) - max(place[0], at)) / len(own)
        slack = WRONG_SECONDS if share in (0.0, 1.0) else WORD_SECONDS
        if abs(inside - share * (sentence.end - sentence.start)) > slack:
            return False
        at += len(own)
    return True
