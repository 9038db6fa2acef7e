"""A dataset's folder: its manifest, its clips, and a journal for every source that was brought in.

A source's journal grows clip by clip, so that an import that was killed goes on where it was. Cuts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from voxgraft.errors import FileError
from voxgraft.files import existing_folder, is_file, parse_json, read_lines, write_error
from voxgraft.importing.manifest import NAME, ManifestClip, parse_clip, read_manifest, write_manifest
from voxgraft.importing.problems import Problem

__all__ = ["Dataset", "Journal", "missing_audio", "open_dataset", "read_journal"]

CLIPS, IMPORTS = "clips", "imports"
WORKERS_SECONDS = 30.0
"""How long processes of an import that was killed may take to notice."""


@dataclass(slots=True)
class Journal:
    """What is known of one source: where it comes from, its clips so far, and whether it is done."""

    path: Path
    source: dict[str, Any] = field(default_factory=dict)
    clips: list[ManifestClip] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    is_done: bool = False
    is_published: bool = False
    ids: set[str] = field(default_factory=set)

    @property
    def recording(self) -> str:
        return self.path.stem

    def begin(self, source: Mapping[str, Any]) -> None:
        """Start anew."""
        self.source = dict(source)
        self.clips, self.problems, self.ids = [], [], set()
        self.is_done = self.is_published = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("wb") as stream:
            _append(stream, {"source": self.source})

    def add(self, clip: ManifestClip) -> None:
        """Write down a clip whose file is there."""
        self.clips.append(clip)
        self.ids.add(clip.id)
        self._append({"clip": clip.to_json()})

    def finish(self, problems: Iterable[Problem]) -> None:
        """Write down that all clips are there, and what was found wrong."""
        self.problems = list(problems)
        self.is_done = True
        self._append(*({"problem": problem.to_json()} for problem in self.problems), {"done": len(self.clips)})

    def publish(self) -> None:
        """Write down that the manifest has the clips."""
        self.is_published = True
        self._append({"published": True})

    def _append(self, *entries: Mapping[str, Any]) -> None:
        try:
            with self.path.open("ab") as stream:
                _append(stream, *entries)
        except OSError as error:
            raise write_error(error, self.path) from None


def _append(stream: IO[bytes], *entries: Mapping[str, Any]) -> None:
    stream.write(b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries))
    stream.flush()
    os.fsync(stream.fileno())


def read_journal(path: Path) -> Journal:
    """A journal; a last line that was not finished when its process was killed is taken off."""
    journal = Journal(path)
    if not is_file(path) or path.stat().st_size == 0:
        return journal
    _mend(path)
    if path.stat().st_size == 0:
        return journal
    for number, line in read_lines(path):
        entry = parse_json(line, path)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise FileError("manifest-line", f"line {number} of the journal is none of ours", where=path)
        ((kind, value),) = entry.items()
        if kind == "source":
            journal.source = value
        elif kind == "clip":
            journal.clips.append(parse_clip(json.dumps(value, ensure_ascii=False), path, number))
            journal.ids.add(journal.clips[-1].id)
        elif kind == "problem":
            journal.problems.append(Problem.from_json(value))
        journal.is_done |= kind == "done"
        journal.is_published |= kind == "published"
    return journal


def _mend(path: Path) -> None:
    with path.open("r+b") as stream:
        data = stream.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            stream.truncate(whole)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A folder with a manifest, or one that shall become one."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def manifest(self) -> Path:
        return self.folder / NAME

    @property
    def has_manifest(self) -> bool:
        return is_file(self.manifest)

    def clips(self) -> Iterator[ManifestClip]:
        """Clips of the manifest, none where there is none yet."""
        return read_manifest(self.manifest) if self.has_manifest else iter(())

    def journal_path(self, recording: str) -> Path:
        return self.folder / IMPORTS / f"{recording}.jsonl"

    def journals(self) -> list[Journal]:
        """Every source, by name."""
        return [read_journal(path) for path in sorted((self.folder / IMPORTS).glob("*.jsonl"))]

    def clip_path(self, recording: str, clip_id: str, ending: str) -> str:
        """Where a clip's sound lies, from the folder."""
        return f"{CLIPS}/{recording}/{clip_id}.{ending}"

    def publish(self) -> int:
        """Put the clips of every finished source that are not there yet into the manifest; gives their number."""
        fresh = [journal for journal in self.journals() if journal.is_done and not journal.is_published]
        if not fresh and self.has_manifest:
            return 0
        there = list(self.clips())
        ids = {clip.id for clip in there}
        new = [clip for journal in fresh for clip in journal.clips if clip.id not in ids]
        write_manifest(self.manifest, [*there, *new])
        for journal in fresh:
            journal.publish()
        return len(new)

    def forget(self, recording: str) -> None:
        """Remove a source's journal and its clips' files; the manifest is the caller's."""
        self.journal_path(recording).unlink(missing_ok=True)
        shutil.rmtree(self.folder / CLIPS / recording, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the dataset inside the block; an error if somebody does already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _lock(self.folder / ".lock", shared=False, seconds=0.0):
            with _lock(self.folder / ".workers", shared=False, seconds=WORKERS_SECONDS):
                pass
            yield

    @contextlib.contextmanager
    def worked_on(self) -> Iterator[None]:
        """What every process holds that writes clips, so that one that has lost its parent is seen."""
        with _lock(self.folder / ".workers", shared=True, seconds=WORKERS_SECONDS):
            yield


def open_dataset(folder: Path) -> Dataset:
    """A dataset that is there."""
    dataset = Dataset(existing_folder(folder))
    if not dataset.has_manifest:
        raise FileError("dataset-missing", f"{folder.name} holds no {NAME}", where=folder)
    return dataset


@contextlib.contextmanager
def _lock(path: Path, *, shared: bool, seconds: float) -> Iterator[None]:
    """A lock that the system gives up by itself when its process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two imports at once are then the user's matter
        yield
        return
    try:
        stream = path.open("ab")
    except OSError as error:
        raise write_error(error, path) from None
    with stream:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    found = f"another process works on {path.parent.name}"
                    raise FileError("dataset-busy", found, where=path.parent) from None
                time.sleep(0.1)
        yield


def missing_audio(dataset: Dataset) -> Iterator[ManifestClip]:
    """Clips whose sound file is not there."""
    for clip in dataset.clips():
        if not is_file(clip.audio_in(dataset.folder)):
            yield clip
