"""What to add to a checkpoint's tables, checked against the checkpoint, and the shapes that come out.

A table is `base_rows` rows of pieces, then `spare_rows` that no token uses. New rows go between the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import FLOAT_DTYPES, from_float32, to_float32
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.checkpoints.write import TensorBytes
from voxgraft.errors import CheckpointError

BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """New rows for one tensor: float32 [rows, width], or [rows] for a bias."""

    base_rows: int
    spare_rows: int
    new_rows: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """The tensors that grow, by name."""

    tables: Mapping[str, TableGrowth]


@dataclass(frozen=True, slots=True)
class TensorGrowth:
    """One tensor's part of a plan that fits: where it stands in the file and what it becomes."""

    info: TensorInfo
    table: TableGrowth

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after growth."""
        return (self.info.shape[0] + len(self.table.new_rows), *self.info.shape[1:])

    def tensor_bytes(self, checkpoint: Checkpoint) -> TensorBytes:
        """The grown tensor, ready to be written."""
        return TensorBytes(self.info.dtype, self.shape, lambda: self.chunks(checkpoint))

    def chunks(self, checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
        """The bytes of the grown tensor: base rows, new rows, spare rows."""
        yield from checkpoint.iter_bytes(self.info.rows(0, self.table.base_rows))
        yield from self.new_bytes()
        yield from checkpoint.iter_bytes(self.info.rows(self.table.base_rows, self.info.shape[0]))

    def new_bytes(self) -> Iterator[bytes]:
        """The bytes of the new rows alone, in the tensor's own type."""
        for start in range(0, len(self.table.new_rows), BLOCK_ROWS):
            yield from_float32(self.table.new_rows[start : start + BLOCK_ROWS], self.info.dtype).tobytes()


def fit_growth_plan(checkpoint: Checkpoint, plan: GrowthPlan) -> dict[str, TensorGrowth]:
    """The plan for this checkpoint, with every name that stands for a grown tensor; an error if it does not fit."""
    planned = {name: _fit_table(checkpoint, name, table) for name, table in plan.tables.items()}
    counts = {name: len(growth.table.new_rows) for name, growth in planned.items()}
    if len(set(counts.values())) > 1:
        found = "; ".join(f"{name} gets {count} new rows" for name, count in counts.items())
        raise CheckpointError("growth-uneven", found, expected="the same number for each", where=checkpoint.path)
    _check_tied(checkpoint, list(planned.values()))
    aliases = [
        TensorGrowth(info, growth.table)
        for name, info in checkpoint.tensors.items()
        if name not in planned
        for growth in planned.values()
        if _is_alias(checkpoint, info, growth)
    ]
    return planned | {growth.info.name: growth for growth in aliases}


def _fit_table(checkpoint: Checkpoint, name: str, table: TableGrowth) -> TensorGrowth:
    info = checkpoint.info(name)
    new = table.new_rows
    if info.dtype not in FLOAT_DTYPES or len(info.shape) not in (1, 2):
        found = f"{name} is {info.dtype} {list(info.shape)}"
        raise _growth_error("growth-table", found, checkpoint, expected=f"a table or bias of {', '.join(FLOAT_DTYPES)}")
    rows = table.base_rows + table.spare_rows
    if min(table.base_rows, table.spare_rows) < 0 or info.shape[0] != rows:
        found = f"{name} has {info.shape[0]:,} rows"
        expected = f"{rows:,}: {table.base_rows:,} pieces and {table.spare_rows} spare"
        raise _growth_error("growth-rows", found, checkpoint, expected=expected)
    if new.dtype != np.float32 or new.ndim != len(info.shape) or new.shape[1:] != info.shape[1:]:
        found = f"the new rows of {name} are {new.dtype} {list(new.shape)}"
        raise _growth_error(
            "growth-table", found, checkpoint, expected=f"float32 [rows{''.join(f', {n}' for n in info.shape[1:])}]"
        )
    growth = TensorGrowth(info, table)
    _check_finite(checkpoint, growth)
    return growth


def _check_finite(checkpoint: Checkpoint, growth: TensorGrowth) -> None:
    for start in range(0, len(growth.table.new_rows), BLOCK_ROWS):
        block = growth.table.new_rows[start : start + BLOCK_ROWS]
        stored = to_float32(from_float32(block, growth.info.dtype), growth.info.dtype)
        if not np.isfinite(stored).all():
            row = start + int(np.argmin(np.isfinite(stored).reshape(len(block), -1).all(axis=1)))
            found = f"new row {row} of {growth.info.name} is not finite as {growth.info.dtype}"
            raise _growth_error("growth-not-finite", found, checkpoint)


def _is_alias(checkpoint: Checkpoint, info: TensorInfo, growth: TensorGrowth) -> bool:
    """Whether this is a second name for the same values, which grows along. A view of a part of them cannot."""
    if info.same_bytes(growth.info):
        return True
    if _overlaps(info, growth.info):
        found = f"{info.name} {list(info.shape)} is a view of a part of {growth.info.name}"
        raise _growth_error("growth-view", found, checkpoint)
    return False


def _overlaps(one: TensorInfo, other: TensorInfo) -> bool:
    same = one.storage == other.storage and min(one.span_bytes, other.span_bytes) > 0
    return same and one.start < other.start + other.span_bytes and other.start < one.start + one.span_bytes


def _check_tied(checkpoint: Checkpoint, planned: list[TensorGrowth]) -> None:
    """Two names for one table cannot get different rows."""
    for one, two in itertools.combinations(planned, 2):
        same_rows = one.table.base_rows == two.table.base_rows and np.array_equal(
            one.table.new_rows, two.table.new_rows
        )
        if _overlaps(one.info, two.info) and not (one.info.same_bytes(two.info) and same_rows):
            found = f"{one.info.name} and {two.info.name} are one table and would get different rows"
            raise _growth_error("growth-tied", found, checkpoint)


def _growth_error(code: str, found: str, checkpoint: Checkpoint, expected: str = "") -> CheckpointError:
    return CheckpointError(code, found, expected=expected, where=checkpoint.path)
