"""Curves of runs as one picture, as PNG and SVG: the same journal gives the same bytes.

Draws what a `History` holds; reads and writes no file, and leaves matplotlib's own settings alone.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from voxgraft.config.commands import PlotSettings
from voxgraft.core.errors import FileError
from voxgraft.core.files import atomic_write, require_folder, require_output_path
from voxgraft.core.journal import SPEECH_LOSS, TEXT_LOSS, CurvePoints, History, HistoryEvent, RunJournal
from voxgraft.core.results import Line, Table, format_learning_rate
from voxgraft.core.run import RunFolder

ImageFormat = Literal["png", "svg"]
CHART_FONT, LAST_RESORT_FONT = "DejaVu Sans", "Last Resort High-Efficiency"
"""The font of every chart, which comes with matplotlib; and the one whose letters are all boxes."""
TEXT_COLOR, MUTED_COLOR = "#222222", "#9a9a9a"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart also by those who see few colours (Okabe and Ito)."""
TRAIN_COLOR, HELD_OUT_COLOR, FINDING_COLOR = "#8fc1e3", "#0072b2", "#d55e00"
MAX_POINTS = 600
MAX_FINDINGS_NAMED = 6
MIN_USE_RANGE, MIN_RETENTION_RANGE = 0.05, 0.5
"""No axis of uses or of retention is shorter than this, up and down: what is nothing shall look it."""
PANEL_INCHES = (4.6, 3.4)
LEGEND_TOP = -0.2
"""Under the name of the axis, as a share of the panel's height."""
LEGEND_WIDTH_CHARACTERS, LEGEND_MARKER_CHARACTERS = 66, 9
"""Letters of a legend that go side by side, and how many the piece of line before each name takes."""
DOTS_PER_INCH = 130
MATPLOTLIB_STYLE: dict[Any, Any] = {
    "axes.edgecolor": MUTED_COLOR,
    "axes.grid": True,
    "axes.labelcolor": TEXT_COLOR,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 8.5,
    "grid.color": "#e6e6e6",
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "legend.framealpha": 0.8,
    "legend.fontsize": 8,
    "svg.hashsalt": "voxgraft",
    "text.parse_math": False,  # a run may be called what it likes, $ included
    "xtick.color": TEXT_COLOR,
    "ytick.color": TEXT_COLOR,
}


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """One of the small pictures: its title, and what draws it."""

    title: str
    draw: Callable[[Axes], None]


def render_run_curves(history: History, title: str) -> Mapping[ImageFormat, bytes]:
    """All curves of one run."""
    panels = [
        ChartPanel("speech loss", lambda axes: _draw_loss(axes, history, SPEECH_LOSS)),
        ChartPanel("text loss", lambda axes: _draw_loss(axes, history, TEXT_LOSS)),
    ]
    if any(history.held_out(use) for use in ("text_use", "voice_use")):
        panels.append(
            ChartPanel(
                "what the model uses (rise of the loss when it is swapped)", lambda axes: _draw_uses(axes, history)
            )
        )
    if any(history.retention(name) for name in history.base_languages):
        panels.append(
            ChartPanel("retention (rise of the speech loss since step 0)", lambda axes: _draw_retention(axes, history))
        )
    if history.train("kl"):
        panels.append(
            ChartPanel("KL from the base, on replay", lambda axes: _draw_line(axes, history.train("kl"), COLORS[3], ""))
        )
    if history.parts("rates"):
        panels.append(ChartPanel("learning rates", lambda axes: _draw_learning_rates(axes, history)))
    if history.train("positions_per_second"):
        panels.append(ChartPanel("speed, tokens per second", lambda axes: _draw_speed(axes, history)))
    return render_panels(panels, title, _format_findings_footer(history))


def render_run_comparison(histories: Mapping[str, History], title: str) -> Mapping[ImageFormat, bytes]:
    """Held-out curves of several runs over each other."""
    keys = {"held-out speech loss": SPEECH_LOSS, "held-out text loss": TEXT_LOSS, "text use": "text_use"}
    panels = [
        ChartPanel(name, lambda axes, key=key: _draw_overlay(axes, histories, key))  # type: ignore[misc]
        for name, key in keys.items()
    ]
    return render_panels(panels, title, "")


def render_panels(panels: Sequence[ChartPanel], title: str, foot: str) -> Mapping[ImageFormat, bytes]:
    """Panels side by side, in both formats."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        columns = 2 if len(panels) in (1, 2, 4) else 3
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(columns * PANEL_INCHES[0], rows * PANEL_INCHES[1] + 0.7), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(panel.title)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
            panel.draw(axes)
            axes.set_xlabel("step")
            first, last = axes.get_xlim()
            if last - first < 2:  # a single step: ticks are whole ones
                axes.set_xlim(round((first + last) / 2) - 1, round((first + last) / 2) + 1)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        if foot:
            figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=FINDING_COLOR)
        return {"png": _save_figure(figure, "png"), "svg": _save_figure(figure, "svg")}


def make_figure_renderable(figure: Figure) -> None:
    """Give every text of a figure fonts that have its letters, and write in Latin letters what no font has."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        letters = text.get_text()
        fonts = _find_fonts_for_text(letters)
        if fonts:
            text.set_fontfamily([CHART_FONT, *fonts])
        if (shown := make_text_renderable(letters)) != letters:
            text.set_text(shown)


def make_text_renderable(text: str) -> str:
    """The text as a chart can show it: words with letters that no installed font has are romanised, never boxes."""
    if not (missing := _missing_characters(text)):
        return text
    known = set().union(*(_font_characters(path) for path in _font_paths(_find_fonts_for_text(text))))
    lacking = {letter for letter in missing if ord(letter) not in known}
    if not lacking:
        return text
    from voxgraft.text.encoder import romanize  # loads a table, which most charts do not need

    words = [romanize(word) if lacking & set(word) else word for word in re.split(r"(\s+)", text)]
    # What has no sound, such as an emoji, is named by its number.
    bare = {letter for word in words for letter in _missing_characters(word) if ord(letter) not in known}
    return "".join(f"U+{ord(letter):04X}" if letter in bare else letter for letter in "".join(words))


def _missing_characters(text: str) -> set[str]:
    """Letters that the font of all charts lacks."""
    own = _font_characters(font_manager.findfont(CHART_FONT))
    return {letter for letter in text if letter.isprintable() and ord(letter) not in own}


def _find_fonts_for_text(text: str) -> tuple[str, ...]:
    """Names of installed fonts that together have as many as possible of the letters that our font lacks."""
    return _find_fonts(frozenset(_missing_characters(text)))


@lru_cache(maxsize=256)
def _find_fonts(missing: frozenset[str]) -> tuple[str, ...]:
    if not missing:
        return ()  # most charts: looking for all installed fonts takes up to seconds
    wanted, found = {ord(letter) for letter in missing}, []
    # Sorted, so that the same machine always takes the same; those made for every script come first.
    for path, name in sorted(_installed_fonts().items(), key=lambda one: (not one[1].startswith("Noto Sans"), one[1])):
        if not wanted:
            break
        if name not in found and wanted & _font_characters(path):
            wanted -= _font_characters(path)
            found.append(name)
    return tuple(found)


def _font_paths(names: Sequence[str]) -> list[str]:
    return [path for path, name in _installed_fonts().items() if name in names]


@cache
def _installed_fonts() -> dict[str, str]:
    """Font files and their names. matplotlib's own list may be older than a font that was installed since."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):  # files that only look like fonts
                font_manager.fontManager.addfont(path)
    return {
        entry.fname: entry.name
        for entry in font_manager.fontManager.ttflist
        if entry.name not in (CHART_FONT, LAST_RESORT_FONT) and entry.style == "normal"
    }


@cache
def _font_characters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def _save_figure(figure: Figure, form: ImageFormat) -> bytes:
    make_figure_renderable(figure)
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()


def _draw_loss(axes: Axes, history: History, key: str) -> None:
    """Training and held-out loss, the levels that they are to be held against, the best step, and what was found."""
    _draw_line(axes, history.train(key), TRAIN_COLOR, "train")
    _draw_line(axes, history.held_out(key), HELD_OUT_COLOR, "held out", marked=True)
    if (first := history.initial_loss(key)) is not None:
        axes.axhline(first, color=MUTED_COLOR, linestyle="--", linewidth=0.9, label=f"step 0: {first:.2f}", zorder=1)
    if (chance := history.chance.get(key)) is not None:
        axes.axhline(chance, color=MUTED_COLOR, linestyle=":", linewidth=1.2, label=f"chance: {chance:.2f}", zorder=1)
    best = dict(history.held_out(key)).get(history.best_step) if history.best_step else None
    if best is not None:
        label = f"best: step {history.best_step:,}, {best:.3f}"
        axes.plot([history.best_step], [best], "*", color=TEXT_COLOR, markersize=9, label=label, zorder=4)
    _mark_findings(axes, _notable_findings(history))
    _draw_legend(axes)


def _draw_uses(axes: Axes, history: History) -> None:
    for colour, use in zip(COLORS, ("text_use", "voice_use"), strict=False):
        _draw_line(axes, history.held_out(use), colour, use.partition("_")[0], marked=True)
    _widen_y_axis(axes, MIN_USE_RANGE)
    axes.axhline(0, color=MUTED_COLOR, linewidth=0.9)
    _draw_legend(axes)


def _draw_retention(axes: Axes, history: History) -> None:
    for number, name in enumerate(history.base_languages):
        points = [(step, 100 * share) for step, share in history.retention(name)]
        _draw_line(
            axes, points, COLORS[number % len(COLORS)], _legend_label(name), marked=True, style=_line_style(number)
        )
    axes.axhline(0, color=MUTED_COLOR, linewidth=0.9)
    _widen_y_axis(axes, MIN_RETENTION_RANGE)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:+.2g} %" if share else "0"))
    _draw_legend(axes)


def _draw_learning_rates(axes: Axes, history: History) -> None:
    for number, part in enumerate(history.parts("rates")):
        # Parts often have one rate: dashes let the line beneath be seen.
        style = ("-", (0, (5, 4)), (0, (1, 3)))[number % 3]
        axes.plot(*_split_points(history.train("rates", part)), color=COLORS[number], linestyle=style, label=part)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: format_learning_rate(rate)))
    _draw_legend(axes)


def _draw_speed(axes: Axes, history: History) -> None:
    _draw_line(axes, history.train("positions_per_second"), COLORS[2], "")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda speed, _: f"{speed:,.0f}"))


def _draw_overlay(axes: Axes, histories: Mapping[str, History], key: str) -> None:
    for number, (name, history) in enumerate(histories.items()):
        points = history.held_out(key)
        colour = COLORS[number % len(COLORS)]
        _draw_line(axes, points, colour, _legend_label(name), marked=True, style=_line_style(number))
        best = dict(points).get(history.best_step) if history.best_step else None
        if best is not None:
            axes.plot([history.best_step], [best], "*", color=colour, markersize=9, zorder=4)
    if key not in (SPEECH_LOSS, TEXT_LOSS):
        _widen_y_axis(axes, MIN_USE_RANGE)
    _draw_legend(axes)


def _line_style(number: int) -> str:
    """Of lines that are more than there are colours."""
    return ("-", "--", ":", "-.")[number // len(COLORS) % 4]


def _draw_line(
    axes: Axes, points: CurvePoints, colour: str, label: str, *, marked: bool = False, style: str = "-"
) -> None:
    """A curve; one of a single point, or of few that are marked, shows its points."""
    shown = _downsample_points(points)
    if not shown:
        return
    dots = "o" if len(shown) == 1 or (marked and len(shown) <= 40) else ""
    axes.plot(
        *_split_points(shown), color=colour, linestyle=style, linewidth=1.4, marker=dots, markersize=3.5, label=label
    )


def _draw_legend(axes: Axes) -> None:
    """The legend under the panel, where it hides no curve; as many columns as there is room for."""
    names = [str(name) for name in axes.get_legend_handles_labels()[1]]
    if names:
        columns = max(1, min(len(names), LEGEND_WIDTH_CHARACTERS // (max(map(len, names)) + LEGEND_MARKER_CHARACTERS)))
        axes.legend(loc="upper left", bbox_to_anchor=(0, LEGEND_TOP), ncols=columns, borderaxespad=0, borderpad=0)


def _widen_y_axis(axes: Axes, reach: float) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -reach), max(high, reach))


def _mark_findings(axes: Axes, events: Sequence[HistoryEvent]) -> None:
    """A small triangle at the foot for every finding; what they are stands under the picture."""
    if events:
        steps = sorted({event.step for event in events})
        place = axes.get_xaxis_transform()
        axes.plot(steps, [0.02] * len(steps), "^", color=FINDING_COLOR, transform=place, clip_on=False, label="finding")


def _notable_findings(history: History) -> list[HistoryEvent]:
    return [event for event in history.findings if event.values.get("level") != "note"]


def _format_findings_footer(history: History) -> str:
    events = _notable_findings(history)
    named = [f"step {event.step:,}: {event.values.get('code', '?')}" for event in events[:MAX_FINDINGS_NAMED]]
    more = [f"and {len(events) - MAX_FINDINGS_NAMED:,} more"] if len(events) > MAX_FINDINGS_NAMED else []
    return f"findings: {', '.join([*named, *more])}" if named else ""


def _downsample_points(points: CurvePoints) -> CurvePoints:
    """At most so many points as can be seen; each is the mean of its neighbours."""
    if len(points) <= MAX_POINTS:
        return points
    edges = [index * len(points) // MAX_POINTS for index in range(MAX_POINTS + 1)]
    found = []
    for first, last in pairwise(edges):
        group = points[first:last]
        found.append((group[-1][0], sum(value for _, value in group) / len(group)))
    return found


def _split_points(points: CurvePoints) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _legend_label(name: str) -> str:
    """matplotlib leaves out of a legend what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


CURVES_NAME = "curves"
IMAGE_FORMATS: tuple[ImageFormat, ...] = ("png", "svg")


@dataclass(frozen=True, slots=True)
class PlotResult:
    """The pictures, and how the runs stand."""

    files: tuple[Path, ...]
    histories: dict[str, History]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [str(path) for path in self.files],
            "runs": {name: _summarize_history(history) for name, history in self.histories.items()},
        }

    def lines(self) -> list[Line]:
        rows = []
        for name, history in self.histories.items():
            stand = _summarize_history(history)
            losses = [stand[key] for key in ("speech_loss", "best_speech_loss")]
            figures = ["-" if loss is None else f"{loss:.4f}" for loss in losses]
            rows.append((name, f"{stand['step']:,}", *figures, f"{stand['best_step']:,}", stand["state"] or "-"))
        columns = ("run", "step", "held-out speech loss", "best", "at step", "state")
        return [Table(columns, tuple(rows)), *(f"picture: {path}" for path in self.files)]


def plot(settings: PlotSettings) -> PlotResult:
    """Draw one run, or compare several."""
    alone = len(settings.runs) == 1
    stem = settings.output or (settings.runs[0] / CURVES_NAME if alone else Path(CURVES_NAME))
    # What stands in a run under our own name is drawn anew; anything else is replaced only if asked.
    overwrite = settings.overwrite or (settings.output is None and alone)
    files = tuple(_with_format_suffix(stem, form) for form in IMAGE_FORMATS)
    for path in files:
        require_output_path(path, overwrite=overwrite)
    histories = _load_histories(settings.runs)
    if alone:
        name, history = next(iter(histories.items()))
        pictures = render_run_curves(history, _format_plot_title(name, history))
    else:
        pictures = render_run_comparison(histories, f"{len(histories)} runs on held-out recordings")
    for path, form in zip(files, IMAGE_FORMATS, strict=True):
        with atomic_write(path, overwrite=overwrite) as stream:
            stream.write(pictures[form])
    return PlotResult(files, histories)


def _load_histories(runs: tuple[Path, ...]) -> dict[str, History]:
    """By the names of their folders; where two have one name, by their paths."""
    names = [path.resolve().name or str(path) for path in runs]
    found: dict[str, History] = {}
    for path, name in zip(runs, names, strict=True):
        journal = RunJournal(RunFolder(require_folder(path)).journal)
        history = History.of(journal.read())
        if not history.steps and not history.valid:
            raise FileError("plot-nothing", f"{path} has no losses in its journal", where=journal.path)
        found[name if names.count(name) == 1 else str(path)] = history
    return found


def _format_plot_title(name: str, history: History) -> str:
    total = f" of {history.num_steps:,}" if history.num_steps else ""
    parts = [f"{name}: {history.language}" if history.language else name, f"step {history.last_step:,}{total}"]
    if history.state is not None:
        parts.append(str(history.state.values["state"]))
    return ", ".join(parts)


def _summarize_history(history: History) -> dict[str, Any]:
    held_out = history.held_out(SPEECH_LOSS)
    return {
        "step": history.last_step,
        "speech_loss": held_out[-1][1] if held_out else None,
        "best_step": history.best_step,
        "best_speech_loss": dict(held_out).get(history.best_step) if history.best_step else None,
        "state": history.state.values["state"] if history.state else None,
        "findings": len(history.findings),
    }


def _with_format_suffix(stem: Path, form: ImageFormat) -> Path:
    """The file of one format; an ending of either format that the user has typed is not doubled."""
    bare = stem.with_suffix("") if stem.suffix.lower() in (".png", ".svg") else stem
    return bare.with_name(f"{bare.name}.{form}")
