"""A film that was never shot: Amharic speech of several voices with pauses, noise and music, and captions for it.

Where every sentence really begins and ends is known, so that cutting can be measured. Needs espeak-ng
(`pip install espeakng-loader`), soundfile and soxr.
"""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

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
        wave = speak(text, voice)
        loud = np.flatnonzero(np.abs(wave) > LEAST_LOUD * np.abs(wave).max())
        wave = wave[loud[0] : loud[-1] + 1] * chance.uniform(0.5, 1.0)
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
