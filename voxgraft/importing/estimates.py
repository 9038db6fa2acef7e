"""What training on a dataset will take, before it begins: steps, hours of a card, room on the disk; what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from voxgraft.families import family_names, get_family
from voxgraft.importing.manifest import ManifestClip
from voxgraft.importing.summary import DatasetSummary, format_duration

__all__ = ["TrainingEstimate", "describe_measured_results", "estimate_training"]

POSITIONS_PER_STEP = 16_384
DEFAULT_STEPS = 10_000
POSITIONS_PER_SECOND = {"chatterbox": 147_857, "indextts2": 166_057}
"""Measured on one NVIDIA H200, gated, rank 32, 16k positions at once; docs/log.md has the run."""
TEXT_IDS_PER_LETTER = 0.7
NUM_CONDITIONING = 34
VOICE_BYTES_PER_CLIP = {"chatterbox": (256 + 150) * 4, "indextts2": (32 + 1) * 1280 * 4, "tiny": 4}
"""What is kept of a voice beside its codes, for each clip."""
BYTES_PER_ID = 4
"""Of a code and of an id."""
METADATA_BYTES_PER_CLIP = 120
"""What a set says of a clip beside its text."""
MEASURED_PHONE_ERRORS = ((10, 38.4), (30, 12.0), (60, 4.8))
"""Minutes of Amharic and phone error in %: tiny base, gated, rank 32, 800 steps; docs/log.md, 2026-11-15."""
_ASSUMED_NEW_PIECES = 1_000


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """One family's training on these clips."""

    family: str
    positions: int
    steps_a_pass: int
    passes: float
    """Passes over the data in the usual number of steps."""
    gpu_hours: float | None
    """Of an H200, for the usual number of steps; None where it was not measured."""
    disk_bytes: int
    """Of the sets."""
    most_disk_bytes: int
    """While sets are written: what is encoded lies in the batches too."""
    too_long: int
    """Clips that the family cannot hear whole."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate_training(clips: Sequence[ManifestClip]) -> list[TrainingEstimate]:
    """For every family, from the clips that are used."""
    used = [clip for clip in clips if clip.is_used]
    return [_estimate_for_family(name, used) for name in family_names()]


def _estimate_for_family(name: str, clips: Sequence[ManifestClip]) -> TrainingEstimate:
    kind = get_family(name)
    longest = kind.frame(_ASSUMED_NEW_PIECES).max_codes / kind.code_hz
    codes = sum(clip.seconds for clip in clips) * kind.code_hz
    letters = sum(len(clip.text) for clip in clips)
    ids = letters * TEXT_IDS_PER_LETTER
    positions = round(codes + ids + NUM_CONDITIONING * len(clips))
    encoded = codes * BYTES_PER_ID + len(clips) * VOICE_BYTES_PER_CLIP.get(name, 0)
    lines = sum(len(clip.text.encode()) + METADATA_BYTES_PER_CLIP for clip in clips)
    steps = max(1, -(-positions // POSITIONS_PER_STEP))
    speed = POSITIONS_PER_SECOND.get(name)
    return TrainingEstimate(
        family=name,
        positions=positions,
        steps_a_pass=steps,
        passes=round(DEFAULT_STEPS / steps, 1),
        gpu_hours=round(DEFAULT_STEPS * POSITIONS_PER_STEP / speed / 3600, 2) if speed else None,
        disk_bytes=round(encoded + ids * BYTES_PER_ID + lines),
        most_disk_bytes=round(2 * encoded + ids * BYTES_PER_ID + lines),
        too_long=sum(clip.seconds > longest for clip in clips),
    )


def describe_measured_results(summary: DatasetSummary) -> list[str]:
    """What this much data has given, as far as anybody knows."""
    table = ", ".join(f"{minutes} min {error} %" for minutes, error in MEASURED_PHONE_ERRORS)
    return [
        f"You have {format_duration(summary.seconds)} in {len(summary.speakers):,} voices. {_nearest_measurements(summary.seconds / 60)}",
        f"Measured by minutes of speech: {table} phone error. That was the tiny base, Amharic in synthetic voices, a "
        "gated graft of rank 32, 800 steps of 2,560 positions on a GPU; other bases and human voices need more.",
        "Not measured: how much human speech Chatterbox or IndexTTS-2 need. What others report for theirs reaches "
        "from 8 hours (one user, a language near to a known one) over 26 (with an adapter) to 100 and 1,000 hours.",
    ]


def _nearest_measurements(minutes: float) -> str:
    """The measurements on both sides of so many minutes."""
    below = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] <= minutes]
    above = [pair for pair in MEASURED_PHONE_ERRORS if pair[0] > minutes]
    if not below:
        return f"That is less than anything that was measured: {above[0][0]} minutes gave {above[0][1]} % phone error."
    if not above:
        return f"{below[-1][0]} minutes gave {below[-1][1]} % phone error; what more gives was not measured."
    (less, worse), (more, better) = below[-1], above[0]
    return f"{less} minutes gave {worse} % phone error, {more} minutes {better} %."
