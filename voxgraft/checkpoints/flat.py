"""All values of a tensor in their order, a bounded piece at a time; of two tensors side by side, piece by piece.

Where a torch archive states a checksum for exactly these bytes, it is checked when the last piece has been taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import RAW_DTYPES
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.checkpoints.torch_file import TorchCheckpoint

__all__ = ["iter_values", "pair_chunks"]

RawArray = NDArray[np.generic]


def iter_values(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[RawArray]:
    """The raw values. Each piece is good only until the next is asked for."""
    crc = 0
    stated = isinstance(checkpoint, TorchCheckpoint) and checkpoint.is_whole_record(info)
    for piece in checkpoint.iter_bytes(info):
        crc = zlib.crc32(piece, crc) if stated else 0
        yield np.frombuffer(piece, RAW_DTYPES[info.dtype])
    if stated and isinstance(checkpoint, TorchCheckpoint):
        checkpoint.verify_checksum(info.storage, crc)


def pair_chunks(ours: Iterator[RawArray], theirs: Iterator[RawArray]) -> Iterator[tuple[RawArray, RawArray]]:
    """Pieces of the same number of values of two tensors that have equally many, whatever their formats."""
    one: RawArray = np.empty(0, np.uint8)
    two: RawArray = one
    while True:
        one = one if len(one) else next(ours, one)
        two = two if len(two) else next(theirs, two)
        size = min(len(one), len(two))
        if not size:
            return
        yield one[:size], two[:size]
        one, two = one[size:], two[size:]
