"""The registry of families: their names, and the facts about each that settings, help and estimates need.

Facts are in `facts.toml` of the family's folder. They are data, so that `--help` and the packages below `models` can
read them without importing model code or torch. Code of a family is loaded by `models.get_family`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

# One line per family, in the order in which a base folder is tried against them.
FAMILY_NAMES = (
    "chatterbox",
    "indextts2",
    "xtts",
    "tiny",
)


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What `facts.toml` of a family says. Every field but the first six may be missing there."""

    name: str
    class_name: str
    """The `Family` in the folder's family.py."""
    title: str
    loss_weights: tuple[float, float]
    """Of text and speech, where the user does not say."""
    base_files: tuple[str, ...]
    """Names by which a list of folders shows that one is a base."""
    text_table: str
    """The text embedding, without prefixes: the tensor by which a language model is found in a checkpoint."""
    built_in: str | None = None
    """Folder in assets/ of a base that comes with voxgraft."""
    num_published_pieces: int | None = None
    """Pieces of the published tokenizer, for old configs that come without a base."""
    positions_per_second: int | None = None
    """Training speed, for estimates."""
    voice_bytes_per_clip: int = 0
    """What a prepared clip keeps of a voice beside its codes."""
    own_prefix: str = ""
    """What all names of the language model begin with in the published file, although another family's wrapper has the
    same prefix."""
    own_prefix_mark: str = ""
    """Beginning of a name, the prefix included, that only this family has behind it."""
    wrapper_prefixes: Sequence[str] = ()
    """What trainers with a class of their own around the whole program put before the model's names."""
    other_model_prefixes: Sequence[str] = ()
    """The same before the names of models that the original program holds beside the language model."""
    speech_part_prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The speech ends of a base (no language model), by the beginnings of names that each has; any one is enough."""
    speech_part_files: Mapping[str, str] = field(default_factory=dict)
    """Speech ends that are known by their file names."""
    pickled_classes: Sequence[str] = ()
    """Classes of the original program whose objects are beside the tensors in published checkpoints: settings, which
    hold values and run nothing."""
    extras: Mapping[str, str] = field(default_factory=dict)
    """Extras of the package (`pip install 'voxgraft[NAME]'`) that the family needs, and each one's use in words."""
    companion: Mapping[str, Any] | None = None
    """How an environment of the original program is installed: `title`, and `steps`, arguments of each `pip install`.

    It may have `removed` (patterns of files in site-packages that must go afterwards) and `checkout_package` (of a
    program that comes as source: the folder in a checkout that shows that it is one)."""
    non_commercial: bool = False
    """Whether the bases' licence allows non-commercial use only: `download` and `export` require to accept it."""
    downloads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Published bases by name: title, licence, repository and files. A file has `name`, `what` and `about_bytes`.

    It may have another `repository`, a `prefix` (folder in the base folder, with its slash), `needed = false` (fetched
    with --optional only) and `is_folder` (all files of the repository below that name)."""


def _read_facts(name: str) -> FamilyFacts:
    path = Path(__file__).resolve().parent.parent / "models" / name / "facts.toml"
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    text_weight, speech_weight = values.pop("loss_weights")
    base_files = tuple(values.pop("base_files"))
    return FamilyFacts(name=name, loss_weights=(text_weight, speech_weight), base_files=base_files, **values)


# Read at import, since settings list their choices; four small files take about a millisecond.
FAMILIES: Mapping[str, FamilyFacts] = MappingProxyType({name: _read_facts(name) for name in FAMILY_NAMES})
BUILT_IN_BASES: Mapping[str, Path] = MappingProxyType(
    {
        name: Path(__file__).resolve().parent.parent / "assets" / facts.built_in
        for name, facts in FAMILIES.items()
        if facts.built_in
    }
)
"""Bases that come with voxgraft. A run names them by word, so that it does not depend on where voxgraft lies."""
