"""Settings of one call that the run does not remember: flags, and files given with --config, win over run.yaml once.

Compares; writes nothing, since run.yaml is the user's own.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any

from voxgraft.config import iter_setting_fields, parse_settings, read_settings_values
from voxgraft.files import is_file
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings

__all__ = ["diff_settings", "find_overrides"]


def find_overrides(run: RunFolder, settings: RunSettings) -> dict[str, str]:
    """By key, the values that run.yaml has otherwise; as it would have to say them. Nothing where there is no file."""
    if not is_file(run.settings):
        return {}
    stated = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    return {key: _format_override(now) for key, (now, _) in diff_settings(settings, stated).items()}


def diff_settings(settings: RunSettings, stated: RunSettings) -> dict[str, tuple[Any, Any]]:
    """By key, the values that are not those that are stated: both of them. Two ways to one file are the same."""
    pairs = {
        leaf.key: (_get_setting(settings, leaf.key), _get_setting(stated, leaf.key))
        for leaf in iter_setting_fields(RunSettings)
    }
    return {key: (now, then) for key, (now, then) in pairs.items() if _comparable_value(now) != _comparable_value(then)}


def _get_setting(settings: RunSettings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


def _comparable_value(value: Any) -> Any:
    """Two ways to one file are the same."""
    if isinstance(value, tuple):
        return [_comparable_value(item) for item in value]
    return os.path.realpath(value) if isinstance(value, Path) else value


def _format_override(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_override, value))}]"
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    return os.path.abspath(value) if isinstance(value, Path) else str(value)
