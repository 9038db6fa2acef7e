"""Promise 2 for a checkpoint of anyone's: are the base's rows still the base's bits, and where is the spare row?"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import Checkpoint, TensorInfo
from voxgraft.core import progress
from voxgraft.core.errors import Finding, finding
from voxgraft.inspect.body import round_to_dtype
from voxgraft.inspect.subject import CheckSubject, find_text_tables
from voxgraft.models.base import GraftPoint

RowArray = NDArray[np.float32]
BLOCK_ROWS = 512
"""Measures are taken in float64: eight copies of a block of full width stay under 50 MB."""
SPARE_SAMPLE_ROWS = 1024
"""New rows that are enough to see how the first differs from the others."""
OVERWRITTEN_CHANGE = 0.5
"""A typical change of half a row's length or more is no training: the row was written anew."""
_DECAY_SPREAD = 0.6
"""Decay in float32 rounds to whole units in the last place, so that rows and values shrink a little unevenly."""
_DECAY_ROUNDING = 1e-4
"""By length of a row: what is left beside a multiple of it after many steps of decay in float32, and far less than
training leaves."""
_TRAINED_COPY_COSINE, _OTHER_ROWS_COSINE = 0.9, 0.5
"""Cosines to the base's spare row: of a row that was copied from it and then trained, and of most others."""


@dataclass(frozen=True, slots=True)
class TableReader:
    """One of two tables that are compared."""

    checkpoint: Checkpoint
    info: TensorInfo

    def rows(self, start: int, stop: int) -> RowArray:
        """Some rows as float32 [rows, width]; a bias has width 1."""
        values = self.checkpoint.read_rows(self.info.name, start, stop)
        return np.ascontiguousarray(values, dtype=np.float32).reshape(stop - start, *self.info.shape[1:] or (1,))


@dataclass(frozen=True, slots=True)
class RowComparison:
    """One table against the base's, row by row. The arrays have an entry per row that differs."""

    tensor: str
    num_rows: int
    rounded: bool
    """The rows differ only by the checkpoint's shorter number format."""
    changed: NDArray[np.int64]
    relative: NDArray[np.float64]
    """Length of the difference by length of the base's row."""
    factor: NDArray[np.float64]
    """The multiple of the base's row that lies nearest."""
    beside: NDArray[np.float64]
    """What is left beside that multiple, by length of the base's row."""

    @property
    def is_uniform_decay(self) -> bool:
        """Whether all rows became the same, smaller multiple of themselves."""
        if len(self.changed) < max(2, 0.99 * self.num_rows):
            return False
        loss = 1 - float(np.median(self.factor))
        near = np.abs(1 - self.factor - loss) <= _DECAY_SPREAD * abs(loss)
        clean = self.beside <= _DECAY_SPREAD * abs(loss)
        return loss > 0 and bool(np.mean(near & clean) >= 0.99)


def base_row_findings(subject: CheckSubject) -> list[Finding]:
    """Which base rows are not the base's bits, how far they moved, and whether weight decay explains it."""
    return row_comparison_findings(subject, compare_base_rows(subject))


def compare_base_rows(subject: CheckSubject) -> list[RowComparison]:
    """Every text table whose rows are as wide as the base's, against the base's own."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return []
    ours, theirs = find_text_tables(base, family), find_text_tables(checkpoint, family)
    found = []
    for point, old in ours.items():
        new = theirs.get(point)
        if new is None or old.shape[1:] != new.shape[1:]:
            continue
        num_rows = min(subject.base_pieces or old.shape[0] - family.spare_rows, old.shape[0], new.shape[0])
        found.append(_compare_rows(TableReader(base, old), TableReader(checkpoint, new), num_rows))
    return found


def row_comparison_findings(
    subject: CheckSubject, comparisons: list[RowComparison], skip_tensors: Collection[str] = ()
) -> list[Finding]:
    """What comparisons of a subject's tables have to say; of the tables in `but` something else is said."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return []
    findings = [
        _changed_rows_finding(compared, subject)
        for compared in comparisons
        if len(compared.changed) and compared.tensor not in skip_tensors
    ]
    ours = find_text_tables(base, family)
    for point, new in find_text_tables(checkpoint, family).items():
        old = ours.get(point)
        if old is not None and old.shape[1:] != new.shape[1:]:
            found = f"{new.name} has rows of {list(new.shape[1:])}, the base's of {list(old.shape[1:])}"
            findings.append(finding("tensor-shape", found, where=checkpoint.path))
    findings.sort(key=lambda item: item.found)
    for code, is_rounded in (("base-rows-same", False), ("base-rows-rounded", True)):
        kept = [one for one in comparisons if not len(one.changed) and one.rounded == is_rounded]
        if kept:
            how = "the base's, rounded to a shorter number format" if is_rounded else "the base's bits"
            names = ", ".join(sorted(one.tensor for one in kept))
            found = f"all {kept[0].num_rows:,} base rows of {names} are {how}"
            findings.append(finding(code, found, where=checkpoint.path))
    return findings


def spare_row_findings(subject: CheckSubject) -> list[Finding]:
    """Whether the base's spare row stands where the first new piece should be."""
    base, checkpoint, family, pieces = subject.base_checkpoint, subject.checkpoint, subject.family, subject.base_pieces
    if base is None or checkpoint is None or family is None or pieces is None or not family.spare_rows:
        return []
    ours, theirs = find_text_tables(base, family), find_text_tables(checkpoint, family)
    copied: list[str] = []
    near: list[str] = []
    for point, old in ours.items():
        new = theirs.get(point)
        grown = new is not None and new.shape[0] > pieces + family.spare_rows
        if new is None or not grown or old.shape[0] <= pieces or old.shape[1:] != new.shape[1:]:
            continue
        spare = TableReader(base, old).rows(pieces, pieces + 1)
        rows = TableReader(checkpoint, new).rows(
            pieces, min(pieces + SPARE_SAMPLE_ROWS, new.shape[0] - family.spare_rows)
        )
        if _as_bits(spare)[0].tobytes() == _as_bits(rows)[0].tobytes():
            copied.append(new.name)
        elif is_spare_copy(spare[0], rows):
            near.append(new.name)
    return _spare_copy_findings(subject, copied, near)


def _spare_copy_findings(subject: CheckSubject, copied: list[str], near: list[str]) -> list[Finding]:
    pieces = subject.base_pieces or 0
    piece = subject.grown.shown(pieces) if subject.grown else f"<{pieces}>"
    head = f"row {pieces:,}, the first new piece ({piece}),"
    where = subject.settings.checkpoint or ""
    if any(not name.endswith(".bias") for name in copied):  # two biases may be equal by chance
        found = f"{head} is the base's spare row, bit for bit, in {', '.join(copied)}"
        return [finding("spare-row-copied", found, where=where)]
    if near:
        found = f"{head} started as the base's spare row in {', '.join(near)} and still lies close to it"
        return [finding("spare-row-copied", found, where=where, level="warning")]
    return []


def is_spare_copy(spare: RowArray, rows: RowArray) -> bool:
    """The same bits, or a trained copy: the first row points where the spare does, and the others mostly do not."""
    if np.array_equal(spare, rows[0]):
        return True
    if rows.shape[1] == 1:  # a single value points nowhere
        return False
    ours, theirs = _zero_nonfinite(spare.astype(np.float64)), _zero_nonfinite(rows.astype(np.float64))
    lengths = np.linalg.norm(theirs, axis=1) * np.linalg.norm(ours)
    cosines = (theirs @ ours) / np.maximum(lengths, 1e-12)
    return (
        bool(cosines[0] >= _TRAINED_COPY_COSINE and np.median(cosines[1:]) < _OTHER_ROWS_COSINE)
        if len(rows) > 1
        else False
    )


def is_unread_row(subject: CheckSubject, row: int, second_moments: NDArray[np.float32] | None) -> bool:
    """Whether a row behind the pieces was provably never read: then it is a second spare, and no piece that was learnt.

    Only the embedding tells: in the head, a row that is never the answer gets gradients as well.
    """
    base, checkpoint, family, pieces = subject.base_checkpoint, subject.checkpoint, subject.family, subject.base_pieces
    if base is None or checkpoint is None or family is None or pieces is None:
        return False
    point = family.graft_points[0]
    old, new = (find_text_tables(one, family).get(point) for one in (base, checkpoint))
    if old is None or new is None or old.shape[1:] != new.shape[1:] or not pieces < old.shape[0] or row >= new.shape[0]:
        return False
    if second_moments is not None and len(second_moments) == new.shape[0] and second_moments[pieces:row].any():
        return not second_moments[row]
    spare, own = TableReader(base, old).rows(pieces, pieces + 1), TableReader(checkpoint, new).rows(row, row + 1)
    if not own.any():
        return True
    if any(np.array_equal(_as_bits(own), _as_bits(round_to_dtype(spare, short))) for short in ("F32", "BF16", "F16")):
        return True
    _, factor, beside = _row_change_measures(spare.astype(np.float64), own.astype(np.float64))[:, 0]
    # Weight decay needs no gradient: it shrinks a row along itself, up to the rounding of its format.
    return bool(
        0 < factor <= 1 and beside <= (_DECAY_ROUNDING if new.dtype == "F32" else 16 * _DECAY_ROUNDING) * factor
    )


def _compare_rows(ours: TableReader, theirs: TableReader, num_rows: int) -> RowComparison:
    changed: list[NDArray[np.int64]] = []
    measures: list[NDArray[np.float64]] = []
    exact = True
    for start, before, after in _read_block_pairs(ours, theirs, num_rows):
        whole, differs = before, (_as_bits(before) != _as_bits(after)).any(axis=1)
        if differs.any() and ours.info.dtype != theirs.info.dtype:
            before = round_to_dtype(before, theirs.info.dtype)
            differs = (_as_bits(before) != _as_bits(after)).any(axis=1)
            exact = False
        for short in ("BF16", "F16") if differs.any() else ():  # rounded once, whatever type they are kept as now
            at = np.flatnonzero(differs)
            near = round_to_dtype(round_to_dtype(whole[at], short), theirs.info.dtype)
            as_short = (_as_bits(near) == _as_bits(after[at])).all(axis=1)
            differs[at[as_short]] = False
            exact = exact and not as_short.any()
        at = np.flatnonzero(differs)
        changed.append(at + start)
        measures.append(_row_change_measures(before[at].astype(np.float64), after[at].astype(np.float64)))
    relative, factor, beside = np.concatenate(measures, axis=1) if measures else np.empty((3, 0))
    rows = np.concatenate(changed) if changed else np.empty(0, np.int64)
    return RowComparison(theirs.info.name, num_rows, not exact, rows, relative, factor, beside)


def _row_change_measures(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative change, nearest multiple and what is beside it, for each row. Shape [3, rows]."""
    before, after = _zero_nonfinite(before), _zero_nonfinite(after)
    squares = np.maximum((before**2).sum(axis=1), 1e-30)
    factor = (before * after).sum(axis=1) / squares
    beside = np.sqrt(((after - factor[:, None] * before) ** 2).sum(axis=1) / squares)
    relative = np.sqrt(((after - before) ** 2).sum(axis=1) / squares)
    return np.stack([relative, factor, beside])


def _read_block_pairs(
    ours: TableReader, theirs: TableReader, num_rows: int
) -> Iterator[tuple[int, RowArray, RowArray]]:
    """First row and both tables' rows, a block at a time."""
    with progress.progress_task(f"comparing {theirs.info.name}", num_rows) as advance:
        for start in range(0, num_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, num_rows)
            yield start, ours.rows(start, stop), theirs.rows(start, stop)
            advance(stop - start)


def _zero_nonfinite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Zero for values that are not finite, which are another topic's."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _as_bits(rows: RowArray) -> NDArray[np.uint32]:
    return rows.view(np.uint32)


def _changed_rows_finding(compared: RowComparison, subject: CheckSubject) -> Finding:
    assert subject.checkpoint is not None
    where = subject.checkpoint.path
    head = f"{len(compared.changed):,} of {compared.num_rows:,} base rows of {compared.tensor}"
    if compared.is_uniform_decay:
        factor = float(np.median(compared.factor))
        found = f"{head} shrank together to {factor:.6g} of the base's"
        return finding("base-rows-shrunk", found, expected="the base's bits", where=where)
    worst = int(compared.changed[compared.relative.argmax()])
    piece = subject.base_tokenizer.shown(worst) if subject.base_tokenizer else f"<{worst}>"
    typical = float(np.median(compared.relative))
    found = (
        f"{head} are not the base's; they moved by {typical:.2g} of their length (median), "
        f"row {worst} ({piece}) by {float(compared.relative.max()):.2g}"
    )
    if typical >= OVERWRITTEN_CHANGE:
        found += ": the rows were overwritten, not trained"
    return finding("base-rows-changed", found, expected="the base's bits", where=where)


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
