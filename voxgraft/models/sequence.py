"""The one function that turns text ids and speech codes into a sequence: ids, positions and targets.

Preparing, training, speaking and export all come through here. It knows no tensors of a model and needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.core.errors import GraftError
from voxgraft.nn import IGNORE_INDEX

__all__ = ["SequencePart", "SequenceSpec", "TokenSequence", "build_sequence", "code_position"]

IdArray = NDArray[np.int64]
AnyIdArray = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What a family's sequences are made of, and how long their parts may be.

    A sequence is conditioning, then text (start, ids, stop), then speech (start, codes, stop). Text and speech count
    their positions apart, each from 0.
    """

    num_text_ids: int
    """Ids that a text may hold are 0 to this less one: the base's pieces and the graft's, without spare rows."""
    text_start: int
    text_stop: int
    num_codes: int
    speech_start: int
    speech_stop: int
    max_text: int
    """Most text ids of one utterance, start and stop not counted."""
    max_codes: int
    num_conditioning: int = 34
    guided: bool = False
    """Whether the model was taught to read without text, which guidance goes by."""
    forbidden_text_ids: frozenset[int] = frozenset()
    """Ids that the stock program takes out of a text; one that is there would be unheard."""
    stock_start_positions: tuple[int, ...] = (0,)
    """With how many start ids the stock program begins to speak, and at which positions."""
    stock_first_position: int = 1
    """The position that the stock program gives to the first code it has spoken."""
    initial_penalized_codes: tuple[int, ...] = ()
    """Codes that the stock program's repetition penalty takes for spoken before the first one is."""


@dataclass(frozen=True, slots=True)
class SequencePart:
    """Text or speech of one sequence; all three arrays have one entry per position."""

    ids: IdArray
    positions: IdArray
    targets: IdArray


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence. Without codes it is a prompt: its speech is what stands before the first code to be spoken."""

    num_conditioning: int
    text: SequencePart
    speech: SequencePart

    @property
    def length(self) -> int:
        return self.num_conditioning + len(self.text.ids) + len(self.speech.ids)


def build_sequence(
    frame: SequenceSpec,
    text_ids: Sequence[int] | AnyIdArray,
    codes: Sequence[int] | AnyIdArray | None = None,
    *,
    stock: bool = True,
) -> TokenSequence:
    """A sequence to learn from, or, without codes, one to speak from.

    Chatterbox's own program begins to speak with two start ids, and IndexTTS-2's skips the position after the first;
    `stock=False` begins as sequences to learn from do.
    """
    text = _validate_ids(text_ids, frame.num_text_ids, frame.max_text, "text id")
    barred = sorted(set(text.tolist()) & frame.forbidden_text_ids)
    if barred:
        cure = "take them out of the tokenizer's output; no piece of a language may stand on them."
        raise GraftError("ids-barred", f"the text holds the ids {barred}", expected="ordinary pieces", cure=cure)
    text_part = _build_part(np.concatenate([[frame.text_start], text, [frame.text_stop]]))
    if codes is not None:
        spoken = _validate_ids(codes, frame.num_codes, frame.max_codes, "speech code")
        speech_part = _build_part(np.concatenate([[frame.speech_start], spoken, [frame.speech_stop]]))
    else:
        positions = np.asarray(frame.stock_start_positions if stock else (0,), dtype=np.int64)
        starts = np.full(len(positions), frame.speech_start, dtype=np.int64)
        speech_part = SequencePart(starts, positions, np.full(len(positions), IGNORE_INDEX, dtype=np.int64))
    return TokenSequence(frame.num_conditioning, text_part, speech_part)


def code_position(frame: SequenceSpec, index: int, *, stock: bool = True) -> int:
    """The position of the code that was spoken as number `index`, counted from 0."""
    return index + (frame.stock_first_position if stock else 1)


def _build_part(ids: IdArray) -> SequencePart:
    """Each position is asked for the next id; the last one is asked for nothing."""
    ids = ids.astype(np.int64)
    return SequencePart(ids, np.arange(len(ids)), np.concatenate([ids[1:], [IGNORE_INDEX]]))


def _validate_ids(ids: Sequence[int] | AnyIdArray, num_ids: int, limit: int, what: str) -> IdArray:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        found = f"{what}s as {array.dtype} of shape {list(array.shape)}"
        raise GraftError("ids-form", found, expected="whole numbers in a row")
    if len(array) == 0 or len(array) > limit:
        found = f"{len(array):,} {what}s in one utterance"
        raise GraftError("ids-length", found, expected=f"1 to {limit:,}")
    array = array.astype(np.int64)
    outside = np.flatnonzero((array < 0) | (array >= num_ids))
    if len(outside):
        at = int(outside[0])
        found = f"{what} {int(array[at])} at place {at}; {len(outside):,} such of {len(array):,}"
        raise GraftError("ids-outside", found, expected=f"0 to {num_ids - 1:,}")
    return array
