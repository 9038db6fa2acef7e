"""The verb `compare`: several evaluated runs in one picture, what they learnt across and what it cost up."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from voxgraft.evaluation.scores import SCORE_MEASURES, Score
from voxgraft.evaluation.verdicts import (
    SCORES_NAME,
    RetentionChanges,
    StoredScores,
    format_score,
    measure_title,
    read_scores,
)
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

MODE_MARKERS = {"gated": "o", "merged": "D", "masked-finetune": "X", "rows-only": "s", "checkpoint": "^"}
FIGURE_INCHES = (8.6, 5.6)
FIGURE_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.115, "top": 0.93}
MIN_X = 0.5
"""Per cent: what is smaller is drawn here."""
X_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
Y_TICKS = (-100, -10, -1, 0, 1, 2, 5, 10, 20, 50, 100, 200)
Y_LINEAR_LIMIT = 1.0
"""Points up to which the upward scale is even: beneath it differences are chance."""
LABEL_CHARACTER_PIXELS, LABEL_LINE_PIXELS, MARKER_PIXELS = 8.6, 17.0, 8.0
"""About how much room a label and a dot take, at our number of dots per inch."""
LABEL_RADII = (14, 24, 36, 50, 66, 84, 104, 126, 150)


@dataclass(frozen=True, slots=True)
class ComparisonPoint:
    """One run: its error in the new language, the worst change of an old one, and the way it was trained."""

    name: str
    error: Score
    worst: tuple[str, float] | None
    mode: str


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


def draw_comparison(
    dots: Sequence[ComparisonPoint], measure: str, differing: Sequence[str] = ()
) -> Mapping[ImageFormat, bytes]:
    """The picture, in both formats: the same dots give the same bytes.

    Under it stands in words who lacks a number, and what is not the same in all runs.
    """
    about = next(one for one in SCORE_MEASURES if one.name == measure)
    percent = about.form == "percent"
    shown = [dot for dot in dots if dot.error.value is not None and dot.worst is not None]
    left_out = [dot.name for dot in dots if dot not in shown]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        figure = Figure(figsize=FIGURE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        figure.subplots_adjust(**FIGURE_MARGINS)
        places = [_draw_point(axes, dot, percent) for dot in shown]
        _format_axes(axes, about.title, percent, [y for _, y in places])
        _draw_legend(axes, shown)
        _place_labels(axes, [make_text_renderable(dot.name) for dot in shown], places)  # as long as they are drawn
        notes = [f"not measured: {', '.join(left_out)}"] if left_out else []
        notes += [f"not the same in all runs: {', '.join(differing)}"] if differing else []
        if notes:
            figure.text(0.01, 0.012, "; ".join(notes), fontsize=8, color=MUTED_COLOR)
        return {"png": _encode_figure(figure, "png"), "svg": _encode_figure(figure, "svg")}


def _draw_point(axes: Axes, dot: ComparisonPoint, percent: bool) -> tuple[float, float]:
    assert dot.error.value is not None
    assert dot.worst is not None
    factor = 100.0 if percent else 1.0
    y, colour = factor * dot.worst[1], _mode_color(dot.mode)

    def across(value: float) -> float:
        return max(factor * value, MIN_X) if percent else value

    x = across(dot.error.value)
    if dot.error.low is not None and dot.error.high is not None:
        axes.plot([across(dot.error.low), across(dot.error.high)], [y, y], color=colour, linewidth=1.2, alpha=0.45)
    axes.plot([x], [y], MODE_MARKERS.get(dot.mode, "o"), color=colour, markersize=8, zorder=3, clip_on=False)
    return x, y


def _mode_color(mode: str) -> str:
    return COLORS[list(MODE_MARKERS).index(mode)] if mode in MODE_MARKERS else TEXT_COLOR


def _format_axes(axes: Axes, title: str, percent: bool, changes: Sequence[float]) -> None:
    axes.set_title("Best is low and left: the new language is spoken, and nothing is lost")
    axes.set_xlabel(f"{title} in the new language{', %' if percent else ', nats'}")
    axes.set_ylabel(f"worst change of an old language{', points' if percent else ', nats'}")
    axes.axhline(0, color=MUTED_COLOR, linewidth=1, zorder=1)
    if percent:
        left, right = axes.get_xlim()
        low, high = min(changes, default=0.0), max(changes, default=0.0)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=Y_LINEAR_LIMIT, linscale=0.6)
        axes.set_xlim(MIN_X if left < 1 else max(MIN_X, 0.7 * left), max(right, 10))
        axes.set_ylim(min(1.5 * low, -0.8 * Y_LINEAR_LIMIT), max(1.5 * high, 5 * Y_LINEAR_LIMIT))
        axes.xaxis.set_major_locator(FixedLocator(X_TICKS))
        axes.yaxis.set_major_locator(FixedLocator(Y_TICKS))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))


def _draw_legend(axes: Axes, dots: Sequence[ComparisonPoint]) -> None:
    for mode in dict.fromkeys(dot.mode for dot in dots):
        axes.plot([], [], MODE_MARKERS.get(mode, "o"), color=_mode_color(mode), label=mode)
    if dots:
        axes.legend(loc="upper right")


def _place_labels(axes: Axes, names: Sequence[str], places: Sequence[tuple[float, float]]) -> None:
    """Names beside their dots, each at the nearest place where it covers neither a dot nor another name."""
    pixels = [tuple(map(float, axes.transData.transform(place))) for place in places]
    frame = axes.get_window_extent()
    inside = _Box(frame.x0, frame.y0, frame.x1, frame.y1)
    taken = [_Box(x - MARKER_PIXELS, y - MARKER_PIXELS, x + MARKER_PIXELS, y + MARKER_PIXELS) for x, y in pixels]
    to_points = 72 / DOTS_PER_INCH
    for name, place, (x, y) in zip(names, places, pixels, strict=True):
        chosen = next(
            (found for found in _label_candidates(name, x, y) if _is_label_free(found[2], taken, inside)),
            next(_label_candidates(name, x, y)),
        )
        away, up, box = chosen
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


def _label_candidates(name: str, x: float, y: float) -> Iterator[tuple[float, float, _Box]]:
    """Places for a name, the nearest first: how far to the right, how far up, and the room that it takes there."""
    width = LABEL_CHARACTER_PIXELS * len(name)
    for radius, (side, up) in product(LABEL_RADII, ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0))):
        away = side * (radius if up == 0 else max(8.0, 0.5 * radius))
        height = up * radius
        left = x + away if side > 0 else x + away - width
        yield (
            away,
            height,
            _Box(left, y + height - LABEL_LINE_PIXELS / 2, left + width, y + height + LABEL_LINE_PIXELS / 2),
        )


def _is_label_free(box: _Box, taken: Sequence[_Box], inside: _Box) -> bool:
    fits = box.left > inside.left and box.right < inside.right and box.bottom > inside.bottom and box.top < inside.top
    return fits and not any(box.overlaps(other) for other in taken)


def _encode_figure(figure: Figure, form: ImageFormat) -> bytes:
    make_figure_renderable(figure)
    stream = io.BytesIO()
    nameless = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    figure.savefig(stream, format=form, dpi=DOTS_PER_INCH, metadata=nameless)
    return stream.getvalue()


COMPARISON_FORMATS: tuple[ImageFormat, ...] = ("png", "svg")
PREFERRED_METRICS: tuple[ComparisonMetric, ...] = ("phone_error", "cer", "speech_loss")


@dataclass(frozen=True, slots=True)
class ComparisonEntry:
    """One evaluation in the picture."""

    name: str
    scores: StoredScores
    error: Score
    changes: RetentionChanges
    """What base languages have lost."""
    word: str

    @property
    def worst(self) -> tuple[str, float] | None:
        """The base language that has lost most, and how much; None where that was not measured."""
        return self.changes.worst

    def to_json(self) -> dict[str, Any]:
        return {
            "scores": str(self.scores.path),
            "mode": self.scores.about.get("mode"),
            "step": self.scores.about.get("step"),
            "language": self.scores.language,
            "error": self.error.to_json(),
            "worst_language": self.worst[0] if self.worst else None,
            "worst_change": self.worst[1] if self.worst else None,
            "not_measured": list(self.changes.missing),
            "how": self.scores.how,
            "logits": self.word,
        }


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The picture and its table."""

    measure: str
    runs: tuple[ComparisonEntry, ...]
    files: tuple[Path, ...]
    exit_code: int = 0

    @property
    def differing_conditions(self) -> list[str]:
        """What is not the same in all runs, so that their errors were not measured alike."""
        return _find_differing_conditions([run.scores for run in self.runs])

    def to_json(self) -> dict[str, Any]:
        runs = {run.name: run.to_json() for run in self.runs}
        files = [str(path) for path in self.files]
        return {"measure": self.measure, "differing": self.differing_conditions, "runs": runs, "files": files}

    def lines(self) -> list[Line]:
        columns = (
            "run",
            "way",
            "step",
            f"{measure_title(self.measure)}, new",
            "95 of 100",
            "worst old",
            "change",
            "logits",
        )
        rows = tuple(_comparison_row(run, self.measure) for run in self.runs)
        lines: list[Line] = [Table(columns, rows), *(f"picture: {path}" for path in self.files)]
        for what in self.differing_conditions:
            by_run = "; ".join(f"{run.name}: {run.scores.how[what]}" for run in self.runs)
            lines.append(style_line((f"not the same {what} in all runs: ", "bold red"), by_run))
        return lines


def compare(settings: CompareSettings) -> CompareResult:
    """Read every evaluation, and draw all that have the measure."""
    stem = settings.output.with_suffix("") if settings.output.suffix in (".png", ".svg") else settings.output
    files = tuple(stem.with_name(f"{stem.name}.{form}") for form in COMPARISON_FORMATS)
    for path in files:
        require_output_path(path, overwrite=settings.overwrite)
    found = {name: read_scores(path) for name, path in _find_score_files(settings).items()}
    measure = settings.measure or _choose_common_metric(found.values())
    runs = tuple(_build_comparison_entry(name, one, measure) for name, one in found.items())
    if not any(run.error.value is not None for run in runs):
        tried = ", ".join(f"{run.name}: {run.error.why}" for run in runs[:4])
        raise ConfigError("compare-nothing", f"nobody has {measure_title(measure)} of a new language ({tried})")
    dots = [ComparisonPoint(run.name, run.error, run.worst, run.scores.about.get("mode") or "?") for run in runs]
    pictures = draw_comparison(dots, measure, _find_differing_conditions(list(found.values())))
    for path, form in zip(files, COMPARISON_FORMATS, strict=True):
        with atomic_write(path, overwrite=settings.overwrite) as stream:
            stream.write(pictures[form])
    return CompareResult(measure, runs, files)


def _find_score_files(settings: CompareSettings) -> dict[str, Path]:
    """Every scores.json by the name of its run; where two have one name, by their paths."""
    places: list[tuple[str, Path, Path]] = []
    for path in settings.runs:
        if is_file(path):
            places.append((path.resolve().parent.name, path, path))
        elif is_file(require_folder(path) / SCORES_NAME):
            places.append((path.resolve().name, path, path / SCORES_NAME))
        else:
            places.append((path.resolve().name, path, _find_run_scores(path, settings.name)))
    given = [scores.resolve() for _, _, scores in places]
    if twice := next(
        (str(path) for path, scores in zip(settings.runs, given, strict=True) if given.count(scores) > 1), ""
    ):
        raise ConfigError("config-value", f"the evaluation of {twice} is given more than once", expected="each once")
    names = [name for name, _, _ in places]
    return {name if names.count(name) == 1 else str(given): scores for name, given, scores in places}


def _find_run_scores(path: Path, name: str) -> Path:
    scores = RunFolder(path).eval / name / SCORES_NAME
    if not is_file(scores):
        there = [one.name for one in sorted(RunFolder(path).eval.iterdir())] if is_folder(RunFolder(path).eval) else []
        expected = f"one of its evaluations: {', '.join(there)}" if there else "an evaluation"
        cure = f"evaluate it first: voxgraft evaluate {path}"
        raise ConfigError(
            "compare-nothing", f"{path} has no evaluation {name!r}", expected=expected, where=path, cure=cure
        )
    return scores


def _choose_common_metric(found: Collection[StoredScores]) -> ComparisonMetric:
    """The first measure that every evaluation has of its new language; of none, the one that most have."""
    counts = {
        name: sum(one.score(one.language or "", WHO_AFTER, name).value is not None for one in found)
        for name in PREFERRED_METRICS
    }
    return max(PREFERRED_METRICS, key=lambda name: (counts[name], -PREFERRED_METRICS.index(name)))


def _build_comparison_entry(name: str, scores: StoredScores, measure: str) -> ComparisonEntry:
    error = scores.score(scores.language or "", WHO_AFTER, measure)
    changes = RetentionChanges.of(scores.equal, lambda language, who: scores.score(language, who, measure).value)
    answers = list(scores.equal.values())
    word = "not measured" if not answers or None in answers else "equal" if all(answers) else "not equal"
    return ComparisonEntry(name, scores, error, changes, word)


def _find_differing_conditions(found: Sequence[StoredScores]) -> list[str]:
    return [what for what in found[0].how if len({one.how[what] for one in found}) > 1]


def _comparison_row(run: ComparisonEntry, measure: str) -> tuple[str, ...]:
    step = run.scores.about.get("step")
    low, high = run.error.low, run.error.high
    interval = (
        f"{format_score(measure, Score(low))} to {format_score(measure, Score(high))}" if low is not None else "–"
    )
    language, change = run.worst or ("–", None)
    if run.changes.missing:
        language += f" (not measured: {', '.join(run.changes.missing)})"
    points = "–" if change is None else f"{100 * change:+.1f} points" if measure != "speech_loss" else f"{change:+.3f}"
    return (
        run.name,
        str(run.scores.about.get("mode") or "–"),
        f"{step:,}" if isinstance(step, int) else "–",
        format_score(measure, run.error),
        interval,
        language,
        points,
        run.word,
    )
