"""T3's sequences: which ids begin and end them, which codes there are, how long they may be. No torch here."""

from __future__ import annotations

from voxgraft.families.chatterbox.family import Chatterbox
from voxgraft.families.chatterbox.shapes import T3Size
from voxgraft.families.layout import SequenceSpec

NUM_SPEECH_CODES = 6561
SPEECH_START_ID, SPEECH_STOP_ID = 6561, 6562
"""Rows 6563 to 8193 of the speech tables stand for nothing: no target is ever one of them."""
MAX_PROMPT_CODES = 150
"""Six seconds of codes: the most that the published model was given."""


def t3_sequence_spec(num_text_ids: int, size: T3Size | None = None) -> SequenceSpec:
    """The stock program begins to speak with two start ids, both at position 0."""
    size = size or T3Size()
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=Chatterbox.start_id,
        text_stop=Chatterbox.stop_id,
        num_codes=NUM_SPEECH_CODES,
        speech_start=SPEECH_START_ID,
        speech_stop=SPEECH_STOP_ID,
        max_text=size.text_positions - 2,
        max_codes=size.speech_positions - 4,
        num_conditioning=size.perceiver_queries + 2,
        guided=True,
        stock_start_positions=(0, 0),
        stock_first_position=1,
        initial_penalized_codes=(SPEECH_START_ID,),
    )
