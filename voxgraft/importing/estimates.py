"""What training on a dataset will take, before it begins: steps, hours of a card, room on the disk; what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from voxgraft.families import family, family_names
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.summary import Summary, hours

__all__ = ["Estimate", "estimates", "experience"]

POSITIONS_A_STEP = 16_384
USUAL_STEPS = 10_000
POSITIONS_A_SECOND = {"chatterbox": 147_857, "indextts2": 166_057}
"""Measured on one NVIDIA H200, gated, rank 32, 16k positions at once; docs/log.md has the run."""
IDS_A_LETTER = 0.7
CONDITIONING = 34
VOICE_BYTES = {"chatterbox": 1_500, "indextts2": 170_000, "tiny": 0}
"""What is kept of a voice beside its codes, for each clip."""
CODE_BYTES = 2
_NUM_PIECES = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """One family's training on these clips."""

    family: str
    positions: int
    steps_a_pass: int
    passes: float
    """Passes over the data in the usual number of steps."""
    gpu_hours: float | None
    """Of an H200, for the usual number of steps; None where it was not measured."""
    disk_bytes: int
    too_long: int
    """Clips that the family cannot hear whole."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimates(clips: Sequence[ManifestClip]) -> list[Estimate]:
    """For every family, from the clips that are used."""
    used = [clip for clip in clips if clip.is_used]
    return [_estimate(name, used) for name in family_names()]


def _estimate(name: str, clips: Sequence[ManifestClip]) -> Estimate:
    kind = family(name)
    longest = kind.frame(_NUM_PIECES).max_codes / kind.code_hz
    codes = sum(clip.seconds for clip in clips) * kind.code_hz
    letters = sum(len(clip.text) for clip in clips)
    positions = round(codes + letters * IDS_A_LETTER + CONDITIONING * len(clips))
    steps = max(1, -(-positions // POSITIONS_A_STEP))
    speed = POSITIONS_A_SECOND.get(name)
    return Estimate(
        family=name,
        positions=positions,
        steps_a_pass=steps,
        passes=round(USUAL_STEPS / steps, 1),
        gpu_hours=round(USUAL_STEPS * POSITIONS_A_STEP / speed / 3600, 2) if speed else None,
        disk_bytes=round(codes * CODE_BYTES + len(clips) * VOICE_BYTES.get(name, 0)),
        too_long=sum(clip.seconds > longest for clip in clips),
    )


def experience(summary: Summary) -> list[str]:
    """What this much data has given, as far as anybody knows."""
    length = hours(summary.seconds)
    compared = "more" if summary.seconds > 3600 else "less"
    return [
        f"You have {length} in {len(summary.speakers):,} voices. Measured: `voxgraft demo` teaches the tiny base "
        f"Amharic from 60 minutes in four synthetic voices, and its report says how well; yours is {compared}.",
        "Not measured: how much human speech Chatterbox or IndexTTS-2 need. What others report for theirs reaches "
        "from 8 hours (one user, a language near to a known one) over 26 (with an adapter) to 100 and 1,000 hours.",
    ]
