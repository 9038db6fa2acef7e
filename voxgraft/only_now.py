"""Settings of one call that the run does not remember: flags, and files given with --config, win over run.yaml once.

Compares; writes nothing, since run.yaml is the user's own.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any

from voxgraft.config import leaves, read_settings, settings_from
from voxgraft.files import is_file
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings

__all__ = ["differences", "only_now"]


def only_now(run: RunFolder, settings: RunSettings) -> dict[str, str]:
    """By key, the values that run.yaml has otherwise; as it would have to say them. Nothing where there is no file."""
    if not is_file(run.settings):
        return {}
    stated = settings_from(RunSettings, read_settings(RunSettings, run.settings), run.settings)
    return {key: _shown(now) for key, (now, _) in differences(settings, stated).items()}


def differences(settings: RunSettings, stated: RunSettings) -> dict[str, tuple[Any, Any]]:
    """By key, the values that are not those that are stated: both of them. Two ways to one file are the same."""
    pairs = {leaf.key: (_value(settings, leaf.key), _value(stated, leaf.key)) for leaf in leaves(RunSettings)}
    return {key: (now, then) for key, (now, then) in pairs.items() if _plain(now) != _plain(then)}


def _value(settings: RunSettings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


def _plain(value: Any) -> Any:
    """Two ways to one file are the same."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return os.path.realpath(value) if isinstance(value, Path) else value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    return os.path.abspath(value) if isinstance(value, Path) else str(value)
