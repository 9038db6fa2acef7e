"""faster-whisper as a listener, with a model folder that the user has. The package is imported only here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.waves import Limits, mono_wave
from voxgraft.errors import AudioError, ConfigError
from voxgraft.files import existing_folder, is_file
from voxgraft.listening.interface import Heard

__all__ = ["Whisper"]

RATE_HZ = 16_000
MODEL_NAME = "model.bin"
LIMITS = Limits(RATE_HZ, min_samples=RATE_HZ // 20)


class Whisper:
    """One model, with the languages that it says it knows."""

    sample_rate: int | None = RATE_HZ

    def __init__(self, folder: Path) -> None:
        try:
            package = importlib.import_module("faster_whisper")
        except ImportError as fault:
            cure = "pip install faster-whisper, or listen with the built-in listener."
            raise ConfigError("package-missing", "faster-whisper is not installed", cure=cure) from fault
        self.name = f"whisper:{folder.name}"
        if not is_file(existing_folder(folder) / MODEL_NAME):
            expected = f"a model as faster-whisper takes it, with {MODEL_NAME}"
            raise ConfigError("listener-model", f"{MODEL_NAME} is not in the folder", expected=expected, where=folder)
        try:
            self._model: Any = package.WhisperModel(str(folder), compute_type="int8")
        except (OSError, RuntimeError, ValueError) as fault:
            raise ConfigError("listener-model", f"faster-whisper cannot open it: {fault}", where=folder) from fault
        known = getattr(self._model, "supported_languages", None)  # older versions do not say
        self.languages: frozenset[str] | None = None if known is None else frozenset(known)

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Heard]:
        """With the package's own fallbacks against loops, each wave for itself."""
        if rate != RATE_HZ:
            raise AudioError("listener-rate", f"{rate:,} Hz", expected=f"{RATE_HZ:,} Hz", where=self.name)
        return [Heard(self._heard(mono_wave(wave, LIMITS).numpy(), language), None) for wave in waves]

    def _heard(self, wave: NDArray[np.float32], language: str) -> str:
        try:
            pieces, _ = self._model.transcribe(wave, language=language, condition_on_previous_text=False)
        except ValueError as fault:  # how the package says that it does not know a language
            raise ConfigError("listener-language", f"language {language!r}: {fault!s:.300}", where=self.name) from fault
        return " ".join(" ".join(piece.text for piece in pieces).split())
