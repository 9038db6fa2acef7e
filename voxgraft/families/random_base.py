"""Bases of random weights in the published formats, of any size: for tests, demonstrations and measurements.

The tokenizers are real ones, learnt from the built-in texts; the weights know nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal

from voxgraft import progress
from voxgraft.checkpoints.dtypes import from_float32
from voxgraft.checkpoints.sink import ByteSink
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.errors import FileError
from voxgraft.families import get_family
from voxgraft.families.base import BaseFiles
from voxgraft.families.random_values import (
    BlockGenerator,
    RandomBaseSize,
    RandomBaseSpec,
    RandomDtype,
    Shape,
    fan_in_scaled_blocks,
)
from voxgraft.files import atomic_write, atomic_write_folder, is_folder, path_exists

RandomSizeName = Literal["tiny", "small", "full"]


def make_random_base(
    family_name: str, folder: Path, *, size: RandomSizeName | RandomBaseSize = "tiny", seed: int = 0
) -> BaseFiles:
    """Make a base folder, whole or not at all. The same arguments give the same bytes."""
    made = get_family(family_name)
    maker = get_random_base_spec(family_name)
    chosen = maker.sizes[size] if isinstance(size, str) else size
    if path_exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise FileError("file-exists", f"{folder.name} is there already and not empty", where=folder)
    if path_exists(folder):
        folder.rmdir()
    with atomic_write_folder(folder) as building:
        maker.write_side_files(building, chosen)
        for name, shapes in maker.side_shapes(chosen).items():
            side = {
                tensor: _random_tensor_bytes(tensor, shape, fan_in_scaled_blocks, "F32", seed)
                for tensor, shape in shapes.items()
            }
            _write_checkpoint(building / name, side)
        tensors = maker.shapes(chosen).items()
        own = {name: _random_tensor_bytes(name, shape, maker.blocks, chosen.dtype, seed) for name, shape in tensors}
        _write_checkpoint(building / maker.checkpoint_name, own)
    return made.files(folder)


def get_random_base_spec(family_name: str) -> RandomBaseSpec:
    """How a family's random bases are made: its sizes by name, its tensors, its other files."""
    maker = import_module(f"voxgraft.families.{get_family(family_name).name}.random_base").MAKER
    assert isinstance(maker, RandomBaseSpec)
    return maker


def _write_checkpoint(path: Path, tensors: dict[str, TensorBytes]) -> None:
    """The tensors in the format that the file's name stands for, made while they are written."""
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with atomic_write(path) as stream, progress.progress_task(f"writing {path.name}", total) as advance:
        sink = ByteSink(stream, advance=advance)
        if path.suffix == ".safetensors":
            write_safetensors(sink, tensors, None)
        else:
            write_torch(sink, tensors)


def _random_tensor_bytes(name: str, shape: Shape, blocks: BlockGenerator, dtype: RandomDtype, seed: int) -> TensorBytes:
    def chunks() -> Iterator[bytes]:
        for block in blocks(name, shape, seed):
            yield from_float32(block, dtype).tobytes()

    return TensorBytes(dtype, shape, chunks)
