"""Writing values into a run.yaml that a form has changed, so that they count from then on. Comments stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from voxgraft.config import merged_values, settings_from
from voxgraft.errors import ConfigError
from voxgraft.files import read_text, write_text
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import RunSettings
from voxgraft.yaml_files import parse_yaml


def keep(project: Path, words: Mapping[str, str]) -> None:
    """Put new values, each as the YAML text that stands for it, at the lines of their keys. All of them, or none."""
    path = project / RUN_FILE
    text = read_text(path)
    before = parse_yaml(text, path) or {}
    after, expected = text, before
    for key, value in words.items():
        after = _replaced(after, key, value)
        section, _, name = key.rpartition(".")
        parsed = parse_yaml(f"value: {value}\n", path)["value"]
        expected = merged_values(expected, {section: {name: parsed}} if section else {name: parsed})
    found = parse_yaml(after, path)
    # A file that somebody wrote in another form (lists over several lines) is left as it is.
    if found != expected:
        raise ConfigError("ui-keep", f"{', '.join(words)} cannot be put at one line", where=path)
    settings_from(RunSettings, found, path)
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
    new = f"{indent}{name}: {value}"
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
