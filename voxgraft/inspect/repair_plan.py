"""What every tensor of a repaired file is made of: pieces of the checkpoint, of the base, and rows that are made anew.

Nothing is read here before it is written: a tensor is a function that gives its bytes. Writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import FLOAT_DTYPES, Checkpoint, TensorInfo, from_float32, pair_chunks, to_float32
from voxgraft.checkpoints.load import iter_values
from voxgraft.checkpoints.write import TensorBytes
from voxgraft.core.errors import CheckpointError
from voxgraft.graft.rows import Float32Array
from voxgraft.inspect.base_rows import BLOCK_ROWS, SPARE_SAMPLE_ROWS, RowMove, is_spare_copy
from voxgraft.inspect.body import body_tensor_names
from voxgraft.inspect.subject import find_text_tables
from voxgraft.models.base import Family, GraftPoint

__all__ = ["RepairInputs", "RepairOptions", "plan_repair"]

MAX_FLOAT16 = 65504.0
ChunkFactory = Callable[[], Iterator[bytes | memoryview]]
NewRowsFactory = Callable[[], dict[str, Float32Array]]
"""New rows by tensor, made from the base when they are first asked for."""


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What is put right. `share` is the body's point between the base (0) and the tuned one (1); None leaves it."""

    rows: bool = False
    spare: bool = False
    head: bool = False
    missing: bool = False
    grow: bool = False
    share: float | None = None
    unusable: tuple[str, ...] = ()
    """Tensors of the body that come from the base together with those that are missing."""
    not_finite: tuple[str, ...] = ()
    """Tensors of the body of which single values come from the base."""
    lost_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tables of the body of which single rows do."""
    moves: Mapping[str, RowMove] = field(default_factory=dict)
    """Text tables whose new rows are not in their places."""

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "moves"}
        moves = {name: {"how": move.how, "shift": move.shift} for name, move in self.moves.items()}
        return {**plain, "lost_rows": {name: list(rows) for name, rows in self.lost_rows.items()}, "moves": moves}


@dataclass(frozen=True, slots=True)
class RepairInputs:
    """The two files, and what is known of their rows."""

    family: Family
    base: Checkpoint
    tuned: Checkpoint
    base_pieces: int
    pieces: int
    """Base pieces and new ones."""
    made: NewRowsFactory
    num_pieces_with_rows: int = 0
    """Pieces that the embedding has rows for: all of its rows but a spare one behind them."""
    second_spare: bool = False
    """Whether one row behind the pieces was provably never read, beside the spare one."""

    @property
    def num_new(self) -> int:
        return self.pieces - self.base_pieces


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One thing that was done to one tensor."""

    tensor: str
    what: str

    def to_json(self) -> dict[str, str]:
        return {"tensor": self.tensor, "what": self.what}


def plan_repair(parts: RepairInputs, repairs: RepairOptions) -> tuple[dict[str, TensorBytes], list[RepairAction]]:
    """All tensors of the new file, in the order of the checkpoint's, and what is done to which of them."""
    done: list[RepairAction] = []
    tables = _plan_tables(parts, repairs, done)
    body = dict.fromkeys(body_tensor_names(parts.base, parts.family))
    tensors: dict[str, TensorBytes] = {}
    for name, info in parts.tuned.tensors.items():
        table = next(
            (one for own, one in tables.items() if own == name or _is_table_alias(parts.tuned, own, info)), None
        )
        if table is not None:
            tensors[name] = table
        elif name in body and repairs.missing and name in repairs.unusable:
            tensors[name] = _take_from_base(parts, name, "since it was not to be used", done)
        elif name in body and (repairs.share is not None or _is_partly_from_base(repairs, name)):
            tensors[name] = _repair_body_tensor(parts, info, repairs, done)
        else:
            tensors[name] = _copy_tensor(parts.tuned, info)
    tensors |= {name: table for name, table in tables.items() if name not in tensors}
    if repairs.missing or repairs.share is not None:
        for name in [name for name in body if name not in tensors]:
            tensors[name] = _take_from_base(parts, name, "since it was missing", done)
    return tensors, done


def _is_table_alias(tuned: Checkpoint, name: str, info: TensorInfo) -> bool:
    own = tuned.tensors.get(name)
    return own is not None and bool(info.storage) and info.same_bytes(own)


def _take_from_base(parts: RepairInputs, name: str, why: str, done: list[RepairAction]) -> TensorBytes:
    done.append(RepairAction(name, f"taken from the base, {why}"))
    return _copy_tensor(parts.base, parts.base.tensors[name])


def _copy_tensor(checkpoint: Checkpoint, info: TensorInfo) -> TensorBytes:
    return TensorBytes(info.dtype, info.shape, lambda: checkpoint.iter_bytes(info))


def _plan_tables(parts: RepairInputs, repairs: RepairOptions, done: list[RepairAction]) -> dict[str, TensorBytes]:
    """The text tables: base rows, new rows, spare rows, each from where it is whole."""
    ours = find_text_tables(parts.base, parts.family)
    tables: dict[str, TensorBytes] = {}
    if not (repairs.rows or repairs.spare or repairs.head or repairs.grow):
        return tables
    theirs = find_text_tables(parts.tuned, parts.family)
    if repairs.rows:
        theirs = {point: _source_of_swapped_table(parts, repairs, info) for point, info in theirs.items()}
    if repairs.head:
        theirs |= _empty_missing_heads(parts, theirs)
    for point, info in theirs.items():
        old = ours.get(point)
        if old is None or old.shape[1:] != info.shape[1:] or old.shape[0] < parts.base_pieces:
            found = f"{info.name} is {list(info.shape)}, the base's is {list(old.shape) if old else 'not there'}"
            raise CheckpointError("repair-misfit", found, where=parts.tuned.path)
        tables[info.name] = _TableRepair(parts, repairs, old, info).tensor(done)
    return tables


def _source_of_swapped_table(parts: RepairInputs, repairs: RepairOptions, info: TensorInfo) -> TensorInfo:
    """The table that has a table's rows, where two were swapped."""
    move = repairs.moves.get(info.name)
    source = parts.tuned.tensors.get(move.source) if move is not None and move.how == "swapped" else None
    return replace(source, name=info.name) if source is not None else info


def _empty_missing_heads(parts: RepairInputs, theirs: dict[GraftPoint, TensorInfo]) -> dict[GraftPoint, TensorInfo]:
    """Heads and biases that the file lacks, as tables without any row; they keep numbers as the embedding does."""
    embedding = next((info for point, info in theirs.items() if point.role == "embedding"), None)
    ours = find_text_tables(parts.base, parts.family)
    return {
        point: replace(old, dtype=embedding.dtype, shape=(0, *old.shape[1:]), storage="")
        for point, old in ours.items()
        if embedding is not None and point.role != "embedding" and old.name not in parts.tuned.tensors
    }


@dataclass(frozen=True, slots=True)
class _TableRepair:
    """One text table on its way."""

    parts: RepairInputs
    repairs: RepairOptions
    old: TensorInfo
    tuned: TensorInfo

    @property
    def move(self) -> RowMove | None:
        return self.repairs.moves.get(self.tuned.name) if self.repairs.rows or self.repairs.head else None

    @property
    def shift(self) -> int:
        return self.move.shift if self.move is not None and self.move.how in ("shifted", "swapped") else 0

    def tensor(self, done: list[RepairAction]) -> TensorBytes:
        parts, spare = self.parts, self.parts.family.spare_rows
        most = parts.pieces + spare * (2 if self.repairs.spare and parts.second_spare else 1) + max(self.shift, 0)
        if self.tuned.shape[0] > most:  # to cut them off would throw away what was learnt
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows for {parts.pieces:,} pieces"
            expected = f"{most:,} rows or fewer, or the tokenizer that it was trained with"
            raise CheckpointError("repair-misfit", found, expected=expected, where=parts.tuned.path)
        if self.move is not None and self.move.how != "copied":
            how = f"in {self.move.source}" if self.move.source else ""
            how += f"{' and ' if how else ''}{abs(self.shift):,} rows too far" if self.shift else ""
            done.append(RepairAction(self.tuned.name, f"new rows stood {how} and are back in their places"))
        dtype = self._dtype()
        segments = [self._base_rows(done, dtype), *self._new_rows(done, dtype)]
        if spare:
            segments.append(self._spare_rows(done, dtype))
        shape = (parts.pieces + spare, *self.tuned.shape[1:])

        def chunks() -> Iterator[bytes | memoryview]:
            for segment in segments:
                yield from segment()

        return TensorBytes(dtype, shape, chunks)

    def _dtype(self) -> str:
        """The checkpoint's own format, unless that is fp16 and cannot hold the base's rows."""
        if self.tuned.dtype != "F16":
            return self.tuned.dtype
        rows = _read_floats(self.parts.base, self.old.rows(0, min(self.old.shape[0], self.parts.base_pieces)))
        return "F32" if rows.size and float(np.abs(rows).max()) > MAX_FLOAT16 else "F16"

    def _base_rows(self, done: list[RepairAction], dtype: str) -> ChunkFactory:
        count = self.parts.base_pieces
        is_copied = self.move is not None and self.move.how == "copied"
        if self.repairs.rows or is_copied or not self.tuned.shape[0]:
            done.append(RepairAction(self.tuned.name, f"rows 0 to {count - 1:,} are the base's"))
            return self._chunks_from_base(0, count, dtype)
        self._require(count)
        return self._chunks_from_tuned(0, count, dtype)

    def _new_rows(self, done: list[RepairAction], dtype: str) -> list[ChunkFactory]:
        """New rows from where they are; those that are nowhere, or not to be used, are made from the base's."""
        first, seats = self.parts.base_pieces, self._row_positions(done)
        segments: list[ChunkFactory] = []
        start = 0
        while start < len(seats):
            stop, step = start + 1, int(seats[start] >= 0)
            while stop < len(seats) and (int(seats[stop]) == int(seats[start]) + step * (stop - start)):
                stop += 1
            if step:
                segments.append(self._chunks_from_tuned(int(seats[start]), int(seats[stop - 1]) + 1, dtype))
            else:
                segments.append(self._new_row_chunks(start, stop, dtype))
            start = stop
        assert first + len(seats) == self.parts.pieces
        return segments

    def _row_positions(self, done: list[RepairAction]) -> NDArray[np.int64]:
        """Where each new row stands in the checkpoint; -1 for one that is to be made."""
        parts, name, rows = self.parts, self.tuned.name, self.tuned.shape[0]
        first, last = parts.base_pieces, parts.pieces
        seats = np.arange(first, last, dtype=np.int64) + self.shift
        if self.move is not None and self.move.how == "copied":
            seats[:] = -1
        elif self.shift:
            seats[seats >= rows] -= rows  # what is shifted past the end often comes in again at the start
            for at in np.flatnonzero((seats >= 0) & (seats < first + self.shift)):
                seats[at] = seats[at] if self._is_new(int(seats[at])) else -1
            seats[seats < 0] = -1
        elif self.repairs.head or self.repairs.grow:
            seats[seats >= self._count_pieces_with_rows()] = -1
        else:
            self._require(last)
        if num_made := int((seats < 0).sum()):
            done.append(RepairAction(name, f"{num_made:,} new rows are made from the base's"))
        if self.repairs.rows and (bad := self._not_finite(seats)).any():
            done.append(RepairAction(name, f"{int(bad.sum()):,} new rows were not finite and are made from the base's"))
            seats[bad] = -1
        looks = self.repairs.spare and parts.family.spare_rows and not self.shift
        if looks and len(seats) and seats[0] >= 0 and self._starts_with_spare():
            done.append(RepairAction(name, f"row {first:,} was the spare row and is made from the base's"))
            seats[0] = -1
        return seats

    def _count_pieces_with_rows(self) -> int:
        """Pieces that this table has rows for. Where it has as many as the embedding, the same rows mean the same."""
        embedding = self.parts.tuned.tensors.get(self.parts.family.graft_points[0].tensor)
        if embedding is not None and embedding.shape[0] == self.tuned.shape[0]:
            return self.parts.num_pieces_with_rows
        return max(self.tuned.shape[0] - self.parts.family.spare_rows, 0)

    def _is_new(self, row: int) -> bool:
        """Whether a row at the start is none of the base's, and none that was left empty."""
        own = _read_floats(self.parts.tuned, self.tuned.rows(row, row + 1)).reshape(1, -1)
        if not own.any() or not np.isfinite(own).all():
            return False
        for start in range(0, self.old.shape[0], BLOCK_ROWS):
            block = _read_floats(self.parts.base, self.old.rows(start, min(start + BLOCK_ROWS, self.old.shape[0])))
            if (block.reshape(len(block), -1) == own).all(axis=1).any():
                return False
        return True

    def _not_finite(self, seats: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows at these seats hold values that are not finite."""
        finite = np.ones(self.tuned.shape[0] + 1, bool)  # one more for the rows without a seat
        taken = seats[seats >= 0]
        for start in range(int(taken.min()), int(taken.max()) + 1, BLOCK_ROWS) if len(taken) else ():
            stop = min(start + BLOCK_ROWS, int(taken.max()) + 1)
            rows = _read_floats(self.parts.tuned, self.tuned.rows(start, stop))
            finite[start:stop] = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        return np.asarray(~finite[seats])

    def _spare_rows(self, done: list[RepairAction], dtype: str) -> ChunkFactory:
        """The base's own behind the new rows: nothing was ever to be learnt there."""
        first, spare = self.parts.base_pieces, self.parts.family.spare_rows
        if self.old.shape[0] < first + spare:
            self._require(self.parts.pieces + spare)
            return self._chunks_from_tuned(self.parts.pieces, self.parts.pieces + spare, dtype)
        done.append(RepairAction(self.tuned.name, f"row {self.parts.pieces:,}, the last, is the base's spare row"))
        return self._chunks_from_base(first, first + spare, dtype)

    def _starts_with_spare(self) -> bool:
        """Whether the first new row is a copy of the base's spare, trained on or not, by the rule of the finding."""
        first = self.parts.base_pieces
        if self.old.shape[0] <= first:
            return False
        spare = _read_floats(self.parts.base, self.old.rows(first, first + 1))
        rows = _read_floats(self.parts.tuned, self.tuned.rows(first, min(first + SPARE_SAMPLE_ROWS, self.parts.pieces)))
        return is_spare_copy(spare.reshape(-1), rows.reshape(len(rows), -1))

    def _new_row_chunks(self, first: int, last: int, dtype: str) -> ChunkFactory:
        def made() -> Iterator[bytes]:
            rows = self.parts.made()[self.old.name][first:last]
            yield from_float32(np.ascontiguousarray(rows, np.float32), dtype).tobytes()

        return made

    def _chunks_from_tuned(self, first: int, last: int, dtype: str) -> ChunkFactory:
        part = self.tuned.rows(first, last)
        return lambda: _convert_chunks(self.parts.tuned, part, dtype)

    def _chunks_from_base(self, first: int, last: int, dtype: str) -> ChunkFactory:
        """The base's bits; rounded where the checkpoint keeps its numbers in a shorter format."""
        part = self.old.rows(first, last)
        return lambda: _convert_chunks(self.parts.base, part, dtype)

    def _require(self, rows: int) -> None:
        if self.tuned.shape[0] < rows:
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows"
            raise CheckpointError("repair-misfit", found, expected=f"{rows:,} or more", where=self.parts.tuned.path)


def _is_partly_from_base(repairs: RepairOptions, name: str) -> bool:
    return repairs.missing and (name in repairs.not_finite or name in repairs.lost_rows)


def _repair_body_tensor(
    parts: RepairInputs, info: TensorInfo, repairs: RepairOptions, done: list[RepairAction]
) -> TensorBytes:
    """A tensor of the body at a point between base and tuned, with values and rows that are lost from the base.

    Between two forms there is no point: those are the base's.
    """
    old, name = parts.base.tensors[info.name], info.name
    share = 1.0 if repairs.share is None else repairs.share
    floats = old.dtype in FLOAT_DTYPES and info.dtype in FLOAT_DTYPES
    if old.shape != info.shape or (old.dtype != info.dtype and not floats):
        return _take_from_base(parts, name, "since it had another form", done)
    patched = _is_partly_from_base(repairs, name)
    if not floats or (share == 1 and not patched):
        return _copy_tensor(parts.tuned, info)
    rows = repairs.lost_rows.get(name, ()) if repairs.missing else ()
    if repairs.missing and name in repairs.not_finite:
        done.append(RepairAction(name, "values that were not finite are the base's"))
    if rows:
        done.append(RepairAction(name, f"{len(rows):,} lost rows are the base's"))
    if share != 1:
        done.append(RepairAction(name, "the base's" if share == 0 else f"{share:g} of the way from the base"))
    # What became infinite in fp16 does so again: such a tensor is kept in the base's own format.
    dtype = old.dtype if info.dtype == "F16" and name in repairs.not_finite else info.dtype
    if share == 0:
        return TensorBytes(dtype, info.shape, lambda: _convert_chunks(parts.base, old, dtype))
    width = old.num_values // max(old.shape[0], 1) if old.shape else 1
    lost = np.zeros(old.shape[0] if old.shape else 1, bool)
    lost[list(rows)] = True

    def chunks() -> Iterator[bytes]:
        start = 0
        for ours, theirs in pair_chunks(iter_values(parts.base, old), iter_values(parts.tuned, info)):
            before, after = (
                to_float32(raw, one.dtype).astype(np.float32, copy=False) for raw, one in ((ours, old), (theirs, info))
            )
            if patched:
                keeps = np.isfinite(after)
                if rows:
                    keeps &= ~lost[np.arange(start, start + len(after)) // max(width, 1)]
                after = np.where(keeps, after, before)
            start += len(after)
            value = after if share == 1 else _interpolate(before, after, share, name, parts)
            yield from_float32(value, dtype).tobytes()

    return TensorBytes(dtype, info.shape, chunks)


def _interpolate(
    before: NDArray[np.float32], after: NDArray[np.float32], share: float, name: str, parts: RepairInputs
) -> NDArray[np.float32]:
    """Summed in float64, so that what did not move stays the same bits."""
    start = before.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        value = (start + share * (after.astype(np.float64) - start)).astype(np.float32)
    if not np.isfinite(value).all():
        raise CheckpointError("body-not-finite", f"{name} holds values that are not finite", where=parts.tuned.path)
    return value


def _convert_chunks(checkpoint: Checkpoint, info: TensorInfo, dtype: str) -> Iterator[bytes | memoryview]:
    """A tensor's bytes as they are, or its values in another format."""
    if info.dtype == dtype:
        yield from checkpoint.iter_bytes(info)
        return
    for raw in iter_values(checkpoint, info):
        yield from_float32(to_float32(raw, info.dtype).astype(np.float32, copy=False), dtype).tobytes()


def _read_floats(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    parts = [to_float32(raw, info.dtype).astype(np.float32) for raw in iter_values(checkpoint, info)]
    return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(info.shape)
