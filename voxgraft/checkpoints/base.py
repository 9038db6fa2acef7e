"""What every checkpoint is, whatever its file format: named tensors at positions in a file, read in chunks.

Also here: number formats, reading and writing bytes, digests of tensors, and the safetensors format. Torch files are in
`torch_file`; `load.open_checkpoint` detects the format.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError
from voxgraft.core.files import parse_json, require_file

# By safetensors' name: the NumPy type that holds the bits, and torch's name.
_DTYPES = {
    "F64": ("<f8", "float64"),
    "F32": ("<f4", "float32"),
    "F16": ("<f2", "float16"),
    "BF16": ("<u2", "bfloat16"),
    "F8_E4M3": ("u1", "float8_e4m3fn"),
    "F8_E5M2": ("u1", "float8_e5m2"),
    "I64": ("<i8", "int64"),
    "I32": ("<i4", "int32"),
    "I16": ("<i2", "int16"),
    "I8": ("i1", "int8"),
    "U64": ("<u8", "uint64"),
    "U32": ("<u4", "uint32"),
    "U16": ("<u2", "uint16"),
    "U8": ("u1", "uint8"),
    "BOOL": ("?", "bool"),
    "C64": ("<c8", "complex64"),
}
RAW_DTYPES: dict[str, np.dtype[np.generic]] = {name: np.dtype(bits) for name, (bits, _) in _DTYPES.items()}
TORCH_DTYPES = {name: torch_name for name, (_, torch_name) in _DTYPES.items()}

# Formats that NumPy does not have: here their values are only bits.
BITS_ONLY_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2")

# Formats that are read as float32, and the only ones that a table of rows may have.
FLOAT_DTYPES = ("F32", "F16", "BF16")
# All that layers compute with.
ALL_FLOAT_DTYPES = (*FLOAT_DTYPES, "F64")


def item_bytes(dtype: str) -> int:
    """Bytes of one value."""
    return RAW_DTYPES[dtype].itemsize


def to_float32(raw: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Raw values as float32 where the format is one of FLOATS (exact for all three); others as they are."""
    if dtype == "F16":
        return raw.astype(np.float32)
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw


def from_float32(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """Finite float32 values as raw values of one of FLOATS, rounded to nearest, ties to even."""
    values = np.ascontiguousarray(values, dtype="<f4")
    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):  # too large becomes infinite, and the caller refuses that
            return values.astype("<f2")
    if dtype == "BF16":
        bits = values.view(np.uint32)
        # Half of the dropped part, plus one when the kept part is odd, carries exactly the values that round up.
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return ((bits + half) >> np.uint32(16)).astype("<u2")
    raise ValueError(f"a table of rows cannot be stored as {dtype}")


# Large enough for the speed of the disk, small enough that growing a file of any size needs little memory. It is a
# multiple of eight, so that no value is split between two chunks.
CHUNK_BYTES = 1 << 20


class ByteSource:
    """A file's bytes by position. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = require_file(path)
        try:
            self._stream = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
            self._status = os.fstat(self._stream.fileno())
        except OSError as error:
            raise _read_error(path, error) from None
        self.size = self._status.st_size

    def close(self) -> None:
        self._stream.close()

    def read(self, start: int, size: int) -> bytes:
        """Exactly `size` bytes from `start`."""
        buffer = bytearray(size)
        self.fill(start, memoryview(buffer))
        return bytes(buffer)

    def fill(self, start: int, view: memoryview) -> None:
        """Fill the whole of `view` from `start`."""
        done = 0
        try:
            self._stream.seek(start)
            while done < len(view):
                count = self._stream.readinto(view[done:])
                if not count:
                    found = f"the file ends at byte {start + done:,} while {start + len(view):,} were being read"
                    raise CheckpointError("checkpoint-truncated", found, where=self.path)
                done += count
        except OSError as error:
            raise _read_error(self.path, error) from None

    def chunks(self, start: int, size: int) -> Iterator[memoryview]:
        """`size` bytes from `start`, a piece at a time. Each piece is good only until the next is requested."""
        buffer = memoryview(bytearray(min(size, CHUNK_BYTES)))
        end = start + size
        while start < end:
            view = buffer[: end - start]
            self.fill(start, view)
            start += len(view)
            yield view

    def check_unchanged(self) -> None:
        """Refuse a file that somebody wrote to while it was open here."""
        now = os.fstat(self._stream.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise CheckpointError("checkpoint-changed", f"{self.path.name} changed while it was read", where=self.path)


def _read_error(path: Path, error: OSError) -> FileError:
    return FileError("file-unreadable", f"{path.name}: {error.strerror or error}", where=path)


Shape = tuple[int, ...]
CheckpointFormat = Literal["safetensors", "torch-zip", "torch-legacy"]
Scalar = None | bool | int | float | str
# Limits of what a header may state. NumPy 1 allows 32 dimensions.
MAX_RANK = 32
MAX_VALUES = 1 << 48
# A tensor whose strides repeat a few stored values may not unfold to more than this.
MAX_EXPANDED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor and the place of its values: from byte `start` of the file, `strides` counted in values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...]
    storage: str = ""
    """Key of the torch storage that it is a view of; empty in safetensors, where no two tensors share bytes."""
    stored: str = ""
    """The number format in the file, where values are converted when they are read: F64 as F32. Empty: `dtype`."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of its values, written one after another."""
        return self.num_values * item_bytes(self.dtype)

    @property
    def span_bytes(self) -> int:
        """Bytes of the file from its first value to its last."""
        return span_values(self.shape, self.strides) * item_bytes(self.stored or self.dtype)

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.num_values == 0
            expected *= size
        return True

    def rows(self, start: int, stop: int) -> TensorInfo:
        """The same tensor cut down to some of its rows."""
        if not (self.shape and 0 <= start <= stop <= self.shape[0]):
            raise IndexError(f"rows {start}:{stop} of {self.name} with shape {list(self.shape)}")
        first = self.start + start * self.strides[0] * item_bytes(self.stored or self.dtype)
        return replace(self, shape=(stop - start, *self.shape[1:]), start=first)

    def same_bytes(self, other: TensorInfo) -> bool:
        """Whether two names refer to the same tensor."""
        return self.start == other.start and replace(self, name=other.name) == other


@dataclass(frozen=True, slots=True)
class CheckpointExtra:
    """Something in a checkpoint that is no tensor of the model: `kept` says whether an extended file still has it."""

    name: str
    description: str
    kept: bool
    value: Scalar = None


class Checkpoint:
    """An open checkpoint. Nothing is read before it is requested. Close it, or use it in a `with`."""

    def __init__(
        self,
        source: ByteSource,
        kind: CheckpointFormat,
        tensors: Mapping[str, TensorInfo],
        *,
        wrapper: str | None = None,
        extras: tuple[CheckpointExtra, ...] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.format = kind
        self.tensors = tensors
        self.wrapper = wrapper
        self.extras = extras
        self.metadata = metadata
        """The file's own notes (safetensors `__metadata__`); None where there are none."""

    @property
    def path(self) -> Path:
        return self.source.path

    def info(self, name: str) -> TensorInfo:
        """The tensor of that name; an error with the nearest names if there is none."""
        if name in self.tensors:
            return self.tensors[name]
        suggestions = difflib.get_close_matches(name, self.tensors, n=3, cutoff=0.5)
        found = f"no tensor {name} among {len(self.tensors)}" + (
            f"; the nearest are {', '.join(suggestions)}" if suggestions else ""
        )
        raise CheckpointError("tensor-missing", found, where=self.path)

    def read(self, name: str, *, raw: bool = False) -> NDArray[np.generic]:
        """The whole tensor: float32 if it is kept as F32, F16 or BF16. `raw` gives the bits as they are stored."""
        info = self.info(name)
        return self._values(info) if raw else to_float32(self._values(info), info.dtype)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Some rows of a tensor, as `read` gives them."""
        info = self.info(name).rows(start, stop)
        return to_float32(self._values(info), info.dtype)

    def raw(self, name: str) -> Iterator[memoryview]:
        """The bytes of a tensor's values, in order. Each piece is good only until the next is requested."""
        return self.iter_bytes(self.info(name))

    def iter_bytes(self, info: TensorInfo) -> Iterator[memoryview]:
        """As `raw`, for a tensor or for some of its rows (`TensorInfo.rows`)."""
        if info.contiguous and not info.stored:
            yield from self.source.chunks(info.start, info.num_bytes)
        elif info.contiguous:
            stored = RAW_DTYPES[info.stored]
            for piece in self.source.chunks(info.start, info.num_values * stored.itemsize):
                yield memoryview(_converted(np.frombuffer(piece, stored), info).tobytes())
        else:
            yield memoryview(self._values(info).tobytes())

    def _values(self, info: TensorInfo) -> NDArray[np.generic]:
        dtype = RAW_DTYPES[info.stored or info.dtype]
        if info.contiguous:
            values = np.empty(info.shape, dtype)
            if info.num_values:
                self.source.fill(info.start, values.reshape(-1).view(np.uint8).data)
            return _converted(values, info)
        if info.num_bytes > max(info.span_bytes, MAX_EXPANDED_BYTES):
            found = f"{info.name} needs {info.num_bytes:,} bytes, but only {info.span_bytes:,} are stored"
            raise CheckpointError("tensor-shape", found, where=self.path)
        stored = np.frombuffer(self.source.read(info.start, info.span_bytes), dtype)
        # The stride of a dimension of one is never used and may be any number.
        pairs = zip(info.shape, info.strides, strict=True)
        strides = tuple(0 if size == 1 else stride * dtype.itemsize for size, stride in pairs)
        return _converted(np.ascontiguousarray(as_strided(stored, info.shape, strides)), info)

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _converted(values: NDArray[np.generic], info: TensorInfo) -> NDArray[np.generic]:
    """Values as they are stored in the format that the tensor states; what is too large for it becomes infinite."""
    if not info.stored:
        return values
    with np.errstate(over="ignore"):
        return values.astype(RAW_DTYPES[info.dtype])


def parse_shape(value: object) -> tuple[int, ...] | None:
    """The value as a shape, if it is a list of sizes that a tensor can have."""
    if not isinstance(value, list | tuple) or len(value) > MAX_RANK:
        return None
    if not all(type(size) is int and size >= 0 for size in value):
        return None
    # The empty dimensions are left out, since NumPy refuses an empty array whose other sizes are absurd.
    return tuple(value) if math.prod(size for size in value if size) <= MAX_VALUES else None


def span_values(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Values from the first to the last that a view touches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor whose values lie one after another."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def pair_chunks(
    first_stream: Iterator[NDArray[np.generic]], second_stream: Iterator[NDArray[np.generic]]
) -> Iterator[tuple[NDArray[np.generic], NDArray[np.generic]]]:
    """Chunks of equal length of two streams that are cut differently. If one is longer, a last pair has its rest."""
    first_chunk: NDArray[np.generic] = np.empty(0, np.uint8)
    second_chunk = first_chunk
    while True:
        first_chunk = first_chunk if len(first_chunk) else next(first_stream, first_chunk)
        second_chunk = second_chunk if len(second_chunk) else next(second_stream, second_chunk)
        size = min(len(first_chunk), len(second_chunk))
        if not size:
            if len(first_chunk) or len(second_chunk):
                yield first_chunk, second_chunk
            return
        yield first_chunk[:size], second_chunk[:size]
        first_chunk, second_chunk = first_chunk[size:], second_chunk[size:]


BytesLike = bytes | bytearray | memoryview


class ByteSink:
    """A stream that is only ever added to."""

    def __init__(
        self, stream: IO[bytes], *, hashed: bool = False, advance: Callable[[int], None] | None = None
    ) -> None:
        self._stream = stream
        self._digest = hashlib.sha256() if hashed else None
        self._advance = advance
        self.position = 0

    def write(self, data: BytesLike) -> None:
        self._stream.write(data)
        if self._digest is not None:
            self._digest.update(data)
        if self._advance is not None:
            self._advance(len(data))
        self.position += len(data)

    def write_all(self, chunks: Iterable[BytesLike]) -> int:
        """Write piece by piece; the number of bytes."""
        start = self.position
        for chunk in chunks:
            self.write(chunk)
        return self.position - start

    @property
    def sha256(self) -> str | None:
        """Hash of everything written, if it was requested."""
        return self._digest.hexdigest() if self._digest is not None else None


# Bits of the exponent: a value in which all of them are set is NaN or infinite.
EXPONENT_MASKS = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}


def tensor_digests(
    checkpoint: Checkpoint, names: Iterable[str], not_finite: dict[str, int] | None = None
) -> dict[str, str]:
    """The digest of each tensor. Values are read a piece at a time, in the order of the file.

    `not_finite` receives the number of NaN and infinite values of every tensor that has any.
    """
    infos = sorted((checkpoint.info(name) for name in names), key=lambda info: info.start)
    total = sum(info.num_bytes for info in infos)
    digests: dict[str, str] = {}
    with progress.progress_task(f"hashing {checkpoint.path.name}", total) as advance:
        for info in infos:
            # Type and shape are part of the digest: equal bytes in another form are another tensor.
            digest = hashlib.sha256(f"{TORCH_DTYPES[info.dtype]} {list(info.shape)}\n".encode())
            for piece in checkpoint.iter_bytes(info):
                digest.update(piece)
                if not_finite is not None and info.dtype in EXPONENT_MASKS:
                    # On the bits, since NumPy has no bfloat16. Chunks end between values: their size divides by eight.
                    form, mask = EXPONENT_MASKS[info.dtype]
                    bits = np.frombuffer(piece, form)
                    if count := int(np.count_nonzero((bits & bits.dtype.type(mask)) == mask)):
                        not_finite[info.name] = not_finite.get(info.name, 0) + count
                advance(len(piece))
            digests[info.name] = digest.hexdigest()
    checkpoint.source.check_unchanged()
    return digests


def combine_digests(digests: Mapping[str, str]) -> str:
    """One hash over all digests, in the order of the names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


PREFIX_BYTES = 8
# A header of 10,000 tensors has about 1 MB. More would only serve to fill memory.
MAX_HEADER_BYTES = 16 << 20


def read_safetensors(source: ByteSource) -> Checkpoint:
    """The checkpoint in a file that looks like safetensors; an error for anything that is not exactly right.

    The safetensors library gives neither byte positions, which streaming growth needs, nor our error codes.
    """

    def error(code: str, found: str, expected: str = "") -> CheckpointError:
        return CheckpointError(code, found, expected=expected, where=source.path)

    # Layout: length of the header (8 bytes, little-endian), the header as JSON, then all values without gaps.
    if source.size < PREFIX_BYTES + 2:
        raise error("checkpoint-truncated", f"the file has only {source.size} bytes")
    length = int.from_bytes(source.read(0, PREFIX_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise error(
            "safetensors-header", f"the file states a header of {length:,} bytes", f"at most {MAX_HEADER_BYTES:,}"
        )
    if PREFIX_BYTES + length > source.size:
        raise error("checkpoint-truncated", f"the file has {source.size:,} bytes, its header alone needs {length:,}")
    text = source.read(PREFIX_BYTES, length)
    if not text.startswith(b"{"):
        raise error("safetensors-header", f"the header starts with {text[:8]!r}", "{")
    try:
        header: dict[str, Any] = parse_json(text.decode("utf-8"), source.path)
    except UnicodeDecodeError as broken:
        raise error("safetensors-header", f"byte {broken.start} of the header is not UTF-8") from None
    except FileError as broken:
        code = "safetensors-duplicate" if broken.code == "json-duplicate-key" else "safetensors-header"
        raise error(code, f"the header: {broken.finding.found}") from None
    metadata = header.pop("__metadata__", None)
    texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not texts:
        raise error("safetensors-metadata", f"__metadata__ is {_short_repr(metadata)}", "keys with strings as values")
    data_start = PREFIX_BYTES + length
    tensors: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        label = _short_repr(name)
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            keys = f"has {', '.join(entry) or 'nothing'}" if isinstance(entry, dict) else f"is {_short_repr(entry)}"
            raise error("safetensors-entry", f"the entry of {label} {keys}", "dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], parse_shape(entry["shape"]), entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in RAW_DTYPES:
            raise error("tensor-dtype", f"{label} has dtype {_short_repr(dtype)}", f"one of {', '.join(RAW_DTYPES)}")
        if shape is None:
            raise error("tensor-shape", f"{label} has shape {_short_repr(entry['shape'])}")
        numbers = isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets)
        if not numbers or not 0 <= offsets[0] <= offsets[1]:
            raise error("safetensors-offsets", f"{label} has offsets {_short_repr(offsets)}", "[begin, end]")
        begin, end = offsets
        info = tensors[name] = TensorInfo(name, dtype, shape, data_start + begin, row_major_strides(shape))
        if end - begin != info.num_bytes:
            expected = f"{info.num_bytes:,} for {dtype} {list(shape)}"
            raise error("safetensors-offsets", f"{label} has {end - begin:,} bytes", expected)
    # Every byte after the header must belong to exactly one tensor.
    end = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.num_bytes)):
        if info.start != end:
            fault = "overlaps the tensor before it" if info.start < end else "leaves a gap before it"
            found = f"{_short_repr(info.name)} starts at {info.start - data_start:,} and {fault}"
            raise error("safetensors-offsets", found, f"{end - data_start:,}")
        end += info.num_bytes
    if end > source.size:
        raise error("checkpoint-truncated", f"the file has {source.size:,} bytes, its tensors need {end:,}")
    if end < source.size:
        raise error("safetensors-offsets", f"{source.size - end:,} bytes follow the last tensor", "none")
    return Checkpoint(source, "safetensors", tensors, metadata=metadata)


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
