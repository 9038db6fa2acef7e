"""A dataset's folder: its manifest, its clips, and a journal for every source that was brought in.

A source's journal grows clip by clip, so that an import that was killed goes on where it was. Cuts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from voxgraft.audio.files import ClipChecksum, is_clip_intact
from voxgraft.core.errors import FileError, Finding
from voxgraft.core.files import (
    atomic_write,
    build_write_error,
    decode_utf8,
    format_error_reason,
    is_file,
    parse_json,
    read_json,
    read_lines,
    require_folder,
    write_json,
)
from voxgraft.core.results import Line
from voxgraft.data.manifest import (
    MANIFEST_NAME,
    ManifestClip,
    SourceProblem,
    parse_manifest_line,
    read_manifest,
    write_manifest,
)

CLIPS_FOLDER, IMPORTS_FOLDER, REMOVAL_FILE = "clips", "imports", ".removing"
_IDENTITY_FIELDS = ("audio", "recording", "text_as_found", "start", "end", "source")
"""What no other verb changes of a clip: those who differ in it are two clips."""
MAX_REMOVAL_BYTES = 1 << 30
WORKER_EXIT_TIMEOUT_SECONDS = 30.0
"""How long processes of an import that was killed may take to notice."""


@dataclass(slots=True)
class ImportJournal:
    """What is known of one source: where it comes from, its clips so far, and whether it is done."""

    path: Path
    source: dict[str, Any] = field(default_factory=dict)
    clips: list[ManifestClip] = field(default_factory=list)
    problems: list[SourceProblem] = field(default_factory=list)
    is_done: bool = False
    is_published: bool = False
    ids: set[str] = field(default_factory=set)
    sums: dict[str, ClipChecksum] = field(default_factory=dict)
    """Size and checksum of the clips' files, by id; journals of older versions have none."""
    files: set[str] = field(default_factory=set)
    """Names of the files, where the source is some of a folder's."""
    sounds: dict[str, tuple[int, int, str] | None] | None = None
    """Of a list: what its sounds held (`sources.sound_marks`). None in journals of older versions, which do not say."""
    is_reimport: bool = False
    """Whether the manifest may hold clips of an earlier import of this source, which these replace."""

    @property
    def recording(self) -> str:
        return self.path.stem

    def find_changed_audio(self, now: Mapping[str, tuple[int, int, str] | None]) -> list[str]:
        """Sounds that hold something else than when they were imported, or that were missing then. By content.

        A sound that is missing now is not among them: its clip is there, and nobody needs the source any more.
        """
        if self.sounds is None:
            return []
        before = {name: mark and mark[2] for name, mark in self.sounds.items()}
        return [name for name, mark in now.items() if mark and name in before and before[name] != mark[2]]

    def begin(
        self,
        source: Mapping[str, Any],
        files: Iterable[str] = (),
        sounds: Mapping[str, tuple[int, int, str] | None] | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Start anew."""
        self.source, self.files, self.sounds, self.is_reimport = dict(source), set(files), dict(sounds or {}), again
        self.clips, self.problems, self.ids, self.sums = [], [], set(), {}
        self.is_done = self.is_published = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.part")
            with part.open("wb") as stream:
                notes: list[Mapping[str, Any]] = [{"source": self.source}]
                notes += [{"file": name} for name in sorted(self.files)]
                notes += [{"sounds": self.sounds}] if self.sounds else []
                _append_entries(stream, *notes, *([{"again": True}] if again else []))
            os.replace(part, self.path)
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def add(self, clip: ManifestClip, written: ClipChecksum) -> None:
        """Write down a clip whose file is there; one that is known gets the checksum of its new file."""
        entries: list[dict[str, Any]] = [{"sum": {clip.id: written.to_json()}}]
        if clip.id not in self.ids:
            self.clips.append(clip)
            self.ids.add(clip.id)
            entries.insert(0, {"clip": clip.to_json()})
        self.sums[clip.id] = written
        self._append(*entries)

    def damaged(self, folder: Path) -> Iterator[ManifestClip]:
        """Clips whose files are missing, or do not hold what was written."""
        for clip in self.clips:
            if not is_clip_intact(folder / clip.audio, round(clip.seconds * clip.sample_rate), self.sums.get(clip.id)):
                yield clip

    def finish(self, problems: Iterable[SourceProblem]) -> None:
        """Write down that all clips are there, and what was found wrong."""
        self.problems = list(problems)
        self.is_done = True
        self._append(*({"problem": problem.to_json()} for problem in self.problems), {"done": len(self.clips)})

    def fail(self, problems: Iterable[SourceProblem]) -> None:
        """Write down why the source could not be brought in this time."""
        self.problems = list(problems)
        self._append({"failed": len(self.problems)}, *({"failure": problem.to_json()} for problem in self.problems))

    def publish(self) -> None:
        """Write down that the manifest has the clips."""
        self.is_published = True
        self._append({"published": True})

    def _append(self, *entries: Mapping[str, Any]) -> None:
        try:
            with self.path.open("r+b") as stream:
                stream.truncate(_complete_length(stream))
                stream.seek(0, os.SEEK_END)
                _append_entries(stream, *entries)
        except OSError as error:
            raise build_write_error(error, self.path) from None


def _complete_length(stream: IO[bytes]) -> int:
    """How long a journal is without a last line that was not finished when its process was killed."""
    end = stream.seek(0, os.SEEK_END)
    if not end or (stream.seek(end - 1), stream.read(1))[1] == b"\n":
        return end
    stream.seek(0)
    return stream.read().rfind(b"\n") + 1


def _append_entries(stream: IO[bytes], *entries: Mapping[str, Any]) -> None:
    stream.write(b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries))
    stream.flush()
    os.fsync(stream.fileno())


def read_import_journal(path: Path) -> ImportJournal:
    """A journal, without a last line that is not finished. Changes nothing: somebody may be writing to it."""
    journal = ImportJournal(path)
    if not is_file(path):
        return journal
    found: list[SourceProblem] = []
    failures: list[SourceProblem] = []
    for number, line in _complete_lines(path):
        entry = parse_json(line, path)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise FileError("manifest-line", f"line {number} of the journal is none of ours", where=path)
        ((kind, value),) = entry.items()
        if kind == "source" and isinstance(value, dict):
            journal.source = value
        elif kind == "file" and isinstance(value, str):
            journal.files.add(value)
        elif kind == "sounds" and isinstance(value, dict) and all(map(_is_audio_stamp, value.values())):
            journal.sounds = {name: mark and (mark[0], mark[1], mark[2]) for name, mark in value.items()}
        elif kind == "clip":
            journal.clips.append(parse_manifest_line(json.dumps(value, ensure_ascii=False), path, number))
            journal.ids.add(journal.clips[-1].id)
        elif kind == "sum" and isinstance(value, dict):
            journal.sums |= {name: ClipChecksum.from_json(numbers) for name, numbers in value.items()}
        elif kind in ("problem", "failure"):
            (found if kind == "problem" else failures).append(SourceProblem.from_json(value))
        elif kind == "failed":
            failures = []
        elif kind not in ("done", "published", "again"):
            raise FileError("manifest-line", f"line {number} of the journal is none of ours", where=path)
        journal.is_done |= kind == "done"
        journal.is_published |= kind == "published"
        journal.is_reimport |= kind == "again"
    journal.problems = list(dict.fromkeys(found if journal.is_done else failures))
    return journal


def _is_audio_stamp(value: object) -> bool:
    """Whether a value is what a journal notes of a sound: size, time and hash, or nothing of one that was missing."""
    return value is None or (isinstance(value, list) and list(map(type, value)) == [int, int, str])


def _complete_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, all but a last one that has no end."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.endswith(b"\n") and (text := decode_utf8(line, path, number).strip()):
                    yield number, text
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """A folder with a manifest, or one that shall become one."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def manifest(self) -> Path:
        return self.folder / MANIFEST_NAME

    @property
    def has_manifest(self) -> bool:
        return is_file(self.manifest)

    def clips(self) -> Iterator[ManifestClip]:
        """Clips of the manifest, none where there is none yet."""
        return read_manifest(self.manifest) if self.has_manifest else iter(())

    def journal_path(self, recording: str) -> Path:
        return self.folder / IMPORTS_FOLDER / f"{recording}.jsonl"

    def journals(self) -> list[ImportJournal]:
        """Every source, by name."""
        return [read_import_journal(path) for path in sorted((self.folder / IMPORTS_FOLDER).glob("*.jsonl"))]

    def clip_path(self, recording: str, clip_id: str, ending: str) -> str:
        """Where a clip's sound lies, from the folder."""
        return f"{CLIPS_FOLDER}/{recording}/{clip_id}.{ending}"

    def reserved_names(self, clips: Iterable[ManifestClip]) -> set[str]:
        """Names that a new source may not have: its clips would get ids or files of others."""
        names = {path.stem for path in (self.folder / IMPORTS_FOLDER).glob("*.jsonl")}
        names |= {path.name for path in (self.folder / CLIPS_FOLDER).glob("*")}
        for clip in clips:
            names |= {clip.recording, clip.speaker.partition(":")[0], clip.id.rpartition("-")[0]}
        return names - {""}

    def reconcile_published(self) -> None:
        """Note as published what the manifest has already: the process was killed just before it could."""
        waiting = [journal for journal in self.journals() if journal.is_done and not journal.is_published]
        there = {clip.id: clip for clip in self.clips()} if waiting else {}
        for journal in waiting:
            if journal.clips and all(_is_same_clip(there.get(clip.id), clip, journal) for clip in journal.clips):
                journal.publish()

    def publish(self) -> int:
        """Put the clips of every finished source that are not there yet into the manifest; gives their number."""
        self.reconcile_published()
        fresh = [journal for journal in self.journals() if journal.is_done and not journal.is_published]
        if not fresh and self.has_manifest:
            return 0
        there = list(self.clips())
        again = [journal for journal in fresh if journal.is_reimport]
        before = {clip.id: clip for journal in again for clip in self.clips_of(journal.recording, there)}
        there = [clip for clip in there if clip.id not in before]
        known = {clip.id: clip for clip in there}
        new = [_carry_over_decisions(before.get(clip.id), clip) for journal in fresh for clip in journal.clips]
        for clip in new:
            if clip.id in known:
                found = (
                    f"{clip.id} of {clip.source} has the id of another clip, which comes from {known[clip.id].source}"
                )
                cure = (
                    f"rename the file, remove {clip.recording} from {self.folder / IMPORTS_FOLDER}, and import again."
                )
                raise FileError("manifest-double-id", found, where=self.manifest, cure=cure)
        write_manifest(self.manifest, [*there, *new])
        files = {clip.audio for clip in new}
        for clip in before.values():
            if clip.audio not in files and self._is_own(clip.audio):
                delete_file(self.folder / clip.audio)
        for journal in fresh:
            journal.publish()
        return sum(clip.id not in before for clip in new)

    def clips_of(self, source: str, clips: Iterable[ManifestClip]) -> list[ManifestClip]:
        """Those clips that come from a source, by the folder that their sound lies in."""
        return [clip for clip in clips if clip.audio.startswith(f"{CLIPS_FOLDER}/{source}/")]

    def remove(self, going: Sequence[ManifestClip], staying: Sequence[ManifestClip]) -> list[str]:
        """Take clips out, and sources of which nothing stays, which can be brought in again. Gives the files left.

        Only files among our own clips go. Killed at any instant it is done before the next change, or was never begun.
        """
        gone, kept = {clip.id for clip in going}, {clip.id for clip in staying}
        sources = [journal.recording for journal in self.journals() if journal.ids & gone and not journal.ids & kept]
        note = {"clips": {clip.id: clip.audio for clip in going}, "sources": sources}
        write_json(self.folder / REMOVAL_FILE, note, overwrite=True)
        write_manifest(self.manifest, staying)
        return self._finish_removal()

    def _finish_removal(self) -> list[str]:
        note = read_json(self.folder / REMOVAL_FILE, MAX_REMOVAL_BYTES)
        if not isinstance(note, dict) or not {"clips", "sources"} <= note.keys():
            found = f"{REMOVAL_FILE} does not say which clips were being removed"
            raise FileError("manifest-line", found, where=self.folder / REMOVAL_FILE)
        left: list[str] = []
        if not any(clip.id in note["clips"] for clip in self.clips()):
            for audio in note["clips"].values():
                if self._is_own(audio):
                    delete_file(self.folder / audio)
                else:
                    left.append(audio)
            for name in note["sources"]:
                self._forget(name)
        delete_file(self.folder / REMOVAL_FILE)
        return left

    def _is_own(self, audio: str) -> bool:
        """Whether a sound lies among our clips; one that a manifest has from elsewhere is not ours to delete."""
        return (self.folder / CLIPS_FOLDER).resolve() in (self.folder / audio).parent.resolve().parents

    def _forget(self, recording: str) -> None:
        """Remove a source's journal, and its folder if nothing of others lies there."""
        path = self.folder / CLIPS_FOLDER / recording
        for part in path.glob(".*.part"):
            delete_file(part)
        with contextlib.suppress(OSError):
            path.rmdir()
        delete_file(self.journal_path(recording))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the dataset inside the block; an error if somebody does already."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise build_write_error(error, self.folder) from None
        with _file_lock(self.folder / ".lock", shared=False, seconds=0.0):
            with _file_lock(self.folder / ".workers", shared=False, seconds=WORKER_EXIT_TIMEOUT_SECONDS):
                pass
            if is_file(self.folder / REMOVAL_FILE):
                self._finish_removal()
            yield

    @contextlib.contextmanager
    def worker_lock(self) -> Iterator[None]:
        """What every process holds that writes clips, so that one that has lost its parent is seen."""
        with _file_lock(self.folder / ".workers", shared=True, seconds=WORKER_EXIT_TIMEOUT_SECONDS):
            yield


def _is_same_clip(one: ManifestClip | None, other: ManifestClip, journal: ImportJournal) -> bool:
    names = (*_IDENTITY_FIELDS, "text", "speaker", "language", "seconds") if journal.is_reimport else _IDENTITY_FIELDS
    return one is not None and all(getattr(one, name) == getattr(other, name) for name in names)


def _carry_over_decisions(before: ManifestClip | None, clip: ManifestClip) -> ManifestClip:
    """A clip that was imported again, with its side; one that did not change also with all that was decided of it."""
    if before is None:
        return clip
    same = (before.text, before.seconds, before.text_as_found) == (clip.text, clip.seconds, clip.text_as_found)
    kept = {"rejected": before.rejected, "taken_back": before.taken_back} if same else {}
    return replace(clip, split=before.split, other=before.other, **kept)  # type: ignore[arg-type]


def delete_file(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise build_write_error(error, path) from None


def open_dataset_folder(folder: Path) -> DatasetFolder:
    """A dataset that is there."""
    dataset = DatasetFolder(require_folder(folder))
    if not dataset.has_manifest:
        raise FileError("dataset-missing", f"{folder.name} holds no {MANIFEST_NAME}", where=folder)
    return dataset


@contextlib.contextmanager
def _file_lock(path: Path, *, shared: bool, seconds: float) -> Iterator[None]:
    """A lock that the system gives up by itself when its process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two imports at once are then the user's matter
        yield
        return
    try:
        stream = path.open("ab")
    except OSError as error:
        raise build_write_error(error, path) from None
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


def find_missing_audio(dataset: DatasetFolder) -> Iterator[ManifestClip]:
    """Clips whose sound file is not there."""
    for clip in dataset.clips():
        if not is_file(clip.resolve_audio(dataset.folder)):
            yield clip


PROBLEMS_FILE = "problems.jsonl"
SCAN_PROBLEMS_FILE = ".found"
"""In the folder of the journals, and none of them."""
MAX_SHOWN_PROBLEMS = 12
SHOWN_NOTE_CODES = ("table-duplicate",)
"""Notes about which a user can do something."""


def collect_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    """Everything that is known, of every import so far, with whole paths: every list may be called metadata.csv."""
    kept = []
    for journal in dataset.journals():
        text = Path(str(journal.source.get("text")))
        folder = text if journal.source.get("kind") == "folder" else text.parent
        kept += [replace(problem, file=str(folder / problem.file)) for problem in journal.problems]
    return list(dict.fromkeys((*kept, *_read_scan_problems(dataset))))


def store_scan_problems(
    dataset: DatasetFolder, places: Sequence[Path], problems: Iterable[SourceProblem]
) -> list[SourceProblem]:
    """Note what was found in places while looking for sources, instead of what was found in them before."""
    looked = [os.path.abspath(place) for place in places]
    now = [replace(problem, file=os.path.abspath(problem.file)) for problem in problems]
    before = [
        problem for problem in _read_scan_problems(dataset) if not any(_is_under(problem.file, one) for one in looked)
    ]
    _write_problems_jsonl(dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE, dict.fromkeys((*before, *now)))
    return now


def write_problems_file(dataset: DatasetFolder) -> None:
    """Write `problems.jsonl` anew, each problem with its cure."""
    known = collect_problems(dataset)
    _write_problems_jsonl(
        dataset.folder / PROBLEMS_FILE, [replace(problem, cure=problem.finding().cure) for problem in known]
    )


def format_problems(problems: Sequence[SourceProblem], file: Path) -> list[Line]:
    """The worst problems in full, some of each kind, and how many there are of each kind."""
    if not problems:
        return ["every line of the sources was used"]
    order = {"error": 0, "warning": 1, "note": 2}
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, int, Finding]] = []
    for item in (problem.finding() for problem in problems):
        ranked.append((order[item.level], turns[item.code], item))  # one of each kind before the second of any
        turns[item.code] += 1
    ranked.sort(key=lambda one: one[:2])
    shown = [item for _, _, item in ranked if item.level != "note" or item.code in SHOWN_NOTE_CODES][
        :MAX_SHOWN_PROBLEMS
    ]
    told = ", ".join(f"{code} {count:,}" for code, count in turns.most_common())
    lines: list[Line] = [line for item in shown for line in item.lines()]
    return [*lines, f"not used as they stand: {told} (every line: {file})"]


def _read_scan_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    path = dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE
    if not is_file(path) or path.stat().st_size == 0:
        return []
    return [SourceProblem.from_json(parse_json(line, path)) for _, line in read_lines(path)]


def _is_under(file: str, place: str) -> bool:
    return file == place or file.startswith(place.rstrip(os.sep) + os.sep)


def _write_problems_jsonl(path: Path, problems: Iterable[SourceProblem]) -> None:
    with atomic_write(path, overwrite=True) as stream:
        for problem in problems:
            stream.write(json.dumps(problem.to_json(), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
