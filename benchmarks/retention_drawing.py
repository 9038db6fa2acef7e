"""The picture of the retention benchmark: a dot for each method, its seeds as small dots, names beside them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import median

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.retention_tables import Results, Summary, error, noise_of, summaries
from voxgraft.evaluation.compare import _place_labels
from voxgraft.training.plots import COLORS, DOTS_PER_INCH, MATPLOTLIB_STYLE, MUTED_COLOR, TEXT_COLOR

__all__ = ["drawn"]

SIZE_INCHES = (8.0, 5.6)
MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.105, "top": 0.885}
BLUE, ORANGE, GREEN, PINK = COLORS[:4]
KINDS = {
    "gated": (BLUE, "o", "gated, and rows only: the base is untouched"),
    "rows": (BLUE, "s", ""),
    "merged": (GREEN, "D", "held to the base by replay"),
    "open": (ORANGE, "X", "nothing holds it to the base"),
}
SHORT = {
    "naive": "naive, all weights",
    "seeds": "public recipe, 1e-4",
    "seeds-slow": "public recipe, 1e-5",
    "seeds-long": "public recipe, 1e-5, 10× steps",
    "rows": "rows only",
    "ungated-32": "LoRA 32, no gate",
    "replay": "all + old recordings",
    "self": "all + self-made replay, KL",
    "self-lora": "LoRA + self-made replay, KL",
    "self-0.25": "¼ of the way",
    "self-0.5": "½ of the way",
    "self-0.75": "¾ of the way",
}
ACROSS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
UP = (-2, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
LEAST = 0.5
LINEAR_UP = 1.0
Place = tuple[float, float]


def drawn(results: Results) -> dict[str, bytes]:
    """PNG and SVG; the same results give the same bytes."""
    found = summaries(results)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**MATPLOTLIB_STYLE, "font.size": 9})
        figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**MARGINS)
        places = [_draw(axes, one) for one in found]
        names = [SHORT.get(one.key, one.title) for one in found]
        if "base" in results:
            places.append(_before(axes, 100 * error(results["base"], "am")))
            names.append("before training")
            _noise(axes, 200 * max(noise_of(results).values()))
        _frame(axes, places)
        _path(axes, found, places[: len(found)])
        _legend(axes)
        figure.text(
            0.012, 0.955, "Teaching Amharic to a base that speaks English and French", fontsize=11.5, color=TEXT_COLOR
        )
        figure.text(0.012, 0.915, "low and left is best; small dots: other random seeds", fontsize=9, color=MUTED_COLOR)
        _place_labels(axes, names, places)
        for text in axes.texts:
            text.set_path_effects([withStroke(linewidth=2.5, foreground="white", alpha=0.85)])
        return {form: _saved(figure, form) for form in ("png", "svg")}


def _draw(axes: Axes, one: Summary) -> Place:
    colour, marker, _ = KINDS[_kind(one)]
    xs = [max(LEAST, 100 * value) for value in one.new]
    ys = [0.0 if one.equal else 100 * value for value in one.worst]
    if len(xs) > 1:
        axes.plot(xs, ys, "o", color=colour, markersize=3, alpha=0.6, linestyle="none", zorder=2)
    place = (median(xs), median(ys))
    small = one.key.startswith("self-0")
    axes.plot(
        *[[value] for value in place], marker, color=colour, markersize=5 if small else 8, zorder=3, clip_on=False
    )
    return place


def _kind(one: Summary) -> str:
    if one.key.startswith("gated"):
        return "gated"
    if one.key == "rows":
        return "rows"
    return "merged" if one.key.startswith(("self", "replay")) else "open"


def _path(axes: Axes, found: Sequence[Summary], places: Sequence[Place]) -> None:
    """From the base to what replay with KL has made of it."""
    by_key = {one.key: place for one, place in zip(found, places, strict=True)}
    way = [by_key[key] for key in ("self-0.25", "self-0.5", "self-0.75", "self") if key in by_key]
    if len(way) > 1:
        axes.plot(*zip(*way, strict=True), color=KINDS["merged"][0], linewidth=0.9, alpha=0.6, zorder=1)


def _before(axes: Axes, new: float) -> Place:
    axes.plot([new], [0], "o", color="white", mec=MUTED_COLOR, mew=1.5, markersize=7, zorder=3)
    return new, 0.0


def _noise(axes: Axes, noise: float) -> None:
    """As far as two equally good models differ by chance, nineteen times in twenty."""
    axes.axhspan(-noise, noise, color="#f0f0f0", zorder=0)
    way = axes.get_yaxis_transform()
    note = axes.text(0.5, -0.6 * noise, "chance of sampling", transform=way, ha="center", va="center")
    note.set(fontsize=7.5, color=MUTED_COLOR)


def _frame(axes: Axes, places: Sequence[Place]) -> None:
    axes.set_xlabel("Amharic after training: phone error, %")
    axes.set_ylabel("worse of English and French: change of phone error, points")
    axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR_UP, linscale=0.6)
    xs, ys = [x for x, _ in places], [y for _, y in places]
    axes.set_xlim(max(LEAST, 0.6 * min(xs, default=1.0)), 1.5 * max(xs, default=100.0))
    axes.set_ylim(min(-1.5 * LINEAR_UP, 1.5 * min(ys, default=0.0)), max(5.0, 1.9 * max(ys, default=0.0)))
    axes.xaxis.set_major_locator(FixedLocator(ACROSS))
    axes.yaxis.set_major_locator(FixedLocator(UP))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def _legend(axes: Axes) -> None:
    for colour, marker, title in KINDS.values():
        if title:
            axes.plot([], [], marker, color=colour, label=title)
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 1.15), ncols=1, borderaxespad=0)


def _saved(figure: Figure, form: str) -> bytes:
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()
