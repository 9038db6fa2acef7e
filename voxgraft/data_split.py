"""The verb `data split`: gives every clip its side by whole recordings or speakers, and looks for leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.amounts import pluralize
from voxgraft.data_settings import DataSplitSettings
from voxgraft.errors import ConfigError, Finding, finding
from voxgraft.importing.dataset import open_dataset_folder
from voxgraft.importing.fingerprints import AudioFingerprint
from voxgraft.importing.listening_through import compute_dataset_metrics
from voxgraft.importing.manifest import SPLITS, ManifestClip, SplitName, write_manifest
from voxgraft.importing.splitting import SPLIT_GAP_REASON, SPLIT_GAP_SECONDS, SplitLeak, find_split_leaks, split_clips
from voxgraft.importing.summary import format_duration
from voxgraft.results import Line, Table

__all__ = ["DataSplitResult", "data_split", "split_remaining_clips"]

MAX_LEAKS_SHOWN = 8
MIN_SPEAKERS_JUDGED, MAX_SINGLE_CLIP_SHARE = 3, 0.8
"""From so many speakers on, of whom such a share has one clip only, the names are hardly those of people."""


@dataclass(frozen=True, slots=True)
class DataSplitResult:
    """The sides, and what is on two of them."""

    manifest: Path
    clips: tuple[ManifestClip, ...]
    leaks: tuple[SplitLeak, ...]
    unheard: tuple[str, ...] = ()
    """Clips whose sound is missing or broken, so that it was compared with no other."""

    @property
    def exit_code(self) -> int:
        """1 if the same sound is learnt from and held out."""
        return int(any(leak.kind == "audio" for leak in self.leaks))

    def findings(self) -> list[Finding]:
        found = []
        for kind in ("audio", "text"):
            own = [leak for leak in self.leaks if leak.kind == kind]
            if own:
                shown = ", ".join(f"{leak.one} and {leak.two}" for leak in own[:MAX_LEAKS_SHOWN])
                found.append(finding(f"split-leak-{kind}", f"{len(own):,} pairs: {shown}", where=self.manifest))
        speakers = Counter(clip.speaker for clip in self.clips if clip.is_used)
        lone = sum(count == 1 for count in speakers.values())
        if len(speakers) >= MIN_SPEAKERS_JUDGED and lone >= MAX_SINGLE_CLIP_SHARE * len(speakers):
            told = f"{lone:,} of {len(speakers):,} speakers have one clip only"
            found.append(finding("speakers-one-clip", told, where=self.manifest))
        return found

    @property
    def shared_speakers(self) -> list[str]:
        """Speakers of clips that are held out who are learnt from as well."""
        used = [clip for clip in self.clips if clip.is_used]
        learnt = {clip.speaker for clip in used if clip.split == "train"}
        return sorted({clip.speaker for clip in used if clip.split in SPLITS[1:]} & learnt)

    @property
    def splits_recordings(self) -> bool:
        """Whether one recording is on several sides."""
        sides = {(clip.recording, clip.split) for clip in self.clips if clip.is_used}
        return len(sides) > len({recording for recording, _ in sides})

    def sides(self) -> dict[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = {}
        for side in SPLITS:
            own = [clip for clip in self.clips if clip.split == side and clip.is_used]
            made[side] = {
                "clips": len(own),
                "seconds": round(sum(clip.seconds for clip in own), 3),
                "recordings": len({clip.recording for clip in own}),
                "speakers": len({clip.speaker for clip in own}),
            }
        return made

    def to_json(self) -> dict[str, Any]:
        pairs = [{"kind": leak.kind, "one": leak.one, "two": leak.two} for leak in self.leaks]
        unheard = list(self.unheard)
        return {
            "manifest": str(self.manifest),
            "sides": self.sides(),
            "leaks": pairs,
            "unheard": unheard,
            "by_stretch": self.splits_recordings,
            "shared_speakers": self.shared_speakers,
        }

    def lines(self) -> list[Line]:
        rows = tuple(
            (
                side,
                f"{own['clips']:,}",
                format_duration(own["seconds"]),
                f"{own['recordings']:,}",
                f"{own['speakers']:,}",
            )
            for side, own in self.sides().items()
        )
        told: list[Line] = [line for item in self.findings() for line in item.lines()]
        if not self.leaks:
            told.append("no sound and no sentence is both learnt from and held out")
        told += self._speaker_lines()
        if self.splits_recordings:
            aside = sum(SPLIT_GAP_REASON in clip.rejected for clip in self.clips)
            told.append(
                "stretches of recordings are held out, since there are too few to hold out whole ones; "
                f"{pluralize(aside, 'clip')} in the {SPLIT_GAP_SECONDS:.0f} s beside these are not used ({SPLIT_GAP_REASON})"
            )
        if self.unheard:
            shown = ", ".join(self.unheard[:MAX_LEAKS_SHOWN])
            told.append(f"the sound of {len(self.unheard):,} clips is missing or broken, and was not compared: {shown}")
        return [Table(("side", "clips", "used", "recordings", "speakers"), rows), *told]

    def _speaker_lines(self) -> list[Line]:
        """Whether held-out clips are of voices that are learnt: then nothing is said about other voices."""
        shared = self.shared_speakers
        if not shared:
            return []
        held_out = {clip.speaker for clip in self.clips if clip.is_used and clip.split in SPLITS[1:]}
        if len({clip.speaker for clip in self.clips if clip.is_used}) == 1:
            return [
                f"all sides are the same speaker, {shared[0]}: held-out clips measure new sentences in a known voice"
            ]
        many = f"{len(shared):,} of {pluralize(len(held_out), 'held-out speaker')}"
        return [f"{many} are learnt from as well; --by speaker holds out whole speakers"]


def data_split(settings: DataSplitSettings) -> DataSplitResult:
    """Split a dataset anew and look whether anything is on two sides."""
    if settings.validation + settings.test >= 1:
        found = f"validation {settings.validation} and test {settings.test} leave nothing to learn from"
        raise ConfigError("config-value", found, expected="shares that are together below 1")
    dataset = open_dataset_folder(settings.dataset)
    shares: dict[SplitName, float] = {"validation": settings.validation, "test": settings.test}
    with dataset.locked():
        clips = list(dataset.clips())
        heard = compute_dataset_metrics(dataset, clips)
        made = split_clips(clips, shares, settings.by, settings.seed, heard.fingerprints)
        write_manifest(dataset.manifest, made)
    return _check_split(dataset.manifest, made, heard.fingerprints)


def split_remaining_clips(folder: Path) -> DataSplitResult:
    """Give a side to the clips that have none: that of their recording, else the one that is learnt from."""
    dataset = open_dataset_folder(folder)
    with dataset.locked():
        clips = list(dataset.clips())
        heard = compute_dataset_metrics(dataset, clips)
        sides = {clip.recording: clip.split for clip in clips if clip.split is not None}
        made = [
            clip if clip.split or not clip.is_used else replace(clip, split=sides.get(clip.recording, "train"))
            for clip in clips
        ]
        write_manifest(dataset.manifest, made)
    return _check_split(dataset.manifest, made, heard.fingerprints)


def _check_split(
    manifest: Path, clips: Sequence[ManifestClip], prints: Mapping[str, AudioFingerprint]
) -> DataSplitResult:
    unheard = tuple(clip.id for clip in clips if clip.id not in prints and clip.is_used)
    return DataSplitResult(manifest, tuple(clips), tuple(find_split_leaks(clips, prints)), unheard)
