"""The command `data split`: train, validation and test, by whole recordings, speakers or stretches, never by clips.

The same dataset and seed give the same split. Clips with the same audio stay together, whatever their names. Afterwards
the splits are checked for leaks: audio or sentences that are both trained on and held out.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import regex

from voxgraft.audio.metrics import AudioFingerprint, find_duplicate_audio
from voxgraft.audio.voices import VoiceCount, count_voices
from voxgraft.config.data import DataSplitSettings
from voxgraft.core.errors import ConfigError, Finding, finding
from voxgraft.core.results import Line, Table, pluralize
from voxgraft.data.folder import open_dataset_folder
from voxgraft.data.manifest import SPLITS, ManifestClip, SplitName, format_length, write_manifest
from voxgraft.data.report import choose_voice_clips, compute_dataset_metrics, voice_findings
from voxgraft.data.segment import SPLIT_GAP_REASON

# Longest stretch of a recording. In short recordings a stretch is as long as what one split needs.
MAX_STRETCH_SECONDS = 120.0
# Between the splits of one recording: neighbouring clips share a sentence, a breath, and background noise.
SPLIT_GAP_SECONDS = 5.0
# Whole recordings may hold out this multiple of the requested share; beyond it, stretches are used,
MAX_HELD_OUT_RATIO = 2.5
# but only if whole recordings would hold out this multiple of what stretches do: in short ones the gaps take most.
MIN_STRETCH_GAIN = 1.5
_NON_LETTERS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")
# Shorter sentences occur everywhere.
MIN_LEAK_WORDS = 3
MAX_LEAKS_SHOWN = 8
# From this many speakers on, if such a share has one clip only, the names are hardly those of people.
MIN_SPEAKERS_JUDGED, MAX_SINGLE_CLIP_SHARE = 3, 0.8


SplitLeak = tuple[str, str, str]
"""What two clips in different splits have in common (`audio` or `text`), and the ids of the two."""


def group_clips(
    clips: Sequence[ManifestClip], by: str, prints: Mapping[str, AudioFingerprint], stretch: float = MAX_STRETCH_SECONDS
) -> dict[str, str]:
    """The group of each clip, by its id: one group is never in two splits."""
    parent: dict[str, str] = {}

    # Disjoint sets: clips, places and recordings that belong together end up under one name.
    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    def union(one: str, two: str) -> None:
        first, second = sorted((find(one), find(two)))  # sorted: the group's name does not depend on the order
        parent[second] = first

    for clip in clips:
        place = {"speaker": clip.speaker, "part": f"{clip.recording} {int(clip.start // stretch)}"}
        union(f"clip {clip.id}", f"place {place.get(by, clip.recording)}")
        if by == "speaker":
            union(f"clip {clip.id}", f"recording {clip.recording}")
    used = {clip.id for clip in clips if clip.is_used}
    for one, two in find_duplicate_audio({name: own for name, own in prints.items() if name in used}):
        union(f"clip {one}", f"clip {two}")
    return {clip.id: find(f"clip {clip.id}") for clip in clips}


def split_clips(
    clips: Sequence[ManifestClip],
    shares: Mapping[SplitName, float],
    by: str,
    seed: int,
    prints: Mapping[str, AudioFingerprint],
) -> list[ManifestClip]:
    """Clips with their split. Held-out splits get whole groups until they have their share; the rest is for training.

    `auto`: whole recordings, or stretches if there are too few recordings to hold out about the requested share.
    """
    clips = [replace(clip, rejected=tuple(r for r in clip.rejected if r != SPLIT_GAP_REASON)) for clip in clips]
    if by != "auto":
        return _split_by(clips, shares, by, seed, prints)
    try:
        whole: list[ManifestClip] | None = _split_by(clips, shares, "recording", seed, prints)
    except ConfigError:
        whole = None
    if whole is not None and _held_out_share(whole) <= MAX_HELD_OUT_RATIO * sum(shares.values()):
        return whole
    try:
        stretches = _split_by(clips, shares, "part", seed, prints)
    except ConfigError:
        if whole is None:
            raise
        return whole
    if whole is None or MIN_STRETCH_GAIN * _held_out_share(stretches) < _held_out_share(whole):
        return stretches
    return whole


def _held_out_share(clips: Sequence[ManifestClip]) -> float:
    """Share of the seconds that are not used for training, including those in gaps."""
    total = sum(clip.seconds for clip in clips if clip.is_used or SPLIT_GAP_REASON in clip.rejected)
    return 1 - sum(clip.seconds for clip in clips if clip.is_used and clip.split == "train") / total if total else 0.0


def _split_by(
    clips: Sequence[ManifestClip],
    shares: Mapping[SplitName, float],
    by: str,
    seed: int,
    prints: Mapping[str, AudioFingerprint],
) -> list[ManifestClip]:
    used = [clip for clip in clips if clip.is_used]
    smallest = min((share for share in shares.values() if share > 0), default=1.0)
    ends: dict[str, float] = defaultdict(float)
    for clip in used:
        ends[clip.recording] = max(ends[clip.recording], clip.start + clip.seconds)
    stretch = min(MAX_STRETCH_SECONDS, smallest * sum(ends.values())) or MAX_STRETCH_SECONDS
    group = group_clips(clips, by, prints, stretch)
    seconds: dict[str, float] = defaultdict(float)
    for clip in used:
        seconds[group[clip.id]] += clip.seconds
    sides = _assign_splits(seconds, shares, seed)
    wanted = [side for side in SPLITS[1:] if shares[side] > 0]
    if missing := [side for side in wanted if side not in sides.values()]:
        if not used:
            found = f"all of {pluralize(len(clips), 'clip')} are rejected" if clips else "the dataset has no clips"
            cure = "run `voxgraft data info DATASET`: it counts the reasons. Fix the sources, then import them again."
            raise ConfigError("split-impossible", found, expected="usable clips", cure=cure)
        unit = pluralize(len(seconds), by)
        if by == "part":
            unit += f" (a part is up to {MAX_STRETCH_SECONDS:.0f} s of a recording, so a long recording has several)"
        found = f"{pluralize(len(used), 'usable clip')} in {unit}: none can be held out for {' and '.join(missing)}"
        cure = "add recordings, or longer ones."
        if by != "part":
            others = [("recording", "then a speaker can be in training and held out"), ("part", "a weaker test")]
            fits = next(
                (one for one in others[by == "recording" :] if _can_split_by(clips, shares, one[0], seed, prints)), None
            )
            unit = f"add {by}s"
            cure = f"{unit}, or use --by {fits[0]} ({fits[1]})." if fits else f"{unit}."
            if by == "recording" and len({clip.recording for clip in used}) > len(seconds):
                cure += (
                    " Recordings with the same audio count as one; `voxgraft data report DATASET` rejects duplicates."
                )
        expected = f"at least {len(wanted) + 1} {by}s"
        raise ConfigError("split-impossible", found, expected=expected, cure=cure)
    made = [replace(clip, split=sides.get(group[clip.id], "train")) for clip in clips]
    if by != "part":
        return made
    # Reject clips too near to a clip of another split: of each pair the one in the larger split.
    by_recording: dict[str, list[ManifestClip]] = defaultdict(list)
    for clip in made:
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
    return [replace(clip, rejected=(*clip.rejected, SPLIT_GAP_REASON)) if clip.id in aside else clip for clip in made]


def _can_split_by(
    clips: Sequence[ManifestClip],
    shares: Mapping[SplitName, float],
    by: str,
    seed: int,
    prints: Mapping[str, AudioFingerprint],
) -> bool:
    """Whether another unit gives every split something, so that a fix does not lead to the same error."""
    try:
        _split_by(clips, shares, by, seed, prints)
    except ConfigError:
        return False
    return True


def _assign_splits(seconds: Mapping[str, float], shares: Mapping[SplitName, float], seed: int) -> dict[str, SplitName]:
    """A split for each group, in an order drawn from the seed; empty if nothing would be left for training."""
    total = sum(seconds.values())
    # By hash, not by a random generator: adding a recording does not reorder the others.
    order = sorted(seconds, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    splits: dict[str, SplitName] = {}
    for split in SPLITS[1:]:
        room = shares[split] * total
        free = [name for name in order if name not in splits]
        if shares[split] <= 0 or len(free) < 2:
            continue
        filled, any_found = 0.0, False
        for name in free[:-1]:
            if filled >= room:
                break
            if filled + seconds[name] <= 1.3 * room:  # a group that is far too large is skipped
                filled += seconds[name]
                any_found = True
                splits[name] = split
        if not any_found and room > 0:  # none fits: take the smallest, so that no split is empty
            splits[min(free, key=lambda name: (seconds[name], order.index(name)))] = split
    return {**dict.fromkeys(order, "train"), **splits} if len(splits) < len(order) else {}


def find_split_leaks(clips: Sequence[ManifestClip], prints: Mapping[str, AudioFingerprint]) -> list[SplitLeak]:
    """Audio and sentences that are in two splits. Only clips that are used count."""
    side = {clip.id: clip.split for clip in clips if clip.is_used and clip.split}
    own = {name: value for name, value in prints.items() if name in side}
    found: list[SplitLeak] = [("audio", one, two) for one, two in find_duplicate_audio(own) if side[one] != side[two]]
    first: dict[str, dict[str, str]] = defaultdict(dict)
    for clip in clips:
        text = " ".join(_NON_LETTERS.sub(" ", clip.text.lower()).split())
        if clip.id not in side or len(text.split()) < MIN_LEAK_WORDS:
            continue
        found += [("text", other, clip.id) for at, other in first[text].items() if at != clip.split]
        first[text].setdefault(str(clip.split), clip.id)
    return found


@dataclass(frozen=True, slots=True)
class DataSplitResult:
    """The splits, and what is in two of them."""

    manifest: Path
    clips: tuple[ManifestClip, ...]
    leaks: tuple[SplitLeak, ...]
    unheard: tuple[str, ...] = ()
    """Clips whose audio is missing or broken, so that it was not compared."""
    voices: VoiceCount | None = None
    """How many voices the clips have; None for few clips."""

    @property
    def exit_code(self) -> int:
        """1 if the same audio is both trained on and held out."""
        return int(any(kind == "audio" for kind, _, _ in self.leaks))

    def findings(self) -> list[Finding]:
        found = []
        for kind in ("audio", "text"):
            if own := [f"{one} and {two}" for shared, one, two in self.leaks if shared == kind]:
                shown = ", ".join(own[:MAX_LEAKS_SHOWN])
                found.append(
                    finding(
                        f"split-leak-{kind}",
                        f"{pluralize(len(own), 'pair')} of clips in two splits: {shown}",
                        where=self.manifest,
                    )
                )
        speakers = Counter(clip.speaker for clip in self.clips if clip.is_used)
        lone = sum(count == 1 for count in speakers.values())
        if len(speakers) >= MIN_SPEAKERS_JUDGED and lone >= MAX_SINGLE_CLIP_SHARE * len(speakers):
            message = f"{lone:,} of {len(speakers):,} speakers have one clip only"
            found.append(finding("speakers-one-clip", message, where=self.manifest))
        return found + voice_findings(self.clips, self.voices, self.manifest)

    @property
    def shared_speakers(self) -> list[str]:
        """Speakers of held-out clips who are in the training split too."""
        used = [clip for clip in self.clips if clip.is_used]
        trained = {clip.speaker for clip in used if clip.split == "train"}
        return sorted({clip.speaker for clip in used if clip.split in SPLITS[1:]} & trained)

    @property
    def splits_recordings(self) -> bool:
        """Whether one recording is in several splits."""
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
        return {
            "manifest": str(self.manifest),
            "sides": self.sides(),
            "leaks": [{"kind": kind, "one": one, "two": two} for kind, one, two in self.leaks],
            "unheard": list(self.unheard),
            "splits_recordings": self.splits_recordings,
            "shared_speakers": self.shared_speakers,
            "voices": self.voices and self.voices._asdict(),
            "findings": [item.to_json() for item in self.findings()],
        }

    def lines(self) -> list[Line]:
        rows = tuple(
            (
                name,
                f"{one['clips']:,}",
                format_length(one["seconds"]),
                f"{one['recordings']:,}",
                f"{one['speakers']:,}",
            )
            for name, one in self.sides().items()
        )
        lines: list[Line] = [line for item in self.findings() for line in item.lines()]
        reasons = Counter(reason for clip in self.clips if not clip.is_used for reason in clip.rejected)
        if rejected := sum(not clip.is_used for clip in self.clips):
            listed = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
            clips = pluralize(len(self.clips), "clip")
            lines.insert(0, f"{rejected:,} of {clips} are rejected ({listed}), {len(self.clips) - rejected:,} are used")
        if not self.leaks:
            lines.append("no audio or sentence occurs both in training and in held-out clips")
        if shared := self.shared_speakers:
            # Held-out clips of voices that are learned say nothing about other voices.
            used = [clip for clip in self.clips if clip.is_used]
            if len({clip.speaker for clip in used}) == 1:
                lines.append(
                    f"all splits have the same speaker, {shared[0]}: "
                    "held-out clips measure new sentences in a known voice"
                )
            else:
                held_out = {clip.speaker for clip in used if clip.split in SPLITS[1:]}
                many = f"{len(shared):,} of {pluralize(len(held_out), 'held-out speaker')}"
                lines.append(f"{many} are also in training; --by speaker holds out whole speakers")
        if self.splits_recordings:
            aside = sum(SPLIT_GAP_REASON in clip.rejected for clip in self.clips)
            lines.append(
                "parts of recordings are held out, because there are too few whole recordings; "
                f"{pluralize(aside, 'clip')} in the {SPLIT_GAP_SECONDS:.0f} s next to them "
                f"{'is' if aside == 1 else 'are'} rejected as {SPLIT_GAP_REASON}, so that no sound is in both parts"
            )
        if self.unheard:
            shown = ", ".join(self.unheard[:MAX_LEAKS_SHOWN])
            lines.append(
                f"the audio of {len(self.unheard):,} clips is missing or damaged and was not compared: {shown}"
            )
        return [Table(("split", "clips", "used", "recordings", "speakers"), rows), *lines]


def data_split(settings: DataSplitSettings) -> DataSplitResult:
    """Split a dataset, and check whether anything is in two splits."""
    if settings.validation + settings.test >= 1:
        found = f"validation {settings.validation} and test {settings.test} leave nothing to train on"
        cure = "reduce --validation or --test."
        raise ConfigError("config-value", found, expected="shares with a sum below 1", cure=cure)
    shares: dict[SplitName, float] = {"validation": settings.validation, "test": settings.test}
    return _split_dataset(
        settings.dataset, lambda clips, prints: split_clips(clips, shares, settings.by, settings.seed, prints)
    )


def split_remaining_clips(folder: Path) -> DataSplitResult:
    """Give a split to clips that have none: that of their recording, else `train`."""

    def split(clips: Sequence[ManifestClip], _: Mapping[str, AudioFingerprint]) -> list[ManifestClip]:
        sides = {clip.recording: clip.split for clip in clips if clip.split is not None}
        return [
            clip if clip.split or not clip.is_used else replace(clip, split=sides.get(clip.recording, "train"))
            for clip in clips
        ]

    return _split_dataset(folder, split)


def _split_dataset(
    folder: Path, split: Callable[[Sequence[ManifestClip], Mapping[str, AudioFingerprint]], list[ManifestClip]]
) -> DataSplitResult:
    dataset = open_dataset_folder(folder)
    with dataset.locked():
        clips = list(dataset.clips())
        _, prints, heard, _ = compute_dataset_metrics(dataset, clips)
        made = split(clips, prints)
        write_manifest(dataset.manifest, made)
    unheard = tuple(clip.id for clip in made if clip.id not in prints and clip.is_used)
    counted = count_voices([heard[clip.id] for clip in choose_voice_clips(made) if clip.id in heard])
    return DataSplitResult(dataset.manifest, tuple(made), tuple(find_split_leaks(made, prints)), unheard, counted)
