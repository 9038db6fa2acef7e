"""Small models with random weights that speak: one of each family, and prompts for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxgraft.models.chatterbox.model import T3, T3Condition
from voxgraft.models.chatterbox.shapes import T3Size
from voxgraft.models.generate import GenerationPrompt
from voxgraft.models.indextts2.model import UnifiedVoice, UnifiedVoiceCondition
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize
from voxgraft.models.speech_model import SpeechModel

SHARPNESS = 4.0
"""How far apart the random heads' scores are, so that one code in some dozens is likely, as in a trained model."""
HEADS = ("speech_head.weight", "mel_head.weight")
STOP_BIAS = 10.0
"""UnifiedVoice's head has a bias: with this one most utterances stop by themselves, early or late."""


def small_t3(seed: int = 0, *, width: int = 128) -> T3:
    model = T3(T3Size(layers=2, width=width, mlp=2 * width, speech_positions=128))
    _fill(model, seed)
    return model


def small_voice(seed: int = 0, *, stop_bias: float = 0.0, width: int = 128) -> UnifiedVoice:
    encoder = ConditioningEncoderSize(width=32, mlp=64, heads=4, blocks=1, perceiver_mult=2)
    size = UnifiedVoiceSize(width=width, layers=2, heads=width // 32, max_speech=120, speaker=encoder, emotion=encoder)
    model = UnifiedVoice(size)
    _fill(model, seed)
    with torch.no_grad():
        model.mel_head.bias[model.frame.speech_stop] += stop_bias
    return model


def prompts(
    model: SpeechModel, num_texts: Sequence[int] = (5, 12, 3), *, first_seed: int = 0
) -> list[GenerationPrompt]:
    """Utterances of so many text ids."""
    made = []
    for seed, num_text in enumerate(num_texts, first_seed):
        draw = np.random.default_rng(seed)
        ids = draw.integers(300, 2000, num_text).tolist()
        made.append(GenerationPrompt(ids, _condition(model, draw), seed))
    return made


def _condition(model: SpeechModel, draw: np.random.Generator) -> Any:
    if isinstance(model, T3):
        voice = np.abs(draw.standard_normal(256, dtype=np.float32))
        return T3Condition(voice / np.linalg.norm(voice), draw.integers(0, 6561, int(draw.integers(5, 20))))
    assert isinstance(model, UnifiedVoice)
    latents = draw.standard_normal((33, model.size.width), dtype=np.float32)
    return UnifiedVoiceCondition(latents[:32], latents[32])


def _fill(model: SpeechModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(values * (SHARPNESS if name in HEADS else 1.0) / parameter.shape[-1] ** 0.5)
            elif name.endswith("weight"):
                parameter.copy_(1 + 0.1 * values)
            else:
                parameter.copy_(0.05 * values)
    model.requires_grad_(False).eval()
