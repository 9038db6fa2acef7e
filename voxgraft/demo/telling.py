"""What the demonstration ends with: a table of every language before and after, what was added, what it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voxgraft.amounts import brief_seconds
from voxgraft.errors import Finding
from voxgraft.evaluate import REPORT_NAME, EvaluateResult
from voxgraft.evaluating.judging import AFTER, BEFORE, SHUFFLED, Evaluation
from voxgraft.evaluating.marks import CODEC, RECORDINGS
from voxgraft.evaluating.proofs import Kept
from voxgraft.evaluating.rates import Score
from voxgraft.evaluating.verdicts import title_of
from voxgraft.results import Cell, Line, Table, styled

__all__ = ["caught_table", "evaluated_lines", "seconds_line", "summary"]

ERROR = "phone_error"
KINDS = {"": "", "_common": " (heard words)", "_rare": " (unheard words)"}
OTHERS = {
    SHUFFLED: "control: the same speech held against other sentences",
    RECORDINGS: "mark: the listener's own error on recordings",
    CODEC: "mark: the listener's own error on held-out clips",
}


def summary(found: EvaluateResult) -> dict[str, Any]:
    """The figures of the table, for machines."""
    evaluation = found.evaluation
    change = evaluation.change
    scores = {
        language: {
            row.who: {name: row.score(name).to_json() for name in _names(row.scores)}
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
        "report": str(found.folder / REPORT_NAME),
    }


def evaluated_lines(found: EvaluateResult, added: Mapping[str, str]) -> list[Line]:
    """The table, and below it what was added and what it was held against."""
    evaluation = found.evaluation
    rows = [_language_row(evaluation, language) for language in evaluation.languages]
    table = Table(("language", "phone error before", "after", "speech logits of the base"), tuple(rows))
    change = evaluation.change
    facts: list[tuple[Cell, ...]] = [(name, value) for name, value in added.items()]
    facts += _parts_of_error(evaluation)
    if change is not None:
        values = f"{change.changed:,} of {change.total:,} values are others" if change.changed else "0"
        told = styled((values, "bold red" if change.changed else "bold green"))
        facts.append(("bits changed in the base", told))
    return [table, Table(("what", "found"), tuple(facts)), f"report: {found.folder / REPORT_NAME}"]


def caught_table(caught: Iterable[tuple[str, Finding]]) -> Table:
    """Which finding was told, and when."""
    rows = tuple((when, item.level, item.code, _brief(item.found)) for when, item in caught)
    return Table(("when", "level", "code", "found"), rows, "what told of it")


def seconds_line(seconds: Mapping[str, float]) -> str:
    """What the whole took, and each part that took some time."""
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items() if value >= 0.5)
    return f"took {brief_seconds(sum(seconds.values()))}: {parts}"


def _language_row(evaluation: Evaluation, language: str) -> tuple[Cell, ...]:
    before, after = evaluation.row(language, BEFORE), evaluation.row(language, AFTER)
    kept = next((one for one in evaluation.kept if one.language == language), None)
    new = " (new)" if language == evaluation.language else ""
    told = tuple(_with_interval(row.score(ERROR)) if row else "" for row in (before, after))
    return (f"{language}{new}", *told, _equality(kept) if kept else "")


def _equality(kept: Kept) -> Cell:
    if kept.equal is None:
        return kept.why
    if kept.equal:
        return styled(("equal", "bold green"), f" at all {kept.positions:,} positions")
    return styled(("not equal", "bold red"), f", by up to {kept.largest_difference:.2g}")


def _parts_of_error(evaluation: Evaluation) -> list[tuple[Cell, ...]]:
    """The new language's error by words, and what it is held against."""
    language = evaluation.language or ""
    after = evaluation.row(language, AFTER)
    facts: list[tuple[Cell, ...]] = []
    for kind, told in KINDS.items():
        if kind and after is not None and after.score(ERROR + kind).value is not None:
            facts.append((f"phone error in {language}{told}", _with_interval(after.score(ERROR + kind))))
    for who, told in OTHERS.items():
        row = evaluation.row(language, who)
        name = next((name for name in (ERROR, "cer") if row and row.score(name).value is not None), None)
        if row is not None and name is not None:
            facts.append((f"{told}, {title_of(name)}", _with_interval(row.score(name))))
    return facts


def _with_interval(score: Score) -> str:
    if score.value is None:
        return "–"
    if score.low is None or score.high is None:
        return f"{100 * score.value:.1f} %"
    return f"{100 * score.value:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _names(scores: Mapping[str, Score]) -> Sequence[str]:
    return [name for name in (ERROR, f"{ERROR}_common", f"{ERROR}_rare", "cer", "runaway", "cut") if name in scores]


def _brief(text: str, most: int = 110) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= most and first == text else f"{first[:most].rstrip()} ..."
