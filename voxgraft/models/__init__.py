"""Families by name, and by the files of a folder. `core/families.py` has the names; code is imported on demand."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from voxgraft.core.errors import ConfigError, FileError, VoxgraftError, find_nearest_name
from voxgraft.core.families import FAMILIES, FAMILY_NAMES
from voxgraft.core.files import path_exists, require_folder
from voxgraft.models.base import Family, SpeakerEncoder


def family_names() -> list[str]:
    """Names of all families, in the order in which they are tried."""
    return list(FAMILY_NAMES)


def get_family(name: str) -> Family:
    """The family of that name."""
    if name not in FAMILIES:
        hint = find_nearest_name(name, family_names())
        cure = f"did you mean `{hint}`?" if hint else f"known families: {', '.join(FAMILY_NAMES)}."
        raise ConfigError("family-unknown", f"there is no family `{name}`", cure=cure)
    made = getattr(import_module(f"voxgraft.models.{name}.family"), FAMILIES[name].class_name)()
    assert isinstance(made, Family)
    return made


def load_speaker_encoder(place: Path) -> SpeakerEncoder:
    """A voice encoder from a file or a base folder, of the first family that has one which works alone."""
    for family in map(get_family, family_names()):
        if (encoder := family.speaker_encoder(place)) is not None:
            return encoder
    raise ConfigError("family-unknown", "no family has a voice encoder that works without its base")


def detect_family(folder: Path) -> Family:
    """The family whose files are in a base folder; never guessed when none or several fit."""
    require_folder(folder)
    failures: dict[Family, FileError] = {}
    refusals: list[VoxgraftError] = []
    for candidate in map(get_family, family_names()):
        try:
            candidate.files(folder)
        except FileError as error:
            failures[candidate] = error
        except VoxgraftError as error:  # its files, but not as they should be; another family may fit anyway
            refusals.append(error)
        else:
            return candidate
    if refusals:
        raise refusals[0]
    from voxgraft.models.detect import refuse_unsupported_folder

    refuse_unsupported_folder(folder, failures)
    looked = "; ".join(f"{candidate.name}: {error.finding.found}" for candidate, error in failures.items())
    raise FileError("base-unknown", looked, where=folder)


def resolve_base_folder(path: Path) -> Path:
    """The folder that was named, or the built-in base of a family for the family's name, where no such folder is."""
    if str(path) in family_names() and not path_exists(path):
        return get_family(str(path)).shipped_folder() or path
    return path


def resolve_base_family(folder: Path, name: str | None) -> Family:
    """The family of a base folder: the one that was named, else the one whose files exist."""
    return get_family(name) if name else detect_family(folder)
