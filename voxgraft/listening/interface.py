"""What a listener is. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Recognizer", "Transcript"]


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard in one wave."""

    text: str
    phones: tuple[str, ...] | None
    """IPA; None where the listener knows no phones."""


class Recognizer(Protocol):
    """Something that writes down what it hears."""

    @property
    def name(self) -> str:
        """As it stands in reports."""

    @property
    def languages(self) -> frozenset[str] | None:
        """The languages it was taught; None where it takes any."""

    @property
    def sample_rate(self) -> int | None:
        """Samples a second that it takes; None where it takes any."""

    def hear(self, waves: Sequence[NDArray[np.float32]], rate: int, language: str) -> list[Transcript]:
        """Waves of one channel between -1 and 1, at `rate` samples a second, which it takes; all in one language."""
