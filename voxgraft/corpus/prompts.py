"""Whose voice a clip is learnt with: another clip of the same speaker, long enough to be heard. Pure functions.

A speaker with a single clip has no other; the rule for those is the caller's choice, and all exceptions are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from voxgraft.corpus import chance
from voxgraft.corpus.clips import ClipDataset

__all__ = ["PromptSelector", "SingleClipPolicy"]

SingleClipPolicy = Literal["leave-out", "own"]


@dataclass(frozen=True, slots=True)
class _SpeakerClips:
    """The clips of one speaker, by id, so that their order in the files does not matter."""

    clips: tuple[int, ...]
    long: tuple[int, ...]
    """Those that are long enough to be prompts."""
    longest: tuple[int, ...]
    """The two longest, the longest first."""


class PromptSelector:
    """The prompts of one set."""

    def __init__(self, clips: ClipDataset, min_seconds: float, order: Sequence[int]) -> None:
        """`order` has the places of all clips, sorted by id."""
        self._clips = clips
        self._own = len(clips) > 0 and clips.prompt_of(0) is not None
        by_name: dict[str, list[int]] = defaultdict(list)
        for clip in order:
            by_name[clips.infos[clip].speaker].append(clip)
        speakers = {name: self._speaker(places, min_seconds) for name, places in by_name.items()}
        self._speakers = [speakers[info.speaker] for info in clips.infos[: len(clips)]]
        self._place_among_long = {clip: at for one in speakers.values() for at, clip in enumerate(one.long)}

    def _speaker(self, places: list[int], min_seconds: float) -> _SpeakerClips:
        infos = self._clips.infos
        long = tuple(clip for clip in places if infos[clip].seconds >= min_seconds)
        longest = tuple(sorted(places, key=lambda clip: -infos[clip].seconds)[:2])
        return _SpeakerClips(tuple(places), long, longest)

    def is_single_clip(self, clip: int) -> bool:
        """Whether there is no other clip to take the voice from."""
        return not self._own and len(self._speakers[clip].clips) == 1

    def has_only_short_prompts(self, clip: int) -> bool:
        """Whether every other clip of the speaker is too short, so that the longest of them must do."""
        return not self._own and not self.is_single_clip(clip) and not self._num_long_others(clip)

    def prompt(self, clip: int, seed: int, step: int) -> int:
        """The place of the voice; the clip's own place only for one that has no other."""
        given = self._clips.prompt_of(clip)
        if given is not None:
            return given
        speaker = self._speakers[clip]
        if others := self._num_long_others(clip):
            at = chance.hash_int("prompt", seed, step, self._clips.infos[clip].id) % others
            own = self._place_among_long.get(clip, others)
            return speaker.long[at + (at >= own)]
        return next((one for one in speaker.longest if one != clip), clip)

    def _num_long_others(self, clip: int) -> int:
        return len(self._speakers[clip].long) - (clip in self._place_among_long)
