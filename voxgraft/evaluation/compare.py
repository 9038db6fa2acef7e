"""The command `compare`: several evaluated runs in one picture, what they learned (x) against what it cost (y)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from voxgraft.config.commands import CompareSettings, ComparisonMetric
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import atomic_write, is_file, is_folder, require_folder, require_output_path
from voxgraft.core.results import Line, Table, style_line
from voxgraft.core.run import RunFolder
from voxgraft.evaluation.judge import WHO_AFTER
from voxgraft.evaluation.report import SCORES_NAME, find_worst_change, read_scores, summarize_retention
from voxgraft.evaluation.scores import SCORE_MEASURES, Score, format_score, measure_title
from voxgraft.training.plots import (
    COLORS,
    DOTS_PER_INCH,
    MATPLOTLIB_STYLE,
    MUTED_COLOR,
    TEXT_COLOR,
    ImageFormat,
    make_figure_renderable,
    make_text_renderable,
)

COMPARISON_FORMATS: tuple[ImageFormat, ...] = ("png", "svg")
PREFERRED_METRICS: tuple[ComparisonMetric, ...] = ("phone_error", "cer", "speech_loss")
MODE_MARKERS = {"gated": "o", "merged": "D", "masked-finetune": "X", "rows-only": "s", "checkpoint": "^"}
MODE_STYLES = {mode: (marker, COLORS[at]) for at, (mode, marker) in enumerate(MODE_MARKERS.items())}
OTHER_MODE_STYLE = ("o", TEXT_COLOR)
FIGURE_INCHES = (8.6, 5.6)
FIGURE_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.115, "top": 0.93}
# Per cent: a log scale has no zero, so smaller errors are drawn here.
MIN_X = 0.5
X_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
Y_TICKS = (-100, -10, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
# Points up to which the y scale is linear: smaller differences are chance.
Y_LINEAR_LIMIT = 1.0
# Approximate size of a label and a dot at DOTS_PER_INCH.
LABEL_CHARACTER_PIXELS, LABEL_LINE_PIXELS, MARKER_PIXELS = 8.6, 17.0, 8.0
LABEL_RADII = (14, 24, 36, 50, 66, 84, 104, 126, 150)
# Left, bottom, right and top, in pixels.
Box = tuple[float, float, float, float]
# One run: its name, its error in the new language, the worst change of an old one, and the way it was trained.
ComparisonPoint = tuple[str, Score, tuple[str, float] | None, str]


def draw_comparison(
    dots: Sequence[ComparisonPoint], measure: str, differing: Sequence[str] = ()
) -> Mapping[ImageFormat, bytes]:
    """The picture in both formats: the same dots give the same bytes.

    Notes below it name runs without a number, and conditions that differ between runs.
    """
    title, form, _ = SCORE_MEASURES[measure]
    percent = form == "percent"
    factor, unit = (100.0, "%") if percent else (1.0, "nats")

    def across(value: float) -> float:
        return max(factor * value, MIN_X) if percent else value

    left_out = [name for name, error, worst, _ in dots if error.value is None or worst is None]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of the user must not change the bytes
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        figure = Figure(figsize=FIGURE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**FIGURE_MARGINS)
        names, places, modes = [], [], []
        for name, error, worst, mode in dots:
            if error.value is None or worst is None:
                continue
            x, y, (marker, color) = across(error.value), factor * worst[1], MODE_STYLES.get(mode, OTHER_MODE_STYLE)
            if error.low is not None and error.high is not None:
                axes.plot([across(error.low), across(error.high)], [y, y], color=color, linewidth=1.2, alpha=0.45)
            axes.plot([x], [y], marker, color=color, markersize=8, zorder=3, clip_on=False)
            # Letters that no font has are romanised first: labels are placed by the length that is drawn.
            names.append(make_text_renderable(name))
            places.append((x, y))
            modes.append(mode)
        axes.set_title("Best: lower left. The new language is spoken, and nothing is lost.")
        axes.set_xlabel(f"{title} in the new language, {unit}")
        axes.set_ylabel(f"worst change of an old language, {'points' if percent else 'nats'}")
        axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
        if percent:
            left, right = axes.get_xlim()
            low, high = min((y for _, y in places), default=0.0), max((y for _, y in places), default=0.0)
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=Y_LINEAR_LIMIT, linscale=0.6)
            axes.set_xlim(MIN_X if left < 1 else max(MIN_X, 0.7 * left), max(right, 10))
            axes.set_ylim(min(1.5 * low, -0.8 * Y_LINEAR_LIMIT), max(1.5 * high, 5 * Y_LINEAR_LIMIT))
            axes.xaxis.set_major_locator(FixedLocator(X_TICKS))
            axes.yaxis.set_major_locator(FixedLocator(Y_TICKS))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
        for mode in dict.fromkeys(modes):
            marker, color = MODE_STYLES.get(mode, OTHER_MODE_STYLE)
            axes.plot([], [], marker, color=color, label=mode)
        if names:
            axes.legend(loc="upper right")
        place_labels(axes, names, places)
        notes = [f"not measured: {', '.join(left_out)}"] if left_out else []
        notes += [f"different between runs: {', '.join(differing)}"] if differing else []
        if notes:
            figure.text(0.01, 0.012, "; ".join(notes), fontsize=8, color=MUTED_COLOR)
        pictures: dict[ImageFormat, bytes] = {}
        for ending in COMPARISON_FORMATS:
            make_figure_renderable(figure)
            stream = io.BytesIO()
            # Without dates and versions, so that the same dots give the same bytes.
            nameless = {"Software": None} if ending == "png" else {"Date": None, "Creator": None}
            figure.savefig(stream, format=ending, dpi=DOTS_PER_INCH, metadata=nameless)
            pictures[ending] = stream.getvalue()
        return pictures


def place_labels(axes: Axes, names: Sequence[str], places: Sequence[tuple[float, float]]) -> None:
    """Names beside their dots, each at the nearest place where it covers neither a dot nor another name."""
    pixels = [tuple(map(float, axes.transData.transform(place))) for place in places]
    frame = axes.get_window_extent()
    taken: list[Box] = [(x - MARKER_PIXELS, y - MARKER_PIXELS, x + MARKER_PIXELS, y + MARKER_PIXELS) for x, y in pixels]
    to_points = 72 / DOTS_PER_INCH
    for name, place, (x, y) in zip(names, places, pixels, strict=True):
        width, candidates = LABEL_CHARACTER_PIXELS * len(name), []
        for radius, (side, rise) in product(LABEL_RADII, ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0))):
            away, up = side * (radius if rise == 0 else max(8.0, 0.5 * radius)), rise * radius
            left = x + away if side > 0 else x + away - width
            bottom, right, top = y + up - LABEL_LINE_PIXELS / 2, left + width, y + up + LABEL_LINE_PIXELS / 2
            candidates.append((away, up, (left, bottom, right, top)))
            inside = left > frame.x0 and right < frame.x1 and bottom > frame.y0 and top < frame.y1
            if inside and not any(
                left < other[2] and other[0] < right and bottom < other[3] and other[1] < top for other in taken
            ):
                break
        else:
            candidates.append(candidates[0])  # all are covered: the nearest
        away, up, box = candidates[-1]
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


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The picture and its table."""

    measure: str
    runs: dict[str, dict[str, Any]]
    """By name: error, worst change of an old language, and what was measured how."""
    files: tuple[Path, ...]
    differing: list[str]
    """Conditions that are not the same in all runs: their errors were not measured alike."""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        files = [str(path) for path in self.files]
        return {"measure": self.measure, "differing": self.differing, "runs": self.runs, "files": files}

    def lines(self) -> list[Line]:
        title = f"{measure_title(self.measure)}, new"
        columns = ("run", "way", "step", title, "95 of 100", "worst old", "change", "logits")
        rows = []
        for name, run in self.runs.items():
            error, step, change = Score.from_json(run["error"]), run["step"], run["worst_change"]
            ends = (format_score(self.measure, Score(value)) for value in (error.low, error.high))
            old = run["worst_language"] or "–"
            old += f" (not measured: {', '.join(run['not_measured'])})" if run["not_measured"] else ""
            points = "–"
            if change is not None:
                points = f"{change:+.3f}" if self.measure == "speech_loss" else f"{100 * change:+.1f} points"
            between = "–" if error.low is None else " to ".join(ends)
            steps = f"{step:,}" if isinstance(step, int) else "–"
            told = (format_score(self.measure, error), between, old, points, run["logits"])
            rows.append((name, run["mode"] or "–", steps, *told))
        lines: list[Line] = [Table(columns, tuple(rows)), *(f"chart: {path}" for path in self.files)]
        for what in self.differing:
            by_run = "; ".join(f"{name}: {run['how'][what]}" for name, run in self.runs.items())
            lines.append(style_line((f"different {what} between runs: ", "bold red"), by_run))
        return lines


def compare(settings: CompareSettings) -> CompareResult:
    """Read every evaluation, and draw all that have the measure."""
    stem = settings.output.with_suffix("") if settings.output.suffix in (".png", ".svg") else settings.output
    files = tuple(stem.with_name(f"{stem.name}.{form}") for form in COMPARISON_FORMATS)
    for path in files:
        require_output_path(path, overwrite=settings.overwrite)
    paths = _find_score_files(settings)
    found = {name: read_scores(path) for name, path in paths.items()}
    # The first measure that every evaluation has of its new language; of none, the one that most have.
    counts = {
        name: sum(one.score(one.language or "", WHO_AFTER, name).value is not None for one, _, _ in found.values())
        for name in PREFERRED_METRICS
    }
    common = max(PREFERRED_METRICS, key=lambda name: (counts[name], -PREFERRED_METRICS.index(name)))
    measure = settings.measure or common
    runs: dict[str, dict[str, Any]] = {}
    dots: list[ComparisonPoint] = []
    for name, (scores, about, how) in found.items():
        error = scores.score(scores.language or "", WHO_AFTER, measure)
        worst, missing = find_worst_change(scores, measure)
        dots.append((name, error, worst, about.get("mode") or "?"))
        runs[name] = {
            "scores": str(paths[name]),
            "mode": about.get("mode"),
            "step": about.get("step"),
            "language": scores.language,
            "error": error.to_json(),
            "worst_language": worst[0] if worst else None,
            "worst_change": worst[1] if worst else None,
            "not_measured": missing,
            "how": how,
            "logits": summarize_retention(scores),
        }
    if not any(error.value is not None for _, error, _, _ in dots):
        tried = ", ".join(f"{name}: {error.why}" for name, error, _, _ in dots[:4])
        raise ConfigError("compare-nothing", f"no evaluation has {measure_title(measure)} for a new language ({tried})")
    conditions = [how for _, _, how in found.values()]
    differing = [what for what in conditions[0] if len({how[what] for how in conditions}) > 1]
    pictures = draw_comparison(dots, measure, differing)
    for path, form in zip(files, COMPARISON_FORMATS, strict=True):
        with atomic_write(path, overwrite=settings.overwrite) as stream:
            stream.write(pictures[form])
    return CompareResult(measure, runs, files, differing)


def _find_score_files(settings: CompareSettings) -> dict[str, Path]:
    """Every scores.json by the name of its run; where two have one name, by their paths."""
    places: list[tuple[str, Path, Path]] = []
    for path in settings.runs:
        if is_file(path):
            places.append((path.resolve().parent.name, path, path))
        elif is_file(require_folder(path) / SCORES_NAME):
            places.append((path.resolve().name, path, path / SCORES_NAME))
        else:
            evaluations = RunFolder(path).eval
            scores = evaluations / settings.name / SCORES_NAME
            if not is_file(scores):
                there = [one.name for one in sorted(evaluations.iterdir())] if is_folder(evaluations) else []
                expected = f"one of its evaluations: {', '.join(there)}" if there else "an evaluation"
                cure = f"evaluate it first: voxgraft evaluate {path}"
                found = f"{path} has no evaluation {settings.name!r}"
                raise ConfigError("compare-nothing", found, expected=expected, where=path, cure=cure)
            places.append((path.resolve().name, path, scores))
    given = [scores.resolve() for _, _, scores in places]
    if twice := next(
        (str(path) for path, scores in zip(settings.runs, given, strict=True) if given.count(scores) > 1), ""
    ):
        raise ConfigError(
            "config-value", f"the evaluation of {twice} is given more than once", expected="each evaluation once"
        )
    names = [name for name, _, _ in places]
    return {name if names.count(name) == 1 else str(given): scores for name, given, scores in places}
