"""What a clip and a set of clips are, whoever wrote them down. Reads no files and needs no torch.

`sets` has the sets that voxgraft writes itself, `community` those of other trainers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AnyArray",
    "ClipDataset",
    "ClipInfo",
    "DatasetHeader",
    "DatasetProvenance",
    "DatasetRole",
    "Int32Array",
    "PreparedClip",
    "format_clip_names",
]

DatasetRole = Literal["train", "valid", "replay"]
Int32Array = NDArray[np.int32]
AnyArray = NDArray[Any]
MAX_LISTED_CLIPS = 5


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """What people know of a clip."""

    id: str
    speaker: str
    recording: str
    """The recording that it was cut from; validation is held out by recording."""
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """A clip as `write_clip_dataset` takes it. Text ids are the language's own, without start and stop."""

    info: ClipInfo
    text_ids: Sequence[int] | AnyArray
    codes: Sequence[int] | AnyArray
    voice: Mapping[str, AnyArray]
    """The family's arrays. Whole numbers in a row may be as many as they like; all others keep one shape in a set."""


@dataclass(frozen=True, slots=True)
class DatasetProvenance:
    """What a set depends on; when one of these changes, it must be made again."""

    tokenizer_sha256: str
    base_sha256: str
    front_end: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """Text rules by which the texts were normalised; empty where they were read as they are."""


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """What all clips of a set have in common."""

    family: str
    language: str
    role: DatasetRole
    code_hz: float
    """Speech codes per second."""
    made_from: DatasetProvenance


class ClipDataset(ABC):
    """Clips by their place, from 0 to `len(set) - 1`. Opening one reads no ids, codes or voices of sets of ours.

    A set that brings its own prompts (`prompt_of`) has their voices and infos at places from `len(set)` on; those
    places lend a voice and nothing else.
    """

    name: str
    """Unlike that of every other set of a run: the data order depends on it."""
    header: DatasetHeader
    infos: Sequence[ClipInfo]
    num_text: NDArray[np.int64]
    num_codes: NDArray[np.int64]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.num_codes)

    @abstractmethod
    def text_ids(self, clip: int) -> Int32Array: ...

    @abstractmethod
    def codes(self, clip: int) -> Int32Array: ...

    @abstractmethod
    def voice(self, clip: int) -> dict[str, AnyArray]:
        """The family's arrays, not to be written to."""

    def shard_files(self) -> Mapping[Path, str]:
        """Files whose bytes are still to be compared with the SHA-256 that the set states for them; none by default."""
        return {}

    def prompt_of(self, clip: int) -> int | None:  # noqa: ARG002 (sets with prompts of their own look at it)
        """The place of the voice that a clip is learnt with, where the set says so itself."""
        return None


def format_clip_names(names: Sequence[str], limit: int = MAX_LISTED_CLIPS) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(name if len(name) <= 80 else f"{name[:77]}..." for name in names[:limit])
    return listed + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
