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
from voxgraft.findings.base_rows import BLOCK_ROWS, OVERWRITTEN, Comparison, Side
from voxgraft.findings.body import rounded
from voxgraft.findings.subject import Subject
from voxgraft.findings.text_tables import text_tables

__all__ = ["Move", "move_findings", "moves_of"]

How = Literal["shifted", "swapped", "copied", "scattered"]
_TAIL = 32
"""Base rows before the first new one: where these went, the new ones behind them went."""
_MOST, _HALF = 0.9, 0.5
_NEAR = 0.9
"""Median cosine of rows that were trained on after they had moved."""
_FARTHEST = 4
"""Shifts that are tried by direction; by hash any shift is found."""
_SAMPLE = 256
Hashes = dict[bytes, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Move:
    """What happened to the rows of one table of a checkpoint."""

    tensor: str
    how: How
    source: str = ""
    """The table whose rows stand here, if it is another."""
    shift: int = 0
    """How many rows behind their places new rows stand."""
    num_found: int = 0


def moves_of(subject: Subject, comparisons: Sequence[Comparison]) -> list[Move]:
    """Tables whose new rows are not in their places, by what the base rows show. Most checkpoints have none."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return []
    ours, theirs = text_tables(base, family), text_tables(checkpoint, family)
    compared = {one.tensor: one for one in comparisons}
    pairs = {
        point: (Side(base, old), Side(checkpoint, theirs[point]))
        for point, old in ours.items()
        if point in theirs and len(old.shape) == 2 and old.shape[1:] == theirs[point].shape[1:]
    }
    odd = [
        point
        for point, (_, new) in pairs.items()
        if (one := compared.get(new.info.name)) is not None and bool((one.relative >= OVERWRITTEN).any())
    ]
    if not odd:
        return []
    moves: dict[GraftPoint, Move] = {}
    known = {shape: _hashes(pairs, subject.base_pieces or 0, shape) for shape in ("", "BF16", "F16")}
    for point in odd:
        if (move := _move(point, pairs, known, compared[pairs[point][1].info.name])) is not None:
            moves[point] = move
    return [*_with_swaps(moves).values(), *_bias_moves(subject, moves)]


def _hashes(pairs: Mapping[GraftPoint, tuple[Side, Side]], pieces: int, dtype: str) -> Hashes:
    """Base rows by their bits in a format; rows that are there twice, or zero, show nothing."""
    found: Hashes = {}
    twice: set[bytes] = set()
    for old, new in pairs.values():
        stored = dtype or new.info.dtype
        for start in range(0, min(pieces, old.info.shape[0]), BLOCK_ROWS):
            rows = old.rows(start, min(start + BLOCK_ROWS, pieces, old.info.shape[0]))
            for at, key in enumerate(_digests(rows if stored == "F32" else rounded(rows, stored)), start):
                if key in found or not key:
                    twice.add(key)
                found[key] = (old.info.name, at)
    return {key: value for key, value in found.items() if key not in twice}


def _digests(rows: NDArray[np.float32]) -> list[bytes]:
    """Empty for a row of zeros."""
    some = np.asarray(rows.any(axis=1)).tolist()
    return [
        hashlib.blake2b(row.tobytes(), digest_size=16).digest() if is_some else b""
        for row, is_some in zip(rows, some, strict=True)
    ]


def _move(
    point: GraftPoint,
    pairs: Mapping[GraftPoint, tuple[Side, Side]],
    known: Mapping[str, Hashes],
    compared: Comparison,
) -> Move | None:
    old, new = pairs[point]
    pieces, name = compared.num_rows, new.info.name
    digests: list[bytes] = []
    for start in range(0, new.info.shape[0], BLOCK_ROWS):
        digests += _digests(new.rows(start, min(start + BLOCK_ROWS, new.info.shape[0])))
    places = max(
        (np.array([hashes.get(key, ("", -1)) for key in digests], dtype=object) for hashes in known.values()),
        key=lambda found: int((found[:, 1] >= 0).sum()),
    )
    tables, rows = places[:, 0], places[:, 1].astype(np.int64)
    for other, _ in (pair for place, pair in pairs.items() if place != point):
        there = np.flatnonzero(tables == other.info.name)
        if len(there) >= _MOST * pieces:
            shifts, counts = np.unique(there - rows[there], return_counts=True)
            if counts.max() >= _MOST * pieces:
                shift = int(shifts[counts.argmax()])
                return Move(name, "swapped", other.info.name, shift, num_found=int(counts.max()))
            return Move(name, "scattered", other.info.name, num_found=len(there))
    own = tables == old.info.name
    wrong = np.zeros(pieces, bool)
    wrong[compared.changed[compared.relative >= OVERWRITTEN]] = True
    if (own[:pieces] & wrong).sum() < _HALF * wrong.sum() and not own[pieces:].any():
        return _by_direction(point, pairs, pieces) if wrong.mean() >= _HALF else None
    if not own[pieces:].any() and own[:pieces][wrong].all():
        return None  # shuffled among themselves: new rows are where they were
    seats = {int(row): at for at, row in enumerate(rows) if own[at]}
    tail = [seats[row] - row for row in range(max(0, pieces - _TAIL), pieces) if row in seats]
    if len(tail) >= _HALF * min(_TAIL, pieces) and len(set(tail)) == 1:
        return Move(name, "shifted", shift=tail[0], num_found=len(seats)) if tail[0] else None
    if own[pieces:].any():
        return Move(name, "scattered", num_found=int(own[pieces:].sum()))
    return None


def _by_direction(point: GraftPoint, pairs: Mapping[GraftPoint, tuple[Side, Side]], pieces: int) -> Move | None:
    """The same for rows that were trained on, or shrunk, after they had moved."""
    old, new = pairs[point]
    count = min(_SAMPLE, pieces - 2 * _FARTHEST, new.info.shape[0] - pieces + pieces // 2)
    if count < _TAIL:
        return None
    start = pieces - count - _FARTHEST
    wanted = old.rows(start, start + count)
    for shift in (step * sign for step in range(1, _FARTHEST + 1) for sign in (1, -1)):
        first = start + shift
        if first >= 0 and first + count <= new.info.shape[0] and _is_near(wanted, new.rows(first, first + count)):
            return Move(new.info.name, "shifted", shift=shift)
    there = new.rows(start, start + count)
    for place, (other, _) in pairs.items():
        if place != point and _is_near(other.rows(start, start + count), there):
            return Move(new.info.name, "swapped", other.info.name)
    return None


def _is_near(one: NDArray[np.float32], two: NDArray[np.float32]) -> bool:
    left, right = (np.nan_to_num(rows.astype(np.float64)) for rows in (one, two))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(np.median((left * right).sum(axis=1) / np.maximum(lengths, 1e-30))) >= _NEAR


def _with_swaps(moves: dict[GraftPoint, Move]) -> dict[GraftPoint, Move]:
    """A table that has another's rows while the other has not its own was not swapped, but written over."""
    sources = {move.tensor: move.source for move in moves.values() if move.how == "swapped"}
    return {
        point: Move(move.tensor, "copied", move.source, move.shift, move.num_found)
        if move.how == "swapped" and sources.get(move.source) != move.tensor
        else move
        for point, move in moves.items()
    }


def _bias_moves(subject: Subject, moves: Mapping[GraftPoint, Move]) -> list[Move]:
    """A bias that went with its head: single values have no hash, but most of them fit in only one of two places."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    head = next((move for point, move in moves.items() if point.role == "head" and move.how == "shifted"), None)
    if base is None or checkpoint is None or family is None or head is None:
        return []
    ours, theirs = text_tables(base, family), text_tables(checkpoint, family)
    found = []
    for point, old in ours.items():
        new = theirs.get(point)
        if point.role != "head-bias" or new is None:
            continue
        count = min(subject.base_pieces or 0, old.shape[0], new.shape[0]) - abs(head.shift)
        first = max(0, -head.shift)
        if count <= 0:
            continue
        wanted = Side(base, old).rows(first, first + count)
        here, there = (Side(checkpoint, new).rows(at, at + count) for at in (first, first + head.shift))
        if np.nanmedian(np.abs(there - wanted)) < np.nanmedian(np.abs(here - wanted)):
            found.append(Move(new.name, "shifted", shift=head.shift))
    return found


def move_findings(subject: Subject, moves: Sequence[Move]) -> list[Finding]:
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
