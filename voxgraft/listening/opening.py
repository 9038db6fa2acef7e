"""From the setting that a user writes to a listener. Imports a listener's own needs only when it is chosen."""

from __future__ import annotations

from pathlib import Path

from voxgraft.errors import ConfigError
from voxgraft.listening.interface import Listener

__all__ = ["open_listener"]


def open_listener(setting: str) -> Listener:
    """`built-in`, `built-in:FOLDER`, `whisper:FOLDER`, `whisper:SIZE` or `command:PROGRAM ARGUMENTS {wav}`."""
    kind, _, rest = setting.partition(":")
    if kind == "built-in":
        from voxgraft.listening.built_in import BuiltIn

        return BuiltIn.open(Path(rest) if rest else None)
    if kind == "whisper" and rest:
        from voxgraft.listening.whisper import Whisper

        return Whisper(rest)
    if kind == "command" and rest.strip():
        from voxgraft.listening.command import Command

        return Command(rest)
    expected = '"built-in", "whisper:FOLDER", "whisper:small" or "command:PROGRAM ARGUMENTS {wav}"'
    raise ConfigError("listener-unknown", f"listener {setting!r}", expected=expected)
