"""Which files the browser may name: those inside the allowed folders, by their real place. Reads no file's contents."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.run import RUN_FILE

MAX_CHOICES = 400
"""A list that nobody can read through is no help; typing the path still works."""
MAX_FOLDERS = 5000
MAX_DEPTH = 4
WALK_CACHE_SECONDS = 1.0
SKIPPED_FOLDERS = ("steps", "samples", "tensorboard", "jobs", "node_modules", "__pycache__", "shards", "preparing")
"""Folders in which nobody chooses a file."""
MAX_UPLOAD_NAME_BYTES = 120


@dataclass(frozen=True, slots=True)
class PathFilter:
    """What a list of paths is made of: folders that hold `mark`, or files that end with one of `endings`."""

    endings: tuple[str, ...] = ()
    mark: str = ""
    folders: bool = False
    """Any folder."""


PROJECT_PATHS = PathFilter(mark=RUN_FILE)
DATASET_PATHS = PathFilter(mark="manifest.jsonl")
TEXT_PATHS = PathFilter(endings=(".txt", ".jsonl"))
FOLDER_PATHS = PathFilter(folders=True)


@dataclass(frozen=True, slots=True)
class Roots:
    """The allowed folders, as real paths. The first is where commands run, and where short names start."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, given: tuple[Path, ...]) -> Roots:
        """The folders that were named, each of which must be there."""
        for path in given:
            if not path.is_dir():
                raise FileError("file-missing", f"the folder {path} is not there", where=path)
        return cls(tuple(path.resolve() for path in given))

    @property
    def home(self) -> Path:
        return self.paths[0]

    def resolve_inside(self, text: str | Path) -> Path:
        """The real path of what was typed, if it is inside; links are followed before it is judged."""
        given = str(text)
        if not given or "\0" in given or len(given) > 4096:
            raise FileError("ui-outside", f"{given[:60]!r} is no path")
        try:
            real = (self.home / given).resolve()
        except (OSError, RuntimeError, ValueError):
            raise FileError("ui-outside", f"{given[:200]!r} leads nowhere") from None
        if not any(real == root or root in real.parents for root in self.paths):
            roots = ", ".join(map(str, self.paths))
            raise FileError("ui-outside", f"{given[:200]!r} is outside the folders that are open here", expected=roots)
        return real

    def short(self, path: Path) -> str:
        """A path as a command names it: from the first folder where it lies in there; never like a flag."""
        if path == self.home or self.home in path.parents:
            text = str(path.relative_to(self.home))
            return f"./{text}" if text.startswith("-") else text
        return str(path)

    def parts(self, path: Path) -> tuple[str, ...]:
        """The names on the way from a root to a path inside it."""
        root = next((root for root in self.paths if root == path or root in path.parents), None)
        return path.relative_to(root).parts if root is not None else path.parts

    def find(self, sought: PathFilter, first: Path | None = None) -> list[str]:
        """Short names of what fits, those inside `first` on top."""
        starts = [first] if first is not None else []
        found: dict[str, None] = {}
        for start in (*starts, *self.paths):
            for path in _find_matching_paths(start, sought):
                found[self.short(path)] = None
                if len(found) >= MAX_CHOICES:
                    return list(found)
        return list(found)


def safe_name(name: str) -> str:
    """A name for an uploaded file: its letters (of any script), digits, dots and dashes; never hidden, never a path."""
    last = unicodedata.normalize("NFC", name.replace("\\", "/").rpartition("/")[2])
    plain = re.sub(r"[^\w.\-]+", "_", last).lstrip(".-_")
    stem, dot, ending = plain.rpartition(".")
    if not dot:
        stem, ending = plain, ""
    room = MAX_UPLOAD_NAME_BYTES - len(ending.encode()) - 1
    stem = stem.encode()[: max(room, 8)].decode(errors="ignore")
    return f"{stem or 'file'}{dot}{ending[:16]}"


def _find_matching_paths(start: Path, sought: PathFilter) -> Iterator[Path]:
    # A page asks for a dozen lists at once: what was seen a moment ago serves all of them.
    for here, files in _list_folders_cached(start, int(time.monotonic() / WALK_CACHE_SECONDS)):
        if (sought.mark and sought.mark in files) or (sought.folders and here != start):
            yield here
        for name in files:
            if sought.endings and name.lower().endswith(sought.endings) and not name.startswith("."):
                path = here / name
                if path.is_file() and not path.is_symlink():
                    yield path


@lru_cache(maxsize=16)
def _list_folders_cached(start: Path, _moment: int) -> list[tuple[Path, list[str]]]:
    found = []
    for folder, folders, files in os.walk(start):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        if len(here.relative_to(start).parts) >= MAX_DEPTH:
            folders.clear()
        found.append((here, sorted(files)))
        if len(found) >= MAX_FOLDERS:
            break
    return found
