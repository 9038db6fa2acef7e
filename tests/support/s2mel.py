"""The golden arrays of IndexTTS-2's vocoder, with the weights and inputs that they were made from."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support.shared import expected, formula, shared
from voxgraft.models.indextts2.s2mel import FlowPrompt, S2Mel, S2MelSize, is_optional_tensor, s2mel_shapes

FOLDER = "indextts2_s2mel"
HEADS = {"small": 4, "full": 8}
UTTERANCES = ("a", "b")
REFERENCE_SECONDS = {"a": 0.8, "b": 1.1}
NUM_CODES = {"a": 26, "b": 64}
NUM_REFERENCE_CODES = {"a": 39, "b": 54}
TIMES = {"a": 0.36, "b": 0.92}
CASES = [("small", "a"), ("small", "b"), ("full", "a")]
"""Sizes and utterances that the original was run with."""


@cache
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return expected(FOLDER)


@cache
def names() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(shared(f"golden/{FOLDER}/names.json").read_text())
    return known


def shapes(key: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in names()[key].items()}


def golden_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """The formula's tensor, with the exceptions that the folder's README lists."""
    values = formula().golden_tensor(name, shape)
    if name.endswith(".project_layer.bias"):
        values[: len(values) // 2] += np.float32(1)
    elif name == "conv_post.weight_g":
        values = values * np.float32(0.125)
    elif ".convs2." in name and name.endswith("weight_g"):
        values = values * np.float32(0.5)
    return torch.from_numpy(values)


def floats(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    found: np.ndarray[Any, Any] = formula().golden_floats(f"input.s2mel.{name}", shape, scale)
    return torch.from_numpy(found)


def size(kind: str) -> S2MelSize:
    return S2MelSize.of(shapes(f"s2mel_{kind}"), HEADS[kind])


@cache
def model(kind: str) -> S2Mel:
    return S2Mel.from_tensors(
        size(kind), {name: golden_tensor(name, own) for name, own in s2mel_shapes(size(kind)).items()}
    )


def file_tensors(kind: str) -> dict[str, Tensor]:
    """Every tensor of the published file; those that are never read, or are computed, as zeros."""
    own = size(kind)
    return {
        name: torch.zeros(shape) if is_optional_tensor(name, own) else golden_tensor(name, shape)
        for name, shape in shapes(f"s2mel_{kind}").items()
    }


def latents(utterance: str) -> Tensor:
    return floats(f"latents.{utterance}", (NUM_CODES[utterance], 1280), 1.7)


def style(utterance: str) -> Tensor:
    return floats(f"style.{utterance}", (192,), 1.7)


def prompt(kind: str, utterance: str) -> FlowPrompt:
    """The original's own reference arrays: what comes before is tested for itself."""
    found = arrays()
    condition = torch.from_numpy(found[f"{kind}_prompt_cond_{utterance}"])
    return FlowPrompt(torch.from_numpy(found[f"small_ref_mel_{utterance}"]), condition, style(utterance))


def content(kind: str, utterance: str) -> Tensor:
    return torch.from_numpy(arrays()[f"{kind}_cond_{utterance}"])


def noise(utterance: str) -> Tensor:
    frames = arrays()[f"small_ref_mel_{utterance}"].shape[1] + arrays()[f"small_target_length_{utterance}"].item()
    return floats(f"noise.{utterance}", (80, frames), float(np.sqrt(3)))
