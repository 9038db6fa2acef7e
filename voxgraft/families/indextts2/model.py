"""IndexTTS-2's UnifiedVoice: text and speech rows around a GPT-2 body, conditioned on a voice and an emotion.

Every tensor has upstream's name and shape, so that loading a published file is the identity. No dropout. The encoders
of voice and emotion are part of it; training reads what they gave once, when the data was prepared.

Shapes: B utterances, F feature frames of a clip, L = 32 speaker latents, W width, N positions, C = L + 2 slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxgraft.audio.exact import exact_float32
from voxgraft.errors import ConfigError, GraftError
from voxgraft.families.base import EmotionSource
from voxgraft.families.indextts2.conformer import MAX_FEATURE_FRAMES, MIN_FEATURE_FRAMES, Conformer
from voxgraft.families.indextts2.frame import unified_voice_sequence_spec
from voxgraft.families.indextts2.perceiver import PerceiverResampler
from voxgraft.families.indextts2.shapes import EMOTION_WIDTH, FEATURE_WIDTH, SPEAKER_LATENTS, UnifiedVoiceSize
from voxgraft.families.layout import SequenceSpec
from voxgraft.families.model import SpeechModel
from voxgraft.nn.aligned import padded_linear
from voxgraft.nn.body import Backbone
from voxgraft.nn.gpt2 import GPT2_LINEAR_LAYERS, Gpt2Backbone, Gpt2Size
from voxgraft.nn.positions import LearnedPositions

__all__ = [
    "UnifiedVoice",
    "UnifiedVoiceCondition",
    "UnifiedVoiceConditionBatch",
    "build_training_condition",
    "interpolate_emotion",
]

SPEED_SLOTS = (1, 0)
"""Both speed rows are always there, in this order: the published model was never taught to tell speeds apart."""


@dataclass(frozen=True, slots=True)
class UnifiedVoiceCondition:
    """How one utterance shall sound; also what is stored of a clip, whose voice and emotion these then are."""

    latents: NDArray[np.float32]  # [L, W] of the voice
    emotion: NDArray[np.float32]  # [W]


@dataclass(frozen=True, slots=True)
class UnifiedVoiceConditionBatch:
    """The conditions of B utterances."""

    latents: Tensor  # [B, L, W]
    emotion: Tensor  # [B, W]

    def __len__(self) -> int:
        return len(self.latents)

    def to(self, device: torch.device | str) -> UnifiedVoiceConditionBatch:
        return UnifiedVoiceConditionBatch(self.latents.to(device), self.emotion.to(device))


class UnifiedVoice(SpeechModel):
    """The model itself, at any width and depth."""

    text_embedding_name: ClassVar[str] = "text_embedding"
    text_head_name: ClassVar[str] = "text_head"
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
    def frame(self) -> SequenceSpec:
        return unified_voice_sequence_spec(self.num_text_ids, self.size)

    def adapter_layers(self) -> list[str]:
        return [f"gpt.h.{layer}.{name}" for layer in range(self.size.layers) for name in GPT2_LINEAR_LAYERS]

    def collate(self, conditions: Sequence[UnifiedVoiceCondition]) -> UnifiedVoiceConditionBatch:
        for condition in conditions:
            _require_finite_array(condition.latents, (SPEAKER_LATENTS, self.size.width), "speaker latents")
            _require_finite_array(condition.emotion, (self.size.width,), "an emotion")
        return UnifiedVoiceConditionBatch(
            latents=torch.from_numpy(np.stack([condition.latents for condition in conditions]).astype(np.float32)),
            emotion=torch.from_numpy(np.stack([condition.emotion for condition in conditions]).astype(np.float32)),
        )

    def embed_conditions(self, conditions: UnifiedVoiceConditionBatch) -> Tensor:
        rows = self.speed_emb.weight
        voice = conditions.latents.to(rows.dtype) + conditions.emotion.to(rows.dtype)[:, None]  # [B, L, W]
        speed = torch.stack([rows[slot] for slot in SPEED_SLOTS])  # [2, W]
        return torch.cat([voice, speed.expand(len(voice), -1, -1)], 1)

    def embed_text(self, ids: Tensor, positions: Tensor, silent: Tensor | None = None) -> Tensor:
        vectors: Tensor = self.text_embedding(ids)
        if silent is not None:
            vectors = vectors.masked_fill(silent[:, None], 0.0)
        out: Tensor = vectors + self.text_pos_embedding(positions)
        return out

    def embed_speech(self, ids: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = self.mel_embedding(ids) + self.mel_pos_embedding(positions)
        return out

    def text_logits(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.text_head(self.final_norm(hidden))
        return out

    def speech_logits(self, hidden: Tensor) -> Tensor:
        return padded_linear(self.speech_latents(hidden), self.mel_head.weight, self.mel_head.bias)

    def speech_latents(self, hidden: Tensor) -> Tensor:
        """The body's output as the stock program hands it to its speech decoder. [N, W] -> [N, W]"""
        out: Tensor = self.final_norm(hidden)
        return out

    def speaker_latents(self, features: Tensor) -> Tensor:
        """The voice of one clip. [F, 1024] -> [L, W]"""
        return self.batch_speaker_latents([features])[0]

    @torch.no_grad()
    @exact_float32()
    def batch_speaker_latents(self, clips: Sequence[Tensor]) -> Tensor:
        """The voices of clips of similar length; each is what the clip alone gives. B times [F, 1024] -> [B, L, W]

        The stock program's batches let padding into the shorter clips; these do not.
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
            _require_features(clip)
        return [clip.to(self.speed_emb.weight) for clip in clips]


def interpolate_emotion(base: Tensor, emotion: Tensor, alpha: float) -> Tensor:
    """Between the emotion of the voice's own clip (0) and that of another (1). [W], [W] -> [W]"""
    return base + alpha * (emotion - base)


def build_training_condition(
    prompt: UnifiedVoiceCondition, target: UnifiedVoiceCondition, emotion_from: EmotionSource
) -> UnifiedVoiceCondition:
    """What a clip is learnt under: the voice of another clip of its speaker, and the emotion of either.

    With the target's own voice a model learns to copy the prompt; with the prompt's emotion it tends to lose emotion.
    """
    if emotion_from not in get_args(EmotionSource):
        expected = " or ".join(get_args(EmotionSource))
        raise ConfigError("config-value", f"emotion_from is {emotion_from!r}", expected=expected)
    return UnifiedVoiceCondition(prompt.latents, (target if emotion_from == "target" else prompt).emotion)


def _require_finite_array(values: NDArray[np.float32], shape: tuple[int, ...], what: str) -> None:
    array = np.asarray(values)
    if array.shape != shape or not np.issubdtype(array.dtype, np.floating):
        found = f"{what} as {array.dtype} of shape {list(array.shape)}"
        raise GraftError("condition-form", found, expected=f"floating-point numbers of shape {list(shape)}")
    wrong = int(np.count_nonzero(~np.isfinite(array)))
    if wrong:
        found = f"{what} with {wrong:,} of {array.size:,} numbers not finite"
        raise GraftError("condition-form", found, expected="finite numbers")


def _require_features(features: Tensor) -> None:
    if features.dim() != 2 or features.shape[1] != FEATURE_WIDTH or not features.is_floating_point():
        found = f"features as {features.dtype} of shape {list(features.shape)}"
        raise GraftError("features-form", found, expected=f"floating-point numbers of shape [frames, {FEATURE_WIDTH}]")
    if not MIN_FEATURE_FRAMES <= len(features) <= MAX_FEATURE_FRAMES:
        cure = "leave the clip out, or cut it into shorter ones."
        expected = f"{MIN_FEATURE_FRAMES} to {MAX_FEATURE_FRAMES:,} (50 a second)"
        raise GraftError("features-form", f"features of {len(features):,} frames", expected=expected, cure=cure)
    if not bool(features.isfinite().all()):
        raise GraftError("features-form", "features that are not finite", expected="finite numbers")
