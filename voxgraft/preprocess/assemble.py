"""Build the sets of a run from encoded clips: text ids by the run's tokenizer, codes, voices, in manifest order.

Clips that are already in a set are taken from there. After a change of the tokenizer only texts are encoded again, and
no audio is read. `prepared.jsonl` records what became of every clip.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from voxgraft.core import progress
from voxgraft.core.errors import FileError, Finding, GraftError, VoxgraftError, finding
from voxgraft.core.files import atomic_write, compute_sha256, is_file, parse_json, path_exists, read_lines
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ManifestClip
from voxgraft.dataset.run_data import DataRequirements
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    read_dataset_index,
)
from voxgraft.models.base import BaseFiles, Clip, Family, SequenceSpec
from voxgraft.preprocess.encode import BatchStore
from voxgraft.text.encoder import text_rules_identity

CACHE_INDEX_NAME = "prepared.jsonl"
CACHE_INDEX_FORMAT = "voxgraft-prepared-1"
# Version of our own code between an audio file and its codes. Another number makes all codes again.
ENCODING_VERSION = 1
FileStamp = tuple[int, int, str]
"""Size in bytes, mtime in nanoseconds, and SHA-256 of a file."""
# Faults of the audio itself: the same bytes have them again, so that the clip is not tried a second time.
PERMANENT_FAULT_CODES = frozenset(
    (
        *("audio-shape", "audio-scale", "audio-not-finite", "audio-too-short", "audio-too-long", "audio-silent"),
        "sound-broken",
    )
)


@dataclass(frozen=True, slots=True)
class ClipRecord:
    """What `prepare` did with one clip of the manifest: one line of `prepared.jsonl`."""

    id: str
    audio: str
    """As in the manifest."""
    key: str | None = None
    """Key of its codes; None if its audio was never read."""
    file: FileStamp | None = None
    set: str | None = None
    """The set that it is in."""
    left_out: Finding | None = None
    """Why it is in none."""


@dataclass(frozen=True, slots=True)
class CacheIndex:
    """`prepared.jsonl`: all clips, and the fingerprints of the sets that they are in."""

    sets: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileStamp] = field(default_factory=dict)
    """Files of the front end, by name."""
    clips: Mapping[str, ClipRecord] = field(default_factory=dict)


def read_cache_index(path: Path) -> CacheIndex:
    """What an earlier `prepare` wrote; empty if there is none or it cannot be read."""
    if not is_file(path):
        return CacheIndex()
    records: dict[str, ClipRecord] = {}
    try:
        head, *lines = (parse_json(text, path) for _, text in read_lines(path))
        for line in lines:
            left_out, file = line.pop("left_out"), line.pop("file")
            stamp = _parse_stamp(file) if file else None
            record = ClipRecord(**line, file=stamp, left_out=Finding(**left_out) if left_out else None)
            records[record.id] = record
        if head["format"] != CACHE_INDEX_FORMAT:
            return CacheIndex()
        files = {str(name): _parse_stamp(mark) for name, mark in head["files"].items()}
        sets = {str(name): str(fingerprint) for name, fingerprint in head["sets"].items()}
    except (VoxgraftError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return CacheIndex()
    return CacheIndex(sets, files, records)


def _parse_stamp(values: Any) -> FileStamp:
    size, changed, sha256 = values
    return int(size), int(changed), str(sha256)


def write_cache_index(
    path: Path, sets: Mapping[str, str], files: Mapping[str, FileStamp], clips: Sequence[ClipRecord]
) -> None:
    """Write `prepared.jsonl` atomically: a header line, then one line per clip."""
    head = {"format": CACHE_INDEX_FORMAT, "sets": dict(sets), "files": dict(files)}
    with atomic_write(path, overwrite=True) as stream:
        stream.write(json.dumps(head).encode() + b"\n")
        for clip in clips:
            stream.write(json.dumps(asdict(clip), ensure_ascii=False).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class FrontEndFiles:
    """The front end of one base, identified by its files."""

    files: Mapping[str, FileStamp]
    base_sha256: str

    @property
    def made_from(self) -> dict[str, object]:
        """As set.json states it."""
        return {"version": ENCODING_VERSION, **{name: sha256 for name, (_, _, sha256) in self.files.items()}}

    def key(self, sound_sha256: str) -> str:
        """The key of the codes of an audio file."""
        parts = json.dumps([self.made_from, self.base_sha256, sound_sha256], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()


def fingerprint_front_end(
    family: Family, files: BaseFiles, base_sha256: str, known: Mapping[str, FileStamp]
) -> FrontEndFiles:
    """The front end of a base folder; an error that names the file that is missing."""
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
    """The stamp of a file; None if it is missing. A file with the known size and mtime is not hashed again."""
    if not is_file(path):
        return None
    status = path.stat()
    if known is not None and known[:2] == (status.st_size, status.st_mtime_ns):
        return known
    return status.st_size, status.st_mtime_ns, compute_sha256(path)


@dataclass(frozen=True, slots=True)
class EncodedClips:
    """Every encoded clip, by key: in the sets of an earlier `prepare`, and in batches that are in no set yet."""

    batches: BatchStore
    in_sets: Mapping[str, tuple[ClipDataset, int]] = field(default_factory=dict)
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """Faults that an earlier `prepare` found in audio that is still the same."""

    def has(self, key: str) -> bool:
        return key in self.in_sets or key in self.batches.places or self.fault(key) is not None

    def fault(self, key: str) -> Finding | None:
        return self.batches.failed.get(key) or self.failed.get(key)

    def num_codes(self, key: str) -> int:
        """The number of codes of a clip without a fault, without reading them."""
        if key in self.batches.places:
            return self.batches.places[key][3]
        clips, place = self.in_sets[key]
        return int(clips.num_codes[place])

    def read(self, key: str) -> tuple[float, AnyArray, Mapping[str, AnyArray]]:
        """Seconds, codes and voice of a clip without a fault."""
        if key in self.batches.places:
            return self.batches.read(key)
        clips, place = self.in_sets[key]
        return clips.infos[place].seconds, clips.codes(place), clips.voice(place)


def find_encoded_clips(
    run: RunFolder, batches: BatchStore, ledger: CacheIndex, front_end: FrontEndFiles
) -> EncodedClips:
    """What need not be encoded. Ignores sets that are damaged, of another front end, or not those of the ledger."""
    in_sets: dict[str, tuple[ClipDataset, int]] = {}
    keys = {record.id: record.key for record in ledger.clips.values() if record.key and record.set}
    expected = {"made_from": {"base_sha256": front_end.base_sha256, "front_end": front_end.made_from}}
    for name, fingerprint in ledger.sets.items():
        # `.previous`: another set was just written in its place, and the ledger is written last.
        for place in (run.data_set(name), run.data_set(f"{name}.previous")):
            try:
                if not path_exists(place) or read_dataset_index(place).fingerprint != fingerprint:
                    continue
                clips = open_clip_dataset(place, expected=expected, verify="hashes")
            except VoxgraftError:
                continue
            own = ((keys.get(info.id), at) for at, info in enumerate(clips.infos))
            in_sets |= {key: (clips, at) for key, at in own if key is not None}
            break
    failed = {
        one.key: one.left_out
        for one in ledger.clips.values()
        if one.key is not None and one.left_out and one.left_out.code in PERMANENT_FAULT_CODES
    }
    return EncodedClips(batches, in_sets, failed)


class PreparedDataset(NamedTuple):
    """A set as it is now, and the clips that could not go into it."""

    name: str
    clips: ClipDataset
    left_out: Mapping[str, Finding]
    """By id."""
    is_new: bool
    """Whether it was written; False if it existed already with the same clips."""


def make_prepared_dataset(
    wanted: DataRequirements,
    front_end: FrontEndFiles,
    encoded: EncodedClips,
    voices: Mapping[str, tuple[str, Mapping[str, AnyArray]]],
    role: DatasetRole,
    clips: Sequence[tuple[ManifestClip, Path, str | None]],
) -> PreparedDataset:
    """Write one set of a run, or leave it alone if it is up to date.

    `clips` have their audio file and key (None: no audio). `voices` are, by speaker, the name of the base's own
    voice and its arrays; empty for bases that take their voices from recordings.
    """
    left_out: dict[str, Finding] = {}
    fitting: list[tuple[ManifestClip, str, Int32Array]] = []
    with progress.progress_task(f"encoding the texts of {role}", len(clips)) as advance:
        for clip, path, key in clips:
            advance(1)
            if key is None or not encoded.has(key):
                left_out[clip.id] = finding("file-missing", f"{path.name} does not exist", where=path)
                continue
            # Texts are encoded again by every `prepare`: that is cheap, and the tokenizer may have changed.
            ids = np.asarray(wanted.text_encoder.encode(clip.text, wanted.language), dtype=np.int32)
            fault = encoded.fault(key)
            if fault is None and not any(map(str.isalnum, clip.text)):
                fault = finding("clips-no-content", f"the text {clip.text!r} has no letters", expected="words")
            fault = fault or _find_clip_fault(ids, encoded.num_codes(key), wanted.frame)
            if fault is None:
                fitting.append((clip, key, ids))
            else:
                left_out[clip.id] = fault
    place = wanted.run.data_set(role)
    if not fitting:
        first, item = next(iter(left_out.items()))
        found = f"all {len(left_out):,} clips for {role} are left out; the first, {first}: {item.code}, {item.found}"
        raise GraftError("set-empty", found, where=place, cure=item.cure)
    # One hash over everything that the set is made of, so that the next `prepare` sees whether it would make the same.
    digest = hashlib.sha256()
    for clip, key, _ in fitting:
        voice = voices[clip.speaker][0] if voices else ""
        digest.update(json.dumps([clip.id, clip.speaker, clip.recording, clip.text, key, voice]).encode() + b"\n")
    card = wanted.graft.card
    made_from = DatasetProvenance(
        card.tokenizer_sha256,
        card.base["checkpoint_sha256"],
        front_end.made_from,
        {"clips_sha256": digest.hexdigest()},
        text_rules_identity(card.rules),
    )
    header = DatasetHeader(card.family, card.language, role, wanted.family.code_hz, made_from)
    # Hashes are compared too: a damaged set is written again.
    try:
        there = open_clip_dataset(place) if path_exists(place) else None
    except VoxgraftError:
        there = None
    if there is not None and there.header == header:
        return PreparedDataset(role, there, left_out, False)

    def iter_prepared() -> Iterator[Clip]:
        with progress.progress_task(f"writing {role}", len(fitting)) as advance:
            for clip, key, ids in fitting:
                seconds, codes, voice = encoded.read(key)
                voice = voices[clip.speaker][1] if voices else voice
                yield Clip(codes, voice, ids, clip.id, clip.speaker, clip.recording, seconds, clip.text)
                advance(1)

    write_clip_dataset(place, header, iter_prepared())
    return PreparedDataset(role, open_clip_dataset(place), left_out, True)


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
