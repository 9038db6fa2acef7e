"""Error rates: the fewest insertions, deletions and substitutions, over everything that should have been said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["distance", "errors"]


def errors(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Edits of all pairs (true, heard) over the number of true symbols."""
    wrong = total = 0
    for true, heard in pairs:
        wrong += distance(true, heard)
        total += len(true)
    return wrong / max(1, total)


def distance(true: Sequence[str], heard: Sequence[str]) -> int:
    """Levenshtein's distance, one row at a time."""
    numbers = {symbol: number for number, symbol in enumerate({*true, *heard})}
    other = np.array([numbers[symbol] for symbol in heard], np.int64)
    steps = np.arange(len(heard) + 1)
    row = steps.copy()
    for symbol in true:
        kept = row[:-1] + (other != numbers[symbol])
        best = np.minimum(row[1:] + 1, kept)
        candidates = np.concatenate([[row[0] + 1], best])
        row = np.minimum.accumulate(candidates - steps) + steps  # insertions: cheapest way from the left
    return int(row[-1])
