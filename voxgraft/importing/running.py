"""Brings many sources into a dataset: names that do not collide, several processes, one manifest at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial

from voxgraft import progress
from voxgraft.errors import FileError, VoxgraftError
from voxgraft.importing.bringing import Brought, ImportOptions, bring, remake
from voxgraft.importing.dataset import Dataset, Journal
from voxgraft.importing.problems import Problem
from voxgraft.importing.processes import worker_pool
from voxgraft.importing.sources import Source, fingerprint

__all__ = ["Imported", "import_sources", "waiting_sources"]


@dataclass(slots=True)
class Imported:
    """What an import has done."""

    brought: list[Brought] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    """Recordings that were there already, unchanged."""
    problems: list[Problem] = field(default_factory=list)
    """Of sources that were not begun; the others have theirs."""
    new_clips: int = 0


@dataclass(frozen=True, slots=True)
class _Task:
    source: Source
    recording: str
    mark: str
    damaged: frozenset[str] = frozenset()
    """Clips of a published source whose files have to be written again."""


def import_sources(dataset: Dataset, sources: Sequence[Source], options: ImportOptions, workers: int = 0) -> Imported:
    """Bring sources in and write the manifest anew. What an import that was killed has left is used.

    The caller holds the dataset's lock.
    """
    done = Imported()
    dataset.settle()
    tasks = _tasks(dataset, sources, done)
    with progress.task("importing recordings", len(tasks)) as advance:
        for brought in _run(dataset, tasks, options, workers or os.cpu_count() or 1):
            done.brought.append(brought)
            advance(1)
    done.brought.sort(key=lambda brought: brought.recording)
    done.new_clips = dataset.publish()
    return done


def waiting_sources(dataset: Dataset, sources: Sequence[Source]) -> list[Source]:
    """Those that an import would bring in, or complain of. The dataset must not be at work."""
    seen = Imported()
    with dataset.locked():
        tasks = _tasks(dataset, sources, seen)
    unhappy = {problem.file for problem in seen.problems}
    return [*(task.source for task in tasks), *(source for source in sources if str(source.text) in unhappy)]


def _tasks(dataset: Dataset, sources: Sequence[Source], done: Imported) -> list[_Task]:
    """Sources that are to be brought in, each under a name of its own."""
    journals = [journal for journal in dataset.journals() if journal.source]
    marks = {str(journal.source.get("fingerprint")): journal for journal in journals}
    clips = list(dataset.clips())
    ids, taken = {clip.id for clip in clips}, dataset.taken_names(clips)
    tasks: dict[str, _Task] = {}
    for source in sources:
        try:
            mark = fingerprint(source)
        except VoxgraftError as error:
            done.problems.append(Problem.of(error, str(source.text)))
            continue
        journal = marks.get(mark) or _same_place(source, journals)
        if mark in tasks:
            done.known.append(tasks[mark].recording)
        elif journal is None:
            name = _free(source.name, taken)
            taken.add(name)
            tasks[mark] = _Task(source, name, mark)
        elif not journal.is_published or (mark not in marks and not journal.clips):
            journals.remove(journal)  # no other source may take it as well
            marks.pop(str(journal.source.get("fingerprint")), None)
            tasks[mark] = _Task(source, journal.recording, mark)
        elif mark in marks:
            done.known.append(journal.recording)
            # Clips that were removed from the manifest are not missed.
            damaged = frozenset(clip.id for clip in journal.damaged(dataset.folder) if clip.id in ids)
            if damaged:
                tasks[mark] = _Task(source, journal.recording, mark, damaged)
        else:
            found = f"{source.text.name} was imported as {journal.recording}, and is another now"
            done.problems.append(Problem("source-changed", found, str(source.text)))
    done.known = list(dict.fromkeys(done.known))
    return list(tasks.values())


def _same_place(source: Source, journals: Iterable[Journal]) -> Journal | None:
    """The source that lay in the same place and was another."""
    place, files = source.to_json(), {path.name for path in source.files}
    for journal in journals:
        same = all(journal.source.get(key) == place[key] for key in ("kind", "text"))
        if same and (not files or files & journal.files):
            return journal
    return None


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where another source has it."""
    lower = {other.lower() for other in taken}  # some file systems know no difference
    number, free = 2, name
    while free.lower() in lower:
        free, number = f"{name}-{number}", number + 1
    return free


def _run(dataset: Dataset, tasks: Sequence[_Task], options: ImportOptions, workers: int) -> Iterator[Brought]:
    work = partial(_bring, dataset, options)
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


def _bring(dataset: Dataset, options: ImportOptions, task: _Task) -> Brought:
    if task.damaged:
        return remake(dataset, task.source, task.recording, task.damaged)
    return bring(dataset, task.source, task.recording, task.mark, options)
