"""What a data order makes of a set, in numbers and as findings: what is used, what is left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voxgraft.corpus.clips import format_clip_names
from voxgraft.errors import Finding, finding

__all__ = ["DataSamplerReport"]

MIN_CLIPS_FOR_WARNING, MOSTLY_SINGLE_SHARE = 3, 0.8
"""Where such a share of the clips is the only one of its speaker, the names are hardly those of people."""


@dataclass(frozen=True, slots=True)
class DataSamplerReport:
    """One set. Clips are named by their ids."""

    name: str
    clips: int
    used: int
    tokens: int
    """Of one pass over the clips that are used."""
    tokens_per_step: float
    """The set's share of a step."""
    longest: int
    left_out: Mapping[str, tuple[str, ...]]
    """By reason; a clip may have two."""
    lone: tuple[str, ...]
    """Clips whose speaker has no other one."""
    short_prompts: tuple[str, ...]
    """Clips that are used with a prompt under the wanted length, the longest that their speaker has."""

    def findings(self) -> list[Finding]:
        """All that a user should know, with the cure."""
        found: list[Finding] = []
        left_lone, too_long = self.left_out.get("lone speaker", ()), self.left_out.get("too long", ())
        if self.lone:
            fate = "left out" if left_lone else "learnt with their own voice, which teaches copying"
            text = f"{len(self.lone):,} of {self.clips:,} clips have no other of their speaker and are {fate}"
            nearly_all = self.clips >= MIN_CLIPS_FOR_WARNING and len(self.lone) >= MOSTLY_SINGLE_SHARE * self.clips
            code = "speakers-one-clip" if nearly_all else "lone-speakers"
            found.append(self._finding(code, f"{text}: {format_clip_names(self.lone)}"))
        if too_long:
            text = f"{len(too_long):,} of {self.clips:,} clips are too long and left out: {format_clip_names(too_long)}"
            found.append(self._finding("clips-left-out", text))
        if self.short_prompts:
            text = f"{len(self.short_prompts):,} of {self.used:,} clips have only shorter prompts"
            found.append(self._finding("short-prompts", f"{text}: {format_clip_names(self.short_prompts)}"))
        if self.tokens_per_step < self.longest:
            share = f"{self.tokens_per_step:,.0f} tokens of a step"
            text = f"{share} are this set's, and its longest clip has {self.longest:,}"
            found.append(self._finding("share-too-small", text))
        return found

    def _finding(self, code: str, text: str) -> Finding:
        return finding(code, text, where=self.name)
