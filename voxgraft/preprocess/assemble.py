"""The sets of a run out of what is encoded: ids by the run's own tokenizer, voices, clips in the manifest's order.

What is in a set already is taken from there, so that texts are spelled anew without any sound being read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import atomic_write, compute_sha256, is_file, parse_json, path_exists, read_lines
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import SelectedClip
from voxgraft.dataset.run_data import DataRequirements
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    ClipInfo,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    PreparedClip,
    read_dataset_index,
)
from voxgraft.models.base import BaseFiles, Family, SequenceSpec
from voxgraft.preprocess.encode import BatchStore, EncodedClip
from voxgraft.text.encoder import text_rules_identity

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


@dataclass(frozen=True, slots=True)
class EncodedClips:
    """Everything that is encoded: in the sets of an earlier `prepare`, and in batches that are in no set yet."""

    batches: BatchStore
    in_sets: Mapping[str, tuple[ClipDataset, int]] = field(default_factory=dict)
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What an earlier `prepare` found wrong with sound that is still the same."""

    def has(self, key: str) -> bool:
        return key in self.in_sets or key in self.batches.places or self.fault(key) is not None

    def fault(self, key: str) -> Finding | None:
        return self.batches.failed.get(key) or self.failed.get(key)

    def num_codes(self, key: str) -> int:
        """Of a clip that is there and has no fault."""
        if key in self.batches.places:
            return self.batches.places[key][3]
        clips, place = self.in_sets[key]
        return int(clips.num_codes[place])

    def clip(self, key: str) -> EncodedClip:
        if key in self.batches.places:
            return self.batches.clip(key)
        clips, place = self.in_sets[key]
        return EncodedClip(key, clips.infos[place].seconds, clips.codes(place), clips.voice(place))


def find_encoded_clips(
    run: RunFolder, batches: BatchStore, ledger: CacheIndex, front_end: FrontEndFiles
) -> EncodedClips:
    """What need not be encoded. A set that is damaged, of another front end or not the ledger's counts for nothing."""
    in_sets: dict[str, tuple[ClipDataset, int]] = {}
    keys = {record.id: record.key for record in ledger.clips.values() if record.key and record.set}
    for name, fingerprint in ledger.sets.items():
        if (clips := _open_recorded_dataset(run, name, fingerprint, front_end)) is not None:
            places = ((keys.get(info.id), place) for place, info in enumerate(clips.infos))
            in_sets |= {key: (clips, place) for key, place in places if key is not None}
    records = (record for record in ledger.clips.values() if record.key is not None)
    failed = {
        str(one.key): one.left_out for one in records if one.left_out and one.left_out.code in PERMANENT_FAULT_CODES
    }
    return EncodedClips(batches, in_sets, failed)


def _open_recorded_dataset(run: RunFolder, name: str, fingerprint: str, front_end: FrontEndFiles) -> ClipDataset | None:
    """The set that the ledger knows: in its place, or beside it where another has just been put into its place."""
    expected = {"made_from": {"base_sha256": front_end.base_sha256, "front_end": front_end.made_from}}
    for place in (run.data_set(name), run.data_set(f"{name}.previous")):
        try:
            if path_exists(place) and read_dataset_index(place).fingerprint == fingerprint:
                return open_clip_dataset(place, expected=expected, verify="hashes")
        except VoxgraftError:
            continue
    return None


PERMANENT_FAULT_CODES = frozenset(
    (
        "audio-shape",
        "audio-scale",
        "audio-not-finite",
        "audio-too-short",
        "audio-too-long",
        "audio-silent",
        "sound-broken",
    )
)
"""Faults that lie in the sound itself: the same bytes have them again."""


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """A set as it is now, and the clips that could not go into it."""

    name: str
    clips: ClipDataset
    left_out: Mapping[str, Finding]
    """By id."""
    is_new: bool
    """Whether it was written, or was there already with these very clips."""


@dataclass(frozen=True, slots=True)
class PreparedDatasetWriter:
    """Makes the sets of one run."""

    wanted: DataRequirements
    front_end: FrontEndFiles
    encoded: EncodedClips
    code_hz: float
    voices: Mapping[str, tuple[str, Mapping[str, AnyArray]]]
    """By speaker, the name of the base's own voice and its arrays; empty where every voice is a recording."""

    def make(self, name: str, role: DatasetRole, clips: Sequence[tuple[SelectedClip, str | None]]) -> PreparedDataset:
        """One set of clips with their keys (None: there is no sound). One that is as it should be is left alone."""
        left_out: dict[str, Finding] = {}
        fitting: list[tuple[SelectedClip, str, Int32Array]] = []
        with progress.progress_task(f"spelling {name}", len(clips)) as advance:
            for one, key in clips:
                ids, fault = self._encode_and_check(one, key)
                if fault is not None or key is None:
                    left_out[one.clip.id] = fault or _missing_audio_finding(one)
                else:
                    fitting.append((one, key, ids))
                advance(1)
        if not fitting:
            raise _empty_dataset_error(name, self.wanted.run.data_set(name), left_out)
        header, place = self._header(role, fitting), self.wanted.run.data_set(name)
        there = _open_if_current(place, header)
        if there is None:
            write_clip_dataset(place, header, self._iter_prepared_clips(name, fitting))
        return PreparedDataset(name, there or open_clip_dataset(place), left_out, there is None)

    def _encode_and_check(self, one: SelectedClip, key: str | None) -> tuple[Int32Array, Finding | None]:
        ids = np.asarray(self.wanted.spelling.encode(one.clip.text, self.wanted.language), dtype=np.int32)
        if key is None or not self.encoded.has(key):
            return ids, None if key is None else _missing_audio_finding(one)
        fault = self.encoded.fault(key)
        if fault is None and not any(map(str.isalnum, one.clip.text)):
            fault = finding("clips-no-content", f"nothing is said in the text {one.clip.text!r}", expected="words")
        return ids, fault or _find_clip_fault(ids, self.encoded.num_codes(key), self.wanted.frame)

    def _header(self, role: DatasetRole, clips: Sequence[tuple[SelectedClip, str, Int32Array]]) -> DatasetHeader:
        """What the set is made of is one hash, so that another `prepare` sees whether it would make the same."""
        digest = hashlib.sha256()
        for one, key, _ in clips:
            clip = one.clip
            voice = self.voices[clip.speaker][0] if self.voices else ""
            digest.update(json.dumps([clip.id, clip.speaker, clip.recording, clip.text, key, voice]).encode() + b"\n")
        card = self.wanted.graft.card
        settings = {"clips_sha256": digest.hexdigest()}
        text = text_rules_identity(card.rules)
        made_from = DatasetProvenance(
            card.tokenizer_sha256, card.base["checkpoint_sha256"], self.front_end.made_from, settings, text
        )
        return DatasetHeader(card.family, card.language, role, self.code_hz, made_from)

    def _iter_prepared_clips(
        self, name: str, clips: Sequence[tuple[SelectedClip, str, Int32Array]]
    ) -> Iterator[PreparedClip]:
        with progress.progress_task(f"writing {name}", len(clips)) as advance:
            for one, key, ids in clips:
                clip, encoded = one.clip, self.encoded.clip(key)
                info = ClipInfo(clip.id, clip.speaker, clip.recording, encoded.seconds, clip.text)
                voice = self.voices[clip.speaker][1] if self.voices else encoded.voice
                yield PreparedClip(info, ids, encoded.codes, voice)
                advance(1)


def _open_if_current(place: Path, header: DatasetHeader) -> ClipDataset | None:
    if not path_exists(place):
        return None
    try:
        clips = open_clip_dataset(place)
    except VoxgraftError:
        return None
    return clips if clips.header == header else None


def _find_clip_fault(ids: Int32Array, num_codes: int, frame: SequenceSpec) -> Finding | None:
    """What `train` would refuse in a clip."""
    barred = sorted(frame.forbidden_text_ids.intersection(ids.tolist()))
    if not len(ids) or not num_codes:
        return finding("clips-no-content", f"{len(ids)} text ids and {num_codes} codes", expected="some of each")
    if len(ids) > frame.max_text:
        return finding("clips-too-long", f"{len(ids):,} text ids", expected=f"at most {frame.max_text:,}")
    if num_codes > frame.max_codes:
        return finding("clips-too-long", f"{num_codes:,} codes", expected=f"at most {frame.max_codes:,}")
    return finding("clips-text-barred", f"the text id {barred[0]}") if barred else None


def _empty_dataset_error(name: str, place: Path, left_out: Mapping[str, Finding]) -> GraftError:
    first, item = next(iter(left_out.items()))
    found = f"all {len(left_out):,} clips for {name} are left out; the first, {first}: {item.code}, {item.found}"
    return GraftError("set-empty", found, where=place, cure=item.cure)


def _missing_audio_finding(one: SelectedClip) -> Finding:
    return finding("file-missing", f"{one.path.name} is not there", where=one.path)
