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
from voxgraft.checkpoints.sink import ByteSink, BytesLike
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.families.tensors import read_tensor_shapes, read_tensors
from voxgraft.faults import failpoint

__all__ = ["FileDigest", "count_tensor_bytes", "read_tensor_group", "write_hashed_bytes", "write_tensor_group"]

WRITE_CHUNK_BYTES = 8 << 20
MAX_UNHASHED_CHUNKS = 8
"""Pieces that may have been written and not hashed yet."""
SAFETENSORS_DTYPES: dict[torch.dtype, str] = {getattr(torch, name): stored for stored, name in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What every file of one save is written with."""

    pool: ThreadPoolExecutor
    """Of one thread, which hashes what is written in its order."""
    advance: Callable[[int], None] = lambda _amount: None


def write_tensor_group(path: Path, tensors: Mapping[str, Tensor], writing: WriteContext) -> FileDigest:
    """Write a new file of tensors, synced. On the way one tensor at a time is copied off the device."""
    stored = {name: _to_tensor_bytes(name, tensor) for name, tensor in tensors.items()}
    return _write_hashed_file(path, writing, lambda sink: write_safetensors(sink, stored))


def write_hashed_bytes(path: Path, data: bytes, writing: WriteContext) -> FileDigest:
    """Write a new file, synced."""
    return _write_hashed_file(path, writing, lambda sink: sink.write(data))


def read_tensor_group(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, as they were written, in memory of their own."""
    return read_tensors(path, read_tensor_shapes(path), dtype=None)


def count_tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the values take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class _HashingSink(ByteSink):
    """Hashes pieces in another thread while they are written. The pieces must stay as they are until `file_sum`."""

    def __init__(self, stream: IO[bytes], writing: WriteContext) -> None:
        super().__init__(stream, advance=writing.advance)
        self._pool = writing.pool
        self._sum = hashlib.sha256()
        self._pending_hashes: deque[Future[None]] = deque()

    def write(self, data: BytesLike) -> None:
        failpoint("save.write")
        self._pending_hashes.append(self._pool.submit(self._sum.update, data))
        super().write(data)
        if len(self._pending_hashes) > MAX_UNHASHED_CHUNKS:  # what waits is held in memory
            self._pending_hashes.popleft().result()

    def file_digest(self) -> FileDigest:
        while self._pending_hashes:
            self._pending_hashes.popleft().result()
        return FileDigest(self.position, self._sum.hexdigest())


def _write_hashed_file(path: Path, writing: WriteContext, write: Callable[[ByteSink], None]) -> FileDigest:
    failpoint("save.open")
    with path.open("xb") as stream:
        sink = _HashingSink(stream, writing)
        write(sink)
        stream.flush()
        failpoint("save.sync")
        os.fsync(stream.fileno())
        # What is in memory now would hide what the disk really holds from the read that verifies it.
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sink.file_digest()


def _to_tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.dtype not in SAFETENSORS_DTYPES:
        raise ValueError(f"{name} cannot be saved: {tensor.dtype}, {tensor.layout}, on {tensor.device}")

    def chunks() -> Iterator[memoryview]:
        if not tensor.numel():  # an empty tensor out of a file can have strides that torch will not view as bytes
            return
        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(flat), WRITE_CHUNK_BYTES):
            yield flat[start : start + WRITE_CHUNK_BYTES]

    return TensorBytes(SAFETENSORS_DTYPES[tensor.dtype], tuple(tensor.shape), chunks)
