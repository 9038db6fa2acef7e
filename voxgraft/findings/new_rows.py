"""How the new rows of a checkpoint or a graft look: never set, copies of each other, noise, far too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.errors import Finding, finding
from voxgraft.families.base import GraftPoint
from voxgraft.findings.subject import Subject
from voxgraft.findings.text_tables import text_tables
from voxgraft.graft_folder import ROWS_NAME

Array = NDArray[np.float32]
_FEWEST_FOR_STATISTICS = 100
_SHARED_BY_CHANCE = 2.0
"""Independent rows around zero share 1 of the direction measured in `_shared`, give or take; learnt rows far more."""
_LARGEST_SCALE = 4.0
_SAMPLE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    new: Array
    """[rows, width]"""
    base_norm: float
    where: Path


def new_row_findings(subject: Subject) -> list[Finding]:
    """One finding per fault and table, of the checkpoint if there is one, else of the graft."""
    findings: list[Finding] = []
    for table in _tables(subject):
        zero = ~table.new.any(axis=1)
        rest = table.new[~zero]
        if zero.any():
            found = f"{int(zero.sum()):,} of {len(table.new):,} new rows of {table.name} are all zero"
            findings.append(finding("new-rows-zero", found, where=table.where))
        if len(rest):
            findings += _copy_findings(table, rest) or _statistic_findings(table, rest)
    return findings


def _tables(subject: Subject) -> Iterator[_Table]:
    """Two-dimensional tables only: a bias of zero, or two equal ones, mean nothing."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None:
        return
    for point, info in text_tables(base, family).items():
        if point.role == "head-bias":
            continue
        sample = base.read_rows(info.name, 0, min(pieces, _SAMPLE_ROWS, info.shape[0]))
        base_norm = _length(sample) if len(sample) and np.isfinite(sample).all() else 0.0
        new, where = _new_rows(subject, point, pieces)
        if len(new) and np.isfinite(new).all():
            yield _Table(info.name, new, base_norm, where)


def _new_rows(subject: Subject, point: GraftPoint, pieces: int) -> tuple[Array, Path]:
    """Of the checkpoint if there is one, else of the graft."""
    nothing = np.empty((0, 1), np.float32)
    if (checkpoint := subject.checkpoint) is None or subject.family is None:
        graft = subject.graft
        return (graft.rows.get(point.tensor, nothing), graft.folder / ROWS_NAME) if graft else (nothing, Path())
    info = text_tables(checkpoint, subject.family).get(point)
    stop = info.shape[0] - subject.family.spare_rows if info else 0
    if info is None or stop <= pieces:
        return nothing, checkpoint.path
    return checkpoint.read_rows(info.name, pieces, stop).astype(np.float32, copy=False), checkpoint.path


def _copy_findings(table: _Table, rows: Array) -> list[Finding]:
    counts = Counter(row.tobytes() for row in rows)
    copies = sum(count for count in counts.values() if count > 1)
    if not copies:
        return []
    kinds = sum(count > 1 for count in counts.values())
    how = "are equal" if kinds == 1 else f"stand in {kinds:,} groups of equal rows"
    found = f"{copies:,} of {len(table.new):,} new rows of {table.name} {how}, bit for bit"
    return [finding("new-rows-equal", found, where=table.where)]


def _statistic_findings(table: _Table, rows: Array) -> list[Finding]:
    findings: list[Finding] = []
    norm = _length(rows)
    if table.base_norm and norm > _LARGEST_SCALE * table.base_norm:  # an average of rows may well be short
        found = f"new rows of {table.name} have length {norm:.3g} on average, base rows {table.base_norm:.3g}"
        expected = f"at most {_LARGEST_SCALE:.0f} times as long"
        findings.append(finding("new-rows-scale", found, expected=expected, where=table.where))
    if looks_random(_shared(rows), len(rows)):
        found = f"the {len(rows):,} new rows of {table.name} look like independent random numbers"
        findings.append(finding("new-rows-random", found, where=table.where))
    return findings


def shared_direction(total: NDArray[np.float64], power: float, num_rows: int) -> float:
    """Squared length of the mean row, by what it would be for independent rows around zero.

    `total` is the sum of all rows, `power` the sum of all squared values.
    """
    return float((total @ total) / max(power, 1e-30)) if num_rows else 0.0


def looks_random(shared: float, num_rows: int) -> bool:
    """Whether rows share no more than independent numbers would; of few rows nothing can be said."""
    return num_rows >= _FEWEST_FOR_STATISTICS and shared < _SHARED_BY_CHANCE


def _length(rows: NDArray[np.generic]) -> float:
    """Of an average row. In float64, since the square of a ruined value may not fit in float32."""
    return float(np.sqrt(_squares(rows)).mean())


def _shared(rows: Array) -> float:
    return shared_direction(rows.sum(axis=0, dtype=np.float64), float(_squares(rows).sum()), len(rows))


def _squares(rows: NDArray[np.generic]) -> NDArray[np.float64]:
    """Squared length of each row, without a copy of all rows in float64."""
    floats: NDArray[np.floating[Any]] = rows.astype(np.float32, copy=False)
    return np.asarray(np.einsum("ij,ij->i", floats, floats, dtype=np.float64))
