"""Clips by the names that people give: of recordings, of speakers, of clips. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from voxgraft.errors import ConfigError, nearest
from voxgraft.importing.dataset import Dataset
from voxgraft.importing.manifest import ManifestClip

__all__ = ["Wanted", "check_names"]


@dataclass(slots=True)
class Wanted:
    """Which clips are meant."""

    recordings: set[str]
    speakers: set[str]
    ids: set[str]
    missing: set[str] = field(default_factory=set)

    def takes(self, clip: ManifestClip) -> bool:
        named = clip.recording in self.recordings or clip.speaker in self.speakers or clip.id in self.ids
        return named or clip.id in self.missing


def check_names(wanted: Wanted, clips: Sequence[ManifestClip], dataset: Dataset) -> None:
    """An error for a name that nothing in the dataset has."""
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
