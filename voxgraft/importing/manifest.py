"""`manifest.jsonl`: the clips of a dataset, one JSON object a line under a line that says which schema it is.

Reads and writes in a stream and names the line of everything that is wrong. Opens no audio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import atomic_write, is_encodable_text, parse_json, read_lines

__all__ = [
    "MANIFEST_VERSION",
    "SPLITS",
    "ManifestClip",
    "SplitName",
    "format_manifest_line",
    "parse_manifest_line",
    "read_manifest",
    "write_manifest",
]

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.jsonl"
MANIFEST_HEADER_KEY = "voxgraft_manifest"
SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class ManifestClip:
    """One clip: its sound, what is said in it, who says it, and where it comes from."""

    id: str
    audio: str
    """Path of the sound file, with `/`; a relative one starts at the folder of the manifest."""
    seconds: float
    text: str
    """As it is said: normalised."""
    language: str
    speaker: str
    recording: str
    """Clips of one recording never fall into different splits."""
    sample_rate: int
    text_as_found: str = ""
    """As the source has it, with its tags."""
    start: float = 0.0
    end: float = 0.0
    """Place in the recording, in seconds, margins and all."""
    source: str = ""
    """File and line that the text comes from."""
    split: SplitName | None = None
    rejected: tuple[str, ...] = ()
    """Reasons against the clip. It stays in the manifest and on the disk."""
    taken_back: bool = False
    """Somebody wants it in spite of the reasons."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys that this version does not know; they are written again as they are."""

    @property
    def is_used(self) -> bool:
        return not self.rejected or self.taken_back

    def resolve_audio(self, folder: Path) -> Path:
        """The sound file, for the folder that the manifest lies in."""
        return folder / self.audio

    def to_json(self) -> dict[str, Any]:
        known = {own.name: getattr(self, own.name) for own in fields(self) if own.name != "other"}
        return {**known, "rejected": list(self.rejected), **self.other}


def read_manifest(path: Path) -> Iterator[ManifestClip]:
    """The clips in order, one at a time; an error names the line that is not one."""
    lines = read_lines(path)
    number, first = next(lines, (1, ""))
    _require_manifest_header(first, path, number)
    lines_of: dict[str, int] = {}
    for number, line in lines:
        clip = parse_manifest_line(line, path, number)
        if clip.id in lines_of:
            found = f"the id {clip.id!r} stands on line {lines_of[clip.id]} and on line {number}"
            raise FileError("manifest-double-id", found, where=path)
        lines_of[clip.id] = number
        yield clip


def write_manifest(path: Path, clips: Iterable[ManifestClip]) -> int:
    """Write a manifest, whole or not at all, over one that is there; gives the number of clips."""
    count = 0
    with atomic_write(path, overwrite=True) as stream:
        stream.write(json.dumps({MANIFEST_HEADER_KEY: MANIFEST_VERSION}).encode() + b"\n")
        for clip in clips:
            stream.write(format_manifest_line(clip))
            count += 1
    return count


def format_manifest_line(clip: ManifestClip) -> bytes:
    """One clip as it stands in the file, with the line's end."""
    return json.dumps(clip.to_json(), ensure_ascii=False).encode() + b"\n"


def parse_manifest_line(line: str, where: Path, number: int) -> ManifestClip:
    """One line of a manifest."""
    place = f"{where}, line {number}"
    values = parse_json(line, place)
    if not isinstance(values, dict):
        raise FileError("manifest-line", f"line {number} is no JSON object", where=place)
    known = {own.name for own in fields(ManifestClip)} - {"other"}
    if missing := [name for name in _REQUIRED_FIELDS if name not in values]:
        raise FileError("manifest-line", f"line {number} has no {', '.join(missing)}", where=place)
    for key, value in values.items():
        if key in known and not _is_valid_field(key, value):
            found = f"line {number}: {key} is {json.dumps(value, ensure_ascii=False):.80}"
            raise FileError("manifest-line", found, expected=_EXPECTED_BY_KIND[_FIELD_KINDS[key]], where=place)
    own = {key: value for key, value in values.items() if key in known}
    own["rejected"] = tuple(own.get("rejected", ()))
    return ManifestClip(**own, other={key: value for key, value in values.items() if key not in known})


def _require_manifest_header(line: str, path: Path, number: int) -> None:
    header: Any = None
    if line:
        try:
            header = parse_json(line, path)
        except VoxgraftError:
            header = None
    version = header.get(MANIFEST_HEADER_KEY) if isinstance(header, dict) else None
    if version is None:
        found = f"line {number} does not say {{{json.dumps(MANIFEST_HEADER_KEY)}: {MANIFEST_VERSION}}}"
        raise FileError("manifest-unknown", found, where=path)
    if version != MANIFEST_VERSION:
        found = f"the manifest is of version {json.dumps(version):.20}"
        raise FileError("manifest-version", found, expected=f"version {MANIFEST_VERSION}", where=path)


_FIELD_KINDS = {
    **dict.fromkeys(("id", "audio", "language", "speaker", "recording"), "name"),
    **dict.fromkeys(("text", "text_as_found", "source"), "text"),
    **dict.fromkeys(("seconds", "start", "end"), "seconds"),
    "sample_rate": "rate",
    "split": "split",
    "rejected": "reasons",
    "taken_back": "flag",
}
_REQUIRED_FIELDS = ("id", "audio", "seconds", "text", "language", "speaker", "recording", "sample_rate")
_EXPECTED_BY_KIND = {
    "name": "a text that is not empty",
    "text": "a text",
    "seconds": "a number of seconds, 0 or more",
    "rate": "a whole number of samples a second",
    "split": "train, validation, test or null",
    "reasons": "a list of texts",
    "flag": "true or false",
}


def _is_valid_field(key: str, value: object) -> bool:
    kind = _FIELD_KINDS[key]
    if kind in ("name", "text"):
        return is_encodable_text(value) and (kind == "text" or bool(value))
    if kind == "seconds":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]
    if kind == "rate":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    if kind == "split":
        return value is None or value in SPLITS
    if kind == "reasons":
        return isinstance(value, list) and all(map(is_encodable_text, value))
    return isinstance(value, bool)
