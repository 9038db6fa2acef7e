"""The verb `prepare`: from a manifest of clips to the sets that `train` reads, in the run's own `data/`.

Sound is encoded once, batch by batch, and kept at once: a `prepare` that was killed goes on where it was. With another
tokenizer only the texts are spelled anew.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft.audio.features import batch_by_length
from voxgraft.config.commands import EngineName, PrepareSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, Finding, GraftError, VoxgraftError, finding, raise_first_error
from voxgraft.core.results import Line, Table
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import (
    ROLE_BY_SPLIT,
    SelectedClip,
    SelectedClips,
    assign_voices,
    resolve_manifest_path,
    select_clips,
)
from voxgraft.dataset.run_data import DataRequirements, open_run_context, provenance_findings
from voxgraft.dataset.shards import AnyArray, ClipDataset, format_clip_names
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.load import choose_device
from voxgraft.preprocess.assemble import (
    CACHE_INDEX_NAME,
    CacheIndex,
    ClipRecord,
    EncodedClips,
    FileStamp,
    FrontEndFiles,
    PreparedDataset,
    PreparedDatasetWriter,
    compute_file_stamp,
    find_encoded_clips,
    fingerprint_front_end,
    read_cache_index,
    write_cache_index,
)
from voxgraft.preprocess.encode import (
    BatchStore,
    EncodeJob,
    EncodeResult,
    EncodeWorkerConfig,
    default_worker_count,
    encode_locally,
    encode_on_ray,
)

__all__ = ["PrepareResult", "prepare"]

BATCHES_FOLDER_NAME = "preparing"
"""In data/ of the run: batches that are in no set yet."""
ENGINES: dict[EngineName, Callable[[EncodeWorkerConfig, Sequence[EncodeJob], int], Iterator[EncodeResult]]] = {
    "local": encode_locally,
    "ray": encode_on_ray,
}


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """The sets, and what is not in them."""

    run: Path
    manifest: Path
    sets: tuple[PreparedDataset, ...]
    aside: Mapping[str, int]
    """Clips of the manifest that were not asked for, by reason."""
    num_encoded: int
    """Clips whose sound was encoded by this call; all others were there."""
    voices: Mapping[str, str]
    """Where the base has voices of its own: which stands for which speaker."""

    @property
    def exit_code(self) -> int:
        return 0

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
                one.name,
                *(f"{value:,}" for value in _count_clips(one.clips).values()),
                "written" if one.is_new else "as it was",
            )
            for one in self.sets
        )
        lines: list[Line] = [Table(("set", "clips", "minutes", "speakers", "recordings", ""), rows)]
        others = sum(len(one.clips) for one in self.sets) - self.num_encoded
        lines.append(f"{self.num_encoded:,} clips encoded now" + ("; all others were there" if others > 0 else ""))
        if self.aside:
            told = ", ".join(f"{count:,} {reason}" for reason, count in self.aside.items())
            lines.append(f"not asked for: {told}")
        lines += [line for item in self.findings() for line in item.lines()]
        if self.voices:
            told = ", ".join(f"{speaker} as {voice}" for speaker, voice in list(self.voices.items())[:8])
            more = f" and {len(self.voices) - 8} more" if len(self.voices) > 8 else ""
            lines.append(f"voices of the base: {told}{more} (--voices SPEAKER=VOICE)")
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
        work = _PrepareJob.open(settings, run, select_clips(manifest, _require_language(settings, run)))
        num_encoded = work.encode(settings)
        made = work.make_sets()
        work.finish(made)
        voices = {speaker: name for speaker, (name, _) in work.voices.items()}
        return PrepareResult(settings.run, manifest, made, work.chosen.aside, num_encoded, voices)


def _require_language(settings: PrepareSettings, run: RunFolder) -> str:
    if settings.language is None:
        raise ConfigError("config-missing", "`language` is not given", where=run.settings)
    return settings.language


@dataclass(slots=True)
class _PrepareJob:
    """One `prepare` on its way."""

    wanted: DataRequirements
    family: Family
    files: BaseFiles
    chosen: SelectedClips
    ledger: CacheIndex
    front_end: FrontEndFiles
    marks: Mapping[str, FileStamp]
    """Of sound files, by the id of the clip."""
    batches: BatchStore
    voices: Mapping[str, tuple[str, Mapping[str, AnyArray]]]
    unreadable_clips: Mapping[str, Finding]
    """Clips whose sound file cannot even be hashed, by id."""
    gone: dict[str, Finding] = field(default_factory=dict)
    """Clips that no worker could bring to an end this time, by key."""

    @classmethod
    def open(cls, settings: PrepareSettings, run: RunFolder, chosen: SelectedClips) -> _PrepareJob:
        """Everything that is needed before the first batch, and nothing that takes long but hashes."""
        with open_run_context(settings, settings.run) as context:
            # The base may be another than the one that the graft was made for.
            raise_first_error([*context.findings, *provenance_findings(context)])
            family, files = context.require_base()
            wanted = context.require_data()
        ledger = read_cache_index(run.data / CACHE_INDEX_NAME)
        own = fingerprint_front_end(family, files, wanted.graft.card.base["checkpoint_sha256"], ledger.files)
        named = {name: clip.voice for name, clip in family.voices(files).items()}
        speakers = [one.clip.speaker for one in chosen.clips]
        chosen_voices = assign_voices(speakers, named, settings.voices) if named else {}
        voices = {speaker: (name, named[name]) for speaker, name in chosen_voices.items()}
        unread: dict[str, Finding] = {}
        marks, batches = _hash_sound_files(chosen.clips, ledger, unread), BatchStore(run.data / BATCHES_FOLDER_NAME)
        return cls(wanted, family, files, chosen, ledger, own, marks, batches, voices, unread)

    @property
    def data(self) -> Path:
        return self.wanted.run.data

    def key(self, one: SelectedClip) -> str | None:
        mark = self.marks.get(one.clip.id)
        return self.front_end.key(mark[2]) if mark else None

    def encoded(self) -> EncodedClips:
        """What is there. Asked for anew when a set was written, since it took the place of another."""
        return find_encoded_clips(self.wanted.run, self.batches, self.ledger, self.front_end)

    def encode(self, settings: PrepareSettings) -> int:
        """Bring everything that is missing through the front end; how many clips have codes now that had none."""
        jobs = {job.name: job for job in self._jobs(settings.batch_seconds)}
        if not jobs:
            return 0
        self.batches.folder.mkdir(parents=True, exist_ok=True)
        device = choose_device(settings.device)
        # Absolute, since workers of a cluster stand in another folder.
        base, batches = (str(place.resolve()) for place in (self.files.folder, self.batches.folder))
        stage = EncodeWorkerConfig(self.family.name, base, device, batches)
        workers = settings.workers or default_worker_count(device, self._front_end_bytes())
        seconds = 0.0
        with progress.progress_task(
            "encoding, in seconds of sound", round(sum(job.seconds for job in jobs.values()))
        ) as advance:
            for outcome in ENGINES[settings.engine](stage, list(jobs.values()), workers):
                if outcome.refused is not None:
                    raise GraftError.of(outcome.refused)
                self.batches.add(outcome.name)
                self.gone |= outcome.gone
                before, seconds = seconds, seconds + jobs[outcome.name].seconds
                advance(round(seconds) - round(before))
        return sum(key in self.batches.places for job in jobs.values() for key, _ in job.clips)

    def _front_end_bytes(self) -> int:
        """The base itself is part of some front ends."""
        return self.files.checkpoint.stat().st_size + sum(size for size, _, _ in self.front_end.files.values())

    def _jobs(self, batch_seconds: float) -> list[EncodeJob]:
        """Batches of what is missing. Who goes with whom is decided over the whole manifest, done or not."""
        encoded = self.encoded()
        by_key = {key: one for one in self.chosen.clips if (key := self.key(one)) is not None}
        keys, clips = list(by_key), list(by_key.values())
        lengths = [max(1, round(one.clip.seconds * 1000)) for one in clips]
        jobs = []
        for places in batch_by_length(lengths, round(batch_seconds * 1000)):
            missing = [place for place in places if not encoded.has(keys[place])]
            if missing:
                pairs = tuple((keys[place], str(clips[place].path.resolve())) for place in missing)
                name = hashlib.sha256(json.dumps([key for key, _ in pairs]).encode()).hexdigest()[:32]
                jobs.append(EncodeJob(name, pairs, sum(lengths[place] for place in missing) / 1000))
        return jobs

    def make_sets(self) -> tuple[PreparedDataset, ...]:
        """One after the other, each whole or as it was."""
        made: list[PreparedDataset] = []
        encoded = self.encoded()
        for role in ROLE_BY_SPLIT.values():
            encoded = self.encoded() if made and made[-1].is_new else encoded
            maker = PreparedDatasetWriter(self.wanted, self.front_end, encoded, self.family.code_hz, self.voices)
            clips = [(one, self.key(one)) for one in self.chosen.clips if one.role == role]
            made.append(self._explain_left_out(maker.make(role, role, clips)))
        return tuple(made)

    def _explain_left_out(self, made: PreparedDataset) -> PreparedDataset:
        """The same with the true reason for clips that have no hash or that no worker has brought to an end."""
        keys = {one.clip.id: self.key(one) for one in self.chosen.clips}
        told = {
            name: self.unreadable_clips.get(name) or self.gone.get(keys[name] or "", item)
            for name, item in made.left_out.items()
        }
        return replace(made, left_out=told)

    def finish(self, made: Sequence[PreparedDataset]) -> None:
        """Write down what became of each clip; batches are not needed any more."""
        sets = {info.id: one.name for one in made for info in one.clips.infos}
        left_out = {name: item for one in made for name, item in one.left_out.items()}
        records = [
            ClipRecord(
                one.clip.id,
                one.clip.audio,
                self.key(one),
                self.marks.get(one.clip.id),
                sets.get(one.clip.id),
                left_out.get(one.clip.id),
            )
            for one in self.chosen.clips
        ]
        fingerprints = {one.name: one.clips.fingerprint for one in made}
        write_cache_index(self.data / CACHE_INDEX_NAME, fingerprints, self.front_end.files, records)
        shutil.rmtree(self.batches.folder, ignore_errors=True)


def _hash_sound_files(
    clips: Sequence[SelectedClip], ledger: CacheIndex, unread: dict[str, Finding]
) -> dict[str, FileStamp]:
    """Hashes of all sound files. One that is gone is known by what the ledger says of it; faults go into `unread`."""
    marks: dict[str, FileStamp] = {}
    with progress.progress_task("looking at sound files", len(clips)) as advance:
        for one in clips:
            record = ledger.clips.get(one.clip.id)
            known = record.file if record is not None and record.audio == one.clip.audio else None
            try:
                mark = compute_file_stamp(one.path, known) or known
            except VoxgraftError as error:
                unread[one.clip.id], mark = error.finding, None
            if mark is not None:
                marks[one.clip.id] = mark
            advance(1)
    return marks


def _count_clips(clips: ClipDataset) -> dict[str, float]:
    infos = clips.infos[: len(clips)]
    return {
        "clips": len(clips),
        "minutes": round(sum(info.seconds for info in infos) / 60, 1),
        "speakers": len({info.speaker for info in infos}),
        "recordings": len({info.recording for info in infos}),
    }
