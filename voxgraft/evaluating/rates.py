"""From what was meant and what was heard to a score with its interval. Pure functions; the same numbers every time.

A score that was not measured has no value and says why: nothing here ever stands in for a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.corpus import chance

__all__ = [
    "EditCount",
    "Score",
    "compute_error_rate",
    "compute_mean_score",
    "compute_median_score",
    "count_edits",
    "edit_distance",
    "score_without_interval",
    "unmeasured_score",
]

BOOTSTRAP_DRAWS = 1000
LOW_PERCENTILE, HIGH_PERCENTILE = 2.5, 97.5
"""Percentiles of the draws: an interval that holds 95 of 100."""
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """One measured number with its interval and how many things it is over, or no number and the reason."""

    value: float | None
    low: float | None = None
    high: float | None = None
    count: int = 0
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.value is None:
            return {"value": None, "why": self.why}
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}

    @classmethod
    def from_json(cls, value: Any) -> Score:
        """What `to_json` gave; anything else is a score that was not measured."""
        if not isinstance(value, dict) or not _is_finite_number(value.get("value")):
            return cls(None, why=str(value.get("why", "")) if isinstance(value, dict) else "")
        low, high = (value.get(name) if _is_finite_number(value.get(name)) else None for name in ("low", "high"))
        count: Any = value.get("count")
        return cls(float(value["value"]), low, high, int(count) if _is_finite_number(count) else 0)


@dataclass(frozen=True, slots=True)
class EditCount:
    """Of one sentence: how many edits lead from what was meant to what was heard, and how long the former is."""

    edits: int
    length: int


def unmeasured_score(why: str) -> Score:
    """A score that is not there."""
    return Score(None, why=why)


def score_without_interval(value: float, count: int) -> Score:
    """A number that has no interval; one that is not finite is no number."""
    return Score(value, count=count) if math.isfinite(value) else unmeasured_score("the number is not finite")


def edit_distance(meant: Sequence[Hashable], heard: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and replacements that turn one into the other (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for at, one in enumerate(meant, 1):
        before, row[0] = row[0], at
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (one != other))
    return row[-1]


def count_edits(meant: Sequence[Hashable], heard: Sequence[Hashable]) -> EditCount:
    """The edits of one sentence."""
    return EditCount(edit_distance(meant, heard), len(meant))


def compute_error_rate(tallies: Sequence[EditCount], seed: int) -> Score:
    """All edits over all that was meant, with the interval that drawing the sentences again gives."""
    if not tallies or not sum(one.length for one in tallies):
        return unmeasured_score("there is nothing to compare")
    wrong = np.array([one.edits for one in tallies], dtype=np.float64)
    lengths = np.array([one.length for one in tallies], dtype=np.float64)

    def rate(picked: NDArray[np.int64]) -> FloatArray:
        result: FloatArray = wrong[picked].sum(1) / np.maximum(lengths[picked].sum(1), 1)
        return result

    return _add_bootstrap_interval(float(wrong.sum() / lengths.sum()), rate, len(tallies), seed)


def compute_mean_score(values: Sequence[float], seed: int) -> Score:
    """The mean, with its interval; of yes and no the share of yes."""
    return _summarize_values(values, lambda array: array.mean(-1), seed)


def compute_median_score(values: Sequence[float], seed: int) -> Score:
    """The median, with its interval."""
    score = _summarize_values(values, lambda array: np.median(array, -1), seed)
    return score if score.value is None else Score(float(median(values)), score.low, score.high, score.count)


def _summarize_values(values: Sequence[float], summary: Callable[[FloatArray], Any], seed: int) -> Score:
    if not values:
        return unmeasured_score("there is nothing to measure")
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all():
        return unmeasured_score("a number is not finite")
    return _add_bootstrap_interval(
        float(summary(array)), lambda picked: np.asarray(summary(array[picked])), len(array), seed
    )


def _add_bootstrap_interval(
    value: float, of_draws: Callable[[NDArray[np.int64]], FloatArray], count: int, seed: int
) -> Score:
    """Whole sets of the same size, drawn from the set with repetition: how else it might have come out."""
    key = chance.hash_int("bootstrap", seed, count)
    raw = np.random.Philox(key=key).random_raw(BOOTSTRAP_DRAWS * count).reshape(BOOTSTRAP_DRAWS, count)
    drawn = of_draws((raw % np.uint64(count)).astype(np.int64))
    low, high = np.percentile(drawn, [LOW_PERCENTILE, HIGH_PERCENTILE])
    return Score(value, float(low), float(high), count)


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
