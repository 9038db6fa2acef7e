"""Random tensors with the magnitudes of trained ones, a block at a time, the same for the same seed and name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Dtype = Literal["F32", "F16", "BF16"]
Blocks = Callable[[str, Shape, int], Iterator[NDArray[np.float32]]]
BLOCK_VALUES = 1 << 20
TABLE_DEVIATION = 0.04
WEIGHT_DEVIATION = 0.02
GAIN_DEVIATION = 0.1


@dataclass(frozen=True, slots=True)
class RandomSize:
    """What may be chosen about a random base; the rest follows from the family."""

    width: int
    layers: int
    pieces: int
    dtype: Dtype = "F32"
    sentencepiece: Literal["unigram", "bpe"] = "unigram"
    """Kind of tokenizer, for families whose tokenizer is a SentencePiece model."""


def random_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """The values of one tensor in order, as flat pieces: no tensor is ever whole in memory."""
    return _normal_blocks(name, shape, seed, _centre_and_deviation(name, len(shape)))


def lively_blocks(name: str, shape: Shape, seed: int) -> Iterator[NDArray[np.float32]]:
    """As `random_blocks`, with weights so large that different inputs come out of a deep network as different."""
    kind = name.rpartition(".")[2]
    if kind in ("weight_g", "var") or (len(shape) == 1 and kind in ("weight", "gamma")):
        return _normal_blocks(name, shape, seed, (1.0, GAIN_DEVIATION))
    fan = math.prod(shape[1:]) if len(shape) > 1 else 0
    return _normal_blocks(name, shape, seed, (0.0, fan**-0.5 if fan else WEIGHT_DEVIATION))


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


def _centre_and_deviation(name: str, rank: int) -> tuple[float, float]:
    """Gains lie around 1, everything else around 0; tables are wider than the weights behind them."""
    kind = name.rpartition(".")[2]
    if rank == 1 and kind in ("weight", "gamma"):
        return 1.0, WEIGHT_DEVIATION
    return 0.0, TABLE_DEVIATION if "emb" in name else WEIGHT_DEVIATION


@dataclass(frozen=True, slots=True)
class RandomMaker:
    """What a family tells about its random bases."""

    sizes: Mapping[str, RandomSize]
    checkpoint_name: str
    shapes: Callable[[RandomSize], dict[str, Shape]]
    write_beside: Callable[[Path, RandomSize], None]
    """Writes everything but the checkpoint."""
    blocks: Blocks = random_blocks
    """Name, shape and seed of one tensor to its values."""
    side_shapes: Callable[[RandomSize], Mapping[str, Mapping[str, Shape]]] = lambda _size: {}
    """The tensors of the other checkpoints in the folder, by file name: what front ends read."""
