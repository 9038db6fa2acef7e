"""A run.yaml as a person edits it, every key with its comment, and as a verb's command line reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.config import (
    AnySettings,
    deep_merge,
    format_commented_yaml,
    format_yaml_value,
    parse_settings,
    read_settings_values,
)
from voxgraft.errors import ConfigError
from voxgraft.files import make_path_relative, read_text, write_text
from voxgraft.only_now import diff_settings
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.yaml_files import parse_yaml

__all__ = ["TITLE", "load_command_settings", "rewrite_run_yaml", "set_run_yaml_values", "update_run_yaml"]

TITLE = (
    "What this run is asked for. Every key stands here with its meaning; flags of a command win over this file.\n"
    "Relative paths start at this folder. A key without a value is not set; its comment says what counts then."
)


def rewrite_run_yaml(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file again with other values in its sections. Relative paths start at its folder, as in the file."""
    values = deep_merge(parse_yaml(read_text(path), path), changes)
    settings = parse_settings(RunSettings, _drop_missing_values(values), path)
    write_text(path, format_commented_yaml(settings, TITLE), overwrite=True)


def update_run_yaml(run: RunFolder, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Put the values in which `settings` differ from the file into it; by key what they are now, and what they were."""
    stated = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    changes = diff_settings(settings, stated)
    if changes:
        words = {
            key: format_yaml_value(_make_value_relative(run.path, value)).strip() for key, (value, _) in changes.items()
        }
        set_run_yaml_values(run.path, words)
    return changes


def set_run_yaml_values(run_folder: Path, yaml_values: Mapping[str, str]) -> None:
    """Put new values, each as the YAML text that stands for it, at the lines of their keys. All of them, or none.

    Comments stay, and so does the order of the keys.
    """
    path = run_folder / RUN_FILE
    text = read_text(path)
    before = parse_yaml(text, path) or {}
    after, expected = text, before
    for key, value in yaml_values.items():
        after = _replace_yaml_line(after, key, value)
        section, _, name = key.rpartition(".")
        parsed = parse_yaml(f"value: {value}\n", path)["value"]
        expected = deep_merge(expected, {section: {name: parsed}} if section else {name: parsed})
    try:
        found = parse_yaml(after, path)
    except ConfigError:
        found = None
    # A file that somebody wrote in another form (lists over several lines, sections in braces) is left as it is.
    if found != expected:
        raise ConfigError("ui-keep", f"{', '.join(yaml_values)} cannot be put at one line", where=path)
    parse_settings(RunSettings, _drop_missing_values(found), path)
    write_text(path, after, overwrite=True)


def _replace_yaml_line(text: str, key: str, value: str) -> str:
    *sections, name = key.split(".")
    lines = text.splitlines()
    start, indent = 0, ""
    for section in sections:
        at = _find_yaml_line(lines, start, indent, section)
        if at is None:
            return text + f"\n{section}:\n  {name}: {value}\n"
        start, indent = at + 1, indent + "  "
    at = _find_yaml_line(lines, start, indent, name)
    new = f"{indent}{name}: {value}".rstrip()
    if at is None:
        lines[start:start] = [new]
    else:
        lines[at] = new
    return "\n".join(lines) + "\n"


def _find_yaml_line(lines: list[str], start: int, indent: str, name: str) -> int | None:
    pattern = re.compile(rf"^{indent}{re.escape(name)}:")
    for number in range(start, len(lines)):
        line = lines[number]
        if pattern.match(line):
            return number
        if line.strip() and not line.lstrip().startswith("#") and not line.startswith(indent):
            return None
    return None


def _make_value_relative(folder: Path, value: Any) -> Any:
    """Paths as run.yaml has them."""
    if isinstance(value, tuple):
        return tuple(_make_value_relative(folder, item) for item in value)
    return make_path_relative(folder, value) if isinstance(value, Path) else value


def load_command_settings(kind: type[AnySettings], run: RunFolder, **flags: Any) -> AnySettings:
    """A verb's settings as its command line would have them: what run.yaml says, and flags over it."""
    values = {**read_settings_values(RunSettings, run.settings), "run": run.path}
    return parse_settings(kind, deep_merge(values, flags), run.settings)


def _drop_missing_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given."""
    given = {
        name: _drop_missing_values(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }
    return {name: value for name, value in given.items() if value is not None}
