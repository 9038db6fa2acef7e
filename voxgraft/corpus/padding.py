"""Padded codes: what batched preprocessing of other trainers puts behind a short clip, and where the clip really ends.

Their batches are stored at the length of the longest clip, so that short clips teach codes of nothing and a late stop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

__all__ = ["StoredCodes", "TrimmedLength", "compute_trimmed_lengths"]

PaddingEvidence = Literal["stated", "seconds", "run"]
MAX_CODE_SLACK = 5
"""Codes over a clip's length that a rounded duration explains, and that are kept of a run."""
MIN_PADDING_RUN = 10
MAX_PADDED_BATCH = 32
"""Batch mates stand that close to one another, in the order of their names."""
MIN_PADDED_SHARE = 0.5
"""In padded data nearly every clip has a neighbour of its own stored length; by chance about one in twenty has."""


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """One clip's codes as they are stored. `run` is how often `last`, the last code, stands at the end."""

    name: str
    length: int
    last: int
    run: int
    stated: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class TrimmedLength:
    """How many codes are the clip's own, and what showed it; no reason where nothing is cut."""

    length: int
    reason: PaddingEvidence | None = None


def compute_trimmed_lengths(clips: Sequence[StoredCodes], code_hz: float) -> list[TrimmedLength]:
    """For each clip its own length: as stated, by its duration, or, where that is unknown, by its end."""
    padded = _detect_padded_ends(clips)
    return [_trim_clip(clip, code_hz, at_end) for clip, at_end in zip(clips, padded, strict=True)]


def _trim_clip(clip: StoredCodes, code_hz: float, padded_end: bool) -> TrimmedLength:
    length: int = clip.length
    reason: PaddingEvidence | None = None
    if clip.stated is not None and 0 < clip.stated < length:
        length, reason = clip.stated, "stated"
    if clip.seconds is not None:
        spoken = max(1, round(clip.seconds * code_hz))
        return TrimmedLength(spoken, "seconds") if length > spoken + MAX_CODE_SLACK else TrimmedLength(length, reason)
    own = clip.length - clip.run + MAX_CODE_SLACK
    if padded_end and own < length:
        return TrimmedLength(own, "run")
    return TrimmedLength(length, reason)


def _detect_padded_ends(clips: Sequence[StoredCodes]) -> list[bool]:
    """Whether a clip was stored with batch mates, at one length, and ends as others of the set do."""
    order = sorted(range(len(clips)), key=lambda at: clips[at].name)
    places: dict[int, list[int]] = defaultdict(list)
    for place, at in enumerate(order):
        places[clips[at].length].append(place)
    mated = [False] * len(clips)
    for near in places.values():
        for one, other in pairwise(near):
            if other - one < MAX_PADDED_BATCH:
                mated[order[one]] = mated[order[other]] = True
    if sum(mated) < MIN_PADDED_SHARE * len(clips):
        return [False] * len(clips)
    ends = Counter(clip.last for clip in clips if clip.run >= MIN_PADDING_RUN)
    return [
        mate and clip.run >= MIN_PADDING_RUN and ends[clip.last] > 1 for mate, clip in zip(mated, clips, strict=True)
    ]
