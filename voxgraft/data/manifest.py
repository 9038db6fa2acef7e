"""`manifest.jsonl`: the clips of a dataset, one JSON object per line after a header line with the schema version.

Reads and writes in a stream and names the line of every error. Also holds `DatasetSummary` (counts over clips) and
`SourceProblem` (a line of a source that was not used, and why). Opens no audio.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from voxgraft.config.run import RunSettings
from voxgraft.core.errors import (
    CATALOGUE,
    ConfigError,
    FileError,
    Finding,
    GraftError,
    Level,
    VoxgraftError,
    find_nearest_name,
    finding,
)
from voxgraft.core.files import (
    MANIFEST_HEADER_KEY,
    atomic_write,
    is_encodable_text,
    is_file,
    is_folder,
    parse_json,
    read_lines,
)
from voxgraft.core.run import RunFolder

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.jsonl"
SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
# What a value of each kind must be, and the check.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("a non-empty text", lambda value: is_encodable_text(value) and bool(value)),
    "text": ("a text", is_encodable_text),
    "seconds": (
        "a number of seconds, 0 or more",
        lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0,
    ),
    "rate": ("a sample rate in Hz, a whole number", lambda value: type(value) is int and value > 0),
    "split": ("train, validation, test or null", lambda value: value is None or value in SPLITS),
    "reasons": ("a list of texts", lambda value: isinstance(value, list) and all(map(is_encodable_text, value))),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
}
_FIELD_KINDS = {
    **dict.fromkeys(("id", "audio", "language", "speaker", "recording"), "name"),
    **dict.fromkeys(("text", "text_as_found", "source"), "text"),
    **dict.fromkeys(("seconds", "start", "end"), "seconds"),
    "sample_rate": "rate",
    "split": "split",
    "rejected": "reasons",
    "taken_back": "flag",
}
# Reasons that are about the text: a person has rejected the clip; `data verify` found another text in its audio.
MANUAL_REJECTION, TEXT_MISMATCH = "by-hand", "text-mismatch"
_REQUIRED_FIELDS = ("id", "audio", "seconds", "text", "language", "speaker", "recording", "sample_rate")
# Codes of requests that were refused: these are errors of the whole import.
REFUSAL_CODES = frozenset(("source-changed", "import-settings"))
# Problems that cost a clip: a recording or line with a text gave none.
LOST_CLIP_CODES = frozenset(
    (
        *(
            "media-unreadable",
            "media-missing",
            "name-ambiguous",
            "path-outside",
            "kaldi-pipe",
            "media-short",
            "media-rate",
            "media-time",
            "audio-too-long",
        ),
        *("text-missing", "transcript-empty", "text-encoding", "text-binary", "table-line", "table-double-id"),
        *("file-empty", "file-unreadable", "file-missing", "file-too-large", "subtitle-time", "subtitle-too-long"),
    )
)
# The prepared set that a split becomes, by the name that `train` looks for. Nothing is trained on tests; replay is
# made elsewhere.
ROLE_BY_SPLIT: dict[SplitName, Literal["train", "valid"]] = {"train": "train", "validation": "valid"}


@dataclass(frozen=True, slots=True)
class ManifestClip:
    """One clip: its audio, text and speaker, and where it comes from."""

    id: str
    audio: str
    """Path of the audio file, with `/`; relative to the folder of the manifest."""
    seconds: float
    text: str
    """As it is spoken: normalized."""
    language: str
    speaker: str
    recording: str
    """Clips of one recording stay in one split."""
    sample_rate: int
    text_as_found: str = ""
    """As in the source, with its tags."""
    start: float = 0.0
    end: float = 0.0
    """Position in the recording in seconds, including margins."""
    source: str = ""
    """File and line of the text."""
    split: SplitName | None = None
    rejected: tuple[str, ...] = ()
    """Reasons to reject the clip. It stays in the manifest and on disk."""
    taken_back: bool = False
    """A user wants it in spite of the reasons."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys that this version does not know; they are written back unchanged."""

    @property
    def is_used(self) -> bool:
        return not self.rejected or self.taken_back

    @property
    def review_state(self) -> str:
        """What a person has decided about the text: `accepted`, `edited` or `rejected`; empty if not reviewed."""
        if MANUAL_REJECTION in self.rejected and not self.taken_back:
            return "rejected"  # also by `data report --reject`
        state = self.other.get("review")
        return state if state in ("accepted", "edited") else ""

    def resolve_audio(self, folder: Path) -> Path:
        """The audio file, given the folder of the manifest."""
        return folder / self.audio

    def to_json(self) -> dict[str, Any]:
        known = {own.name: getattr(self, own.name) for own in fields(self) if own.name != "other"}
        return {**known, "rejected": list(self.rejected), **self.other}


def read_manifest(path: Path) -> Iterator[ManifestClip]:
    """The clips in order, one at a time; an error names the invalid line."""
    lines = read_lines(path)
    number, first = next(lines, (1, ""))
    header: Any = None
    if first:
        try:
            header = parse_json(first, path)
        except VoxgraftError as error:
            found = f"line {number} is not valid JSON: {error.finding.found.removeprefix('line 1, ')}"
            expected = json.dumps({MANIFEST_HEADER_KEY: MANIFEST_VERSION})
            # A line of JSON that was damaged is probably from a manifest that voxgraft wrote.
            cure = f"write {expected} as the first line, or restore the file." if first.startswith("{") else ""
            raise FileError("manifest-unknown", found, expected=expected, where=path, cure=cure) from None
    version = header.get(MANIFEST_HEADER_KEY) if isinstance(header, dict) else None
    if version is None:
        found = f"line {number} does not have {{{json.dumps(MANIFEST_HEADER_KEY)}: {MANIFEST_VERSION}}}"
        raise FileError("manifest-unknown", found, where=path)
    if version != MANIFEST_VERSION:
        found = f"the manifest has version {json.dumps(version):.20}"
        raise FileError("manifest-version", found, expected=f"version {MANIFEST_VERSION}", where=path)
    lines_of: dict[str, int] = {}
    for number, line in lines:
        clip = parse_manifest_line(line, path, number)
        if clip.id in lines_of:
            found = f"the id {clip.id!r} is on line {lines_of[clip.id]} and on line {number}"
            raise FileError("manifest-double-id", found, where=path)
        lines_of[clip.id] = number
        yield clip


def write_manifest(path: Path, clips: Iterable[ManifestClip]) -> int:
    """Write a manifest atomically over an existing one; returns the number of clips."""
    count = 0
    # Whole or not at all: the manifest is the one file that says which clips exist.
    with atomic_write(path, overwrite=True) as stream:
        stream.write(json.dumps({MANIFEST_HEADER_KEY: MANIFEST_VERSION}).encode() + b"\n")
        for clip in clips:
            stream.write(json.dumps(clip.to_json(), ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def parse_manifest_line(line: str, where: Path, number: int) -> ManifestClip:
    """One line of a manifest."""
    place = f"{where}, line {number}"
    values = parse_json(line, place)
    if not isinstance(values, dict):
        raise FileError("manifest-line", f"line {number} is not a JSON object", where=place)
    # Unknown keys are kept in `other`, so that a newer version's manifest survives an older program.
    known = {own.name for own in fields(ManifestClip)} - {"other"}
    if missing := [name for name in _REQUIRED_FIELDS if name not in values]:
        raise FileError("manifest-line", f"line {number} has no {', '.join(missing)}", where=place)
    for key, value in values.items():
        if key in known:
            expected, is_valid = _KINDS[_FIELD_KINDS[key]]
            if not is_valid(value):
                found = f"line {number}: {key} is {json.dumps(value, ensure_ascii=False):.80}"
                raise FileError("manifest-line", found, expected=expected, where=place)
    own = {key: value for key, value in values.items() if key in known}
    own["rejected"] = tuple(own.get("rejected", ()))
    return ManifestClip(**own, other={key: value for key, value in values.items() if key not in known})


@dataclass(slots=True)
class DatasetSummary:
    """Counts over clips. Seconds and splits count only clips that are used."""

    clips: int = 0
    used: int = 0
    seconds: float = 0.0
    rejected_seconds: float = 0.0
    letters: int = 0
    speakers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by speaker; likewise recordings, languages and splits."""
    recordings: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    languages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    splits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    reasons: Counter[str] = field(default_factory=Counter)
    clips_of: Counter[str] = field(default_factory=Counter)
    """Clips by recording, used or not."""
    reviewed: Counter[str] = field(default_factory=Counter)
    """Clips by what a person has decided, used or not; likewise below."""
    machine_made: int = 0
    """Texts of a recognizer that have not been reviewed."""

    @classmethod
    def of(cls, clips: Iterable[ManifestClip]) -> DatasetSummary:
        made = cls()
        for clip in clips:
            made.clips += 1
            made.clips_of[clip.recording] += 1
            made.reasons.update(clip.rejected if not clip.taken_back else ())
            if clip.review_state:
                made.reviewed[clip.review_state] += 1
            made.machine_made += "machine_made" in clip.other and not clip.review_state
            if not clip.is_used:
                made.rejected_seconds += clip.seconds
                made.recordings[clip.recording] += 0
                continue
            made.used += 1
            made.seconds += clip.seconds
            made.letters += len(clip.text)
            made.speakers[clip.speaker] += clip.seconds
            made.recordings[clip.recording] += clip.seconds
            made.languages[clip.language] += clip.seconds
            made.splits[clip.split or "none"] += clip.seconds
        return made

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
            "reviewed": {state: self.reviewed[state] for state in ("accepted", "edited", "rejected")},
            "machine_made_not_reviewed": self.machine_made,
        }

    def review_line(self) -> str:
        """How far the review of the texts is; empty if it has not begun and no text needs one."""
        if not self.reviewed and not self.machine_made:
            return ""
        decided = ", ".join(f"{state} {self.reviewed[state]:,}" for state in ("accepted", "edited", "rejected"))
        waiting = f"; machine-made and not reviewed: {self.machine_made:,}" if self.machine_made else ""
        return f"reviewed: {decided}{waiting}"


def format_length(seconds: float) -> str:
    """A length of audio in hours, minutes or seconds, with one decimal."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Lines of a source that were not used as they are, and why."""

    code: str
    found: str
    file: str
    line: int = 0
    """The first line, counted from 1; 0 means the whole file."""
    last_line: int = 0
    cure: str = ""
    """Empty: that of the catalogue."""

    @property
    def lines(self) -> range:
        return range(self.line, max(self.line, self.last_line) + 1)

    def finding(self) -> Finding:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        if self.code not in CATALOGUE:  # a code of another version of voxgraft
            return finding("source-failed", f"{self.code}: {self.found}", where=where)
        # An error in one file or line is a warning for the import: the others were imported.
        level: Level | None = (
            "warning" if CATALOGUE[self.code].level == "error" and self.code not in REFUSAL_CODES else None
        )
        return finding(self.code, self.found, where=where, cure=self.cure, level=level)

    @classmethod
    def of(cls, error: VoxgraftError, file: str, line: int = 0) -> SourceProblem:
        """An error in one file, as a problem beside which other files can be used."""
        item = error.finding
        expected = f" (expected: {item.expected})" if item.expected else ""
        cure = "" if item.code in CATALOGUE and item.cure == CATALOGUE[item.code].cure else item.cure
        return cls(item.code, item.found + expected, file, line, cure=cure)

    def to_json(self) -> dict[str, Any]:
        known = {"code": self.code, "found": self.found, "file": self.file, "line": self.line, "last": self.last_line}
        return {**known, "cure": self.cure} if self.cure else known

    @classmethod
    def from_json(cls, values: object) -> SourceProblem:
        """As written by `to_json`; an error for anything else."""
        kinds = {"code": str, "found": str, "file": str, "line": int, "last": int}
        if not isinstance(values, Mapping) or not all(
            isinstance(values.get(name), kind) for name, kind in kinds.items()
        ):
            raise FileError("manifest-line", f"{values!r:.80} is not a stored problem")
        code, found, file, line, last = (values[name] for name in kinds)
        return cls(code, found, file, line, last, cure=str(values.get("cure", "")))


def resolve_manifest_path(given: Path | None, run_data: Path) -> Path:
    """The manifest that was named, or that lies in the folder that was named, or in the run.

    A folder need not be there yet: what does not end like a manifest is taken for one.
    """
    place = given or run_data
    is_manifest = not is_folder(place) and (is_file(place) or place.suffix == Path(MANIFEST_NAME).suffix)
    return place if is_manifest else place / MANIFEST_NAME


def resolve_text_files(settings: RunSettings, run: Path | None) -> tuple[Path, ...]:
    """Texts of the new language: those that are named; else the manifest of the run's data, where there is one.

    `new --sources` names the manifest that the import is going to write. Until then there are no texts.
    """
    if run is None:
        return settings.texts
    manifest = resolve_manifest_path(settings.data.dataset, RunFolder(run).data)
    if settings.texts:
        real = os.path.realpath(manifest)
        return tuple(path for path in settings.texts if is_file(path) or os.path.realpath(path) != real)
    return (manifest,) if is_file(manifest) else ()


def select_clips(path: Path, language: str) -> tuple[list[ManifestClip], dict[str, int]]:
    """Clips of a language for training and validation that are not rejected, and the number of others by reason."""
    clips: list[ManifestClip] = []
    aside: Counter[str] = Counter()
    for clip in read_manifest(path):
        if clip.language != language:
            aside[f"in {clip.language}"] += 1
        elif not clip.is_used:
            aside["rejected"] += 1
        elif clip.split is None:
            aside["not split"] += 1
        elif clip.split not in ROLE_BY_SPLIT:
            aside[f"kept for {clip.split}"] += 1
        else:
            clips.append(clip)
    message = ", ".join(f"{count:,} {reason}" for reason, count in aside.items())
    for split in ROLE_BY_SPLIT:
        if not any(clip.split == split for clip in clips):
            found = f"there is no usable clip in {language} for {split}" + (f": {message}" if message else "")
            raise GraftError("manifest-no-split", found, expected="at least one", where=path)
    return clips, dict(aside)


def assign_voices(speakers: Iterable[str], voices: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """For bases with voices of their own: the voice of each speaker of the manifest.

    An assignment `SPEAKER=VOICE` comes first, then a voice of the speaker's name; the others get voices in order.
    """
    names, known = list(voices), list(dict.fromkeys(speakers))
    chosen: dict[str, str] = {}
    for words in given:
        speaker, _, voice = words.rpartition("=")
        for value, options, what in ((speaker, known, "speaker of the manifest"), (voice, names, "voice of the base")):
            if value not in options:
                hint = find_nearest_name(value, options)
                found = f"--voices {words}: {value!r} is not a {what}"
                cure = f"did you mean `{hint}`?" if hint else f"choose a {what}."
                if "=" not in words:
                    cure = "write it as SPEAKER=VOICE."
                raise ConfigError("config-value", found, expected=f"one of {', '.join(options[:20])}", cure=cure)
        chosen[speaker] = voice
    chosen |= {speaker: speaker for speaker in known if speaker in names and speaker not in chosen}
    others = [speaker for speaker in known if speaker not in chosen]
    free = [name for name in names if name not in chosen.values()] or names
    return chosen | {speaker: free[turn % len(free)] for turn, speaker in enumerate(others)}
