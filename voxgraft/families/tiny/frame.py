"""The tiny family's sequences and sizes. No torch here.

A T3 whose speech tables have a row for each code of its own codec, then start and stop.
"""

from __future__ import annotations

from voxgraft.families.chatterbox.shapes import T3Size
from voxgraft.families.layout import SequenceSpec

START_ID, STOP_ID = 3, 0
NUM_SHIPPED_CODES = 2560
"""Of the shipped codec."""
SHIPPED_SIZE = T3Size(
    text_rows=160,
    width=256,
    layers=8,
    mlp=704,
    speech_rows=NUM_SHIPPED_CODES + 2,
    text_positions=256,
    speech_positions=512,
    speaker_width=4,
    perceiver_queries=1,
)
"""As the shipped base has it. The voice is a speaker's number, so there is little to condition on: three slots."""


def tiny_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """Positions and start ids are counted while speaking as while learning."""
    size = size or SHIPPED_SIZE
    num_codes = size.speech_rows - 2
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=START_ID,
        text_stop=STOP_ID,
        num_codes=num_codes,
        speech_start=num_codes,
        speech_stop=num_codes + 1,
        max_text=size.text_positions - 2,
        max_codes=size.speech_positions - 2,
        num_conditioning=size.perceiver_queries + 2,
    )
