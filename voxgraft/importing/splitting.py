"""Train, validation and test: whole recordings, speakers or stretches go to one side, never clip by clip.

The same dataset and seed give the same split. Clips that hold the same sound stay together, whatever they are called.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import regex

from voxgraft.errors import ConfigError
from voxgraft.importing.fingerprints import Print, alike
from voxgraft.importing.manifest import SPLITS, ManifestClip, Split

__all__ = ["Leak", "groups_of", "leaks", "split_clips"]

STRETCH_SECONDS = 120.0
_NO_LETTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
LEAST_WORDS = 3
"""Shorter sentences are said everywhere."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Two clips on different sides that hold the same sound or the same sentence."""

    kind: str
    one: str
    two: str


class _Groups:
    """What belongs together, found step by step."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def join(self, one: str, two: str) -> None:
        first, second = sorted((self.find(one), self.find(two)))
        self._parent[second] = first


def groups_of(clips: Sequence[ManifestClip], by: str, prints: Mapping[str, Print]) -> dict[str, str]:
    """The group of each clip, by its id: what is in one group is never on two sides."""
    groups = _Groups()
    for clip in clips:
        groups.join(f"clip {clip.id}", f"place {_place(clip, by)}")
        if by == "speaker":
            groups.join(f"clip {clip.id}", f"recording {clip.recording}")
    used = {clip.id for clip in clips if clip.is_used}
    for one, two in alike({name: own for name, own in prints.items() if name in used}):
        groups.join(f"clip {one}", f"clip {two}")
    return {clip.id: groups.find(f"clip {clip.id}") for clip in clips}


def _place(clip: ManifestClip, by: str) -> str:
    if by == "speaker":
        return clip.speaker
    if by == "stretch":
        return f"{clip.recording} {int(clip.start // STRETCH_SECONDS)}"
    return clip.recording


def split_clips(
    clips: Sequence[ManifestClip], shares: Mapping[Split, float], by: str, seed: int, prints: Mapping[str, Print]
) -> list[ManifestClip]:
    """Clips with their side. Held-out sides get whole groups until they have their share; the rest is learnt from."""
    used = [clip for clip in clips if clip.is_used]
    group = groups_of(clips, by, prints)
    seconds: dict[str, float] = defaultdict(float)
    for clip in used:
        seconds[group[clip.id]] += clip.seconds
    sides = _sides(seconds, shares, seed)
    wanted = [side for side in SPLITS[1:] if shares[side] > 0]
    if missing := [side for side in wanted if side not in sides.values()]:
        found = f"{len(seconds):,} groups by {by}, none of which can be held out for {' and '.join(missing)}"
        raise ConfigError("split-impossible", found, expected=f"at least {len(wanted) + 1} groups")
    return [replace(clip, split=sides.get(group[clip.id], "train")) for clip in clips]


def _sides(seconds: Mapping[str, float], shares: Mapping[Split, float], seed: int) -> dict[str, Split]:
    """A side for each group. Order is drawn from the seed; a group that is far too large for a side is passed over."""
    total = sum(seconds.values())
    order = sorted(seconds, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    sides: dict[str, Split] = {}
    for side in SPLITS[1:]:
        if shares[side] <= 0:
            continue
        room = shares[side] * total
        for name in _fitting(order, sides, seconds, room):
            sides[name] = side
    return {**dict.fromkeys(order, "train"), **sides} if len(sides) < len(order) else {}


def _fitting(order: Sequence[str], taken: Iterable[str], seconds: Mapping[str, float], room: float) -> Iterator[str]:
    """Groups in their order that fit; where none does, the smallest, so that no side is empty."""
    free = [name for name in order if name not in taken]
    filled, any_found = 0.0, False
    for name in free[:-1] if len(free) > 1 else []:
        if filled >= room:
            return
        if filled + seconds[name] <= 1.3 * room:
            filled += seconds[name]
            any_found = True
            yield name
    if not any_found and len(free) > 1:
        yield min(free, key=lambda name: (seconds[name], order.index(name)))


def leaks(clips: Sequence[ManifestClip], prints: Mapping[str, Print]) -> list[Leak]:
    """What is on two sides: the same sound, the same sentence. Only clips that are used count."""
    side = {clip.id: clip.split for clip in clips if clip.is_used and clip.split}
    own = {name: value for name, value in prints.items() if name in side}
    found = [Leak("audio", one, two) for one, two in alike(own) if side[one] != side[two]]
    first: dict[str, dict[str, str]] = defaultdict(dict)
    for clip in clips:
        text = " ".join(_NO_LETTERS.sub(" ", clip.text.lower()).split())
        if clip.id not in side or len(text.split()) < LEAST_WORDS:
            continue
        found += [Leak("text", other, clip.id) for at, other in first[text].items() if at != clip.split]
        first[text].setdefault(str(clip.split), clip.id)
    return found
