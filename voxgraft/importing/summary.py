"""What a dataset holds, counted: hours, speakers, recordings, splits, reasons. Reads the manifest alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from voxgraft.importing.manifest import ManifestClip

__all__ = ["DatasetSummary", "format_duration"]


@dataclass(slots=True)
class DatasetSummary:
    """Counts over clips. Seconds and splits are of clips that are used."""

    clips: int = 0
    used: int = 0
    seconds: float = 0.0
    rejected_seconds: float = 0.0
    letters: int = 0
    speakers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by speaker; so with recordings, languages and splits."""
    recordings: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    languages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    splits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    reasons: Counter[str] = field(default_factory=Counter)
    clips_of: Counter[str] = field(default_factory=Counter)
    """Clips by recording, used or not."""

    @classmethod
    def of(cls, clips: Iterable[ManifestClip]) -> DatasetSummary:
        made = cls()
        for clip in clips:
            made.add(clip)
        return made

    def add(self, clip: ManifestClip) -> None:
        self.clips += 1
        self.clips_of[clip.recording] += 1
        self.reasons.update(clip.rejected if not clip.taken_back else ())
        if not clip.is_used:
            self.rejected_seconds += clip.seconds
            self.recordings[clip.recording] += 0
            return
        self.used += 1
        self.seconds += clip.seconds
        self.letters += len(clip.text)
        self.speakers[clip.speaker] += clip.seconds
        self.recordings[clip.recording] += clip.seconds
        self.languages[clip.language] += clip.seconds
        self.splits[clip.split or "none"] += clip.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "clips": self.clips,
            "used": self.used,
            "seconds": round(self.seconds, 3),
            "rejected_seconds": round(self.rejected_seconds, 3),
            **{
                name: dict(sorted(getattr(self, name).items(), key=lambda item: -item[1]))
                for name in ("speakers", "recordings", "languages", "splits", "reasons")
            },
        }


def format_duration(seconds: float) -> str:
    """A length as people say it."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
