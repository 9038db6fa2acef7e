"""Measures and fingerprints of every clip of a dataset, kept beside it so that only what is new is read again."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from voxgraft import progress
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import atomic_write, is_file, parse_json, read_lines
from voxgraft.importing.dataset import DatasetFolder
from voxgraft.importing.fingerprints import AudioFingerprint, compute_audio_fingerprint
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.measuring import CLIP_METRIC_NAMES, ClipMetrics, compute_clip_metrics
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.processes import worker_pool
from voxgraft.importing.sound_files import read_clip_audio

__all__ = ["DatasetMetrics", "compute_dataset_metrics"]

METRICS_FILE = "measures.jsonl"
METRICS_VERSION = 2
"""Of the measures: those of another version are made anew."""
METRICS_BATCH_CLIPS = 32


@dataclass(slots=True)
class DatasetMetrics:
    """What was measured of a dataset."""

    measures: dict[str, ClipMetrics] = field(default_factory=dict)
    fingerprints: dict[str, AudioFingerprint] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    read: int = 0
    """Clips that were read anew."""


@dataclass(frozen=True, slots=True)
class _MetricsEntry:
    id: str
    key: str
    measures: ClipMetrics
    fingerprints: AudioFingerprint

    def to_json(self) -> dict[str, Any]:
        packed = base64.b64encode(self.fingerprints.astype("<u4").tobytes()).decode()
        return {"id": self.id, "key": self.key, "measures": self.measures.to_json(), "print": packed}


def compute_dataset_metrics(dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int = 0) -> DatasetMetrics:
    """Measure every clip; those that were measured before and are the same are not read again."""
    known = {entry.id: entry for entry in _read_cached_metrics(dataset.folder / METRICS_FILE)}
    keys = {clip.id: _metrics_cache_key(dataset, clip) for clip in clips}
    fresh = [clip for clip in clips if clip.id not in known or known[clip.id].key != keys[clip.id]]
    is_fresh = {clip.id for clip in fresh}
    heard, made = DatasetMetrics(read=len(fresh)), dict[str, _MetricsEntry]()
    with progress.progress_task("measuring clips", len(fresh)) as advance:
        for batch in _measure_in_batches(dataset, fresh, workers or os.cpu_count() or 1):
            for item in batch:
                if isinstance(item, SourceProblem):
                    heard.problems.append(item)
                else:
                    made[item.id] = item
            advance(len(batch))
    entries = [made.get(clip.id) or known.get(clip.id) for clip in clips if clip.id in made or clip.id not in is_fresh]
    whole = [entry for entry in entries if entry is not None]
    if made or len(whole) != len(known):
        with atomic_write(dataset.folder / METRICS_FILE, overwrite=True) as stream:
            for entry in whole:
                stream.write(json.dumps(entry.to_json()).encode() + b"\n")
    heard.measures = {entry.id: entry.measures for entry in whole}
    heard.fingerprints = {entry.id: entry.fingerprints for entry in whole}
    return heard


def _metrics_cache_key(dataset: DatasetFolder, clip: ManifestClip) -> str:
    """By what a clip's measures are still its own: its file and its text."""
    path = clip.resolve_audio(dataset.folder)
    stat = os.stat(path) if is_file(path) else None
    state = (METRICS_VERSION, stat and stat.st_size, stat and stat.st_mtime_ns, clip.text, clip.language)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:24]


def _read_cached_metrics(path: Path) -> Iterator[_MetricsEntry]:
    """What was measured before; a file that is damaged is only made anew."""
    if not is_file(path) or path.stat().st_size == 0:
        return
    try:
        for _, line in read_lines(path):
            values = parse_json(line, path)
            measures = ClipMetrics(**{name: values["measures"][name] for name in CLIP_METRIC_NAMES})
            prints = np.frombuffer(base64.b64decode(values["print"]), "<u4").astype(np.uint32)
            yield _MetricsEntry(values["id"], values["key"], measures, prints)
    except (VoxgraftError, KeyError, TypeError, ValueError):
        return


def _measure_in_batches(
    dataset: DatasetFolder, clips: Sequence[ManifestClip], workers: int
) -> Iterator[list[_MetricsEntry | SourceProblem]]:
    batches = [clips[at : at + METRICS_BATCH_CLIPS] for at in range(0, len(clips), METRICS_BATCH_CLIPS)]
    work = partial(_measure_batch, dataset)
    if min(workers, len(batches)) <= 1:
        yield from map(work, batches)
        return
    try:
        with worker_pool(min(workers, len(batches))) as pool:
            yield from pool.map(work, batches)
    except (BrokenProcessPool, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # else the pool broke while it was still starting its processes, and says "handle is closed"
        found = "a process that measured clips was ended from outside (often for memory)"
        cure = "run the same command again, with fewer --workers."
        raise FileError("source-failed", found, where=dataset.folder, cure=cure) from None


def _measure_batch(dataset: DatasetFolder, clips: Sequence[ManifestClip]) -> list[_MetricsEntry | SourceProblem]:
    done: list[_MetricsEntry | SourceProblem] = []
    for clip in clips:
        try:
            samples, rate = read_clip_audio(clip.resolve_audio(dataset.folder))
        except VoxgraftError as error:
            done.append(SourceProblem("clip-audio-missing", f"{clip.id}: {error.finding.found}", clip.audio))
            continue
        own = compute_clip_metrics(samples, rate, clip.text, clip.language)
        done.append(
            _MetricsEntry(clip.id, _metrics_cache_key(dataset, clip), own, compute_audio_fingerprint(samples, rate))
        )
    return done
