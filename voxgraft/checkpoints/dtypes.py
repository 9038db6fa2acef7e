"""Number formats of checkpoint files by their safetensors names, and float32 to and from each of them.

NumPy has no bfloat16, so those values travel as their bits (uint16) until somebody asks for float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RAW_DTYPES: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "C64": np.dtype("<c8"),
}
"""The NumPy type that holds the bits of each format."""

BITS_ONLY_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2")
"""Formats that NumPy does not have: here their values are only bits."""

FLOAT_DTYPES = ("F32", "F16", "BF16")
"""Formats that are read as float32, and the only ones that a table of rows may have."""


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
    raise ValueError(f"no table of rows is kept as {dtype}")
