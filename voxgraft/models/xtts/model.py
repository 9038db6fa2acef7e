"""XTTS's language model: text and speech rows around a GPT-2 body, conditioned on 32 latents of a voice.

Every tensor has upstream's name and shape, the vocoder's and the speaker encoder's in the same file included, so that
loading and saving a published file is the identity. No dropout. Training reads the latents that were computed once,
when the data was prepared.

Shapes: B utterances, F mel frames of a clip, L = 32 latents, W width, N positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.features import exact_float32
from voxgraft.checkpoints.base import Shape
from voxgraft.core.errors import GraftError
from voxgraft.models.base import SequenceSpec, require_finite_array
from voxgraft.models.indextts2.model import PerceiverResampler
from voxgraft.models.speech_model import SpeechModel
from voxgraft.models.xtts.family import xtts_sequence_spec
from voxgraft.models.xtts.shapes import (
    CONDITIONING_BLOCKS,
    COUNTER_SUFFIX,
    DECODER_PREFIX,
    MEL_STATS_NAME,
    NUM_MELS,
    VOICE_LATENTS,
    XTTSSize,
    conditioning_perceiver_size,
    xtts_shapes,
)
from voxgraft.nn.backbones import GPT2_LINEAR_LAYERS, Backbone, Gpt2Backbone, Gpt2Size
from voxgraft.nn.layers import LearnedPositions

# Names of a voice's arrays in a clip: what the model is conditioned on, and what the vocoder takes.
LATENTS_ARRAY, SPEAKER_ARRAY = "latents", "speaker"


class ConditioningEncoder(nn.Module):
    """A convolution to the model's width, then blocks of attention over all frames of a clip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.init = nn.Conv1d(NUM_MELS, width, 1)
        self.attn = nn.Sequential(*(_ConditioningBlock(width, heads) for _ in range(CONDITIONING_BLOCKS)))

    def forward(self, mel: Tensor) -> Tensor:
        """[B, 80, F] -> [B, W, F]"""
        out: Tensor = self.attn(self.init(mel))
        return out


class _ConditioningBlock(nn.Module):
    """The residual is the *normed* input: upstream's flag for the plain one is off."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(_count_groups(width), width)
        self.qkv = nn.Conv1d(width, 3 * width, 1)
        self.proj_out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, W, F] -> [B, W, F]"""
        x = self.norm(x)
        # Rows are cut by head first, then into q, k and v.
        q, k, v = self.qkv(x).unflatten(1, (self.heads, 3, -1)).transpose(-1, -2).unbind(2)  # [B, H, F, D] each
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.proj_out(mixed.transpose(-1, -2).flatten(1, 2))
        return out


def _count_groups(width: int) -> int:
    groups = 32 if width > 64 else 16 if width > 16 else 8
    while width % groups:
        groups //= 2
    return groups


class XTTSGpt(nn.Module):
    """Everything whose names begin with `gpt.`."""

    def __init__(self, size: XTTSSize) -> None:
        super().__init__()
        width = size.width
        self.conditioning_encoder = ConditioningEncoder(width, size.heads)
        self.text_embedding: nn.Module = nn.Embedding(size.text_rows, width)
        self.mel_embedding = nn.Embedding(size.speech_rows, width)
        self.gpt = Gpt2Backbone(Gpt2Size(width, size.layers, size.heads))
        self.mel_pos_embedding = LearnedPositions(size.speech_positions, width)
        self.text_pos_embedding = LearnedPositions(size.text_positions, width)
        self.final_norm = nn.LayerNorm(width)
        self.text_head: nn.Module = nn.Linear(width, size.text_rows)
        self.mel_head = nn.Linear(width, size.speech_rows)
        self.conditioning_perceiver = PerceiverResampler(conditioning_perceiver_size(width), width, VOICE_LATENTS)

    def voice_latents(self, mel: Tensor) -> Tensor:
        """The latents of clips of one length, with gradients. [B, 80, F] -> [B, L, W]"""
        frames = self.conditioning_encoder(mel).transpose(1, 2)  # [B, F, W]
        out: Tensor = self.conditioning_perceiver(frames, None)
        return out


class StoredTensors(nn.Module):
    """Tensors of other parts of a file, under their names there: kept as they are, so that a saved file has them."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            head, _, rest = name.partition(".")
            if not rest:
                dtype = torch.int64 if name == COUNTER_SUFFIX.removeprefix(".") else None
                self.register_buffer(name, torch.zeros(shape, dtype=dtype))
            elif head not in self._modules:
                inner = {own.removeprefix(f"{head}."): at for own, at in shapes.items() if own.startswith(f"{head}.")}
                self.add_module(head, StoredTensors(inner))


class XTTSModel(SpeechModel):
    """The model itself, at any width and depth. The condition of an utterance is its voice's latents. [L, W]"""

    text_embedding_name: ClassVar[str] = "gpt.text_embedding"
    text_head_name: ClassVar[str] = "gpt.text_head"
    text_positions_name: ClassVar[str] = "gpt.text_pos_embedding"
    speech_embedding_name: ClassVar[str] = "gpt.mel_embedding"
    speech_positions_name: ClassVar[str] = "gpt.mel_pos_embedding"
    speech_head_name: ClassVar[str] = "gpt.mel_head"
    final_norm_name: ClassVar[str | None] = "gpt.final_norm"
    file_key: ClassVar[str | None] = "model"
    unused_param_prefixes: ClassVar[tuple[str, ...]] = ("gpt.conditioning_encoder.", "gpt.conditioning_perceiver.")
    mel_stats: Tensor  # [80]

    def __init__(self, size: XTTSSize) -> None:
        super().__init__()
        self.size = size
        self.register_buffer(MEL_STATS_NAME, torch.ones(NUM_MELS))
        self.gpt = XTTSGpt(size)
        # Vocoder and speaker encoder are other models in the same file; their own modules read it.
        decoder = {
            name.removeprefix(DECODER_PREFIX): shape
            for name, shape in xtts_shapes(size).items()
            if name.startswith(DECODER_PREFIX)
        }
        self.hifigan_decoder = StoredTensors(decoder)

    @property
    def body(self) -> Backbone:
        return self.gpt.gpt

    @property
    def spec(self) -> SequenceSpec:
        return xtts_sequence_spec(self.num_text_ids, self.size)

    @property
    def device(self) -> torch.device:
        return self.gpt.mel_embedding.weight.device

    def adapter_layers(self) -> list[str]:
        return [f"gpt.gpt.h.{layer}.{name}" for layer in range(self.size.layers) for name in GPT2_LINEAR_LAYERS]

    def collate(self, conditions: Sequence[NDArray[np.float32]]) -> Tensor:
        for latents in conditions:
            require_finite_array(latents, (VOICE_LATENTS, self.size.width), "a voice")
        return torch.from_numpy(np.stack(list(conditions)).astype(np.float32))

    def embed_conditions(self, conditions: Tensor) -> Tensor:
        return conditions.to(self.gpt.mel_embedding.weight.dtype)

    @torch.no_grad()
    @exact_float32()
    def voice_latents(self, mels: Sequence[Tensor]) -> Tensor:
        """The voice of one recording that was cut into chunks: the mean over the chunks. [80, F] each -> [L, W]"""
        if not mels:
            raise GraftError("features-form", "no mel spectrograms", expected="at least one")
        weight = self.gpt.mel_embedding.weight
        return torch.stack([self.gpt.voice_latents(mel[None].to(weight))[0] for mel in mels]).mean(0)
