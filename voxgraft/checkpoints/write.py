"""Write checkpoints as a stream: safetensors, torch archives that `torch.load(mmap=True)` can map, and grown copies.

Values come in chunks and torch is not imported, so writing a file of any size needs little memory. The writers of the
two formats leave atomic writing to the caller (`files.atomic_write`). `grow_checkpoint` writes a copy with more text
rows in which everything else has the same bits, complete or not at all; `verify_growth` compares input and output.
Computing the new rows is left to `graft.rows`.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
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
    ByteSource,
    Checkpoint,
    CheckpointExtra,
    Scalar,
    TensorInfo,
    from_float32,
    item_bytes,
    pair_chunks,
    row_major_strides,
    to_float32,
)
from voxgraft.checkpoints.load import open_checkpoint
from voxgraft.checkpoints.pickles import (
    STORAGE_DTYPES,
    UNTYPED_STORAGE,
    PickleDict,
    TorchTensor,
    is_plain_tree,
    is_small_scalar,
)
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
    TorchCheckpoint,
)
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError
from voxgraft.core.files import atomic_write, path_exists, require_disk_space


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
    sink = stream if isinstance(stream, ByteSink) else ByteSink(stream)
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
        storage_fields = (str(index), STORAGE_CLASSES[tensor.dtype], "cpu", count)
        state.entries[name] = TorchTensor(
            *storage_fields, tensor.dtype, 0, tensor.shape, row_major_strides(tensor.shape)
        )
        storages[str(index)] = StorageBytes(tensor.num_bytes, tensor.chunks)
    tree = state if wrapper is None else PickleDict(entries={wrapper: state, **(extras or {})})
    sink = stream if isinstance(stream, ByteSink) else ByteSink(stream)
    write_torch_tree(sink, tree, storages)


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
        sink, size, header_offset, name_bytes = self._sink, storage.num_bytes, self._sink.position, name.encode()
        large = size >= MAX_UINT32
        # The local header is padded so that the data after it starts at a multiple of ALIGNMENT. Sizes are 0 here, or
        # in the zip64 field: they follow the data, with the checksum.
        wide = struct.pack("<2H2Q", ZIP64_EXTRA, 16, 0, 0) if large else b""
        marker = MAX_UINT32 if large else 0
        padding = -(header_offset + LOCAL_HEADER.size + len(name_bytes) + len(wide) + 4) % ALIGNMENT
        extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding  # as torch marks its own padding
        fields = (45 if large else 20, ZIP_FLAGS, 0, 0, ZIP_DATE, 0, marker, marker, len(name_bytes), len(extra))
        sink.write(LOCAL_HEADER.pack(LOCAL_SIGNATURE, *fields) + name_bytes + extra)
        crc = count = 0
        for chunk in storage.chunks():
            # Checksum and write of one chunk side by side: both release the GIL, and each takes a while.
            checksum_job = self._pool.submit(zlib.crc32, chunk, crc)
            sink.write(chunk)
            crc = checksum_job.result()
            count += len(chunk)
        _require_byte_count(size, count, name)
        storage.check(crc)
        sink.write(b"PK\x07\x08" + struct.pack("<IQQ" if large else "<III", crc, size, size))
        # The entry of the directory; what does not fit in 32 bits is in its zip64 field.
        wide = b"".join(struct.pack("<Q", value) for value in (size, size, header_offset) if value >= MAX_UINT32)
        extra = struct.pack("<2H", ZIP64_EXTRA, len(wide)) + wide if wide else b""
        small, offset_field = min(size, MAX_UINT32), min(header_offset, MAX_UINT32)
        versions, sizes = (45, 45 if wide else 20), (crc, small, small, len(name_bytes), len(extra))
        entry = CENTRAL_HEADER.pack(
            CENTRAL_SIGNATURE, *versions, ZIP_FLAGS, 0, 0, ZIP_DATE, *sizes, 0, 0, 0, 0, offset_field
        )
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
        raise ValueError(f"{name} should have {expected} bytes, but has {found}")


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
        invalid_tensors = [
            info for info in checkpoint.tensors.values() if info.dtype != "F32" or len(info.shape) not in (1, 2)
        ]
        if checkpoint.format != "safetensors" or invalid_tensors or checkpoint.source.size > MAX_ROWS_BYTES:
            kind = (
                f"{invalid_tensors[0].name} is {invalid_tensors[0].dtype} {list(invalid_tensors[0].shape)}"
                if invalid_tensors
                else f"a {checkpoint.format} file"
            )
            raise CheckpointError("rows-file", kind, expected="safetensors with float32 rows", where=path)
        rows = {name: checkpoint.read(name).astype(np.float32, copy=False) for name in checkpoint.tensors}
        broken = next((name for name, values in rows.items() if not np.isfinite(values).all()), None)
        if broken is not None:
            raise CheckpointError("rows-file", f"the rows of {broken} are not finite", where=path)
        return rows


BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """New rows for one tensor: float32 [rows, width], or [rows] for a bias."""

    base_rows: int
    spare_rows: int
    new_rows: NDArray[np.float32]


GrowthPlan = dict[str, TableGrowth]
"""The tensors that grow, by name."""


class TensorGrowth(NamedTuple):
    """One tensor of a plan that fits: its place in the file and its new rows."""

    info: TensorInfo
    table: TableGrowth

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after growth."""
        return (self.info.shape[0] + len(self.table.new_rows), *self.info.shape[1:])

    def chunks(self, checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
        """The bytes of the grown tensor: base rows, new rows, spare rows."""
        # A spare row stays last, as in the base: no text uses it.
        yield from checkpoint.iter_bytes(self.info.rows(0, self.table.base_rows))
        yield from self.new_bytes()
        yield from checkpoint.iter_bytes(self.info.rows(self.table.base_rows, self.info.shape[0]))

    def new_bytes(self) -> Iterator[bytes]:
        """The bytes of the new rows alone, in the tensor's own type."""
        for start in range(0, len(self.table.new_rows), BLOCK_ROWS):
            yield from_float32(self.table.new_rows[start : start + BLOCK_ROWS], self.info.dtype).tobytes()

    def overlaps(self, other: TensorInfo) -> bool:
        """Whether another tensor is a view of some of the same bytes."""
        own = self.info
        same = own.storage == other.storage and min(own.span_bytes, other.span_bytes) > 0
        return same and own.start < other.start + other.span_bytes and other.start < own.start + own.span_bytes


def fit_growth_plan(checkpoint: Checkpoint, plan: GrowthPlan) -> dict[str, TensorGrowth]:
    """The plan for this checkpoint, with every name of a grown tensor, aliases too; an error if it does not fit."""
    planned = {name: _fit_table(checkpoint, name, table) for name, table in plan.items()}
    counts = {name: len(growth.table.new_rows) for name, growth in planned.items()}
    if len(set(counts.values())) > 1:
        found = "; ".join(f"{name} gets {count} new rows" for name, count in counts.items())
        raise _growth_error("growth-uneven", found, checkpoint, expected="the same number for each")
    for one, two in itertools.combinations(planned.values(), 2):
        same_rows = one.table.base_rows == two.table.base_rows and np.array_equal(
            one.table.new_rows, two.table.new_rows
        )
        if one.overlaps(two.info) and not (one.info.same_bytes(two.info) and same_rows):
            found = f"{one.info.name} and {two.info.name} are one tensor, but would get different new rows"
            raise _growth_error("growth-tied", found, checkpoint)
    grown = dict(planned)
    for name, info in checkpoint.tensors.items():
        for growth in planned.values() if name not in planned else ():
            if info.same_bytes(growth.info):  # a second name for the same values grows along
                grown[name] = TensorGrowth(info, growth.table)
            elif growth.overlaps(info):
                found = f"{name} {list(info.shape)} is a view of a part of {growth.info.name}"
                raise _growth_error("growth-view", found, checkpoint)
    return grown


def _fit_table(checkpoint: Checkpoint, name: str, table: TableGrowth) -> TensorGrowth:
    info = checkpoint.info(name)
    new = table.new_rows
    if info.dtype not in FLOAT_DTYPES or len(info.shape) not in (1, 2):
        found = f"{name} is {info.dtype} {list(info.shape)}"
        raise _growth_error(
            "growth-table",
            found,
            checkpoint,
            expected=f"a text embedding, a text head or its bias, in {' or '.join(FLOAT_DTYPES)}",
        )
    rows = table.base_rows + table.spare_rows
    if min(table.base_rows, table.spare_rows) < 0 or info.shape[0] != rows:
        found = f"{name} has {info.shape[0]:,} rows"
        expected = f"{rows:,} rows ({table.base_rows:,} tokens and {table.spare_rows} unused rows)"
        raise _growth_error("growth-rows", found, checkpoint, expected=expected)
    if new.dtype != np.float32 or new.ndim != len(info.shape) or new.shape[1:] != info.shape[1:]:
        found = f"the new rows of {name} are {new.dtype} {list(new.shape)}"
        raise _growth_error(
            "growth-table", found, checkpoint, expected=f"float32 [rows{''.join(f', {n}' for n in info.shape[1:])}]"
        )
    for start in range(0, len(new), BLOCK_ROWS):
        # Checked after the conversion: a finite float32 can overflow in F16.
        block = to_float32(from_float32(new[start : start + BLOCK_ROWS], info.dtype), info.dtype)
        if not np.isfinite(block).all():
            row = start + int(np.argmin(np.isfinite(block).reshape(len(block), -1).all(axis=1)))
            raise _growth_error(
                "growth-not-finite", f"new row {row} of {name} is not finite as {info.dtype}", checkpoint
            )
    return TensorGrowth(info, table)


def _growth_error(code: str, found: str, checkpoint: Checkpoint, expected: str = "") -> CheckpointError:
    return CheckpointError(code, found, expected=expected, where=checkpoint.path)


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """What `grow_checkpoint` did. The hashes are None unless they were requested."""

    input: str
    output: str
    input_sha256: str | None
    output_sha256: str | None
    tensors_copied: int
    grown: tuple[dict[str, Any], ...]
    """Tensors with more rows: `name`, `dtype`, `old_shape` and `new_shape`."""
    left_out: tuple[CheckpointExtra, ...]
    """What the output does not have: optimizer, scheduler, random states. They do not fit an extended table."""
    bytes_written: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grow_checkpoint(
    checkpoint: Checkpoint, plan: GrowthPlan, output: Path, *, overwrite: bool = False, hashed: bool = False
) -> GrowthReport:
    """Write `checkpoint` with the plan's new rows to `output`. `verify_growth` proves the result."""
    growths = fit_growth_plan(checkpoint, plan)
    # Bytes to write by storage, or by tensor where there are no storages: aliases are written once.
    sizes: dict[str, int] = {}
    tensors: dict[str, TensorBytes] = {}
    for name, info in checkpoint.tensors.items():
        if name in growths:
            chunks = partial(growths[name].chunks, checkpoint)
            tensors[name] = TensorBytes(info.dtype, growths[name].shape, chunks)
            sizes[f"grown {info.storage} {info.start}"] = tensors[name].num_bytes
        else:
            tensors[name] = TensorBytes(info.dtype, info.shape, partial(checkpoint.iter_bytes, info))
            if isinstance(checkpoint, TorchCheckpoint):
                sizes[f"storage {info.storage}"] = checkpoint.get_record(info.storage).size
            else:
                sizes[f"tensor {name}"] = info.num_bytes
    size = sum(sizes.values())
    check_output_path(checkpoint, output, size)
    with (
        _hash_in_background(checkpoint.path, hashed) as input_hash,
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=hashed, advance=advance)
        if isinstance(checkpoint, TorchCheckpoint):
            _write_grown_torch(sink, checkpoint, growths, tensors)
        else:
            order = sorted(tensors, key=lambda name: checkpoint.tensors[name].start)
            write_safetensors(sink, tensors, checkpoint.metadata, order)
        input_sha256 = input_hash.result() if input_hash else None
        checkpoint.source.check_unchanged()
    return GrowthReport(
        input=str(checkpoint.path),
        output=str(output),
        input_sha256=input_sha256,
        output_sha256=sink.sha256,
        tensors_copied=len(checkpoint.tensors) - len(growths),
        grown=tuple(
            {"name": name, "dtype": one.info.dtype, "old_shape": one.info.shape, "new_shape": one.shape}
            for name, one in growths.items()
        ),
        left_out=tuple(extra for extra in checkpoint.extras if not extra.kept),
        bytes_written=sink.position,
    )


def check_output_path(checkpoint: Checkpoint, output: Path, size: int) -> None:
    """Refuse the input itself as a place to write to, and a disk that is too small."""
    if path_exists(output) and output.samefile(checkpoint.path):
        raise CheckpointError("growth-onto-input", f"{output.name} is the input itself", where=output)
    require_disk_space(output.absolute().parent, size, output.name, where=output)


def _write_grown_torch(
    sink: ByteSink,
    checkpoint: TorchCheckpoint,
    growths: Mapping[str, TensorGrowth],
    grown: Mapping[str, TensorBytes],
) -> None:
    """The same dictionaries in the same order, with the new tensors, and without what does not fit them any more."""
    storages: dict[str, StorageBytes] = {}
    # New key of each storage. A grown tensor gets one of its own, shared by its aliases, which start at the same byte.
    keys: dict[tuple[str, int | None], str] = {}
    tensors: dict[str, TorchTensor] = {}

    def verified_chunks(growth: TensorGrowth) -> Iterable[bytes | memoryview]:
        # The new bytes get a checksum of their own, so the old ones are verified before they are used.
        record, crc = checkpoint.get_record(growth.info.storage), 0
        for chunk in checkpoint.source.chunks(record.start, record.size):
            crc = zlib.crc32(chunk, crc)
        checkpoint.verify_checksum(growth.info.storage, crc)
        return growth.chunks(checkpoint)

    for name, tensor in checkpoint.torch_tensors.items():
        growth = growths.get(name)
        storage_key = (tensor.storage, checkpoint.tensors[name].start if growth else None)
        key = keys.setdefault(storage_key, str(len(keys)))
        if growth:
            shape = growth.shape
            tensors[name] = replace(
                tensor,
                storage=key,
                storage_items=math.prod(shape),
                offset=0,
                shape=shape,
                strides=row_major_strides(shape),
            )
            storages.setdefault(key, StorageBytes(grown[name].num_bytes, partial(verified_chunks, growth)))
        else:
            tensors[name] = replace(tensor, storage=key)
            record = checkpoint.get_record(tensor.storage)
            chunks = partial(checkpoint.source.chunks, record.start, record.size)
            check = partial(checkpoint.verify_checksum, tensor.storage)
            storages.setdefault(key, StorageBytes(record.size, chunks, check))
    old = checkpoint.state_dict
    tree = _copy_dictionary(old, tensors)
    # `_metadata` (module versions) is kept where it is plain; other attributes of the dictionary are not.
    if isinstance(old.state, PickleDict) and set(old.state.entries) == {"_metadata"}:
        tree.state = old.state if is_plain_tree(old.state.entries["_metadata"]) else None
    if checkpoint.wrapper is not None:
        tree = _copy_dictionary(checkpoint.archive.tree, {checkpoint.wrapper: tree})
    write_torch_tree(sink, tree, storages, checkpoint.archive.folder)


def _copy_dictionary(old: PickleDict, replaced: Mapping[str, Any]) -> PickleDict:
    new = PickleDict(ordered=old.ordered)
    for key, node in old.entries.items():
        if key in replaced:
            new.entries[key] = replaced[key]
        elif isinstance(key, str) and is_small_scalar(node):
            new.entries[key] = node
    return new


@contextmanager
def _hash_in_background(path: Path, hashed: bool) -> Iterator[Future[str] | None]:
    """Hash the input in a thread of its own while the block runs; given up if the block fails."""
    if not hashed:
        yield None
        return
    stop = threading.Event()

    def compute() -> str:
        digest, source = sha256(), ByteSource(path)
        try:
            for chunk in source.chunks(0, source.size):
                digest.update(chunk)
                if stop.is_set():
                    break
        finally:
            source.close()
        return digest.hexdigest()

    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(compute)
        except BaseException:
            stop.set()
            raise


class GrowthProof(NamedTuple):
    """What was compared and found equal."""

    tensors_identical: int
    """Tensors that did not grow, by name (aliases count)."""
    tensors_grown: int
    rows_identical: int
    """Old rows of the grown tensors, the spare ones among them."""
    rows_new: int
    """New rows of the grown tensors that hold exactly the plan's values in the file's type."""
    bytes_compared: int

    def to_json(self) -> dict[str, int]:
        return self._asdict()


def verify_growth(old: Checkpoint, new: Checkpoint, plan: GrowthPlan) -> GrowthProof:
    """Prove that `new` is `old` with exactly the plan's rows; an error that names the first difference."""
    growths = fit_growth_plan(old, plan)
    # Format, wrapper, notes, names in their order, the plain values beside them, and which names share values.
    pairs: Mapping[str, tuple[object, object]] = {
        "format": (old.format, new.format),
        "wrapper": (old.wrapper, new.wrapper),
        "metadata": (old.metadata, new.metadata),
        "names": (list(old.tensors), list(new.tensors)),
        "values other than tensors": (
            [(extra.name, repr(extra.value)) for extra in old.extras if extra.kept],
            [(extra.name, repr(extra.value)) for extra in new.extras],
        ),
    }
    for what, (was, is_now) in pairs.items():
        if was != is_now:
            found = f"the {what} differ: {is_now!s:.80}"
            raise _growth_error("growth-differs", found, new, expected=f"{was!s:.80}")
    groups = _alias_groups(new)
    for name, group in _alias_groups(old).items():
        if groups[name] != group:
            found = f"{name} shares its values with {groups[name]}"
            raise _growth_error("growth-differs", found, new, expected=group)
    compared: dict[tuple[object, ...], int] = {}
    for name, info in old.tensors.items():
        growth, now = growths.get(name), new.tensors[name]
        shape = growth.shape if growth else info.shape
        if (now.dtype, now.shape) != (info.dtype, shape):
            found = f"{name} is {now.dtype} {list(now.shape)}"
            raise _growth_error("growth-differs", found, new, expected=f"{info.dtype} {list(shape)}")
        location = (info.storage, info.start, info.shape, info.strides, info.dtype)
        if location in compared:  # an alias
            continue
        if growth is None:
            compared[location] = _compare_streams(old.iter_bytes(info), new.iter_bytes(now), new, name)
            continue
        base, last = growth.table.base_rows, growth.table.base_rows + len(growth.table.new_rows)
        spare = info.rows(base, info.shape[0])
        compared[location] = (
            _compare_streams(old.iter_bytes(info.rows(0, base)), new.iter_bytes(now.rows(0, base)), new, name)
            + _compare_streams(growth.new_bytes(), new.iter_bytes(now.rows(base, last)), new, f"{name} (new rows)")
            + _compare_streams(old.iter_bytes(spare), new.iter_bytes(now.rows(last, now.shape[0])), new, name)
        )
    return GrowthProof(
        tensors_identical=len(old.tensors) - len(growths),
        tensors_grown=len(growths),
        rows_identical=sum(growth.info.shape[0] for growth in growths.values()),
        rows_new=sum(len(growth.table.new_rows) for growth in growths.values()),
        bytes_compared=sum(compared.values()),
    )


def _alias_groups(checkpoint: Checkpoint) -> dict[str, str]:
    """For each name the first name at the same position."""
    first: dict[tuple[object, ...], str] = {}
    found: dict[str, str] = {}
    for name, info in checkpoint.tensors.items():
        location = (info.storage, info.start, info.strides) if info.storage and info.num_values else (name,)
        found[name] = first.setdefault(location, name)
    return found


def _compare_streams(
    was: Iterable[bytes | memoryview], now: Iterable[bytes | memoryview], new: Checkpoint, name: str
) -> int:
    """The number of bytes, all equal, of two streams that may be cut into chunks differently."""
    count = 0
    left, right = ((np.frombuffer(chunk, np.uint8) for chunk in stream) for stream in (was, now))
    for one, two in pair_chunks(left, right):
        if len(one) != len(two):
            found = f"{name} has {count:,} bytes in one file and more in the other"
            raise _growth_error("growth-differs", found, new)
        different = one != two
        if different.any():
            found = f"{name} differs at byte {count + int(different.argmax()):,}"
            raise _growth_error("growth-differs", found, new)
        count += len(one)
    return count
