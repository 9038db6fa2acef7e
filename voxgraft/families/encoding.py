"""From recordings to what is kept of them: speech codes, and what a voice is made of.

What every family's encoder is. Encoders take 16 kHz mono; `encode_recording` brings a recording there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.audio.resample import resample
from voxgraft.audio.waves import Waveform

__all__ = ["REFERENCE_AUDIO", "Clip", "ClipEncoder", "encode_recording"]

REFERENCE_AUDIO = "reference"
"""Among a voice's arrays: samples of the recording itself, at the encoder's `reference_rate`, for a waveform end."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording as training keeps it. The codes are as many as the recording is long, whoever was beside it."""

    codes: NDArray[np.integer[Any]]
    voice: Mapping[str, NDArray[Any]]
    """The family's own arrays, by name: whose voice it is, and how it speaks."""


class ClipEncoder(ABC):
    """The front end of one base."""

    sample_rate: int = 16_000
    reference_rate: int | None = None
    """Samples a second at which the family's waveform end wants the recording too; None where it does not."""
    reference_seconds: float = 10.0

    @abstractmethod
    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        """Every recording as if it were alone; those of similar length go through together."""


def encode_recording(encoder: ClipEncoder, samples: NDArray[np.float32], rate: int) -> Clip:
    """One recording of any sample rate, with its sound where the family's waveform end wants that too."""
    clip = encoder.encode([resample(samples, rate, encoder.sample_rate)])[0]
    if (wanted := encoder.reference_rate) is None:
        return clip
    longest = round(encoder.reference_seconds * wanted)
    return replace(clip, voice={**clip.voice, REFERENCE_AUDIO: resample(samples, rate, wanted)[:longest]})
