"""Every row of a text table by what became of it. Reads tables a block at a time; judges nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.model import TensorInfo
from voxgraft.findings.base_rows import BLOCK_ROWS, Comparison, Side
from voxgraft.findings.new_rows import is_noise
from voxgraft.findings.optimizer import RowMoments
from voxgraft.findings.subject import Subject
from voxgraft.findings.text_tables import text_tables

__all__ = ["KINDS", "RowTable", "row_tables"]

SAME, DECAYED, DRIFTED, OVERWRITTEN = "the base's", "shrunk by decay", "drifted", "overwritten"
NEW, ZERO, EQUAL, COPIED, NOISE, UNTRAINED = (
    "new",
    "new, all zero",
    "new, equal to another",
    "new, a copy of the spare row",
    "new, still random numbers",
    "new, no gradient ever",
)
SPARE, BROKEN = "spare", "not finite"
KINDS = (SAME, DECAYED, DRIFTED, OVERWRITTEN, NEW, ZERO, EQUAL, COPIED, NOISE, UNTRAINED, SPARE, BROKEN)
_OVERWRITTEN = 0.5
_BESIDE = 0.6
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
        found = np.bincount(self.kinds, minlength=len(KINDS))
        return {kind: int(count) for kind, count in zip(KINDS, found, strict=True) if count}

    def share_of_new(self, kind: str) -> float:
        """How many of the rows behind the base's pieces are of one kind."""
        new = self.kinds[self.num_base :]
        return float((new == KINDS.index(kind)).mean()) if len(new) else 0.0

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


def row_tables(subject: Subject, comparisons: list[Comparison], moments: list[RowMoments]) -> list[RowTable]:
    """All text tables of the checkpoint, in the family's order."""
    checkpoint, family = subject.checkpoint, subject.family
    if checkpoint is None or family is None:
        return []
    compared = {one.tensor: one for one in comparisons}
    kept = {one.tensor: one for one in moments}
    return [
        _table(subject, point.role, info, compared.get(info.name), kept.get(info.name))
        for point, info in text_tables(checkpoint, family).items()
        if info.shape[0]
    ]


def _table(
    subject: Subject, role: str, info: TensorInfo, compared: Comparison | None, moments: RowMoments | None
) -> RowTable:
    num_rows = info.shape[0]
    num_base = compared.num_rows if compared else min(subject.base_pieces or 0, num_rows)
    spare = min(subject.spare_rows or 0, num_rows - num_base)
    last_new = num_rows - spare
    looked = _looked(subject, info, num_base, last_new)
    kinds = np.full(num_rows, KINDS.index(SAME), np.uint8)
    kinds[num_base:last_new] = KINDS.index(NEW)
    kinds[last_new:] = KINDS.index(SPARE)
    moved = np.full(num_rows, np.nan, np.float32)
    if compared is not None:
        moved[:num_base] = 0
        moved[compared.changed] = compared.relative
        kinds[compared.changed] = _base_kinds(compared, info)
    _mark_new(kinds, looked, (num_base, last_new), moments, role)
    kinds[~np.isfinite(looked.lengths)] = KINDS.index(BROKEN)
    return RowTable(
        info.name, role, num_base, kinds, moved, looked.lengths, rounded=bool(compared and compared.rounded)
    )


def _base_kinds(compared: Comparison, info: TensorInfo) -> NDArray[np.uint8]:
    if len(info.shape) == 1:  # a single value has no direction: all of them together say what happened
        kind = DECAYED if compared.shrank_together else DRIFTED
        return np.full(len(compared.changed), KINDS.index(kind), np.uint8)
    lost = 1 - compared.factor
    along = (lost > 0) & (compared.beside <= _BESIDE * np.abs(lost))
    kinds = np.where(compared.relative >= _OVERWRITTEN, KINDS.index(OVERWRITTEN), KINDS.index(DRIFTED))
    return np.where(along, KINDS.index(DECAYED), kinds).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What one pass over a table has found."""

    lengths: NDArray[np.float32]
    equal: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    random: bool
    """Whether the new rows are independent random numbers."""


def _looked(subject: Subject, info: TensorInfo, first: int, last: int) -> _Looked:
    assert subject.checkpoint is not None
    side, num_rows = Side(subject.checkpoint, info), info.shape[0]
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
    random = len(info.shape) == 2 and is_noise(side.rows(first, last))
    return _Looked(lengths, equal, copied, random)


def _spare_digest(subject: Subject, info: TensorInfo) -> bytes | None:
    """The base's own spare row of a table, as `_looked` would know it."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None or not family.spare_rows or len(info.shape) != 2:
        return None
    own = next((old for old in text_tables(base, family).values() if old.name == info.name), None)
    if own is None or own.shape[0] <= pieces or own.shape[1:] != info.shape[1:]:
        return None
    return hashlib.blake2b(Side(base, own).rows(pieces, pieces + 1).tobytes(), digest_size=16).digest()


def _mark_new(
    kinds: NDArray[np.uint8], looked: _Looked, span: tuple[int, int], moments: RowMoments | None, role: str
) -> None:
    """The kind of each new row; of several that fit, the last one here."""
    new = slice(*span)
    if role == "head-bias":  # a bias of zero, or two equal ones, mean nothing
        return
    if looked.random:
        kinds[new] = KINDS.index(NOISE)
    if moments is not None and role == "embedding":
        kinds[new][moments.second[new] == 0] = KINDS.index(UNTRAINED)
    for mask, kind in ((looked.equal, EQUAL), (looked.lengths == 0, ZERO), (looked.copied, COPIED)):
        kinds[new][mask[new]] = KINDS.index(kind)
