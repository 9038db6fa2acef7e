"""From the setting that a user writes to a listener. Imports a listener's own needs only when it is chosen."""

from __future__ import annotations

from pathlib import Path

from voxgraft.errors import ConfigError
from voxgraft.listening.interface import Recognizer

__all__ = ["open_recognizer"]


def open_recognizer(setting: str) -> Recognizer:
    """`built-in`, `built-in:FOLDER`, `whisper:FOLDER`, `whisper:SIZE` or `command:PROGRAM ARGUMENTS {wav}`."""
    kind, _, rest = setting.partition(":")
    if kind == "built-in":
        from voxgraft.listening.built_in import BuiltInRecognizer

        return BuiltInRecognizer.open(Path(rest) if rest else None)
    if kind == "whisper" and rest:
        from voxgraft.listening.whisper import WhisperRecognizer

        return WhisperRecognizer(rest)
    if kind == "command" and rest.strip():
        from voxgraft.listening.command import CommandRecognizer

        return CommandRecognizer(rest)
    expected = '"built-in", "whisper:FOLDER", "whisper:small" or "command:PROGRAM ARGUMENTS {wav}"'
    raise ConfigError("listener-unknown", f"listener {setting!r}", expected=expected)
