"""From a command line to whole settings: run.yaml at the bottom, then --config, then flags; the upper one wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voxgraft.cli.flags import CommandLine
from voxgraft.cli.usage import COMMAND_LINE
from voxgraft.config import Origin, Settings, merged_values, read_settings, settings_from
from voxgraft.errors import FileError
from voxgraft.files import is_there
from voxgraft.run import RUN_FILE
from voxgraft.run_settings import RunSettings


def resolve(line: CommandLine) -> Settings:
    """The settings of a verb; a fault is told with the file or flag that it came from."""
    verb = line.verb
    flags = nested(line.values)
    config = read_settings(verb.settings, line.config) if line.config else {}
    values = merged_values(config, flags)
    origins = {key: Origin(str(line.config), key) for key in _keys(config)}
    for leaf in verb.leaves():
        if leaf.key in line.values or leaf.key not in origins:
            origins[leaf.key] = Origin(COMMAND_LINE, verb.names_of(leaf)[0])
    if issubclass(verb.settings, RunSettings) and isinstance(run := values.get("run"), str) and run:
        values = merged_values(_run_values(Path(run)), values)
    return settings_from(verb.settings, values, line.config or COMMAND_LINE, origins)


def _run_values(run: Path) -> dict[str, Any]:
    """What the run.yaml says, judged by itself, so that every verb refuses the same files."""
    path = run / RUN_FILE
    if not is_there(path):
        cure = f"make a run with `voxgraft new {run}`, or check the path."
        raise FileError("file-missing", f"{run} has no {RUN_FILE}", where=path, cure=cure)
    values = read_settings(RunSettings, path)
    settings_from(RunSettings, values, path)
    return values


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return result


def _keys(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Nested mappings to dotted keys."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
