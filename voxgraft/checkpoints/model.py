"""What every checkpoint is, whatever its file format: named tensors at places in a file, read piece by piece.

The formats are in `safetensors_file` and `torch_file`; `opening.open_checkpoint` tells them apart.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import RAW_DTYPES, item_bytes, to_float32
from voxgraft.checkpoints.source import ByteSource
from voxgraft.errors import CheckpointError

CheckpointFormat = Literal["safetensors", "torch-zip", "torch-legacy"]
Scalar = None | bool | int | float | str
MAX_RANK = 32
MAX_VALUES = 1 << 48
MAX_EXPANDED_BYTES = 1 << 30
"""A tensor whose strides repeat a few stored values may not unfold to more than this."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor and where its values lie: from byte `start` of the file, `strides` counted in values."""

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
        """Whether two names stand for one and the same tensor."""
        return self.start == other.start and replace(self, name=other.name) == other


@dataclass(frozen=True, slots=True)
class CheckpointExtra:
    """Something in a checkpoint that is no tensor of the model: `kept` says whether a grown file still has it."""

    name: str
    description: str
    kept: bool
    value: Scalar = None


class Checkpoint:
    """An open checkpoint. Nothing is read before it is asked for. Close it, or use it in a `with`."""

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
        near = difflib.get_close_matches(name, self.tensors, n=3, cutoff=0.5)
        found = f"there is no tensor {name} among the {len(self.tensors)}" + (
            f"; the nearest are {', '.join(near)}" if near else ""
        )
        raise CheckpointError("tensor-missing", found, where=self.path)

    def read(self, name: str, *, raw: bool = False) -> NDArray[np.generic]:
        """The whole tensor: float32 if it is kept as F32, F16 or BF16. `raw` gives the bits as they are stored."""
        info = self.info(name)
        values = self._values(info)
        return values if raw else to_float32(values, info.dtype)

    def read_rows(self, name: str, start: int, stop: int, *, raw: bool = False) -> NDArray[np.generic]:
        """Some rows of a tensor, as `read` gives them."""
        info = self.info(name).rows(start, stop)
        values = self._values(info)
        return values if raw else to_float32(values, info.dtype)

    def raw(self, name: str) -> Iterator[memoryview]:
        """The bytes of a tensor's values, in order. Each piece is good only until the next is asked for."""
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
            found = f"{info.name} unfolds {info.span_bytes:,} stored bytes to {info.num_bytes:,}"
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
