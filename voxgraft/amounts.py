"""Durations, sizes and counts in a few letters, as people read them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_bytes", "format_count", "format_duration", "format_learning_rate", "format_names", "pluralize"]


def pluralize(count: int, noun: str) -> str:
    """A count with its noun, which is given in the singular: 1 clip, 1,203 clips."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_names(names: Sequence[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def format_duration(seconds: float) -> str:
    """Two units at most: 45 s, 12 min, 3 h 20 min, 2 d 5 h."""
    total = max(0, round(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 60:
        return f"{total} s"
    if hours < 1:
        return f"{minutes} min {total % 60} s" if minutes < 10 else f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 2 else f"{days} d {hours % 24} h"


def format_bytes(num_bytes: float) -> str:
    """Three figures: 812 MB, 2.14 GB."""
    return (
        f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.{0 if num_bytes >= 1e8 else 1}f} MB"
    )


def format_count(count: int) -> str:
    """Whole below a hundred thousand, then in millions: 98,304, 20.5 M."""
    return f"{count:,}" if count < 100_000 else f"{count / 1e6:,.{1 if count >= 1e7 else 2}f} M"


def format_learning_rate(rate: float) -> str:
    """A learning rate: 1e-3, 7.8e-4, 0."""
    if rate == 0:
        return "0"
    mantissa, _, exponent = f"{rate:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
