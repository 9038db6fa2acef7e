"""Writing checkpoints as a stream: safetensors, and torch archives that `torch.load(mmap=True)` can map.

Values come in pieces, so that a file of any size needs little memory. Whole-or-absent is the caller's business
(`files.replacing`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints import zip_records as zips
from voxgraft.checkpoints.dtypes import BITS_ONLY_DTYPES, FLOAT_DTYPES, RAW_DTYPES, from_float32, item_bytes
from voxgraft.checkpoints.model import Scalar, row_major_strides
from voxgraft.checkpoints.pickle_writer import dump_pickle
from voxgraft.checkpoints.pickles import PickleDict
from voxgraft.checkpoints.safetensors_file import PREFIX_BYTES
from voxgraft.checkpoints.sink import ByteSink, BytesLike, as_sink
from voxgraft.checkpoints.torch_tensors import STORAGE_DTYPES, TorchStorage, TorchTensor

ALIGNMENT = 64
"""torch starts every record at a multiple of this, so that a mapped file gives aligned values."""
ZIP_FLAGS = 0x0808
"""Checksum after the data (it is known only then); names are UTF-8."""
ZIP_DATE = 0x21
"""The first day that a zip archive can name: the same tensors always give the same file."""
STORAGE_CLASSES = {dtype: kind for kind, dtype in STORAGE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor to write: what it is, and a function that gives its bytes piece by piece."""

    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[BytesLike]]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * item_bytes(self.dtype)

    @staticmethod
    def of(values: NDArray[Any], dtype: str | None = None) -> TensorBytes:
        """An array as it is, or float32 values rounded to F16 or BF16."""
        if dtype in FLOAT_DTYPES and values.dtype == np.float32:
            raw = from_float32(values, str(dtype))
        else:
            dtype = next(
                name for name, kind in RAW_DTYPES.items() if kind == values.dtype and name not in BITS_ONLY_DTYPES
            )
            raw = values
        return TensorBytes(str(dtype), values.shape, lambda: [np.ascontiguousarray(raw).tobytes()])


def write_safetensors(
    stream: IO[bytes] | ByteSink,
    tensors: Mapping[str, TensorBytes],
    metadata: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
) -> None:
    """A safetensors file. The header keeps the order of `tensors`; the values come in `order` (the same if empty)."""
    placed = _align_order(tensors, list(order) or list(tensors))
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for name in placed:
        offsets[name] = (end, end + tensors[name].num_bytes)
        end = offsets[name][1]
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": list(offsets[name])}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)
    sink = as_sink(stream)
    sink.write(len(text).to_bytes(PREFIX_BYTES, "little") + text)
    for name in placed:
        _require_byte_count(tensors[name].num_bytes, sink.write_all(tensors[name].chunks()), name)


def _align_order(tensors: Mapping[str, TensorBytes], order: list[str]) -> list[str]:
    """The given order, unless a value would then start off its own size: then the widest types go first."""
    position = 0
    for name in order:
        if position % item_bytes(tensors[name].dtype):
            return sorted(order, key=lambda name: -item_bytes(tensors[name].dtype))
        position += tensors[name].num_bytes
    return order


def write_torch(
    stream: IO[bytes] | ByteSink,
    tensors: Mapping[str, TensorBytes],
    *,
    wrapper: str | None = None,
    extras: Mapping[str, Scalar] | None = None,
) -> None:
    """A torch archive of tensors, each in a storage of its own; `list_other_model_tensors` stands next to a `wrapper`."""
    state = PickleDict(ordered=True)
    storages: dict[str, StorageBytes] = {}
    for index, (name, tensor) in enumerate(tensors.items()):
        count = tensor.num_bytes // item_bytes(tensor.dtype)
        storage = TorchStorage(str(index), STORAGE_CLASSES[tensor.dtype], "cpu", count)
        state.entries[name] = TorchTensor(storage, tensor.dtype, 0, tensor.shape, row_major_strides(tensor.shape))
        storages[storage.key] = StorageBytes(tensor.num_bytes, tensor.chunks)
    tree = state if wrapper is None else PickleDict(entries={wrapper: state, **(extras or {})})
    write_torch_tree(as_sink(stream), tree, storages)


@dataclass(frozen=True, slots=True)
class StorageBytes:
    """The bytes of one storage. `check` is given their CRC-32 when they have been written, and may refuse it."""

    num_bytes: int
    chunks: Callable[[], Iterable[BytesLike]]
    check: Callable[[int], None] = lambda _crc: None


def write_torch_tree(
    sink: ByteSink, tree: PickleDict, storages: Mapping[str, StorageBytes], folder: str = "archive/"
) -> None:
    """A torch archive of any tree that `dump_pickle` takes; `storages` by the keys that its tensors name."""
    with ThreadPoolExecutor(1) as pool:
        archive = _ZipWriter(sink, pool)
        archive.add(folder + "data.pkl", dump_pickle(tree))
        archive.add(folder + "byteorder", b"little")
        for key, storage in storages.items():
            archive.add_storage(f"{folder}data/{key}", storage)
        archive.add(folder + "version", b"3\n")
        archive.finish()


class _ZipWriter:
    """Stored records, each aligned, then the directory."""

    def __init__(self, sink: ByteSink, pool: ThreadPoolExecutor) -> None:
        self._sink = sink
        self._pool = pool
        self._directory: list[bytes] = []

    def add(self, name: str, data: bytes) -> None:
        self.add_storage(name, StorageBytes(len(data), lambda: [data]))

    def add_storage(self, name: str, storage: StorageBytes) -> None:
        sink, size, header_at = self._sink, storage.num_bytes, self._sink.position
        large = size >= zips.MAX_UINT32
        sink.write(_local_header(name.encode(), header_at, large=large))
        crc = count = 0
        for chunk in storage.chunks():
            # Checksum and write of one chunk side by side: both let other threads run, and each takes a while.
            sum_up = self._pool.submit(zlib.crc32, chunk, crc)
            sink.write(chunk)
            crc = sum_up.result()
            count += len(chunk)
        _require_byte_count(size, count, name)
        storage.check(crc)
        sink.write(b"PK\x07\x08" + struct.pack("<IQQ" if large else "<III", crc, size, size))
        self._directory.append(_central_entry(name.encode(), header_at, size, crc))

    def finish(self) -> None:
        sink, start = self._sink, self._sink.position
        size = sink.write_all(self._directory)
        count = len(self._directory)
        end64 = zips.END64_RECORD.pack(
            zips.END64_SIGNATURE, zips.END64_RECORD.size - 12, 45, 45, 0, 0, count, count, size, start
        )
        locator = zips.LOCATOR64_RECORD.pack(zips.LOCATOR64_SIGNATURE, 0, sink.position, 1)
        small_count, small_size, small_start = (
            min(count, zips.MAX_UINT16),
            min(size, zips.MAX_UINT32),
            min(start, zips.MAX_UINT32),
        )
        end = zips.END_RECORD.pack(zips.END_SIGNATURE, 0, 0, small_count, small_count, small_size, small_start, 0)
        sink.write(end64 + locator + end)


def _local_header(name: bytes, at: int, *, large: bool) -> bytes:
    """The header of a record, stretched so that the data after it starts at a multiple of ALIGNMENT."""
    wide = struct.pack("<2H2Q", zips.ZIP64_EXTRA, 16, 0, 0) if large else b""
    size = zips.MAX_UINT32 if large else 0
    before = at + zips.LOCAL_HEADER.size + len(name) + len(wide) + 4
    padding = -before % ALIGNMENT
    extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding
    version = 45 if large else 20
    fields = (version, ZIP_FLAGS, 0, 0, ZIP_DATE, 0, size, size, len(name), len(extra))
    return zips.LOCAL_HEADER.pack(zips.LOCAL_SIGNATURE, *fields) + name + extra


def _central_entry(name: bytes, header_at: int, size: int, crc: int) -> bytes:
    wide = b"".join(struct.pack("<Q", value) for value in (size, size, header_at) if value >= zips.MAX_UINT32)
    extra = struct.pack("<2H", zips.ZIP64_EXTRA, len(wide)) + wide if wide else b""
    small, at = min(size, zips.MAX_UINT32), min(header_at, zips.MAX_UINT32)
    fields = (
        45,
        45 if wide else 20,
        ZIP_FLAGS,
        0,
        0,
        ZIP_DATE,
        crc,
        small,
        small,
        len(name),
        len(extra),
        0,
        0,
        0,
        0,
        at,
    )
    return zips.CENTRAL_HEADER.pack(zips.CENTRAL_SIGNATURE, *fields) + name + extra


def _require_byte_count(expected: int, found: int, name: str) -> None:
    if found != expected:
        raise ValueError(f"{name} was to have {expected} bytes and gave {found}")
