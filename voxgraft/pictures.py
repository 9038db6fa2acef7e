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
from typing import Any, Literal

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from voxgraft.amounts import brief_rate
from voxgraft.history import SPEECH, TEXT, Event, History, Points

__all__ = ["Format", "compared", "curves_of", "drawn", "make_readable", "readable"]

Format = Literal["png", "svg"]
FONT, LAST_RESORT = "DejaVu Sans", "Last Resort High-Efficiency"
"""The font of every chart, which comes with matplotlib; and the one whose letters are all boxes."""
INK, PALE = "#222222", "#9a9a9a"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart also by those who see few colours (Okabe and Ito)."""
TRAIN, HELD_OUT, WORRY = "#8fc1e3", "#0072b2", "#d55e00"
MOST_POINTS = 600
MOST_NAMED = 6
LEAST_USE, LEAST_PERCENT = 0.05, 0.5
"""No axis of uses or of retention is shorter than this, up and down: what is nothing shall look it."""
PANEL_INCHES = (4.6, 3.4)
LEGEND_TOP = -0.2
"""Under the name of the axis, as a share of the panel's height."""
LEGEND_LETTERS, LEGEND_LINE_LETTERS = 66, 9
"""Letters of a legend that go side by side, and how many the piece of line before each name takes."""
DOTS_PER_INCH = 130
STYLE: dict[Any, Any] = {
    "axes.edgecolor": PALE,
    "axes.grid": True,
    "axes.labelcolor": INK,
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
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the small pictures: its title, and what draws it."""

    title: str
    draw: Callable[[Axes], None]


def curves_of(history: History, title: str) -> Mapping[Format, bytes]:
    """All curves of one run."""
    panels = [
        Panel("speech loss", lambda axes: _loss(axes, history, SPEECH)),
        Panel("text loss", lambda axes: _loss(axes, history, TEXT)),
    ]
    if any(history.held_out(use) for use in ("text_use", "voice_use")):
        panels.append(
            Panel("what the model uses (rise of the loss when it is swapped)", lambda axes: _uses(axes, history))
        )
    if any(history.retention(name) for name in history.base_languages):
        panels.append(Panel("retention (rise of the speech loss since step 0)", lambda axes: _retention(axes, history)))
    if history.train("kl"):
        panels.append(
            Panel("KL from the base, on replay", lambda axes: _line(axes, history.train("kl"), COLOURS[3], ""))
        )
    if history.parts("rates"):
        panels.append(Panel("learning rates", lambda axes: _rates(axes, history)))
    if history.train("positions_per_second"):
        panels.append(Panel("speed, tokens per second", lambda axes: _speed(axes, history)))
    return drawn(panels, title, _worries(history))


def compared(histories: Mapping[str, History], title: str) -> Mapping[Format, bytes]:
    """Held-out curves of several runs over each other."""
    keys = {"held-out speech loss": SPEECH, "held-out text loss": TEXT, "text use": "text_use"}
    panels = [
        Panel(name, lambda axes, key=key: _overlay(axes, histories, key))  # type: ignore[misc]
        for name, key in keys.items()
    ]
    return drawn(panels, title, "")


def drawn(panels: Sequence[Panel], title: str, foot: str) -> Mapping[Format, bytes]:
    """Panels side by side, in both formats."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
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
            figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=WORRY)
        return {"png": _saved(figure, "png"), "svg": _saved(figure, "svg")}


def make_readable(figure: Figure) -> None:
    """Give every text of a figure fonts that have its letters, and write in Latin letters what no font has."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        letters = text.get_text()
        fonts = _fonts_for(letters)
        if fonts:
            text.set_fontfamily([FONT, *fonts])
        if (shown := readable(letters)) != letters:
            text.set_text(shown)


def readable(text: str) -> str:
    """The text as a chart can show it: words with letters that no installed font has are romanised, never boxes."""
    if not (missing := _missing(text)):
        return text
    known = set().union(*(_letters_of(path) for path in _paths_of(_fonts_for(text))))
    lacking = {letter for letter in missing if ord(letter) not in known}
    if not lacking:
        return text
    from voxgraft.text.romanise import romanise  # loads a table, which most charts do not need

    words = [romanise(word) if lacking & set(word) else word for word in re.split(r"(\s+)", text)]
    # What has no sound, such as an emoji, is named by its number.
    bare = {letter for word in words for letter in _missing(word) if ord(letter) not in known}
    return "".join(f"U+{ord(letter):04X}" if letter in bare else letter for letter in "".join(words))


def _missing(text: str) -> set[str]:
    """Letters that the font of all charts lacks."""
    own = _letters_of(font_manager.findfont(FONT))
    return {letter for letter in text if letter.isprintable() and ord(letter) not in own}


def _fonts_for(text: str) -> tuple[str, ...]:
    """Names of installed fonts that together have as many as possible of the letters that our font lacks."""
    return _fonts_of(frozenset(_missing(text)))


@lru_cache(maxsize=256)
def _fonts_of(missing: frozenset[str]) -> tuple[str, ...]:
    if not missing:
        return ()  # most charts: looking for all installed fonts takes up to seconds
    wanted, found = {ord(letter) for letter in missing}, []
    # Sorted, so that the same machine always takes the same; those made for every script come first.
    for path, name in sorted(_installed().items(), key=lambda one: (not one[1].startswith("Noto Sans"), one[1])):
        if not wanted:
            break
        if name not in found and wanted & _letters_of(path):
            wanted -= _letters_of(path)
            found.append(name)
    return tuple(found)


def _paths_of(names: Sequence[str]) -> list[str]:
    return [path for path, name in _installed().items() if name in names]


@cache
def _installed() -> dict[str, str]:
    """Font files and their names. matplotlib's own list may be older than a font that was installed since."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):  # files that only look like fonts
                font_manager.fontManager.addfont(path)
    return {
        entry.fname: entry.name
        for entry in font_manager.fontManager.ttflist
        if entry.name not in (FONT, LAST_RESORT) and entry.style == "normal"
    }


@cache
def _letters_of(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def _saved(figure: Figure, form: Format) -> bytes:
    make_readable(figure)
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()


def _loss(axes: Axes, history: History, key: str) -> None:
    """Training and held-out loss, the levels that they are to be held against, the best step, and what was found."""
    _line(axes, history.train(key), TRAIN, "train")
    _line(axes, history.held_out(key), HELD_OUT, "held out", marked=True)
    if (first := history.first_level(key)) is not None:
        axes.axhline(first, color=PALE, linestyle="--", linewidth=0.9, label=f"step 0: {first:.2f}", zorder=1)
    if (chance := history.chance.get(key)) is not None:
        axes.axhline(chance, color=PALE, linestyle=":", linewidth=1.2, label=f"chance: {chance:.2f}", zorder=1)
    best = dict(history.held_out(key)).get(history.best_step) if history.best_step else None
    if best is not None:
        label = f"best: step {history.best_step:,}, {best:.3f}"
        axes.plot([history.best_step], [best], "*", color=INK, markersize=9, label=label, zorder=4)
    _mark(axes, _worrying(history))
    _name_lines(axes)


def _uses(axes: Axes, history: History) -> None:
    for colour, use in zip(COLOURS, ("text_use", "voice_use"), strict=False):
        _line(axes, history.held_out(use), colour, use.partition("_")[0], marked=True)
    _at_least(axes, LEAST_USE)
    axes.axhline(0, color=PALE, linewidth=0.9)
    _name_lines(axes)


def _retention(axes: Axes, history: History) -> None:
    for number, name in enumerate(history.base_languages):
        points = [(step, 100 * share) for step, share in history.retention(name)]
        _line(axes, points, COLOURS[number % len(COLOURS)], _label(name), marked=True, style=_style(number))
    axes.axhline(0, color=PALE, linewidth=0.9)
    _at_least(axes, LEAST_PERCENT)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:+.2g} %" if share else "0"))
    _name_lines(axes)


def _rates(axes: Axes, history: History) -> None:
    for number, part in enumerate(history.parts("rates")):
        # Parts often have one rate: dashes let the line beneath be seen.
        style = ("-", (0, (5, 4)), (0, (1, 3)))[number % 3]
        axes.plot(*_columns(history.train("rates", part)), color=COLOURS[number], linestyle=style, label=part)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: brief_rate(rate)))
    _name_lines(axes)


def _speed(axes: Axes, history: History) -> None:
    _line(axes, history.train("positions_per_second"), COLOURS[2], "")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda speed, _: f"{speed:,.0f}"))


def _overlay(axes: Axes, histories: Mapping[str, History], key: str) -> None:
    for number, (name, history) in enumerate(histories.items()):
        points = history.held_out(key)
        colour = COLOURS[number % len(COLOURS)]
        _line(axes, points, colour, _label(name), marked=True, style=_style(number))
        best = dict(points).get(history.best_step) if history.best_step else None
        if best is not None:
            axes.plot([history.best_step], [best], "*", color=colour, markersize=9, zorder=4)
    if key not in (SPEECH, TEXT):
        _at_least(axes, LEAST_USE)
    _name_lines(axes)


def _style(number: int) -> str:
    """Of lines that are more than there are colours."""
    return ("-", "--", ":", "-.")[number // len(COLOURS) % 4]


def _line(axes: Axes, points: Points, colour: str, label: str, *, marked: bool = False, style: str = "-") -> None:
    """A curve; one of a single point, or of few that are marked, shows its points."""
    shown = _thinned(points)
    if not shown:
        return
    dots = "o" if len(shown) == 1 or (marked and len(shown) <= 40) else ""
    axes.plot(*_columns(shown), color=colour, linestyle=style, linewidth=1.4, marker=dots, markersize=3.5, label=label)


def _name_lines(axes: Axes) -> None:
    """The legend under the panel, where it hides no curve; as many columns as there is room for."""
    names = [str(name) for name in axes.get_legend_handles_labels()[1]]
    if names:
        columns = max(1, min(len(names), LEGEND_LETTERS // (max(map(len, names)) + LEGEND_LINE_LETTERS)))
        axes.legend(loc="upper left", bbox_to_anchor=(0, LEGEND_TOP), ncols=columns, borderaxespad=0, borderpad=0)


def _at_least(axes: Axes, reach: float) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -reach), max(high, reach))


def _mark(axes: Axes, events: Sequence[Event]) -> None:
    """A small triangle at the foot for every finding; what they are stands under the picture."""
    if events:
        steps = sorted({event.step for event in events})
        place = axes.get_xaxis_transform()
        axes.plot(steps, [0.02] * len(steps), "^", color=WORRY, transform=place, clip_on=False, label="finding")


def _worrying(history: History) -> list[Event]:
    return [event for event in history.findings if event.values.get("level") != "note"]


def _worries(history: History) -> str:
    events = _worrying(history)
    named = [f"step {event.step:,}: {event.values.get('code', '?')}" for event in events[:MOST_NAMED]]
    more = [f"and {len(events) - MOST_NAMED:,} more"] if len(events) > MOST_NAMED else []
    return f"findings: {', '.join([*named, *more])}" if named else ""


def _thinned(points: Points) -> Points:
    """At most so many points as can be seen; each is the mean of its neighbours."""
    if len(points) <= MOST_POINTS:
        return points
    edges = [index * len(points) // MOST_POINTS for index in range(MOST_POINTS + 1)]
    found = []
    for first, last in pairwise(edges):
        group = points[first:last]
        found.append((group[-1][0], sum(value for _, value in group) / len(group)))
    return found


def _columns(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _label(name: str) -> str:
    """matplotlib leaves out of a legend what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name
