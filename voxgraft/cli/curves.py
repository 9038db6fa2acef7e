"""Curves in letters: a sparkline in one row, and a small chart in dots of Braille with levels marked.

Knows nothing of runs; gives plain texts and leaves colours to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

__all__ = ["DownsampledCurve", "braille_chart", "sparkline"]

SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE_BLANK = 0x2800
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille letter by row and column."""
LEVEL_DASH = "┄"
MAX_CURVE_POINTS = 1024


class DownsampledCurve:
    """A curve of any length in little room: when it has too many points, every two become their mean."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._means: list[float] = []
        self._open: list[float] = []
        self._stride = 1

    def add(self, value: float) -> None:
        self.last = value
        self._open.append(value)
        if len(self._open) == self._stride:
            self._means.append(sum(self._open) / self._stride)
            self._open = []
        if len(self._means) == MAX_CURVE_POINTS:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2

    @property
    def points(self) -> list[float]:
        """From first to last; those that are not enough for a point yet are one too."""
        return [*self._means, sum(self._open) / len(self._open)] if self._open else list(self._means)


def sparkline(values: Sequence[float], width: int) -> str:
    """The values from first to last in at most `width` letters; more values than letters are averaged."""
    shown = _average_to_width(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = high - low or 1.0
    return "".join(SPARKLINE_BLOCKS[round((value - low) / span * (len(SPARKLINE_BLOCKS) - 1))] for value in shown)


def braille_chart(values: Sequence[float], width: int, height: int, levels: Mapping[str, float]) -> list[str]:
    """The values as a curve in `height` rows of `width` letters; a level in its range is a dashed row with its name.

    A level that is far off would flatten the curve: one that is more than half the curve's own height away is left out.
    """
    if not values or width < 2 or height < 2:
        return [" " * width] * height
    low, high = _value_range(values, levels.values())
    rows = [[BRAILLE_BLANK] * width for _ in range(height)]
    heights = [_dot_row(value, low, high, 4 * height) for value in _stretch_to_width(values, 2 * width)]
    for column, (before, here) in enumerate(pairwise([heights[0], *heights])):
        for dot in range(min(before, here), max(before, here) + 1):
            rows[dot // 4][column // 2] |= BRAILLE_DOTS[dot % 4][column % 2]
    drawn = ["".join(chr(cell) for cell in row) for row in rows]
    marks: dict[int, list[str]] = {}
    for name, level in levels.items():
        if low <= level <= high:
            marks.setdefault(_dot_row(level, low, high, 4 * height) // 4, []).append(name)
    for row, names in marks.items():
        drawn[row] = _draw_level(drawn[row], ", ".join(names))
    return [line.replace(chr(BRAILLE_BLANK), " ") for line in drawn]


def _average_to_width(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in pairwise(edges)]


def _stretch_to_width(values: Sequence[float], width: int) -> list[float]:
    """As many values as there are columns: averaged if there are more, drawn out if there are fewer."""
    few = _average_to_width(values, width)
    places = [index * (len(few) - 1) / (width - 1) for index in range(width)]
    ends = [*few, few[-1]]
    return [ends[int(at)] + (ends[int(at) + 1] - ends[int(at)]) * (at % 1) for at in places]


def _value_range(values: Sequence[float], levels: Iterable[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    reach = (high - low) / 2
    near = [level for level in levels if low - reach <= level <= high + reach]
    return min([low, *near]), max([high, *near])


def _dot_row(value: float, low: float, high: float, dots: int) -> int:
    """The row of dots, from the top."""
    share = (value - low) / (high - low) if high > low else 0.5
    return min(dots - 1, max(0, round((1 - share) * (dots - 1))))


def _draw_level(row: str, name: str) -> str:
    label = f" {name} "
    dashed = "".join(LEVEL_DASH if ord(cell) == BRAILLE_BLANK else cell for cell in row)
    free = len(row) - len(label)
    return dashed[:free] + label if free > 4 and all(cell == LEVEL_DASH for cell in dashed[free:]) else dashed
