"""One hash for a model's tensors, whatever file they lie in: the same as `nn.frozen.base_fingerprint` gives for a
frozen model that holds them as they are stored.

A tensor's digest is the SHA-256 of its dtype as torch names it, a space, its shape as a Python list, a line break,
and its values in row-major order, little-endian. The fingerprint is the SHA-256 of one line `NAME DIGEST` per tensor,
in the order of the names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from voxgraft import progress
from voxgraft.checkpoints.model import Checkpoint, TensorInfo

TORCH_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


EXPONENT_MASKS = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""Bits of the exponent: a value in which all of them are set is NaN or infinite."""


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
            digest = hashlib.sha256(_digest_header(info))
            for piece in checkpoint.iter_bytes(info):
                digest.update(piece)
                if not_finite is not None and (count := _count_nonfinite(piece, info.dtype)):
                    not_finite[info.name] = not_finite.get(info.name, 0) + count
                advance(len(piece))
            digests[info.name] = digest.hexdigest()
    checkpoint.source.check_unchanged()
    return digests


def combine_digests(digests: Mapping[str, str]) -> str:
    """One hash over all digests, in the order of the names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _count_nonfinite(piece: memoryview, dtype: str) -> int:
    """How many of these values are NaN or infinite. Works on the bits, since NumPy has no bfloat16."""
    if dtype not in EXPONENT_MASKS:
        return 0
    form, mask = EXPONENT_MASKS[dtype]
    bits = np.frombuffer(piece, form)  # pieces end between values: their size is a multiple of eight
    return int(np.count_nonzero((bits & bits.dtype.type(mask)) == mask))


def _digest_header(info: TensorInfo) -> bytes:
    return f"{TORCH_DTYPES[info.dtype]} {list(info.shape)}\n".encode()
