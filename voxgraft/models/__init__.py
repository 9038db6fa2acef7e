"""The table of families. The only place that names a concrete one, and it imports it on demand."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from voxgraft.core.errors import ConfigError, FileError, VoxgraftError, find_nearest_name
from voxgraft.core.files import require_folder
from voxgraft.models.base import Family

_FAMILY_CLASSES = {
    "chatterbox": ("voxgraft.models.chatterbox.family", "Chatterbox"),
    "indextts2": ("voxgraft.models.indextts2.family", "IndexTTS2"),
    "tiny": ("voxgraft.models.tiny.family", "Tiny"),
}


def family_names() -> list[str]:
    """Names of all families, in the order in which they are tried."""
    return list(_FAMILY_CLASSES)


def get_family(name: str) -> Family:
    """The family of that name."""
    if name not in _FAMILY_CLASSES:
        hint = find_nearest_name(name, family_names())
        cure = f"did you mean `{hint}`?" if hint else f"known families: {', '.join(_FAMILY_CLASSES)}."
        raise ConfigError("family-unknown", f"there is no family `{name}`", cure=cure)
    module, kind = _FAMILY_CLASSES[name]
    made = getattr(import_module(module), kind)()
    assert isinstance(made, Family)
    return made


def detect_family(folder: Path) -> Family:
    """The family whose files stand in a base folder; never guessed when none or several fit."""
    require_folder(folder)
    failures: dict[Family, FileError] = {}
    refusals: list[VoxgraftError] = []
    for candidate in map(get_family, family_names()):
        try:
            candidate.files(folder)
        except FileError as error:
            failures[candidate] = error
        except VoxgraftError as error:  # its files, but not as they should be; another family may fit all the same
            refusals.append(error)
        else:
            return candidate
    if refusals:
        raise refusals[0]
    from voxgraft.models.detect import refuse_unsupported_folder

    refuse_unsupported_folder(folder, failures)
    looked = "; ".join(f"{candidate.name}: {error.finding.found}" for candidate, error in failures.items())
    raise FileError("base-unknown", looked, where=folder)
