"""Chatterbox's built-in voice, conds.pt: the part that T3 is conditioned on. S3Gen's is read by its own program."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxgraft.checkpoints.source import ByteSource
from voxgraft.checkpoints.torch_file import read_torch_state_dict
from voxgraft.errors import CheckpointError
from voxgraft.families.chatterbox.frame import MAX_PROMPT_CODES
from voxgraft.families.chatterbox.shapes import VOICE_ENCODER_WIDTH
from voxgraft.families.encoding import Clip

__all__ = ["BUILT_IN_VOICE", "CONDITIONS_NAME", "read_built_in_voice"]

CONDITIONS_NAME = "conds.pt"
BUILT_IN_VOICE = "built-in"
SPEAKER_TENSOR, PROMPT_TENSOR = "speaker_emb", "cond_prompt_speech_tokens"


def read_built_in_voice(path: Path) -> Clip:
    """The voice in the file, as a recording of it would be kept."""
    with read_torch_state_dict(ByteSource(path), "t3") as part:
        lacking = [name for name in (SPEAKER_TENSOR, PROMPT_TENSOR) if name not in part.tensors]
        if lacking:
            raise CheckpointError("tensors-mismatch", f"{' and '.join(lacking)} not in {path.name}", where=path)
        speaker = np.asarray(part.read(SPEAKER_TENSOR), dtype=np.float32).reshape(-1)
        prompt = np.asarray(part.read(PROMPT_TENSOR)).reshape(-1).astype(np.int64)
    if len(speaker) != VOICE_ENCODER_WIDTH or not 0 < len(prompt) <= MAX_PROMPT_CODES:
        found = f"a speaker of {len(speaker)} numbers and a prompt of {len(prompt)} codes"
        raise CheckpointError(
            "tensors-mismatch", found, expected=f"{VOICE_ENCODER_WIDTH} and 1 to {MAX_PROMPT_CODES}", where=path
        )
    return Clip(prompt, {"speaker": speaker, "prompt": prompt})
