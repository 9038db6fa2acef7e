"""What a family can tell of one base by looking: its release, its languages, its other files, its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

SideFilePurpose = Literal["preparing", "speaking"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file beside the checkpoint: its names, the published one first, and what it is for (nothing: optional)."""

    names: tuple[str, ...]
    purposes: tuple[SideFilePurpose, ...]
    what: str


@dataclass(frozen=True, slots=True)
class BaseDescription:
    """What a family knows of one base beyond its tensors."""

    release: str
    languages: tuple[str, ...]
    side_files: tuple[SideFile, ...]
    others: tuple[str, ...] = ()
    """Checkpoints of other releases in the same folder."""


class ModelSize(Protocol):
    """What every model's size has, whatever else it has."""

    @property
    def width(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def heads(self) -> int: ...
