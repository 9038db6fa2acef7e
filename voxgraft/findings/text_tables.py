"""The text tables of a checkpoint by the family's names, also in the stand-in models that some forks train."""

from __future__ import annotations

from voxgraft.checkpoints.dtypes import FLOAT_DTYPES
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.families import stand_in
from voxgraft.families.base import Family, GraftPoint

MAX_TABLE_ROWS = 1 << 20
"""No tokenizer has more pieces. A hostile file can state any number, in a few bytes, and every row is looked at."""


def is_stand_in(checkpoint: Checkpoint) -> bool:
    """Whether this is an encoder with a spectrogram decoder that only borrows the base's text table."""
    return stand_in.is_stand_in(checkpoint.tensors)


def find_text_tables(checkpoint: Checkpoint, family: Family) -> dict[GraftPoint, TensorInfo]:
    """The tables that are there and have the form of rows, in the family's order."""
    tables: dict[GraftPoint, TensorInfo] = {}
    for point in family.graft_points:
        name = stand_in.STAND_IN_TABLE if point.role == "embedding" and is_stand_in(checkpoint) else point.tensor
        info = checkpoint.tensors.get(name)
        rank = 1 if point.role == "head-bias" else 2
        if (
            info is not None
            and info.dtype in FLOAT_DTYPES
            and len(info.shape) == rank
            and info.shape[0] <= MAX_TABLE_ROWS
        ):
            tables[point] = info
    return tables


def table_names(family: Family | None) -> list[str]:
    """Tensors of the family's text tables, without the bias of a head."""
    return [point.tensor for point in family.graft_points if point.role != "head-bias"] if family else []
