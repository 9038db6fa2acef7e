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
from voxgraft.files import is_file, parse_json, read_lines, replacing
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.fingerprints import Print, fingerprint_of
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.measuring import MEASURE_NAMES, Measures, measure
from voxgraft.importing.problems import Problem
from voxgraft.importing.processes import worker_pool
from voxgraft.importing.sound_files import read_clip

__all__ = ["Heard", "listen_through"]

FILE = "measures.jsonl"
VERSION = 2
"""Of the measures: those of another version are made anew."""
CLIPS_AT_ONCE = 32


@dataclass(slots=True)
class Heard:
    """What was measured of a dataset."""

    measures: dict[str, Measures] = field(default_factory=dict)
    prints: dict[str, Print] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    read: int = 0
    """Clips that were read anew."""


@dataclass(frozen=True, slots=True)
class _Entry:
    id: str
    key: str
    measures: Measures
    prints: Print

    def to_json(self) -> dict[str, Any]:
        packed = base64.b64encode(self.prints.astype("<u4").tobytes()).decode()
        return {"id": self.id, "key": self.key, "measures": self.measures.to_json(), "print": packed}


def listen_through(dataset: Dataset, clips: Sequence[ManifestClip], workers: int = 0) -> Heard:
    """Measure every clip; those that were measured before and are the same are not read again."""
    known = {entry.id: entry for entry in _kept(dataset.folder / FILE)}
    keys = {clip.id: _key(dataset, clip) for clip in clips}
    fresh = [clip for clip in clips if clip.id not in known or known[clip.id].key != keys[clip.id]]
    is_fresh = {clip.id for clip in fresh}
    heard, made = Heard(read=len(fresh)), dict[str, _Entry]()
    with progress.task("measuring clips", len(fresh)) as advance:
        for batch in _listened(dataset, fresh, workers or os.cpu_count() or 1):
            for item in batch:
                if isinstance(item, Problem):
                    heard.problems.append(item)
                else:
                    made[item.id] = item
            advance(len(batch))
    entries = [made.get(clip.id) or known.get(clip.id) for clip in clips if clip.id in made or clip.id not in is_fresh]
    whole = [entry for entry in entries if entry is not None]
    if made or len(whole) != len(known):
        with replacing(dataset.folder / FILE, overwrite=True) as stream:
            for entry in whole:
                stream.write(json.dumps(entry.to_json()).encode() + b"\n")
    heard.measures = {entry.id: entry.measures for entry in whole}
    heard.prints = {entry.id: entry.prints for entry in whole}
    return heard


def _key(dataset: Dataset, clip: ManifestClip) -> str:
    """By what a clip's measures are still its own: its file and its text."""
    path = clip.audio_in(dataset.folder)
    stat = os.stat(path) if is_file(path) else None
    state = (VERSION, stat and stat.st_size, stat and stat.st_mtime_ns, clip.text, clip.language)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:24]


def _kept(path: Path) -> Iterator[_Entry]:
    """What was measured before; a file that is damaged is only made anew."""
    if not is_file(path) or path.stat().st_size == 0:
        return
    try:
        for _, line in read_lines(path):
            values = parse_json(line, path)
            measures = Measures(**{name: values["measures"][name] for name in MEASURE_NAMES})
            prints = np.frombuffer(base64.b64decode(values["print"]), "<u4").astype(np.uint32)
            yield _Entry(values["id"], values["key"], measures, prints)
    except (VoxgraftError, KeyError, TypeError, ValueError):
        return


def _listened(dataset: Dataset, clips: Sequence[ManifestClip], workers: int) -> Iterator[list[_Entry | Problem]]:
    batches = [clips[at : at + CLIPS_AT_ONCE] for at in range(0, len(clips), CLIPS_AT_ONCE)]
    work = partial(_listen, dataset)
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


def _listen(dataset: Dataset, clips: Sequence[ManifestClip]) -> list[_Entry | Problem]:
    done: list[_Entry | Problem] = []
    for clip in clips:
        try:
            samples, rate = read_clip(clip.audio_in(dataset.folder))
        except VoxgraftError as error:
            done.append(Problem("clip-audio-missing", f"{clip.id}: {error.finding.found}", clip.audio))
            continue
        own = measure(samples, rate, clip.text, clip.language)
        done.append(_Entry(clip.id, _key(dataset, clip), own, fingerprint_of(samples, rate)))
    return done
