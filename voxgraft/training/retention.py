"""The bound on what training may cost the base's languages: their held-out speech loss against that of step 0.

Pure functions of losses; who measures them, and when, is the loop's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from voxgraft.errors import Finding, finding

__all__ = ["RetentionBound", "retention_bound_finding"]


@dataclass(frozen=True, slots=True)
class RetentionBound:
    """A share by which the loss of every base language may rise at most."""

    share: float
    languages: frozenset[str]

    def limit(self, first: float) -> float:
        """The highest loss that is still within the bound."""
        return first * (1 + self.share)

    def exceeded(self, first: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
        """By how much of its first loss each language has risen that is past the bound; the worst first.

        A loss that is not a number is past every bound. A language without a first loss cannot be judged.
        """
        rises = {
            name: now[name] / first[name] - 1
            for name in sorted(self.languages & first.keys() & now.keys())
            if not now[name] <= self.limit(first[name])
        }
        return dict(sorted(rises.items(), key=lambda item: -item[1]))


def retention_bound_finding(bound: RetentionBound, passed: Mapping[str, float], step: int, best_step: int) -> Finding:
    """What to say when the bound is passed."""
    rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in passed.items())
    kept = f"step {best_step:,} is the best within the bound" if best_step else "no step was within the bound"
    found = f"at step {step:,} the held-out speech loss of base languages had risen: {rises}; {kept}"
    return finding("retention-bound", found, expected=f"at most {100 * bound.share:g} %")
