"""UnifiedVoice for tests: the golden one with the formula's weights, and a random one that needs no shared files."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from tests.golden import expected, formula, golden_state, names
from voxgraft.models.indextts2.model import UnifiedVoice, UnifiedVoiceCondition
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize

LIMIT = 5e-5
"""What the golden page allows conditions, logits and losses to differ by, in float32 on the CPU."""
FRAMES = {"a": 120, "b": 77}
NARROW = ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=2, perceiver_mult=1)
NARROW_EMOTION = ConditioningEncoderSize(width=32, mlp=64, heads=2, blocks=1, perceiver_mult=1)
GOLDEN_SIZE = UnifiedVoiceSize(
    width=64, layers=2, heads=4, max_text=96, max_speech=256, speaker=NARROW, emotion=NARROW_EMOTION
)
RANDOM_SIZE = UnifiedVoiceSize(
    60, 32, 2, 4, speech_rows=42, max_text=24, max_speech=40, speaker=NARROW, emotion=NARROW_EMOTION
)


@cache
def golden_model() -> UnifiedVoice:
    """The tiny model of the golden page; its position tables are the ones that it computes for itself."""
    model = UnifiedVoice(GOLDEN_SIZE)
    computed = {name: value for name, value in model.state_dict().items() if name.endswith(".pos_enc.pe")}
    model.load_state_dict(golden_state(names("indextts2", "unified_voice_tiny")) | computed, strict=True)
    return model


def golden_features(utterance: str) -> Tensor:
    name = f"input.indextts2.features.{utterance}"
    return torch.from_numpy(formula().golden_floats(name, (FRAMES[utterance], 1024), 1.7))


def golden_condition(utterance: str) -> UnifiedVoiceCondition:
    arrays = expected("indextts2")
    return UnifiedVoiceCondition(arrays[f"cond_{utterance}"], arrays[f"emo_{utterance}"])


@torch.no_grad()
def random_model(seed: int = 0) -> UnifiedVoice:
    """Smaller still; no gain is 1 and no bias 0, so that a forgotten one shows."""
    torch.manual_seed(seed)
    model = UnifiedVoice(RANDOM_SIZE)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def random_condition(seed: int) -> UnifiedVoiceCondition:
    values = np.random.default_rng(seed).standard_normal((33, RANDOM_SIZE.width), dtype=np.float32)
    return UnifiedVoiceCondition(values[:32], values[32])


def random_features(num_frames: int) -> Tensor:
    return torch.randn(num_frames, 1024, generator=torch.Generator().manual_seed(num_frames))
