"""The graft's own rows in a file of their own: `rows.safetensors`, float32, small.

Ids in it are relative to the graft: row 0 is the graft's first token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.opening import open_checkpoint
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.errors import CheckpointError
from voxgraft.files import atomic_write

MAX_ROWS_BYTES = 2 << 30
"""20,000 rows of three tables, 4,096 wide, have under 1 GB."""


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
