"""Torch tensors out of checkpoint files, name by name and bit by bit. The rest of this package needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voxgraft.checkpoints.base import ALL_FLOAT_DTYPES, BITS_ONLY_DTYPES, TORCH_DTYPES, Checkpoint, Shape
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError

# Formats that NumPy only carries as bits.
BIT_VIEWS: dict[str, torch.dtype] = {name: getattr(torch, TORCH_DTYPES[name]) for name in BITS_ONLY_DTYPES}
# Misfits that the error names; the rest are counted.
MAX_LISTED_MISMATCHES = 10


def read_tensors(
    path: Path, shapes: Mapping[str, Shape], prefix: str = "", dtype: torch.dtype | None = torch.float32
) -> dict[str, Tensor]:
    """The tensors that `shapes` names, in its order and under its names; in the file each name starts with `prefix`.

    All that are missing or of another shape are refused in one error, before any value is read; what else the file
    holds is left alone. `dtype=None` keeps each tensor as it is stored. In memory: the result and one tensor more.
    """
    found = dict(iter_tensors(path, shapes, prefix, dtype))
    return {name: found[name] for name in shapes}


def iter_tensors(
    path: Path, shapes: Mapping[str, Shape], prefix: str = "", dtype: torch.dtype | None = torch.float32
) -> Iterator[tuple[str, Tensor]]:
    """As `read_tensors`, one at a time and in the order of the file, for moving each to a device at once.

    Every name and shape is checked before the first tensor is read. Each tensor is the caller's own copy.
    """
    with open_checkpoint(path) as checkpoint:
        misfits = []
        for name, shape in shapes.items():
            info = checkpoint.tensors.get(prefix + name)
            if info is None:
                misfits.append(f"{prefix}{name} {list(shape)} is missing")
            elif info.shape != tuple(shape):
                misfits.append(f"{prefix}{name} is {list(info.shape)}, not {list(shape)}")
            elif dtype is not None and info.dtype not in ALL_FLOAT_DTYPES:
                misfits.append(f"{prefix}{name} is {info.dtype}, not floating point")
        if misfits:
            more = f"; and {len(misfits) - MAX_LISTED_MISMATCHES} more" if len(misfits) > MAX_LISTED_MISMATCHES else ""
            listed = "; ".join(misfits[:MAX_LISTED_MISMATCHES]) + more
            found = f"{len(misfits)} of {len(shapes)} tensors do not fit: {listed}"
            expected = "every tensor of the model, in its own shape"
            raise CheckpointError("tensors-mismatch", found, expected=expected, where=checkpoint.path)
        infos = {name: checkpoint.tensors[prefix + name] for name in shapes}
        total = sum(info.num_bytes for info in infos.values())
        with progress.progress_task(f"reading {path.name}", total) as advance:
            for name, info in sorted(infos.items(), key=lambda item: item[1].start):
                tensor = read_stored_tensor(checkpoint, info.name)
                tensor = tensor if dtype is None else tensor.to(dtype)
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
    dtype, raw = checkpoint.tensors[name].dtype, checkpoint.read(name, raw=True)
    if dtype not in BIT_VIEWS:
        return torch.from_numpy(raw)
    # torch takes no unsigned integers of 16 bits from NumPy in every version: the bits go through a signed type.
    return torch.from_numpy(raw.view(np.dtype(f"i{raw.dtype.itemsize}"))).view(BIT_VIEWS[dtype])
