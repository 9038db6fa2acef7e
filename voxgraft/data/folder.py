"""A dataset folder: `manifest.jsonl`, `clips/`, and under `imports/` one journal for each imported source.

A journal grows clip by clip, so that an import that was killed resumes where it stopped. The module also holds the
dataset's locks and its list of problems. It cuts no audio.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft.audio.files import ClipChecksum, is_clip_intact, is_clip_usable
from voxgraft.core.errors import FileError, Finding
from voxgraft.core.files import (
    FileLock,
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
    MANUAL_REJECTION,
    ManifestClip,
    SourceProblem,
    parse_manifest_line,
    read_manifest,
    write_manifest,
)
from voxgraft.data.review import forget_review, original_text

CLIPS_FOLDER, IMPORTS_FOLDER, REMOVAL_FILE = "clips", "imports", ".removing"
AudioStamp = tuple[int, int, str]
"""Size in bytes, mtime in nanoseconds, and a hash of size and both ends of an audio file."""
# No command changes these fields: clips that differ in one of them are different clips.
_IDENTITY_FIELDS = ("audio", "recording", "text_as_found", "start", "end", "source")
MAX_REMOVAL_BYTES = 1 << 30
# The review table of the web UI holds the lock for some milliseconds per decision; commands hold it for minutes.
LOCK_TIMEOUT_SECONDS = 1.0
# Workers of an import that was killed notice the loss of their parent only after a while.
WORKER_EXIT_TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class ImportJournal:
    """What is known about one source: where it comes from, its clips so far, and whether it is done.

    The file is JSON lines with one key each: `source`, `file`, `sounds`, `again`, then per clip `clip` and `sum`, at
    the end `problem` and `done` (or `failed` and `failure`), and `published` once the manifest holds the clips. `lost`
    is a clip whose file could not be cut again.
    """

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
    """File names, where the source is a part of a folder."""
    sounds: dict[str, AudioStamp | None] | None = None
    """Of a list: stamps of its audio files at import time. None in journals of older versions."""
    lost: set[str] = field(default_factory=set)
    """Ids of clips whose source no longer gives them, so that their files cannot be made again."""
    is_reimport: bool = False
    """Whether the manifest may hold clips of an earlier import of this source, which these replace."""

    @property
    def recording(self) -> str:
        return self.path.stem

    @property
    def source_folder(self) -> Path:
        """The folder that the file names of its problems are relative to."""
        text = Path(str(self.source.get("text")))
        return text if self.source.get("kind") == "folder" else text.parent

    def find_changed_audio(self, now: Mapping[str, AudioStamp | None]) -> list[str]:
        """Audio files with other content than at import time, or that were missing then.

        A file that is missing now is not among them: its clip exists, and the source is no longer needed.
        """
        if self.sounds is None:
            return []
        before = {name: stamp and stamp[2] for name, stamp in self.sounds.items()}
        return [name for name, stamp in now.items() if stamp and name in before and before[name] != stamp[2]]

    def begin(
        self,
        source: Mapping[str, Any],
        files: Iterable[str] = (),
        sounds: Mapping[str, AudioStamp | None] | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Start a new journal in place of the old one."""
        self.source, self.files, self.sounds, self.is_reimport = dict(source), set(files), dict(sounds or {}), again
        self.clips, self.problems, self.ids, self.sums, self.lost = [], [], set(), {}, set()
        self.is_done = self.is_published = False
        entries: list[Mapping[str, Any]] = [{"source": self.source}]
        entries += [{"file": name} for name in sorted(self.files)]
        entries += [{"sounds": self.sounds}] if self.sounds else []
        entries += [{"again": True}] if again else []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written beside and renamed: a kill leaves the old journal or the new one, never half of one.
            part = self.path.with_name(f".{self.path.name}.part")
            part.write_bytes(b"")
            self._append(*entries, path=part)
            os.replace(part, self.path)
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def add(self, clip: ManifestClip, written: ClipChecksum) -> None:
        """Record a clip whose file is complete; a known clip gets the checksum of its new file."""
        entries: list[dict[str, Any]] = [{"sum": {clip.id: list(written)}}]
        if clip.id not in self.ids:
            self.clips.append(clip)
            self.ids.add(clip.id)
            entries.insert(0, {"clip": clip.to_json()})
        self.sums[clip.id] = written
        self.lost.discard(clip.id)
        self._append(*entries)

    def give_up(self, names: Iterable[str]) -> None:
        """Record clips whose files cannot be made again from their source as it is."""
        new = sorted(set(names) - self.lost)
        self.lost.update(new)
        if new:
            self._append(*({"lost": name} for name in new))

    def damaged(self, folder: Path, *, quick: bool = False) -> Iterator[ManifestClip]:
        """Clips whose files are missing, or do not hold what was written.

        `quick`: whose files are of no use, by their size, and could be made again.
        """
        for clip in self.clips:
            if quick:
                if clip.id not in self.lost and not is_clip_usable(folder / clip.audio, self.sums.get(clip.id)):
                    yield clip
            elif not is_clip_intact(
                folder / clip.audio, round(clip.seconds * clip.sample_rate), self.sums.get(clip.id)
            ):
                yield clip

    def finish(self, problems: Iterable[SourceProblem]) -> None:
        """Record that all clips exist, and which problems were found."""
        self.problems = list(problems)
        self.is_done = True
        self._append(*({"problem": problem.to_json()} for problem in self.problems), {"done": len(self.clips)})

    def fail(self, problems: Iterable[SourceProblem]) -> None:
        """Record why the source could not be imported this time."""
        self.problems = list(problems)
        self._append({"failed": len(self.problems)}, *({"failure": problem.to_json()} for problem in self.problems))

    def publish(self) -> None:
        """Record that the manifest holds the clips."""
        self.is_published = True
        self._append({"published": True})

    def _append(self, *entries: Mapping[str, Any], path: Path | None = None) -> None:
        try:
            with (path or self.path).open("r+b") as stream:
                # A kill can leave an unfinished last line. It must go before anything is written behind it.
                end = stream.seek(0, os.SEEK_END)
                if end and (stream.seek(end - 1), stream.read(1))[1] != b"\n":
                    stream.seek(0)
                    stream.truncate(stream.read().rfind(b"\n") + 1)
                    stream.seek(0, os.SEEK_END)
                stream.write(b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries))
                stream.flush()
                os.fsync(stream.fileno())  # a clip that is recorded must survive a power failure
        except OSError as error:
            raise build_write_error(error, self.path) from None


def read_import_journal(path: Path) -> ImportJournal:
    """A journal without an unfinished last line. Changes nothing: another process may be writing to it."""
    journal = ImportJournal(path)
    if not is_file(path):
        return journal
    found: list[SourceProblem] = []
    failures: list[SourceProblem] = []
    try:
        with path.open("rb") as stream:
            # A line without a line break is unfinished: its writer was killed, or is still writing.
            lines = [
                (number, text)
                for number, line in enumerate(stream, 1)
                if line.endswith(b"\n") and (text := decode_utf8(line, path, number).strip())
            ]
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    for number, line in lines:
        entry = parse_json(line, path)
        if not isinstance(entry, dict) or len(entry) != 1:
            raise FileError("manifest-line", f"line {number} of the journal was not written by voxgraft", where=path)
        ((kind, value),) = entry.items()
        if kind == "source" and isinstance(value, dict):
            journal.source = value
        elif kind == "file" and isinstance(value, str):
            journal.files.add(value)
        elif (
            kind == "sounds"
            and isinstance(value, dict)
            and all(
                stamp is None or (isinstance(stamp, list) and list(map(type, stamp)) == [int, int, str])
                for stamp in value.values()
            )
        ):
            journal.sounds = {name: stamp and (stamp[0], stamp[1], stamp[2]) for name, stamp in value.items()}
        elif kind == "clip":
            journal.clips.append(parse_manifest_line(json.dumps(value, ensure_ascii=False), path, number))
            journal.ids.add(journal.clips[-1].id)
        elif kind == "sum" and isinstance(value, dict):
            for name, numbers in value.items():
                if not isinstance(numbers, list) or list(map(type, numbers)) != [int, int]:
                    raise FileError("manifest-line", f"{numbers!r:.80} is not a file size and a checksum")
                journal.sums[name] = (numbers[0], numbers[1])
                journal.lost.discard(name)
        elif kind == "lost" and isinstance(value, str):
            journal.lost.add(value)
        elif kind in ("problem", "failure"):
            (found if kind == "problem" else failures).append(SourceProblem.from_json(value))
        elif kind == "failed":
            failures = []  # only those of the last attempt count
        elif kind not in ("done", "published", "again"):
            raise FileError("manifest-line", f"line {number} of the journal was not written by voxgraft", where=path)
        journal.is_done |= kind == "done"
        journal.is_published |= kind == "published"
        journal.is_reimport |= kind == "again"
    journal.problems = list(dict.fromkeys(found if journal.is_done else failures))
    return journal


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """A folder with a manifest, or one that will become one."""

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
        """Clips of the manifest; none if there is no manifest yet."""
        return read_manifest(self.manifest) if self.has_manifest else iter(())

    def journal_path(self, recording: str) -> Path:
        return self.folder / IMPORTS_FOLDER / f"{recording}.jsonl"

    def journals(self) -> list[ImportJournal]:
        """Every source, by name."""
        return [read_import_journal(path) for path in sorted((self.folder / IMPORTS_FOLDER).glob("*.jsonl"))]

    def reserved_names(self, clips: Iterable[ManifestClip]) -> set[str]:
        """Names that a new source must not have: its clips would get ids or files of others."""
        names = {path.stem for path in (self.folder / IMPORTS_FOLDER).glob("*.jsonl")}
        names |= {path.name for path in (self.folder / CLIPS_FOLDER).glob("*")}
        for clip in clips:
            names |= {clip.recording, clip.speaker.partition(":")[0], clip.id.rpartition("-")[0]}
        return names - {""}

    def reconcile_published(self) -> None:
        """Mark journals as published whose clips the manifest already holds: the process was killed in between."""
        waiting = [journal for journal in self.journals() if journal.is_done and not journal.is_published]
        manifest = {clip.id: clip for clip in self.clips()} if waiting else {}
        for journal in waiting:
            # Clips of an earlier import have the same ids: there the content must agree too.
            extra = ("text", "speaker", "language", "seconds") if journal.is_reimport else ()
            names = (*_IDENTITY_FIELDS, *extra)
            if journal.clips and all(
                clip.id in manifest and all(getattr(manifest[clip.id], name) == getattr(clip, name) for name in names)
                for clip in journal.clips
            ):
                journal.publish()

    def publish(self) -> int:
        """Add the clips of every finished source to the manifest; returns the number of new clips."""
        self.reconcile_published()
        fresh = [journal for journal in self.journals() if journal.is_done and not journal.is_published]
        if not fresh and self.has_manifest:
            return 0
        clips = list(self.clips())
        again = [journal for journal in fresh if journal.is_reimport]
        before = {clip.id: clip for journal in again for clip in self.clips_of(journal.recording, clips)}
        clips = [clip for clip in clips if clip.id not in before]
        known = {clip.id: clip for clip in clips}
        new = []
        for clip in (clip for journal in fresh for clip in journal.clips):
            if clip.id in known:
                found = f"{clip.id} of {clip.source} has the same id as a clip from {known[clip.id].source}"
                cure = (
                    f"rename the file, remove {clip.recording} from {self.folder / IMPORTS_FOLDER}, and import again."
                )
                raise FileError("manifest-double-id", found, where=self.manifest, cure=cure)
            if (old := before.get(clip.id)) is not None:
                # The split is kept; what a person or a report decided is kept only where the clip did not change.
                # A text that a person has corrected stays, whatever today's rules make of the source's text.
                same_text = old.text_as_found == clip.text_as_found and (
                    old.text == clip.text or original_text(old) != old.text
                )
                if same_text and old.seconds == clip.seconds:
                    decided = {"text": old.text, "rejected": old.rejected, "taken_back": old.taken_back}
                    clip = replace(clip, split=old.split, other={**clip.other, **old.other}, **decided)  # type: ignore[arg-type]
                elif same_text:  # other audio: reasons about the old one are void, decisions about the text are not
                    by_hand = tuple(reason for reason in old.rejected if reason == MANUAL_REJECTION)
                    rejected = tuple(dict.fromkeys((*clip.rejected, *by_hand)))
                    other = {**clip.other, **old.other}
                    clip = replace(clip, split=old.split, other=other, text=old.text, rejected=rejected)
                else:
                    clip = replace(clip, split=old.split, other={**forget_review(old), **clip.other})
            new.append(clip)
        # Manifest first, then files, then journals: after a kill in between, every listed clip still has its file.
        write_manifest(self.manifest, [*clips, *new])
        files = {clip.audio for clip in new}
        for clip in before.values():
            if clip.audio not in files and self._is_own(clip.audio):
                delete_file(self.folder / clip.audio)
        for journal in fresh:
            journal.publish()
        return sum(clip.id not in before for clip in new)

    def clips_of(self, source: str, clips: Iterable[ManifestClip]) -> list[ManifestClip]:
        """Clips of one source, recognized by the folder of their audio."""
        return [clip for clip in clips if clip.audio.startswith(f"{CLIPS_FOLDER}/{source}/")]

    def remove(self, going: Sequence[ManifestClip], staying: Sequence[ManifestClip]) -> list[str]:
        """Remove clips, and journals of sources of which nothing stays (they can be imported again).

        Returns audio files that were left because they lie outside of our clips. A note is written first: after a kill
        the removal is completed before the next change, or was never begun.
        """
        # Note, manifest, files: whatever a kill interrupts can be finished from the note.
        gone, kept = {clip.id for clip in going}, {clip.id for clip in staying}
        sources = [journal.recording for journal in self.journals() if journal.ids & gone and not journal.ids & kept]
        note = {"clips": {clip.id: clip.audio for clip in going}, "sources": sources}
        write_json(self.folder / REMOVAL_FILE, note, overwrite=True)
        write_manifest(self.manifest, staying)
        return self._finish_removal()

    def _finish_removal(self) -> list[str]:
        note = read_json(self.folder / REMOVAL_FILE, MAX_REMOVAL_BYTES)
        if not isinstance(note, dict) or not {"clips", "sources"} <= note.keys():
            found = f"{REMOVAL_FILE} does not list the clips to remove"
            raise FileError("manifest-line", found, where=self.folder / REMOVAL_FILE)
        left: list[str] = []
        # Clips that the manifest still lists: the kill came before the manifest was written, so nothing is removed.
        if not any(clip.id in note["clips"] for clip in self.clips()):
            for audio in note["clips"].values():
                if self._is_own(audio):
                    delete_file(self.folder / audio)
                else:
                    left.append(audio)
            for name in note["sources"]:
                path = self.folder / CLIPS_FOLDER / name
                for part in path.glob(".*.part"):
                    delete_file(part)
                with contextlib.suppress(OSError):  # files of others lie there
                    path.rmdir()
                delete_file(self.journal_path(name))
        delete_file(self.folder / REMOVAL_FILE)
        return left

    def _is_own(self, audio: str) -> bool:
        """Whether an audio file lies in `clips/`. Files elsewhere are not ours to delete."""
        return (self.folder / CLIPS_FOLDER).resolve() in (self.folder / audio).parent.resolve().parents

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive access to the dataset; an error if another process has it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise build_write_error(error, self.folder) from None
        with _file_lock(self.folder / ".lock", shared=False, seconds=LOCK_TIMEOUT_SECONDS):
            # Workers hold a shared lock while they write. Wait until those of a killed import are gone.
            with self.worker_lock(shared=False):
                pass
            if is_file(self.folder / REMOVAL_FILE):
                self._finish_removal()
            yield

    def worker_lock(self, *, shared: bool = True) -> contextlib.AbstractContextManager[None]:
        """Held by every process that writes clips, so that one that outlives its parent is noticed."""
        return _file_lock(self.folder / ".workers", shared=shared, seconds=WORKER_EXIT_TIMEOUT_SECONDS)


def delete_file(path: Path) -> None:
    """Delete a file if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise build_write_error(error, path) from None


def open_dataset_folder(folder: Path) -> DatasetFolder:
    """Open an existing dataset."""
    dataset = DatasetFolder(require_folder(folder))
    if not dataset.has_manifest:
        raise FileError("dataset-missing", f"{folder.name} has no {MANIFEST_NAME}", where=folder)
    return dataset


@contextlib.contextmanager
def _file_lock(path: Path, *, shared: bool, seconds: float) -> Iterator[None]:
    try:
        lock = FileLock(path)
    except OSError as error:
        raise build_write_error(error, path) from None
    with lock:
        try:
            lock.acquire(shared=shared, timeout=seconds)
        except BlockingIOError:
            found = f"another process is working on {path.parent.name}"
            raise FileError("dataset-busy", found, where=path.parent) from None
        yield


def find_missing_audio(dataset: DatasetFolder) -> Iterator[ManifestClip]:
    """Clips whose audio file is missing."""
    for clip in dataset.clips():
        if not is_file(clip.resolve_audio(dataset.folder)):
            yield clip


PROBLEMS_FILE = "problems.jsonl"
# In the folder of the journals, with a name that no journal has.
SCAN_PROBLEMS_FILE = ".found"
MAX_SHOWN_PROBLEMS = 12
SHOWN_NOTE_CODES = ("table-duplicate", "table-header", "list-unaccepted", "name-case", "source-more")
"""Notes that a user can act on."""


def collect_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    """All known problems of all imports, with absolute paths: every list may be called metadata.csv."""
    found = [
        replace(problem, file=str(journal.source_folder / problem.file))
        for journal in dataset.journals()
        for problem in journal.problems
    ]
    return list(dict.fromkeys((*found, *_read_scan_problems(dataset))))


def store_scan_problems(
    dataset: DatasetFolder, places: Sequence[Path], problems: Iterable[SourceProblem]
) -> list[SourceProblem]:
    """Store the problems of a search for sources; they replace those of earlier searches in the same places."""
    # Absolute, since the next import may run in another working directory.
    searched = [os.path.abspath(place) for place in places]
    now = [replace(problem, file=os.path.abspath(problem.file)) for problem in problems]
    elsewhere = [
        problem
        for problem in _read_scan_problems(dataset)
        if not any(
            problem.file == place or problem.file.startswith(place.rstrip(os.sep) + os.sep) for place in searched
        )
    ]
    _write_problems_jsonl(dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE, dict.fromkeys((*elsewhere, *now)))
    return now


def write_problems_file(dataset: DatasetFolder) -> None:
    """Rewrite `problems.jsonl`, each problem with its cure."""
    known = collect_problems(dataset)
    _write_problems_jsonl(
        dataset.folder / PROBLEMS_FILE, [replace(problem, cure=problem.finding().cure) for problem in known]
    )


def format_problems(problems: Sequence[SourceProblem], file: Path) -> list[Line]:
    """The worst problems in full, some of each kind, and the number of each kind."""
    if not problems:
        return ["no line of the sources was left out"]
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
    message = ", ".join(f"{code} {count:,}" for code, count in turns.most_common())
    lines: list[Line] = [line for item in shown for line in item.lines()]
    return [*lines, f"reported lines by code: {message} (details: {file})"]


def _read_scan_problems(dataset: DatasetFolder) -> list[SourceProblem]:
    path = dataset.folder / IMPORTS_FOLDER / SCAN_PROBLEMS_FILE
    if not is_file(path) or path.stat().st_size == 0:
        return []
    return [SourceProblem.from_json(parse_json(line, path)) for _, line in read_lines(path)]


def _write_problems_jsonl(path: Path, problems: Iterable[SourceProblem]) -> None:
    with atomic_write(path, overwrite=True) as stream:
        for problem in problems:
            stream.write(json.dumps(problem.to_json(), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
