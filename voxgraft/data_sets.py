"""The verbs `data list`, `data info`, `data merge` and `data remove`: datasets looked at and changed.

The manifest is written first and whole; files go after it, so that a clip that is listed is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from voxgraft.amounts import pluralize
from voxgraft.asking import confirm_with_user
from voxgraft.data_settings import (
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
)
from voxgraft.errors import ConfigError, FileError
from voxgraft.files import require_folder
from voxgraft.importing.choosing import ClipSelection, require_known_names
from voxgraft.importing.dataset import DatasetFolder, find_missing_audio, open_dataset_folder
from voxgraft.importing.manifest import ManifestClip, write_manifest
from voxgraft.importing.merging import DatasetMerger
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.summary import DatasetSummary, format_duration
from voxgraft.importing.told import PROBLEMS_FILE, collect_problems, format_problems, write_problems_file
from voxgraft.results import Line, SimpleResult, Table

__all__ = ["data_info", "data_list", "data_merge", "data_remove"]

MAX_CLIPS_SHOWN = 40


def data_list(settings: DataListSettings) -> SimpleResult:
    """The recordings of a dataset, or the datasets in a folder."""
    folder = require_folder(settings.folder)
    own = DatasetFolder(folder)
    if own.has_manifest:
        summary = DatasetSummary.of(own.clips())
        rows = tuple(
            (name, f"{summary.clips_of[name]:,}", format_duration(seconds))
            for name, seconds in sorted(summary.recordings.items())
        )
        table = Table(("recording", "clips", "used"), rows)
        return SimpleResult({"dataset": str(folder), **summary.to_json()}, (table,))
    sets = [DatasetFolder(path.parent) for path in sorted(folder.glob("*/manifest.jsonl"))]
    if not sets:
        raise FileError("dataset-missing", f"no dataset in {folder.name}", where=folder)
    summaries = [(one, DatasetSummary.of(one.clips())) for one in sets]
    shown = tuple(
        (one.name, f"{found.clips:,}", f"{found.used:,}", format_duration(found.seconds), f"{len(found.speakers):,}")
        for one, found in summaries
    )
    table = Table(("dataset", "clips", "used", "length", "speakers"), shown)
    return SimpleResult({"datasets": [{"dataset": one.name, **found.to_json()} for one, found in summaries]}, (table,))


def data_info(settings: DataInfoSettings) -> SimpleResult:
    """Everything that is known of a dataset without listening to it."""
    dataset = open_dataset_folder(settings.dataset)
    clips = list(dataset.clips())
    summary = DatasetSummary.of(clips)
    missing = [clip.id for clip in find_missing_audio(dataset)]
    unfinished = [journal.recording for journal in dataset.journals() if not journal.is_published]
    problems = collect_problems(dataset)
    values = {**summary.to_json(), "missing_audio": missing, "unfinished": unfinished, "problems": len(problems)}
    lines: list[Line] = [
        f"{pluralize(summary.clips, 'clip')}, {summary.used:,} used: {format_duration(summary.seconds)}; "
        f"rejected: {format_duration(summary.rejected_seconds)}",
        f"{pluralize(len(summary.recordings), 'recording')}, {pluralize(len(summary.speakers), 'speaker')}, "
        f"languages: {', '.join(summary.languages) or 'none'}",
        f"split: {_format_splits(summary.splits)}",
    ]
    if summary.reasons:
        lines.append(f"rejected for: {', '.join(f'{name} {count:,}' for name, count in summary.reasons.most_common())}")
    if missing:
        shown = ", ".join(missing[:MAX_CLIPS_SHOWN])
        lines.append(
            f"the sound of {len(missing):,} clips is not there: {shown}. `data remove --missing` takes them out."
        )
    if unfinished:
        lines.append(f"not finished: {', '.join(unfinished)}; the same import goes on with them")
    if settings.problems:
        lines += _list_problem_lines(problems)
        values["every_problem"] = [problem.to_json() for problem in problems]
    elif problems:
        lines += format_problems(problems, dataset.folder / PROBLEMS_FILE)[-1:]
    if settings.clips:
        lines.append(_clip_table(clips))
    return SimpleResult(values, tuple(lines), int(bool(missing)))


def _format_splits(splits: dict[str, float]) -> str:
    return ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in sorted(splits.items())) or "nothing"


def _list_problem_lines(problems: Sequence[SourceProblem]) -> Iterator[Line]:
    for problem in problems:
        yield from problem.finding().lines()[:2]


def _clip_table(clips: Sequence[ManifestClip]) -> Table:
    rows = tuple(
        (clip.id, f"{clip.seconds:.2f}", clip.speaker, clip.split or "", ", ".join(clip.rejected), clip.text)
        for clip in clips
    )
    return Table(("clip", "seconds", "speaker", "split", "rejected", "text"), rows)


def data_merge(settings: DataMergeSettings) -> SimpleResult:
    """Put datasets into one. A recording whose name is taken, with its ids, gets that of its dataset before it."""
    target = DatasetFolder(settings.dataset)
    sources = [open_dataset_folder(folder) for folder in settings.sets]
    if own := [source for source in sources if source.folder.resolve() == target.folder.resolve()]:
        found = f"{own[0].name} is to be put into itself"
        raise ConfigError(
            "config-value", found, expected="other datasets than the one they go into", where=own[0].folder
        )
    with target.locked():
        merging = DatasetMerger.into(target)
        for source in sources:
            merging.add(source, used_only=settings.used_only)
        write_manifest(target.manifest, merging.clips)
    done = {"added": merging.added, "renamed": merging.renamed, "known": merging.known}
    told = "{added:,} clips added, {renamed:,} of them under a new id, {known:,} were there already".format(**done)
    return SimpleResult({**done, "clips": len(merging.clips)}, (told,))


def data_remove(settings: DataRemoveSettings) -> SimpleResult:
    """Take clips out of a dataset, after having asked."""
    dataset = open_dataset_folder(settings.dataset)
    wanted = ClipSelection(set(settings.recording), set(settings.speaker), set(settings.clip))
    if not (wanted.recordings or wanted.speakers or wanted.ids or settings.missing):
        cure = "name --recording, --speaker, --clip or --missing."
        raise ConfigError("config-missing", "nothing is named that shall go", cure=cure)
    with dataset.locked():
        dataset.reconcile_published()
        clips = list(dataset.clips())
        _expand_source_names(wanted, clips, dataset)
        require_known_names(wanted, clips, dataset)
        wanted.missing = {clip.id for clip in find_missing_audio(dataset)} if settings.missing else set()
        going = [clip for clip in clips if wanted.includes_clip(clip)]
        seconds = sum(clip.seconds for clip in going)
        told = f"{len(going):,} clips, {format_duration(seconds)}"
        answer = (
            True
            if settings.yes or not going
            else confirm_with_user([_clip_table(going[:MAX_CLIPS_SHOWN])], f"remove {told}?")
        )
        if not answer:
            nobody = "" if answer is not None else "nobody is there to be asked, so "
            return SimpleResult(
                {"removed": 0, "would": len(going)}, (f"{nobody}nothing was removed: {told} would be.",), 1
            )
        left = dataset.remove(going, [clip for clip in clips if not wanted.includes_clip(clip)])
        write_problems_file(dataset)
    lines = [f"removed {told}"]
    if left:
        lines.append(f"{len(left):,} sounds lie outside of the dataset and stay where they are: {left[0]} ...")
    return SimpleResult({"removed": len(going), "seconds": round(seconds, 3), "left": left}, tuple(lines))


def _expand_source_names(wanted: ClipSelection, clips: Sequence[ManifestClip], dataset: DatasetFolder) -> None:
    """A list holds many recordings under names of their own; by its name all of them are meant."""
    names = wanted.recordings - {clip.recording for clip in clips}
    there = {clip.id for clip in clips}
    for journal in dataset.journals() if names else ():
        if journal.recording in names and journal.ids & there:
            wanted.recordings.discard(journal.recording)
            wanted.ids |= journal.ids & there
