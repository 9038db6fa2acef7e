"""A cue: text with a rough time in a recording, as subtitles have it."""

from __future__ import annotations

from dataclasses import dataclass, field

from voxgraft.importing.problems import SourceProblem

__all__ = ["Cue", "CueFile"]


@dataclass(frozen=True, slots=True)
class Cue:
    """What one subtitle says, and when, in seconds."""

    start: float
    end: float
    text: str
    """Lines as they were shown, with line breaks; cleaned once `cleaning` has seen it."""
    line: int = 0
    """Line of the source that its time stands on."""
    last_line: int = 0
    speaker: str = ""
    original_text: str = ""
    marks: tuple[str, ...] = ()
    """Reasons against it that its text shows: sung, two voices."""

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


@dataclass(slots=True)
class CueFile:
    """Every cue of a subtitle file, and every line that gave none."""

    cues: list[Cue] = field(default_factory=list)
    problems: list[SourceProblem] = field(default_factory=list)
