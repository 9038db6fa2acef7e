"""PEFT's folder on disk: `adapter_config.json` and `adapter_model.safetensors`, written whole or not at all.

What stands in them is the business of `nn/peft_format.py`. Needs torch, but not the package `peft`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from voxgraft.checkpoints import TensorBytes, open_checkpoint, write_safetensors
from voxgraft.errors import GraftError
from voxgraft.files import atomic_write, atomic_write_folder, read_json, require_folder, require_output_path, write_json
from voxgraft.nn.peft_format import PeftAdapter, from_peft, to_peft

ADAPTER_CONFIG_NAME, ADAPTER_TENSORS_NAME = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
MAX_TENSORS_BYTES = 2 << 30
"""Rank 64 on every layer of a body of half a billion weights has under 200 MB."""


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
