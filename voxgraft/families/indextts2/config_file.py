"""IndexTTS-2's config.yaml: reading it, its sections, and the file names in it. Its sizes are read in `numbers`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from voxgraft.errors import ConfigError

CONFIG_NAME = "config.yaml"


def read_base_config(config: Path) -> dict[Any, Any]:
    """Everything that the file says."""
    from voxgraft.yaml_files import (
        read_yaml,  # a model of ours can be used without PyYAML, only not opened from a folder
    )

    settings = read_yaml(config)
    if not isinstance(settings, dict):
        found = f"{config.name} holds a {type(settings).__name__}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return settings


def get_config_section(settings: dict[Any, Any], name: str, config: Path) -> dict[Any, Any]:
    """One section; empty where it is not there."""
    section = settings.get(name, {})
    if not isinstance(section, dict):
        found = f"{name} is {str(section)[:40]!r}"
        raise ConfigError("base-config", found, expected="settings by name", where=config)
    return section


def get_config_file_name(section: dict[Any, Any], path: str, config: Path) -> str | None:
    """The file name that a setting gives, if it is there; it may not lead out of the base folder."""
    name = section.get(path.rpartition(".")[2])
    if name is None:
        return None
    expected = "the name of a file in the same folder"
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError("base-config", f"{path} is {str(name)[:80]!r}", expected=expected, where=config)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        cure = f"put the file into the folder and write its name as {path}."
        found = f"{path} leads out of the folder: {name!r}"
        raise ConfigError("base-config", found, expected=expected, where=config, cure=cure)
    return name
