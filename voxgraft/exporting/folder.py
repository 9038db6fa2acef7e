"""Files of the base in an export: linked where the file system can, copied elsewhere, and never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from voxgraft import progress
from voxgraft.errors import FileError
from voxgraft.exporting.names import UNHASHED_FILES
from voxgraft.files import compute_sha256, format_error_reason, free_disk_bytes, is_folder

__all__ = ["hash_export_files", "link_or_copy_files", "require_export_space"]

EXPORT_SLACK_BYTES = 64 << 20
EMPTY_SHA256 = hashlib.sha256().hexdigest()


def link_or_copy_files(base_files: Mapping[str, Path], folder: Path, *, copy: bool) -> dict[str, str]:
    """Put files and whole folders of the base into an export; by name, whether each was linked or copied."""
    pairs = [(path, folder / name / rest) for name, place in base_files.items() for path, rest in _iterate_files(place)]
    done: dict[str, str] = {}
    with progress.progress_task("files of the base", len(pairs)) as advance:
        for source, target in pairs:
            target.parent.mkdir(parents=True, exist_ok=True)
            linked = not copy and _try_hard_link(source, target)
            if not linked:
                _copy_base_file(source, target)
            done[str(target.relative_to(folder))] = "linked" if linked else "copied"
            advance(1)
    return done


def require_export_space(folder: Path, num_bytes: int) -> None:
    """Refuse before hours of copying what will not fit."""
    free = free_disk_bytes(folder)
    if free is not None and free < num_bytes + EXPORT_SLACK_BYTES:
        found = f"the export needs {num_bytes:,} bytes, {free:,} are free"
        raise FileError("disk-too-small", found, where=folder)


def hash_export_files(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of every file in an export by its place there; those that are known are not read again."""
    found: dict[str, str] = {}
    by_file: dict[tuple[int, int], str] = {}  # both parts link the same files of the base
    for path, place in _iterate_files(folder):
        if place in UNHASHED_FILES:
            continue
        status = path.stat()
        key = (status.st_dev, status.st_ino)
        if key not in by_file:
            by_file[key] = known.get(place) or (compute_sha256(path) if status.st_size else EMPTY_SHA256)
        found[place] = by_file[key]
    return found


def _iterate_files(place: Path) -> Iterator[tuple[Path, str]]:
    """A file by itself, or all files of a folder with their places in it."""
    if not is_folder(place):
        yield place, ""
        return
    for path in sorted(place.rglob("*")):
        if path.is_file():
            yield path, path.relative_to(place).as_posix()


def _try_hard_link(source: Path, target: Path) -> bool:
    """A hard link to the file itself, not to a link that leads there: it stays whole when the base is moved."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, or a file system without links
        return False
    return True


def _copy_base_file(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise FileError(
            "file-unwritable", f"{source.name} cannot be copied: {format_error_reason(error)}", where=target
        ) from None
