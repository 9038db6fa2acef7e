"""What every tensor of a repaired file is made of: pieces of the checkpoint, of the base, and rows that are made anew.

Nothing is read here before it is written: a tensor is a function that gives its bytes. Writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import FLOATS, from_float32, to_float32
from voxgraft.checkpoints.flat import flat_values, side_by_side
from voxgraft.checkpoints.model import Checkpoint, TensorInfo
from voxgraft.checkpoints.write import TensorBytes
from voxgraft.errors import CheckpointError
from voxgraft.families.base import Family, GraftPoint
from voxgraft.findings.base_rows import BLOCK_ROWS, SPARE_SAMPLE, is_spare_copy
from voxgraft.findings.body import other_tensors
from voxgraft.findings.text_tables import text_tables
from voxgraft.rows import Array

__all__ = ["Parts", "Repairs", "planned"]

Chunks = Callable[[], Iterator[bytes | memoryview]]
Made = Callable[[], dict[str, Array]]
"""New rows by tensor, made from the base when they are first asked for."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """What is put right. `share` is the body's point between the base (0) and the tuned one (1); None leaves it."""

    rows: bool = False
    spare: bool = False
    head: bool = False
    missing: bool = False
    share: float | None = None
    unusable: tuple[str, ...] = ()
    """Tensors of the body that come from the base together with those that are missing."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Parts:
    """The two files, and what is known of their rows."""

    family: Family
    base: Checkpoint
    tuned: Checkpoint
    base_pieces: int
    pieces: int
    """Base pieces and new ones."""
    made: Made

    @property
    def num_new(self) -> int:
        return self.pieces - self.base_pieces


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was done to one tensor."""

    tensor: str
    what: str

    def to_json(self) -> dict[str, str]:
        return {"tensor": self.tensor, "what": self.what}


def planned(parts: Parts, repairs: Repairs) -> tuple[dict[str, TensorBytes], list[Done]]:
    """All tensors of the new file, in the order of the checkpoint's, and what is done to which of them."""
    done: list[Done] = []
    tables = _tables(parts, repairs, done)
    body = dict.fromkeys(other_tensors(parts.base, parts.family))
    tensors: dict[str, TensorBytes] = {}
    for name, info in parts.tuned.tensors.items():
        table = next((one for own, one in tables.items() if own == name or _is_alias(parts.tuned, own, info)), None)
        if table is not None:
            tensors[name] = table
        elif name in body and repairs.missing and name in repairs.unusable:
            tensors[name] = _from_base(parts, name, "since it was not to be used", done)
        elif name in body and repairs.share is not None:
            tensors[name] = _moved(parts, info, repairs.share, done)
        else:
            tensors[name] = _copied(parts.tuned, info)
    tensors |= {name: table for name, table in tables.items() if name not in tensors}
    if repairs.missing or repairs.share is not None:
        for name in [name for name in body if name not in tensors]:
            tensors[name] = _from_base(parts, name, "since it was missing", done)
    return tensors, done


def _is_alias(tuned: Checkpoint, name: str, info: TensorInfo) -> bool:
    own = tuned.tensors.get(name)
    return own is not None and bool(info.storage) and info.same_bytes(own)


def _from_base(parts: Parts, name: str, why: str, done: list[Done]) -> TensorBytes:
    done.append(Done(name, f"taken from the base, {why}"))
    return _copied(parts.base, parts.base.tensors[name])


def _copied(checkpoint: Checkpoint, info: TensorInfo) -> TensorBytes:
    return TensorBytes(info.dtype, info.shape, lambda: checkpoint.bytes_of(info))


def _tables(parts: Parts, repairs: Repairs, done: list[Done]) -> dict[str, TensorBytes]:
    """The text tables: base rows, new rows, spare rows, each from where it is whole."""
    ours = text_tables(parts.base, parts.family)
    tables: dict[str, TensorBytes] = {}
    if not (repairs.rows or repairs.spare or repairs.head):
        return tables
    theirs = text_tables(parts.tuned, parts.family)
    if repairs.head:
        theirs |= _missing_heads(parts, theirs)
    for point, info in theirs.items():
        old = ours.get(point)
        if old is None or old.shape[1:] != info.shape[1:] or old.shape[0] < parts.base_pieces:
            found = f"{info.name} is {list(info.shape)}, the base's is {list(old.shape) if old else 'not there'}"
            raise CheckpointError("repair-misfit", found, where=parts.tuned.path)
        tables[info.name] = _Table(parts, repairs, old, info).tensor(done)
    return tables


def _missing_heads(parts: Parts, theirs: dict[GraftPoint, TensorInfo]) -> dict[GraftPoint, TensorInfo]:
    """Heads and biases that the file lacks, as tables without any row; they keep numbers as the embedding does."""
    embedding = next((info for point, info in theirs.items() if point.role == "embedding"), None)
    ours = text_tables(parts.base, parts.family)
    return {
        point: replace(old, dtype=embedding.dtype, shape=(0, *old.shape[1:]), storage="")
        for point, old in ours.items()
        if embedding is not None and point.role != "embedding" and old.name not in parts.tuned.tensors
    }


@dataclass(frozen=True, slots=True)
class _Table:
    """One text table on its way."""

    parts: Parts
    repairs: Repairs
    old: TensorInfo
    tuned: TensorInfo

    def tensor(self, done: list[Done]) -> TensorBytes:
        parts, spare = self.parts, self.parts.family.spare_rows
        most = parts.pieces + spare * (2 if self.repairs.spare else 1)
        if self.tuned.shape[0] > most:  # to cut them off would throw away what was learnt
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows for {parts.pieces:,} pieces"
            expected = f"{most:,} rows or fewer, or the tokenizer that it was trained with"
            raise CheckpointError("repair-misfit", found, expected=expected, where=parts.tuned.path)
        segments = [self._base_rows(done), *self._new_rows(done)]
        if spare:
            segments.append(self._spare_rows(done))
        shape = (parts.pieces + spare, *self.tuned.shape[1:])

        def chunks() -> Iterator[bytes | memoryview]:
            for segment in segments:
                yield from segment()

        return TensorBytes(self.tuned.dtype, shape, chunks)

    def _base_rows(self, done: list[Done]) -> Chunks:
        count = self.parts.base_pieces
        if self.repairs.rows or not self.tuned.shape[0]:
            done.append(Done(self.tuned.name, f"rows 0 to {count - 1:,} are the base's"))
            return self._of_base(0, count)
        self._require(count)
        return self._of_tuned(0, count)

    def _new_rows(self, done: list[Done]) -> list[Chunks]:
        parts, first, last = self.parts, self.parts.base_pieces, self.parts.pieces
        if self.repairs.head and self.tuned.shape[0] < last:
            done.append(Done(self.tuned.name, f"{parts.num_new:,} new rows are made from the base's"))
            return [lambda: self._made(0, parts.num_new)]
        self._require(last)
        anew = self._not_finite(first, last) if self.repairs.rows else []
        if anew:
            done.append(Done(self.tuned.name, f"{len(anew):,} new rows were not finite and are made from the base's"))
        if self.repairs.spare and parts.family.spare_rows and parts.num_new and self._starts_with_spare():
            done.append(Done(self.tuned.name, f"row {first:,} was the spare row and is made from the base's"))
            anew = sorted({first, *anew})
        segments, start = [], first
        for row in anew:
            segments += [self._of_tuned(start, row), self._made_row(row - first)]
            start = row + 1
        return [*segments, self._of_tuned(start, last)]

    def _spare_rows(self, done: list[Done]) -> Chunks:
        """The base's own behind the new rows: nothing was ever to be learnt there."""
        first, spare = self.parts.base_pieces, self.parts.family.spare_rows
        if self.old.shape[0] < first + spare:
            self._require(self.parts.pieces + spare)
            return self._of_tuned(self.parts.pieces, self.parts.pieces + spare)
        done.append(Done(self.tuned.name, f"row {self.parts.pieces:,}, the last, is the base's spare row"))
        return self._of_base(first, first + spare)

    def _starts_with_spare(self) -> bool:
        """Whether the first new row is a copy of the base's spare, trained on or not, by the rule of the finding."""
        first = self.parts.base_pieces
        if self.old.shape[0] <= first:
            return False
        spare = _floats(self.parts.base, self.old.rows(first, first + 1))
        rows = _floats(self.parts.tuned, self.tuned.rows(first, min(first + SPARE_SAMPLE, self.parts.pieces)))
        return is_spare_copy(spare.reshape(-1), rows.reshape(len(rows), -1))

    def _not_finite(self, first: int, last: int) -> list[int]:
        bad: list[int] = []
        for start in range(first, last, BLOCK_ROWS):
            rows = _floats(self.parts.tuned, self.tuned.rows(start, min(start + BLOCK_ROWS, last)))
            bad += (np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1)) + start).tolist()
        return bad

    def _made_row(self, number: int) -> Chunks:
        return lambda: self._made(number, number + 1)

    def _made(self, first: int, last: int) -> Iterator[bytes]:
        rows = self.parts.made()[self.old.name][first:last]
        yield from_float32(np.ascontiguousarray(rows, np.float32), self.tuned.dtype).tobytes()

    def _of_tuned(self, first: int, last: int) -> Chunks:
        part = self.tuned.rows(first, last)
        return lambda: self.parts.tuned.bytes_of(part)

    def _of_base(self, first: int, last: int) -> Chunks:
        """The base's bits; rounded where the checkpoint keeps its numbers in a shorter format."""
        part = self.old.rows(first, last)
        return lambda: _converted(self.parts.base, part, self.tuned.dtype)

    def _require(self, rows: int) -> None:
        if self.tuned.shape[0] < rows:
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows"
            raise CheckpointError("repair-misfit", found, expected=f"{rows:,} or more", where=self.parts.tuned.path)


def _moved(parts: Parts, info: TensorInfo, share: float, done: list[Done]) -> TensorBytes:
    """A tensor of the body at a point between base and tuned. Between two forms there is none: those are the base's."""
    old = parts.base.tensors[info.name]
    floats = old.dtype in FLOATS and info.dtype in FLOATS
    if old.shape != info.shape or (old.dtype != info.dtype and not floats):
        return _from_base(parts, info.name, "since it had another form", done)
    if not floats or share == 1:
        return _copied(parts.tuned, info)
    done.append(Done(info.name, "the base's" if share == 0 else f"{share:g} of the way from the base"))
    if share == 0:
        return TensorBytes(info.dtype, info.shape, lambda: _converted(parts.base, old, info.dtype))

    def chunks() -> Iterator[bytes]:
        pairs = side_by_side(flat_values(parts.base, old), flat_values(parts.tuned, info))
        for ours, theirs in pairs:
            before, after = (to_float32(raw, one.dtype) for raw, one in ((ours, old), (theirs, info)))
            yield _between(before, after, share, info, parts).tobytes()

    return TensorBytes(info.dtype, info.shape, chunks)


def _between(
    before: NDArray[Any], after: NDArray[Any], share: float, info: TensorInfo, parts: Parts
) -> NDArray[np.generic]:
    """Summed in float64, so that what did not move stays the same bits."""
    start = before.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        value = (start + share * (after.astype(np.float64) - start)).astype(np.float32)
    if not np.isfinite(value).all():
        found = f"{info.name} holds values that are not finite"
        raise CheckpointError("body-not-finite", found, where=parts.tuned.path)
    return from_float32(value, info.dtype)


def _converted(checkpoint: Checkpoint, info: TensorInfo, dtype: str) -> Iterator[bytes | memoryview]:
    """A tensor's bytes as they are, or its values in another format."""
    if info.dtype == dtype:
        yield from checkpoint.bytes_of(info)
        return
    for raw in flat_values(checkpoint, info):
        yield from_float32(to_float32(raw, info.dtype).astype(np.float32, copy=False), dtype).tobytes()


def _floats(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    parts = [to_float32(raw, info.dtype).astype(np.float32) for raw in flat_values(checkpoint, info)]
    return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(info.shape)
