"""From speech codes to sound: what every family's waveform end is. Knows no model and writes no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxgraft.families.encoding import Clip

__all__ = ["Vocoder"]


class Vocoder(ABC):
    """The waveform end of one base."""

    sample_rate: int

    @abstractmethod
    def sound(self, codes: Sequence[Sequence[int]], voices: Sequence[Clip]) -> list[NDArray[np.float32]]:
        """A waveform for each utterance, in the voice that it was spoken with. No codes are no samples."""

    def why_not(self, voice: Clip) -> str:  # noqa: ARG002 (of those that need more than codes)
        """Why it cannot sound like a voice; nothing where it can."""
        return ""
