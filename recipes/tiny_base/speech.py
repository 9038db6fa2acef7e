"""Speech from text: espeak-ng (English, French, Amharic) and flite (English), called through ctypes, at 16 kHz.

One synthesizer per process, because both libraries have global state.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["ESPEAK_SPEAKERS", "FLITE_SPEAKERS", "RATE_HZ", "Voices"]

RATE_HZ = 16_000
ESPEAK_VOICES = {"en": "en-us", "fr": "fr", "am": "am"}
ESPEAK_SPEAKERS = ("m1", "m3", "f2", "f4")
FLITE_SPEAKERS = ("slt", "rms")
WORDS_PER_MINUTE = 150

RETRIEVAL, SYNCHRONOUS = 1, 2
UTF8 = 1
IPA = 0x02
SEPARATOR = "_"
RATE_PARAMETER = 1
UNSPOKEN_MARKS = str.maketrans("", "", "ˈˌːˑ͡.ʲ‿̩-")
PEAK = 0.6
"""Peak after normalization: the levels of the two programs differ by a factor of three."""

SMOOTH = sorted(2**a * 3**b * 5**c for a in range(12) for b in range(7) for c in range(5) if 2**a * 3**b * 5**c < 4096)
"""Numbers of 20 ms frames with a fast Fourier transform."""

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Voices:
    """All speakers of the recipe, for one process. `packages`: folder written by gather.py."""

    def __init__(self, packages: Path) -> None:
        self._espeak = _Espeak(packages / "espeak")
        self._packages = packages
        self._flite: _Flite | None = None

    @property
    def has_flite(self) -> bool:
        """Whether flite can be loaded here: it is linked to the system's C library."""
        try:
            self._flite = self._flite or _Flite(self._packages / "flite")
        except OSError:
            return False
        return True

    def phones(self, text: str, language: str) -> tuple[str, ...]:
        """IPA of a text, one string per phone, without stress, length and other marks.

        If espeak-ng treats a word as another language's, it marks that with a phone such as `(en)`.
        """
        return self._espeak.phones(text, language)

    def speak(self, text: str, language: str, speaker: str) -> NDArray[np.int16]:
        """The wave at 16 kHz, normalized to PEAK, with at most 40 ms of silence at either end."""
        if speaker in FLITE_SPEAKERS:
            self._flite = self._flite or _Flite(self._packages / "flite")
            wave = self._flite.speak(text, speaker)
        else:
            wave = resampled(self._espeak.speak(text, language, speaker), self._espeak.rate_hz)
        return levelled(trimmed(wave))


class _Espeak:
    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        data = str(folder).encode()
        self.rate_hz: int = self._library.espeak_Initialize(SYNCHRONOUS, 0, data, 0)
        if self.rate_hz <= 0:
            raise RuntimeError(f"espeak-ng did not start with the data in {folder}")
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._pieces: list[NDArray[np.int16]] = []
        self._callback = _Callback(self._take)  # kept: the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)
        self._voice = ""

    def _take(self, samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int | None) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def _choose(self, voice: str) -> None:
        if voice == self._voice:
            return
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(RATE_PARAMETER, WORDS_PER_MINUTE, 0)
        self._voice = voice

    def phones(self, text: str, language: str) -> tuple[str, ...]:
        self._choose(ESPEAK_VOICES[language])
        buffer = ctypes.create_string_buffer(text.encode())
        rest = ctypes.c_void_p(ctypes.addressof(buffer))
        found: list[str] = []
        while rest.value:
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(rest), UTF8, IPA | ord(SEPARATOR) << 8)
            found.extend(clause.decode().replace(" ", SEPARATOR).split(SEPARATOR))
        bare = (phone.translate(UNSPOKEN_MARKS) for phone in found)
        return tuple(phone for phone in bare if phone)

    def speak(self, text: str, language: str, speaker: str) -> NDArray[np.float64]:
        self._choose(f"{ESPEAK_VOICES[language]}+{speaker}")
        self._pieces = []
        encoded = text.encode() + b"\0"
        self._library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded)), 0, 1, 0, UTF8, None, None)
        self._library.espeak_Synchronize()
        return np.concatenate(self._pieces or [np.zeros(1, np.int16)]).astype(np.float64)


class _FliteWave(ctypes.Structure):
    """`cst_wave` of flite 2.2."""

    _fields_ = (
        ("kind", ctypes.c_char_p),
        ("rate_hz", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Flite:
    LIBRARIES = ("libasound.so.2", "libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1")

    def __init__(self, folder: Path) -> None:
        for name in self.LIBRARIES:  # in the order of their dependencies, so that no search path is needed
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(folder / "libflite.so.1"))
        self._library.flite_init()
        self._library.flite_text_to_wave.restype = ctypes.POINTER(_FliteWave)
        self._voices = {name: self._register(folder, name) for name in FLITE_SPEAKERS}

    @staticmethod
    def _register(folder: Path, name: str) -> ctypes.c_void_p:
        register = getattr(ctypes.CDLL(str(folder / f"libflite_cmu_us_{name}.so.1")), f"register_cmu_us_{name}")
        register.restype = ctypes.c_void_p
        return ctypes.c_void_p(register(None))

    def speak(self, text: str, speaker: str) -> NDArray[np.float64]:
        made = self._library.flite_text_to_wave(text.encode("ascii", "ignore"), self._voices[speaker])
        wave = made.contents
        samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).astype(np.float64)
        rate_hz = wave.rate_hz
        self._library.delete_wave(made)
        return resampled(samples, rate_hz)


def resampled(wave: NDArray[np.float64], rate_hz: int) -> NDArray[np.float64]:
    """Resample to 16 kHz by truncating or extending the spectrum, with zero padding for a fast transform."""
    if rate_hz == RATE_HZ:
        return wave
    divisor = int(np.gcd(rate_hz, RATE_HZ))
    per_piece, made = rate_hz // divisor, RATE_HZ // divisor
    needed = -(-(len(wave) + per_piece) // per_piece)
    pieces = next((size for size in SMOOTH if size >= needed), needed)
    spectrum = np.fft.rfft(wave, pieces * per_piece)
    bins = pieces * made // 2 + 1
    spectrum = spectrum[:bins] if len(spectrum) >= bins else np.pad(spectrum, (0, bins - len(spectrum)))
    out = np.fft.irfft(spectrum, pieces * made) * (made / per_piece)
    return out[: -(-len(wave) * made // per_piece)]


def trimmed(wave: NDArray[np.float64], margin_seconds: float = 0.04) -> NDArray[np.float64]:
    """Trim silence at both ends, except a margin. Silence is below 1 % of the peak."""
    loud = np.flatnonzero(np.abs(wave) > 0.01 * np.abs(wave).max(initial=1.0))
    if not len(loud):
        return wave
    margin = int(margin_seconds * RATE_HZ)
    return wave[max(0, loud[0] - margin) : loud[-1] + 1 + margin]


def levelled(wave: NDArray[np.float64]) -> NDArray[np.int16]:
    """Scaled so that the largest sample is PEAK, as 16-bit numbers."""
    scale = PEAK * 32767 / max(1.0, float(np.abs(wave).max(initial=1.0)))
    return np.round(wave * scale).astype(np.int16)
