"""Chatterbox's T3: text and speech rows around a Llama body, conditioned on a voice, a prompt and an emotion.

Every tensor has upstream's name and shape, so that loading a published file is the identity. No dropout.

Shapes: B utterances, P prompt codes (padded), Q perceiver queries, W width, N positions, C = Q + 2 slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.checkpoints.base import ByteSource
from voxgraft.checkpoints.torch_file import read_torch_state_dict
from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.models.base import Clip, SequenceSpec
from voxgraft.models.chatterbox.family import (
    MAX_PROMPT_CODES,
    NUM_SPEECH_CODES,
    VOICE_ENCODER_WIDTH,
    T3Size,
    t3_sequence_spec,
)
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.backbones import Backbone, LlamaBackbone, LlamaSize
from voxgraft.nn.layers import LearnedPositions

DEFAULT_EMOTION = 0.5


@dataclass(frozen=True, slots=True)
class T3Condition:
    """How one utterance should sound: a voice, some seconds of it as codes, and how strong its emotion is."""

    speaker: NDArray[np.float32]  # [256]
    prompt: NDArray[np.int64]  # [1 .. 150] codes
    emotion: float = DEFAULT_EMOTION


@dataclass(frozen=True, slots=True)
class T3ConditionBatch:
    """The conditions of B utterances."""

    speaker: Tensor  # [B, 256]
    prompt: Tensor  # [B, P]
    prompt_lengths: Tensor  # [B]
    emotion: Tensor  # [B]

    def __len__(self) -> int:
        return len(self.speaker)


class T3(SpeechModel):
    """The model itself, at any width and depth."""

    text_embedding_name: ClassVar[str] = "text_emb"
    text_head_name: ClassVar[str] = "text_head"
    text_positions_name: ClassVar[str] = "text_pos_emb"
    speech_embedding_name: ClassVar[str] = "speech_emb"
    speech_positions_name: ClassVar[str] = "speech_pos_emb"
    speech_head_name: ClassVar[str] = "speech_head"
    unused_param_prefixes: ClassVar[tuple[str, ...]] = ("tfmr.embed_tokens.",)

    def __init__(self, size: T3Size) -> None:
        super().__init__()
        self.size = size
        self.tfmr = LlamaBackbone(LlamaSize(size.width, size.layers, size.heads, size.mlp))
        self.cond_enc = T3ConditionEncoder(size)
        self.text_emb: nn.Module = nn.Embedding(size.text_rows, size.width)
        self.speech_emb = nn.Embedding(size.speech_rows, size.width)
        self.text_pos_emb = LearnedPositions(size.text_positions, size.width)
        self.speech_pos_emb = LearnedPositions(size.speech_positions, size.width)
        self.text_head: nn.Module = nn.Linear(size.width, size.text_rows, bias=False)
        self.speech_head = nn.Linear(size.width, size.speech_rows, bias=False)

    @property
    def body(self) -> Backbone:
        return self.tfmr

    @property
    def spec(self) -> SequenceSpec:
        return t3_sequence_spec(self.num_text_ids, self.size)

    def adapter_layers(self) -> list[str]:
        return [f"tfmr.{name}" for name, module in self.tfmr.named_modules() if name.endswith("_proj")]

    def collate(self, conditions: Sequence[T3Condition]) -> T3ConditionBatch:
        wide = self.size.speaker_width
        for condition in conditions:  # they may come from files: on a GPU a wrong code would end the process
            speaker, codes = np.asarray(condition.speaker), np.asarray(condition.prompt)
            if speaker.shape != (wide,) or not np.issubdtype(speaker.dtype, np.floating):
                found = f"a voice as {speaker.dtype} of shape {list(speaker.shape)}"
                raise GraftError("condition-form", found, expected=f"{wide} floating-point numbers")
            if not np.isfinite(speaker).all():
                raise GraftError("condition-form", "a voice that is not finite", expected="finite numbers")
            if codes.ndim != 1 or not 1 <= len(codes) <= MAX_PROMPT_CODES or not np.issubdtype(codes.dtype, np.integer):
                found = f"a prompt as {codes.dtype} of shape {list(codes.shape)}"
                raise GraftError("condition-form", found, expected=f"1 to {MAX_PROMPT_CODES} codes, whole numbers")
            if int(codes.min()) < 0 or int(codes.max()) >= NUM_SPEECH_CODES:
                found = f"prompt codes from {int(codes.min())} to {int(codes.max())}"
                raise GraftError("condition-form", found, expected=f"0 to {NUM_SPEECH_CODES - 1}")
            if not np.isfinite(condition.emotion):
                raise GraftError("condition-form", f"an emotion of {condition.emotion}", expected="a finite number")
        # Padded with code 0; `prompt_lengths` keeps the padding out of the attention.
        longest = max(len(condition.prompt) for condition in conditions)
        prompt = np.zeros((len(conditions), longest), dtype=np.int64)
        for row, condition in zip(prompt, conditions, strict=True):
            row[: len(condition.prompt)] = condition.prompt
        return T3ConditionBatch(
            speaker=torch.from_numpy(np.stack([condition.speaker for condition in conditions]).astype(np.float32)),
            prompt=torch.from_numpy(prompt),
            prompt_lengths=torch.tensor([len(condition.prompt) for condition in conditions]),
            emotion=torch.tensor([condition.emotion for condition in conditions], dtype=torch.float32),
        )

    def embed_conditions(self, conditions: T3ConditionBatch) -> Tensor:
        positions = torch.arange(conditions.prompt.shape[1], device=conditions.prompt.device)
        prompt = self.embed_speech(conditions.prompt, positions)
        out: Tensor = self.cond_enc(conditions, prompt)
        return out


class T3ConditionEncoder(nn.Module):
    """Voice, prompt and emotion as slots before the text: one, Q and one."""

    def __init__(self, size: T3Size) -> None:
        super().__init__()
        self.spkr_enc = nn.Linear(size.speaker_width, size.width)
        self.emotion_adv_fc = nn.Linear(1, size.width, bias=False)
        self.perceiver = T3Perceiver(size)

    def forward(self, conditions: T3ConditionBatch, prompt: Tensor) -> Tensor:
        """[B, P, W] prompt vectors -> [B, C, W]"""
        dtype = self.spkr_enc.weight.dtype
        speaker = self.spkr_enc(conditions.speaker.to(dtype))  # [B, W]
        emotion = self.emotion_adv_fc(conditions.emotion[:, None].to(dtype))  # [B, W]
        positions = torch.arange(prompt.shape[1], device=prompt.device)
        prompt_mask = positions < conditions.prompt_lengths[:, None]  # [B, P]
        return torch.cat([speaker[:, None], self.perceiver(prompt, prompt_mask), emotion[:, None]], 1)


class T3Perceiver(nn.Module):
    """Q learned queries read the prompt, then one another, through one and the same attention."""

    def __init__(self, size: T3Size) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.zeros(1, size.perceiver_queries, size.width))
        self.attn = _T3PerceiverAttention(size.width, size.perceiver_heads)

    def forward(self, prompt: Tensor, mask: Tensor) -> Tensor:
        """[B, P, W], [B, P] -> [B, Q, W]"""
        # The same attention twice, as upstream has it: over the prompt, then over its own result.
        queries = self.pre_attention_query.to(prompt.dtype).expand(len(prompt), -1, -1)
        read = self.attn(queries, prompt, mask[:, None, None])
        out: Tensor = self.attn(read, read, None)
        return out


class _T3PerceiverAttention(nn.Module):
    """x + proj(attention(norm(x), norm(y))): one norm for both sides, and the sum is with x as it came."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_k, self.to_v, self.proj_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, seen: Tensor | None) -> Tensor:
        """[B, Q, W], [B, P, W] -> [B, Q, W]"""
        inner, outer = self.norm(x), self.norm(y)
        q, k, v = self.to_q(inner), self.to_k(outer), self.to_v(outer)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out: Tensor = x + self.proj_out(mixed.transpose(1, 2).flatten(-2))
        return out


BUILT_IN_VOICE = "built-in"
SPEAKER_TENSOR, PROMPT_TENSOR = "speaker_emb", "cond_prompt_speech_tokens"


def read_built_in_voice(path: Path) -> Clip:
    """The voice in the file, as a recording of it would be kept."""
    with read_torch_state_dict(ByteSource(path), "t3") as part:
        missing = [name for name in (SPEAKER_TENSOR, PROMPT_TENSOR) if name not in part.tensors]
        if missing:
            raise CheckpointError("tensors-mismatch", f"{' and '.join(missing)} not in {path.name}", where=path)
        speaker = np.asarray(part.read(SPEAKER_TENSOR), dtype=np.float32).reshape(-1)
        prompt = np.asarray(part.read(PROMPT_TENSOR)).reshape(-1).astype(np.int64)
    if len(speaker) != VOICE_ENCODER_WIDTH or not 0 < len(prompt) <= MAX_PROMPT_CODES:
        found = f"a speaker of {len(speaker)} numbers and a prompt of {len(prompt)} codes"
        raise CheckpointError(
            "tensors-mismatch", found, expected=f"{VOICE_ENCODER_WIDTH} and 1 to {MAX_PROMPT_CODES}", where=path
        )
    return Clip(prompt, {"speaker": speaker, "prompt": prompt})
