"""The command `prepare`: from a manifest of clips to the sets that `train` reads, in the run's `data/`.

Audio is encoded once, batch by batch, and each batch is kept on disk: a `prepare` that was killed resumes. Clips that
are already in a set are taken from there: with another tokenizer only texts are encoded again, and no audio is read.
`prepared.jsonl` records what became of every clip.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from voxgraft.audio.features import batch_by_length
from voxgraft.config.commands import PrepareSettings
from voxgraft.core import progress
from voxgraft.core.errors import (
    ConfigError,
    FileError,
    Finding,
    GraftError,
    TextError,
    VoxgraftError,
    finding,
    raise_first_error,
)
from voxgraft.core.files import atomic_write, compute_sha256, is_file, parse_json, path_exists, read_lines
from voxgraft.core.results import Line, Table
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ROLE_BY_SPLIT, ManifestClip, assign_voices, resolve_manifest_path, select_clips
from voxgraft.dataset.run_data import (
    DataRequirements,
    describe_prepare_step,
    describe_remake_step,
    open_run_context,
    provenance_findings,
)
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import (
    AnyArray,
    ClipDataset,
    DatasetHeader,
    DatasetProvenance,
    DatasetRole,
    Int32Array,
    format_clip_names,
    read_dataset_index,
)
from voxgraft.models.base import BaseFiles, Clip, Family, SequenceSpec
from voxgraft.models.speech_model import choose_device
from voxgraft.preprocess.encode import (
    BatchStore,
    EncodeJob,
    EncodeWorkerConfig,
    default_worker_count,
    encode_locally,
    encode_on_ray,
)
from voxgraft.text.encoder import EncodedText, text_rules_identity

# In data/ of the run: batches that are in no set yet.
BATCHES_FOLDER_NAME = "preparing"
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
        clips, index = self.in_sets[key]
        return int(clips.num_codes[index])

    def read(self, key: str) -> tuple[float, AnyArray, Mapping[str, AnyArray]]:
        """Seconds, codes and voice of a clip without a fault."""
        if key in self.batches.places:
            return self.batches.read(key)
        clips, index = self.in_sets[key]
        return clips.infos[index].seconds, clips.codes(index), clips.voice(index)


def list_foreign_voices(family: Family, files: BaseFiles) -> list[Mapping[str, AnyArray]]:
    """Voices that no clip of a set may have: those by name of a base that learns from each clip in its own voice.

    Versions before 2026-11-19 gave them to all clips.
    """
    return [clip.voice for clip in family.voices(files).values()] if family.can_clone_voices(files) else []


def is_one_of(voice: Mapping[str, AnyArray], others: Iterable[Mapping[str, AnyArray]]) -> bool:
    """Whether two voices have the same arrays, to the bit."""
    return any(
        voice.keys() == other.keys() and all(np.array_equal(voice[name], other[name]) for name in voice)
        for other in others
    )


def find_encoded_clips(
    run: RunFolder,
    batches: BatchStore,
    ledger: CacheIndex,
    front_end: FrontEndFiles,
    foreign_voices: Sequence[Mapping[str, AnyArray]] = (),
) -> EncodedClips:
    """What need not be encoded. Ignores sets that are damaged, of another front end, or not those of the ledger.

    Clips with one of the `foreign_voices`, which are no recording's, are encoded again.
    """
    in_sets: dict[str, tuple[ClipDataset, int]] = {}
    keys = {record.id: record.key for record in ledger.clips.values() if record.key and record.set}
    expected = {"made_from": {"base_sha256": front_end.base_sha256, "front_end": front_end.made_from}}
    for name, fingerprint in ledger.sets.items():
        # `.previous`: another set was just written in its place, and the ledger is written last.
        for folder in (run.data_set(name), run.data_set(f"{name}.previous")):
            try:
                if not path_exists(folder) or read_dataset_index(folder).fingerprint != fingerprint:
                    continue
                clips = open_clip_dataset(folder, expected=expected, verify="hashes")
            except VoxgraftError:
                continue
            for at, info in enumerate(clips.infos):
                key = keys.get(info.id)
                if key is not None and not (foreign_voices and is_one_of(clips.voice(at), foreign_voices)):
                    in_sets[key] = clips, at
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
    requirements: DataRequirements,
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
    fitting: list[tuple[ManifestClip, str, Int32Array, Sequence[bool]]] = []
    with progress.progress_task(f"encoding the texts of {role}", len(clips)) as advance:
        for clip, path, key in clips:
            advance(1)
            if key is None or not encoded.has(key):
                left_out[clip.id] = finding("file-missing", f"{path.name} does not exist", where=path)
                continue
            # Texts are encoded again by every `prepare`: that is cheap, and the tokenizer may have changed.
            text = requirements.text_encoder.encode_text(clip.text, requirements.language)
            ids = np.asarray(text.ids, dtype=np.int32)
            fault = encoded.fault(key)
            if fault is None and not any(map(str.isalnum, clip.text)):
                fault = finding("clips-no-content", f"the text {clip.text!r} has no letters", expected="words")
            if fault is None:
                fault = _find_span_fault(requirements, clip, text)
            fault = fault or _find_clip_fault(ids, encoded.num_codes(key), requirements.spec)
            if fault is None:
                fitting.append((clip, key, ids, text.closed or ()))
            else:
                left_out[clip.id] = fault
    folder = requirements.run.data_set(role)
    if not fitting:
        first, item = next(iter(left_out.items()))
        item = _name_remake_step(requirements, item, next(path for clip, path, _ in clips if clip.id == first))
        found = f"all {len(left_out):,} clips for {role} are left out; the first, {first}: {item.code}, {item.found}"
        raise GraftError("set-empty", found, where=folder, cure=item.cure)
    # One hash over everything that the set is made of, so that the next `prepare` sees whether it would make the same.
    digest = hashlib.sha256()
    for clip, key, _, closed in fitting:
        voice = voices[clip.speaker][0] if voices else ""
        made_of = [clip.id, clip.speaker, clip.recording, clip.text, key, voice]
        # Versions before spans read their markers letter by letter.
        made_of += ["spans"] if closed else []
        digest.update(json.dumps(made_of).encode() + b"\n")
    card = requirements.graft.card
    made_from = DatasetProvenance(
        card.tokenizer_sha256,
        card.base["checkpoint_sha256"],
        front_end.made_from,
        {"clips_sha256": digest.hexdigest()},
        text_rules_identity(card.rules),
    )
    header = DatasetHeader(card.family, card.language, role, requirements.family.code_hz, made_from)
    # Hashes are compared too: a damaged set is written again.
    try:
        existing = open_clip_dataset(folder) if path_exists(folder) else None
    except VoxgraftError:
        existing = None
    if existing is not None and existing.header == header:
        return PreparedDataset(role, existing, left_out, False)

    def iter_prepared() -> Iterator[Clip]:
        with progress.progress_task(f"writing {role}", len(fitting)) as advance:
            for clip, key, ids, closed in fitting:
                seconds, codes, voice = encoded.read(key)
                voice = voices[clip.speaker][1] if voices else voice
                yield Clip(codes, voice, ids, clip.id, clip.speaker, clip.recording, seconds, clip.text, closed)
                advance(1)

    write_clip_dataset(folder, header, iter_prepared())
    return PreparedDataset(role, open_clip_dataset(folder), left_out, True)


def _name_remake_step(requirements: DataRequirements, item: Finding, path: Path) -> Finding:
    """With the command that writes the clip's file again, where that is what the clip needs."""
    if item.code not in ("file-missing", "sound-broken"):
        return item
    return replace(item, cure=describe_remake_step(requirements.run, requirements.settings, path) or item.cure)


def _find_span_fault(requirements: DataRequirements, clip: ManifestClip, text: EncodedText) -> Finding | None:
    """Spans that cannot be read, or that leave no word in the new language."""
    try:
        requirements.text_encoder.require_spans(clip.text, f"clip {clip.id}, {clip.source}")
    except TextError as error:
        return error.finding
    if requirements.text_encoder.is_new_language(text.language):
        return None
    found = f"all words of {clip.text!r:.80} are in spans of other languages"
    return finding("text-span", found, expected=f"words in {requirements.language}", where=f"clip {clip.id}")


def _find_clip_fault(ids: Int32Array, num_codes: int, spec: SequenceSpec) -> Finding | None:
    """What `train` would refuse in a clip."""
    forbidden_ids = sorted(spec.forbidden_text_ids.intersection(ids.tolist()))
    if not len(ids) or not num_codes:
        return finding(
            "clips-no-content", f"the clip has {len(ids)} text ids and {num_codes} codes", expected="some of each"
        )
    if len(ids) > spec.max_text:
        return finding("clips-too-long", f"the clip has {len(ids):,} text ids", expected=f"at most {spec.max_text:,}")
    if num_codes > spec.max_codes:
        return finding("clips-too-long", f"the clip has {num_codes:,} codes", expected=f"at most {spec.max_codes:,}")
    return finding("clips-text-barred", f"the text contains the id {forbidden_ids[0]}") if forbidden_ids else None


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """The sets, and what is not in them."""

    run: Path
    manifest: Path
    sets: tuple[PreparedDataset, ...]
    aside: Mapping[str, int]
    """Number of clips of the manifest that were not selected, by reason."""
    num_encoded: int
    """Clips that this call encoded; all others were encoded before."""
    voices: Mapping[str, str]
    """For bases with voices of their own: the voice of each speaker."""
    exit_code: int = 0

    @property
    def left_out(self) -> dict[str, Finding]:
        return {name: item for one in self.sets for name, item in one.left_out.items()}

    @property
    def next_command(self) -> str:
        return f"voxgraft train {shlex.quote(str(self.run))}"

    def to_json(self) -> dict[str, Any]:
        return {
            "manifest": str(self.manifest),
            "sets": {one.name: {**_count_clips(one.clips), "written": one.is_new} for one in self.sets},
            "encoded": self.num_encoded,
            "aside": dict(self.aside),
            "left_out": {name: item.to_json() for name, item in self.left_out.items()},
            "voices": dict(self.voices),
            "next": self.next_command,
        }

    def lines(self) -> list[Line]:
        rows = tuple(
            (
                prepared.name,
                *(f"{value:,}" for value in _count_clips(prepared.clips).values()),
                "written" if prepared.is_new else "unchanged",
            )
            for prepared in self.sets
        )
        lines: list[Line] = [Table(("set", "clips", "minutes", "speakers", "recordings", "state"), rows)]
        others = sum(len(prepared.clips) for prepared in self.sets) - self.num_encoded
        lines.append(f"{self.num_encoded:,} clips encoded now" + ("; the others existed already" if others > 0 else ""))
        if self.aside:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in self.aside.items())
            lines.append(f"not encoded: {listed}")
        lines += [line for item in self.findings() for line in item.lines()]
        if self.voices:
            listed = ", ".join(f"{speaker}: {voice}" for speaker, voice in list(self.voices.items())[:8])
            more = f" and {len(self.voices) - 8} more" if len(self.voices) > 8 else ""
            lines.append(f"voice of each speaker: {listed}{more}. Change it with --voices SPEAKER=VOICE")
        return [*lines, f"next: {self.next_command}"]

    def findings(self) -> list[Finding]:
        """One for each kind of fault, with the first clips that have it."""
        found = []
        where = self.run / "data" / CACHE_INDEX_NAME
        for code, count in Counter(item.code for item in self.left_out.values()).most_common():
            names = [name for name, item in self.left_out.items() if item.code == code]
            first = self.left_out[names[0]]
            text = f"{count:,} clips are left out, {code}: {format_clip_names(names)} (the first: {first.found})"
            found.append(finding("prepare-left-out", text, where=where, cure=first.cure))
        return found


def prepare(settings: PrepareSettings) -> PrepareResult:
    """Make data/train and data/valid of a run, or bring them up to date."""
    run = RunFolder(settings.run)
    manifest = resolve_manifest_path(settings.manifest or settings.data.dataset, run.data)
    with run.lock("prepare"):
        if settings.language is None:
            raise ConfigError("config-missing", "`language` is not given", where=run.settings)
        if settings.manifest is None and not is_file(manifest):
            cure = describe_prepare_step(run, settings)
            raise FileError("dataset-missing", f"{manifest} is missing", where=run.path, cure=cure)
        clips, aside = select_clips(manifest, settings.language)
        job = _PrepareJob(settings, run, clips, manifest.parent)
        num_encoded = job.encode(settings)
        sets = job.make_sets()
        job.finish(sets)
        voices = {speaker: name for speaker, (name, _) in job.voices.items()}
        return PrepareResult(settings.run, manifest, sets, aside, num_encoded, voices)


class _PrepareJob:
    """One call of `prepare`: everything that is known before the first batch is encoded."""

    def __init__(
        self, settings: PrepareSettings, run: RunFolder, clips: Sequence[ManifestClip], clips_folder: Path
    ) -> None:
        with open_run_context(settings, settings.run) as context:
            # The base may be another than the one that the graft was made for.
            raise_first_error([*context.findings, *provenance_findings(context)])
            self.family, self.files = context.require_base()
            self.wanted = context.require_data()
        self.clips = clips
        self.paths = {clip.id: clip.resolve_audio(clips_folder) for clip in clips}
        self.ledger = read_cache_index(run.data / CACHE_INDEX_NAME)
        base_sha256 = self.wanted.graft.card.base["checkpoint_sha256"]
        self.front_end = fingerprint_front_end(self.family, self.files, base_sha256, self.ledger.files)
        self.batches = BatchStore(run.data / BATCHES_FOLDER_NAME)
        named = {name: clip.voice for name, clip in self.family.voices(self.files).items()}
        # Bases whose voices are fixed: the voice of each speaker, as its name and arrays. All others learn from each
        # clip in its own voice, also where they have voices by name for speaking.
        self.voices: dict[str, tuple[str, Mapping[str, AnyArray]]] = {}
        self.foreign_voices = list_foreign_voices(self.family, self.files)
        if self.family.can_clone_voices(self.files):
            if settings.voices:
                found = f"--voices {settings.voices[0]} is given, but this base clones the voice of each clip"
                raise ConfigError("config-value", found, expected="a base with fixed voices", cure="omit --voices.")
        else:
            chosen = assign_voices([clip.speaker for clip in clips], named, settings.voices)
            self.voices = {speaker: (name, named[name]) for speaker, name in chosen.items()}
        self.marks: dict[str, FileStamp] = {}
        self.unreadable: dict[str, Finding] = {}  # clips whose audio file cannot even be hashed, by id
        self.gone: dict[str, Finding] = {}  # clips that no worker could finish this time, by key
        with progress.progress_task("checking audio files", len(clips)) as advance:
            for clip in clips:
                record = self.ledger.clips.get(clip.id)
                known = record.file if record is not None and record.audio == clip.audio else None
                try:
                    # A file that is gone keeps the stamp of the ledger: its codes may still be there.
                    mark = compute_file_stamp(self.paths[clip.id], known) or known
                except VoxgraftError as error:
                    self.unreadable[clip.id], mark = error.finding, None
                if mark is not None:
                    self.marks[clip.id] = mark
                advance(1)
        self.keys = {name: self.front_end.key(mark[2]) for name, mark in self.marks.items()}

    def encode(self, settings: PrepareSettings) -> int:
        """Encode everything that is missing; returns how many clips have codes now that had none."""
        encoded = self._find_encoded()
        by_key = {self.keys[clip.id]: clip for clip in self.clips if clip.id in self.keys}
        keys, clips = list(by_key), list(by_key.values())
        lengths = [max(1, round(clip.seconds * 1000)) for clip in clips]
        jobs: dict[str, EncodeJob] = {}
        # Batches are planned over the whole manifest, so that those of a killed `prepare` are planned the same way.
        for indices in batch_by_length(lengths, round(settings.batch_seconds * 1000)):
            missing = [place for place in indices if not encoded.has(keys[place])]
            if missing:
                pairs = tuple((keys[place], str(self.paths[clips[place].id].resolve())) for place in missing)
                name = hashlib.sha256(json.dumps([key for key, _ in pairs]).encode()).hexdigest()[:32]
                jobs[name] = EncodeJob(name, pairs, sum(lengths[place] for place in missing) / 1000)
        if not jobs:
            return 0
        self.batches.folder.mkdir(parents=True, exist_ok=True)
        device = choose_device(settings.device)
        # Absolute paths: workers of a cluster have another working directory.
        base, batches = (str(place.resolve()) for place in (self.files.folder, self.batches.folder))
        stage = EncodeWorkerConfig(self.family.name, base, device, batches)
        # Some front ends use the base itself, so its size counts too.
        side_bytes = sum(size for size, _, _ in self.front_end.files.values())
        workers = settings.workers or default_worker_count(device, self.files.checkpoint.stat().st_size + side_bytes)
        engine = encode_locally if settings.engine == "local" else encode_on_ray
        seconds, total = 0.0, sum(job.seconds for job in jobs.values())
        with progress.progress_task("seconds of audio encoded", round(total)) as advance:
            for outcome in engine(stage, list(jobs.values()), workers):
                if outcome.refused is not None:
                    raise GraftError.of(outcome.refused)
                self.batches.add(outcome.name)
                self.gone |= outcome.gone
                before, seconds = seconds, seconds + jobs[outcome.name].seconds
                advance(round(seconds) - round(before))
        return sum(key in self.batches.places for job in jobs.values() for key, _ in job.clips)

    def _find_encoded(self) -> EncodedClips:
        parts = (self.wanted.run, self.batches, self.ledger, self.front_end)
        return find_encoded_clips(*parts, self.foreign_voices)

    def make_sets(self) -> tuple[PreparedDataset, ...]:
        """Make one set after the other, each complete or as it was."""
        prepared_sets: list[PreparedDataset] = []
        for split, role in ROLE_BY_SPLIT.items():
            if not prepared_sets or prepared_sets[-1].is_new:  # a set that was written took the place of another
                encoded = self._find_encoded()
            clips = [(clip, self.paths[clip.id], self.keys.get(clip.id)) for clip in self.clips if clip.split == split]
            prepared = make_prepared_dataset(self.wanted, self.front_end, encoded, self.voices, role, clips)
            # The true reason for clips without a hash, and for those that no worker could finish.
            left_out = {
                name: self.unreadable.get(name) or self.gone.get(self.keys.get(name, ""), item)
                for name, item in prepared.left_out.items()
            }
            left_out = {name: _name_remake_step(self.wanted, item, self.paths[name]) for name, item in left_out.items()}
            prepared_sets.append(prepared._replace(left_out=left_out))
        return tuple(prepared_sets)

    def finish(self, prepared_sets: Sequence[PreparedDataset]) -> None:
        """Record what became of each clip, and delete the batches: every clip is in a set now, or left out."""
        sets = {info.id: prepared.name for prepared in prepared_sets for info in prepared.clips.infos}
        left_out = {name: item for prepared in prepared_sets for name, item in prepared.left_out.items()}
        records = [
            ClipRecord(
                clip.id,
                clip.audio,
                self.keys.get(clip.id),
                self.marks.get(clip.id),
                sets.get(clip.id),
                left_out.get(clip.id),
            )
            for clip in self.clips
        ]
        fingerprints = {prepared.name: prepared.clips.fingerprint for prepared in prepared_sets}
        write_cache_index(self.wanted.run.data / CACHE_INDEX_NAME, fingerprints, self.front_end.files, records)
        shutil.rmtree(self.batches.folder, ignore_errors=True)


def _count_clips(clips: ClipDataset) -> dict[str, float]:
    infos = clips.infos[: len(clips)]
    return {
        "clips": len(clips),
        "minutes": round(sum(info.seconds for info in infos) / 60, 1),
        "speakers": len({info.speaker for info in infos}),
        "recordings": len({info.recording for info in infos}),
    }
