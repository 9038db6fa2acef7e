"""XTTS's golden model at its two sizes, and the inputs that its arrays were made from."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.shared import Shape, formula, golden_state, shared
from voxgraft.checkpoints.base import Shape as TensorShape
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import XTTSSize

LIMIT = 5e-5
SCORE_LIMIT = 2e-4
CORNER_LIMIT = 5e-4
SAMPLE_RATE = 22_050
RECORDINGS = {"a": 40_860, "b": 62_464}
"""Samples of the recordings whose codes are learned."""
TEXT_LENGTHS = {"a": 9, "b": 17}
TRAINING_CLIPS = {"a": (3_000, 36_000), "b": (10_000, 50_000)}
TRAINING_CLIP_SAMPLES = 40_000
_WAVE_SECONDS = {"w1": 3.0, "w2": 2.07, "w3": 9.3}


def golden_shapes(size: str) -> dict[str, TensorShape]:
    """Names and shapes of the original's model.pth, in its order."""
    known = json.loads(shared("golden/xtts/names.json").read_text())
    return {name: tuple(shape) for name, shape in known[f"model_{size}"].items()}


def golden_weight(name: str, shape: Shape) -> Tensor:
    """A tensor by the rules of golden/xtts/README.md."""
    leaf = name.rpartition(".")[2]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    weight = golden_state({name: shape})[name]
    if leaf in ("running_var", "original0"):
        draws = formula()._unit(name, int(np.prod(shape)))
        return torch.from_numpy((1.0 + 0.1 * draws).astype(np.float32).reshape(shape))
    if name == "mel_stats":
        draws = formula()._unit(name, int(np.prod(shape)))
        return torch.from_numpy((5.0 + 0.5 * draws).astype(np.float32).reshape(shape))
    if name.endswith("waveform_decoder.conv_post.weight"):
        return weight * 3.0
    return weight


@cache
def golden_model(size: str = "small") -> XTTSModel:
    """The original's weights at one of the two sizes; tables that the speaker encoder computes are left out."""
    shapes = golden_shapes(size)
    with torch.device("meta"):
        model = XTTSModel(XTTSSize.of(shapes))
    state = {name: golden_weight(name, shape) for name, shape in shapes.items()}
    model.load_state_dict(state, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def golden_wave(name: str) -> np.ndarray[Any, Any]:
    """One of the three recordings."""
    wave: np.ndarray[Any, Any] = formula().golden_wave(_WAVE_SECONDS[name], SAMPLE_RATE)
    return wave


def golden_text(utterance: str, size: str) -> np.ndarray[Any, Any]:
    """The text ids of an utterance: others at each size."""
    rows = golden_model(size).size.text_rows
    ids = formula().golden_ints(f"input.xtts.text.{utterance}", TEXT_LENGTHS[utterance], 3, rows)
    return np.where(ids == 261, 262, ids)


def golden_codes(utterance: str) -> np.ndarray[Any, Any]:
    """As many codes as the recording is long."""
    codes: np.ndarray[Any, Any] = formula().golden_ints(f"input.xtts.codes.{utterance}", 62, 0, 1024)
    return codes[: -(-RECORDINGS[utterance] // 1024)]


def conditioning_mel(wave: np.ndarray[Any, Any], size: str = "small") -> Tensor:
    """The formula of the conditioning encoder's mel spectrogram, written once more for the tests. -> [80, F]"""
    n_fft, hop, window = 2048, 256, torch.hann_window(1024, dtype=torch.float64)
    spectrum = torch.stft(
        torch.from_numpy(wave).double(), n_fft, hop, 1024, window, center=True, pad_mode="reflect", return_complex=True
    )
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1, dtype=torch.float64)
    top = 2595 * np.log10(1 + 8000 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, 82, dtype=torch.float64) / 2595) - 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    filters = torch.minimum(rising, falling).clamp(min=0) * (2 / (edges[2:] - edges[:-2]))[:, None]
    mel = (filters @ spectrum.abs().square()).clamp(min=1e-5).log()
    return (mel / golden_model(size).mel_stats.double()[:, None]).float()


@cache
def training_mel(utterance: str, size: str) -> Tensor:
    """The mel spectrogram of the clip that an utterance is conditioned on in training, zero-padded as there."""
    first, end = TRAINING_CLIPS[utterance]
    clip = golden_wave("w1")[first:end]
    return conditioning_mel(np.pad(clip, (0, TRAINING_CLIP_SAMPLES - len(clip))), size)


def training_condition(utterance: str, size: str) -> NDArray[np.float32]:
    """The voice of that clip."""
    return golden_model(size).voice_latents([training_mel(utterance, size)]).numpy()
