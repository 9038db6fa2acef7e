"""What codes depend on, as keys: the files of a front end, and the sound of a clip. Same key, same codes.

A file that has kept its size and its time of change is not read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.files import compute_sha256, is_file
from voxgraft.preparing.ledger import FileStamp

__all__ = ["FrontEndFiles", "compute_file_stamp", "fingerprint_front_end"]

ENCODING_VERSION = 1
"""Of everything between a sound file and its codes that is ours; another number makes all codes anew."""


@dataclass(frozen=True, slots=True)
class FrontEndFiles:
    """The front end of one base, by the files that it is made of."""

    files: Mapping[str, FileStamp]
    base_sha256: str

    @property
    def made_from(self) -> dict[str, object]:
        """As set.json states it."""
        return {"version": ENCODING_VERSION, **{name: sha256 for name, (_, _, sha256) in self.files.items()}}

    def key(self, sound_sha256: str) -> str:
        """The key of a clip with that sound."""
        parts = json.dumps([self.made_from, self.base_sha256, sound_sha256], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()


def fingerprint_front_end(
    family: Family, files: BaseFiles, base_sha256: str, known: Mapping[str, FileStamp]
) -> FrontEndFiles:
    """The front end of a base folder; an error that names what it lacks."""
    marks: dict[str, FileStamp] = {}
    for side in family.describe(files, 0).side_files:
        if "preparing" not in side.purposes:
            continue
        there = [name for name in side.names if is_file(files.folder / name)]
        if not there:
            found = f"{' or '.join(side.names)} is not in the folder: {side.what}"
            raise FileError("base-file-missing", found, expected=side.names[0], where=files.folder)
        for name in there:
            mark = compute_file_stamp(files.folder / name, known.get(name))
            assert mark is not None
            marks[name] = mark
    return FrontEndFiles(marks, base_sha256)


def compute_file_stamp(path: Path, known: FileStamp | None = None) -> FileStamp | None:
    """Size, time and hash of a file; None where it is not there."""
    if not is_file(path):
        return None
    status = path.stat()
    if known is not None and known[:2] == (status.st_size, status.st_mtime_ns):
        return known
    return status.st_size, status.st_mtime_ns, compute_sha256(path)
