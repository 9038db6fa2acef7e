"""The verbs `data list`, `data info`, `data merge` and `data remove`: datasets looked at and changed.

The manifest is written first and whole; files go after it, so that a clip that is listed is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from voxgraft.amounts import counted
from voxgraft.asking import confirmed
from voxgraft.data_settings import (
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
)
from voxgraft.errors import ConfigError, FileError
from voxgraft.files import existing_folder
from voxgraft.importing.choosing import Wanted, check_names
from voxgraft.importing.dataset import Dataset, missing_audio, open_dataset
from voxgraft.importing.manifest import ManifestClip, write_manifest
from voxgraft.importing.merging import Merging
from voxgraft.importing.problems import Problem
from voxgraft.importing.summary import Summary, hours
from voxgraft.importing.told import PROBLEMS, problem_lines, problems_of, write_problems
from voxgraft.results import Line, Shown, Table

__all__ = ["data_info", "data_list", "data_merge", "data_remove"]

MOST_SHOWN = 40


def data_list(settings: DataListSettings) -> Shown:
    """The recordings of a dataset, or the datasets in a folder."""
    folder = existing_folder(settings.folder)
    own = Dataset(folder)
    if own.has_manifest:
        summary = Summary.of(own.clips())
        rows = tuple(
            (name, f"{summary.clips_of[name]:,}", hours(seconds))
            for name, seconds in sorted(summary.recordings.items())
        )
        table = Table(("recording", "clips", "used"), rows)
        return Shown({"dataset": str(folder), **summary.to_json()}, (table,))
    sets = [Dataset(path.parent) for path in sorted(folder.glob("*/manifest.jsonl"))]
    if not sets:
        raise FileError("dataset-missing", f"no dataset in {folder.name}", where=folder)
    summaries = [(one, Summary.of(one.clips())) for one in sets]
    shown = tuple(
        (one.name, f"{found.clips:,}", f"{found.used:,}", hours(found.seconds), f"{len(found.speakers):,}")
        for one, found in summaries
    )
    table = Table(("dataset", "clips", "used", "length", "speakers"), shown)
    return Shown({"datasets": [{"dataset": one.name, **found.to_json()} for one, found in summaries]}, (table,))


def data_info(settings: DataInfoSettings) -> Shown:
    """Everything that is known of a dataset without listening to it."""
    dataset = open_dataset(settings.dataset)
    clips = list(dataset.clips())
    summary = Summary.of(clips)
    missing = [clip.id for clip in missing_audio(dataset)]
    unfinished = [journal.recording for journal in dataset.journals() if not journal.is_published]
    problems = problems_of(dataset)
    values = {**summary.to_json(), "missing_audio": missing, "unfinished": unfinished, "problems": len(problems)}
    lines: list[Line] = [
        f"{counted(summary.clips, 'clip')}, {summary.used:,} used: {hours(summary.seconds)}; "
        f"rejected: {hours(summary.rejected_seconds)}",
        f"{counted(len(summary.recordings), 'recording')}, {counted(len(summary.speakers), 'speaker')}, "
        f"languages: {', '.join(summary.languages) or 'none'}",
        f"split: {_parts(summary.splits)}",
    ]
    if summary.reasons:
        lines.append(f"rejected for: {', '.join(f'{name} {count:,}' for name, count in summary.reasons.most_common())}")
    if missing:
        shown = ", ".join(missing[:MOST_SHOWN])
        lines.append(
            f"the sound of {len(missing):,} clips is not there: {shown}. `data remove --missing` takes them out."
        )
    if unfinished:
        lines.append(f"not finished: {', '.join(unfinished)}; the same import goes on with them")
    if settings.problems:
        lines += _every(problems)
        values["every_problem"] = [problem.to_json() for problem in problems]
    elif problems:
        lines += problem_lines(problems, dataset.folder / PROBLEMS)[-1:]
    if settings.clips:
        lines.append(_clip_table(clips))
    return Shown(values, tuple(lines), int(bool(missing)))


def _parts(splits: dict[str, float]) -> str:
    return ", ".join(f"{name} {hours(seconds)}" for name, seconds in sorted(splits.items())) or "nothing"


def _every(problems: Sequence[Problem]) -> Iterator[Line]:
    for problem in problems:
        yield from problem.finding().lines()[:2]


def _clip_table(clips: Sequence[ManifestClip]) -> Table:
    rows = tuple(
        (clip.id, f"{clip.seconds:.2f}", clip.speaker, clip.split or "", ", ".join(clip.rejected), clip.text)
        for clip in clips
    )
    return Table(("clip", "seconds", "speaker", "split", "rejected", "text"), rows)


def data_merge(settings: DataMergeSettings) -> Shown:
    """Put datasets into one. A recording whose name is taken, with its ids, gets that of its dataset before it."""
    target = Dataset(settings.dataset)
    sources = [open_dataset(folder) for folder in settings.sets]
    if own := [source for source in sources if source.folder.resolve() == target.folder.resolve()]:
        found = f"{own[0].name} is to be put into itself"
        raise ConfigError(
            "config-value", found, expected="other datasets than the one they go into", where=own[0].folder
        )
    with target.locked():
        merging = Merging.into(target)
        for source in sources:
            merging.add(source, used_only=settings.used_only)
        write_manifest(target.manifest, merging.clips)
    done = {"added": merging.added, "renamed": merging.renamed, "known": merging.known}
    told = "{added:,} clips added, {renamed:,} of them under a new id, {known:,} were there already".format(**done)
    return Shown({**done, "clips": len(merging.clips)}, (told,))


def data_remove(settings: DataRemoveSettings) -> Shown:
    """Take clips out of a dataset, after having asked."""
    dataset = open_dataset(settings.dataset)
    wanted = Wanted(set(settings.recording), set(settings.speaker), set(settings.clip))
    if not (wanted.recordings or wanted.speakers or wanted.ids or settings.missing):
        cure = "name --recording, --speaker, --clip or --missing."
        raise ConfigError("config-missing", "nothing is named that shall go", cure=cure)
    with dataset.locked():
        dataset.settle()
        clips = list(dataset.clips())
        _take_sources(wanted, clips, dataset)
        check_names(wanted, clips, dataset)
        wanted.missing = {clip.id for clip in missing_audio(dataset)} if settings.missing else set()
        going = [clip for clip in clips if wanted.takes(clip)]
        seconds = sum(clip.seconds for clip in going)
        told = f"{len(going):,} clips, {hours(seconds)}"
        answer = True if settings.yes or not going else confirmed([_clip_table(going[:MOST_SHOWN])], f"remove {told}?")
        if not answer:
            nobody = "" if answer is not None else "nobody is there to be asked, so "
            return Shown({"removed": 0, "would": len(going)}, (f"{nobody}nothing was removed: {told} would be.",), 1)
        left = dataset.remove(going, [clip for clip in clips if not wanted.takes(clip)])
        write_problems(dataset)
    lines = [f"removed {told}"]
    if left:
        lines.append(f"{len(left):,} sounds lie outside of the dataset and stay where they are: {left[0]} ...")
    return Shown({"removed": len(going), "seconds": round(seconds, 3), "left": left}, tuple(lines))


def _take_sources(wanted: Wanted, clips: Sequence[ManifestClip], dataset: Dataset) -> None:
    """A list holds many recordings under names of their own; by its name all of them are meant."""
    names = wanted.recordings - {clip.recording for clip in clips}
    there = {clip.id for clip in clips}
    for journal in dataset.journals() if names else ():
        if journal.recording in names and journal.ids & there:
            wanted.recordings.discard(journal.recording)
            wanted.ids |= journal.ids & there
