"""Curves of a run as small inline SVG pictures, in the page's own colours. Draws what a `History` holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from voxgraft.core.journal import SPEECH_LOSS, CurvePoints, History

__all__ = ["ChartSeries", "draw_chart", "draw_history_charts"]

CHART_WIDTH, CHART_HEIGHT = 360, 210
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 44, 8, 10, 24
MAX_CHART_POINTS = 240
NUM_COLORS = 6


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One curve."""

    label: str
    points: CurvePoints
    color: int = 0
    faint: bool = False


def draw_history_charts(history: History) -> list[str]:
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


def draw_chart(title: str, series: Sequence[ChartSeries], levels: Sequence[float] = ()) -> list[str]:
    """One picture with its legend, or nothing where there is nothing to draw. `levels` are drawn as dashed lines."""
    drawn = [ChartSeries(one.label, _thin_points(one.points), one.color, one.faint) for one in series if one.points]
    if not drawn:
        return []
    across, up = (
        _AxisScale.of([step for one in drawn for step, _ in one.points], MARGIN_LEFT, CHART_WIDTH - MARGIN_RIGHT),
        _build_vertical_scale(drawn, levels),
    )
    parts = [_draw_axis(across, up)]
    parts += [
        f'<line class="level" x1="{MARGIN_LEFT}" x2="{CHART_WIDTH - MARGIN_RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}"/>'
        for y in levels
    ]
    for one in sorted(drawn, key=lambda one: not one.faint):
        places = [(across(step), up(value)) for step, value in one.points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        colour, width = f"var(--c{one.color % NUM_COLORS})", ' opacity=".45"' if one.faint else ""
        parts.append(f'<path d="{path}" stroke="{colour}"{width}/>')
        if len(places) <= 30 and not one.faint:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in places]
    legend = "".join(
        f'<span><i style="background:var(--c{one.color % NUM_COLORS})"></i>{escape(one.label)}</span>' for one in drawn
    )
    picture = f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    inside = f'<h3>{escape(title)}</h3>{picture}<div class="legend">{legend}</div>'
    return [f'<figure class="card">{inside}</figure>']


@dataclass(frozen=True, slots=True)
class _AxisScale:
    low: float
    high: float
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float], first: float, last: float) -> _AxisScale:
        low, high = min(values), max(values)
        return cls(low, high if high > low else low + 1, first, last)

    def __call__(self, value: float) -> float:
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self, count: int) -> list[float]:
        """Round numbers inside, about so many."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        unit = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough)
        start = math.ceil(self.low / unit - 1e-9)
        return [at * unit for at in range(start, math.floor(self.high / unit + 1e-9) + 1)]


def _build_vertical_scale(series: Sequence[ChartSeries], levels: Sequence[float]) -> _AxisScale:
    values = [value for one in series for _, value in one.points] + list(levels)
    low, high = min(values), max(values)
    room = (high - low or 1.0) * 0.06
    return _AxisScale(low - room, high + room, CHART_HEIGHT - MARGIN_BOTTOM, MARGIN_TOP)


def _draw_axis(across: _AxisScale, up: _AxisScale) -> str:
    parts = []
    for value in up.ticks(4):
        y = up(value)
        parts.append(
            f'<line class="axis" x1="{MARGIN_LEFT}" x2="{CHART_WIDTH - MARGIN_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{MARGIN_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{value:g}</text>')
    for value in (tick for tick in across.ticks(4) if tick == int(tick)):  # there is no half a step
        x, end = across(value), "end" if across(value) > CHART_WIDTH - 30 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{CHART_HEIGHT - 7}" text-anchor="{end}">{value:,.0f}</text>')
    return "".join(parts)


def _thin_points(points: CurvePoints) -> CurvePoints:
    """At most so many as can be seen, each the mean of its neighbours."""
    if len(points) <= MAX_CHART_POINTS:
        return points
    size = -(-len(points) // MAX_CHART_POINTS)
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
