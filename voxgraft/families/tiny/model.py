"""The tiny model: Chatterbox's T3 with voices by number instead of voice vectors, a prompt that never changes, and
codes of its own. Tensors have T3's names.

Shapes: B utterances, S speakers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)
from numpy.typing import NDArray

from voxgraft.errors import GraftError
from voxgraft.families.chatterbox.model import T3, T3ConditionBatch
from voxgraft.families.layout import SequenceSpec
from voxgraft.families.tiny.frame import tiny_sequence_spec

__all__ = ["TinyCondition", "TinyT3", "build_speaker_conditions"]

FIXED_EMOTION = 0.5


@dataclass(frozen=True, slots=True)
class TinyCondition:
    """How one utterance shall sound: like this speaker of the table."""

    speaker: NDArray[np.integer[Any]]  # [1]


class TinyT3(T3):
    """T3 at any size, conditioned on a speaker's number."""

    @property
    def frame(self) -> SequenceSpec:
        return tiny_sequence_spec(self.num_text_ids, self.size)

    def collate(self, conditions: Sequence[Any]) -> T3ConditionBatch:
        for condition in conditions:
            _require_speaker(condition, self.size.speaker_width)
        numbers = torch.tensor([int(condition.speaker[0]) for condition in conditions])
        return build_speaker_conditions(numbers, self.size.speaker_width)


def build_speaker_conditions(numbers: torch.Tensor, num_speakers: int) -> T3ConditionBatch:
    """Speakers as T3 takes voices: a vector that is one at the speaker's number. [B] -> conditions of B utterances"""
    return T3ConditionBatch(
        speaker=F.one_hot(numbers, num_speakers).float(),  # [B, S]
        prompt=torch.zeros_like(numbers)[:, None],  # [B, 1]
        prompt_lengths=torch.ones_like(numbers),  # [B]
        emotion=torch.full_like(numbers, FIXED_EMOTION, dtype=torch.float32),  # [B]
    )


def _require_speaker(condition: Any, num_speakers: int) -> None:
    speaker = np.asarray(condition.speaker)
    if speaker.shape != (1,) or not np.issubdtype(speaker.dtype, np.integer):
        found = f"a speaker as {speaker.dtype} of shape {list(speaker.shape)}"
        raise GraftError("condition-form", found, expected="one whole number in a row")
    if not 0 <= int(speaker[0]) < num_speakers:
        found = f"speaker {int(speaker[0])}"
        raise GraftError("condition-form", found, expected=f"0 to {num_speakers - 1}, as the base has")
