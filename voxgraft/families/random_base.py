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
from voxgraft.checkpoints.sink import Sink
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.errors import FileError
from voxgraft.families import family
from voxgraft.families.base import BaseFiles
from voxgraft.families.random_values import Blocks, Dtype, RandomMaker, RandomSize, Shape, lively_blocks
from voxgraft.files import is_folder, is_there, replacing, replacing_folder

SizeName = Literal["tiny", "small", "full"]


def make_random_base(
    family_name: str, folder: Path, *, size: SizeName | RandomSize = "tiny", seed: int = 0
) -> BaseFiles:
    """Make a base folder, whole or not at all. The same arguments give the same bytes."""
    made = family(family_name)
    maker = random_maker(family_name)
    chosen = maker.sizes[size] if isinstance(size, str) else size
    if is_there(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise FileError("file-exists", f"{folder.name} is there already and not empty", where=folder)
    if is_there(folder):
        folder.rmdir()
    with replacing_folder(folder) as building:
        maker.write_beside(building, chosen)
        for name, shapes in maker.side_shapes(chosen).items():
            side = {tensor: _tensor(tensor, shape, lively_blocks, "F32", seed) for tensor, shape in shapes.items()}
            _write_checkpoint(building / name, side)
        tensors = maker.shapes(chosen).items()
        own = {name: _tensor(name, shape, maker.blocks, chosen.dtype, seed) for name, shape in tensors}
        _write_checkpoint(building / maker.checkpoint_name, own)
    return made.files(folder)


def random_maker(family_name: str) -> RandomMaker:
    """How a family's random bases are made: its sizes by name, its tensors, its other files."""
    maker = import_module(f"voxgraft.families.{family(family_name).name}.random_base").MAKER
    assert isinstance(maker, RandomMaker)
    return maker


def _write_checkpoint(path: Path, tensors: dict[str, TensorBytes]) -> None:
    """The tensors in the format that the file's name stands for, made while they are written."""
    total = sum(tensor.num_bytes for tensor in tensors.values())
    with replacing(path) as stream, progress.task(f"writing {path.name}", total) as advance:
        sink = Sink(stream, advance=advance)
        if path.suffix == ".safetensors":
            write_safetensors(sink, tensors, None)
        else:
            write_torch(sink, tensors)


def _tensor(name: str, shape: Shape, blocks: Blocks, dtype: Dtype, seed: int) -> TensorBytes:
    def chunks() -> Iterator[bytes]:
        for block in blocks(name, shape, seed):
            yield from_float32(block, dtype).tobytes()

    return TensorBytes(dtype, shape, chunks)
