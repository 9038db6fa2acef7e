"""Whisper as a recogniser, through faster-whisper: a model folder, or a published size. Imports the package late."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.waves import Limits, mono_wave
from voxgraft.errors import AudioError, ConfigError
from voxgraft.files import is_file, is_folder
from voxgraft.listening.interface import Heard

__all__ = ["Whisper", "downloaded_model", "is_installed"]

PACKAGE = "faster_whisper"
RATE_HZ = 16_000
MODEL_NAME = "model.bin"
LIMITS = Limits(RATE_HZ, min_samples=RATE_HZ // 20)
SIZES = ("small", "base", "medium", "large-v3-turbo", "large-v3", "tiny")
"""In the order in which one is chosen: `small` reads most languages and still runs on a CPU."""


CODES = {"nb": "no", "jv": "jw", "fil": "tl"}
"""Languages that Whisper knows by another code."""


class Whisper:
    """One model, with the languages that it says it knows. `model` is a folder or a size such as small."""

    sample_rate: int | None = RATE_HZ

    def __init__(self, model: str) -> None:
        package = _package()
        folder = Path(model)
        is_local = is_folder(folder)
        if not is_local and (folder.name != model or folder.suffix):
            found = f"{model} is not a folder"
            raise ConfigError("listener-model", found, expected=_expected(), where=folder)
        self.name = f"whisper:{folder.name}"
        if is_local and not is_file(folder / MODEL_NAME):
            found = f"{MODEL_NAME} is not in the folder"
            raise ConfigError("listener-model", found, expected=_expected(), where=folder)
        try:
            self._model: Any = package.WhisperModel(model, compute_type="int8")
        except Exception as fault:  # a size is downloaded, and the download fails in the hub's own ways
            found = f"faster-whisper cannot open {model}: {fault!s:.300}"
            raise ConfigError("listener-model", found, expected=_expected(), where=model) from fault
        known = getattr(self._model, "supported_languages", None)  # older versions do not say
        others = {code for code, own in CODES.items() if known is not None and own in known}
        self.languages: frozenset[str] | None = None if known is None else frozenset(known) | others

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Heard]:
        """With the package's own fallbacks against loops, each wave for itself."""
        if rate != RATE_HZ:
            raise AudioError("listener-rate", f"{rate:,} Hz", expected=f"{RATE_HZ:,} Hz", where=self.name)
        return [Heard(self._heard(mono_wave(wave, LIMITS).numpy(), language), None) for wave in waves]

    def _heard(self, wave: NDArray[np.float32], language: str) -> str:
        try:
            code = CODES.get(language, language)
            pieces, _ = self._model.transcribe(wave, language=code, condition_on_previous_text=False)
        except ValueError as fault:  # how the package says that it does not know a language
            raise ConfigError("listener-language", f"language {language!r}: {fault!s:.300}", where=self.name) from fault
        return " ".join(" ".join(piece.text for piece in pieces).split())


def is_installed() -> bool:
    """Whether the package is there; imports nothing."""
    return importlib.util.find_spec(PACKAGE) is not None


def downloaded_model() -> str | None:
    """A published size that is on this machine already. Nothing is downloaded without being asked for."""
    find = importlib.import_module(f"{PACKAGE}.utils").download_model
    for size in SIZES:
        try:
            return str(find(size, local_files_only=True))
        except Exception:  # noqa: S112 (the hub has many ways to say that a model is not in its cache)
            continue
    return None


def _package() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as fault:
        cure = "pip install faster-whisper, or name another recogniser: 'command:PROGRAM {wav}'."
        raise ConfigError("package-missing", "faster-whisper is not installed", cure=cure) from fault


def _expected() -> str:
    return f"a folder as faster-whisper takes it, with {MODEL_NAME}, or a size: {', '.join(SIZES)}"
