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
