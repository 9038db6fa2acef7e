"""The verbs `data list`, `data info`, `data merge` and `data remove`: datasets looked at and changed.

The manifest is written first and whole; files go after it, so that a clip that is listed is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxgraft import progress
from voxgraft.asking import confirmed
from voxgraft.data_import import problem_lines
from voxgraft.data_settings import (
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
)
from voxgraft.errors import ConfigError, FileError, nearest
from voxgraft.files import existing_folder, is_file, write_error
from voxgraft.importing.dataset import Dataset, missing_audio, open_dataset
from voxgraft.importing.manifest import ManifestClip, write_manifest
from voxgraft.importing.problems import Problem
from voxgraft.importing.summary import Summary, hours
from voxgraft.results import Line, Table

__all__ = ["Shown", "data_info", "data_list", "data_merge", "data_remove"]

MOST_SHOWN = 40
MERGED_FROM = "merged_from"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a verb has found or done, ready to be shown."""

    values: dict[str, Any]
    shown: tuple[Line, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.values

    def lines(self) -> Sequence[Line]:
        return self.shown


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
    problems = [problem for journal in dataset.journals() for problem in journal.problems]
    values = {**summary.to_json(), "missing_audio": missing, "unfinished": unfinished, "problems": len(problems)}
    lines: list[Line] = [
        f"{summary.clips:,} clips, {summary.used:,} used: {hours(summary.seconds)}; "
        f"rejected: {hours(summary.rejected_seconds)}",
        f"{len(summary.recordings):,} recordings, {len(summary.speakers):,} speakers, "
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
        lines += problem_lines(problems, dataset.folder / "problems.jsonl")[-1:]
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
    """Put datasets into one. Ids that both have get the name of their dataset before them."""
    target = Dataset(settings.dataset)
    sources = [open_dataset(folder) for folder in settings.sets]
    added = known = renamed = 0
    with target.locked():
        clips = list(target.clips())
        rates = {clip.sample_rate for clip in clips}
        ids = {clip.id for clip in clips}
        origins = {clip.other.get(MERGED_FROM) for clip in clips}
        for source in sources:
            for clip in source.clips():
                origin = f"{source.folder.resolve()}#{clip.id}"
                if settings.used_only and not clip.is_used:
                    continue
                if origin in origins:
                    known += 1
                    continue
                made = _moved(clip, source, ids, origin)
                rates.add(clip.sample_rate)
                if len(rates) > 1:
                    found = " and ".join(f"{rate:,} Hz" for rate in sorted(rates))
                    raise FileError("dataset-differs", found, where=source.folder)
                _copy(clip.audio_in(source.folder), made.audio_in(target.folder))
                renamed += made.id != clip.id
                added += 1
                ids.add(made.id)
                clips.append(made)
        write_manifest(target.manifest, clips)
    told = f"{added:,} clips added, {renamed:,} of them under a new id, {known:,} were there already"
    return Shown({"added": added, "renamed": renamed, "known": known, "clips": len(clips)}, (told,))


def _moved(clip: ManifestClip, source: Dataset, ids: set[str], origin: str) -> ManifestClip:
    """The clip under an id, a recording and a speaker that no other dataset's clip has."""
    number, new = 1, clip.id
    while new in ids:
        new = f"{source.name}.{clip.id}" if number == 1 else f"{source.name}.{number}.{clip.id}"
        number += 1
    prefix = f"{source.name}." if new != clip.id else ""
    audio = f"clips/{prefix}{clip.recording}/{new}{Path(clip.audio).suffix}".replace("\\", "/")
    return replace(
        clip, id=new, audio=audio, recording=prefix + clip.recording, other={**clip.other, MERGED_FROM: origin}
    )


def _copy(source: Path, target: Path) -> None:
    """Link a file, or copy it where that cannot be; beside its place first, so that it is whole or absent."""
    if not is_file(source):
        raise FileError("clip-audio-missing", f"{source.name} is not there", where=source)
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
        os.replace(part, target)
    except OSError as error:
        raise write_error(error, target) from None


@dataclass(slots=True)
class Wanted:
    """Which clips go."""

    recordings: set[str]
    speakers: set[str]
    ids: set[str]
    missing: set[str] = field(default_factory=set)

    def takes(self, clip: ManifestClip) -> bool:
        named = clip.recording in self.recordings or clip.speaker in self.speakers or clip.id in self.ids
        return named or clip.id in self.missing


def data_remove(settings: DataRemoveSettings) -> Shown:
    """Take clips out of a dataset, after having asked."""
    dataset = open_dataset(settings.dataset)
    wanted = Wanted(set(settings.recording), set(settings.speaker), set(settings.clip))
    if not (wanted.recordings or wanted.speakers or wanted.ids or settings.missing):
        cure = "name --recording, --speaker, --clip or --missing."
        raise ConfigError("config-missing", "nothing is named that shall go", cure=cure)
    with dataset.locked():
        clips = list(dataset.clips())
        check_names(wanted, clips, dataset)
        wanted.missing = {clip.id for clip in missing_audio(dataset)} if settings.missing else set()
        going = [clip for clip in clips if wanted.takes(clip)]
        seconds = sum(clip.seconds for clip in going)
        told = f"{len(going):,} clips, {hours(seconds)}"
        answer = True if settings.yes or not going else confirmed([_clip_table(going[:MOST_SHOWN])], f"remove {told}?")
        if not answer:
            nobody = "" if answer is not None else "nobody is there to be asked, so "
            return Shown({"removed": 0, "would": len(going)}, (f"{nobody}nothing was removed: {told} would be.",), 1)
        write_manifest(dataset.manifest, (clip for clip in clips if not wanted.takes(clip)))
        _remove_files(dataset, going, {clip.recording for clip in clips if not wanted.takes(clip)})
    return Shown({"removed": len(going), "seconds": round(seconds, 3)}, (f"removed {told}",))


def check_names(wanted: Wanted, clips: Sequence[ManifestClip], dataset: Dataset) -> None:
    there = {
        "recording": ({clip.recording for clip in clips}, wanted.recordings),
        "speaker": ({clip.speaker for clip in clips}, wanted.speakers),
        "clip": ({clip.id for clip in clips}, wanted.ids),
    }
    for kind, (known, named) in there.items():
        for name in sorted(named - known):
            hint = nearest(name, sorted(known))
            cure = f"did you mean `{hint}`?" if hint else ""
            raise ConfigError("clips-unknown", f"there is no {kind} {name!r}", where=dataset.folder, cure=cure)


def _remove_files(dataset: Dataset, going: Sequence[ManifestClip], staying: set[str]) -> None:
    """Files of clips that went, and journals of sources of which nothing stays: those can be brought in again."""
    with progress.task("removing clips", len(going)) as advance:
        for clip in going:
            clip.audio_in(dataset.folder).unlink(missing_ok=True)
            advance(1)
    gone = {clip.recording for clip in going} - staying
    for journal in dataset.journals():
        if journal.clips and {clip.recording for clip in journal.clips} <= gone:
            dataset.forget(journal.recording)
