"""Write checkpoints as a stream: safetensors, and torch archives that `torch.load(mmap=True)` can map.

Values come in chunks and torch is not imported, so writing a file of any size needs little memory.
Atomic writing is left to the caller (`files.atomic_write`).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import (
    BITS_ONLY_DTYPES,
    FLOAT_DTYPES,
    PREFIX_BYTES,
    RAW_DTYPES,
    TORCH_DTYPES,
    ByteSink,
    BytesLike,
    Scalar,
    as_sink,
    from_float32,
    item_bytes,
    row_major_strides,
)
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.checkpoints.pickles import STORAGE_DTYPES, UNTYPED_STORAGE, PickleDict, TorchTensor
from voxgraft.checkpoints.torch_file import (
    CENTRAL_HEADER,
    CENTRAL_SIGNATURE,
    END64_RECORD,
    END64_SIGNATURE,
    END_RECORD,
    END_SIGNATURE,
    LOCAL_HEADER,
    LOCAL_SIGNATURE,
    LOCATOR64_RECORD,
    LOCATOR64_SIGNATURE,
    MAX_UINT16,
    MAX_UINT32,
    ZIP64_EXTRA,
)
from voxgraft.core.errors import CheckpointError
from voxgraft.core.files import atomic_write


class _PickleWriter:
    """Collects the operations of a pickle of protocol 2. Texts and names that come again are recalled from the memo."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._memo: dict[tuple[str, str], int] = {}

    def value(self, value: Any) -> None:
        """Write a `PickleDict`, list, tuple, scalar or `TorchTensor`. The opcodes are those of `pickletools`."""
        if isinstance(value, TorchTensor):
            self._tensor(value)
        elif isinstance(value, PickleDict):
            if value.ordered:
                self._empty_ordered()
            else:
                self.parts.append(b"}")
            self.parts.append(b"(")
            for key, item in value.entries.items():
                self.value(key)
                self.value(item)
            self.parts.append(b"u")
            if value.state is not None:
                self.value(value.state)
                self.parts.append(b"b")
        elif isinstance(value, tuple | list):
            self.parts.append(b"(" if isinstance(value, tuple) else b"](")
            for item in value:
                self.value(item)
            self.parts.append(b"t" if isinstance(value, tuple) else b"e")
        elif value is None:
            self.parts.append(b"N")
        elif isinstance(value, bool):
            self.parts.append(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            # The shortest of 1, 2 and 4 bytes, else a long with its length in front.
            if 0 <= value < 1 << 8:
                data = b"K" + struct.pack("<B", value)
            elif 0 <= value < 1 << 16:
                data = b"M" + struct.pack("<H", value)
            elif -(1 << 31) <= value < 1 << 31:
                data = b"J" + struct.pack("<i", value)
            else:
                long = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                data = b"\x8a" + bytes([len(long)]) + long
            self.parts.append(data)
        elif isinstance(value, float):
            self.parts.append(b"G" + struct.pack(">d", value))
        else:
            # A lone surrogate cannot be refused here: it came out of a pickle, which may hold one.
            data = value.encode("utf-8", "surrogatepass")
            self._write_memoized("text", value, b"X" + struct.pack("<I", len(data)) + data)

    def _name(self, dotted: str) -> None:
        module, _, name = dotted.rpartition(".")
        self._write_memoized("name", dotted, f"c{module}\n{name}\n".encode())

    def _write_memoized(self, kind: str, text: str, operation: bytes) -> None:
        index = self._memo.get((kind, text))
        if index is not None:
            self.parts.append(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))
            return
        index = self._memo[kind, text] = len(self._memo)
        self.parts += [operation, b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)]

    def _empty_ordered(self) -> None:
        self._name("collections.OrderedDict")
        self.parts.append(b")R")

    def _tensor(self, tensor: TorchTensor) -> None:
        """A call of torch's rebuild function, inside a call of the one for parameters if it is one."""
        if tensor.parameter:
            self._name("torch._utils._rebuild_parameter")
            self.parts.append(b"(")
        untyped = tensor.storage_class == UNTYPED_STORAGE
        self._name("torch._utils._rebuild_tensor_v3" if untyped else "torch._utils._rebuild_tensor_v2")
        self.parts.append(b"((")
        self.value("storage")
        self._name(tensor.storage_class)
        for part in (tensor.storage, tensor.location, tensor.storage_items):
            self.value(part)
        self.parts.append(b"tQ")  # a persistent id: torch looks the storage up by it
        requires_grad = tensor.requires_grad and not tensor.parameter
        for value in (tensor.offset, tensor.shape, tensor.strides, requires_grad):
            self.value(value)
        self._empty_ordered()
        if untyped:
            self._name(f"torch.{TORCH_DTYPES[tensor.dtype]}")
        self.parts.append(b"tR")
        if tensor.parameter:
            self.value(tensor.requires_grad)
            self._empty_ordered()
            self.parts.append(b"tR")


# torch starts every record at a multiple of this, so that a mapped file gives aligned values.
ALIGNMENT = 64
# Checksum after the data (it is known only then); names are UTF-8.
ZIP_FLAGS = 0x0808
# The first day that a zip archive can name: the same tensors always give the same file.
ZIP_DATE = 0x21
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
    placed = list(order) or list(tensors)
    position = 0
    for name in placed:
        # A value that would start off its own size cannot be mapped: then the widest types go first.
        if position % item_bytes(tensors[name].dtype):
            placed = sorted(placed, key=lambda name: -item_bytes(tensors[name].dtype))
            break
        position += tensors[name].num_bytes
    offsets: dict[str, list[int]] = {}
    end = 0
    for name in placed:
        offsets[name] = [end, end + tensors[name].num_bytes]
        end = offsets[name][1]
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets[name]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)  # values start at a multiple of eight, so that a file can be mapped
    sink = as_sink(stream)
    sink.write(len(text).to_bytes(PREFIX_BYTES, "little") + text)
    for name in placed:
        _require_byte_count(tensors[name].num_bytes, sink.write_all(tensors[name].chunks()), name)


def write_torch(
    stream: IO[bytes] | ByteSink,
    tensors: Mapping[str, TensorBytes],
    *,
    wrapper: str | None = None,
    extras: Mapping[str, Scalar] | None = None,
) -> None:
    """A torch archive of tensors, each in a storage of its own; `extras` are saved next to a `wrapper`."""
    state = PickleDict(ordered=True)
    storages: dict[str, StorageBytes] = {}
    for index, (name, tensor) in enumerate(tensors.items()):
        count = tensor.num_bytes // item_bytes(tensor.dtype)
        place = (str(index), STORAGE_CLASSES[tensor.dtype], "cpu", count)
        state.entries[name] = TorchTensor(*place, tensor.dtype, 0, tensor.shape, row_major_strides(tensor.shape))
        storages[str(index)] = StorageBytes(tensor.num_bytes, tensor.chunks)
    tree = state if wrapper is None else PickleDict(entries={wrapper: state, **(extras or {})})
    write_torch_tree(as_sink(stream), tree, storages)


class StorageBytes(NamedTuple):
    """The bytes of one storage. `check` receives their CRC-32 after they have been written, and may raise."""

    num_bytes: int
    chunks: Callable[[], Iterable[BytesLike]]
    check: Callable[[int], None] = lambda _crc: None


def write_torch_tree(
    sink: ByteSink, tree: PickleDict, storages: Mapping[str, StorageBytes], folder: str = "archive/"
) -> None:
    """A torch archive of any tree that `_PickleWriter` takes; `storages` by the keys that its tensors name."""
    writer = _PickleWriter()
    writer.value(tree)
    pickle = b"\x80\x02" + b"".join(writer.parts) + b"."  # protocol 2, as torch.save writes it
    with ThreadPoolExecutor(1) as pool:
        archive = _ZipWriter(sink, pool)
        # The records of torch.save, in its order. `version` 3 is the file format of torch 1.6 and later.
        archive.add(folder + "data.pkl", StorageBytes(len(pickle), lambda: [pickle]))
        archive.add(folder + "byteorder", StorageBytes(6, lambda: [b"little"]))
        for key, storage in storages.items():
            archive.add(f"{folder}data/{key}", storage)
        archive.add(folder + "version", StorageBytes(2, lambda: [b"3\n"]))
        archive.finish()


class _ZipWriter:
    """Stored records, each aligned, then the directory."""

    def __init__(self, sink: ByteSink, pool: ThreadPoolExecutor) -> None:
        self._sink = sink
        self._pool = pool
        self._directory: list[bytes] = []

    def add(self, name: str, storage: StorageBytes) -> None:
        sink, size, header_at, name_bytes = self._sink, storage.num_bytes, self._sink.position, name.encode()
        large = size >= MAX_UINT32
        # The local header is padded so that the data after it starts at a multiple of ALIGNMENT. Sizes are 0 here, or
        # in the zip64 field: they follow the data, with the checksum.
        wide = struct.pack("<2H2Q", ZIP64_EXTRA, 16, 0, 0) if large else b""
        stated = MAX_UINT32 if large else 0
        padding = -(header_at + LOCAL_HEADER.size + len(name_bytes) + len(wide) + 4) % ALIGNMENT
        extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding  # as torch marks its own padding
        fields = (45 if large else 20, ZIP_FLAGS, 0, 0, ZIP_DATE, 0, stated, stated, len(name_bytes), len(extra))
        sink.write(LOCAL_HEADER.pack(LOCAL_SIGNATURE, *fields) + name_bytes + extra)
        crc = count = 0
        for chunk in storage.chunks():
            # Checksum and write of one chunk side by side: both release the GIL, and each takes a while.
            sum_up = self._pool.submit(zlib.crc32, chunk, crc)
            sink.write(chunk)
            crc = sum_up.result()
            count += len(chunk)
        _require_byte_count(size, count, name)
        storage.check(crc)
        sink.write(b"PK\x07\x08" + struct.pack("<IQQ" if large else "<III", crc, size, size))
        # The entry of the directory; what does not fit in 32 bits is in its zip64 field.
        wide = b"".join(struct.pack("<Q", value) for value in (size, size, header_at) if value >= MAX_UINT32)
        extra = struct.pack("<2H", ZIP64_EXTRA, len(wide)) + wide if wide else b""
        small, at = min(size, MAX_UINT32), min(header_at, MAX_UINT32)
        versions, sizes = (45, 45 if wide else 20), (crc, small, small, len(name_bytes), len(extra))
        entry = CENTRAL_HEADER.pack(CENTRAL_SIGNATURE, *versions, ZIP_FLAGS, 0, 0, ZIP_DATE, *sizes, 0, 0, 0, 0, at)
        self._directory.append(entry + name_bytes + extra)

    def finish(self) -> None:
        """The directory, its 64-bit end, and the classic end, whose fields are full where they are too small."""
        sink, start, count = self._sink, self._sink.position, len(self._directory)
        size = sink.write_all(self._directory)
        fields64 = (END64_RECORD.size - 12, 45, 45, 0, 0, count, count, size, start)
        end64 = END64_RECORD.pack(END64_SIGNATURE, *fields64)
        locator = LOCATOR64_RECORD.pack(LOCATOR64_SIGNATURE, 0, sink.position, 1)
        count, size, start = min(count, MAX_UINT16), min(size, MAX_UINT32), min(start, MAX_UINT32)
        sink.write(end64 + locator + END_RECORD.pack(END_SIGNATURE, 0, 0, count, count, size, start, 0))


def _require_byte_count(expected: int, found: int, name: str) -> None:
    if found != expected:
        raise ValueError(f"{name} was to have {expected} bytes and gave {found}")


# 20,000 rows of three tables, 4,096 wide, have under 1 GB.
MAX_ROWS_BYTES = 2 << 30


def write_rows_file(
    path: Path, tensors: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """Write rows by tensor name, whole or not at all. No rows at all is legal."""
    for name, rows in tensors.items():
        if rows.dtype != np.float32 or rows.ndim not in (1, 2) or not np.isfinite(rows).all():
            found = f"the rows of {name} are {rows.dtype} {list(rows.shape)}, or not finite"
            raise CheckpointError("rows-file", found, expected="finite float32 [rows, width] or [rows]", where=path)
    with atomic_write(path, overwrite=overwrite) as stream:
        write_safetensors(stream, {name: TensorBytes.of(rows, "F32") for name, rows in tensors.items()}, metadata)


def read_rows_file(path: Path) -> dict[str, NDArray[np.float32]]:
    """The rows by tensor name. The file's notes are the `metadata` of the checkpoint that it is."""
    with open_checkpoint(path) as checkpoint:
        odd = [info for info in checkpoint.tensors.values() if info.dtype != "F32" or len(info.shape) not in (1, 2)]
        if checkpoint.format != "safetensors" or odd or checkpoint.source.size > MAX_ROWS_BYTES:
            kind = f"{odd[0].name} is {odd[0].dtype} {list(odd[0].shape)}" if odd else f"a {checkpoint.format} file"
            raise CheckpointError("rows-file", kind, expected="safetensors with float32 rows", where=path)
        rows = {name: checkpoint.read(name).astype(np.float32, copy=False) for name in checkpoint.tensors}
        broken = next((name for name, values in rows.items() if not np.isfinite(values).all()), None)
        if broken is not None:
            raise CheckpointError("rows-file", f"the rows of {broken} are not finite", where=path)
        return rows
