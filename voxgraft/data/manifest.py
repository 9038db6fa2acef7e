"""`manifest.jsonl`: the clips of a dataset, one JSON object a line under a line that says which schema it is.

Reads and writes in a stream and names the line of everything that is wrong. Opens no audio.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from voxgraft.core.errors import CATALOGUE, FileError, Finding, Level, VoxgraftError, finding
from voxgraft.core.files import atomic_write, is_encodable_text, parse_json, read_lines

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


@dataclass(slots=True)
class DatasetSummary:
    """Counts over clips. Seconds and splits are of clips that are used."""

    clips: int = 0
    used: int = 0
    seconds: float = 0.0
    rejected_seconds: float = 0.0
    letters: int = 0
    speakers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by speaker; so with recordings, languages and splits."""
    recordings: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    languages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    splits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    reasons: Counter[str] = field(default_factory=Counter)
    clips_of: Counter[str] = field(default_factory=Counter)
    """Clips by recording, used or not."""

    @classmethod
    def of(cls, clips: Iterable[ManifestClip]) -> DatasetSummary:
        made = cls()
        for clip in clips:
            made.add(clip)
        return made

    def add(self, clip: ManifestClip) -> None:
        self.clips += 1
        self.clips_of[clip.recording] += 1
        self.reasons.update(clip.rejected if not clip.taken_back else ())
        if not clip.is_used:
            self.rejected_seconds += clip.seconds
            self.recordings[clip.recording] += 0
            return
        self.used += 1
        self.seconds += clip.seconds
        self.letters += len(clip.text)
        self.speakers[clip.speaker] += clip.seconds
        self.recordings[clip.recording] += clip.seconds
        self.languages[clip.language] += clip.seconds
        self.splits[clip.split or "none"] += clip.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "clips": self.clips,
            "used": self.used,
            "seconds": round(self.seconds, 3),
            "rejected_seconds": round(self.rejected_seconds, 3),
            **{
                name: dict(sorted(getattr(self, name).items(), key=lambda item: -item[1]))
                for name in ("speakers", "recordings", "languages", "splits", "reasons")
            },
        }


def format_duration(seconds: float) -> str:
    """A length as people say it."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


REFUSAL_CODES = frozenset(("source-changed", "import-settings"))
"""What was asked for and not done."""
LOST_CLIP_CODES = frozenset(
    (
        *("media-unreadable", "media-missing", "media-short", "media-rate", "media-time", "audio-too-long"),
        *("text-missing", "transcript-empty", "text-encoding", "text-binary", "table-line", "table-double-id"),
        *("file-empty", "file-unreadable", "file-missing", "file-too-large", "subtitle-time", "subtitle-too-long"),
    )
)
"""Problems because of which there is no clip of a recording or of a line, though there should be one."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Lines of a source that were not used as they stand, and why."""

    code: str
    found: str
    file: str
    line: int = 0
    """The first line, counted from 1; 0 where the whole file is meant."""
    last_line: int = 0
    cure: str = ""
    """Where it is not the catalogue's."""

    @property
    def loses_clip(self) -> bool:
        """Whether a recording or a line with a text gave no clip because of it."""
        return self.code in LOST_CLIP_CODES

    @property
    def lines(self) -> range:
        return range(self.line, max(self.line, self.last_line) + 1)

    def finding(self) -> Finding:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        if self.code not in CATALOGUE:  # of another version of voxgraft
            return finding("source-failed", f"{self.code}: {self.found}", where=where)
        # What is wrong with one file or line is an error for that alone: the others were imported.
        level: Level | None = (
            "warning" if CATALOGUE[self.code].level == "error" and self.code not in REFUSAL_CODES else None
        )
        return finding(self.code, self.found, where=where, cure=self.cure, level=level)

    @classmethod
    def of(cls, error: VoxgraftError, file: str, line: int = 0) -> SourceProblem:
        """What an error says, about a file of which others can still be used."""
        item = error.finding
        expected = f" (expected: {item.expected})" if item.expected else ""
        cure = "" if item.code in CATALOGUE and item.cure == CATALOGUE[item.code].cure else item.cure
        return cls(item.code, item.found + expected, file, line, cure=cure)

    def to_json(self) -> dict[str, Any]:
        known = {"code": self.code, "found": self.found, "file": self.file, "line": self.line, "last": self.last_line}
        return {**known, "cure": self.cure} if self.cure else known

    @classmethod
    def from_json(cls, values: object) -> SourceProblem:
        """As `to_json` wrote it; an error where something else stands there."""
        kinds = {"code": str, "found": str, "file": str, "line": int, "last": int}
        if not isinstance(values, Mapping) or not all(
            isinstance(values.get(name), kind) for name, kind in kinds.items()
        ):
            raise FileError("manifest-line", f"{values!r:.80} is no problem that was written down")
        code, found, file, line, last = (values[name] for name in kinds)
        return cls(code, found, file, line, last, cure=str(values.get("cure", "")))
