"""Whisper as a recogniser, through faster-whisper: a model folder, or a published size. Imports the package late."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.waves import WaveformLimits, validate_waveform
from voxgraft.errors import AudioError, ConfigError
from voxgraft.files import is_file, is_folder
from voxgraft.listening.interface import Transcript

__all__ = ["WhisperRecognizer", "find_downloaded_whisper", "is_whisper_installed"]

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
