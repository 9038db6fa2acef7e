"""From a command line to whole settings: run.yaml at the bottom, then --config, then flags; the upper one wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voxgraft.cli.flags import CommandLine
from voxgraft.cli.usage import COMMAND_LINE_ORIGIN
from voxgraft.config import SettingOrigin, Settings, deep_merge, parse_settings, read_settings_values
from voxgraft.errors import FileError
from voxgraft.files import path_exists
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import RunSettings


def resolve_settings(line: CommandLine) -> Settings:
    """The settings of a verb; a fault is told with the file or flag that it came from."""
    verb = line.verb
    flags = nest_dotted_keys(line.values)
    config = read_settings_values(verb.settings, line.config) if line.config else {}
    values = deep_merge(config, flags)
    origins = {key: SettingOrigin(str(line.config), key) for key in _dotted_keys(config)}
    for leaf in verb.leaves():
        if leaf.key in line.values or leaf.key not in origins:
            origins[leaf.key] = SettingOrigin(COMMAND_LINE_ORIGIN, verb.flag_names(leaf)[0])
    if issubclass(verb.settings, RunSettings) and isinstance(run := values.get("run"), str) and run:
        values = deep_merge(_read_run_values(Path(run)), values)
    return parse_settings(verb.settings, values, line.config or COMMAND_LINE_ORIGIN, origins)


def _read_run_values(run: Path) -> dict[str, Any]:
    """What the run.yaml says, judged by itself, so that every verb refuses the same files."""
    path = run / RUN_FILE
    if not path_exists(path):
        cure = f"make a run with `voxgraft new {run}`, or check the path."
        raise FileError("file-missing", f"{run} has no {RUN_FILE}", where=path, cure=cure)
    values = read_settings_values(RunSettings, path)
    parse_settings(RunSettings, values, path)
    return values


def nest_dotted_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return result


def _dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Nested mappings to dotted keys."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted_keys(value, f"{prefix}{key}.")
