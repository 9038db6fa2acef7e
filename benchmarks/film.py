"""Films and talks that were never recorded: Amharic speech with pauses, noise and music, and captions for it.

Where every sentence really begins and ends is known, so that cutting can be measured. A film has several voices, and
captions that people time; a talk has one voice, which breathes inside sentences and changes its pace, and captions that
hold several sentences or end wherever a line is full. Needs espeak-ng (`pip install espeakng-loader`), soundfile and
soxr.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxgraft.data.subtitles import Cue
from voxgraft.text.normalize import build_normalizer

RATE_HZ = 24_000
VOICES = ("m1", "m3", "f2", "f4")
LEAST_LOUD = 0.01
"""Speech begins and ends where it is this loud, of its loudest sample."""
MUSIC = "[ሙዚቃ]"
Wave = NDArray[np.float32]
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Said:
    """One sentence of the film: when it is really said, and by whom."""

    text: str
    voice: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Caption:
    """One caption: when it is shown, and which sentences stand in it for the first time."""

    start: float
    end: float
    text: str
    said: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Film:
    """Sound, truth and captions."""

    wave: Wave
    said: list[Said]
    captions: list[Caption]

    def write(self, folder: Path, name: str, ending: str = ".wav") -> tuple[Path, Path]:
        """The media file and its subtitles."""
        folder.mkdir(parents=True, exist_ok=True)
        media, subtitles = folder / f"{name}{ending}", folder / f"{name}.srt"
        with soundfile.SoundFile(media, "w", RATE_HZ, 1) as stream:
            for at in range(0, len(self.wave), RATE_HZ):  # libsndfile breaks down over minutes of Vorbis at once
                stream.write(self.wave[at : at + RATE_HZ])
        subtitles.write_text(self.srt(), encoding="utf-8")
        return media, subtitles

    def srt(self) -> str:
        blocks = [
            f"{number}\n{stamp(caption.start)} --> {stamp(caption.end)}\n{caption.text}\n"
            for number, caption in enumerate(self.captions, 1)
        ]
        return "\n".join(blocks)


def stamp(seconds: float) -> str:
    """A time as SRT writes it."""
    thousandths = max(0, round(seconds * 1000))
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d},{rest % 1000:03d}"


def make_film(num_sentences: int, seed: int, *, rolling: bool = False) -> Film:
    """A film; with `rolling` its captions show the line before again, as live captions do."""
    chance = random.Random(seed)
    sentences = chance.sample(amharic_sentences(), num_sentences)
    sentences[num_sentences // 2] = sentences[num_sentences // 2 - 1]  # really said twice
    pieces: list[Wave] = [_silence(chance.uniform(0.5, 1.5))]
    at, said = len(pieces[0]), []
    music: list[tuple[float, float]] = []
    for text in sentences:
        voice = chance.choice(VOICES)
        wave = _trimmed(speak(text, voice)) * chance.uniform(0.5, 1.0)
        said.append(Said(text, voice, at / RATE_HZ, (at + len(wave)) / RATE_HZ))
        long = chance.random() < 0.12
        pause = chance.uniform(4.0, 6.0) if long else chance.choice((0.25, 0.35, 0.5, 0.8, 1.2, 2.0))
        if long:
            music.append(((at + len(wave)) / RATE_HZ + 1.2, (at + len(wave)) / RATE_HZ + pause - 1.2))
        pieces += [wave, _silence(pause)]
        at += len(wave) + len(pieces[-1])
    film: Wave = np.concatenate(pieces)
    film += np.random.default_rng(seed).normal(0, 0.0012, len(film)).astype(np.float32)
    for start, end in music:
        _add_music(film, start, end)
    captions = _rolling(said, chance) if rolling else _plain(said, music, chance)
    return Film(film, said, captions)


def _plain(said: list[Said], music: list[tuple[float, float]], chance: random.Random) -> list[Caption]:
    """Captions as people time them: a little early or late, standing on after the voice, sometimes over the next."""
    captions = []
    for number, sentence in enumerate(said):
        start = sentence.start + max(-0.4, min(0.4, chance.gauss(0, 0.15)))
        end = sentence.end + chance.uniform(-0.2, 0.6)
        if number + 1 < len(said) and chance.random() < 0.6:
            end = min(end, said[number + 1].start + 0.1)
        captions.append(Caption(max(0.0, start), end, sentence.text, (number,)))
    captions += [Caption(start, end, MUSIC, ()) for start, end in music]
    return sorted(captions, key=lambda caption: caption.start)


def _rolling(said: list[Said], chance: random.Random) -> list[Caption]:
    """Two lines that roll: the old one above, the new one below, and a moment with the old one alone."""
    captions: list[Caption] = []
    for number, sentence in enumerate(said):
        start = max(0.0, sentence.start + chance.gauss(0, 0.1))
        after = said[number + 1].start if number + 1 < len(said) else sentence.end + 0.5
        end = min(after + chance.gauss(0, 0.05), sentence.end + 1.0)
        before = said[number - 1].text + "\n" if number and start - captions[-1].end < 0.3 else ""
        captions.append(Caption(start, max(end, start + 0.3), before + sentence.text, (number,)))
        captions.append(Caption(captions[-1].end, captions[-1].end + 0.01, sentence.text, ()))
    return captions


def _silence(seconds: float) -> Wave:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def _add_music(film: Wave, start: float, end: float) -> None:
    """Chords that swell, about as loud as quiet speech."""
    first, last = round(start * RATE_HZ), round(end * RATE_HZ)
    if last <= first:
        return
    time = np.arange(last - first) / RATE_HZ
    chord = sum(np.sin(2 * np.pi * hertz * time) for hertz in (220.0, 277.2, 329.6, 440.0, 880.0))
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 0.7 * time)
    fade = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.1)
    film[first:last] += (0.03 * chord * swell * fade).astype(np.float32)


def amharic_sentences() -> list[str]:
    """Sentences that ship with the demonstration, those of four to fourteen words."""
    text = resources.files("voxgraft").joinpath("assets/demo/am.txt").read_text(encoding="utf-8")
    return [line for line in dict.fromkeys(text.splitlines()) if 4 <= len(line.split()) <= 14]


def speak(text: str, voice: str) -> Wave:
    """A sentence at RATE_HZ, the loudest sample 0.6."""
    wave = _espeak().speak(text, voice)
    made: Wave = soxr.resample(wave, _espeak().rate_hz, RATE_HZ).astype(np.float32)
    return made * (0.6 / max(1e-6, float(np.abs(made).max())))


@lru_cache(maxsize=1)
def _espeak() -> Espeak:
    return Espeak()


class Espeak:
    """espeak-ng through ctypes; one for a process."""

    def __init__(self) -> None:
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self.rate_hz: int = self._library.espeak_Initialize(2, 0, str(espeakng_loader.get_data_path()).encode(), 0)
        if self.rate_hz <= 0:
            raise RuntimeError("espeak-ng did not start")
        self._pieces: list[NDArray[np.int16]] = []
        self._callback = _Callback(self._take)  # kept: the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int | None) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def speak(self, text: str, voice: str, language: str = "am") -> Wave:
        """A sentence as the voice says it, at `rate_hz`."""
        if self._library.espeak_SetVoiceByName(f"{language}+{voice}".encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {language}+{voice}")
        self._pieces = []
        encoded = text.encode() + b"\0"
        self._library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded)), 0, 1, 0, 1, None, None)
        self._library.espeak_Synchronize()
        values = np.concatenate(self._pieces or [np.zeros(1, np.int16)])
        return (values / 32768).astype(np.float32)


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
    parts = [" ".join(part) for part in (words[:at], words[at:]) if part]
    spoken = [soxr.resample(_trimmed(speak(part, voice)), RATE_HZ, RATE_HZ / pace).astype(np.float32) for part in parts]
    return [spoken[0]] if len(spoken) == 1 else [spoken[0], _silence(chance.uniform(0.15, 0.7)), spoken[1]]


def _trimmed(wave: Wave) -> Wave:
    """From where it is loud to where it no longer is."""
    loud = np.flatnonzero(np.abs(wave) > LEAST_LOUD * np.abs(wave).max())
    return wave[loud[0] : loud[-1] + 1]


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
    wrong_cuts: list[Cue] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    num_rejected: int = 0

    @property
    def wrong(self) -> int:
        return len(self.wrong_cuts)


def pairing(film: Film, cuts: Iterable[Cue], into: Pairing | None = None) -> Pairing:
    """Count clips by whether their sound holds just the sentences, and shares of sentences, that their text does."""
    found = into or Pairing()
    normalise = build_normalizer("am").normalise
    letters = [_letters(normalise(sentence.text).text) for sentence in film.said]
    whole, last = "".join(letters), 0
    for cut in cuts:
        own = _letters(normalise(cut.text).text)
        first = whole.find(own, last)
        last = first + len(own) if first >= 0 else last
        if cut.marks:
            found.rejected.update(cut.marks)
            found.num_rejected += 1
        elif first >= 0 and _is_right(film, letters, cut, (first, last)):
            found.right += 1
        else:
            found.wrong_cuts.append(cut)
    return found


def _letters(text: str) -> str:
    """Without marks: a dash at the head of a caption is taken for a turn, and nobody says it."""
    return "".join(filter(str.isalnum, text))


def _is_right(film: Film, letters: list[str], cut: Cue, place: tuple[int, int]) -> bool:
    at = 0
    for sentence, own in zip(film.said, letters, strict=True):
        inside = max(0.0, min(cut.end, sentence.end) - max(cut.start, sentence.start))
        share = max(0, min(place[1], at + len(own)) - max(place[0], at)) / len(own)
        slack = WRONG_SECONDS if share in (0.0, 1.0) else WORD_SECONDS
        if abs(inside - share * (sentence.end - sentence.start)) > slack:
            return False
        at += len(own)
    return True
