"""Clips by the names that people give: of recordings, of speakers, of clips. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from voxgraft.errors import ConfigError, find_nearest_name
from voxgraft.importing.dataset import DatasetFolder
from voxgraft.importing.manifest import ManifestClip

__all__ = ["ClipSelection", "require_known_names"]


@dataclass(slots=True)
class ClipSelection:
    """Which clips are meant."""

    recordings: set[str]
    speakers: set[str]
    ids: set[str]
    missing: set[str] = field(default_factory=set)

    def includes_clip(self, clip: ManifestClip) -> bool:
        named = clip.recording in self.recordings or clip.speaker in self.speakers or clip.id in self.ids
        return named or clip.id in self.missing


def require_known_names(selection: ClipSelection, clips: Sequence[ManifestClip], dataset: DatasetFolder) -> None:
    """An error for a name that nothing in the dataset has."""
    there = {
        "recording": ({clip.recording for clip in clips}, selection.recordings),
        "speaker": ({clip.speaker for clip in clips}, selection.speakers),
        "clip": ({clip.id for clip in clips}, selection.ids),
    }
    for kind, (known, named) in there.items():
        for name in sorted(named - known):
            hint = find_nearest_name(name, sorted(known))
            cure = f"did you mean `{hint}`?" if hint else ""
            raise ConfigError("clips-unknown", f"there is no {kind} {name!r}", where=dataset.folder, cure=cure)
