"""A base's model out of its files, with its text rows grown where a graft asks for it, and back into a file.

The file's tensors are the model's, name by name and bit by bit. Knows no concrete family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from voxgraft import progress
from voxgraft.checkpoints.sink import ByteSink
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.errors import CheckpointError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.model import SpeechModel
from voxgraft.families.tensors import Shape, iter_tensors
from voxgraft.files import atomic_write
from voxgraft.nn.grown import GrownLayer, grow_layers
from voxgraft.nn.unfilled import init_empty_weights

__all__ = ["grow_model", "load_model", "save_model"]

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
    state = {name: tensor.to(device) for name, tensor in _iter_float_tensors(files.checkpoint, shapes, dtype)}
    model.load_state_dict(state, strict=True, assign=True)
    return model.to(device).requires_grad_(False).eval()


def grow_model(model: SpeechModel, num_new: int) -> dict[str, GrownLayer]:
    """Give the text embedding and the text head of an opened base that many new rows, as parameters of their own."""
    return grow_layers(model, (model.text_embedding_name, model.text_head_name), num_new, model.spare_rows)


def save_model(model: SpeechModel, path: Path) -> None:
    """Write the model as the stock program reads it: upstream's names, whole or not at all.

    A name that ends in `.safetensors` gives that format, every other one a torch archive.
    """
    state = model.state_dict()
    tensors = {name: _to_tensor_bytes(name, tensor, path) for name, tensor in state.items()}
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with atomic_write(path) as stream, progress.progress_task(f"writing {path.name}", total) as advance:
        sink = ByteSink(stream, advance=advance)
        if path.suffix == ".safetensors":
            write_safetensors(sink, tensors, None)
        else:
            write_torch(sink, tensors)


def _iter_float_tensors(
    path: Path, shapes: Mapping[str, Shape], dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """Kept as they are stored, tensors may also be whole numbers, which no layer computes with."""
    for name, tensor in iter_tensors(path, shapes, dtype=dtype):
        if tensor.dtype not in DTYPE_FORMATS:
            found = f"{name} holds {str(tensor.dtype).removeprefix('torch.')}"
            raise CheckpointError("tensors-mismatch", found, expected="floating-point numbers", where=path)
        yield name, tensor


def _to_tensor_bytes(name: str, tensor: Tensor, path: Path) -> TensorBytes:
    if tensor.is_meta or tensor.dtype not in DTYPE_FORMATS:
        found = f"{name} is {'not loaded' if tensor.is_meta else str(tensor.dtype)}"
        raise CheckpointError("base-not-loaded", found, expected="floating-point numbers", where=path)

    def chunks() -> Iterator[memoryview]:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data

    return TensorBytes(DTYPE_FORMATS[tensor.dtype], tuple(tensor.shape), chunks)
