"""A base's model out of its files, with its text rows grown where a graft asks for it, and back into a file.

The file's tensors are the model's, name by name and bit by bit. Knows no concrete family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from voxgraft.checkpoints.base import ByteSink
from voxgraft.checkpoints.load import iter_tensors
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, FileError
from voxgraft.core.files import atomic_write, is_file, is_folder, require_file
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.layers import init_empty_weights
from voxgraft.nn.rows import GrownLayer, grow_layers


def find_part_file(place: Path, names: tuple[str, ...]) -> Path:
    """The file itself, or the first of `names` that is in a folder."""
    if not is_folder(place):
        return require_file(place)
    for name in names:
        if is_file(place / name):
            return place / name
    found = f"none of {', '.join(names)} is in the folder" if len(names) > 1 else f"{names[0]} is not in the folder"
    raise FileError("base-file-missing", found, where=place)


DTYPE_FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


def load_model(
    family: Family,
    files: BaseFiles,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
) -> SpeechModel:
    """The base's model, frozen and silent of dropout. `dtype=None` keeps each tensor as it is stored.

    One tensor after the other goes to the device: in memory are the model and one tensor more.
    """
    with init_empty_weights():
        model = family.build_empty_model(files)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = {}
    for name, tensor in iter_tensors(files.checkpoint, shapes, dtype=dtype):
        if tensor.dtype not in DTYPE_FORMATS:  # with dtype=None a file may also hold integers, which no layer takes
            found = f"{name} is {str(tensor.dtype).removeprefix('torch.')}"
            raise CheckpointError("tensors-mismatch", found, expected="floating-point numbers", where=files.checkpoint)
        state[name] = tensor.to(device)
    # assign: the tensors of the file become the parameters themselves, without a copy.
    model.load_state_dict(state, strict=True, assign=True)
    return model.to(device).requires_grad_(False).eval()


def grow_model(model: SpeechModel, num_new: int) -> dict[str, GrownLayer]:
    """Give the text embedding and the text head of an opened base that many new rows, as parameters of their own."""
    return grow_layers(model, (model.text_embedding_name, model.text_head_name), num_new, model.spare_rows)


def list_base_parameters(model: SpeechModel, grafted: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Every parameter of the base that a loss can reach."""
    own = {id(value) for value in grafted.values()}
    return {
        name: value
        for name, value in model.named_parameters()
        if id(value) not in own and value.numel() and not name.startswith(model.unused_param_prefixes)
    }


def save_model(model: SpeechModel, path: Path) -> None:
    """Write the model as the original program reads it: upstream's names, whole or not at all.

    A name that ends in `.safetensors` gives that format, every other one a torch archive.
    """
    from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch

    state = model.state_dict()
    tensors = {}
    for name, tensor in state.items():
        if tensor.is_meta or tensor.dtype not in DTYPE_FORMATS:
            found = f"{name} is {'not loaded' if tensor.is_meta else str(tensor.dtype)}"
            raise CheckpointError("base-not-loaded", found, expected="floating-point numbers", where=path)
        # NumPy has no bfloat16: bytes of any format are taken through a view of uint8. One tensor at a time is copied.
        tensors[name] = TensorBytes(DTYPE_FORMATS[tensor.dtype], tuple(tensor.shape), partial(_tensor_bytes, tensor))
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with atomic_write(path) as stream, progress.progress_task(f"writing {path.name}", total) as advance:
        sink = ByteSink(stream, advance=advance)
        if path.suffix == ".safetensors":
            write_safetensors(sink, tensors, None)
        else:
            write_torch(sink, tensors)


def _tensor_bytes(tensor: Tensor) -> Iterator[memoryview]:
    yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


HALF_PRECISION_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(requested: str | None) -> str:
    """The device that was requested, if it exists; else CUDA where there is one."""
    if requested is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise ConfigError("device", f"device {requested!r}", expected="cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"device {requested!r}; this machine has {torch.cuda.device_count()} CUDA devices"
        raise ConfigError("device", found, expected="an existing device")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("device", f"device {requested!r}", expected="cpu, cuda or cuda:N")
    return requested


def choose_dtype(precision: str | None, device: str) -> torch.dtype:
    """The number format that a model computes in: the requested one, else what suits the device."""
    if precision is not None:
        return HALF_PRECISION_DTYPES.get(precision, torch.float32)
    if not device.startswith("cuda"):
        return torch.float32
    # Before Ampere (8.0) bfloat16 is emulated, and slow.
    return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
