"""A run.yaml as a person edits it, every key with its comment, and as a verb's command line reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxgraft.config import (
    AnySettings,
    commented_yaml,
    merged_values,
    read_settings,
    settings_from,
    yaml_value,
)
from voxgraft.errors import ConfigError
from voxgraft.files import read_text, seen_from, write_text
from voxgraft.only_now import differences
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.yaml_files import parse_yaml

__all__ = ["TITLE", "edit_run_yaml", "keep", "set_in_run_yaml", "settings_of"]

TITLE = (
    "What this run is asked for. Every key stands here with its meaning; flags of a command win over this file.\n"
    "Relative paths start at this folder. A key without a value is not set; its comment says what counts then."
)


def edit_run_yaml(path: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file again with other values in its sections. Relative paths start at its folder, as in the file."""
    values = merged_values(parse_yaml(read_text(path), path), changes)
    settings = settings_from(RunSettings, _without_empty(values), path)
    write_text(path, commented_yaml(settings, TITLE), overwrite=True)


def set_in_run_yaml(run: RunFolder, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Put the values in which `settings` differ from the file into it; by key what they are now, and what they were."""
    stated = settings_from(RunSettings, read_settings(RunSettings, run.settings), run.settings)
    changes = differences(settings, stated)
    if changes:
        words = {key: yaml_value(_seen_from(run.path, value)).strip() for key, (value, _) in changes.items()}
        keep(run.path, words)
    return changes


def keep(project: Path, words: Mapping[str, str]) -> None:
    """Put new values, each as the YAML text that stands for it, at the lines of their keys. All of them, or none.

    Comments stay, and so does the order of the keys.
    """
    path = project / RUN_FILE
    text = read_text(path)
    before = parse_yaml(text, path) or {}
    after, expected = text, before
    for key, value in words.items():
        after = _replaced(after, key, value)
        section, _, name = key.rpartition(".")
        parsed = parse_yaml(f"value: {value}\n", path)["value"]
        expected = merged_values(expected, {section: {name: parsed}} if section else {name: parsed})
    try:
        found = parse_yaml(after, path)
    except ConfigError:
        found = None
    # A file that somebody wrote in another form (lists over several lines, sections in braces) is left as it is.
    if found != expected:
        raise ConfigError("ui-keep", f"{', '.join(words)} cannot be put at one line", where=path)
    settings_from(RunSettings, _without_empty(found), path)
    write_text(path, after, overwrite=True)


def _replaced(text: str, key: str, value: str) -> str:
    *sections, name = key.split(".")
    lines = text.splitlines()
    start, indent = 0, ""
    for section in sections:
        at = _line_of(lines, start, indent, section)
        if at is None:
            return text + f"\n{section}:\n  {name}: {value}\n"
        start, indent = at + 1, indent + "  "
    at = _line_of(lines, start, indent, name)
    new = f"{indent}{name}: {value}".rstrip()
    if at is None:
        lines[start:start] = [new]
    else:
        lines[at] = new
    return "\n".join(lines) + "\n"


def _line_of(lines: list[str], start: int, indent: str, name: str) -> int | None:
    pattern = re.compile(rf"^{indent}{re.escape(name)}:")
    for number in range(start, len(lines)):
        line = lines[number]
        if pattern.match(line):
            return number
        if line.strip() and not line.lstrip().startswith("#") and not line.startswith(indent):
            return None
    return None


def _seen_from(folder: Path, value: Any) -> Any:
    """Paths as run.yaml has them."""
    if isinstance(value, tuple):
        return tuple(_seen_from(folder, item) for item in value)
    return seen_from(folder, value) if isinstance(value, Path) else value


def settings_of(kind: type[AnySettings], run: RunFolder, **flags: Any) -> AnySettings:
    """A verb's settings as its command line would have them: what run.yaml says, and flags over it."""
    values = {**read_settings(RunSettings, run.settings), "run": run.path}
    return settings_from(kind, merged_values(values, flags), run.settings)


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given."""
    given = {name: _without_empty(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    return {name: value for name, value in given.items() if value is not None}
