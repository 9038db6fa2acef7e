"""Questions and answers as bytes: a few words as JSON, and arrays as they lie in memory. Needs numpy only.

Both ends of a pipe use this very file: voxgraft as a module, a worker by its path.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAGIC", "PROTOCOL", "PipeError", "frame", "read_frame"]

PROTOCOL = 1
MAGIC = b"VXG1"
FRAME_HEAD = struct.Struct("<4sI")
MAX_HEADER_BYTES = 1 << 20
MAX_ARRAY_BYTES = 1 << 31
ALLOWED_DTYPES = ("float32", "int64", "int32")

Arrays = Mapping[str, NDArray[Any]]


class PipeError(Exception):
    """What came through the pipe is none of our frames."""


def frame(words: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """One message."""
    parts = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    shapes = [[name, str(array.dtype), list(array.shape)] for name, array in parts.items()]
    header = json.dumps({**words, "arrays": shapes}).encode()
    return b"".join([FRAME_HEAD.pack(MAGIC, len(header)), header, *(array.tobytes() for array in parts.values())])


def read_frame(read: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """One message; `read` gives exactly as many bytes as it is asked for."""
    magic, length = FRAME_HEAD.unpack(read(FRAME_HEAD.size))
    if magic != MAGIC or length > MAX_HEADER_BYTES:
        raise PipeError(f"{magic!r} and a header of {length:,} bytes")
    try:
        words = json.loads(read(length))
        shapes = words.pop("arrays")
        arrays = {str(name): _read_array(read, str(dtype), tuple(shape)) for name, dtype, shape in shapes}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipeError(f"a header that cannot be read: {error}") from None
    return words, arrays


def _read_array(read: Callable[[int], bytes], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype not in ALLOWED_DTYPES or len(shape) > 4 or not all(type(size) is int and size >= 0 for size in shape):
        raise PipeError(f"an array of {dtype} {shape}")
    count = 1
    for size in shape:
        count *= size
    num_bytes = count * np.dtype(dtype).itemsize
    if num_bytes > MAX_ARRAY_BYTES:
        raise PipeError(f"an array of {num_bytes:,} bytes")
    return np.frombuffer(read(num_bytes), dtype).reshape(shape).copy()
