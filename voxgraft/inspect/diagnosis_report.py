"""`report.html` of a diagnosis, and its picture: one page that opens in any browser without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from voxgraft import __version__
from voxgraft.core.results import data_url, render_page
from voxgraft.inspect.body import LayerChange
from voxgraft.inspect.diagnose import Diagnosis
from voxgraft.inspect.rows import ROW_KINDS, RowTable
from voxgraft.inspect.verdict import FAR_DISTANCE, MOVED_DISTANCE
from voxgraft.training.plots import (
    COLORS,
    FINDING_COLOR,
    MUTED_COLOR,
    TEXT_COLOR,
    plot_style,
    render_figure,
)

FINE_COLOR, SOFT_COLOR = "#009e73", "#8fc1e3"
# In the order of ROW_KINDS. Green is the base's own, blue is new; the warm ones are damage.
_KIND_COLORS = (
    *(FINE_COLOR, "#e69f00", FINDING_COLOR, "#a40000", COLORS[0], "#000000"),
    *(COLORS[3], "#a40000", "#7a4fa3", SOFT_COLOR, MUTED_COLOR, TEXT_COLOR),
)
ROW_KIND_COLORS = dict(zip(ROW_KINDS, _KIND_COLORS, strict=True))
# More dots would overlap in a panel of 6.6 inches.
MAX_POINTS = 4000
# Lowest move that is drawn: rows of the same bits are drawn at the bottom.
MIN_DRAWN_CHANGE = 1e-7
VERDICT_COLORS = {"RESUME": FINE_COLOR, "REPAIR": "#b36b00", "START FRESH": "#a40000"}
PanelDrawer = Callable[[Axes], None]


def draw_diagnosis(found: Diagnosis) -> bytes:
    """A PNG with all panels that there is something for."""
    panels: list[tuple[str, PanelDrawer]] = [
        (f"rows of {table.tensor}", partial(_draw_row_changes, table=table))
        for table in found.tables
        if table.role != "head-bias"
    ]
    if found.tables:
        title = f"norm of the rows of {found.tables[0].tensor}"
        panels.append((title, partial(_draw_row_lengths, table=found.tables[0])))
    if found.layers:
        panels.append(("change of the backbone, layer by layer", partial(_draw_layers, layers=found.layers)))
    if found.moments:
        title = f"optimizer moments of {found.moments[0].tensor}"
        panels.append((title, partial(_draw_moments, found=found)))
    with plot_style():
        columns = 2 if len(panels) > 1 else 1
        rows = max(1, -(-len(panels) // columns))
        figure = Figure(figsize=(6.6 * columns, 3.5 * rows + 0.8), layout="constrained")
        word, sentence, letters = found.verdict.word, found.verdict.sentence, 62 * columns
        headline = sentence if len(sentence) <= letters else sentence[: letters - 1] + "…"
        figure.suptitle(f"{word}: {headline}", x=0.01, ha="left", fontsize=11)
        figure.texts[0].set_color(VERDICT_COLORS[word])
        figure.texts[0].set_fontweight("bold")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (title, draw) in zip(grid.flat, panels, strict=False):
            axes.set_title(title)
            draw(axes)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        return render_figure(figure, ("png",))["png"]


def _draw_row_changes(axes: Axes, table: RowTable) -> None:
    """Every base row by how far it moved; new rows have a line of their own, since the base has none to compare."""
    at = _thin_indices(len(table.kinds))
    height = np.clip(np.nan_to_num(table.moved[at], nan=MIN_DRAWN_CHANGE), MIN_DRAWN_CHANGE, 1e3)
    height[np.isnan(table.moved[at])] = MIN_DRAWN_CHANGE / 3
    _scatter_rows(axes, table, at, height)
    axes.set_yscale("log")
    axes.set_ylim(MIN_DRAWN_CHANGE / 6, max(3.0, float(height.max()) * 2))
    axes.axhline(0.5, color=MUTED_COLOR, linestyle="--", linewidth=0.9)
    axes.set_yticks(
        [MIN_DRAWN_CHANGE / 3, MIN_DRAWN_CHANGE, 1e-5, 1e-3, 1e-1, 1], ["new", "same bits", "1e-5", "1e-3", "0.1", "1"]
    )
    axes.set_yticks([], minor=True)
    axes.set_ylabel("change relative to its norm")
    _add_legend(axes)


def _draw_row_lengths(axes: Axes, table: RowTable) -> None:
    at = _thin_indices(len(table.kinds))
    lengths = np.nan_to_num(table.lengths[at], nan=0.0, posinf=0.0)
    _scatter_rows(axes, table, at, lengths)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("length")


def _draw_layers(axes: Axes, layers: Sequence[LayerChange]) -> None:
    """Parts side by side, each with its layers; infinite where values are not finite."""
    parts = list(dict.fromkeys(layer.part for layer in layers))
    finite = [layer.distance for layer in layers if np.isfinite(layer.distance)]
    top = max([*finite, MOVED_DISTANCE * 1.2]) * 1.15
    for number, part in enumerate(parts):
        part_layers = [(position, layer) for position, layer in enumerate(layers) if layer.part == part]
        heights = [layer.distance if np.isfinite(layer.distance) else top for _, layer in part_layers]
        axes.bar(
            [position for position, _ in part_layers],
            heights,
            width=0.85,
            color=COLORS[number % len(COLORS)],
            label=part,
            zorder=2,
        )
    axes.set_ylim(0, top)
    for level, label in ((MOVED_DISTANCE, "old languages may suffer"), (FAR_DISTANCE, "mostly another backbone")):
        if level < top:
            axes.axhline(level, color=FINDING_COLOR, linestyle="--", linewidth=0.9, zorder=3)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
            axes.text(len(layers) - 0.5, level, label, ha="right", va="bottom", color=FINDING_COLOR, bbox=box, zorder=4)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}" if top > 0.05 else f"{share:.2%}"))
    axes.set_xticks([])
    axes.set_xlabel("layers, in the order of the parts below")
    axes.set_ylabel("change relative to their norm")
    _add_legend(axes)


def _draw_moments(axes: Axes, found: Diagnosis) -> None:
    moments = found.moments[0]
    indices = _thin_indices(len(moments.first))
    for values, colour, label in (
        (moments.second, SOFT_COLOR, "second moment (root)"),
        (moments.first, COLORS[0], "first moment"),
    ):
        clipped = np.clip(values[indices], 1e-20, None)
        axes.scatter(indices, clipped, s=4, color=colour, linewidths=0, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:.0e}"))
    base = next((table.num_base for table in found.tables if table.tensor == moments.tensor), 0)
    axes.axvline(base - 0.5, color=FINDING_COLOR, linestyle="--", linewidth=0.9, label=f"first new row: {base:,}")
    axes.set_ylabel("norm (1e-20: none)")
    _format_row_axis(axes)
    _add_legend(axes)


def _scatter_rows(axes: Axes, table: RowTable, at: NDArray[np.int64], heights: NDArray[Any]) -> None:
    for number, kind in enumerate(ROW_KINDS):
        own = table.kinds[at] == number
        if own.any():
            label = f"{kind}: {table.counts[kind]:,}"
            axes.scatter(at[own], heights[own], s=5, color=ROW_KIND_COLORS[kind], label=label, linewidths=0, zorder=3)
    _format_row_axis(axes)


def _format_row_axis(axes: Axes) -> None:
    axes.set_xlabel("row")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda row, _: f"{row:,.0f}"))


def _add_legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.17), ncols=3, borderaxespad=0, borderpad=0, markerscale=2)


def _thin_indices(count: int) -> NDArray[np.int64]:
    """Evenly spaced row numbers, at most about MAX_POINTS; always with the last ones, which may be spare rows."""
    step = max(1, count // MAX_POINTS)
    return np.unique(np.concatenate([np.arange(0, count, step), np.arange(max(0, count - 3), count)]))


LEVEL_SIGNS = {"error": ("✗", "bad"), "warning": ("!", "bad"), "note": ("✓", "soft")}


def diagnosis_report_html(found: Diagnosis, picture: bytes | None) -> str:
    """The whole page; `picture` is a PNG."""
    levels, optimizer = list(LEVEL_SIGNS), found.optimizer
    facts: list[tuple[str, str]] = []
    if optimizer is not None:
        facts = [
            ("parameters with moments", f"{len(optimizer.moments):,}"),
            ("steps of the optimizer", "unknown" if optimizer.step is None else f"{optimizer.step:,}"),
            ("step of the file", "unknown" if optimizer.file_step is None else f"{optimizer.file_step:,}"),
            ("learning rates", ", ".join(f"{rate:.3g}" for rate in optimizer.rates) or "unknown"),
            ("rates at the start", ", ".join(f"{rate:.3g}" for rate in optimizer.first_rates) or "unknown"),
            ("weight decay", ", ".join(f"{decay:g}" for decay in optimizer.weight_decay) or "unknown"),
            ("step of the schedule", "unknown" if optimizer.last_epoch is None else f"{optimizer.last_epoch:,}"),
        ]
    return render_page(
        "diagnosis.html",
        found=found,
        version=__version__,
        verdict_color=VERDICT_COLORS[found.verdict.word],
        row_kind_colors=ROW_KIND_COLORS,
        layers=[
            (layer.name, f"{layer.tensors:,}", f"{layer.changed:,}", _format_distance(layer.distance))
            for layer in found.layers
            if layer.changed
        ],
        distance=_format_distance(found.distance or 0.0),
        optimizer_facts=facts,
        heard_rows=[
            (entry["language"], entry["who"], f"{entry['sentences']}", f"{entry['phone_error']:.1%}")
            for entry in found.heard
        ],
        picture_url=None if picture is None else data_url(picture, "image/png"),
        level_signs=LEVEL_SIGNS,
        sorted_findings=sorted(found.findings, key=lambda item: levels.index(item.level)),
    )


def _format_distance(value: float) -> str:
    return "not finite" if value == float("inf") else f"{100 * value:.3g} %"
