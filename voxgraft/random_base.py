"""The verb `random-base`: a base folder of random weights in the published format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxgraft.errors import FileError
from voxgraft.families.base import BaseFiles
from voxgraft.families.random_base import make_random_base
from voxgraft.files import path_exists
from voxgraft.results import Line
from voxgraft.settings import RandomBaseSettings


@dataclass(frozen=True, slots=True)
class RandomBaseResult:
    """The files that were made."""

    files: BaseFiles
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"folder": str(self.files.folder), "files": [path.name for path in self._paths()]}

    def lines(self) -> list[Line]:
        made = [f"  {path.name}: {path.stat().st_size:,} bytes" for path in self._paths()]
        return [f"a base of random weights (it cannot speak) in {self.files.folder}", *made]

    def _paths(self) -> list[Any]:
        return [path for path in (self.files.checkpoint, self.files.tokenizer, self.files.config) if path]


def create_random_base(settings: RandomBaseSettings) -> RandomBaseResult:
    """Make the folder; refused if it is there already."""
    if path_exists(settings.folder):
        cure = "choose another folder, or move what is there away."
        raise FileError("file-exists", f"{settings.folder} is there already", where=settings.folder, cure=cure)
    files = make_random_base(settings.family, settings.folder, size=settings.size, seed=settings.seed)
    return RandomBaseResult(files)
