"""Files of the base in an export: linked where the file system can, copied elsewhere, and never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from voxgraft import progress
from voxgraft.errors import FileError
from voxgraft.exporting.names import UNHASHED
from voxgraft.files import free_bytes, is_folder, reason_of, sha256_of

__all__ = ["hashes_of", "place_files", "require_room"]

SLACK_BYTES = 64 << 20
EMPTY_SHA256 = hashlib.sha256().hexdigest()


def place_files(beside: Mapping[str, Path], folder: Path, *, copy: bool) -> dict[str, str]:
    """Put files and whole folders of the base into an export; by name, whether each was linked or copied."""
    pairs = [(path, folder / name / rest) for name, place in beside.items() for path, rest in _files_of(place)]
    done: dict[str, str] = {}
    with progress.task("files of the base", len(pairs)) as advance:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = not copy and _linked(source, target)
            if not linked:
                _copy(source, target)
            done[str(target.relative_to(folder))] = "linked" if linked else "copied"
            advance(1)
    return done


def require_room(folder: Path, num_bytes: int) -> None:
    """Refuse before hours of copying what will not fit."""
    free = free_bytes(folder)
    if free is not None and free < num_bytes + SLACK_BYTES:
        found = f"the export needs {num_bytes:,} bytes, {free:,} are free"
        raise FileError("disk-too-small", found, where=folder)


def hashes_of(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of every file in an export by its place there; those that are known are not read again."""
    found: dict[str, str] = {}
    by_file: dict[tuple[int, int], str] = {}  # both parts link the same files of the base
    for path, place in _files_of(folder):
        if place in UNHASHED:
            continue
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        if key not in by_file:
            by_file[key] = known.get(place) or (sha256_of(path) if status.st_size else EMPTY_SHA256)
        found[place] = by_file[key]
    return found


def _files_of(place: Path) -> Iterator[tuple[Path, str]]:
    """A file by itself, or all files of a folder with their places in it."""
    if not is_folder(place):
        yield place, ""
        return
    for path in sorted(place.rglob("*")):
        if path.is_file():
            yield path, path.relative_to(place).as_posix()


def _linked(source: Path, target: Path) -> bool:
    """A hard link to the file itself, not to a link that leads there: it stays whole when the base is moved."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or a file system without links
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise FileError(
            "file-unwritable", f"{source.name} cannot be copied: {reason_of(error)}", where=target
        ) from None
