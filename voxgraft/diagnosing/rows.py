"""Every row of a text table by what became of it. Reads tables a block at a time; judges nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.model import TensorInfo
from voxgraft.findings.base_rows import BLOCK_ROWS, RowComparison, TableReader
from voxgraft.findings.new_rows import are_rows_noise
from voxgraft.findings.optimizer import RowMoments
from voxgraft.findings.subject import CheckSubject
from voxgraft.findings.text_tables import find_text_tables

__all__ = ["ROW_KINDS", "RowTable", "classify_rows"]

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
