"""What N utterances in the course of being spoken consist of. Everything stays on the device, allocated once.

Shapes: N streams, R rows (N, or 2 N with guidance: those with text first), V speech rows, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxgraft.families.layout import SequenceSpec
from voxgraft.families.model import SpeechModel
from voxgraft.nn.attention import KVCache

__all__ = ["CODES_PER_CHECK", "DecodeState", "get_decode_dtype"]

CODES_PER_CHECK = 8
"""Codes between two looks at whether everybody has stopped; a look waits for the device."""


def get_decode_dtype(model: SpeechModel) -> torch.dtype:
    """What the body computes in: its weights' own, or what autocast makes of it."""
    kind = model.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return next(model.body.parameters()).dtype


@dataclass(frozen=True, slots=True)
class DecodeState:
    """The next codes are drawn from `logits`; `codes` holds what was spoken, `num_spoken` of it in each stream."""

    cache: KVCache
    logits: Tensor  # [R, V] float32, of every row, as the head gives them
    heard: Tensor  # [N, V] bool
    codes: Tensor  # [N, most codes]
    num_generated: Tensor  # [N]
    stopped: Tensor  # [N] bool

    @classmethod
    def of(cls, model: SpeechModel, num_streams: int, num_rows: int, length: int, max_codes: int) -> DecodeState:
        """Room for rows of up to `length` positions."""
        body, device, dtype = model.body, model.device, get_decode_dtype(model)
        nothing = torch.zeros(1, body.num_heads * body.head_width, device=device, dtype=dtype)
        with torch.no_grad():
            num_speech_rows = model.speech_logits(nothing).shape[-1]
        return cls(
            cache=KVCache((body.num_layers, num_rows, body.num_heads, length, body.head_width), device, dtype),
            logits=torch.zeros(num_rows, num_speech_rows, device=device),
            heard=torch.zeros(num_streams, num_speech_rows, dtype=torch.bool, device=device),
            codes=torch.zeros(num_streams, max_codes, dtype=torch.long, device=device),
            num_generated=torch.zeros(num_streams, dtype=torch.long, device=device),
            stopped=torch.zeros(num_streams, dtype=torch.bool, device=device),
        )

    def begin(self, frame: SequenceSpec) -> None:
        """Nothing is spoken yet."""
        self.cache.filled.zero_()
        self.codes.fill_(frame.speech_stop)
        self.heard.zero_()
        self.heard[:, list(frame.initial_penalized_codes)] = True
        self.num_generated.zero_()
        self.stopped.zero_()
