"""An adapter in PEFT's format (config and tensors by upstream's module names), and back, as a folder too.

Does not need the package `peft`. A variant of LoRA that we would compute differently is refused, not misread.

Shapes: I inputs and O outputs of a layer, R rank of the adapter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core.errors import GraftError
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    read_json,
    require_folder,
    require_output_path,
    write_json,
)
from voxgraft.nn.adapter import (
    Gate,
    adapter_state,
    add_adapter,
    find_adaptable_layers,
    find_lora_layers,
    load_adapter_state,
    require_adapter_shapes,
)

_PEFT_PREFIX = "base_model.model."
_PEFT_TENSOR = re.compile(rf"{re.escape(_PEFT_PREFIX)}(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_PEFT_SIDES = {"A": "down", "B": "up"}
# Keys that say where an adapter came from, how it was trained, or which layers have it (as the tensors' names do).
_IGNORED_PEFT_KEYS = frozenset(
    "auto_mapping base_model_name_or_path revision task_type peft_version inference_mode lora_dropout fan_in_fan_out "
    "target_modules exclude_modules layers_to_transform layers_pattern megatron_core qalora_group_size "
    "r lora_alpha".split()
)
_ALLOWED_PEFT_VALUES: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    # Other ways to start (pissa, olora, corda, loftq) also change the base's weights.
    "init_lora_weights": (True, False, "gaussian"),
}
# What every key has whose feature is not used, those of later versions of PEFT included.
_DISABLED_VALUES: tuple[object, ...] = (None, False, {}, [])


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """An adapter that was read from PEFT's form: whole, plain and finite."""

    rank: int
    alpha: float
    state: dict[str, Tensor]
    """`LAYER.down` [R, I] and `LAYER.up` [O, R], as `adapter_state` gives them."""

    @property
    def layers(self) -> list[str]:
        return sorted({name.rpartition(".")[0] for name in self.state})


def to_peft(model: nn.Module, base_name: str = "") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model's adapter as PEFT's config and tensors: lora_A [R, I] and lora_B [O, R], transposed layers included."""
    layers = find_lora_layers(model)
    if not layers:
        raise GraftError("adapter-missing", f"no layer of this {type(model).__name__} has an adapter")
    one = next(iter(layers.values()))
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base_name or None,
        "task_type": None,
        "inference_mode": True,
        "r": one.rank,
        "lora_alpha": int(one.alpha) if float(one.alpha).is_integer() else one.alpha,
        "target_modules": sorted(layers),
        # PEFT keeps A and B the same way round for both kinds of layer; this tells it how the base's weight lies.
        "fan_in_fan_out": any(layer.transposed for layer in layers.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    names = {own: f"lora_{side}.weight" for side, own in _PEFT_SIDES.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in sorted(adapter_state(model).items()):
        layer, _, own = name.rpartition(".")
        # float32 at least: masters keep every bit, and PEFT casts when it loads.
        exact = tensor.to(device="cpu", dtype=torch.promote_types(tensor.dtype, torch.float32))
        tensors[f"{_PEFT_PREFIX}{layer}.{names[own]}"] = exact.contiguous()
    return config, tensors


def from_peft(config: object, tensors: Mapping[str, Tensor], where: str | Path = "") -> PeftAdapter:
    """The adapter in PEFT's form; refused unless it is a plain one with the same rank and alpha in every layer."""
    if not isinstance(config, dict):
        raise GraftError("adapter-broken", f"the config is a {type(config).__name__}", expected="keys", where=where)
    _require_plain_lora(config, where)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise GraftError("adapter-broken", f"r is {rank!r}", expected="a rank of 1 or more", where=where)
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < math.inf:
        raise GraftError("adapter-broken", f"lora_alpha is {alpha!r}", expected="a number above 0", where=where)
    state = _parse_peft_tensors(tensors, where)
    for name, tensor in state.items():
        _require_valid_factor(name, tensor, rank, where)
    return PeftAdapter(rank, float(alpha), state)


def load_peft_adapter(model: nn.Module, adapter: PeftAdapter) -> Gate:
    """Put it into the adapter that the model has, which must be of the same rank, alpha and layers, or add it as one.

    Nothing is changed unless all of it fits. Returns the gate: as it was, or closed if it is new.
    """
    present = find_lora_layers(model)
    if not present:
        plain = find_adaptable_layers(model, adapter.layers)
        shapes = {f"{name}.down": (adapter.rank, layer.in_features) for name, layer in plain.items()}
        shapes |= {f"{name}.up": (layer.out_features, adapter.rank) for name, layer in plain.items()}
        require_adapter_shapes(adapter.state, shapes)
        gate = add_adapter(model, adapter.layers, adapter.rank, adapter.alpha, seed=0)
    else:
        one = next(iter(present.values()))
        gate = one.gate
        if (one.rank, one.alpha) != (adapter.rank, adapter.alpha):
            found = f"rank {adapter.rank} and alpha {adapter.alpha:g}"
            raise GraftError("adapter-mismatch", found, expected=f"rank {one.rank} and alpha {one.alpha:g}")
    load_adapter_state(model, adapter.state)
    return gate


def _require_plain_lora(config: Mapping[str, object], where: str | Path) -> None:
    """Every key that we do not know must say "nothing": a variant that came after us is refused, not misread."""
    faults = [key for key, plain in _ALLOWED_PEFT_VALUES.items() if key in config and config[key] not in plain]
    faults += [
        key
        for key, value in config.items()
        if key not in _IGNORED_PEFT_KEYS and key not in _ALLOWED_PEFT_VALUES and value not in _DISABLED_VALUES
    ]
    if "peft_type" not in config or faults:
        found = ", ".join(f"{key} is {config[key]!r}" for key in faults) or "peft_type is not given"
        raise GraftError("adapter-variant", found, expected="a plain LORA with nothing else switched on", where=where)


def _parse_peft_tensors(tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors by our own names, in whole pairs."""
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _PEFT_TENSOR.fullmatch(name)
        if match is None:
            expected = f"only {_PEFT_PREFIX}LAYER.lora_A.weight and lora_B.weight"
            raise GraftError("adapter-variant", f"there is a tensor {name}", expected=expected, where=where)
        state[f"{match['layer']}.{_PEFT_SIDES[match['side']]}"] = tensor
    layers = {name.rpartition(".")[0] for name in state}
    halves = [
        f"{layer}.{side}" for layer in sorted(layers) for side in _PEFT_SIDES.values() if f"{layer}.{side}" not in state
    ]
    if halves or not layers:
        found = f"half of an adapter: {len(halves)} lacking, {halves[0]} first" if halves else "no tensors"
        raise GraftError("adapter-broken", found, expected="lora_A and lora_B for each layer", where=where)
    return state


def _require_valid_factor(name: str, tensor: Tensor, rank: int, where: str | Path) -> None:
    if tensor.dim() != 2 or not tensor.is_floating_point():
        found = f"{name} is {tensor.dtype} {list(tensor.shape)}"
        raise GraftError("adapter-broken", found, expected="a floating-point matrix", where=where)
    found_rank = tensor.shape[0] if name.endswith(".down") else tensor.shape[1]
    if found_rank != rank:
        raise GraftError(
            "adapter-mismatch", f"{name} has rank {found_rank}", expected=f"{rank}, as r says", where=where
        )
    if not bool(tensor.isfinite().all()):
        raise GraftError("adapter-broken", f"{name} holds NaN or infinity", expected="finite numbers", where=where)


ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
# Rank 64 on every layer of a body of half a billion weights has under 200 MB.
MAX_TENSORS_BYTES = 2 << 30


def write_peft_folder(folder: Path, model: nn.Module, *, base_name: str = "", overwrite: bool = False) -> None:
    """The model's adapter as a new folder; with `overwrite`, what was there is kept as `NAME.previous`."""
    config, tensors = to_peft(model, base_name)
    if not overwrite:
        require_output_path(folder)
    with atomic_write_folder(folder) as new:
        with atomic_write(new / ADAPTER_TENSORS_NAME) as stream:
            values = {name: TensorBytes.of(tensor.numpy()) for name, tensor in tensors.items()}
            write_safetensors(stream, values, {"format": "pt"})
        write_json(new / ADAPTER_CONFIG_NAME, config)


def read_peft_folder(folder: Path) -> PeftAdapter:
    """The adapter in a folder that voxgraft or PEFT wrote; refused unless it is one that we compute alike."""
    config = read_json(require_folder(folder) / ADAPTER_CONFIG_NAME, MAX_CONFIG_BYTES)
    path = folder / ADAPTER_TENSORS_NAME
    with open_checkpoint(path) as checkpoint:
        if checkpoint.format != "safetensors" or checkpoint.source.size > MAX_TENSORS_BYTES:
            found = f"a {checkpoint.format} file of {checkpoint.source.size:,} bytes"
            expected = f"safetensors of at most {MAX_TENSORS_BYTES:,}"
            raise GraftError("adapter-broken", found, expected=expected, where=path)
        bits = [info.name for info in checkpoint.tensors.values() if info.dtype not in ("F64", "F32", "F16", "BF16")]
        if bits:
            found = f"{bits[0]} is {checkpoint.info(bits[0]).dtype}"
            raise GraftError("adapter-broken", found, expected="F32, F16 or BF16", where=path)
        tensors = {name: torch.from_numpy(checkpoint.read(name)) for name in checkpoint.tensors}
    return from_peft(config, tensors, folder)
