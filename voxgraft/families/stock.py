"""What a stock program wants to find in a folder, and the few lines that make it load one of another size.

A family says it of its own program; writing the folder is `voxgraft/exporting`'s work. Needs no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from voxgraft.families.base import BaseFiles

__all__ = ["GROWN", "MERGED", "ExportInfo", "StockFolder", "StockProgram"]

GROWN, MERGED = "grown", "merged"
"""The two folders of an export: the base with more rows, and the one checkpoint that speaks the new language."""

TEXT_PACKAGE_LOADER = '''def _text_package():
    """The package beside this file, under a name of its own: exports of other languages may be loaded as well."""
    place = FOLDER / "voxgraft_text" / "__init__.py"
    name = "voxgraft_text_" + hashlib.sha256(str(FOLDER).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(place.parent)])
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package


prepared = _text_package().prepared
'''
"""In every load.py: how it finds the text front end of its export."""


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """What a loader has to know of an export."""

    language: str
    language_name: str
    tag: str | None
    pieces: int
    """Of the grown tokenizer."""
    base_pieces: int


@dataclass(frozen=True, slots=True)
class StockFolder:
    """The files of one folder, by the names that the stock program looks for."""

    checkpoint: str
    tokenizer: str
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders of the base that are taken over as they are."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Texts that are written anew, such as a config with another number of pieces."""
    missing: tuple[str, ...] = ()
    """What the stock program reads and the base folder does not have."""
    read: Mapping[str, str] = field(default_factory=dict)
    """What the stock program reads, and what for."""


class StockProgram(ABC):
    """The program that a base was published with."""

    title: ClassVar[str]
    can_drop_in: ClassVar[bool] = False
    """Whether a folder of the base's own size, for the new language alone, is of use: where sizes are fixed in code."""

    @abstractmethod
    def folder(self, files: BaseFiles, pieces: int) -> StockFolder:
        """The folder for a checkpoint with rows for that many pieces."""

    @abstractmethod
    def loader(self, facts: ExportInfo, files: BaseFiles) -> str | None:
        """A short program that loads an export of another size; None where the program needs none."""

    def text_step(self, files: BaseFiles) -> tuple[str, Mapping[str, str]]:  # noqa: ARG002 (most have one program)
        """Lines of Python in `prepared` of an export: text by its rules to what the program takes. And sources of the
        family's own, by name, that they import."""
        return "    return RULES.apply(text)", {}

    @abstractmethod
    def usage(self, facts: ExportInfo, files: BaseFiles, *, drop_in: bool) -> list[str]:
        """Lines of Python for the README: how the new language is spoken."""


def find_side_files(files: BaseFiles, names: Mapping[str, str]) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Of the named files and folders those that are in the base, and the names of those that are not."""
    from voxgraft.files import path_exists

    there = {name: files.folder / name for name in names if path_exists(files.folder / name)}
    return there, tuple(name for name in names if name not in there)
