"""`data/prepared.jsonl`: what became of every clip of the manifest, for people and for the next `prepare`.

With it nothing is encoded or hashed a second time. It is never needed: without it everything is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from voxgraft.errors import Finding, VoxgraftError
from voxgraft.files import atomic_write, is_file, parse_json, read_lines

__all__ = ["CACHE_INDEX_NAME", "CacheIndex", "ClipRecord", "FileStamp", "read_cache_index", "write_cache_index"]

CACHE_INDEX_NAME = "prepared.jsonl"
CACHE_INDEX_FORMAT = "voxgraft-prepared-1"
FileStamp = tuple[int, int, str]
"""Bytes, time of change in nanoseconds, and SHA-256 of a file."""


@dataclass(frozen=True, slots=True)
class ClipRecord:
    """One clip of the manifest."""

    id: str
    audio: str
    """As the manifest names it."""
    key: str | None = None
    """What its codes are kept under; None where its sound was never read."""
    file: FileStamp | None = None
    set: str | None = None
    """The set that it is in."""
    left_out: Finding | None = None
    """Why it is in none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CacheIndex:
    """All clips, and the sets that they were put into, by their fingerprints."""

    sets: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileStamp] = field(default_factory=dict)
    """Files of the front end, by name."""
    clips: Mapping[str, ClipRecord] = field(default_factory=dict)


def read_cache_index(path: Path) -> CacheIndex:
    """What an earlier `prepare` has written; nothing where there is none, or none that can be read."""
    if not is_file(path):
        return CacheIndex()
    try:
        lines = [parse_json(text, path) for _, text in read_lines(path)]
        head, records = lines[0], [_parse_record(line) for line in lines[1:]]
        if head["format"] != CACHE_INDEX_FORMAT:
            return CacheIndex()
        files = {str(name): _parse_stamp(mark) for name, mark in head["files"].items()}
        sets = {str(name): str(fingerprint) for name, fingerprint in head["sets"].items()}
    except (VoxgraftError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return CacheIndex()
    return CacheIndex(sets, files, {record.id: record for record in records})


def write_cache_index(
    path: Path, sets: Mapping[str, str], files: Mapping[str, FileStamp], clips: Sequence[ClipRecord]
) -> None:
    """Write it anew, whole or not at all."""
    with atomic_write(path, overwrite=True) as stream:
        stream.write(
            json.dumps({"format": CACHE_INDEX_FORMAT, "sets": dict(sets), "files": dict(files)}).encode() + b"\n"
        )
        for clip in clips:
            stream.write(json.dumps(clip.to_json(), ensure_ascii=False).encode() + b"\n")


def _parse_record(values: Any) -> ClipRecord:
    left_out, file = values.pop("left_out"), values.pop("file")
    return ClipRecord(**values, file=file and _parse_stamp(file), left_out=left_out and Finding(**left_out))


def _parse_stamp(values: Any) -> FileStamp:
    size, changed, sha256 = values
    return int(size), int(changed), str(sha256)
