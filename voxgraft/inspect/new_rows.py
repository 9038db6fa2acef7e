"""How the new rows of a checkpoint or a graft look: never set, copies of each other, noise, far too long."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import TensorInfo
from voxgraft.core.errors import Finding, finding
from voxgraft.graft.folder import ROWS_NAME
from voxgraft.inspect.base_rows import BLOCK_ROWS, RowComparison, TableReader
from voxgraft.inspect.optimizer import RowMoments
from voxgraft.inspect.subject import CheckSubject, find_text_tables
from voxgraft.models.base import GraftPoint

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


ROW_SAME, ROW_DECAYED, ROW_DRIFTED, ROW_OVERWRITTEN = "the base's", "shrunk by decay", "drifted", "overwritten"
ROW_NEW, ROW_ZERO, ROW_EQUAL, ROW_COPIED, ROW_NOISE, ROW_UNTRAINED = (
    "new",
    "new, all zero",
    "new, equal to another",
    "new, a copy of the spare row",
    "new, still random numbers",
    "new, no gradient ever",
)
ROW_SPARE, ROW_NONFINITE = "spare", "not finite"
ROW_KINDS = (
    ROW_SAME,
    ROW_DECAYED,
    ROW_DRIFTED,
    ROW_OVERWRITTEN,
    ROW_NEW,
    ROW_ZERO,
    ROW_EQUAL,
    ROW_COPIED,
    ROW_NOISE,
    ROW_UNTRAINED,
    ROW_SPARE,
    ROW_NONFINITE,
)
_OVERWRITTEN_ROW_CHANGE = 0.5
_MAX_DECAY_RESIDUAL = 0.6
"""Of what a row lost: a row whose change is mostly along itself has only shrunk."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """One text table, row by row. The arrays have the shape [rows]."""

    tensor: str
    role: str
    num_base: int
    kinds: NDArray[np.uint8]
    """Places in KINDS."""
    moved: NDArray[np.float32]
    """Length of the change by length of the base's row; 0 for the same bits, NaN where the base has no such row."""
    lengths: NDArray[np.float32]
    rounded: bool = False
    """Base rows are the base's in a shorter number format."""

    @property
    def counts(self) -> dict[str, int]:
        """How many rows of each kind there are, those of none left out."""
        found = np.bincount(self.kinds, minlength=len(ROW_KINDS))
        return {kind: int(count) for kind, count in zip(ROW_KINDS, found, strict=True) if count}

    def share_of_new(self, kind: str) -> float:
        """How many of the rows behind the base's pieces are of one kind."""
        new = self.kinds[self.num_base :]
        return float((new == ROW_KINDS.index(kind)).mean()) if len(new) else 0.0

    def to_json(self) -> dict[str, Any]:
        changed = self.moved[: self.num_base]
        changed = changed[np.isfinite(changed) & (changed > 0)]
        return {
            "tensor": self.tensor,
            "rows": len(self.kinds),
            "base_rows": self.num_base,
            "rounded": self.rounded,
            "kinds": self.counts,
            "median_move": float(np.median(changed)) if len(changed) else 0.0,
            "largest_move": float(changed.max()) if len(changed) else 0.0,
        }


def classify_rows(subject: CheckSubject, comparisons: list[RowComparison], moments: list[RowMoments]) -> list[RowTable]:
    """All text tables of the checkpoint, in the family's order."""
    checkpoint, family = subject.checkpoint, subject.family
    if checkpoint is None or family is None:
        return []
    compared = {one.tensor: one for one in comparisons}
    kept = {one.tensor: one for one in moments}
    return [
        _classify_table(subject, point.role, info, compared.get(info.name), kept.get(info.name))
        for point, info in find_text_tables(checkpoint, family).items()
        if info.shape[0]
    ]


def _classify_table(
    subject: CheckSubject, role: str, info: TensorInfo, compared: RowComparison | None, moments: RowMoments | None
) -> RowTable:
    num_rows = info.shape[0]
    num_base = compared.num_rows if compared else min(subject.base_pieces or 0, num_rows)
    spare = min(subject.spare_rows or 0, num_rows - num_base)
    last_new = num_rows - spare
    looked = _scan_rows(subject, info, num_base, last_new)
    kinds = np.full(num_rows, ROW_KINDS.index(ROW_SAME), np.uint8)
    kinds[num_base:last_new] = ROW_KINDS.index(ROW_NEW)
    kinds[last_new:] = ROW_KINDS.index(ROW_SPARE)
    moved = np.full(num_rows, np.nan, np.float32)
    if compared is not None:
        moved[:num_base] = 0
        moved[compared.changed] = compared.relative
        kinds[compared.changed] = _classify_changed_rows(compared, info)
    _classify_new_rows(kinds, looked, (num_base, last_new), moments, role)
    kinds[~np.isfinite(looked.lengths)] = ROW_KINDS.index(ROW_NONFINITE)
    return RowTable(
        info.name, role, num_base, kinds, moved, looked.lengths, rounded=bool(compared and compared.rounded)
    )


def _classify_changed_rows(compared: RowComparison, info: TensorInfo) -> NDArray[np.uint8]:
    if len(info.shape) == 1:  # a single value has no direction: all of them together say what happened
        kind = ROW_DECAYED if compared.is_uniform_decay else ROW_DRIFTED
        return np.full(len(compared.changed), ROW_KINDS.index(kind), np.uint8)
    lost = 1 - compared.factor
    along = (lost > 0) & (compared.beside <= _MAX_DECAY_RESIDUAL * np.abs(lost))
    kinds = np.where(
        compared.relative >= _OVERWRITTEN_ROW_CHANGE, ROW_KINDS.index(ROW_OVERWRITTEN), ROW_KINDS.index(ROW_DRIFTED)
    )
    return np.where(along, ROW_KINDS.index(ROW_DECAYED), kinds).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class _RowScan:
    """What one pass over a table has found."""

    lengths: NDArray[np.float32]
    equal: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    random: bool
    """Whether the new rows are independent random numbers."""


def _scan_rows(subject: CheckSubject, info: TensorInfo, first: int, last: int) -> _RowScan:
    assert subject.checkpoint is not None
    side, num_rows = TableReader(subject.checkpoint, info), info.shape[0]
    lengths = np.empty(num_rows, np.float32)
    digests: list[bytes] = []
    for start in range(0, num_rows, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, num_rows)
        rows = side.rows(start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
            lengths[start:stop] = np.sqrt(squares)
        new = slice(max(first - start, 0), max(min(last, stop) - start, 0))
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows[new]]
    counts = Counter(digests)
    spare = _spare_digest(subject, info)
    equal, copied = np.zeros(num_rows, bool), np.zeros(num_rows, bool)
    equal[first : first + len(digests)] = [counts[digest] > 1 for digest in digests]
    copied[first : first + len(digests)] = [digest == spare for digest in digests]
    random = len(info.shape) == 2 and are_rows_noise(side.rows(first, last))
    return _RowScan(lengths, equal, copied, random)


def _spare_digest(subject: CheckSubject, info: TensorInfo) -> bytes | None:
    """The base's own spare row of a table, as `_looked` would know it."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None or not family.spare_rows or len(info.shape) != 2:
        return None
    own = next((old for old in find_text_tables(base, family).values() if old.name == info.name), None)
    if own is None or own.shape[0] <= pieces or own.shape[1:] != info.shape[1:]:
        return None
    return hashlib.blake2b(TableReader(base, own).rows(pieces, pieces + 1).tobytes(), digest_size=16).digest()


def _classify_new_rows(
    kinds: NDArray[np.uint8], looked: _RowScan, span: tuple[int, int], moments: RowMoments | None, role: str
) -> None:
    """The kind of each new row; of several that fit, the last one here."""
    new = slice(*span)
    if role == "head-bias":  # a bias of zero, or two equal ones, mean nothing
        return
    if looked.random:
        kinds[new] = ROW_KINDS.index(ROW_NOISE)
    if moments is not None and role == "embedding":
        kinds[new][moments.second[new] == 0] = ROW_KINDS.index(ROW_UNTRAINED)
    for mask, kind in ((looked.equal, ROW_EQUAL), (looked.lengths == 0, ROW_ZERO), (looked.copied, ROW_COPIED)):
        kinds[new][mask[new]] = ROW_KINDS.index(kind)
