"""The golden arrays of XTTS v2's audio ends, with the weights and inputs that they were made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.support.checkpoint_files import saved
from tests.support.shared import Shape, expected, formula, shared
from voxgraft.models.base import BaseFiles
from voxgraft.models.xtts.encoder import TRAINING_STATE, DiscreteVAE, DVAESize, ResNetSpeakerEncoder
from voxgraft.models.xtts.model import XTTSModel
from voxgraft.models.xtts.shapes import (
    COUNTER_SUFFIX,
    SPEAKER_ENCODER_PREFIX,
    VOCODER_PREFIX,
    XTTSSize,
    dvae_shapes,
    is_computed,
    xtts_shapes,
)
from voxgraft.models.xtts.vocoder import HiFiGAN, HiFiGANSize
from voxgraft.nn.layers import init_empty_weights

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
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("running_var", "original0") or name == "mel_stats":
        draws = formula()._unit(name, int(np.prod(shape)))
        values = (5 + 0.5 * draws if name == "mel_stats" else 1 + 0.1 * draws).astype(np.float32).reshape(shape)
    else:
        values = formula().golden_tensor(name, shape)
    return torch.from_numpy(values * np.float32(SCALES[name]) if name in SCALES else values)


def state(key: str, prefix: str = "") -> dict[str, Tensor]:
    """Golden weights of a part by its own names, without what is computed, counted, or left from training."""
    own = "dvae." if key.startswith("dvae") else ""
    return {
        name: golden_tensor(own + prefix + name, shape)
        for name, shape in shapes(key, prefix).items()
        if name not in TRAINING_STATE and not is_computed(prefix + name)
    }


@cache
def mel_stats() -> Tensor:
    return golden_tensor("mel_stats", (80,))


@cache
def speaker_encoder() -> ResNetSpeakerEncoder:
    return ResNetSpeakerEncoder.from_tensors(state("model_small", SPEAKER_ENCODER_PREFIX))


@cache
def dvae(kind: str) -> DiscreteVAE:
    network = DiscreteVAE(DVAESize.of(shapes(f"dvae_{kind}")))
    network.load_state_dict(state(f"dvae_{kind}"))
    return network


@cache
def hifigan(kind: str) -> HiFiGAN:
    own = shapes(f"model_{kind}", VOCODER_PREFIX)
    return HiFiGAN.from_tensors(HiFiGANSize.of(own), state(f"model_{kind}", VOCODER_PREFIX))


@cache
def conditioning_model(kind: str) -> XTTSModel:
    """A model whose conditioning encoder and perceiver have the golden weights; the others have no memory."""
    with init_empty_weights():
        model = XTTSModel(XTTSSize.of(shapes(f"model_{kind}"), heads={"small": 4, "full": 16}[kind]))
    prefix = "gpt.conditioning_"
    own = {prefix + name: tensor for name, tensor in state(f"model_{kind}", prefix).items()}
    model.load_state_dict({**own, "gpt.mel_embedding.weight": torch.zeros(1026, model.size.width)}, False, True)
    return model


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


SMALL_SIZE = XTTSSize(text_rows=270, width=16, layers=1, heads=2, vocoder_width=16, speaker_width=8)
SMALL_DVAE = DVAESize(width=8, code_width=6, codes=1024)


def random_tensors(shapes: Mapping[str, Shape], seed: int = 0) -> dict[str, Tensor]:
    """Tensors of a file at random, variances and gains around 1."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        if name.endswith(COUNTER_SUFFIX):
            found[name] = torch.zeros((), dtype=torch.int64)
        elif name == "codebook.embed":  # as far apart as what is compared with them
            found[name] = torch.randn(shape, generator=draw)
        elif name.endswith(("running_var", "original0", "mel_stats")):
            found[name] = 1 + 0.1 * torch.rand(shape, generator=draw)
        else:
            found[name] = torch.randn(shape, generator=draw) * (0.3 if len(shape) < 2 else np.prod(shape[1:]) ** -0.5)
    return found


def write_base(folder: Path, seed: int = 0) -> BaseFiles:
    """A small random base as published: model.pth, dvae.pth with the state of its training, config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"model": random_tensors(xtts_shapes(SMALL_SIZE), seed), "step": 0}
    files = BaseFiles(folder, saved(model, folder / "model.pth"), folder / "vocab.json", folder / "config.json")
    table = random_tensors(dvae_shapes(SMALL_DVAE.width, SMALL_DVAE.code_width, SMALL_DVAE.codes), seed)
    trained = {"codebook.cluster_size": torch.zeros(1024), "discrete_loss.accumulator_index": torch.zeros(1).long()}
    saved({**table, **trained}, folder / "dvae.pth")
    (folder / "config.json").write_text('{"model_args": {"gpt_n_heads": 2}, "max_ref_len": 30}')
    return files


def open_base(files: BaseFiles) -> XTTSModel:
    """The language model of `write_base`."""
    from voxgraft.checkpoints.load import read_tensors

    with init_empty_weights():
        model = XTTSModel(SMALL_SIZE)
    own = {name: tuple(one.shape) for name, one in model.state_dict().items() if one.is_floating_point()}
    model.load_state_dict(read_tensors(files.checkpoint, own), False, True)
    return model.eval()
