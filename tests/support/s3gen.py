"""S3Gen's golden arrays, its formula weights, which have rules of their own, and small ones of random weights."""

from __future__ import annotations

import json
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.shared import expected, formula, shared
from voxgraft.models.campplus import CAMPPlusSize
from voxgraft.models.chatterbox.encoder import SpeechTokenizer
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.hift import HiftSize, published_shapes
from voxgraft.models.chatterbox.s3gen import S3Gen, S3GenReference, S3GenSize

FOLDER = "chatterbox_s3gen"
SCALES = {
    "mel2wav.f0_predictor.classifier.weight": 200.0,
    "mel2wav.conv_post.parametrizations.weight.original0": 0.5,
    "speaker_encoder.xvector.dense.linear.weight": 4.0,
}
COMPUTED = ("tokenizer._mel_filters", "tokenizer.window")
AROUND_ONE = ("running_var", "alpha", "original0")


@cache
def golden() -> dict[str, NDArray[Any]]:
    return expected(FOLDER)


@cache
def shapes(key: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of `s3gen_small`, `s3gen_full` or either of them with `_meanflow`."""
    known = json.loads(shared(f"golden/{FOLDER}/names.json").read_text())
    plain = key.removesuffix("_meanflow")
    added = known[f"{plain}_meanflow_adds"] if key != plain else {}
    return {name: tuple(shape) for name, shape in (known[plain] | added).items()}


def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """One tensor by its full name, as the formula's rules for S3Gen make it."""
    rule: ModuleType = formula()
    leaf = name.rpartition(".")[2]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    if leaf in AROUND_ONE:
        made = (1.0 + 0.1 * rule._unit(name, int(np.prod(shape)))).astype(np.float32).reshape(shape)
    else:
        made = rule.golden_tensor(name, shape)
    return torch.from_numpy(made * np.float32(SCALES.get(name, 1.0)))


def state(key: str, prefix: str = "") -> dict[str, Tensor]:
    """The formula's weights under a prefix, which is cut off their names; computed tables are left out."""
    known = {name: shape for name, shape in shapes(key).items() if name.startswith(prefix) and name not in COMPUTED}
    return {name.removeprefix(prefix): tensor(name, shape) for name, shape in known.items()}


def floats(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """One of the inputs, without the common start of their names."""
    return torch.from_numpy(formula().golden_floats(f"input.s3gen.{name}", shape, scale))


def token_ids(name: str, count: int) -> list[int]:
    ids: list[int] = formula().golden_ints(f"input.s3gen.{name}", count, 0, 6561).tolist()
    return ids


def signal_to_noise(found: Tensor, wanted: NDArray[Any]) -> float:
    """In dB: what a waveform from our own pitch is compared by, since rounding grows in the sum of phases."""
    assert tuple(found.shape) == wanted.shape
    right = torch.from_numpy(wanted).double()
    return float(10 * torch.log10(right.square().sum() / (right - found.double()).square().sum()))


SMALL_SIZE = S3GenSize(
    FlowSize(1, 64, width=64, inner=64, transformers=1, mid_blocks=1), HiftSize(32, 32), CAMPPlusSize(4, 8, 16)
)
"""The encoder's width is fixed, so that this is 13 million numbers all the same."""


def random_model(size: S3GenSize = SMALL_SIZE, seed: int = 0) -> S3Gen:
    """An S3Gen whose sound depends on everything: voiced in most frames, its layers of gain one."""
    torch.manual_seed(seed)
    model = S3Gen(size)
    for weight in model.parameters():
        weight.mul_(3**0.5 if weight.dim() > 1 else 1.0)
    model.mel2wav.f0_predictor.classifier.bias.fill_(150.0)
    return model


def published_state(model: S3Gen, tokenizer: SpeechTokenizer) -> dict[str, Tensor]:
    """The tensors as a published file has them, with gain and direction where it has weight norm."""
    held, found = model.state_dict(), {}
    for name, shape in published_shapes(model).items():
        owner, _, _ = name.partition(".parametrizations.")
        if name in held:
            found[name] = held[name]
        elif name.endswith("original1"):
            found[name] = 2.0 * held[f"{owner}.weight"]
        else:
            found[name] = held[f"{owner}.weight"].norm(dim=(1, 2), keepdim=True).reshape(shape)
    return found | {f"tokenizer.{name}": value for name, value in tokenizer.state_dict().items()}


def random_reference(codes: int, frames: int, seed: int) -> S3GenReference:
    generator = torch.Generator().manual_seed(seed)
    return S3GenReference(
        torch.randint(0, 6561, (codes,), generator=generator),
        torch.randn(frames, 80, generator=generator),
        torch.randn(192, generator=generator),
    )
