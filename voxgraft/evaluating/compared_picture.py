"""Runs as dots: error in the new language across, the worst change of an old one up. Reads and writes no file.

Errors are drawn on scales that give small ones as much room as large ones, since there the good runs are.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.scoring import SCORE_MEASURES
from voxgraft.pictures import (
    COLORS,
    DOTS_PER_INCH,
    MATPLOTLIB_STYLE,
    MUTED_COLOR,
    TEXT_COLOR,
    ImageFormat,
    make_figure_renderable,
    make_text_renderable,
)

__all__ = ["ComparisonPoint", "draw_comparison"]

MODE_MARKERS = {"gated": "o", "merged": "D", "as-in-the-seeds": "X", "rows-only": "s", "checkpoint": "^"}
FIGURE_INCHES = (8.6, 5.6)
FIGURE_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.115, "top": 0.93}
MIN_X = 0.5
"""Per cent: what is smaller is drawn here."""
X_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
Y_TICKS = (-100, -10, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
Y_LINEAR_LIMIT = 1.0
"""Points up to which the upward scale is even: beneath it differences are chance."""
LABEL_CHARACTER_PIXELS, LABEL_LINE_PIXELS, MARKER_PIXELS = 8.6, 17.0, 8.0
"""About how much room a label and a dot take, at our number of dots per inch."""
LABEL_RADII = (14, 24, 36, 50, 66, 84, 104, 126, 150)


@dataclass(frozen=True, slots=True)
class ComparisonPoint:
    """One run: its error in the new language, the worst change of an old one, and the way it was trained."""

    name: str
    error: Score
    worst: tuple[str, float] | None
    mode: str


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


def draw_comparison(
    dots: Sequence[ComparisonPoint], measure: str, differing: Sequence[str] = ()
) -> Mapping[ImageFormat, bytes]:
    """The picture, in both formats: the same dots give the same bytes.

    Under it stands in words who lacks a number, and what is not the same in all runs.
    """
    about = next(one for one in SCORE_MEASURES if one.name == measure)
    percent = about.form == "percent"
    shown = [dot for dot in dots if dot.error.value is not None and dot.worst is not None]
    left_out = [dot.name for dot in dots if dot not in shown]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        figure = Figure(figsize=FIGURE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**FIGURE_MARGINS)
        places = [_draw_point(axes, dot, percent) for dot in shown]
        _format_axes(axes, about.title, percent, [y for _, y in places])
        _draw_legend(axes, shown)
        _place_labels(axes, [make_text_renderable(dot.name) for dot in shown], places)  # as long as they are drawn
        notes = [f"not measured: {', '.join(left_out)}"] if left_out else []
        notes += [f"not the same in all runs: {', '.join(differing)}"] if differing else []
        if notes:
            figure.text(0.01, 0.012, "; ".join(notes), fontsize=8, color=MUTED_COLOR)
        return {"png": _encode_figure(figure, "png"), "svg": _encode_figure(figure, "svg")}


def _draw_point(axes: Axes, dot: ComparisonPoint, percent: bool) -> tuple[float, float]:
    assert dot.error.value is not None
    assert dot.worst is not None
    factor = 100.0 if percent else 1.0
    y, colour = factor * dot.worst[1], _mode_color(dot.mode)

    def across(value: float) -> float:
        return max(factor * value, MIN_X) if percent else value

    x = across(dot.error.value)
    if dot.error.low is not None and dot.error.high is not None:
        axes.plot([across(dot.error.low), across(dot.error.high)], [y, y], color=colour, linewidth=1.2, alpha=0.45)
    axes.plot([x], [y], MODE_MARKERS.get(dot.mode, "o"), color=colour, markersize=8, zorder=3, clip_on=False)
    return x, y


def _mode_color(mode: str) -> str:
    return COLORS[list(MODE_MARKERS).index(mode)] if mode in MODE_MARKERS else TEXT_COLOR


def _format_axes(axes: Axes, title: str, percent: bool, changes: Sequence[float]) -> None:
    axes.set_title("Best is low and left: the new language is spoken, and nothing is lost")
    axes.set_xlabel(f"{title} in the new language{', %' if percent else ', nats'}")
    axes.set_ylabel(f"worst change of an old language{', points' if percent else ', nats'}")
    axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
    if percent:
        left, right = axes.get_xlim()
        low, high = min(changes, default=0.0), max(changes, default=0.0)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=Y_LINEAR_LIMIT, linscale=0.6)
        axes.set_xlim(MIN_X if left < 1 else max(MIN_X, 0.7 * left), max(right, 10))
        axes.set_ylim(min(1.5 * low, -0.8 * Y_LINEAR_LIMIT), max(1.5 * high, 5 * Y_LINEAR_LIMIT))
        axes.xaxis.set_major_locator(FixedLocator(X_TICKS))
        axes.yaxis.set_major_locator(FixedLocator(Y_TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def _draw_legend(axes: Axes, dots: Sequence[ComparisonPoint]) -> None:
    for mode in dict.fromkeys(dot.mode for dot in dots):
        axes.plot([], [], MODE_MARKERS.get(mode, "o"), color=_mode_color(mode), label=mode)
    if dots:
        axes.legend(loc="upper right")


def _place_labels(axes: Axes, names: Sequence[str], places: Sequence[tuple[float, float]]) -> None:
    """Names beside their dots, each at the nearest place where it covers neither a dot nor another name."""
    pixels = [tuple(map(float, axes.transData.transform(place))) for place in places]
    frame = axes.get_window_extent()
    inside = _Box(frame.x0, frame.y0, frame.x1, frame.y1)
    taken = [_Box(x - MARKER_PIXELS, y - MARKER_PIXELS, x + MARKER_PIXELS, y + MARKER_PIXELS) for x, y in pixels]
    to_points = 72 / DOTS_PER_INCH
    for name, place, (x, y) in zip(names, places, pixels, strict=True):
        chosen = next(
            (found for found in _label_candidates(name, x, y) if _is_label_free(found[2], taken, inside)),
            next(_label_candidates(name, x, y)),
        )
        away, up, box = chosen
        taken.append(box)
        arrow = (
            {"arrowstyle": "-", "color": MUTED_COLOR, "linewidth": 0.7, "shrinkB": 3}
            if abs(up) > LABEL_RADII[0]
            else None
        )
        axes.annotate(
            name,
            place,
            xytext=(away * to_points, up * to_points),
            textcoords="offset points",
            fontsize=8,
            color=TEXT_COLOR,
            ha="left" if away >= 0 else "right",
            va="center",
            arrowprops=arrow,
        )


def _label_candidates(name: str, x: float, y: float) -> Iterator[tuple[float, float, _Box]]:
    """Places for a name, the nearest first: how far to the right, how far up, and the room that it takes there."""
    width = LABEL_CHARACTER_PIXELS * len(name)
    for radius, (side, up) in product(LABEL_RADII, ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0))):
        away = side * (radius if up == 0 else max(8.0, 0.5 * radius))
        height = up * radius
        left = x + away if side > 0 else x + away - width
        yield (
            away,
            height,
            _Box(left, y + height - LABEL_LINE_PIXELS / 2, left + width, y + height + LABEL_LINE_PIXELS / 2),
        )


def _is_label_free(box: _Box, taken: Sequence[_Box], inside: _Box) -> bool:
    fits = box.left > inside.left and box.right < inside.right and box.bottom > inside.bottom and box.top < inside.top
    return fits and not any(box.overlaps(other) for other in taken)


def _encode_figure(figure: Figure, form: ImageFormat) -> bytes:
    make_figure_renderable(figure)
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()
