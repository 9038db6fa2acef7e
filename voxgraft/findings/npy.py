"""Lists of ids in NumPy's `.npy` format, read without NumPy's own loader: no pickles, no evaluated header."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.errors import FileError
from voxgraft.files import read_bytes

MAX_IDS_BYTES = 1 << 20
"""A text has some hundred ids; the longest that any model takes has some thousand."""
_NPY_MAGIC = b"\x93NUMPY"
_NPY_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Bytes of the header's length, by version of the format."""
_NPY_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[^']{1,16})'\s*,\s*'fortran_order':\s*(?:True|False)\s*,"
    rb"\s*'shape':\s*\((?P<shape>[0-9, ]{0,32})\)\s*,?\s*\}\s*"
)
_NPY_INTEGER_DTYPE = re.compile(rb"[<>|=]?[iu][1248]")


def read_npy_ids(path: Path) -> NDArray[np.int64]:
    """The ids in the file; an error for anything that is not one list of whole numbers."""
    data = read_bytes(path, MAX_IDS_BYTES)
    if not data.startswith(_NPY_MAGIC) or len(data) < 12:
        raise _npy_error(path, f"it starts with {data[:8]!r}")
    width = _NPY_LENGTH_BYTES.get(data[6])
    if width is None:
        raise _npy_error(path, f"version {data[6]} of the format")
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    header = _NPY_HEADER.fullmatch(data[start:end])
    if end > len(data) or header is None:
        raise _npy_error(path, f"the header {data[start : start + 60]!r} is no NumPy header")
    return _parse_npy_ids(path, data[end:], header["descr"], header["shape"])


def _parse_npy_ids(path: Path, body: bytes, descr: bytes, shape: bytes) -> NDArray[np.int64]:
    if not _NPY_INTEGER_DTYPE.fullmatch(descr):
        raise _npy_error(path, f"values of type {descr.decode('ascii', 'replace')}")
    sizes = [int(size) for size in shape.replace(b" ", b"").split(b",") if size]
    if len(sizes) != 1:
        raise _npy_error(path, f"the shape ({shape.decode()})")
    dtype = np.dtype(descr.decode())
    if sizes[0] * dtype.itemsize != len(body):
        raise _npy_error(path, f"{len(body):,} bytes of values", f"{sizes[0] * dtype.itemsize:,} for {sizes[0]:,} ids")
    values = np.frombuffer(body, dtype)
    if values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise _npy_error(path, f"the id {int(values.max())}")
    return values.astype(np.int64)


def _npy_error(path: Path, found: str, expected: str = "one list of whole numbers") -> FileError:
    return FileError("npy-broken", f"{path.name}: {found}", expected=expected, where=path)
