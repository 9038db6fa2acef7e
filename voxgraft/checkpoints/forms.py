"""Tensors in a form that no family uses: float64 numbers, and text tables whose rows and columns are exchanged.

Both are views of the open file: a float64 tensor is converted while it is read, and a transposed table has its strides
exchanged. So everything that reads checkpoints, `repair` included, sees the form that the family expects.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.flat import iter_values
from voxgraft.checkpoints.model import Checkpoint, TensorInfo

__all__ = ["Forms", "forms_of", "in_forms", "num_rounded"]

_SAMPLE = 256
_MOST_ROWS = 1 << 20
_NEAR = 0.9
"""Median cosine with the base's rows: a table that was trained on, or whose rows have shrunk, is still recognised."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Names of the tensors that have an unusual form."""

    doubles: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()


def forms_of(checkpoint: Checkpoint, base: Checkpoint | None, tables: Sequence[str]) -> Forms:
    """Look for both. `tables` names the text tables; without the base only float64 is recognised."""
    own = base.tensors if base is not None else {}
    doubles = [
        name
        for name, info in checkpoint.tensors.items()
        if info.dtype == "F64" and (name not in own or own[name].dtype != "F64")
    ]
    if base is None:
        return Forms(tuple(doubles))
    read = in_forms(checkpoint, Forms(tuple(doubles)))
    return Forms(tuple(doubles), tuple(name for name in tables if _is_transposed(read, base, name)))


def in_forms(checkpoint: Checkpoint, forms: Forms) -> Checkpoint:
    """The same open file with float64 as float32, and with rows first in the tables that are transposed."""
    if not forms.doubles and not forms.transposed:
        return checkpoint
    found = copy.copy(checkpoint)  # of the same kind: an archive keeps its optimizer state
    found.tensors = {name: _in_form(info, forms) for name, info in checkpoint.tensors.items()}
    return found


def num_rounded(checkpoint: Checkpoint, names: Collection[str]) -> int:
    """How many values of float64 tensors float32 cannot hold exactly. Also verifies the checksums of an archive."""
    rounded = 0
    for name in names:
        for raw in iter_values(checkpoint, checkpoint.tensors[name]):
            with np.errstate(over="ignore"):
                short = raw.astype(np.float32).astype(np.float64)
            rounded += int(((short != raw) & ~np.isnan(short)).sum())
    return rounded


def _in_form(info: TensorInfo, forms: Forms) -> TensorInfo:
    if info.name in forms.doubles:
        info = replace(info, dtype="F32", stored="F64")
    if info.name in forms.transposed:
        info = replace(info, shape=info.shape[::-1], strides=info.strides[::-1])
    return info


def _is_transposed(checkpoint: Checkpoint, base: Checkpoint, name: str) -> bool:
    """Whether a table has the base's width as its number of rows, and the base's rows as its columns."""
    new, old = checkpoint.tensors.get(name), base.tensors.get(name)
    if new is None or old is None or len(new.shape) != 2 or len(old.shape) != 2:
        return False
    width = old.shape[1]
    # A square table looks the same either way. A hostile file can state any number of rows.
    if new.shape[0] != width or new.shape[1] == width or new.shape[1] > _MOST_ROWS:
        return False
    count = min(_SAMPLE, old.shape[0], new.shape[1])
    turned = in_forms(checkpoint, Forms(transposed=(name,)))
    left, right = (_floats(one.read_rows(name, 0, count)) for one in (base, turned))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return count > 0 and float(np.median((left * right).sum(axis=1) / np.maximum(lengths, 1e-30))) >= _NEAR


def _floats(rows: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.nan_to_num(rows.astype(np.float64), posinf=0.0, neginf=0.0)
