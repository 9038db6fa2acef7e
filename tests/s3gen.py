"""S3Gen's golden arrays, and its formula weights, which have rules of their own."""

from __future__ import annotations

import json
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.golden import expected, formula
from tests.shared import shared

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
