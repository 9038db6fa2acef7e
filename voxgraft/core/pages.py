"""HTML pages from the templates in `assets/templates`, and charts inside them: escaped, and without a network.

matplotlib draws the charts, and the page's style sheet colours them, in light and in dark. Pictures in files are drawn
by `training/plots.py`.
"""

from __future__ import annotations

import base64
import io
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
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


def render_page(template: str, **values: Any) -> str:
    """One page. `values` are plain data; only `Markup` (an SVG that we drew) is taken as it is."""
    return _environment().get_template(template).render(values)


def data_url(data: bytes, kind: str) -> str:
    """A file inside the page, for players and pictures."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    def read_asset(name: str) -> Markup:
        text = resources.files("voxgraft").joinpath(f"assets/templates/{name}").read_text(encoding="utf-8")
        return Markup(text)  # noqa: S704 (a style sheet or a script of ours)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("voxgraft", "assets/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = read_asset
    # A number and its percent sign stay on one line.
    environment.filters["units"] = lambda text: str(text).replace(" %", "\u00a0%")
    environment.filters["spec"] = format
    return environment


def draw_inline_chart(
    title: str, draw: Callable[[Axes], None], legend: Sequence[tuple[int, str]] = (), height: float = 2.9
) -> Markup:
    """A card with a heading, what `draw` draws, and a legend of (number of a colour, label)."""
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure

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
