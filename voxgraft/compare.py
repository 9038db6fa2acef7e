"""The verb `compare`: several evaluated runs in one picture, what they learnt across and what it cost up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import ConfigError
from voxgraft.evaluating.compared_picture import ComparisonPoint, draw_comparison
from voxgraft.evaluating.judging import WHO_AFTER
from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.scores_file import SCORES_NAME, StoredScores, read_scores
from voxgraft.evaluating.verdicts import RetentionChanges, format_score, measure_title
from voxgraft.files import atomic_write, is_file, is_folder, require_folder, require_output_path
from voxgraft.pictures import ImageFormat
from voxgraft.results import Line, Table, style_line
from voxgraft.run import RunFolder
from voxgraft.settings import CompareSettings, ComparisonMetric

__all__ = ["CompareResult", "ComparisonEntry", "compare"]

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
