"""IndexTTS-2 for tests: UnifiedVoice with golden and with random weights, and small random vocoders in the published formats."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from tests.support.checkpoint_files import saved
from tests.support.shared import expected, formula, golden_state, names
from tools.random_bases.indextts2 import random_tensors
from voxgraft.models.base import REFERENCE_AUDIO, Clip
from voxgraft.models.campplus import CAMPPlus, CAMPPlusSize
from voxgraft.models.indextts2.dit import DiTSize
from voxgraft.models.indextts2.encoder import SPEAKER_EMOTION, STYLE, VECTORS_PER_EMOTION
from voxgraft.models.indextts2.model import UnifiedVoice, UnifiedVoiceCondition
from voxgraft.models.indextts2.s2mel import S2Mel, S2MelSize, s2mel_shapes
from voxgraft.models.indextts2.shapes import ConditioningEncoderSize, UnifiedVoiceSize
from voxgraft.models.indextts2.vocoder import (
    SAMPLE_RATE,
    BigVGAN,
    BigVGANSize,
    IndexTTS2Vocoder,
    bigvgan_shapes,
)

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


HEADS = 2
DIT = DiTSize(width=32, heads=HEADS, layers=3, mlp=48, content=16, wavenet_layers=2)
BIGVGAN = BigVGANSize(channels=64)
CAMPPLUS = CAMPPlusSize(growth=8, bottleneck=16, start=32)


def s2mel_size(gpt_width: int) -> S2MelSize:
    return S2MelSize(DIT, (gpt_width, 16, 8, 1024))


def write_waveform_end(folder: Path, gpt_width: int, seed: int = 0) -> None:
    """s2mel, BigVGAN, CAM++ and the emotion files into a base folder, and into its config what no tensor shows."""
    write_s2mel(folder, gpt_width, seed)
    (folder / "bigvgan_v2_22khz_80band_256x").mkdir()
    generator = random_tensors(bigvgan_shapes(BIGVGAN, weight_norm=True), seed)
    saved({"generator": generator}, folder / "bigvgan_v2_22khz_80band_256x" / "bigvgan_generator.pt")
    torch.manual_seed(seed)
    saved(CAMPPlus(CAMPPLUS).state_dict(), folder / "campplus_cn_common.bin")
    rows, draw = sum(VECTORS_PER_EMOTION), torch.Generator().manual_seed(seed)
    saved(torch.randn(rows, 192, generator=draw), folder / "feat1.pt")
    saved(torch.randn(rows, gpt_width, generator=draw) * 3, folder / "feat2.pt")
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {"s2mel": {"DiT": {"num_heads": HEADS}}, "vocoder": {"name": "nvidia/bigvgan_v2_22khz_80band_256x"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def write_s2mel(folder: Path, gpt_width: int, seed: int = 0) -> None:
    """Tables of tensors under one key, as published."""
    net: dict[str, dict[str, Tensor]] = {}
    for name, tensor in random_tensors(s2mel_shapes(s2mel_size(gpt_width)), seed).items():
        table, _, rest = name.partition(".")
        net.setdefault(table, {})[rest] = tensor
    saved({"net": net}, folder / "s2mel.pth")


def random_vocoder(gpt_width: int = 24, num_codes: int = 50) -> IndexTTS2Vocoder:
    size, draw = s2mel_size(gpt_width), torch.Generator().manual_seed(5)
    parts = (
        S2Mel.from_tensors(size, random_tensors(s2mel_shapes(size), 1)),
        BigVGAN.from_tensors(BIGVGAN, random_tensors(bigvgan_shapes(BIGVGAN, weight_norm=True), 2)),
        torch.randn(num_codes, 1024, generator=draw),
    )
    return IndexTTS2Vocoder(lambda: parts)


def random_voice(seconds: float, seed: int, gpt_width: int = 24, num_codes: int = 50) -> Clip:
    """A voice as the encoder gives it, of noise."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, num_codes, round(50 * seconds))
    arrays = {
        "latents": draw.standard_normal((32, gpt_width), np.float32),
        "emotion": draw.standard_normal(gpt_width, np.float32),
        SPEAKER_EMOTION: draw.standard_normal(gpt_width, np.float32),
        REFERENCE_AUDIO: 0.1 * draw.standard_normal(round(seconds * SAMPLE_RATE), np.float32),
        STYLE: draw.standard_normal(192, np.float32),
    }
    return Clip(codes, arrays)
