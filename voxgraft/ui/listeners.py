"""Who may listen: the built-in listener, nobody, or a model that lies inside the roots. Never a program."""

from __future__ import annotations

from voxgraft.ui.roots import PathFilter, Roots

WHISPER_FOLDERS = PathFilter(mark="model.bin")
"""A folder of faster-whisper."""


def recognizer_choices(roots: Roots) -> tuple[str, ...]:
    """Words for a setting that names a listener."""
    return ("built-in", "none", *(f"whisper:{folder}" for folder in roots.find(WHISPER_FOLDERS)))
