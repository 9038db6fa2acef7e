"""The verb `demo`: Amharic grafted onto a base that speaks English and French, with the verbs that everybody uses.

It calls other verbs, as `go` does: it stands in for the person at the keyboard.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.config.commands import DemoSettings
from voxgraft.core.errors import FileError, Finding
from voxgraft.core.files import build_write_error, is_file, is_folder, path_exists, write_text
from voxgraft.core.results import Line, Table, TableCell, format_duration, style_line
from voxgraft.demo.mistakes import MISTAKES, MistakeReport
from voxgraft.demo.session import DemoRunner, build_demo_settings
from voxgraft.evaluation.audio import WHO_CODEC, WHO_RECORDINGS
from voxgraft.evaluation.command import EVALUATION_REPORT_NAME, EvaluateResult
from voxgraft.evaluation.judge import WHO_AFTER, WHO_BEFORE, WHO_SHUFFLED, Evaluation, LanguageRetention
from voxgraft.evaluation.scores import Score
from voxgraft.evaluation.verdicts import measure_title, summarize_retention

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


_MARKER_NAME = "made-by-voxgraft-demo"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How the story ended. It fails if a promise is not kept or was not measured, or if a mistake was not told of."""

    folder: Path
    seconds: Mapping[str, float]
    added: Mapping[str, str]
    """What the base was given, in words."""
    evaluated: EvaluateResult | None
    told: MistakeReport | None = None
    """Of a mistake."""

    @property
    def exit_code(self) -> int:
        if self.told is not None:
            return 0 if self.told.is_caught else 1
        kept = self.evaluated is not None and summarize_retention(self.evaluated.evaluation) == "equal"
        return 0 if kept else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "seconds": dict(self.seconds),
            "added": dict(self.added),
            "mistake": self.told.to_json() if self.told else None,
            **(summarize_evaluation(self.evaluated) if self.evaluated else {}),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = []
        if self.told is not None:
            lines += [
                style_line((f"{self.told.name}: ", "bold"), self.told.about),
                build_caught_table(self.told.caught),
            ]
        if self.evaluated is not None:
            lines += format_evaluation(self.evaluated, self.added)
        if self.told is not None:
            lines += self.told.verdict()
        return [*lines, format_durations(self.seconds)]


def demo(settings: DemoSettings) -> DemoResult:
    """Tell the whole story, or that of a mistake."""
    folder = settings.folder or Path(f"demo-{settings.mistake}" if settings.mistake else "demo")
    _recreate_demo_folder(folder)
    keyboard = DemoRunner(folder)
    if settings.mistake is not None:
        told = MISTAKES[settings.mistake].reproduce(keyboard, settings)
        return DemoResult(folder, keyboard.seconds, {}, told.evaluated, told)
    keyboard.new(build_demo_settings(settings))
    grafted = keyboard.graft()
    keyboard.prepare()
    if settings.minutes is not None and settings.steps is None:
        keyboard.choose_steps(settings.minutes)
    keyboard.check()
    keyboard.train()
    found = keyboard.evaluate(settings.sentences, settings.seed)
    keyboard.export()
    added = {"new rows": f"{grafted.counts.new_pieces:,}", "adapter": _describe_adapter(keyboard)}
    return DemoResult(folder, keyboard.seconds, added, found)


def _describe_adapter(keyboard: DemoRunner) -> str:
    from voxgraft.graft.folder import ADAPTER_NAME
    from voxgraft.nn.peft import read_peft_folder

    adapter = read_peft_folder(keyboard.run.graft / ADAPTER_NAME)
    return f"{sum(tensor.numel() for tensor in adapter.state.values()):,} values"


def _recreate_demo_folder(folder: Path) -> None:
    """An earlier demonstration is replaced; whatever else is there is not touched.

    It is moved aside under a name of our own before it is removed: whoever is killed meanwhile leaves no half of one
    under the old name, and the next call removes the rest.
    """
    if folder.is_symlink():
        found, cure = f"{folder} is a link to {os.readlink(folder)}", "name the folder itself, or another one."
        raise FileError("file-exists", found, where=folder, cure=cure)
    aside = folder.absolute().with_name(f".{folder.absolute().name}.replaced-{_MARKER_NAME}")
    try:
        if path_exists(folder):
            if not is_file(folder / _MARKER_NAME):
                found, cure = f"{folder} is there already and is no demo of ours", "choose another folder."
                raise FileError("file-exists", found, where=folder, cure=cure)
            run = DemoRunner(folder).run
            with run.lock("demo") if is_folder(run.path) else nullcontext():  # else it trains at this moment
                _remove_folder(aside)
                folder.rename(aside)
        _remove_folder(aside)
    except OSError as error:
        raise build_write_error(error, folder) from None
    write_text(folder / _MARKER_NAME, "Made by `voxgraft demo`, which replaces this folder.\n")


def _remove_folder(folder: Path) -> None:
    if is_folder(folder):
        shutil.rmtree(folder)
