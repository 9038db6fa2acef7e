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

__all__ = ["flat_values", "side_by_side"]

Raw = NDArray[np.generic]


def flat_values(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[Raw]:
    """The raw values. Each piece is good only until the next is asked for."""
    crc = 0
    stated = isinstance(checkpoint, TorchCheckpoint) and checkpoint.is_whole_record(info)
    for piece in checkpoint.bytes_of(info):
        crc = zlib.crc32(piece, crc) if stated else 0
        yield np.frombuffer(piece, RAW_DTYPES[info.dtype])
    if stated and isinstance(checkpoint, TorchCheckpoint):
        checkpoint.check_sum(info.storage, crc)


def side_by_side(ours: Iterator[Raw], theirs: Iterator[Raw]) -> Iterator[tuple[Raw, Raw]]:
    """Pieces of the same number of values of two tensors that have equally many, whatever their formats."""
    one: Raw = np.empty(0, np.uint8)
    two: Raw = one
    while True:
        one = one if len(one) else next(ours, one)
        two = two if len(two) else next(theirs, two)
        size = min(len(one), len(two))
        if not size:
            return
        yield one[:size], two[:size]
        one, two = one[size:], two[size:]
