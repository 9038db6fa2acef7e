"""Curves of a run as charts inside a page. Draws what a `History` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from voxgraft.core.journal import SPEECH_LOSS, History
from voxgraft.core.pages import LEVEL_COLOR, SERIES_COLORS, draw_inline_chart

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

__all__ = ["ChartSeries", "draw_chart", "draw_history_charts"]

MAX_CHART_POINTS = 240
MAX_MARKED_POINTS = 30
"""A curve of more points is a line alone."""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One curve."""

    label: str
    points: Sequence[tuple[int, float]]
    color: int = 0
    faint: bool = False


def draw_history_charts(history: History) -> list[Markup]:
    """The curves that a reader of a report asks for, each as a card; none that has no points."""
    speech = [
        ChartSeries("training", history.train(SPEECH_LOSS), 1, faint=True),
        ChartSeries("held out", history.held_out(SPEECH_LOSS), 0),
    ]
    uses = [
        ChartSeries(use.partition("_")[0], history.held_out(use), number)
        for number, use in enumerate(("text_use", "voice_use"))
    ]
    old = [
        ChartSeries(name, [(step, 100 * share) for step, share in history.retention(name)], number)
        for number, name in enumerate(history.base_languages)
    ]
    heard = [
        ChartSeries(title, [(step, 100 * value) for step, value in history.held_out("heard", name)], number)
        for number, (name, title) in enumerate((("phone_error", "phone error"), ("cer", "letter error")))
    ]
    level = history.initial_loss(SPEECH_LOSS)
    return [
        *draw_chart("Speech loss, nats a code", speech, [] if level is None else [level]),
        *draw_chart("Use of text and voice: loss when swapped, less loss", uses, [0.0]),
        *draw_chart("Error heard while training, %", heard, [0.0]),
        *draw_chart("Old languages: rise of the speech loss, %", old, [0.0]),
    ]


def draw_chart(title: str, series: Sequence[ChartSeries], levels: Sequence[float] = ()) -> list[Markup]:
    """One picture with its legend, or nothing where there is nothing to draw. `levels` are drawn as dashed lines."""
    drawn = tuple(replace(one, points=tuple(_thin_points(one.points))) for one in series if one.points)
    return [_draw_lines(title, drawn, tuple(levels))] if drawn else []


@lru_cache(maxsize=64)  # a page that follows a run asks for the same picture every few seconds
def _draw_lines(title: str, series: tuple[ChartSeries, ...], levels: tuple[float, ...]) -> Markup:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def draw(axes: Axes) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))  # there is no half a step
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.margins(x=0.01, y=0.06)
        for level in levels:
            axes.axhline(level, color=LEVEL_COLOR, linestyle=(0, (3, 4)), linewidth=1)
        for one in sorted(series, key=lambda one: not one.faint):
            steps, values = zip(*one.points, strict=True)
            dots = "o" if len(steps) == 1 or (len(steps) <= MAX_MARKED_POINTS and not one.faint) else ""
            color = SERIES_COLORS[one.color % len(SERIES_COLORS)]
            axes.plot(steps, values, color=color, alpha=0.45 if one.faint else 1, marker=dots, markersize=4.5)

    return draw_inline_chart(title, draw, [(one.color % len(SERIES_COLORS), one.label) for one in series])


def _thin_points(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most so many as can be seen, each the mean of its neighbours."""
    if len(points) <= MAX_CHART_POINTS:
        return points
    size = -(-len(points) // MAX_CHART_POINTS)
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
