"""A base's model out of its files, with its text rows grown where a graft asks for it, and back into a file.

The file's tensors are the model's, name by name and bit by bit. Knows no concrete family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voxgraft.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from voxgraft.checkpoints.base import ByteSink
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError
from voxgraft.core.files import atomic_write, is_file, is_folder, require_file
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.layers import init_empty_weights
from voxgraft.nn.rows import GrownLayer, grow_layers

Shape = tuple[int, ...]
FLOAT_FORMATS = ("F64", "F32", "F16", "BF16")
"""Formats whose values may be rounded or widened to another floating-point type."""
BIT_VIEWS = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
"""Formats that NumPy only carries as bits."""
MAX_LISTED_MISMATCHES = 10
"""Misfits that the error names; the rest are counted."""


def read_tensors(
    path: Path, shapes: Mapping[str, Shape], prefix: str = "", dtype: torch.dtype | None = torch.float32
) -> dict[str, Tensor]:
    """The tensors that `shapes` names, in its order and under its names; in the file `prefix` stands before each.

    All that are missing or of another shape are refused in one error, before any value is read; what else the file
    holds is left alone. `dtype=None` keeps each tensor as it is stored. In memory: the result and one tensor more.
    """
    found = dict(iter_tensors(path, shapes, prefix, dtype))
    return {name: found[name] for name in shapes}


def iter_tensors(
    path: Path, shapes: Mapping[str, Shape], prefix: str = "", dtype: torch.dtype | None = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """As `read_tensors`, one at a time and in the order of the file, for moving each to a device at once.

    Every name and shape is checked before the first one is given. Each tensor is the caller's own copy.
    """
    with open_checkpoint(path) as checkpoint:
        _require_matching_tensors(checkpoint, shapes, prefix, floats_only=dtype is not None)
        infos = {name: checkpoint.tensors[prefix + name] for name in shapes}
        total = sum(info.num_bytes for info in infos.values())
        with progress.progress_task(f"reading {path.name}", total) as advance:
            for name, info in sorted(infos.items(), key=lambda item: item[1].start):
                tensor = _read_tensor(checkpoint, info, dtype)
                yield name, tensor
                del tensor  # else it would stay in memory while the next one is read
                advance(info.num_bytes)
        checkpoint.source.check_unchanged()


def read_tensor_shapes(path: Path, prefix: str = "") -> dict[str, Shape]:
    """The shape of every tensor whose name starts with `prefix`, by the rest of its name. No values are read."""
    with open_checkpoint(path) as checkpoint:
        matching = {name: info for name, info in checkpoint.tensors.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): info.shape for name, info in matching.items()}


def read_stored_tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """One tensor of an opened checkpoint, in the type in which it is stored."""
    return _read_tensor(checkpoint, checkpoint.tensors[name], None)


def find_part_file(place: Path, names: tuple[str, ...]) -> Path:
    """The file itself, or the first of `names` that is in a folder."""
    if not is_folder(place):
        return require_file(place)
    for name in names:
        if is_file(place / name):
            return place / name
    found = f"none of {', '.join(names)} is in the folder" if len(names) > 1 else f"{names[0]} is not in the folder"
    raise FileError("base-file-missing", found, where=place)


def _require_matching_tensors(
    checkpoint: Checkpoint, shapes: Mapping[str, Shape], prefix: str, *, floats_only: bool
) -> None:
    misfits = list(_iter_mismatches(checkpoint, shapes, prefix, floats_only=floats_only))
    if misfits:
        more = f"; and {len(misfits) - MAX_LISTED_MISMATCHES} more" if len(misfits) > MAX_LISTED_MISMATCHES else ""
        found = (
            f"{len(misfits)} of {len(shapes)} tensors do not fit: {'; '.join(misfits[:MAX_LISTED_MISMATCHES])}{more}"
        )
        expected = "every tensor of the model, in its own shape"
        raise CheckpointError("tensors-mismatch", found, expected=expected, where=checkpoint.path)


def _iter_mismatches(
    checkpoint: Checkpoint, shapes: Mapping[str, Shape], prefix: str, *, floats_only: bool
) -> Iterator[str]:
    for name, shape in shapes.items():
        info = checkpoint.tensors.get(prefix + name)
        if info is None:
            yield f"{prefix}{name} {list(shape)} is missing"
        elif info.shape != tuple(shape):
            yield f"{prefix}{name} is {list(info.shape)}, not {list(shape)}"
        elif floats_only and info.dtype not in FLOAT_FORMATS:
            yield f"{prefix}{name} holds {info.dtype}, not floating-point numbers"


def _read_tensor(checkpoint: Checkpoint, info: TensorInfo, dtype: torch.dtype | None) -> Tensor:
    raw = checkpoint.read(info.name, raw=True)
    if info.dtype in BIT_VIEWS:
        signed = np.dtype(f"i{raw.dtype.itemsize}")
        tensor = torch.from_numpy(raw.view(signed)).view(BIT_VIEWS[info.dtype])
    else:
        tensor = torch.from_numpy(raw)
    return tensor if dtype is None else tensor.to(dtype)


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
