"""Base rows that stand in another place: shifted, in the other table, shuffled. Where they went, new rows went too.

Rows are looked up by hash over all text tables; where they were trained on since, by direction. Changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.errors import Finding, finding
from voxgraft.families.base import GraftPoint
from voxgraft.findings.base_rows import BLOCK_ROWS, OVERWRITTEN_CHANGE, RowComparison, TableReader
from voxgraft.findings.body import round_to_dtype
from voxgraft.findings.subject import CheckSubject
from voxgraft.findings.text_tables import find_text_tables

__all__ = ["RowMove", "find_row_moves", "row_move_findings"]

RowMoveKind = Literal["shifted", "swapped", "copied", "scattered"]
_TAIL_ROWS = 32
"""Base rows before the first new one: where these went, the new ones behind them went."""
_MOST_SHARE, _HALF_SHARE = 0.9, 0.5
_MIN_DIRECTION_COSINE = 0.9
"""Median cosine of rows that were trained on after they had moved."""
_MAX_TRIED_SHIFT = 4
"""Shifts that are tried by direction; by hash any shift is found."""
_DIRECTION_SAMPLE_ROWS = 256
RowHashes = dict[bytes, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class RowMove:
    """What happened to the rows of one table of a checkpoint."""

    tensor: str
    how: RowMoveKind
    source: str = ""
    """The table whose rows stand here, if it is another."""
    shift: int = 0
    """How many rows behind their places new rows stand."""
    num_found: int = 0


def find_row_moves(subject: CheckSubject, comparisons: Sequence[RowComparison]) -> list[RowMove]:
    """Tables whose new rows are not in their places, by what the base rows show. Most checkpoints have none."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return []
    ours, theirs = find_text_tables(base, family), find_text_tables(checkpoint, family)
    compared = {one.tensor: one for one in comparisons}
    pairs = {
        point: (TableReader(base, old), TableReader(checkpoint, theirs[point]))
        for point, old in ours.items()
        if point in theirs and len(old.shape) == 2 and old.shape[1:] == theirs[point].shape[1:]
    }
    odd = [
        point
        for point, (_, new) in pairs.items()
        if (one := compared.get(new.info.name)) is not None and bool((one.relative >= OVERWRITTEN_CHANGE).any())
    ]
    if not odd:
        return []
    moves: dict[GraftPoint, RowMove] = {}
    known = {shape: _hash_base_rows(pairs, subject.base_pieces or 0, shape) for shape in ("", "BF16", "F16")}
    for point in odd:
        if (move := _find_row_move(point, pairs, known, compared[pairs[point][1].info.name])) is not None:
            moves[point] = move
    return [*_mark_copied_tables(moves).values(), *_find_bias_moves(subject, moves)]


def _hash_base_rows(pairs: Mapping[GraftPoint, tuple[TableReader, TableReader]], pieces: int, dtype: str) -> RowHashes:
    """Base rows by their bits in a format; rows that are there twice, or zero, show nothing."""
    found: RowHashes = {}
    twice: set[bytes] = set()
    for old, new in pairs.values():
        stored = dtype or new.info.dtype
        for start in range(0, min(pieces, old.info.shape[0]), BLOCK_ROWS):
            rows = old.rows(start, min(start + BLOCK_ROWS, pieces, old.info.shape[0]))
            for at, key in enumerate(_row_digests(rows if stored == "F32" else round_to_dtype(rows, stored)), start):
                if key in found or not key:
                    twice.add(key)
                found[key] = (old.info.name, at)
    return {key: value for key, value in found.items() if key not in twice}


def _row_digests(rows: NDArray[np.float32]) -> list[bytes]:
    """Empty for a row of zeros."""
    some = np.asarray(rows.any(axis=1)).tolist()
    return [
        hashlib.blake2b(row.tobytes(), digest_size=16).digest() if is_some else b""
        for row, is_some in zip(rows, some, strict=True)
    ]


def _find_row_move(
    point: GraftPoint,
    pairs: Mapping[GraftPoint, tuple[TableReader, TableReader]],
    known: Mapping[str, RowHashes],
    compared: RowComparison,
) -> RowMove | None:
    old, new = pairs[point]
    pieces, name = compared.num_rows, new.info.name
    digests: list[bytes] = []
    for start in range(0, new.info.shape[0], BLOCK_ROWS):
        digests += _row_digests(new.rows(start, min(start + BLOCK_ROWS, new.info.shape[0])))
    places = max(
        (np.array([hashes.get(key, ("", -1)) for key in digests], dtype=object) for hashes in known.values()),
        key=lambda found: int((found[:, 1] >= 0).sum()),
    )
    tables, rows = places[:, 0], places[:, 1].astype(np.int64)
    for other, _ in (pair for place, pair in pairs.items() if place != point):
        there = np.flatnonzero(tables == other.info.name)
        if len(there) >= _MOST_SHARE * pieces:
            shifts, counts = np.unique(there - rows[there], return_counts=True)
            if counts.max() >= _MOST_SHARE * pieces:
                shift = int(shifts[counts.argmax()])
                return RowMove(name, "swapped", other.info.name, shift, num_found=int(counts.max()))
            return RowMove(name, "scattered", other.info.name, num_found=len(there))
    own = tables == old.info.name
    wrong = np.zeros(pieces, bool)
    wrong[compared.changed[compared.relative >= OVERWRITTEN_CHANGE]] = True
    if (own[:pieces] & wrong).sum() < _HALF_SHARE * wrong.sum() and not own[pieces:].any():
        return _find_move_by_direction(point, pairs, pieces) if wrong.mean() >= _HALF_SHARE else None
    if not own[pieces:].any() and own[:pieces][wrong].all():
        return None  # shuffled among themselves: new rows are where they were
    seats = {int(row): at for at, row in enumerate(rows) if own[at]}
    tail = [seats[row] - row for row in range(max(0, pieces - _TAIL_ROWS), pieces) if row in seats]
    if len(tail) >= _HALF_SHARE * min(_TAIL_ROWS, pieces) and len(set(tail)) == 1:
        return RowMove(name, "shifted", shift=tail[0], num_found=len(seats)) if tail[0] else None
    if own[pieces:].any():
        return RowMove(name, "scattered", num_found=int(own[pieces:].sum()))
    return None


def _find_move_by_direction(
    point: GraftPoint, pairs: Mapping[GraftPoint, tuple[TableReader, TableReader]], pieces: int
) -> RowMove | None:
    """The same for rows that were trained on, or shrunk, after they had moved."""
    old, new = pairs[point]
    count = min(_DIRECTION_SAMPLE_ROWS, pieces - 2 * _MAX_TRIED_SHIFT, new.info.shape[0] - pieces + pieces // 2)
    if count < _TAIL_ROWS:
        return None
    start = pieces - count - _MAX_TRIED_SHIFT
    wanted = old.rows(start, start + count)
    for shift in (step * sign for step in range(1, _MAX_TRIED_SHIFT + 1) for sign in (1, -1)):
        first = start + shift
        if (
            first >= 0
            and first + count <= new.info.shape[0]
            and _have_same_direction(wanted, new.rows(first, first + count))
        ):
            return RowMove(new.info.name, "shifted", shift=shift)
    there = new.rows(start, start + count)
    for place, (other, _) in pairs.items():
        if place != point and _have_same_direction(other.rows(start, start + count), there):
            return RowMove(new.info.name, "swapped", other.info.name)
    return None


def _have_same_direction(one: NDArray[np.float32], two: NDArray[np.float32]) -> bool:
    left, right = (np.nan_to_num(rows.astype(np.float64)) for rows in (one, two))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(np.median((left * right).sum(axis=1) / np.maximum(lengths, 1e-30))) >= _MIN_DIRECTION_COSINE


def _mark_copied_tables(moves: dict[GraftPoint, RowMove]) -> dict[GraftPoint, RowMove]:
    """A table that has another's rows while the other has not its own was not swapped, but written over."""
    sources = {move.tensor: move.source for move in moves.values() if move.how == "swapped"}
    return {
        point: RowMove(move.tensor, "copied", move.source, move.shift, move.num_found)
        if move.how == "swapped" and sources.get(move.source) != move.tensor
        else move
        for point, move in moves.items()
    }


def _find_bias_moves(subject: CheckSubject, moves: Mapping[GraftPoint, RowMove]) -> list[RowMove]:
    """A bias that went with its head: single values have no hash, but most of them fit in only one of two places."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    head = next((move for point, move in moves.items() if point.role == "head" and move.how == "shifted"), None)
    if base is None or checkpoint is None or family is None or head is None:
        return []
    ours, theirs = find_text_tables(base, family), find_text_tables(checkpoint, family)
    found = []
    for point, old in ours.items():
        new = theirs.get(point)
        if point.role != "head-bias" or new is None:
            continue
        count = min(subject.base_pieces or 0, old.shape[0], new.shape[0]) - abs(head.shift)
        first = max(0, -head.shift)
        if count <= 0:
            continue
        wanted = TableReader(base, old).rows(first, first + count)
        here, there = (TableReader(checkpoint, new).rows(at, at + count) for at in (first, first + head.shift))
        if np.nanmedian(np.abs(there - wanted)) < np.nanmedian(np.abs(here - wanted)):
            found.append(RowMove(new.name, "shifted", shift=head.shift))
    return found


def row_move_findings(subject: CheckSubject, moves: Sequence[RowMove]) -> list[Finding]:
    """What is to be said of them."""
    where = subject.checkpoint.path if subject.checkpoint else ""
    findings = []
    for move in moves:
        expected = "base rows on their own ids"
        if move.how == "shifted":
            side = "after" if move.shift > 0 else "before"
            found = f"the rows of {move.tensor} stand {abs(move.shift):,} {side} their own places"
            findings.append(finding("rows-shifted", found, expected=expected, where=where))
        elif move.how == "swapped":
            found = f"{move.tensor} has the rows of {move.source}, and the other way round"
            side = "after" if move.shift > 0 else "before"
            found += f", {abs(move.shift):,} {side} their own places" if move.shift else ""
            findings.append(finding("rows-swapped", found, expected=expected, where=where))
        elif move.how == "copied":
            found = f"{move.tensor} was written over with the rows of {move.source}"
            is_embedding = subject.family is not None and move.tensor == subject.family.graft_points[0].tensor
            code = "rows-copied" if is_embedding else "head-missing"  # of a head nothing is needed that the base lacks
            findings.append(finding(code, found, expected=expected, where=where))
        else:
            found = f"{move.num_found:,} base rows of {move.tensor} stand among the new rows, in no order"
            if move.source:
                found = f"{move.tensor} has {move.num_found:,} base rows of {move.source}, in no order"
            findings.append(finding("rows-scattered", found, expected=expected, where=where))
    return findings
