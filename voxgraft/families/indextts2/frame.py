"""UnifiedVoice's sequences: which ids begin and end them, which codes there are, how long they may be. No torch."""

from __future__ import annotations

from voxgraft.families.indextts2.family import IndexTTS2
from voxgraft.families.indextts2.shapes import SPEAKER_LATENTS, UnifiedVoiceSize
from voxgraft.families.layout import SequenceSpec

FILLER_CODE = 1
"""The stock program lets this code stand for the whole prompt, so that its repetition penalty takes it for heard."""


def unified_voice_sequence_spec(num_text_ids: int, size: UnifiedVoiceSize | None = None) -> SequenceSpec:
    """The stock program gives the first code it has spoken position 2; learning gives it position 1."""
    size = size or UnifiedVoiceSize()
    num_codes = size.speech_rows - 2
    return SequenceSpec(
        num_text_ids=num_text_ids,
        text_start=IndexTTS2.start_id,
        text_stop=IndexTTS2.stop_id,
        num_codes=num_codes,
        speech_start=num_codes,
        speech_stop=num_codes + 1,
        max_text=size.max_text,
        max_codes=size.max_speech,
        num_conditioning=SPEAKER_LATENTS + 2,
        forbidden_text_ids=IndexTTS2.deleted_ids,
        stock_start_positions=(0,),
        stock_first_position=2,
        initial_penalized_codes=(FILLER_CODE, num_codes),
    )
