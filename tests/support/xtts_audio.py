"""The golden arrays of XTTS v2's audio ends, with the weights and inputs that they were made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.shared import Shape, expected, formula, shared
from voxgraft.models.campplus import COUNTER
from voxgraft.models.xtts.encoder import (
    COMPUTED_TABLES,
    SPEAKER_PREFIX,
    TRAINING_STATE,
    DiscreteVAE,
    DVAESize,
    ResNetSpeakerEncoder,
)
from voxgraft.models.xtts.vocoder import DECODER_PREFIX, HiFiGAN, HiFiGANSize

KINDS = ("small", "full")
SECONDS = {"w1": 3.0, "w2": 2.07, "w3": 9.3}
# Multiplied in float32 after the formula, as the folder's README lists.
SCALES = {"dvae.codebook.embed": 32.0, "hifigan_decoder.waveform_decoder.conv_post.weight": 3.0}


@cache
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return expected("xtts")


@cache
def _names() -> dict[str, dict[str, Shape]]:
    known: dict[str, dict[str, Shape]] = json.loads(shared("golden/xtts/names.json").read_text())
    return known


def shapes(key: str, prefix: str = "") -> dict[str, Shape]:
    """Published names and shapes: of `model_small`, `model_full`, `dvae_small` or `dvae_full`."""
    names = {name: tuple(shape) for name, shape in _names()[key].items()}
    return {name.removeprefix(prefix): shape for name, shape in names.items() if name.startswith(prefix)}


def golden_tensor(name: str, shape: Shape) -> Tensor:
    """The formula's tensor, with the exceptions that the folder's README lists."""
    values = formula().golden_tensor(name, shape)
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("running_var", "original0") or name == "mel_stats":
        draws = formula()._unit(name, int(np.prod(shape)))
        values = 5 + 0.5 * draws if name == "mel_stats" else 1 + 0.1 * draws
        values = values.astype(np.float32).reshape(shape)
    elif leaf == COUNTER:
        return torch.zeros((), dtype=torch.int64)
    return torch.from_numpy(values * np.float32(SCALES[name]) if name in SCALES else values)


def state(key: str, prefix: str) -> dict[str, Tensor]:
    """Golden weights of a part by its own names; the computed tables are left out."""
    own = "dvae." if key.startswith("dvae") else ""
    unused = (*TRAINING_STATE, *COMPUTED_TABLES)
    return {
        name: golden_tensor(own + prefix + name, shape)
        for name, shape in shapes(key, prefix).items()
        if name not in unused
    }


@cache
def mel_stats() -> Tensor:
    return golden_tensor("mel_stats", (80,))


@cache
def speaker_encoder() -> ResNetSpeakerEncoder:
    network = ResNetSpeakerEncoder()
    network.load_state_dict(state("model_small", SPEAKER_PREFIX))
    return network


@cache
def dvae(kind: str) -> DiscreteVAE:
    network = DiscreteVAE(DVAESize.of(shapes(f"dvae_{kind}")))
    network.load_state_dict(state(f"dvae_{kind}", ""))
    return network


@cache
def hifigan(kind: str) -> HiFiGAN:
    own = shapes(f"model_{kind}", DECODER_PREFIX)
    return HiFiGAN.from_tensors(HiFiGANSize.of(own), state(f"model_{kind}", DECODER_PREFIX))


def wave(name: str, rate: int = 22_050) -> Tensor:
    return torch.from_numpy(formula().golden_wave(SECONDS[name], rate))


def floats(name: str, shape: Shape, scale: float) -> Tensor:
    return torch.from_numpy(formula().golden_floats(f"input.xtts.{name}", shape, scale))


def corners(found: Tensor) -> Tensor:
    """The first and the last 8 x 8 of rows and columns, as the golden arrays keep a module's output."""
    rows = found.reshape(-1, found.shape[-1]) if found.dim() > 1 else found[None]
    return torch.cat([rows[:8, :8].flatten(), rows[-8:, -8:].flatten()])


@contextmanager
def outputs_of(network: nn.Module, names: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """What the named modules give while the block runs, item 0 of the batch, by the keys of `names`."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _given, found: seen.update({name: found[0].clone()})

    hooks = [network.get_submodule(place).register_forward_hook(keep(name)) for name, place in names.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
