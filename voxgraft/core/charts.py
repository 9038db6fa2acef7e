"""Charts inside a page: matplotlib draws SVG, and the page's style sheet colours it, in light and in dark.

Pictures in files are drawn by `training/plots.py`.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

CHART_WIDTH = 5.0
"""Inches, of 72 units; the page scales a chart to the width that it has."""
# matplotlib knows no CSS variables. It draws in colours that nothing else has, and they are replaced in the SVG.
TEXT_COLOR, GRID_COLOR, LEVEL_COLOR, GOOD_COLOR, BAD_COLOR = "#000001", "#000002", "#000003", "#000004", "#000005"
SERIES_COLORS = ("#000010", "#000011", "#000012", "#000013", "#000014", "#000015")
_CSS_COLORS = {
    TEXT_COLOR: "var(--soft, currentColor)",
    GRID_COLOR: "var(--line, #94a3b880)",
    LEVEL_COLOR: "var(--faint, #94a3b8)",
    GOOD_COLOR: "var(--after)",
    BAD_COLOR: "var(--bad)",
    **{color: f"var(--c{number})" for number, color in enumerate(SERIES_COLORS)},
}
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.bottom": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": GRID_COLOR,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "voxgraft",
    "text.parse_math": False,
    **{f"{axis}tick.{key}": value for axis in "xy" for key, value in (("major.size", 0), ("labelcolor", TEXT_COLOR))},
}
_ONE_AT_A_TIME = threading.Lock()
"""matplotlib's settings belong to the process, and the web interface draws in several threads."""


def draw_inline_chart(
    title: str, draw: Callable[[Axes], None], legend: Sequence[tuple[int, str]] = (), height: float = 2.9
) -> Markup:
    """A card with a heading, what `draw` draws, and a legend of (number of a colour, label)."""
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure

    from voxgraft.core.pages import render_page

    with _ONE_AT_A_TIME, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(CHART_WIDTH, height), layout="constrained")
        draw(figure.subplots())
        stream = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = Markup(_clean_svg(stream.getvalue(), title))  # noqa: S704 (drawn here; it holds numbers alone)
    return Markup(render_page("chart.html", title=title, svg=svg, legend=legend))  # noqa: S704 (escaped there)


def _clean_svg(text: str, title: str) -> str:
    """The <svg> element alone, as it can stand several times in a page that refers to nothing outside."""
    parts = ("<metadata>.*?</metadata>", "<style.*?</style>", "<clipPath.*?</clipPath>", "<!--.*?-->")
    text = re.sub(f"(?s){'|'.join(parts)}", "", text)
    # Names such as `axes_1` come again in every chart. Those of markers are hashes of what they hold.
    text = re.sub(r' id="[\w.]+_\d+"| clip-path="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
    text = re.sub(r"#0000[01]\d", lambda color: _CSS_COLORS[color[0]], text)
    found = re.search(r'(?s)<svg[^>]*?(viewBox="[^"]*")[^>]*>(.*)', text)
    assert found is not None
    head = f'<svg {found[1]} role="img" aria-label="{escape(title)}">'
    return head + re.sub(r"\s*\n\s*", "\n", found[2]).strip()
