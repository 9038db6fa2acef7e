"""A run.yaml as a person edits it, every key with its comment, and as a verb's command line reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.config import AnySettings, commented_yaml, merged_values, read_settings, settings_from
from voxgraft.files import read_text, write_text
from voxgraft.new import TITLE
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.yaml_files import parse_yaml

__all__ = ["edit_run_yaml", "settings_of"]


def edit_run_yaml(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file again with other values in its sections. Relative paths start at its folder, as in the file."""
    values = merged_values(parse_yaml(read_text(path), path), changes)
    settings = settings_from(RunSettings, _without_empty(values), path)
    write_text(path, commented_yaml(settings, TITLE), overwrite=True)


def settings_of(kind: type[AnySettings], run: RunFolder, **flags: Any) -> AnySettings:
    """A verb's settings as its command line would have them: what run.yaml says, and flags over it."""
    values = {**read_settings(RunSettings, run.settings), "run": run.path}
    return settings_from(kind, merged_values(values, flags), run.settings)


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given."""
    given = {name: _without_empty(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    return {name: value for name, value in given.items() if value is not None}
