"""Find files whose names are written in another Unicode form, or in upper instead of lower case.

macOS writes `Ş` as two characters where a list has one: both look the same, and only a comparison of normalized names
finds the file. Other case is a likely slip, so it counts only if exactly one file can be meant.
"""

from __future__ import annotations

import os
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from voxgraft.core.files import is_file, is_folder

# A folder that changed this recently can change again within the resolution of its mtime.
MIN_LISTING_AGE_SECONDS = 2.0
MAX_FOLDERS_IN_MEMORY = 64


@dataclass(frozen=True, slots=True)
class FileMatch:
    """The file that a name means."""

    path: Path | None = None
    is_other_case: bool = False
    """Whether its name differs in upper and lower case, which a user must know."""
    alike: tuple[Path, ...] = ()
    """If none is used: files whose names differ only in Unicode form or case, and of which none is the only one."""


def normalize_name(name: str) -> str:
    """A name in one Unicode form."""
    return unicodedata.normalize("NFC", name)


def fold_name(name: str) -> str:
    """A name in one Unicode form and case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def find_alike(wanted: Sequence[Path], *, any_case: bool = True) -> FileMatch:
    """The file for paths that do not exist as written, the most likely first."""
    for files in _group_alike(wanted, normalize_name):
        return FileMatch(files[0]) if len(files) == 1 else FileMatch(alike=files)
    found = tuple(iter_alike(wanted, any_case=True)) if any_case else ()
    return FileMatch(found[0], is_other_case=True) if len(found) == 1 else FileMatch(alike=found)


def describe_alike(files: Iterable[Path]) -> str:
    """A sentence about files that are not used; names of different Unicode form look the same, so it says more."""
    names = sorted(path.name for path in files)
    if len(names) == 1:
        return f"{names[0]} has nearly this name, but may belong to another file"
    is_form = len({normalize_name(name) for name in names}) < len(names)
    kind = "Unicode form (composed or decomposed letters)" if is_form else "upper and lower case"
    return f"{', '.join(names)} differ only in {kind}"


def iter_alike(wanted: Iterable[Path], *, any_case: bool) -> Iterator[Path]:
    """Every file whose name differs from one of these at most in Unicode form, or also in case."""
    groups = _group_alike(wanted, fold_name if any_case else normalize_name)
    yield from dict.fromkeys(file for files in groups for file in files)


def _group_alike(wanted: Iterable[Path], fold: Callable[[str], str]) -> Iterator[tuple[Path, ...]]:
    """For each of the paths that has any, the files of nearly its name."""
    listings: dict[Path, list[tuple[Path, dict[str, tuple[str, ...]]]]] = {}  # many of the paths are in one folder
    for path in wanted:
        if path.parent not in listings:
            folders = _alike_folders(path.parent, fold)
            listings[path.parent] = [(folder, _names_in(folder, fold)) for folder in folders]
        key = fold(path.name)
        found = [folder / name for folder, names in listings[path.parent] for name in names.get(key, ())]
        if files := tuple(file for file in found if is_file(file)):
            yield files


def _alike_folders(folder: Path, fold: Callable[[str], str]) -> list[Path]:
    """The folder itself if it exists, else those with nearly its name."""
    if is_folder(folder):
        return [folder]
    if folder.parent == folder:
        return []
    return [
        parent / name
        for parent in _alike_folders(folder.parent, fold)
        for name in _names_in(parent, fold).get(fold(folder.name), ())
        if is_folder(parent / name)
    ]


def _names_in(folder: Path, fold: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Names in a folder by their folded form. The listing is kept: a list may name a hundred thousand files."""
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return {}
    is_settled = time.time() - changed / 1e9 > MIN_LISTING_AGE_SECONDS
    listing = _list_names if is_settled else _list_names.__wrapped__
    return listing(str(folder), fold, changed)


@lru_cache(maxsize=MAX_FOLDERS_IN_MEMORY)
def _list_names(folder: str, fold: Callable[[str], str], _changed: int) -> dict[str, tuple[str, ...]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    found: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for name in names:
        found[fold(name)] += (name,)
    return dict(found)
