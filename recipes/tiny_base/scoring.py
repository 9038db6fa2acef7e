"""Error rates: minimum number of insertions, deletions and substitutions, divided by the reference length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["distance", "errors"]


def errors(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Edits of all pairs (reference, hypothesis), divided by the number of reference symbols."""
    wrong = total = 0
    for reference, hypothesis in pairs:
        wrong += distance(reference, hypothesis)
        total += len(reference)
    return wrong / max(1, total)


def distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Levenshtein's distance, one row at a time."""
    numbers = {symbol: number for number, symbol in enumerate({*reference, *hypothesis})}
    other = np.array([numbers[symbol] for symbol in hypothesis], np.int64)
    steps = np.arange(len(hypothesis) + 1)
    row = steps.copy()
    for symbol in reference:
        kept = row[:-1] + (other != numbers[symbol])
        best = np.minimum(row[1:] + 1, kept)
        candidates = np.concatenate([[row[0] + 1], best])
        row = np.minimum.accumulate(candidates - steps) + steps  # insertions: cheapest way from the left
    return int(row[-1])
