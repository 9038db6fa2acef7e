"""Train, validation and test: whole recordings, speakers or stretches go to one side, never clip by clip.

The same dataset and seed give the same split. Clips that hold the same sound stay together, whatever they are called.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import regex

from voxgraft.audio.metrics import AudioFingerprint, find_duplicate_audio
from voxgraft.config.data import DataSplitSettings
from voxgraft.core.errors import ConfigError, Finding, finding
from voxgraft.core.results import Line, Table, pluralize
from voxgraft.data.folder import open_dataset_folder
from voxgraft.data.manifest import SPLITS, ManifestClip, SplitName, format_duration, write_manifest
from voxgraft.data.quality import compute_dataset_metrics

MAX_STRETCH_SECONDS = 120.0
"""Longest stretch. Of short recordings a stretch is as long as what is held out for one side."""
SPLIT_GAP_SECONDS = 5.0
"""Between the sides of one recording: neighbours share a sentence, a breath, and the noise of the moment."""
SPLIT_GAP_REASON = "split-gap"
"""Why clips in that gap are not used."""
MAX_HELD_OUT_RATIO = 2.5
"""Whole recordings may hold out so many times the share that was asked for; beyond, stretches are taken."""
MIN_STRETCH_GAIN = 1.5
"""But only if whole recordings would hold out so many times as much: of short ones the gaps take nearly all."""
_NON_LETTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
MIN_LEAK_WORDS = 3
"""Shorter sentences are said everywhere."""


@dataclass(frozen=True, slots=True)
class SplitLeak:
    """Two clips on different sides that hold the same sound or the same sentence."""

    kind: str
    one: str
    two: str


class _UnionFind:
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


def group_clips(
    clips: Sequence[ManifestClip], by: str, prints: Mapping[str, AudioFingerprint], stretch: float = MAX_STRETCH_SECONDS
) -> dict[str, str]:
    """The group of each clip, by its id: what is in one group is never on two sides."""
    groups = _UnionFind()
    for clip in clips:
        groups.join(f"clip {clip.id}", f"place {_group_key(clip, by, stretch)}")
        if by == "speaker":
            groups.join(f"clip {clip.id}", f"recording {clip.recording}")
    used = {clip.id for clip in clips if clip.is_used}
    for one, two in find_duplicate_audio({name: own for name, own in prints.items() if name in used}):
        groups.join(f"clip {one}", f"clip {two}")
    return {clip.id: groups.find(f"clip {clip.id}") for clip in clips}


def _group_key(clip: ManifestClip, by: str, stretch: float) -> str:
    if by == "speaker":
        return clip.speaker
    if by == "stretch":
        return f"{clip.recording} {int(clip.start // stretch)}"
    return clip.recording


def split_clips(
    clips: Sequence[ManifestClip],
    shares: Mapping[SplitName, float],
    by: str,
    seed: int,
    prints: Mapping[str, AudioFingerprint],
) -> list[ManifestClip]:
    """Clips with their side. Held-out sides get whole groups until they have their share; the rest is learnt from.

    `auto`: whole recordings; stretches of them where there are too few to hold out about what was asked for.
    """
    clips = [_clear_gap_reason(clip) for clip in clips]
    if by != "auto":
        return _split_by(clips, shares, by, seed, prints)
    try:
        made: list[ManifestClip] | None = _split_by(clips, shares, "recording", seed, prints)
    except ConfigError:
        made = None
    if made is not None and _held_out_share(made) <= MAX_HELD_OUT_RATIO * sum(shares.values()):
        return made
    try:
        stretches = _split_by(clips, shares, "stretch", seed, prints)
    except ConfigError:
        if made is None:
            raise
        return made
    return stretches if made is None or MIN_STRETCH_GAIN * _held_out_share(stretches) < _held_out_share(made) else made


def _held_out_share(clips: Sequence[ManifestClip]) -> float:
    """Share of the seconds that are not learnt from; what lies in a gap is not, either."""
    total = sum(clip.seconds for clip in clips if clip.is_used or SPLIT_GAP_REASON in clip.rejected)
    return 1 - sum(clip.seconds for clip in clips if clip.is_used and clip.split == "train") / total if total else 0.0


def _clear_gap_reason(clip: ManifestClip) -> ManifestClip:
    return replace(clip, rejected=tuple(reason for reason in clip.rejected if reason != SPLIT_GAP_REASON))


def _split_by(
    clips: Sequence[ManifestClip],
    shares: Mapping[SplitName, float],
    by: str,
    seed: int,
    prints: Mapping[str, AudioFingerprint],
) -> list[ManifestClip]:
    used = [clip for clip in clips if clip.is_used]
    smallest = min((share for share in shares.values() if share > 0), default=1.0)
    group = group_clips(
        clips, by, prints, min(MAX_STRETCH_SECONDS, smallest * _total_span_seconds(used)) or MAX_STRETCH_SECONDS
    )
    seconds: dict[str, float] = defaultdict(float)
    for clip in used:
        seconds[group[clip.id]] += clip.seconds
    sides = _assign_splits(seconds, shares, seed)
    wanted = [side for side in SPLITS[1:] if shares[side] > 0]
    if missing := [side for side in wanted if side not in sides.values()]:
        found = f"{len(seconds):,} groups by {by}, none of which can be held out for {' and '.join(missing)}"
        raise ConfigError("split-impossible", found, expected=f"at least {len(wanted) + 1} groups")
    made = [replace(clip, split=sides.get(group[clip.id], "train")) for clip in clips]
    return _reject_in_gaps(made) if by == "stretch" else made


def _total_span_seconds(clips: Iterable[ManifestClip]) -> float:
    """Seconds from the first to the last clip, over all recordings."""
    ends: dict[str, float] = defaultdict(float)
    for clip in clips:
        ends[clip.recording] = max(ends[clip.recording], clip.start + clip.seconds)
    return sum(ends.values())


def _reject_in_gaps(clips: Sequence[ManifestClip]) -> list[ManifestClip]:
    """Set clips aside that are too near to a clip on another side: of a pair the one of the larger side."""
    by_recording: dict[str, list[ManifestClip]] = defaultdict(list)
    for clip in clips:
        if clip.is_used:
            by_recording[clip.recording].append(clip)
    aside: set[str] = set()
    left = Counter(clip.split for own in by_recording.values() for clip in own)
    for own in by_recording.values():
        own.sort(key=lambda clip: (clip.start, clip.id))
        for at, one in enumerate(own):
            for two in own[at + 1 :]:
                if two.start - (one.start + one.seconds) >= SPLIT_GAP_SECONDS:
                    break
                larger = min((one, two), key=lambda clip: SPLITS.index(clip.split or "train"))
                if one.split != two.split and not {one.id, two.id} & aside and left[larger.split] > 1:
                    aside.add(larger.id)
                    left[larger.split] -= 1
    return [replace(clip, rejected=(*clip.rejected, SPLIT_GAP_REASON)) if clip.id in aside else clip for clip in clips]


def _assign_splits(seconds: Mapping[str, float], shares: Mapping[SplitName, float], seed: int) -> dict[str, SplitName]:
    """A side for each group. Order is drawn from the seed; a group that is far too large for a side is passed over."""
    total = sum(seconds.values())
    order = sorted(seconds, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    sides: dict[str, SplitName] = {}
    for side in SPLITS[1:]:
        if shares[side] <= 0:
            continue
        room = shares[side] * total
        for name in _fitting_groups(order, sides, seconds, room):
            sides[name] = side
    return {**dict.fromkeys(order, "train"), **sides} if len(sides) < len(order) else {}


def _fitting_groups(
    order: Sequence[str], taken: Iterable[str], seconds: Mapping[str, float], room: float
) -> Iterator[str]:
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


def find_split_leaks(clips: Sequence[ManifestClip], prints: Mapping[str, AudioFingerprint]) -> list[SplitLeak]:
    """What is on two sides: the same sound, the same sentence. Only clips that are used count."""
    side = {clip.id: clip.split for clip in clips if clip.is_used and clip.split}
    own = {name: value for name, value in prints.items() if name in side}
    found = [SplitLeak("audio", one, two) for one, two in find_duplicate_audio(own) if side[one] != side[two]]
    first: dict[str, dict[str, str]] = defaultdict(dict)
    for clip in clips:
        text = " ".join(_NON_LETTERS.sub(" ", clip.text.lower()).split())
        if clip.id not in side or len(text.split()) < MIN_LEAK_WORDS:
            continue
        found += [SplitLeak("text", other, clip.id) for at, other in first[text].items() if at != clip.split]
        first[text].setdefault(str(clip.split), clip.id)
    return found


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
