"""IndexTTS-2's UnifiedVoice: text and speech rows around a GPT-2 body, conditioned on a voice and an emotion.

Every tensor has upstream's name and shape, so that loading a published file is the identity. No dropout. The encoders
of voice and emotion are part of it; training reads what they gave once, when the data was prepared.

Shapes: B utterances, F feature frames of a clip, L = 32 speaker latents, W width, N positions, C = L + 2 slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from voxgraft.audio.features import exact_float32
from voxgraft.core.errors import ConfigError, GraftError
from voxgraft.models.base import EmotionSource, SequenceSpec, require_finite_array
from voxgraft.models.indextts2.family import unified_voice_sequence_spec
from voxgraft.models.indextts2.shapes import (
    DEPTHWISE_KERNEL,
    EMOTION_WIDTH,
    FEATURE_WIDTH,
    PERCEIVER_HEAD_WIDTH,
    PERCEIVER_LAYERS,
    SINUSOID_ROWS,
    SPEAKER_LATENTS,
    ConditioningEncoderSize,
    UnifiedVoiceSize,
)
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.backbones import GPT2_LINEAR_LAYERS, Backbone, Gpt2Backbone, Gpt2Size
from voxgraft.nn.layers import LearnedPositions

# Frames that the first convolution needs to give one.
MIN_FEATURE_FRAMES = 3
# Frames of the longest clip that the position table reaches: 200 seconds.
MAX_FEATURE_FRAMES = 2 * SINUSOID_ROWS + 2
# The first convolution makes a quarter of a million numbers of each frame: 1 MB, so a minute would need gigabytes.
FRAMES_PER_CHUNK = 128


class Conformer(nn.Module):
    """Subsampling, `encoders`, and a norm after them."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.embed = ConvSubsampling(size.width)
        self.after_norm = nn.LayerNorm(size.width)
        self.encoders = nn.ModuleList(_ConformerBlock(size) for _ in range(size.blocks))

    def forward(self, clips: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """B times [F, 1024] -> [B, T, W] and which frames are a clip's own, [B, T]; None where all are."""
        parts = [self.embed(clip) for clip in clips]  # one at a time: nothing of it is spent on padding
        lengths = torch.tensor([len(part) for part in parts], device=parts[0].device)
        x = pad_sequence(parts, batch_first=True)  # [B, T, W]
        positions = self.embed.pos_enc.pe[0, : x.shape[1]]  # [T, W]
        mask = None
        if len({len(part) for part in parts}) > 1:
            mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # [B, T]
        for block in self.encoders:
            x = block(x, positions, mask)
        return self.after_norm(x), mask


class ConvSubsampling(nn.Module):
    """One clip to half its frames: a convolution over time and features, and a linear layer over its channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.conv = nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU())
        self.out = nn.Sequential(nn.Linear(width * ((FEATURE_WIDTH - 1) // 2), width))
        self.pos_enc = _SinusoidPositions(width)

    def forward(self, features: Tensor) -> Tensor:
        """[F, 1024] -> [T, W]"""
        # In chunks of frames, each with the one frame of overlap that a kernel of 3 with stride 2 needs.
        num_frames = (len(features) - 1) // 2
        parts = []
        for first in range(0, num_frames, FRAMES_PER_CHUNK):
            end = min(first + FRAMES_PER_CHUNK, num_frames)
            channels = self.conv(features[None, 2 * first : 2 * end + 1])  # [W, frames, 511]
            parts.append(self.out(channels.transpose(0, 1).flatten(1)))
        return torch.cat(parts) * self.scale


class _SinusoidPositions(nn.Module):
    """The position table, which the published file holds although it can be computed."""

    pe: Tensor  # [1, 5000, W]

    def __init__(self, width: int) -> None:
        super().__init__()
        # Sine and cosine of a position in turn, from fast to slow.
        rates = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))  # [W / 2]
        angles = torch.arange(SINUSOID_ROWS)[:, None] * rates
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None])


class _ConformerAttention(nn.Module):
    """(q + u) k + (q + v) p for the scores, where p belongs to the key's place in the clip, not to a distance."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.pos_bias_u = nn.Parameter(torch.zeros(size.heads, width // size.heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(size.heads, width // size.heads))
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], [T, W], [B, T] -> [B, T, W]"""
        parts = (self.linear_q(x), self.linear_k(x), self.linear_v(x), self.linear_pos(positions).expand_as(x))
        q, k, v, p = (part.unflatten(-1, (self.heads, -1)) for part in parts)  # [B, T, H, D]
        # One attention over twice the width: (q + u) k + (q + v) p is the dot product of the concatenations.
        both_q = torch.cat([q + self.pos_bias_u, q + self.pos_bias_v], -1)  # [B, T, H, 2 D]
        both_k = torch.cat([k, p], -1)
        mixed = F.scaled_dot_product_attention(
            both_q.transpose(1, 2),
            both_k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if mask is None else mask[:, None, None],
            scale=q.shape[-1] ** -0.5,
        )  # [B, H, T, D]
        out: Tensor = self.linear_out(mixed.transpose(1, 2).flatten(-2))
        return out


class _ConformerFeedForward(nn.Module):
    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.w_1 = nn.Linear(size.width, size.mlp)
        self.w_2 = nn.Linear(size.mlp, size.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_2(F.silu(self.w_1(x)))
        return out


class _ConformerConvolution(nn.Module):
    """Gated, then each channel over its neighbours in time; padding is silent there, as beyond the ends of a clip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, DEPTHWISE_KERNEL, padding=DEPTHWISE_KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], [B, T] -> [B, T, W]"""
        gated = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)  # [B, W, T]
        if mask is not None:
            gated = gated.masked_fill(~mask[:, None], 0.0)
        mixed = self.norm(self.depthwise_conv(gated).transpose(1, 2))  # [B, T, W]
        out: Tensor = self.pointwise_conv2(F.silu(mixed).transpose(1, 2)).transpose(1, 2)
        return out


class _ConformerBlock(nn.Module):
    """Attention, convolution, feed-forward, each behind its norm, and a norm at the end."""

    def __init__(self, size: ConditioningEncoderSize) -> None:
        super().__init__()
        self.self_attn = _ConformerAttention(size)
        self.feed_forward = _ConformerFeedForward(size)
        self.conv_module = _ConformerConvolution(size.width)
        self.norm_ff = nn.LayerNorm(size.width)
        self.norm_mha = nn.LayerNorm(size.width)
        self.norm_conv = nn.LayerNorm(size.width)
        self.norm_final = nn.LayerNorm(size.width)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, W], [T, W], [B, T] -> [B, T, W]"""
        x = x + self.self_attn(self.norm_mha(x), positions, mask)
        x = x + self.conv_module(self.norm_conv(x), mask)
        x = x + self.feed_forward(self.norm_ff(x))
        out: Tensor = self.norm_final(x)
        return out


class PerceiverResampler(nn.Module):
    """Latents that look at the clip and at one another, layer by layer, and a norm after the last."""

    def __init__(self, size: ConditioningEncoderSize, width: int, num_latents: int) -> None:
        super().__init__()
        # Two thirds, since a gated layer has three matrices where a plain one has two.
        inner = int(width * size.perceiver_mult * 2 / 3)  # upstream's size for GEGLU layers
        self.latents = nn.Parameter(torch.empty(num_latents, width))
        nn.init.normal_(self.latents, std=0.02)
        self.proj_context = nn.Linear(size.width, width) if size.width != width else nn.Identity()
        self.layers = nn.ModuleList()
        for _ in range(PERCEIVER_LAYERS):
            attention = _ResamplerAttention(width, size.heads)
            feed_forward = nn.Sequential(nn.Linear(width, 2 * inner), _Geglu(), nn.Linear(inner, width))
            self.layers.append(nn.ModuleList([attention, feed_forward]))
        self.norm = _ResamplerNorm(width)

    def forward(self, frames: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C], [B, T] -> [B, L, W]"""
        context = self.proj_context(frames)  # [B, T, W]
        latents = self.latents.expand(len(frames), -1, -1)  # [B, L, W]
        attention_mask = None
        if mask is not None:
            attention_mask = F.pad(mask, (len(self.latents), 0), value=True)[:, None, None]  # [B, 1, 1, L + T]
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            attention, feed_forward = layer
            latents = latents + attention(latents, context, attention_mask)
            latents = latents + feed_forward(latents)
        out: Tensor = self.norm(latents)
        return out


class _ResamplerAttention(nn.Module):
    """Keys and values are the latents and the clip together."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        inner = heads * PERCEIVER_HEAD_WIDTH
        self.heads = heads
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(self, latents: Tensor, context: Tensor, seen: Tensor | None) -> Tensor:
        """[B, L, W], [B, T, W], [B, 1, 1, L + T] -> [B, L, W]"""
        k, v = self.to_kv(torch.cat([latents, context], 1)).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.to_q(latents), k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(-2))
        return out


class _Geglu(nn.Module):
    """The first half of the numbers times the GELU of the second."""

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * F.gelu(gate)


class _ResamplerNorm(nn.Module):
    """x / |x| * sqrt(W) * gamma"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * math.sqrt(len(self.gamma)) * self.gamma


# Both speed rows are always there, in this order: the published model was never taught to tell speeds apart.
SPEED_SLOTS = (1, 0)


@dataclass(frozen=True, slots=True)
class UnifiedVoiceCondition:
    """How one utterance should sound; also what is stored of a clip, whose voice and emotion these then are."""

    latents: NDArray[np.float32]  # [L, W] of the voice
    emotion: NDArray[np.float32]  # [W]
    speaker_emotion: NDArray[np.float32] | None = None  # [W] that another emotion is blended with, if not the first


@dataclass(frozen=True, slots=True)
class UnifiedVoiceConditionBatch:
    """The conditions of B utterances."""

    latents: Tensor  # [B, L, W]
    emotion: Tensor  # [B, W]

    def __len__(self) -> int:
        return len(self.latents)


class UnifiedVoice(SpeechModel):
    """The model itself, at any width and depth."""

    text_embedding_name: ClassVar[str] = "text_embedding"
    text_head_name: ClassVar[str] = "text_head"
    text_positions_name: ClassVar[str] = "text_pos_embedding"
    speech_embedding_name: ClassVar[str] = "mel_embedding"
    speech_positions_name: ClassVar[str] = "mel_pos_embedding"
    speech_head_name: ClassVar[str] = "mel_head"
    final_norm_name: ClassVar[str | None] = "final_norm"
    spare_rows: ClassVar[int] = 1
    unused_param_prefixes: ClassVar[tuple[str, ...]] = (
        "conditioning_encoder.",
        "perceiver_encoder.",
        "emo_conditioning_encoder.",
        "emo_perceiver_encoder.",
        "emovec_layer.",
        "emo_layer.",
    )

    def __init__(self, size: UnifiedVoiceSize) -> None:
        super().__init__()
        self.size = size
        width, text_rows = size.width, size.text_pieces + self.spare_rows
        self.conditioning_encoder = Conformer(size.speaker)
        self.perceiver_encoder = PerceiverResampler(size.speaker, width, SPEAKER_LATENTS)
        self.speed_emb = nn.Embedding(len(SPEED_SLOTS), width)
        self.emo_conditioning_encoder = Conformer(size.emotion)
        self.emo_perceiver_encoder = PerceiverResampler(size.emotion, EMOTION_WIDTH, 1)
        self.text_embedding: nn.Module = nn.Embedding(text_rows, width)
        self.emo_layer = nn.Linear(width, width)
        self.emovec_layer = nn.Linear(EMOTION_WIDTH, width)
        self.mel_embedding = nn.Embedding(size.speech_rows, width)
        self.gpt = Gpt2Backbone(Gpt2Size(width, size.layers, size.heads))
        self.mel_pos_embedding = LearnedPositions(size.max_speech + 3, width)
        self.text_pos_embedding = LearnedPositions(size.max_text + 2, width)
        self.final_norm = nn.LayerNorm(width)
        self.text_head: nn.Module = nn.Linear(width, text_rows)
        self.mel_head = nn.Linear(width, size.speech_rows)

    @property
    def body(self) -> Backbone:
        return self.gpt

    @property
    def spec(self) -> SequenceSpec:
        return unified_voice_sequence_spec(self.num_text_ids, self.size)

    def adapter_layers(self) -> list[str]:
        return [f"gpt.h.{layer}.{name}" for layer in range(self.size.layers) for name in GPT2_LINEAR_LAYERS]

    def collate(self, conditions: Sequence[UnifiedVoiceCondition]) -> UnifiedVoiceConditionBatch:
        for condition in conditions:
            require_finite_array(condition.latents, (SPEAKER_LATENTS, self.size.width), "speaker latents")
            require_finite_array(condition.emotion, (self.size.width,), "an emotion")
        return UnifiedVoiceConditionBatch(
            latents=torch.from_numpy(np.stack([condition.latents for condition in conditions]).astype(np.float32)),
            emotion=torch.from_numpy(np.stack([condition.emotion for condition in conditions]).astype(np.float32)),
        )

    def embed_conditions(self, conditions: UnifiedVoiceConditionBatch) -> Tensor:
        rows = self.speed_emb.weight
        voice = conditions.latents.to(rows.dtype) + conditions.emotion.to(rows.dtype)[:, None]  # [B, L, W]
        # After the voice, as the original program concatenates them.
        speed = torch.stack([rows[slot] for slot in SPEED_SLOTS])  # [2, W]
        return torch.cat([voice, speed.expand(len(voice), -1, -1)], 1)

    def speaker_latents(self, features: Tensor) -> Tensor:
        """The voice of one clip. [F, 1024] -> [L, W]"""
        return self.batch_speaker_latents([features])[0]

    @torch.no_grad()
    @exact_float32()
    def batch_speaker_latents(self, clips: Sequence[Tensor]) -> Tensor:
        """The voices of clips of similar length; each is what the clip alone gives. B times [F, 1024] -> [B, L, W]

        the original program's batches let padding into the shorter clips; these do not.
        """
        out: Tensor = self.perceiver_encoder(*self.conditioning_encoder(self._validate_features(clips)))
        return out

    def emotion_vector(self, features: Tensor) -> Tensor:
        """The emotion of one clip. [F, 1024] -> [W]"""
        return self.batch_emotion_vectors([features])[0]

    @torch.no_grad()
    @exact_float32()
    def batch_emotion_vectors(self, clips: Sequence[Tensor]) -> Tensor:
        """The emotions of clips of similar length, each as of the clip alone. B times [F, 1024] -> [B, W]"""
        raw = self.emo_perceiver_encoder(*self.emo_conditioning_encoder(self._validate_features(clips)))  # [B, 1, 1024]
        out: Tensor = self.emo_layer(self.emovec_layer(raw[:, 0]))
        return out

    def _validate_features(self, clips: Sequence[Tensor]) -> list[Tensor]:
        if not clips:
            raise GraftError("features-form", "no clips", expected="at least one")
        for clip in clips:
            if clip.dim() != 2 or clip.shape[1] != FEATURE_WIDTH or not clip.is_floating_point():
                found = f"features as {clip.dtype} of shape {list(clip.shape)}"
                expected = f"floating-point numbers of shape [frames, {FEATURE_WIDTH}]"
                raise GraftError("features-form", found, expected=expected)
            if not MIN_FEATURE_FRAMES <= len(clip) <= MAX_FEATURE_FRAMES:
                cure = "leave the clip out, or cut it into shorter ones."
                expected = f"{MIN_FEATURE_FRAMES} to {MAX_FEATURE_FRAMES:,} (50 a second)"
                raise GraftError("features-form", f"features of {len(clip):,} frames", expected=expected, cure=cure)
            if not bool(clip.isfinite().all()):
                raise GraftError("features-form", "features that are not finite", expected="finite numbers")
        return [clip.to(self.speed_emb.weight) for clip in clips]


def interpolate_emotion(base: Tensor, emotion: Tensor, alpha: float) -> Tensor:
    """Between the emotion of the voice's own clip (0) and that of another (1). [W], [W] -> [W]"""
    return base + alpha * (emotion - base)


def build_training_condition(
    prompt: UnifiedVoiceCondition, target: UnifiedVoiceCondition, emotion_from: EmotionSource
) -> UnifiedVoiceCondition:
    """What a clip is learned under: the voice of another clip of its speaker, and the emotion of either.

    With the target's own voice a model learns to copy the prompt; with the prompt's emotion it tends to lose emotion.
    """
    if emotion_from not in get_args(EmotionSource):
        expected = " or ".join(get_args(EmotionSource))
        raise ConfigError("config-value", f"emotion_from is {emotion_from!r}", expected=expected)
    return UnifiedVoiceCondition(prompt.latents, (target if emotion_from == "target" else prompt).emotion)
