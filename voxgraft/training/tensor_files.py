"""Tensors of any kind into a safetensors file and out again, bit for bit; written, hashed and counted in one pass.

Whole-or-absent is the caller's business. Reading goes through the strict reader in `checkpoints/`.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from voxgraft.checkpoints.fingerprint import TORCH_DTYPES
from voxgraft.checkpoints.sink import Bytes, Sink
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.families.tensors import read_tensors, stored_shapes
from voxgraft.faults import crossing

__all__ = ["FileSum", "num_bytes", "read_group", "write_bytes", "write_group"]

CHUNK_BYTES = 8 << 20
MAX_WAITING = 8
"""Pieces that may have been written and not hashed yet."""
FORMATS: dict[torch.dtype, str] = {getattr(torch, name): stored for stored, name in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Writing:
    """What every file of one save is written with."""

    pool: ThreadPoolExecutor
    """Of one thread, which hashes what is written in its order."""
    advance: Callable[[int], None] = lambda _amount: None


def write_group(path: Path, tensors: Mapping[str, Tensor], writing: Writing) -> FileSum:
    """Write a new file of tensors, synced. On the way one tensor at a time is copied off the device."""
    stored = {name: _tensor_bytes(name, tensor) for name, tensor in tensors.items()}
    return _written(path, writing, lambda sink: write_safetensors(sink, stored))


def write_bytes(path: Path, data: bytes, writing: Writing) -> FileSum:
    """Write a new file, synced."""
    return _written(path, writing, lambda sink: sink.write(data))


def read_group(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, as they were written, in memory of their own."""
    return read_tensors(path, stored_shapes(path), dtype=None)


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the values take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class _HashingSink(Sink):
    """Hashes pieces in another thread while they are written. The pieces must stay as they are until `file_sum`."""

    def __init__(self, stream: IO[bytes], writing: Writing) -> None:
        super().__init__(stream, advance=writing.advance)
        self._pool = writing.pool
        self._sum = hashlib.sha256()
        self._waiting: deque[Future[None]] = deque()

    def write(self, data: Bytes) -> None:
        crossing("save.write")
        self._waiting.append(self._pool.submit(self._sum.update, data))
        super().write(data)
        if len(self._waiting) > MAX_WAITING:  # what waits is held in memory
            self._waiting.popleft().result()

    def file_sum(self) -> FileSum:
        while self._waiting:
            self._waiting.popleft().result()
        return FileSum(self.position, self._sum.hexdigest())


def _written(path: Path, writing: Writing, write: Callable[[Sink], None]) -> FileSum:
    crossing("save.open")
    with path.open("xb") as stream:
        sink = _HashingSink(stream, writing)
        write(sink)
        stream.flush()
        crossing("save.sync")
        os.fsync(stream.fileno())
        # What is in memory now would hide what the disk really holds from the read that verifies it.
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sink.file_sum()


def _tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.dtype not in FORMATS:
        raise ValueError(f"{name} cannot be saved: {tensor.dtype}, {tensor.layout}, on {tensor.device}")

    def chunks() -> Iterator[memoryview]:
        if not tensor.numel():  # an empty tensor out of a file can have strides that torch will not view as bytes
            return
        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(flat), CHUNK_BYTES):
            yield flat[start : start + CHUNK_BYTES]

    return TensorBytes(FORMATS[tensor.dtype], tuple(tensor.shape), chunks)
