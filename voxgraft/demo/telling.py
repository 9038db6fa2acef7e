"""What the demonstration ends with: a table of every language before and after, what was added, what it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voxgraft.amounts import format_duration
from voxgraft.errors import Finding
from voxgraft.evaluate import EVALUATION_REPORT_NAME, EvaluateResult
from voxgraft.evaluating.judging import WHO_AFTER, WHO_BEFORE, WHO_SHUFFLED, Evaluation
from voxgraft.evaluating.marks import WHO_CODEC, WHO_RECORDINGS
from voxgraft.evaluating.proofs import LanguageRetention
from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.verdicts import measure_title
from voxgraft.results import Line, Table, TableCell, style_line

__all__ = ["build_caught_table", "format_durations", "format_evaluation", "summarize_evaluation"]

DEMO_ERROR_MEASURE = "phone_error"
WORD_KINDS = {"": "", "_common": " (heard words)", "_rare": " (unheard words)"}
REFERENCE_LABELS = {
    WHO_SHUFFLED: "control: the same speech held against other sentences",
    WHO_RECORDINGS: "mark: the listener's own error on recordings",
    WHO_CODEC: "mark: the listener's own error on held-out clips",
}


def summarize_evaluation(found: EvaluateResult) -> dict[str, Any]:
    """The figures of the table, for machines."""
    evaluation = found.evaluation
    change = evaluation.change
    scores = {
        language: {
            row.who: {name: row.score(name).to_json() for name in _list_measured_names(row.scores)}
            for row in evaluation.rows
            if row.language == language
        }
        for language in evaluation.languages
    }
    return {
        "languages": scores,
        "equal": {kept.language: kept.equal for kept in evaluation.kept},
        "base_values_changed": change.changed if change else None,
        "checklist": {point.name: point.answer for point in found.points},
        "report": str(found.folder / EVALUATION_REPORT_NAME),
    }


def format_evaluation(found: EvaluateResult, added: Mapping[str, str]) -> list[Line]:
    """The table, and below it what was added and what it was held against."""
    evaluation = found.evaluation
    rows = [_build_language_row(evaluation, language) for language in evaluation.languages]
    table = Table(("language", "phone error before", "after", "speech logits of the base"), tuple(rows))
    change = evaluation.change
    facts: list[tuple[TableCell, ...]] = [(name, value) for name, value in added.items()]
    facts += _build_error_facts(evaluation)
    if change is not None:
        values = f"{change.changed:,} of {change.total:,} values are others" if change.changed else "0"
        told = style_line((values, "bold red" if change.changed else "bold green"))
        facts.append(("bits changed in the base", told))
    return [table, Table(("what", "found"), tuple(facts)), f"report: {found.folder / EVALUATION_REPORT_NAME}"]


def build_caught_table(caught: Iterable[tuple[str, Finding]]) -> Table:
    """Which finding was told, and when."""
    rows = tuple((when, item.level, item.code, _shorten_text(item.found)) for when, item in caught)
    return Table(("when", "level", "code", "found"), rows, "what told of it")


def format_durations(seconds: Mapping[str, float]) -> str:
    """What the whole took, and each part that took some time."""
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if value >= 0.5)
    return f"took {format_duration(sum(seconds.values()))}: {parts}"


def _build_language_row(evaluation: Evaluation, language: str) -> tuple[TableCell, ...]:
    before, after = evaluation.row(language, WHO_BEFORE), evaluation.row(language, WHO_AFTER)
    kept = next((one for one in evaluation.kept if one.language == language), None)
    new = " (new)" if language == evaluation.language else ""
    told = tuple(_format_with_interval(row.score(DEMO_ERROR_MEASURE)) if row else "" for row in (before, after))
    return (f"{language}{new}", *told, _format_equality(kept) if kept else "")


def _format_equality(kept: LanguageRetention) -> TableCell:
    if kept.equal is None:
        return kept.why
    if kept.equal:
        return style_line(("equal", "bold green"), f" at all {kept.positions:,} positions")
    return style_line(("not equal", "bold red"), f", by up to {kept.largest_difference:.2g}")


def _build_error_facts(evaluation: Evaluation) -> list[tuple[TableCell, ...]]:
    """The new language's error by words, and what it is held against."""
    language = evaluation.language or ""
    after = evaluation.row(language, WHO_AFTER)
    facts: list[tuple[TableCell, ...]] = []
    for kind, told in WORD_KINDS.items():
        if kind and after is not None and after.score(DEMO_ERROR_MEASURE + kind).value is not None:
            facts.append(
                (f"phone error in {language}{told}", _format_with_interval(after.score(DEMO_ERROR_MEASURE + kind)))
            )
    for who, told in REFERENCE_LABELS.items():
        row = evaluation.row(language, who)
        name = next((name for name in (DEMO_ERROR_MEASURE, "cer") if row and row.score(name).value is not None), None)
        if row is not None and name is not None:
            facts.append((f"{told}, {measure_title(name)}", _format_with_interval(row.score(name))))
    return facts


def _format_with_interval(score: Score) -> str:
    if score.value is None:
        return "–"
    if score.low is None or score.high is None:
        return f"{100 * score.value:.1f} %"
    return f"{100 * score.value:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _list_measured_names(scores: Mapping[str, Score]) -> Sequence[str]:
    return [
        name
        for name in (
            DEMO_ERROR_MEASURE,
            f"{DEMO_ERROR_MEASURE}_common",
            f"{DEMO_ERROR_MEASURE}_rare",
            "cer",
            "runaway",
            "cut",
        )
        if name in scores
    ]


def _shorten_text(text: str, most: int = 110) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= most and first == text else f"{first[:most].rstrip()} ..."
