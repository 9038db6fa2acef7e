"""Single rows of the tables behind the text: speech codes and positions, and always those of start and stop.

One dead row among thousands does not show in the length of its table. Without the start row nothing begins; without
the stop row nothing ends. Judges no table as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints.dtypes import FLOAT_DTYPES
from voxgraft.errors import VoxgraftError
from voxgraft.findings.subject import CheckSubject

__all__ = ["NO_LOST_ROWS", "LostRows", "find_lost_rows", "find_start_stop_rows"]

PARTS_WITH_ROWS = ("speech tables", "positions", "speed rows")
"""Parts whose matrices have a row for each code or position."""
_SPEECH_BLOCK_ROWS = 512
_DEAD_ROW_RATIO = 1e-3
"""Of the base's length: no training shrinks a row so far, and weight decay would shrink all of them."""
_OTHER_ROW_CHANGE, _OTHER_ROW_COSINE = 0.5, 0.5
"""A row that moved by this share of its length and has less than this cosine to the base's is another row."""
_STABLE_TABLE_COSINE = 0.9
"""Median cosine of a table in which single rows can be called another. Below it, the whole table moved."""
_OUTLIER_FACTOR = 8.0
"""A row that became so many times longer or shorter, by the others of its table, was not trained. In a head it is
always or never the answer, whatever its direction."""
_BIAS_STEP, _BIAS_SPREAD = 5.0, 10.0
"""A bias decides alone whether a code is ever spoken: e to the 5th is 148 times as likely, or as unlikely."""
_START_NAME, _STOP_NAME = "start of speech", "stop of speech"


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows of one table in which nothing of the base is left."""

    rows: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    """Those of them that are all zero, or next to it."""
    names: tuple[str, ...] = ()
    """For people, start and stop first."""
    num_rows: int = 0
    moved: float = 0.0
    """Squared length of the change of all other rows."""
    base: float = 0.0
    """Squared length of the base's other rows."""

    @property
    def how(self) -> str:
        return "are all zero" if self.dead == self.rows else "are far from the base's"


NO_LOST_ROWS = LostRows()


def find_start_stop_rows(subject: CheckSubject) -> dict[int, str]:
    """Start and stop of speech by their rows; empty where the base does not show its size."""
    family, base, files = subject.family, subject.base_checkpoint, subject.base
    if family is None or base is None or files is None:
        return {}
    try:
        size = family.infer_size(files, {name: info.shape for name, info in base.tensors.items()})
        frame = family.frame(subject.base_pieces or 0, size)
    except VoxgraftError:  # a base that is not whole is told elsewhere
        return {}
    return {frame.speech_start: _START_NAME, frame.speech_stop: _STOP_NAME}


def find_lost_rows(subject: CheckSubject, name: str, marks: dict[int, str]) -> LostRows:
    """Rows of a table of the body that are zero or were overwritten. None where it has no row per code or position."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    if base is None or checkpoint is None or family is None or family.get_part_name(name) not in PARTS_WITH_ROWS:
        return NO_LOST_ROWS
    old, new = base.tensors[name], checkpoint.tensors[name]
    if (
        old.shape != new.shape
        or len(old.shape) not in (1, 2)
        or old.dtype not in FLOAT_DTYPES
        or new.dtype not in FLOAT_DTYPES
    ):
        return NO_LOST_ROWS
    is_speech = family.get_part_name(name) == "speech tables"
    named = {row: mark for row, mark in marks.items() if is_speech and row < old.shape[0]}
    if len(old.shape) == 1:
        before, after = (_nan_nonfinite(one.read(name)) for one in (base, checkpoint))
        step = max(_BIAS_STEP, _BIAS_SPREAD * float(before.std()))
        far = np.abs(after - before) >= step
        return _build_lost_rows(far, np.zeros_like(far), named, (after - before, before))
    measures = []
    for start in range(0, old.shape[0], _SPEECH_BLOCK_ROWS):
        span = start, min(start + _SPEECH_BLOCK_ROWS, old.shape[0])
        measures.append(
            _speech_row_measures(*(_nan_nonfinite(one.read_rows(name, *span)) for one in (base, checkpoint)))
        )
    length, left, moved, along = np.concatenate(measures, axis=1)
    some = length > 0
    cosine = along / np.maximum(length * left, 1e-30)
    dead = some & (left <= _DEAD_ROW_RATIO * length)
    alive = some & ~dead
    other = alive & (moved >= _OTHER_ROW_CHANGE * length) & (cosine < _OTHER_ROW_COSINE)
    finite = alive & np.isfinite(cosine)
    if not finite.any() or float(np.median(cosine[finite])) < _STABLE_TABLE_COSINE:
        other[:] = False
    else:
        times = left / np.maximum(length, 1e-30)
        usual = float(np.median(times[finite]))
        other |= finite & ((times > _OUTLIER_FACTOR * usual) | (_OUTLIER_FACTOR * times < usual))
    return _build_lost_rows(dead | other, dead, named, (moved, length))


def _build_lost_rows(
    rows: NDArray[np.bool_],
    dead: NDArray[np.bool_],
    named: dict[int, str],
    lengths: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> LostRows:
    ordered = sorted(np.flatnonzero(rows).tolist(), key=lambda row: (row not in named, row))
    names = tuple(f"row {row:,}, {named[row]}" if row in named else f"row {row:,}" for row in ordered)
    moved, base = (float(np.nansum(values[~rows] ** 2)) for values in lengths)
    return LostRows(tuple(sorted(ordered)), tuple(np.flatnonzero(dead).tolist()), names, len(rows), moved, base)


def _speech_row_measures(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both lengths, length of the difference, and the product of the two, for each row. Shape [4, rows]."""
    lengths = [np.sqrt((values**2).sum(axis=1)) for values in (before, after, after - before)]
    return np.stack([*lengths, (before * after).sum(axis=1)])


def _nan_nonfinite(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Values that are not finite are another topic's, and the base has the originals."""
    return np.nan_to_num(values.astype(np.float64), nan=math.nan, posinf=math.nan, neginf=math.nan)
