"""Arrays in NumPy's `.npy` format of other trainers, read without NumPy's own loader: no pickles, no evaluated header.

Numbers only, in C order and with nothing behind them.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from voxgraft.corpus.clips import AnyArray
from voxgraft.errors import FileError
from voxgraft.files import require_file

__all__ = ["NpyHeader", "read_npy", "read_npy_header"]

NpyKind = Literal["integers", "floats"]
MAX_NPY_HEADER_BYTES = 4096
MAX_NPY_BYTES = 64 << 20
"""No code, latent or emotion of one utterance comes near this."""
_NPY_MAGIC = b"\x93NUMPY"
_NPY_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Bytes of the header's length, by version of the format."""
_NPY_HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'(?P<descr>[^']{1,16})'\s*,\s*'fortran_order':\s*(?P<fortran>True|False)\s*,"
    rb"\s*'shape':\s*\((?P<shape>[0-9, ]{0,64})\)\s*,?\s*\}\s*"
)
_NPY_KINDS = {"integers": re.compile(rb"[<>|=]?[iu][1248]"), "floats": re.compile(rb"[<>=]?f[248]")}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a file holds, and where its values start."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int


def read_npy_header(path: Path, kind: NpyKind) -> NpyHeader:
    """The form of a file whose size agrees with it; its values are not read."""
    require_file(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(MAX_NPY_HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {error.strerror or error}", where=path) from None
    form = _parse_npy_header(path, head, kind)
    expected = form.start + math.prod(form.shape) * form.dtype.itemsize
    if size != expected:
        raise _npy_error(path, f"a file of {size:,} bytes", f"{expected:,} for {form.dtype} {list(form.shape)}")
    return form


def read_npy(path: Path, kind: NpyKind) -> AnyArray:
    """The values of a file."""
    form = read_npy_header(path, kind)
    count = math.prod(form.shape)
    if count * form.dtype.itemsize > MAX_NPY_BYTES:
        raise _npy_error(path, f"{count * form.dtype.itemsize:,} bytes of values", f"at most {MAX_NPY_BYTES:,}")
    try:
        values = np.fromfile(path, form.dtype, count, offset=form.start)
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {error.strerror or error}", where=path) from None
    if len(values) != count:
        raise _npy_error(path, f"{len(values):,} values", f"{count:,}")
    return values.reshape(form.shape)


def _parse_npy_header(path: Path, head: bytes, kind: NpyKind) -> NpyHeader:
    if not head.startswith(_NPY_MAGIC) or len(head) < 12:
        raise _npy_error(path, f"it starts with {head[:8]!r}", "a NumPy file")
    width = _NPY_LENGTH_BYTES.get(head[6])
    if width is None:
        raise _npy_error(path, f"version {head[6]} of the format", "1, 2 or 3")
    start = 8 + width
    end = start + int.from_bytes(head[8:start], "little")
    header = _NPY_HEADER.fullmatch(head[start:end])
    if end > len(head) or header is None:
        raise _npy_error(path, f"the header {head[start : start + 60]!r} is no NumPy header", "plain numbers")
    if not _NPY_KINDS[kind].fullmatch(header["descr"]):
        raise _npy_error(path, f"values of type {header['descr'].decode('ascii', 'replace')}", kind)
    shape = tuple(int(size) for size in header["shape"].replace(b" ", b"").split(b",") if size)
    if header["fortran"] == b"True" and len(shape) > 1:
        raise _npy_error(path, "values column by column", "row by row")
    return NpyHeader(np.dtype(header["descr"].decode()), shape, end)


def _npy_error(path: Path, found: str, expected: str) -> FileError:
    return FileError("array-broken", f"{path.name}: {found}", expected=expected, where=path)
