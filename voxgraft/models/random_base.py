"""Bases of random weights in the published formats, of any size: for tests, demonstrations and measurements.

The tokenizers are real ones, learnt from the built-in texts; the weights know nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import ByteSink, from_float32
from voxgraft.checkpoints.write import TensorBytes, write_safetensors, write_torch
from voxgraft.core import progress
from voxgraft.core.errors import FileError
from voxgraft.core.files import atomic_write, atomic_write_folder, is_folder, path_exists
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles

Shape = tuple[int, ...]
RandomDtype = Literal["F32", "F16", "BF16"]
BlockGenerator = Callable[[str, Shape, int], Iterator[NDArray[np.float32]]]
BLOCK_VALUES = 1 << 20
EMBEDDING_STD = 0.04
WEIGHT_STD = 0.02
GAIN_STD = 0.1


@dataclass(frozen=True, slots=True)
class RandomBaseSize:
    """What may be chosen about a random base; the rest follows from the family."""

    width: int
    layers: int
    pieces: int
    dtype: RandomDtype = "F32"
    sentencepiece: Literal["unigram", "bpe"] = "unigram"
    """Kind of tokenizer, for families whose tokenizer is a SentencePiece model."""


def random_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """The values of one tensor in order, as flat pieces: no tensor is ever whole in memory."""
    return _normal_blocks(name, shape, seed, _mean_and_std(name, len(shape)))


def fan_in_scaled_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """As `random_blocks`, with weights so large that different inputs come out of a deep network as different."""
    kind = name.rpartition(".")[2]
    if kind in ("weight_g", "var") or (len(shape) == 1 and kind in ("weight", "gamma")):
        return _normal_blocks(name, shape, seed, (1.0, GAIN_STD))
    fan = math.prod(shape[1:]) if len(shape) > 1 else 0
    return _normal_blocks(name, shape, seed, (0.0, fan**-0.5 if fan else WEIGHT_STD))


def _normal_blocks(
    name: str, shape: Shape, seed: int, centre_and_deviation: tuple[float, float]
) -> Iterator[NDArray[np.float32]]:
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    centre, deviation = centre_and_deviation
    for start in range(0, math.prod(shape), BLOCK_VALUES):
        count = min(BLOCK_VALUES, math.prod(shape) - start)
        values = generator.standard_normal(count, dtype=np.float32)
        values *= np.float32(deviation)
        values += np.float32(centre)
        yield values


def _mean_and_std(name: str, rank: int) -> tuple[float, float]:
    """Gains lie around 1, everything else around 0; tables are wider than the weights behind them."""
    kind = name.rpartition(".")[2]
    if rank == 1 and kind in ("weight", "gamma"):
        return 1.0, WEIGHT_STD
    return 0.0, EMBEDDING_STD if "emb" in name else WEIGHT_STD


@dataclass(frozen=True, slots=True)
class RandomBaseSpec:
    """What a family tells about its random bases."""

    sizes: Mapping[str, RandomBaseSize]
    checkpoint_name: str
    shapes: Callable[[RandomBaseSize], dict[str, Shape]]
    write_side_files: Callable[[Path, RandomBaseSize], None]
    """Writes everything but the checkpoint."""
    blocks: BlockGenerator = random_blocks
    """Name, shape and seed of one tensor to its values."""
    side_shapes: Callable[[RandomBaseSize], Mapping[str, Mapping[str, Shape]]] = lambda _size: {}
    """The tensors of the other checkpoints in the folder, by file name: what front ends read."""


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
    maker = import_module(f"voxgraft.models.{get_family(family_name).name}.random_base").MAKER
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
