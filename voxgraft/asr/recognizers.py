"""What a listener is. Needs NumPy only."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.features import WaveformLimits, validate_waveform
from voxgraft.audio.files import encode_audio
from voxgraft.core.errors import AudioError, ConfigError, VoxgraftError
from voxgraft.core.files import is_file, is_folder


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard in one wave."""

    text: str
    phones: tuple[str, ...] | None
    """IPA; None where the listener knows no phones."""


class Recognizer(Protocol):
    """Something that writes down what it hears."""

    @property
    def name(self) -> str:
        """As it stands in reports."""

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages it was taught; None where it takes any."""

    @property
    def sample_rate(self) -> int | None:
        """Samples a second that it takes; None where it takes any."""

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """Waves of one channel between -1 and 1, at `rate` samples a second, which it takes; all in one language."""


def open_recognizer(setting: str) -> Recognizer:
    """`built-in`, `built-in:FOLDER`, `whisper:FOLDER`, `whisper:SIZE` or `command:PROGRAM ARGUMENTS {wav}`."""
    kind, _, rest = setting.partition(":")
    if kind == "built-in":
        from voxgraft.asr.builtin import BuiltInRecognizer

        return BuiltInRecognizer.open(Path(rest) if rest else None)
    if kind == "whisper" and rest:
        return WhisperRecognizer(rest)
    if kind == "command" and rest.strip():
        return CommandRecognizer(rest)
    expected = '"built-in", "whisper:FOLDER", "whisper:small" or "command:PROGRAM ARGUMENTS {wav}"'
    raise ConfigError("listener-unknown", f"listener {setting!r}", expected=expected)


WAV_PLACEHOLDER, LANGUAGE_PLACEHOLDER = "{wav}", "{language}"
COMMAND_TIMEOUT_SECONDS = 300
MAX_STDERR_SHOWN = 400


class CommandRecognizer:
    """A command line in which `{wav}` stands for the file and, where it is wanted, `{language}` for the language."""

    languages: frozenset[str] | None = None
    sample_rate: int | None = None

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as fault:
            raise ConfigError("listener-unknown", f"command {command!r}: {fault}") from fault
        if not any(WAV_PLACEHOLDER in word for word in self._words[1:]):
            found = f"command {command!r} has no place for the file"
            raise ConfigError("listener-unknown", found, expected="an argument with {wav} in it")
        self.name = f"command:{command}"
        if shutil.which(self._words[0]) is None:
            raise _recognizer_failed_error(self.name, f"the program {self._words[0]} is not found")

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """What the program prints for each wave, on one line."""
        with tempfile.TemporaryDirectory(prefix="voxgraft-") as folder:
            path = Path(folder) / "speech.wav"
            return [Transcript(self._heard(wave, rate, language, path), None) for wave in waves]

    def _heard(self, wave: NDArray[np.float32], rate: int, language: str, path: Path) -> str:
        write_mono_wav(path, wave, rate)
        words = [
            word.replace(WAV_PLACEHOLDER, str(path)).replace(LANGUAGE_PLACEHOLDER, language) for word in self._words
        ]
        try:
            done = subprocess.run(words, capture_output=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise _recognizer_failed_error(self.name, str(fault)) from fault
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-MAX_STDERR_SHOWN:]
            raise _recognizer_failed_error(self.name, f"it ended with {done.returncode}: {said}")
        try:
            return " ".join(done.stdout.decode().split())
        except UnicodeDecodeError as fault:
            raise _recognizer_failed_error(self.name, f"what it printed is not UTF-8: {fault}") from fault


def write_mono_wav(path: Path, wave: NDArray[np.float32], rate: int) -> None:
    """One channel of 16-bit samples; what lies beyond -1 and 1 is cut."""
    path.write_bytes(encode_audio(validate_waveform(wave, WaveformLimits(rate, min_samples=1)).numpy(), rate))


def _recognizer_failed_error(name: str, found: str) -> VoxgraftError:
    return ConfigError("listener-failed", found, where=name)


WHISPER_PACKAGE = "faster_whisper"
WHISPER_RATE_HZ = 16_000
WHISPER_MODEL_NAME = "model.bin"
WHISPER_LIMITS = WaveformLimits(WHISPER_RATE_HZ, min_samples=WHISPER_RATE_HZ // 20)
WHISPER_SIZES = ("small", "base", "medium", "large-v3-turbo", "large-v3", "tiny")
"""In the order in which one is chosen: `small` reads most languages and still runs on a CPU."""


WHISPER_LANGUAGE_CODES = {"nb": "no", "jv": "jw", "fil": "tl"}
"""Languages that Whisper knows by another code."""


class WhisperRecognizer:
    """One model, with the languages that it says it knows. `model` is a folder or a size such as small."""

    sample_rate: int | None = WHISPER_RATE_HZ

    def __init__(self, model: str) -> None:
        package = _import_whisper()
        folder = Path(model)
        is_local = is_folder(folder)
        if not is_local and (folder.name != model or folder.suffix):
            found = f"{model} is not a folder"
            raise ConfigError("listener-model", found, expected=_expected_whisper_model(), where=folder)
        self.name = f"whisper:{folder.name}"
        if is_local and not is_file(folder / WHISPER_MODEL_NAME):
            found = f"{WHISPER_MODEL_NAME} is not in the folder"
            raise ConfigError("listener-model", found, expected=_expected_whisper_model(), where=folder)
        try:
            self._model: Any = package.WhisperModel(model, compute_type="int8")
        except Exception as fault:  # a size is downloaded, and the download fails in the hub's own ways
            found = f"faster-whisper cannot open {model}: {fault!s:.300}"
            raise ConfigError("listener-model", found, expected=_expected_whisper_model(), where=model) from fault
        known = getattr(self._model, "supported_languages", None)  # older versions do not say
        others = {code for code, own in WHISPER_LANGUAGE_CODES.items() if known is not None and own in known}
        self.languages: frozenset[str] | None = None if known is None else frozenset(known) | others

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """With the package's own fallbacks against loops, each wave for itself."""
        if rate != WHISPER_RATE_HZ:
            raise AudioError("listener-rate", f"{rate:,} Hz", expected=f"{WHISPER_RATE_HZ:,} Hz", where=self.name)
        return [
            Transcript(self._heard(validate_waveform(wave, WHISPER_LIMITS).numpy(), language), None) for wave in waves
        ]

    def _heard(self, wave: NDArray[np.float32], language: str) -> str:
        try:
            code = WHISPER_LANGUAGE_CODES.get(language, language)
            pieces, _ = self._model.transcribe(wave, language=code, condition_on_previous_text=False)
        except ValueError as fault:  # how the package says that it does not know a language
            raise ConfigError("listener-language", f"language {language!r}: {fault!s:.300}", where=self.name) from fault
        return " ".join(" ".join(piece.text for piece in pieces).split())


def is_whisper_installed() -> bool:
    """Whether the package is there; imports nothing."""
    return importlib.util.find_spec(WHISPER_PACKAGE) is not None


def find_downloaded_whisper() -> str | None:
    """A published size that is on this machine already. Nothing is downloaded without being asked for."""
    find = importlib.import_module(f"{WHISPER_PACKAGE}.utils").download_model
    for size in WHISPER_SIZES:
        try:
            return str(find(size, local_files_only=True))
        except Exception:  # noqa: S112 (the hub has many ways to say that a model is not in its cache)
            continue
    return None


def _import_whisper() -> Any:
    try:
        return importlib.import_module(WHISPER_PACKAGE)
    except ImportError as fault:
        cure = "pip install faster-whisper, or name another recogniser: 'command:PROGRAM {wav}'."
        raise ConfigError("package-missing", "faster-whisper is not installed", cure=cure) from fault


def _expected_whisper_model() -> str:
    return f"a folder as faster-whisper takes it, with {WHISPER_MODEL_NAME}, or a size: {', '.join(WHISPER_SIZES)}"
