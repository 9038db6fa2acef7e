"""Any program as a listener: it is given a wav file and prints what it heard.

The program runs once for every wave, without a shell. What it does beyond printing is its own affair.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.wav import encode_wav
from voxgraft.audio.waves import WaveformLimits, validate_waveform
from voxgraft.errors import ConfigError, VoxgraftError
from voxgraft.listening.interface import Transcript

__all__ = ["CommandRecognizer", "write_mono_wav"]

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
    path.write_bytes(encode_wav(validate_waveform(wave, WaveformLimits(rate, min_samples=1)).numpy(), rate))


def _recognizer_failed_error(name: str, found: str) -> VoxgraftError:
    return ConfigError("listener-failed", found, where=name)
