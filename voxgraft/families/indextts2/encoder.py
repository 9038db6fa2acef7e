"""IndexTTS-2's front end: features, from these codes at 50 a second, and voice and emotion by the base's encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from voxgraft.audio.waves import Waveform, batch_by_length
from voxgraft.errors import GraftError
from voxgraft.families.base import BaseFiles, EmotionSource
from voxgraft.families.encoding import Clip, ClipEncoder
from voxgraft.families.indextts2.codec import SemanticCodec
from voxgraft.families.indextts2.describing import CODEC_NAME, W2V_BERT_FOLDER, get_statistics_name
from voxgraft.families.indextts2.features import W2vBertFeatureExtractor
from voxgraft.families.indextts2.model import (
    UnifiedVoice,
    UnifiedVoiceCondition,
    build_training_condition,
    interpolate_emotion,
)

__all__ = ["UnifiedVoiceClipEncoder", "blend_emotion", "build_unified_voice_condition"]

CONDITIONING_BATCH_FRAMES = 3_000
"""Feature frames (50 a second) that go through the conditioning encoders together."""


class UnifiedVoiceClipEncoder(ClipEncoder):
    """w2v-bert, the semantic codec, and the conditioning encoders of the base itself."""

    def __init__(self, features: W2vBertFeatureExtractor, codec: SemanticCodec, model: UnifiedVoice) -> None:
        self.features, self.codec, self.model = features, codec, model

    @classmethod
    def load(cls, files: BaseFiles, model: UnifiedVoice) -> UnifiedVoiceClipEncoder:
        """From the base folder: the statistics that its config names, `w2v-bert-2.0/` and `semantic_codec/`."""
        folder = files.folder
        features = W2vBertFeatureExtractor.load(folder / W2V_BERT_FOLDER, folder / get_statistics_name(files))
        codec = SemanticCodec.load(folder / CODEC_NAME)
        return cls(features.to(model.device), codec.to(model.device), model)

    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        features = self.features.extract(waves)
        codes = self.codec.encode(features)
        clips: dict[int, Clip] = {}
        for places in batch_by_length([len(clip) for clip in features], CONDITIONING_BATCH_FRAMES):
            batch = [features[place] for place in places]
            latents = self.model.batch_speaker_latents(batch).float().cpu().numpy()
            emotions = self.model.batch_emotion_vectors(batch).float().cpu().numpy()
            for place, voice, emotion in zip(places, latents, emotions, strict=True):
                clips[place] = Clip(codes[place], {"latents": voice, "emotion": emotion})
        return [clips[place] for place in range(len(features))]


def build_unified_voice_condition(
    prompt: Clip, target: Clip | None, emotion_from: EmotionSource
) -> UnifiedVoiceCondition:
    """The voice of the prompt, and the emotion of the clip to be learnt or of the prompt."""
    voice = _condition_from_clip(prompt)
    return voice if target is None else build_training_condition(voice, _condition_from_clip(target), emotion_from)


def blend_emotion(condition: UnifiedVoiceCondition, other: Clip, weight: float) -> UnifiedVoiceCondition:
    """Between the emotion that the condition has (0) and that of another clip (1)."""
    own, wanted = np.asarray(condition.emotion), np.asarray(other.voice["emotion"])
    if wanted.shape != own.shape:
        found = f"an emotion of shape {list(wanted.shape)}"
        raise GraftError("condition-form", found, expected=f"{list(own.shape)}, as the base has")
    merged = interpolate_emotion(torch.from_numpy(own.copy()), torch.from_numpy(wanted.copy()), weight)
    return replace(condition, emotion=merged.float().numpy())


def _condition_from_clip(clip: Clip) -> UnifiedVoiceCondition:
    return UnifiedVoiceCondition(np.asarray(clip.voice["latents"]), np.asarray(clip.voice["emotion"]))
