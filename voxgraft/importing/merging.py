"""Puts clips of other datasets into one: whole recordings under names that no other has, each sound a file of its own.

Links files where it can. Does not write the manifest, and holds no lock.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from voxgraft.errors import FileError
from voxgraft.files import build_write_error, is_file
from voxgraft.importing.dataset import CLIPS_FOLDER, DatasetFolder
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.sources import sanitize_name

__all__ = ["MERGED_FROM_KEY", "DatasetMerger"]

MERGED_FROM_KEY = "merged_from"
"""Of a clip: the dataset that it was imported into, and its id there, through however many others it came."""


@dataclass(slots=True)
class DatasetMerger:
    """A dataset that others are put into: its clips so far, and the names that are taken."""

    target: DatasetFolder
    clips: list[ManifestClip]
    sources: set[str]
    """Names of sources that were imported, finished or not: they may still get clips."""
    ids: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Recordings and speakers."""
    files: set[str] = field(default_factory=set)
    added: int = 0
    renamed: int = 0
    known: int = 0

    @classmethod
    def into(cls, target: DatasetFolder) -> DatasetMerger:
        target.reconcile_published()
        journals = target.journals()
        made = cls(target, [], {journal.recording for journal in journals})
        for clip in (clip for journal in journals for clip in journal.clips):
            made._note(clip)
        for clip in target.clips():
            made.clips.append(clip)
            made._note(clip)
        return made

    def _note(self, clip: ManifestClip) -> None:
        self.ids.add(clip.id)
        self.names |= {clip.recording, clip.speaker, clip.speaker.partition(":")[0]}
        self.files.add(clip.audio.lower())

    def add(self, source: DatasetFolder, *, used_only: bool) -> None:
        """Put the clips of a dataset in that are not there yet."""
        origins = {origin: clip.id for clip in self.clips for origin in _clip_origins(self.target, clip)}
        recordings: dict[str, list[ManifestClip]] = defaultdict(list)
        coming = list(source.clips())
        for clip in coming:
            recordings[clip.recording].append(clip)
        prefixes: dict[str, str] = {}
        for name, clips in recordings.items():
            prefixes[name] = prefix = self._prefix(source, clips, origins)
            self.names.add(prefix + name)
            self.ids |= {prefix + clip.id for clip in clips}
        for clip in coming:
            if used_only and not clip.is_used:
                continue
            if not origins.keys().isdisjoint(_clip_origins(source, clip)):
                self.known += 1
                continue
            self._check_rate(clip, source)
            made = self._moved(clip, prefixes, _clip_origins(source, clip)[0])
            _link_or_copy(clip.resolve_audio(source.folder), made.resolve_audio(self.target.folder))
            self.clips.append(made)
            self._note(made)
            self.added += 1
            self.renamed += made.id != clip.id

    def _prefix(self, source: DatasetFolder, clips: Sequence[ManifestClip], origins: Mapping[str, str]) -> str:
        """What comes before all names of one recording; as the last time, if some of it is there already."""
        for clip in clips:
            before = next((origins[origin] for origin in _clip_origins(source, clip) if origin in origins), "")
            if before.endswith(clip.id):
                return before.removesuffix(clip.id)
        number, prefix = 1, ""
        while self._is_taken(prefix, clips):
            prefix = f"{source.name}." if number == 1 else f"{source.name}.{number}."
            number += 1
        return prefix

    def _is_taken(self, prefix: str, clips: Sequence[ManifestClip]) -> bool:
        recording = prefix + clips[0].recording
        if recording in self.names or recording in self.sources:
            return True
        ids = [prefix + clip.id for clip in clips]
        return any(name in self.ids or name.rpartition("-")[0] in self.sources for name in ids)

    def _moved(self, clip: ManifestClip, prefixes: Mapping[str, str], origin: str) -> ManifestClip:
        prefix = prefixes[clip.recording]
        # A speaker that is named after a recording goes with it; others are the same person in every dataset.
        named_after = clip.speaker if clip.speaker in prefixes else clip.speaker.partition(":")[0]
        if clip.speaker.startswith(f"{clip.recording}:"):
            named_after = clip.recording
        return replace(
            clip,
            id=prefix + clip.id,
            audio=self._free_file(prefix + clip.recording, prefix + clip.id, Path(clip.audio).suffix),
            recording=prefix + clip.recording,
            speaker=prefixes.get(named_after, "") + clip.speaker,
            other={**clip.other, MERGED_FROM_KEY: origin},
        )

    def _free_file(self, recording: str, clip_id: str, ending: str) -> str:
        """A file among our clips: names that a manifest has from elsewhere may lead out of the folder."""
        stem = f"{CLIPS_FOLDER}/{sanitize_name(recording)}/{sanitize_name(clip_id)}"
        number, free = 2, stem + ending
        while free.lower() in self.files:
            free, number = f"{stem}-{number}{ending}", number + 1
        return free

    def _check_rate(self, clip: ManifestClip, source: DatasetFolder) -> None:
        if self.clips and clip.sample_rate != self.clips[0].sample_rate:
            found = f"{self.clips[0].sample_rate:,} Hz and {clip.sample_rate:,} Hz"
            raise FileError("dataset-differs", found, where=source.folder)


def _clip_origins(dataset: DatasetFolder, clip: ManifestClip) -> tuple[str, ...]:
    """By what a clip is known again: where it was imported, and where it is now."""
    here = f"{dataset.folder.resolve()}#{clip.id}"
    first = clip.other.get(MERGED_FROM_KEY)
    return (first, here) if isinstance(first, str) else (here,)


def _link_or_copy(source: Path, target: Path) -> None:
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
        raise build_write_error(error, target) from None
