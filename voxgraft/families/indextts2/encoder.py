"""IndexTTS-2's front end: features, from these codes at 50 a second, and voice and emotion by the base's encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from voxgraft.audio.waves import Wave, length_batches
from voxgraft.errors import GraftError
from voxgraft.families.base import BaseFiles, EmotionFrom
from voxgraft.families.encoding import Clip, ClipEncoder
from voxgraft.families.indextts2.codec import SemanticCodec
from voxgraft.families.indextts2.describing import CODEC_NAME, FEATURES_FOLDER, statistics_name
from voxgraft.families.indextts2.features import SpeechFeatures
from voxgraft.families.indextts2.model import IndexCondition, UnifiedVoice, merged_emotion, training_condition

__all__ = ["UnifiedVoiceEncoder", "unified_voice_condition", "with_emotion"]

BATCH_FRAMES = 3_000
"""Feature frames (50 a second) that go through the conditioning encoders together."""


class UnifiedVoiceEncoder(ClipEncoder):
    """w2v-bert, the semantic codec, and the conditioning encoders of the base itself."""

    def __init__(self, features: SpeechFeatures, codec: SemanticCodec, model: UnifiedVoice) -> None:
        self.features, self.codec, self.model = features, codec, model

    @classmethod
    def load(cls, files: BaseFiles, model: UnifiedVoice) -> UnifiedVoiceEncoder:
        """From the base folder: the statistics that its config names, `w2v-bert-2.0/` and `semantic_codec/`."""
        folder = files.folder
        features = SpeechFeatures.load(folder / FEATURES_FOLDER, folder / statistics_name(files))
        codec = SemanticCodec.load(folder / CODEC_NAME)
        return cls(features.to(model.device), codec.to(model.device), model)

    def encode(self, waves: Sequence[Wave]) -> list[Clip]:
        features = self.features.extract(waves)
        codes = self.codec.encode(features)
        clips: dict[int, Clip] = {}
        for places in length_batches([len(clip) for clip in features], BATCH_FRAMES):
            batch = [features[place] for place in places]
            latents = self.model.speaker_latents_of(batch).float().cpu().numpy()
            emotions = self.model.emotion_vectors_of(batch).float().cpu().numpy()
            for place, voice, emotion in zip(places, latents, emotions, strict=True):
                clips[place] = Clip(codes[place], {"latents": voice, "emotion": emotion})
        return [clips[place] for place in range(len(features))]


def unified_voice_condition(prompt: Clip, target: Clip | None, emotion_from: EmotionFrom) -> IndexCondition:
    """The voice of the prompt, and the emotion of the clip to be learnt or of the prompt."""
    voice = _own(prompt)
    return voice if target is None else training_condition(voice, _own(target), emotion_from)


def with_emotion(condition: IndexCondition, other: Clip, weight: float) -> IndexCondition:
    """Between the emotion that the condition has (0) and that of another clip (1)."""
    own, wanted = np.asarray(condition.emotion), np.asarray(other.voice["emotion"])
    if wanted.shape != own.shape:
        found = f"an emotion of shape {list(wanted.shape)}"
        raise GraftError("condition-form", found, expected=f"{list(own.shape)}, as the base has")
    merged = merged_emotion(torch.from_numpy(own.copy()), torch.from_numpy(wanted.copy()), weight)
    return replace(condition, emotion=merged.float().numpy())


def _own(clip: Clip) -> IndexCondition:
    return IndexCondition(np.asarray(clip.voice["latents"]), np.asarray(clip.voice["emotion"]))
