"""Results of commands: lines to print, JSON for machines, an exit code; and how numbers, pages and charts are written.

Commands build results; only the CLI and the web interface print them. Text is never read as markup, since it contains
language tags such as [am].
"""

from __future__ import annotations

import base64
import io
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from voxgraft.core.errors import Finding


EXIT_OK = 0
EXIT_BAD_INPUT = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# Styles of findings by their level, worst first.
LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True, slots=True)
class StyledLine:
    """One line of which parts carry a style (of rich: "green", "bold red"); without a terminal it is plain text."""

    parts: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)


def style_line(*parts: str | tuple[str, str]) -> StyledLine:
    """A line of plain texts and (text, style) pairs."""
    return StyledLine(tuple((part, "") if isinstance(part, str) else part for part in parts))


def format_finding_counts(findings: Sequence[Finding]) -> StyledLine:
    """How many findings there are of each level."""
    counts = {level: sum(item.level == level for item in findings) for level in LEVEL_STYLES}
    listed = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
    return style_line((listed, LEVEL_STYLES["error"] if counts["error"] else "bold green"))


TableCell = str | StyledLine


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names. Columns of numbers are aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{len(row)} cells under {len(self.columns)} columns: {row}"

    def to_json(self) -> list[dict[str, str]]:
        return [dict(zip(self.columns, map(plain_text, row), strict=True)) for row in self.rows]

    def numeric(self, column: int) -> bool:
        """Whether every cell of the column is a number, a percentage or empty."""
        cells = [plain_text(row[column]).strip() for row in self.rows]
        try:
            for cell in filter(None, cells):
                float(cell.removesuffix("%").strip().replace(",", ""))
        except ValueError:
            return False
        return any(cells)

    def lines(self) -> list[str]:
        """The table as aligned plain text; wide and combining characters count as the cells that they fill."""
        from rich.cells import cell_len

        texts = [self.columns, *(tuple(map(plain_text, row)) for row in self.rows)]
        widths = [max(cell_len(row[column]) for row in texts) for column in range(len(self.columns))]
        right = [self.numeric(column) for column in range(len(self.columns))]

        def aligned(row: tuple[str, ...]) -> str:
            cells = []
            for text, width, to_right in zip(row, widths, right, strict=True):
                gap = " " * (width - cell_len(text))
                cells.append(gap + text if to_right else text + gap)
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return [*([self.title] if self.title else []), aligned(texts[0]), rule, *map(aligned, texts[1:])]


Line = str | StyledLine | Table


class CommandResult(Protocol):
    """What every command returns."""

    @property
    def exit_code(self) -> int:
        """0 when all is well, 1 when the verdict is no."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was found, for machines."""

    def lines(self) -> Sequence[Line]:
        """The same for people: texts, styled lines and tables, in order."""


@dataclass(frozen=True, slots=True)
class SimpleResult:
    """A result that is ready to be shown, for commands that need no class of their own."""

    values: dict[str, Any]
    shown: tuple[Line, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.values

    def lines(self) -> Sequence[Line]:
        return self.shown


def plain_text(line: TableCell) -> str:
    """The text of a line without its style."""
    return line.plain if isinstance(line, StyledLine) else line


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
    """About three figures, in powers of ten: 40.2 kB, 8.1 MB, 812 MB, 2.14 GB."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:,.2f} GB"
    if num_bytes >= 1e8:
        return f"{num_bytes / 1e6:,.0f} MB"
    # Zero is "0.0 MB", since most sizes shown beside it have megabytes.
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 or not num_bytes else f"{num_bytes / 1e3:,.1f} kB"


def format_count(count: int) -> str:
    """Whole below a hundred thousand, then in millions: 98,304, 20.5 M."""
    return f"{count:,}" if count < 100_000 else f"{count / 1e6:,.{1 if count >= 1e7 else 2}f} M"


def format_learning_rate(rate: float) -> str:
    """A learning rate: 1e-3, 7.8e-4, 0."""
    if rate == 0:
        return "0"
    mantissa, _, exponent = f"{rate:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


# Inches, of 72 units; the page scales a chart to the width that it has.
CHART_WIDTH = 5.0
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
# matplotlib's settings belong to the process, and the web interface draws in several threads.
_ONE_AT_A_TIME = threading.Lock()


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

    assets = resources.files("voxgraft").joinpath("assets/templates")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("voxgraft", "assets/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Style sheets and scripts of voxgraft go in as they are.
    environment.globals["asset"] = lambda name: Markup(assets.joinpath(name).read_text(encoding="utf-8"))  # noqa: S704
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
    # Keep the <svg> element alone, so that it can be in a page several times and refers to nothing outside.
    parts = ("<metadata>.*?</metadata>", "<style.*?</style>", "<clipPath.*?</clipPath>", "<!--.*?-->")
    text = re.sub(f"(?s){'|'.join(parts)}", "", stream.getvalue())
    # Ids such as `axes_1` repeat in every chart. Those of markers are hashes of their content, and stay.
    text = re.sub(r' id="[\w.]+_\d+"| clip-path="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
    text = re.sub(r"#0000[01]\d", lambda color: _CSS_COLORS[color[0]], text)
    found = re.search(r'(?s)<svg[^>]*?(viewBox="[^"]*")[^>]*>(.*)', text)
    assert found is not None
    head = f'<svg {found[1]} role="img" aria-label="{escape(title)}">'
    svg = Markup(head + re.sub(r"\s*\n\s*", "\n", found[2]).strip())  # noqa: S704 (drawn here; it holds numbers alone)
    return Markup(render_page("chart.html", title=title, svg=svg, legend=legend))  # noqa: S704 (escaped there)
