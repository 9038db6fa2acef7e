"""The command `prepare`: from a manifest of clips to the sets that `train` reads, in the run's `data/`.

Audio is encoded once, batch by batch, and each batch is kept on disk: a `prepare` that was killed resumes. With another
tokenizer only the texts are encoded again.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.audio.features import batch_by_length
from voxgraft.config.commands import PrepareSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, Finding, GraftError, VoxgraftError, finding, raise_first_error
from voxgraft.core.results import Line, Table
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ROLE_BY_SPLIT, ManifestClip, assign_voices, resolve_manifest_path, select_clips
from voxgraft.dataset.run_data import open_run_context, provenance_findings
from voxgraft.dataset.shards import ClipDataset, format_clip_names
from voxgraft.models.speech_model import choose_device
from voxgraft.preprocess.assemble import (
    CACHE_INDEX_NAME,
    ClipRecord,
    FileStamp,
    PreparedDataset,
    compute_file_stamp,
    find_encoded_clips,
    fingerprint_front_end,
    make_prepared_dataset,
    read_cache_index,
    write_cache_index,
)
from voxgraft.preprocess.encode import (
    BatchStore,
    EncodeJob,
    EncodeWorkerConfig,
    default_worker_count,
    encode_locally,
    encode_on_ray,
)

__all__ = ["PrepareResult", "prepare"]

# In data/ of the run: batches that are in no set yet.
BATCHES_FOLDER_NAME = "preparing"


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
                one.name,
                *(f"{value:,}" for value in _count_clips(one.clips).values()),
                "written" if one.is_new else "unchanged",
            )
            for one in self.sets
        )
        lines: list[Line] = [Table(("set", "clips", "minutes", "speakers", "recordings", ""), rows)]
        others = sum(len(one.clips) for one in self.sets) - self.num_encoded
        lines.append(f"{self.num_encoded:,} clips encoded now" + ("; the others existed already" if others > 0 else ""))
        if self.aside:
            told = ", ".join(f"{count:,} {reason}" for reason, count in self.aside.items())
            lines.append(f"not selected: {told}")
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
        if settings.language is None:
            raise ConfigError("config-missing", "`language` is not given", where=run.settings)
        clips, aside = select_clips(manifest, settings.language)
        work = _PrepareJob(settings, run, clips, manifest.parent)
        num_encoded = work.encode(settings)
        made = work.make_sets()
        work.finish(made)
        voices = {speaker: name for speaker, (name, _) in work.voices.items()}
        return PrepareResult(settings.run, manifest, made, aside, num_encoded, voices)


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
        # Bases with voices of their own: the voice of each speaker, as its name and arrays.
        named = {name: clip.voice for name, clip in self.family.voices(self.files).items()}
        chosen = assign_voices([clip.speaker for clip in clips], named, settings.voices) if named else {}
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
        encoded = find_encoded_clips(self.wanted.run, self.batches, self.ledger, self.front_end)
        by_key = {self.keys[clip.id]: clip for clip in self.clips if clip.id in self.keys}
        keys, clips = list(by_key), list(by_key.values())
        lengths = [max(1, round(clip.seconds * 1000)) for clip in clips]
        jobs: dict[str, EncodeJob] = {}
        # Batches are planned over the whole manifest, so that those of a killed `prepare` are planned the same way.
        for places in batch_by_length(lengths, round(settings.batch_seconds * 1000)):
            missing = [place for place in places if not encoded.has(keys[place])]
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
        with progress.progress_task("encoding (seconds of audio)", round(total)) as advance:
            for outcome in engine(stage, list(jobs.values()), workers):
                if outcome.refused is not None:
                    raise GraftError.of(outcome.refused)
                self.batches.add(outcome.name)
                self.gone |= outcome.gone
                before, seconds = seconds, seconds + jobs[outcome.name].seconds
                advance(round(seconds) - round(before))
        return sum(key in self.batches.places for job in jobs.values() for key, _ in job.clips)

    def make_sets(self) -> tuple[PreparedDataset, ...]:
        """Make one set after the other, each complete or as it was."""
        made: list[PreparedDataset] = []
        for split, role in ROLE_BY_SPLIT.items():
            if not made or made[-1].is_new:  # a set that was written took the place of another
                encoded = find_encoded_clips(self.wanted.run, self.batches, self.ledger, self.front_end)
            clips = [(clip, self.paths[clip.id], self.keys.get(clip.id)) for clip in self.clips if clip.split == split]
            done = make_prepared_dataset(self.wanted, self.front_end, encoded, self.voices, role, clips)
            # The true reason for clips without a hash, and for those that no worker could finish.
            told = {
                name: self.unreadable.get(name) or self.gone.get(self.keys.get(name, ""), item)
                for name, item in done.left_out.items()
            }
            made.append(done._replace(left_out=told))
        return tuple(made)

    def finish(self, made: Sequence[PreparedDataset]) -> None:
        """Record what became of each clip, and delete the batches: every clip is in a set now, or left out."""
        sets = {info.id: one.name for one in made for info in one.clips.infos}
        left_out = {name: item for one in made for name, item in one.left_out.items()}
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
        fingerprints = {one.name: one.clips.fingerprint for one in made}
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
