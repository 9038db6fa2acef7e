"""The point between base and tuned, chosen by ear: each is written aside, spoken and heard. For bases that sound."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft import progress
from voxgraft.diagnosing.hearing import ListeningTest, PhoneErrors

__all__ = ["PointTrial", "choose_repair_point", "select_best_point", "try_repair_points"]

PointWriter = Callable[[float, Path], None]
"""Writes the whole file with the body at a point."""


@dataclass(frozen=True, slots=True)
class PointTrial:
    """What was heard at one point."""

    share: float
    errors: PhoneErrors
    """Phone errors by language."""
    within: bool
    """Whether no old language is worse than the base by more than was allowed."""

    def to_json(self) -> dict[str, Any]:
        return {"share": self.share, "phone_error": self.errors, "within": self.within}


def choose_repair_point(
    listening_test: ListeningTest, points: Sequence[float], max_worse: float, write: PointWriter
) -> tuple[float, list[PointTrial]]:
    """The best point of those given, and all of them."""
    tried = try_repair_points(listening_test, points, max_worse, write)
    return select_best_point(tried, listening_test.language).share, tried


def try_repair_points(
    listening_test: ListeningTest, points: Sequence[float], max_worse: float, write: PointWriter
) -> list[PointTrial]:
    """Every point, from the base on."""
    own = listening_test.base_errors()
    tried = []
    shares = sorted(set(points))
    with tempfile.TemporaryDirectory() as folder, progress.progress_task("listening to points", len(shares)) as advance:
        for share in shares:
            path = Path(folder) / "point.safetensors"
            write(share, path)
            errors = listening_test.errors(path, f"point {share:g}")
            within = all(errors.get(language, 1.0) <= error + max_worse for language, error in own.items())
            tried.append(PointTrial(share, errors, within))
            path.unlink()
            advance(1)
    return tried


def select_best_point(tried: Sequence[PointTrial], language: str | None) -> PointTrial:
    """Of the points that keep the old languages the one that is best in the new; where none keeps them, the nearest
    to the base. Without a new language, the farthest that keeps them. Of two that are equal the one nearer to the base.
    """
    within = [one for one in tried if one.within]
    if not within:
        return min(tried, key=lambda one: one.share)
    if language is None:
        return max(within, key=lambda one: one.share)
    return min(within, key=lambda one: (one.errors.get(language, 1.0), one.share))
