"""The rows of a checkpoint's text tables, beside the base's: unchanged, moved, decayed, overwritten, new, or noise.

`base_row_findings` checks promise 2 (old rows are the same bits) for any checkpoint, `spare_row_findings` the base's
spare row, `new_row_findings` how the rows behind the base's look. `find_row_moves` and `classify_rows` serve `diagnose`
and `repair`. Everything outside the text tables is left to `body`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.base import Checkpoint, TensorInfo
from voxgraft.core import progress
from voxgraft.core.errors import Finding, finding
from voxgraft.core.results import pluralize
from voxgraft.graft.folder import ROWS_NAME
from voxgraft.inspect.body import OVERWRITTEN_CHANGE, RowMoments, round_to_dtype
from voxgraft.inspect.subject import BLOCK_ROWS, CheckSubject, are_rows_finite, find_text_tables
from voxgraft.models.base import GraftPoint

RowArray = NDArray[np.float32]
# New rows that are enough to see how the first differs from the others.
SPARE_SAMPLE_ROWS = 1024
# Of what a row lost: beside a change that is mostly along itself. Decay in float32 rounds to whole units in the last
# place, so that rows and values shrink a little unevenly.
_DECAY_SPREAD = 0.6
# Of what all rows had, the most that decay is taken for.
_MOST_DECAY = 0.99
# By length of a row: the residual beside a multiple of it after many steps of decay in float32. Training leaves more.
_DECAY_ROUNDING = 1e-4
# Cosines to the base's spare row: of a row that was copied from it and then trained, and of most others.
_TRAINED_COPY_COSINE, _OTHER_ROWS_COSINE = 0.9, 0.5


class TableReader(NamedTuple):
    """A text table of an open checkpoint."""

    checkpoint: Checkpoint
    info: TensorInfo

    def rows(self, start: int, stop: int) -> RowArray:
        """Some rows as float32 [rows, width]; a bias has width 1."""
        values = self.checkpoint.read_rows(self.info.name, start, stop)
        return np.ascontiguousarray(values, dtype=np.float32).reshape(stop - start, *self.info.shape[1:] or (1,))

    def blocks(self, stop: int | None = None) -> Iterator[tuple[int, RowArray]]:
        """First row and rows of each block, up to row `stop`."""
        stop = self.info.shape[0] if stop is None else min(stop, self.info.shape[0])
        for start in range(0, stop, BLOCK_ROWS):
            yield start, self.rows(start, min(start + BLOCK_ROWS, stop))


TablePairs = dict[GraftPoint, tuple[TableReader, TableReader]]


def _table_pairs(subject: CheckSubject) -> TablePairs:
    """Text tables of base and checkpoint with rows of equal width; none where one of the files does not exist."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return {}
    checkpoint_tables = find_text_tables(checkpoint, family)
    return {
        point: (TableReader(base, old), TableReader(checkpoint, checkpoint_tables[point]))
        for point, old in find_text_tables(base, family).items()
        if point in checkpoint_tables and old.shape[1:] == checkpoint_tables[point].shape[1:]
    }


class RowComparison(NamedTuple):
    """One table against the base's, row by row. The arrays have an entry per row that differs."""

    tensor: str
    num_rows: int
    rounded: bool
    """The rows differ only by the checkpoint's shorter number format."""
    changed: NDArray[np.int64]
    relative: NDArray[np.float64]
    """Length of the difference by length of the base's row."""
    factor: NDArray[np.float64]
    """The nearest multiple of the base's row."""
    beside: NDArray[np.float64]
    """The residual beside that multiple, by length of the base's row."""

    @property
    def is_uniform_decay(self) -> bool:
        """Whether all rows became the same, smaller multiple of themselves."""
        if len(self.changed) < max(2, 0.99 * self.num_rows):
            return False
        loss = 1 - float(np.median(self.factor))
        # Decay never turns a row around. It leaves nothing of a table after far more steps than anybody trains: zeros
        # and small random numbers were put there.
        if not 0 < loss <= _MOST_DECAY:
            return False
        near = np.abs(1 - self.factor - loss) <= _DECAY_SPREAD * abs(loss)
        clean = self.beside <= _DECAY_SPREAD * abs(loss)
        return bool(np.mean(near & clean) >= 0.99)


def base_row_findings(subject: CheckSubject) -> list[Finding]:
    """Which base rows are not the base's bits, how far they moved, and whether weight decay explains it."""
    return row_comparison_findings(subject, compare_base_rows(subject))


def compare_base_rows(subject: CheckSubject) -> list[RowComparison]:
    """Every text table whose rows are as wide as the base's, against the base's own."""
    found = []
    for base_table, tuned_table in _table_pairs(subject).values():
        spare = subject.family.spare_rows if subject.family else 0
        num_rows = min(
            subject.base_pieces or base_table.info.shape[0] - spare, base_table.info.shape[0], tuned_table.info.shape[0]
        )
        name, dtype = tuned_table.info.name, tuned_table.info.dtype
        changed: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        measures: list[NDArray[np.float64]] = [np.empty((3, 0))]
        exact = True
        with progress.progress_task(f"comparing {name}", num_rows) as advance:
            for start, block in base_table.blocks(num_rows):
                before, after = block, tuned_table.rows(start, start + len(block))
                # Bits are compared, not values: NaN must equal itself, and -0.0 is not 0.0.
                differs = (before.view(np.uint32) != after.view(np.uint32)).any(axis=1)
                if differs.any() and base_table.info.dtype != dtype:
                    before = round_to_dtype(before, dtype)
                    differs = (before.view(np.uint32) != after.view(np.uint32)).any(axis=1)
                    exact = False
                for short_dtype in (
                    ("BF16", "F16") if differs.any() else ()
                ):  # rounded once, whatever type they have now
                    positions = np.flatnonzero(differs)
                    rounded = round_to_dtype(round_to_dtype(block[positions], short_dtype), dtype)
                    as_short = (rounded.view(np.uint32) == after[positions].view(np.uint32)).all(axis=1)
                    differs[positions[as_short]] = False
                    exact = exact and not as_short.any()
                positions = np.flatnonzero(differs)
                changed.append(positions + start)
                measures.append(_row_change_measures(before[positions], after[positions]))
                advance(len(block))
        relative, factor, residual = np.concatenate(measures, axis=1)
        found.append(RowComparison(name, num_rows, not exact, np.concatenate(changed), relative, factor, residual))
    return found


def _row_change_measures(old: RowArray, new: RowArray) -> NDArray[np.float64]:
    """Relative change, nearest multiple and what is beside it, for each row. Shape [3, rows]."""
    # Values that are not finite have findings of their own, and count as zero here.
    before, after = (np.nan_to_num(rows.astype(np.float64), posinf=0.0, neginf=0.0) for rows in (old, new))
    squares = np.maximum((before**2).sum(axis=1), 1e-30)
    factor = (before * after).sum(axis=1) / squares
    residual = np.sqrt(((after - factor[:, None] * before) ** 2).sum(axis=1) / squares)
    relative = np.sqrt(((after - before) ** 2).sum(axis=1) / squares)
    return np.stack([relative, factor, residual])


def row_comparison_findings(
    subject: CheckSubject, comparisons: list[RowComparison], skip_tensors: Collection[str] = ()
) -> list[Finding]:
    """What comparisons of a subject's tables have to say, those of `skip_tensors` left out."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None:
        return []
    where = checkpoint.path
    findings: list[Finding] = []
    for comparison in comparisons:
        if not len(comparison.changed) or comparison.tensor in skip_tensors:
            continue
        head = f"{len(comparison.changed):,} of {comparison.num_rows:,} base rows of {comparison.tensor}"
        if comparison.is_uniform_decay:
            found = f"{head} all shrank to {float(np.median(comparison.factor)):.6g} of the base's values"
            findings.append(finding("base-rows-shrunk", found, expected="the base's bits", where=where))
            continue
        worst = int(comparison.changed[comparison.relative.argmax()])
        piece = subject.base_tokenizer.shown(worst) if subject.base_tokenizer else f"<{worst}>"
        typical = float(np.median(comparison.relative))
        found = (
            f"{head} differ from the base; their median change is {typical:.2g} of the row's norm, "
            f"the largest {float(comparison.relative.max()):.2g} (row {worst}, {piece})"
        )
        if typical >= OVERWRITTEN_CHANGE:
            found += "; the rows were overwritten, not trained"
        findings.append(finding("base-rows-changed", found, expected="the base's bits", where=where))
    base_tables = find_text_tables(base, family)
    for point, new in find_text_tables(checkpoint, family).items():
        old = base_tables.get(point)
        if old is not None and old.shape[1:] != new.shape[1:]:
            found = f"{new.name} has rows of shape {list(new.shape[1:])}, the base {list(old.shape[1:])}"
            findings.append(finding("tensor-shape", found, where=where))
    findings.sort(key=lambda item: item.found)
    for code, is_rounded in (("base-rows-same", False), ("base-rows-rounded", True)):
        unchanged = [
            comparison for comparison in comparisons if not len(comparison.changed) and comparison.rounded == is_rounded
        ]
        if unchanged:
            how = "rounded to a lower precision, otherwise unchanged" if is_rounded else "the same bits as in the base"
            names = ", ".join(sorted(comparison.tensor for comparison in unchanged))
            found = f"all {unchanged[0].num_rows:,} base rows of {names} are {how}"
            findings.append(finding(code, found, where=where))
    return findings


def spare_row_findings(subject: CheckSubject) -> list[Finding]:
    """Whether the base's spare row is where the first new piece should be."""
    pieces, spare_rows = subject.base_pieces, subject.spare_rows
    if pieces is None or spare_rows is None:
        return []
    copied: list[str] = []
    similar: list[str] = []
    for old, new in _table_pairs(subject).values():
        num_rows = new.info.shape[0]
        if num_rows <= pieces + spare_rows or old.info.shape[0] <= pieces:
            continue
        spare = old.rows(pieces, pieces + 1)
        rows = new.rows(pieces, min(pieces + SPARE_SAMPLE_ROWS, num_rows - spare_rows))
        if spare[0].tobytes() == rows[0].tobytes():
            copied.append(new.info.name)
        elif is_spare_copy(spare[0], rows):
            similar.append(new.info.name)
    piece = subject.grown.shown(pieces) if subject.grown else f"<{pieces}>"
    head = f"row {pieces:,} (first new token, {piece})"
    where = subject.settings.checkpoint or ""
    if any(not name.endswith(".bias") for name in copied):  # two biases may be equal by chance
        found = f"{head} is a bit-identical copy of the base's unused row in {', '.join(copied)}"
        return [finding("spare-row-copied", found, where=where)]
    if similar:
        found = f"{head} started as a copy of the base's unused row in {', '.join(similar)} and is still close to it"
        return [finding("spare-row-copied", found, where=where, level="warning")]
    return []


def _last_row_findings(subject: CheckSubject, pieces: int) -> list[Finding]:
    """Whether the last new row began as the base's last one, in every table that has directions."""
    tables = [(old, new) for old, new in _table_pairs(subject).values() if len(new.info.shape) == 2]
    same = True
    for old, new in tables:
        num_rows = new.info.shape[0]
        # A single new row has no others to compare with.
        if num_rows < pieces + 2 or old.info.shape[0] != pieces:
            return []
        last = old.rows(pieces - 1, pieces)
        rows = new.rows(max(pieces, num_rows - SPARE_SAMPLE_ROWS), num_rows)[::-1]
        if not is_spare_copy(last[0], rows):
            return []
        same = same and last[0].tobytes() == rows[0].tobytes()
    if not tables:
        return []
    num_rows = tables[0][1].info.shape[0]
    piece = subject.grown.shown(num_rows - 1) if subject.grown else f"<{num_rows - 1}>"
    how = "is a copy of the base's last row" if same else "started as a copy of the base's last row"
    names = ", ".join(new.info.name for _, new in tables)
    found = f"row {num_rows - 1:,} (last new token, {piece}) {how} in {names}"
    return [finding("last-row-copied", found, where=subject.settings.checkpoint or "")]


def is_spare_copy(spare: RowArray, rows: RowArray) -> bool:
    """The same bits, or a trained copy: the first row points where the spare does, and the others mostly do not."""
    if np.array_equal(spare, rows[0]):
        return True
    if rows.shape[1] == 1 or len(rows) == 1:  # a single value has no direction
        return False
    spare_values, row_values = (
        np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0) for values in (spare, rows)
    )
    lengths = np.linalg.norm(row_values, axis=1) * np.linalg.norm(spare_values)
    cosines = (row_values @ spare_values) / np.maximum(lengths, 1e-12)
    return bool(cosines[0] >= _TRAINED_COPY_COSINE and np.median(cosines[1:]) < _OTHER_ROWS_COSINE)


def is_unread_row(subject: CheckSubject, row: int, second_moments: NDArray[np.float32] | None) -> bool:
    """Whether a row behind the pieces was provably never read: then it is a second spare, and no learned piece.

    Only the embedding shows it: in the head, a row that is never the answer gets gradients as well.
    """
    pieces, pairs = subject.base_pieces, _table_pairs(subject)
    pair = pairs.get(subject.family.graft_points[0]) if subject.family else None
    if pieces is None or pair is None or not pieces < pair[0].info.shape[0] or not 0 <= row < pair[1].info.shape[0]:
        return False
    old, new = pair
    if second_moments is not None and len(second_moments) == new.info.shape[0] and second_moments[pieces:row].any():
        return not second_moments[row]
    spare, own = old.rows(pieces, pieces + 1), new.rows(row, row + 1)
    if not own.any():
        return True
    if any(own.tobytes() == round_to_dtype(spare, short).tobytes() for short in ("F32", "BF16", "F16")):
        return True
    _, factor, residual = _row_change_measures(spare, own)[:, 0]
    # Weight decay needs no gradient: it shrinks a row along itself, up to the rounding of its format.
    rounding = _DECAY_ROUNDING if new.info.dtype == "F32" else 16 * _DECAY_ROUNDING
    return bool(0 < factor <= 1 and residual <= rounding * factor)


def are_last_rows_unread(subject: CheckSubject, count: int, second_moments: NDArray[np.float32] | None) -> bool:
    """Whether the last rows of the embedding were provably never read: zero, all equal, or without any gradient."""
    pieces, pairs = subject.base_pieces, _table_pairs(subject)
    pair = pairs.get(subject.family.graft_points[0]) if subject.family else None
    if pieces is None or pair is None or not 0 < count <= pair[1].info.shape[0] - pieces:
        return False
    num_rows = pair[1].info.shape[0]
    if second_moments is not None and len(second_moments) == num_rows and second_moments[pieces:-count].any():
        return not second_moments[-count:].any()
    rows = pair[1].rows(num_rows - count, num_rows)
    return not rows.any() or (count > 1 and bool((rows == rows[0]).all()))


# Rows that are in the wrong place.
RowMoveKind = Literal["shifted", "swapped", "copied", "scattered"]
# Base rows before the first new one: where these went, the new ones behind them went.
_TAIL_ROWS = 32
_MOST_SHARE, _HALF_SHARE = 0.9, 0.5
# Cosine of rows that were trained after they had moved.
_MIN_DIRECTION_COSINE = 0.9
_DIRECTION_SAMPLE_ROWS = 256
RowHashes = dict[bytes, tuple[str, int]]


class RowMove(NamedTuple):
    """What happened to the rows of one table of a checkpoint."""

    tensor: str
    how: RowMoveKind
    source: str = ""
    """The table whose rows are here, if it is another."""
    shift: int = 0
    """How many rows behind their places new rows are."""
    num_found: int = 0


def find_row_moves(subject: CheckSubject, comparisons: Sequence[RowComparison]) -> list[RowMove]:
    """Tables whose new rows are not in their places, by what the base rows show. Most checkpoints have none."""
    compared = {comparison.tensor: comparison for comparison in comparisons}
    all_pairs = _table_pairs(subject)
    pairs = {point: pair for point, pair in all_pairs.items() if len(pair[0].info.shape) == 2}
    overwritten = [
        point
        for point, (_, new) in pairs.items()
        if (comparison := compared.get(new.info.name)) is not None
        and bool((comparison.relative >= OVERWRITTEN_CHANGE).any())
    ]
    if not overwritten:
        return []
    moves: dict[GraftPoint, RowMove] = {}
    known = [_hash_base_rows(pairs, subject.base_pieces or 0, dtype) for dtype in ("", "BF16", "F16")]
    for point in overwritten:
        if (move := _find_row_move(point, pairs, known, compared[pairs[point][1].info.name])) is not None:
            moves[point] = move
    # A table that has another's rows while the other does not have its own was not swapped, but written over.
    sources = {move.tensor: move.source for move in moves.values() if move.how == "swapped"}
    found = [
        RowMove(move.tensor, "copied", move.source, move.shift, move.num_found)
        if move.how == "swapped" and sources.get(move.source) != move.tensor
        else move
        for move in moves.values()
    ]
    head = next((move for point, move in moves.items() if point.role == "head" and move.how == "shifted"), None)
    for point, (old, new) in all_pairs.items() if head is not None else ():
        if point.role != "head-bias" or head is None:
            continue
        # A bias goes with its head: single values have no hash, but most of them fit in only one of two places. The
        # last base rows are looked at, since rows may have been put between the first ones.
        last = min(subject.base_pieces or 0, old.info.shape[0], new.info.shape[0], new.info.shape[0] - head.shift)
        first = max(0, last - _TAIL_ROWS, -head.shift)
        if last > first:
            expected = old.rows(first, last)
            here, there = (new.rows(first + shift, last + shift) for shift in (0, head.shift))
            if np.nanmedian(np.abs(there - expected)) < np.nanmedian(np.abs(here - expected)):
                found.append(RowMove(new.info.name, "shifted", shift=head.shift))
    return found


def _hash_base_rows(pairs: TablePairs, pieces: int, dtype: str) -> RowHashes:
    """Base rows by their bits in a format; rows that occur twice, or zero, show nothing."""
    found: RowHashes = {}
    twice: set[bytes] = set()
    for old, new in pairs.values():
        stored = dtype or new.info.dtype
        for start, rows in old.blocks(pieces):
            for at, key in enumerate(_row_digests(rows if stored == "F32" else round_to_dtype(rows, stored)), start):
                if key in found or not key:
                    twice.add(key)
                found[key] = (old.info.name, at)
    return {key: value for key, value in found.items() if key not in twice}


def _row_digests(rows: RowArray) -> list[bytes]:
    """Empty for a row of zeros."""
    some = np.asarray(rows.any(axis=1)).tolist()
    return [_row_digest(row) if is_some else b"" for row, is_some in zip(rows, some, strict=True)]


def _row_digest(row: RowArray) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _find_row_move(
    point: GraftPoint, pairs: TablePairs, known: Sequence[RowHashes], compared: RowComparison
) -> RowMove | None:
    old, new = pairs[point]
    pieces, name = compared.num_rows, new.info.name
    digests = [digest for _, rows in new.blocks() for digest in _row_digests(rows)]
    matches = max(
        (np.array([hashes.get(key, ("", -1)) for key in digests], dtype=object) for hashes in known),
        key=lambda found: int((found[:, 1] >= 0).sum()),
    )
    tables, rows = matches[:, 0], matches[:, 1].astype(np.int64)
    for other, _ in (pair for other_point, pair in pairs.items() if other_point != point):
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
    if (own[:pieces] & wrong).sum() < _HALF_SHARE * wrong.sum():
        # Most of them are no base rows by their bits: trained after they had moved, or overwritten.
        move = _find_move_by_direction(point, pairs, pieces) if wrong.mean() >= _HALF_SHARE else None
        if move is not None or not own[pieces:].any():
            return move
    # Base rows that are behind the base's places and no longer in their own; a copy of a base row is no move.
    left_behind = np.zeros(len(rows), bool)
    left_behind[pieces:] = own[pieces:] & wrong[np.where(own[pieces:], rows[pieces:], 0)]
    if not left_behind.any() and own[:pieces][wrong].all():
        return None  # shuffled among themselves: new rows are where they were
    positions = {int(row): position for position, row in enumerate(rows) if own[position]}
    tail = [positions[row] - row for row in range(max(0, pieces - _TAIL_ROWS), pieces) if row in positions]
    if (
        len(tail) >= _HALF_SHARE * min(_TAIL_ROWS, pieces)
        and len(set(tail)) == 1
        and (tail[0] or not left_behind.any())
    ):
        return RowMove(name, "shifted", shift=tail[0], num_found=len(positions)) if tail[0] else None
    if left_behind.any():
        return RowMove(name, "scattered", num_found=int(left_behind.sum()))
    return None


def _find_move_by_direction(point: GraftPoint, pairs: TablePairs, pieces: int) -> RowMove | None:
    """The same for rows that were trained, or shrunk, after they had moved."""
    old, new = pairs[point]
    start = max(0, pieces - _DIRECTION_SAMPLE_ROWS)
    base_directions = _unit_rows(old.rows(start, pieces))
    # Every row of the table votes for the shift of the sampled base row that it points along with.
    votes: Counter[int] = Counter()
    for first, rows in new.blocks():
        cosines = _unit_rows(rows) @ base_directions.T  # [rows of the block, sampled rows]
        nearest = cosines.argmax(axis=1)
        alike = np.flatnonzero(cosines[np.arange(len(rows)), nearest] >= _MIN_DIRECTION_COSINE)
        votes.update((first + alike - nearest[alike] - start).tolist())
    shift, count = votes.most_common(1)[0] if votes else (0, 0)
    if shift and count >= _HALF_SHARE * len(base_directions) and len(base_directions) >= _TAIL_ROWS:
        return RowMove(new.info.name, "shifted", shift=shift)
    there = _unit_rows(new.rows(start, min(pieces, new.info.shape[0])))
    for other_point, (other, _) in pairs.items():
        other_directions = _unit_rows(other.rows(start, start + len(there)))
        if other_point != point and float(np.median((other_directions * there).sum(axis=1))) >= _MIN_DIRECTION_COSINE:
            return RowMove(new.info.name, "swapped", other.info.name)
    return None


def _unit_rows(rows: RowArray) -> NDArray[np.float64]:
    """Rows of length 1; those of zeros stay zero."""
    wide = np.nan_to_num(rows.astype(np.float64), posinf=0.0, neginf=0.0)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-30))


def row_move_findings(subject: CheckSubject, moves: Sequence[RowMove]) -> list[Finding]:
    """One finding per table whose rows are in the wrong place."""
    where = subject.checkpoint.path if subject.checkpoint else ""
    findings = []
    for move in moves:
        away = f"{pluralize(abs(move.shift), 'id')} too {'high' if move.shift > 0 else 'low'}"
        if move.how == "shifted":
            code, found = "rows-shifted", f"the rows of {move.tensor} are shifted: {away}"
        elif move.how == "swapped":
            code, found = "rows-swapped", f"{move.tensor} has the rows of {move.source}, and vice versa"
            found += f"; both are shifted: {away}" if move.shift else ""
        elif move.how == "copied":
            found = f"{move.tensor} was overwritten with the rows of {move.source}"
            is_embedding = subject.family is not None and move.tensor == subject.family.graft_points[0].tensor
            code = "rows-copied" if is_embedding else "head-missing"  # of a head nothing is needed that the base lacks
        else:
            code, found = "rows-scattered", f"{move.num_found:,} base rows of {move.tensor} are among the new rows"
            if move.source:
                found = f"{move.tensor} has {move.num_found:,} base rows of {move.source}"
            found += ", in no recognizable order"
        findings.append(finding(code, found, expected="each base row at the base's id", where=where))
        rows = read_moved_rows(subject, move)
        if len(rows) and rows.shape[1] > 1:
            if are_rows_noise(rows):
                found = f"the new rows of {move.tensor} look like independent random numbers"
                findings.append(finding("new-rows-random", found, where=where))
            if num_zero := int((~rows.any(axis=1)).sum()):
                found = f"{num_zero:,} of {len(rows):,} new rows of {move.tensor} contain only zeros"
                findings.append(finding("new-rows-zero", found, where=where))
    return findings


def read_moved_rows(subject: CheckSubject, move: RowMove) -> RowArray:
    """The new rows of a table that was shifted or swapped, from where they are now; none for other moves."""
    checkpoint, pieces = subject.checkpoint, subject.base_pieces
    if move.how not in ("shifted", "swapped") or checkpoint is None or pieces is None:
        return np.empty((0, 1), np.float32)
    info = checkpoint.tensors[move.source or move.tensor]
    rows = TableReader(checkpoint, info).rows(0, info.shape[0])
    # What is shifted past the end comes in again at the start.
    return rows[(np.arange(pieces, len(rows) - (subject.spare_rows or 0)) + move.shift) % len(rows)]


# New rows.
_MIN_ROWS_FOR_STATISTICS = 100
# Independent rows around zero share about 1 of the direction measured in `are_rows_noise`; learned rows far more.
_CHANCE_SHARED_DIRECTION = 2.0
# By length of a row: a step that all rows took together, as weight decay, a head's bias or one bad batch gives them.
# Of many rows even a small one adds up in their sum, and shows nothing of what single rows have learned.
_COMMON_DRIFT = 0.1
# The longest direction of independent rows is this much longer than expected only by something that was learned.
_STRUCTURE_FACTOR = 1.3
_POWER_ITERATIONS = 12
_MAX_MEAN_SCALE = 4.0
# By the base's usual row: shorter than the mean of any number of its rows that a tokenizer has.
_EMPTY_ROW_RATIO = 1e-3
# By the base's longest row: a single new row that is longer drowns its sentence.
_MAX_ROW_SCALE = 10.0
# Logits. A softmax with such an offset (a factor of exp(50)) gives the same answer whatever the input is. Ten times the
# base's largest bias is allowed where that is more.
_LARGEST_BIAS = 50.0
_SAMPLE_ROWS = 4096


def new_row_findings(subject: CheckSubject) -> list[Finding]:
    """One finding per fault and table, of the checkpoint if there is one, else of the graft."""
    base, family, pieces = subject.base_checkpoint, subject.family, subject.base_pieces
    if base is None or family is None or pieces is None:
        return []
    findings: list[Finding] = []
    biases: list[Finding] = []
    for point, info in find_text_tables(base, family).items():
        name = info.name
        new, where = np.empty((0, 1), np.float32), Path()
        if (checkpoint := subject.checkpoint) is not None:
            table, where = find_text_tables(checkpoint, family).get(point), checkpoint.path
            stop = table.shape[0] - family.spare_rows if table else 0
            if table is not None and stop > pieces:
                new = checkpoint.read_rows(table.name, pieces, stop).astype(np.float32, copy=False)
        elif subject.graft is not None:
            new, where = subject.graft.rows.get(point.tensor, new), subject.graft.folder / ROWS_NAME
        if point.role == "head-bias":  # a bias of zero, or two equal ones, mean nothing
            # Biases of new rows that outweigh everything else in the head.
            own = np.abs(base.read_rows(name, 0, min(pieces, info.shape[0])).astype(np.float64))
            limit = max(_LARGEST_BIAS, _MAX_ROW_SCALE * float(own.max(initial=0.0, where=np.isfinite(own))))
            sizes = np.abs(new.astype(np.float64).reshape(-1))
            large = np.isfinite(sizes) & (sizes > limit)  # values that are not finite have a finding of their own
            if large.any():
                top = f"{sizes[large].max():,.3g}"
                found = f"{int(large.sum()):,} of {len(sizes):,} new biases of {name} have absolute values up to {top}"
                biases.append(finding("new-rows-scale", found, expected=f"at most {limit:,.3g}", where=where))
            continue
        if not len(new) or not are_rows_finite(new).all():
            continue
        norms = np.sqrt(_squared_row_norms(new))
        zero = norms <= _empty_row_limit(TableReader(base, info), pieces)
        if zero.any():
            how = "only zeros" if not new[zero].any() else "only zeros or values close to zero"
            found = f"{int(zero.sum()):,} of {len(new):,} new rows of {name} contain {how}"
            findings.append(finding("new-rows-zero", found, where=where))
        rows, norms = new[~zero], norms[~zero]
        groups = [count for count in Counter(row.tobytes() for row in rows).values() if count > 1]
        own_rows = (digest for _, block in TableReader(base, info).blocks(pieces) for digest in _row_digests(block))
        num_copies = len(set(_row_digests(rows)).intersection(own_rows))
        if 2 * num_copies >= len(rows) > 0:
            found = f"{num_copies:,} of {len(new):,} new rows of {name} are copies of base rows, bit for bit"
            findings.append(finding("new-rows-equal", found, where=where))
            continue  # they look like the base's rows in all that follows
        if groups:
            how = "are equal" if len(groups) == 1 else f"form {len(groups):,} groups of equal rows"
            found = f"{sum(groups):,} of {len(new):,} new rows of {name} {how} (bit for bit)"
            findings.append(finding("new-rows-equal", found, where=where))
        if groups or not len(rows):
            continue
        sample = base.read_rows(name, 0, min(pieces, _SAMPLE_ROWS, info.shape[0]))
        is_finite = len(sample) and np.isfinite(sample).all()
        base_norms = np.sqrt(_squared_row_norms(sample)) if is_finite else np.zeros(1)
        mean, base_mean, longest = float(norms.mean()), float(base_norms.mean()), float(base_norms.max())
        if base_mean and mean > _MAX_MEAN_SCALE * base_mean:  # an average of rows may well be short
            times = f"{mean / base_mean:,.3g} times as large as base rows"
            found = f"new rows of {name} are {times} ({mean:.3g} and {base_mean:.3g} on average)"
            expected = f"at most {_MAX_MEAN_SCALE:.0f} times as large"
            findings.append(finding("new-rows-scale", found, expected=expected, where=where))
        elif longest and (long := norms > _MAX_ROW_SCALE * longest).any():
            most = float(norms.max()) / longest
            found = f"{int(long.sum()):,} new rows of {name} are up to {most:,.3g} times as large as any base row"
            expected = f"at most {_MAX_ROW_SCALE:.0f} times as large"
            findings.append(finding("new-rows-scale", found, expected=expected, where=where))
        if are_rows_noise(rows):
            found = f"the {len(rows):,} new rows of {name} look like independent random numbers"
            findings.append(finding("new-rows-random", found, where=where))
    return findings + biases + ([] if family.spare_rows else _last_row_findings(subject, pieces))


def _empty_row_limit(base: TableReader, pieces: int) -> float:
    """A new row that is no longer than this is empty, whatever its values: by the length of the base's rows."""
    sample = base.rows(0, min(pieces, _SAMPLE_ROWS, base.info.shape[0]))
    lengths = np.sqrt(_squared_row_norms(sample))
    usual = float(np.median(lengths)) if len(lengths) else 0.0
    return _EMPTY_ROW_RATIO * usual if np.isfinite(usual) else 0.0


def are_rows_noise(rows: RowArray) -> bool:
    """Whether rows [rows, width] are independent random numbers, give or take a small step that all took together.

    Few rows allow no conclusion. Rows that were learned share directions, their mean or others.
    """
    rows = rows[np.isfinite(rows).all(axis=1) & rows.any(axis=1)]
    num_rows, width = rows.shape
    if num_rows < _MIN_ROWS_FOR_STATISTICS:
        return False
    lengths: RowArray = np.sqrt(_squared_row_norms(rows)).astype(np.float32)
    even: RowArray = rows / lengths[:, None]  # a few long rows would outweigh all others
    total = even.sum(axis=0, dtype=np.float64)
    shared = float(total @ total) / num_rows  # 1 for independent rows around zero
    if shared >= max(_CHANCE_SHARED_DIRECTION, 1 + _COMMON_DRIFT**2 * num_rows):
        return False
    # Is one direction beside the mean longer than it could be by chance (the edge of Marchenko and Pastur)? A few
    # rounds of power iteration come close enough to the longest one.
    even = even - even.mean(axis=0)
    vector: RowArray = np.random.default_rng(0).standard_normal((width,)).astype(np.float32)
    longest = 0.0
    for _ in range(_POWER_ITERATIONS):
        vector = vector / np.float32(max(float(np.linalg.norm(vector)), 1e-30))
        vector = even.T @ (even @ vector)
        longest = float(np.linalg.norm(vector))
    by_chance = float(_squared_row_norms(even).sum()) / width * (1 + np.sqrt(width / num_rows)) ** 2
    return not longest > _STRUCTURE_FACTOR * by_chance


def _squared_row_norms(rows: NDArray[np.generic]) -> NDArray[np.float64]:
    """Squared length of each row, summed in float64 without a copy of all rows in float64.

    The square of a ruined value may not fit in float32.
    """
    floats: NDArray[np.floating[Any]] = rows.astype(np.float32, copy=False)
    return np.asarray(np.einsum("ij,ij->i", floats, floats, dtype=np.float64))


ROW_SAME, ROW_DECAYED, ROW_DRIFTED, ROW_OVERWRITTEN = "the base's", "shrunk by decay", "drifted", "overwritten"
ROW_NEW, ROW_ZERO, ROW_EQUAL = "new", "new, all zero", "new, equal to another"
ROW_COPIED, ROW_NOISE = "new, a copy of the spare row", "new, still random numbers"
ROW_UNTRAINED, ROW_SPARE, ROW_NONFINITE = "new, no gradient ever", "spare", "not finite"
ROW_KINDS = (
    *(ROW_SAME, ROW_DECAYED, ROW_DRIFTED, ROW_OVERWRITTEN, ROW_NEW, ROW_ZERO),
    *(ROW_EQUAL, ROW_COPIED, ROW_NOISE, ROW_UNTRAINED, ROW_SPARE, ROW_NONFINITE),
)
_KIND_INDEX = {kind: index for index, kind in enumerate(ROW_KINDS)}


@dataclass(frozen=True, slots=True)
class RowTable:
    """One text table, row by row. The arrays have the shape [rows]."""

    tensor: str
    role: str
    num_base: int
    kinds: NDArray[np.uint8]
    """Indices into ROW_KINDS."""
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
        return float((new == _KIND_INDEX[kind]).mean()) if len(new) else 0.0

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
    compared = {item.tensor: item for item in comparisons}
    moments_by_tensor = {item.tensor: item for item in moments}
    return [
        _classify_table(
            subject, point, TableReader(checkpoint, info), compared.get(info.name), moments_by_tensor.get(info.name)
        )
        for point, info in find_text_tables(checkpoint, family).items()
        if info.shape[0]
    ]


def _classify_table(
    subject: CheckSubject,
    point: GraftPoint,
    table: TableReader,
    compared: RowComparison | None,
    moments: RowMoments | None,
) -> RowTable:
    info, num_rows = table.info, table.info.shape[0]
    num_base = compared.num_rows if compared else min(subject.base_pieces or 0, num_rows)
    last_new = num_rows - min(subject.spare_rows or 0, num_rows - num_base)
    new = slice(num_base, last_new)
    kinds = np.full(num_rows, _KIND_INDEX[ROW_SAME], np.uint8)
    kinds[new] = _KIND_INDEX[ROW_NEW]
    kinds[last_new:] = _KIND_INDEX[ROW_SPARE]
    moved = np.full(num_rows, np.nan, np.float32)
    if compared is not None:
        moved[:num_base] = 0
        moved[compared.changed] = np.minimum(compared.relative, np.finfo(np.float32).max)
        lost = 1 - compared.factor
        along = (lost > 0) & (compared.beside <= _DECAY_SPREAD * np.abs(lost))
        drifted = np.full(len(lost), _KIND_INDEX[ROW_DRIFTED], np.uint8)
        if len(info.shape) == 1:  # a single value has no direction: all of them together say what happened
            along[:] = compared.is_uniform_decay
        else:
            drifted[compared.relative >= OVERWRITTEN_CHANGE] = _KIND_INDEX[ROW_OVERWRITTEN]
        kinds[compared.changed] = np.where(along, _KIND_INDEX[ROW_DECAYED], drifted)
    lengths, finite = np.empty(num_rows, np.float32), np.empty(num_rows, bool)
    digests: list[bytes] = []
    for start, rows in table.blocks():
        with np.errstate(over="ignore", invalid="ignore"):
            lengths[start : start + len(rows)] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        finite[start : start + len(rows)] = are_rows_finite(rows)
        digests += [_row_digest(row) for row in rows[max(num_base - start, 0) : max(last_new - start, 0)]]
    if point.role != "head-bias":  # a bias of zero, or two equal ones, mean nothing
        # Of several kinds that fit a new row, the last one here counts.
        if len(info.shape) == 2 and are_rows_noise(table.rows(num_base, last_new)):
            kinds[new] = _KIND_INDEX[ROW_NOISE]
        if moments is not None and moments.finite and point.role == "embedding":
            kinds[new][moments.second[new] == 0] = _KIND_INDEX[ROW_UNTRAINED]
        counts, spare = Counter(digests), None
        pair, pieces = _table_pairs(subject).get(point), subject.base_pieces
        if pair is not None and pieces is not None and subject.spare_rows and pair[0].info.shape[0] > pieces:
            spare = _row_digest(pair[0].rows(pieces, pieces + 1)[0])  # of the base's own spare row
        kinds[new][[counts[digest] > 1 for digest in digests]] = _KIND_INDEX[ROW_EQUAL]
        limit = _empty_row_limit(pair[0], num_base) if pair is not None else 0.0
        kinds[new][lengths[new] <= limit] = _KIND_INDEX[ROW_ZERO]
        kinds[new][[digest == spare for digest in digests]] = _KIND_INDEX[ROW_COPIED]
    kinds[~finite] = _KIND_INDEX[ROW_NONFINITE]
    rounded = bool(compared and compared.rounded)
    return RowTable(info.name, point.role, num_base, kinds, moved, lengths, rounded)
