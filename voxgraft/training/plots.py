"""The command `plot`: curves of runs as one picture, as PNG and SVG. The same journal gives the same bytes.

Also the style and the fonts of every other chart. matplotlib's own settings stay as they are.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
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
from voxgraft.core.results import Line, SimpleResult, Table, format_learning_rate
from voxgraft.core.run import SPEECH_LOSS, TEXT_LOSS, CurvePoints, History, RunFolder, RunJournal

ImageFormat = Literal["png", "svg"]
# The font of every chart, which comes with matplotlib; and the one whose letters are all boxes.
CHART_FONT, LAST_RESORT_FONT = "DejaVu Sans", "Last Resort High-Efficiency"
TEXT_COLOR, MUTED_COLOR = "#222222", "#9a9a9a"
# The palette of Okabe and Ito, which colour-blind readers can tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
TRAIN_COLOR, HELD_OUT_COLOR, FINDING_COLOR = "#8fc1e3", "#0072b2", "#d55e00"
MAX_POINTS = 600
MAX_FINDINGS_NAMED = 6
# An axis of uses or of retention reaches at least so far up and down, so that noise around zero looks like zero.
MIN_USE_RANGE, MIN_RETENTION_RANGE = 0.05, 0.5
PANEL_INCHES = (4.6, 3.4)
# Under the name of the axis, as a share of the panel's height.
LEGEND_TOP = -0.2
# Characters of a legend that fit side by side, and how many the piece of line before each name takes.
LEGEND_WIDTH_CHARACTERS, LEGEND_MARKER_CHARACTERS = 66, 9
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
USES_TITLE = "text and voice use (increase of the loss when swapped)"
RETENTION_TITLE = "retention (increase of the speech loss since step 0)"
KL_TITLE, RATES_TITLE, SPEED_TITLE = "KL from the base, on replay", "learning rates", "speed, tokens per second"
CURVES_NAME = "curves"
IMAGE_FORMATS: tuple[ImageFormat, ...] = ("png", "svg")


def plot(settings: PlotSettings) -> SimpleResult:
    """Draw one run, or compare several."""
    alone = len(settings.runs) == 1
    stem = settings.output or (settings.runs[0] / CURVES_NAME if alone else Path(CURVES_NAME))
    # Our own pictures in a run are replaced; anything else only if asked.
    overwrite = settings.overwrite or (settings.output is None and alone)
    # A suffix of either format that the user has typed is not doubled.
    bare = stem.with_suffix("") if stem.suffix.lower() in (".png", ".svg") else stem
    files = tuple(bare.with_name(f"{bare.name}.{form}") for form in IMAGE_FORMATS)
    for path in files:
        require_output_path(path, overwrite=overwrite)
    # By the names of their folders; where two have one name, by their paths.
    names = [path.resolve().name or str(path) for path in settings.runs]
    histories: dict[str, History] = {}
    for path, name in zip(settings.runs, names, strict=True):
        journal = RunJournal(RunFolder(require_folder(path)).journal)
        history = History.of(journal.read())
        if not history.steps and not history.valid:
            raise FileError("plot-nothing", f"{path} has no training log yet", where=journal.path)
        histories[name if names.count(name) == 1 else str(path)] = history
    if alone:
        name, history = next(iter(histories.items()))
        total = f" of {history.num_steps:,}" if history.num_steps else ""
        title = f"{name}: {history.language}" if history.language else name
        title += f", step {history.last_step:,}{total}"
        if history.state is not None:
            title += f", {history.state.values['state']}"
        pictures = render_run_curves(history, title)
    else:
        pictures = render_run_comparison(histories, f"{len(histories)} runs on held-out recordings")
    for path, form in zip(files, IMAGE_FORMATS, strict=True):
        with atomic_write(path, overwrite=overwrite) as stream:
            stream.write(pictures[form])
    summaries: dict[str, dict[str, Any]] = {}
    rows = []
    for name, history in histories.items():
        held_out = history.held_out(SPEECH_LOSS)
        last = held_out[-1][1] if held_out else None
        best = dict(held_out).get(history.best_step) if history.best_step else None
        state = history.state.values["state"] if history.state else None
        summaries[name] = {
            "step": history.last_step,
            "speech_loss": last,
            "best_step": history.best_step,
            "best_speech_loss": best,
            "state": state,
            "findings": len(history.findings),
        }
        figures = ["-" if loss is None else f"{loss:.4f}" for loss in (last, best)]
        rows.append((name, f"{history.last_step:,}", *figures, f"{history.best_step:,}", state or "-"))
    columns = ("run", "step", "held-out speech loss", "best", "at step", "state")
    lines: list[Line] = [Table(columns, tuple(rows)), *(f"plot: {path}" for path in files)]
    return SimpleResult({"files": [str(path) for path in files], "runs": summaries}, tuple(lines))


def render_run_curves(history: History, title: str) -> Mapping[ImageFormat, bytes]:
    """All curves of one run."""
    retention = {name: history.retention(name) for name in history.base_languages}
    notable = [event for event in history.findings if event.values.get("level") != "note"]
    visible = {
        "speech loss": True,
        "text loss": True,
        USES_TITLE: any(history.held_out(use) for use in ("text_use", "voice_use")),
        RETENTION_TITLE: any(retention.values()),
        KL_TITLE: bool(history.train("kl")),
        RATES_TITLE: bool(history.parts("rates")),
        SPEED_TITLE: bool(history.train("positions_per_second")),
    }
    with plot_style():
        figure, panels = _create_figure([name for name, is_shown in visible.items() if is_shown], title)
        for name, key in (("speech loss", SPEECH_LOSS), ("text loss", TEXT_LOSS)):
            axes, held_out = panels[name], history.held_out(key)
            _draw_line(axes, history.train(key), TRAIN_COLOR, "train")
            _draw_line(axes, held_out, HELD_OUT_COLOR, "held out", marked=True)
            # The levels that a loss is compared with.
            if (first := history.initial_loss(key)) is not None:
                label = f"step 0: {first:.2f}"
                axes.axhline(first, color=MUTED_COLOR, linestyle="--", linewidth=0.9, label=label, zorder=1)
            if (chance := history.chance.get(key)) is not None:
                label = f"chance: {chance:.2f}"
                axes.axhline(chance, color=MUTED_COLOR, linestyle=":", linewidth=1.2, label=label, zorder=1)
            best = dict(held_out).get(history.best_step) if history.best_step else None
            if best is not None:
                label = f"best: step {history.best_step:,}, {best:.3f}"
                axes.plot([history.best_step], [best], "*", color=TEXT_COLOR, markersize=9, label=label, zorder=4)
            if steps := sorted({event.step for event in notable}):
                # A small triangle at the bottom for every finding; the line under the picture names them.
                transform, height = axes.get_xaxis_transform(), [0.02] * len(steps)
                axes.plot(steps, height, "^", color=FINDING_COLOR, transform=transform, clip_on=False, label="finding")
            _draw_legend(axes)
        if visible[USES_TITLE]:
            axes = panels[USES_TITLE]
            for number, use in enumerate(("text_use", "voice_use")):
                _draw_line(axes, history.held_out(use), number, use.partition("_")[0], marked=True)
            _widen_y_axis(axes, MIN_USE_RANGE)
            axes.axhline(0, color=MUTED_COLOR, linewidth=0.9)
            _draw_legend(axes)
        if visible[RETENTION_TITLE]:
            axes = panels[RETENTION_TITLE]
            for number, (name, points) in enumerate(retention.items()):
                _draw_line(axes, [(step, 100 * share) for step, share in points], number, name, marked=True)
            axes.axhline(0, color=MUTED_COLOR, linewidth=0.9)
            _widen_y_axis(axes, MIN_RETENTION_RANGE)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:+.2g} %" if share else "0"))
            _draw_legend(axes)
        if visible[KL_TITLE]:
            _draw_line(panels[KL_TITLE], history.train("kl"), COLORS[3], "")
        if visible[RATES_TITLE]:
            axes = panels[RATES_TITLE]
            for number, part in enumerate(history.parts("rates")):
                # Parts often have one rate: dashes let the line beneath be seen.
                style = ("-", (0, (5, 4)), (0, (1, 3)))[number % 3]
                rates = history.train("rates", part)
                steps, values = [step for step, _ in rates], [rate for _, rate in rates]
                axes.plot(steps, values, color=COLORS[number], linestyle=style, label=part)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: format_learning_rate(rate)))
            _draw_legend(axes)
        if visible[SPEED_TITLE]:
            axes = panels[SPEED_TITLE]
            _draw_line(axes, history.train("positions_per_second"), COLORS[2], "")
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda speed, _: f"{speed:,.0f}"))
        named = [f"step {event.step:,}: {event.values.get('code', '?')}" for event in notable[:MAX_FINDINGS_NAMED]]
        if len(notable) > MAX_FINDINGS_NAMED:
            named.append(f"and {len(notable) - MAX_FINDINGS_NAMED:,} more")
        return _save_figure(figure, panels, f"findings: {', '.join(named)}" if named else "")


def render_run_comparison(histories: Mapping[str, History], title: str) -> Mapping[ImageFormat, bytes]:
    """Held-out curves of several runs over each other."""
    keys = {"held-out speech loss": SPEECH_LOSS, "held-out text loss": TEXT_LOSS, "text use": "text_use"}
    with plot_style():
        figure, panels = _create_figure(list(keys), title)
        for axes, key in zip(panels.values(), keys.values(), strict=True):
            for number, (name, history) in enumerate(histories.items()):
                points = history.held_out(key)
                _draw_line(axes, points, number, name, marked=True)
                best = dict(points).get(history.best_step) if history.best_step else None
                if best is not None:
                    colour = COLORS[number % len(COLORS)]
                    axes.plot([history.best_step], [best], "*", color=colour, markersize=9, zorder=4)
            if key not in (SPEECH_LOSS, TEXT_LOSS):
                _widen_y_axis(axes, MIN_USE_RANGE)
            _draw_legend(axes)
        return _save_figure(figure, panels, "")


@contextlib.contextmanager
def plot_style() -> Iterator[None]:
    """matplotlib with this style alone: a matplotlibrc of the user must not change the bytes of a picture."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        yield


def render_figure(figure: Figure, formats: Sequence[ImageFormat] = IMAGE_FORMATS) -> dict[ImageFormat, bytes]:
    """The finished figure in each format, without dates or version numbers, so that equal data gives equal bytes."""
    make_figure_renderable(figure)
    pictures: dict[ImageFormat, bytes] = {}
    for form in formats:
        stream = io.BytesIO()
        nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
        figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
        pictures[form] = stream.getvalue()
    return pictures


def _create_figure(titles: Sequence[str], title: str) -> tuple[Figure, dict[str, Axes]]:
    """A figure with one panel for each title."""
    columns = 2 if len(titles) in (1, 2, 4) else 3
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(columns * PANEL_INCHES[0], rows * PANEL_INCHES[1] + 0.7), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(grid, titles, strict=False):
        axes.set_title(name)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for axes in grid[len(titles) :]:
        axes.set_axis_off()
    return figure, dict(zip(titles, grid, strict=False))


def _save_figure(figure: Figure, panels: Mapping[str, Axes], foot: str) -> dict[ImageFormat, bytes]:
    """The figure in both formats, its panels with steps from left to right."""
    for axes in panels.values():
        axes.set_xlabel("step")
        first, last = axes.get_xlim()
        if last - first < 2:  # a single step: ticks are whole ones
            axes.set_xlim(round((first + last) / 2) - 1, round((first + last) / 2) + 1)
    if foot:
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=FINDING_COLOR)
    return render_figure(figure)


def _draw_line(axes: Axes, points: CurvePoints, colour: str | int, label: str, *, marked: bool = False) -> None:
    """A curve, in a colour or in that of its number. A single point, or few that are marked, are drawn as dots."""
    if not points:
        return
    style = "-"
    if isinstance(colour, int):  # more lines than colours differ in their dashes
        style, colour = ("-", "--", ":", "-.")[colour // len(COLORS) % 4], COLORS[colour % len(COLORS)]
    if len(points) > MAX_POINTS:  # means of neighbours: more points than that cannot be seen
        edges = [index * len(points) // MAX_POINTS for index in range(MAX_POINTS + 1)]
        groups = [points[first:last] for first, last in pairwise(edges)]
        points = [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
    axes.plot(
        [step for step, _ in points],
        [value for _, value in points],
        color=colour,
        linestyle=style,
        linewidth=1.4,
        marker="o" if len(points) == 1 or (marked and len(points) <= 40) else "",
        markersize=3.5,
        # matplotlib leaves out of a legend what begins with an underscore.
        label=f" {label}" if label.startswith("_") else label,
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


def make_figure_renderable(figure: Figure) -> None:
    """Give every text of a figure fonts that have its letters, and write in Latin letters what no font has."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        letters = text.get_text()
        fonts = _find_fonts_for_text(letters)
        if fonts:
            text.set_fontfamily([CHART_FONT, *fonts])
        if (renderable := make_text_renderable(letters)) != letters:
            text.set_text(renderable)


def make_text_renderable(text: str) -> str:
    """The text as a chart can show it: words with letters that no installed font has are romanized, never boxes."""
    if not (missing := _missing_characters(text)):
        return text
    names = _find_fonts_for_text(text)
    paths = [path for path, name in _installed_fonts().items() if name in names] if names else []
    known = set().union(*map(_font_characters, paths))
    unrenderable = {letter for letter in missing if ord(letter) not in known}
    if not unrenderable:
        return text
    from voxgraft.text.encoder import romanize  # loads a table, which most charts do not need

    words = [romanize(word) if unrenderable & set(word) else word for word in re.split(r"(\s+)", text)]
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
    code_points, found = {ord(letter) for letter in missing}, []
    # Sorted, so that the same machine always takes the same; those made for every script come first.
    for path, name in sorted(
        _installed_fonts().items(), key=lambda font: (not font[1].startswith("Noto Sans"), font[1])
    ):
        if not code_points:
            break
        if name not in found and code_points & _font_characters(path):
            code_points -= _font_characters(path)
            found.append(name)
    return tuple(found)


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
