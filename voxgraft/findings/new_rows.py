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
from voxgraft.findings.subject import CheckSubject
from voxgraft.findings.text_tables import find_text_tables
from voxgraft.graft_folder import ROWS_NAME

NewRowArray = NDArray[np.float32]
_MIN_ROWS_FOR_STATISTICS = 100
_CHANCE_SHARED_DIRECTION = 2.0
"""Independent rows around zero share 1 of the direction measured in `are_rows_noise`, give or take; learnt rows far more."""
_COMMON_DRIFT = 0.1
"""By length of a row: a step that all rows took together, as weight decay, a head's bias or one bad batch gives them.
Of many rows even a small one adds up in their sum, and shows nothing of what single rows have learnt."""
_STRUCTURE_FACTOR = 1.3
"""The longest direction of independent rows is this much longer than expected only by something that was learnt."""
_POWER_ITERATIONS = 12
_MAX_MEAN_SCALE = 4.0
_MAX_ROW_SCALE = 10.0
"""By the base's longest row: a single new row that is longer drowns its sentence."""
_LARGEST_BIAS = 50.0
"""Logits. A softmax with such an offset (a factor of exp(50)) gives the same answer whatever the input is. Ten times
the base's largest bias is allowed where that is more."""
_SAMPLE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class _NewRowTable:
    name: str
    new: NewRowArray
    """[rows, width]"""
    base_norm: float
    longest: float
    """Of the base's rows."""
    where: Path


def new_row_findings(subject: CheckSubject) -> list[Finding]:
    """One finding per fault and table, of the checkpoint if there is one, else of the graft."""
    findings: list[Finding] = []
    for table in _read_new_row_tables(subject):
        zero = ~table.new.any(axis=1)
        rest = table.new[~zero]
        if zero.any():
            found = f"{int(zero.sum()):,} of {len(table.new):,} new rows of {table.name} are all zero"
            findings.append(finding("new-rows-zero", found, where=table.where))
        if len(rest):
            findings += _equal_row_findings(table, rest) or _row_statistics_findings(table, rest)
    return findings + _bias_findings(subject)


def _bias_findings(subject: CheckSubject) -> list[Finding]:
    """Biases of new rows that outweigh everything else in the head."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None:
        return []
    findings: list[Finding] = []
    for point, info in find_text_tables(base, family).items():
        if point.role != "head-bias":
            continue
        own = np.abs(base.read_rows(info.name, 0, min(pieces, info.shape[0])).astype(np.float64))
        limit = max(_LARGEST_BIAS, _MAX_ROW_SCALE * float(own.max(initial=0.0, where=np.isfinite(own))))
        new, where = _read_new_rows(subject, point, pieces)
        sizes = np.abs(new.astype(np.float64).reshape(-1))
        large = np.isfinite(sizes) & (sizes > limit)  # values that are not finite have a finding of their own
        if large.any():
            most = float(sizes[large].max())
            found = f"{int(large.sum()):,} of {len(sizes):,} new values of {info.name} are up to {most:,.3g} in size"
            findings.append(finding("new-rows-scale", found, expected=f"at most {limit:,.3g}", where=where))
    return findings


def _read_new_row_tables(subject: CheckSubject) -> Iterator[_NewRowTable]:
    """Two-dimensional tables only: a bias of zero, or two equal ones, mean nothing."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None:
        return
    for point, info in find_text_tables(base, family).items():
        if point.role == "head-bias":
            continue
        sample = base.read_rows(info.name, 0, min(pieces, _SAMPLE_ROWS, info.shape[0]))
        base_norm = _mean_row_norm(sample) if len(sample) and np.isfinite(sample).all() else 0.0
        new, where = _read_new_rows(subject, point, pieces)
        if len(new) and np.isfinite(new).all():
            longest = float(np.sqrt(_squared_row_norms(sample).max())) if base_norm else 0.0
            yield _NewRowTable(info.name, new, base_norm, longest, where)


def _read_new_rows(subject: CheckSubject, point: GraftPoint, pieces: int) -> tuple[NewRowArray, Path]:
    """Of the checkpoint if there is one, else of the graft."""
    nothing = np.empty((0, 1), np.float32)
    if (checkpoint := subject.checkpoint) is None or subject.family is None:
        graft = subject.graft
        return (graft.rows.get(point.tensor, nothing), graft.folder / ROWS_NAME) if graft else (nothing, Path())
    info = find_text_tables(checkpoint, subject.family).get(point)
    stop = info.shape[0] - subject.family.spare_rows if info else 0
    if info is None or stop <= pieces:
        return nothing, checkpoint.path
    return checkpoint.read_rows(info.name, pieces, stop).astype(np.float32, copy=False), checkpoint.path


def _equal_row_findings(table: _NewRowTable, rows: NewRowArray) -> list[Finding]:
    counts = Counter(row.tobytes() for row in rows)
    copies = sum(count for count in counts.values() if count > 1)
    if not copies:
        return []
    kinds = sum(count > 1 for count in counts.values())
    how = "are equal" if kinds == 1 else f"stand in {kinds:,} groups of equal rows"
    found = f"{copies:,} of {len(table.new):,} new rows of {table.name} {how}, bit for bit"
    return [finding("new-rows-equal", found, where=table.where)]


def _row_statistics_findings(table: _NewRowTable, rows: NewRowArray) -> list[Finding]:
    findings: list[Finding] = []
    norm = _mean_row_norm(rows)
    if table.base_norm and norm > _MAX_MEAN_SCALE * table.base_norm:  # an average of rows may well be short
        times = f"{norm / table.base_norm:,.3g} times as long as base rows"
        found = f"new rows of {table.name} are {times} ({norm:.3g} and {table.base_norm:.3g} on average)"
        expected = f"at most {_MAX_MEAN_SCALE:.0f} times as long"
        findings.append(finding("new-rows-scale", found, expected=expected, where=table.where))
    elif table.longest and (long := np.sqrt(_squared_row_norms(rows)) > _MAX_ROW_SCALE * table.longest).any():
        most = float(np.sqrt(_squared_row_norms(rows).max())) / table.longest
        found = f"{int(long.sum()):,} new rows of {table.name} are up to {most:,.3g} times as long as any base row"
        expected = f"at most {_MAX_ROW_SCALE:.0f} times as long"
        findings.append(finding("new-rows-scale", found, expected=expected, where=table.where))
    if are_rows_noise(rows):
        found = f"the {len(rows):,} new rows of {table.name} look like independent random numbers"
        findings.append(finding("new-rows-random", found, where=table.where))
    return findings


def are_rows_noise(rows: NewRowArray) -> bool:
    """Whether rows [rows, width] are independent random numbers, give or take a small step that all took together.

    Of few rows nothing can be said. Rows that were learnt share directions, their mean or others.
    """
    rows = rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)]
    if len(rows) < _MIN_ROWS_FOR_STATISTICS:
        return False
    lengths: NewRowArray = np.sqrt(_squared_row_norms(rows)).astype(np.float32)
    even: NewRowArray = rows / lengths[:, None]  # a few long rows would outweigh all others
    total = even.sum(axis=0, dtype=np.float64)
    shared = float(total @ total) / len(even)  # 1 for independent rows around zero
    return shared < max(_CHANCE_SHARED_DIRECTION, 1 + _COMMON_DRIFT**2 * len(even)) and not _has_structure(even)


def _has_structure(even: NewRowArray) -> bool:
    """Whether one direction beside the mean is longer than it could be by chance (the edge of Marchenko and Pastur).

    A few rounds of power iteration come close enough to the longest one.
    """
    num_rows, width = even.shape
    even = even - even.mean(axis=0)
    vector: NewRowArray = np.random.default_rng(0).standard_normal((width,)).astype(np.float32)
    longest = 0.0
    for _ in range(_POWER_ITERATIONS):
        vector = vector / np.float32(max(float(np.linalg.norm(vector)), 1e-30))
        vector = even.T @ (even @ vector)
        longest = float(np.linalg.norm(vector))
    by_chance = float(_squared_row_norms(even).sum()) / width * (1 + np.sqrt(width / num_rows)) ** 2
    return bool(longest > _STRUCTURE_FACTOR * by_chance)


def _mean_row_norm(rows: NDArray[np.generic]) -> float:
    """Of an average row. In float64, since the square of a ruined value may not fit in float32."""
    return float(np.sqrt(_squared_row_norms(rows)).mean())


def _squared_row_norms(rows: NDArray[np.generic]) -> NDArray[np.float64]:
    """Squared length of each row, without a copy of all rows in float64."""
    floats: NDArray[np.floating[Any]] = rows.astype(np.float32, copy=False)
    return np.asarray(np.einsum("ij,ij->i", floats, floats, dtype=np.float64))
