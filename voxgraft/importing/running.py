"""Brings many sources into a dataset: names that do not collide, several processes, one manifest at the end."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from voxgraft import progress
from voxgraft.amounts import format_names, pluralize
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import path_exists
from voxgraft.importing.bringing import (
    ImportOptions,
    ImportTask,
    SourceImportResult,
    import_source,
    rewrite_damaged_clips,
)
from voxgraft.importing.dataset import DatasetFolder, ImportJournal
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.processes import worker_pool
from voxgraft.importing.sources import AudioStamp, ImportSource, compute_audio_stamps, compute_source_fingerprint

__all__ = [
    *("Again", "Doubled", "Imported", "LeftOut", "Waiting"),
    *("doubled_sources", "import_sources", "left_out_of", "waiting_sources"),
]

SAME_SECONDS = 0.1
"""Clips with the same text are taken for one clip within this difference: two people need different times for it."""
DOUBLED_SHARE, DOUBLED_CLIPS = 0.5, 3
"""From this share of the smaller source, and this number of clips, a source is taken for another one again."""


@dataclass(slots=True)
class ImportResult:
    """What an import has done."""

    source_results: list[SourceImportResult] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    """Recordings that were there already, unchanged."""
    problems: list[SourceProblem] = field(default_factory=list)
    """Of sources that were not begun; the others have theirs."""
    kept: list[SourceProblem] = field(default_factory=list)
    """Of sources that have changed and whose clips stay as they are, as was asked for."""
    refused: list[str] = field(default_factory=list)
    """Sources that have changed; nobody has said what is to be done about it."""
    new_clips: int = 0
    journals: list[ImportJournal] = field(default_factory=list)
    """Of all these sources, as they are afterwards."""


@dataclass(frozen=True, slots=True)
class ImportLoss:
    """How much of some sources gave no clip, though it should have."""

    lines: int = 0
    of_lines: int = 0
    """Lines, or recordings, that should have given a clip."""
    sources: int = 0
    of_sources: int = 0

    @property
    def share(self) -> float:
        """The larger one of the share of lines and the share of whole sources."""
        return max(self.lines / max(1, self.of_lines), self.sources / max(1, self.of_sources))

    def __str__(self) -> str:
        lines = f"{self.lines:,} of {pluralize(self.of_lines, 'line')} were left out"
        sources = f"{self.sources:,} of {pluralize(self.of_sources, 'source')} could not be imported"
        return " and ".join([lines] * bool(self.lines) + [sources] * bool(self.sources)) or lines


def compute_import_loss(journals: Sequence[ImportJournal], found: Iterable[SourceProblem] = ()) -> ImportLoss:
    """What was left out of sources, by their journals, and of files that no source was made of."""
    failed = sum(not journal.is_done for journal in journals)
    problems = [problem for journal in journals if journal.is_done for problem in journal.problems]
    lines = sum(problem.loses_clip for problem in (*problems, *found))
    return ImportLoss(lines, lines + sum(len(journal.clips) for journal in journals), failed, len(journals))


@dataclass(frozen=True, slots=True)
class ReimportPolicy:
    """When a source that is there already is imported again."""

    changed: bool = False
    """Whether sources that have changed, or that other options would cut differently, are imported again."""
    keep: bool = False
    """Whether else their clips are used as they are, and it is no error."""
    asked: frozenset[str] | None = None
    """Options that were given by hand: others than those of the first import must be known, not ignored. None: all."""
    cure: str = "run the same command again with --reimport."


def import_sources(
    dataset: DatasetFolder,
    sources: Sequence[ImportSource],
    options: ImportOptions,
    workers: int = 0,
    policy: ReimportPolicy = ReimportPolicy(),  # noqa: B008 (frozen)
) -> ImportResult:
    """Bring sources in and write the manifest anew. What an import that was killed has left is used.

    The caller holds the dataset's lock.
    """
    done = ImportResult()
    dataset.reconcile_published()
    tasks = _plan_import_tasks(dataset, sources, options, policy, done, verify=True)
    with progress.progress_task("importing sources", len(tasks)) as advance:
        for brought in _run_import_tasks(dataset, tasks, options, workers or os.cpu_count() or 1):
            done.source_results.append(brought)
            advance(1)
    done.source_results.sort(key=lambda brought: brought.recording)
    done.new_clips = dataset.publish()
    own = {*(task.recording for task in tasks), *done.known, *done.refused}
    done.journals = [journal for journal in dataset.journals() if journal.recording in own]
    return done


@dataclass(frozen=True, slots=True)
class Doubled:
    """A new source with clips that another source of the dataset has as well."""

    new: str
    old: str
    same: int
    clips: int
    """Clips of the new source."""


def doubled_sources(dataset: DatasetFolder, brought: Iterable[SourceImportResult]) -> list[Doubled]:
    """Pairs of sources that look like one: a folder that was renamed and mended is a new source beside its old clips.

    A clip is the same if its file is, or if its text and nearly its length are (a sound that was cleaned).
    """
    new = {one.recording for one in brought if one.clips and not one.failed}
    if not new:
        return []
    there = {clip.id for clip in dataset.clips()}
    journals = [journal for journal in dataset.journals() if journal.ids & there]
    clips = {journal.recording: [clip for clip in journal.clips if clip.id in there] for journal in journals}
    sums = {journal.recording: journal.sums for journal in journals}
    holders: dict[Hashable, set[str]] = defaultdict(set)
    for name, own in clips.items():
        for clip in own:
            place = _length_class(clip.seconds)
            for key in (sums[name].get(clip.id), *((clip.text, at) for at in (place - 1, place, place + 1))):
                holders[key].add(name)
    shared: Counter[tuple[str, str]] = Counter()
    for name in sorted(new & clips.keys()):
        for clip in clips[name]:
            written, spoken = sums[name].get(clip.id), (clip.text, _length_class(clip.seconds))
            shared.update((name, old) for old in (holders[written] if written else set()) | holders[spoken])
    found = []
    for (name, old), same in sorted(shared.items()):
        least = max(DOUBLED_CLIPS, DOUBLED_SHARE * min(len(clips[name]), len(clips[old])))
        # Of two sources that are both new the second is the copy.
        if name != old and same >= least and (old not in new or old < name):
            found.append(Doubled(name, old, same, len(clips[name])))
    return found


def _length_class(seconds: float) -> int:
    """Lengths of neighbouring classes differ by `SAME_SECONDS` at most."""
    return round(seconds / (SAME_SECONDS / 2))


@dataclass(slots=True)
class ImportPreview:
    """What an import would do to a dataset, by the names of the sources."""

    new: list[str] = field(default_factory=list)
    """Sources that were never imported, or that were not finished."""
    failed: list[str] = field(default_factory=list)
    """Sources that could not be imported, and that have not changed since."""
    again: list[str] = field(default_factory=list)
    """Sources that would be imported again."""
    problems: list[SourceProblem] = field(default_factory=list)
    """What it would complain of: sources that have changed, or that cannot be read."""
    kept: list[SourceProblem] = field(default_factory=list)
    """Sources that have changed and are not imported again."""


def preview_import(
    dataset: DatasetFolder,
    sources: Sequence[ImportSource],
    options: ImportOptions,
    policy: ReimportPolicy = ReimportPolicy(),  # noqa: B008 (frozen)
) -> ImportPreview:
    """What an import would bring in, or complain of. Changes nothing. The dataset must not be at work."""
    seen, found = ImportResult(), ImportPreview()
    with dataset.locked():
        tasks = _plan_import_tasks(dataset, sources, options, policy, seen)
        journals = {journal.recording: journal for journal in dataset.journals()}
    found.problems, found.kept = seen.problems, seen.kept
    for task in tasks:
        journal = journals.get(task.recording)
        if journal is None or not (journal.is_published or journal.problems):
            found.new.append(task.source.name)
        elif journal.is_published:
            found.again.append(task.source.name)
        else:
            same = journal.source.get("fingerprint") == task.mark and not journal.find_changed_audio(task.sounds)
            (found.failed if same else found.new).append(task.source.name)
    return found


def _plan_import_tasks(
    dataset: DatasetFolder,
    sources: Sequence[ImportSource],
    options: ImportOptions,
    again: ReimportPolicy,
    done: ImportResult,
    *,
    verify: bool = False,
) -> list[ImportTask]:
    """Sources that are to be brought in, each under a name of its own.

    `verify` reads every clip file and adds the sources whose clips are damaged or missing.
    """
    journals = [journal for journal in dataset.journals() if journal.source]
    marks = {str(journal.source.get("fingerprint")): journal for journal in journals}
    clips = list(dataset.clips())
    ids, taken = {clip.id for clip in clips}, dataset.reserved_names(clips)
    tasks: dict[str, ImportTask] = {}
    for source in sources:
        try:
            mark = compute_source_fingerprint(source)
            journal = marks.get(mark) or _find_moved_journal(source, journals)
            sounds = compute_audio_stamps(source, (journal and journal.sounds) or {})
        except VoxgraftError as error:
            done.problems.append(SourceProblem.of(error, str(source.text)))
            continue
        if mark in tasks:
            done.known.append(tasks[mark].recording)
            continue
        if journal is None:
            name = _free_source_name(source.name, taken)
            taken.add(name)
            tasks[mark] = ImportTask(source, name, mark, sounds)
            continue
        problem = _find_source_change(source, journal, mark, sounds, options, again)
        if journal.is_published and problem is None:
            done.known.append(journal.recording)
            # Clips that were removed from the manifest are not missed.
            damaged = {clip.id for clip in journal.damaged(dataset.folder)} & ids if verify else set()
            if damaged:
                tasks[mark] = ImportTask(source, journal.recording, mark, sounds, damaged=frozenset(damaged))
        elif not journal.is_published or again.changed or not journal.clips:
            journals.remove(journal)  # no other source may take it as well
            marks.pop(str(journal.source.get("fingerprint")), None)
            before = dataset.clips_of(journal.recording, clips)
            tasks[mark] = ImportTask(source, journal.recording, mark, sounds, tuple(before))
        else:
            assert problem is not None
            (done.kept if again.keep else done.problems).append(problem)
            (done.known if again.keep else done.refused).append(journal.recording)
    done.known = list(dict.fromkeys(done.known))
    return list(tasks.values())


def _find_source_change(
    source: ImportSource,
    journal: ImportJournal,
    mark: str,
    sounds: Mapping[str, AudioStamp | None],
    options: ImportOptions,
    again: ReimportPolicy,
) -> SourceProblem | None:
    """Why a source, or how it is asked for, is not what it was when it was imported; None: it is the same."""
    name, was = source.text.name, f"was imported as {journal.recording}"
    if str(journal.source.get("fingerprint")) != mark:
        what = "its text" if source.kind == "list" else "its text or its sound"
        return SourceProblem(
            "source-changed", f"{name} {was}, and {what} is another now", str(source.text), cure=again.cure
        )
    if heard := journal.find_changed_audio(sounds):
        found = f"{name} {was}, and {format_names(heard)} changed since, or came later"
        return SourceProblem("source-changed", found, str(source.text), cure=again.cure)
    before = journal.source.get("options")
    asked = None if again.changed else again.asked
    if others := options.differences(before, asked) if isinstance(before, Mapping) else {}:
        shown = {key: ["not given" if one is None else one for one in pair] for key, pair in others.items()}
        told = ", ".join(f"{key} {then}, and now {now}" for key, (then, now) in shown.items())
        return SourceProblem("import-settings", f"{name} {was} with {told}", str(source.text), cure=again.cure)
    return None


def _find_moved_journal(source: ImportSource, journals: Iterable[ImportJournal]) -> ImportJournal | None:
    """The source that lay in the same place and was another; after a move, in a place of that name that is gone."""
    place, files = source.to_json(), {path.name for path in source.files}
    alike = [
        journal
        for journal in journals
        if journal.source.get("kind") == place["kind"] and (not files or files & journal.files)
    ]
    for journal in alike:
        if journal.source.get("text") == place["text"]:
            return journal
    name = Path(place["text"]).parts[-2:]
    places = [(journal, Path(str(journal.source.get("text")))) for journal in alike]
    moved = [journal for journal, path in places if path.parts[-2:] == name and not path_exists(path)]
    return moved[0] if len(moved) == 1 else None


def _free_source_name(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where another source has it."""
    lower = {other.lower() for other in taken}  # some file systems know no difference
    number, free = 2, name
    while free.lower() in lower:
        free, number = f"{name}-{number}", number + 1
    return free


def _run_import_tasks(
    dataset: DatasetFolder, tasks: Sequence[ImportTask], options: ImportOptions, workers: int
) -> Iterator[SourceImportResult]:
    work = partial(_run_import_task, dataset, options)
    if min(workers, len(tasks)) <= 1:
        yield from map(work, tasks)
        return
    try:
        with worker_pool(min(workers, len(tasks))) as pool:
            for future in as_completed([pool.submit(work, task) for task in tasks]):
                yield future.result()
    except BrokenProcessPool:
        found = "a process was ended from outside (often for memory); nothing that it had finished is lost"
        raise FileError("source-failed", found, where=dataset.folder, cure="run the same command again.") from None


def _run_import_task(dataset: DatasetFolder, options: ImportOptions, task: ImportTask) -> SourceImportResult:
    return rewrite_damaged_clips(dataset, task) if task.damaged else import_source(dataset, task, options)
