"""One hash for a model's tensors, whatever file they lie in: the same as `nn.frozen.base_fingerprint` gives for a
frozen model that holds them as they are stored.

A tensor's digest is the SHA-256 of its dtype as torch names it, a space, its shape as a Python list, a line break,
and its values in row-major order, little-endian. The fingerprint is the SHA-256 of one line `NAME DIGEST` per tensor,
in the order of the names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

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


def tensor_digests(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """The digest of each tensor. Values are read a piece at a time, in the order of the file."""
    infos = sorted((checkpoint.info(name) for name in names), key=lambda info: info.start)
    total = sum(info.num_bytes for info in infos)
    digests: dict[str, str] = {}
    with progress.task(f"hashing {checkpoint.path.name}", total) as advance:
        for info in infos:
            digest = hashlib.sha256(_heading(info))
            for piece in checkpoint.bytes_of(info):
                digest.update(piece)
                advance(len(piece))
            digests[info.name] = digest.hexdigest()
    checkpoint.source.check_unchanged()
    return digests


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """One hash over all digests, in the order of the names."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _heading(info: TensorInfo) -> bytes:
    return f"{TORCH_DTYPES[info.dtype]} {list(info.shape)}\n".encode()
