"""The verb `diagnose`: what is this checkpoint, what happened to it, and what to do with it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.checkup_settings import DiagnoseSettings
from voxgraft.diagnosing.looking import Diagnosis, diagnose_checkpoint
from voxgraft.errors import ConfigError, FileError, VoxgraftError
from voxgraft.files import atomic_write, atomic_write_folder, is_file, path_exists, write_json, write_text
from voxgraft.results import Line, Table, style_line

__all__ = [
    "DIAGNOSIS_JSON_NAME",
    "DIAGNOSIS_PICTURE_NAME",
    "DIAGNOSIS_REPORT_NAME",
    "DiagnoseResult",
    "diagnose",
    "keeps_base_languages",
]

DIAGNOSIS_REPORT_NAME, DIAGNOSIS_PICTURE_NAME, DIAGNOSIS_JSON_NAME = "report.html", "diagnosis.png", "diagnosis.json"
_VERDICT_STYLES = {"RESUME": "bold green", "REPAIR": "bold yellow", "START FRESH": "bold red"}
_DIAGNOSIS_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_MAX_LAYERS_SHOWN = 5
MAX_PHONE_ERROR_INCREASE = 0.05
"""Phone error that an old language may have more than from the base; `repair --choose` takes the same unless told."""


@dataclass(frozen=True, slots=True)
class DiagnoseResult:
    """What was found, and where the report is."""

    found: Diagnosis
    folder: Path | None

    @property
    def exit_code(self) -> int:
        return 0 if self.found.verdict.word == "RESUME" else 1

    def to_json(self) -> dict[str, Any]:
        return {**self.found.to_json(), "report": str(self.folder / DIAGNOSIS_REPORT_NAME) if self.folder else None}

    def lines(self) -> list[Line]:
        found = self.found
        lines: list[Line] = [f"{found.path.name}: {found.what}"]
        lines += [found.sizes] if found.sizes else []
        lines += self._row_lines() + self._body_lines() + self._phone_error_lines()
        for level, style in _DIAGNOSIS_LEVEL_STYLES.items():
            for item in found.findings:
                if item.level == level:
                    first, *_ = item.lines()
                    lines.append(style_line((first, style)))
        lines += self._verdict_lines()
        return [*lines, f"report: {self.folder / DIAGNOSIS_REPORT_NAME}"] if self.folder else lines

    def _row_lines(self) -> list[Line]:
        rows = [
            (table.tensor, f"{len(table.kinds):,}", ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
            for table in self.found.tables
            if (counts := table.counts)
        ]
        return [Table(("table", "rows", "of which"), tuple(rows))] if rows else []

    def _body_lines(self) -> list[Line]:
        moved = [layer for layer in self.found.layers if layer.changed]
        farthest = sorted(moved, key=lambda layer: -layer.distance)[:_MAX_LAYERS_SHOWN]
        if not farthest or self.found.distance is None:
            return []
        listed = ", ".join(f"{layer.name} {layer.distance:.2%}" for layer in farthest)
        return [f"body: moved by {self.found.distance:.2%} of its length; farthest: {listed}"]

    def _phone_error_lines(self) -> list[Line]:
        found = self.found
        if found.not_heard:
            return [f"nothing was listened to: {found.not_heard}"]
        rows = [(one["language"], one["who"], f"{one['phone_error']:.1%}") for one in found.heard]
        return [Table(("language", "who", "phone error"), tuple(rows))] if rows else []

    def _verdict_lines(self) -> list[Line]:
        verdict = self.found.verdict
        word = style_line((verdict.word, _VERDICT_STYLES[verdict.word]), f": {verdict.sentence}")
        return ["", word, f"  why: {verdict.reason}", *(f"  $ {command}" for command in verdict.commands)]


def diagnose(settings: DiagnoseSettings) -> DiagnoseResult:
    """Look at a checkpoint or a run; with `report` also draw and write what was found."""
    folder = _resolve_report_folder(settings)
    found = _inspect_checkpoint_or_run(settings)
    if settings.listen:
        _measure_phone_errors(found, settings)
    if folder is not None:
        from voxgraft.diagnosing.picture import draw_diagnosis
        from voxgraft.diagnosing.report import diagnosis_report_html

        picture = draw_diagnosis(found) if found.tables or found.layers else None
        with atomic_write_folder(folder) as new:
            write_json(new / DIAGNOSIS_JSON_NAME, found.to_json())
            write_text(new / DIAGNOSIS_REPORT_NAME, diagnosis_report_html(found, picture))
            if picture is not None:
                with atomic_write(new / DIAGNOSIS_PICTURE_NAME) as stream:
                    stream.write(picture)
    return DiagnoseResult(found, folder)


def _inspect_checkpoint_or_run(settings: DiagnoseSettings) -> Diagnosis:
    from voxgraft.diagnosing.runs import diagnose_run, is_run_folder

    return diagnose_run(settings) if is_run_folder(settings.checkpoint) else diagnose_checkpoint(settings)


def _measure_phone_errors(found: Diagnosis, settings: DiagnoseSettings) -> None:
    """Speak and listen where that can be done; else the reason stands in the report beside the rest."""
    from voxgraft.diagnosing.hearing import open_listening_test, phone_error_rows

    try:
        if settings.base is None or not is_file(settings.checkpoint):
            raise ConfigError("nothing-to-hear", "listening needs one checkpoint file, and --base")
        family = resolve_base_family(resolve_base_folder(settings.base), settings.family)
        files = family.files(resolve_base_folder(settings.base))
        asked = settings.tokenizer, settings.language, settings.sentences, settings.seed
        found.heard = phone_error_rows(open_listening_test(family, files, *asked), settings.checkpoint)
        if (kept := keeps_base_languages(found)) is not None:
            found.update_verdict(kept=kept)
    except VoxgraftError as error:
        found.not_heard = error.finding.found


def keeps_base_languages(found: Diagnosis) -> bool | None:
    """Whether every language of the base has at most WORSE more phone errors; None where none was heard from it."""
    errors = {(str(one["who"]), str(one["language"])): float(one["phone_error"]) for one in found.heard}
    old = [(error, errors.get(("checkpoint", name))) for (who, name), error in errors.items() if who == "base"]
    return all(now is not None and now <= error + MAX_PHONE_ERROR_INCREASE for error, now in old) if old else None


def _resolve_report_folder(settings: DiagnoseSettings) -> Path | None:
    """Where the report goes, refused before anything is measured if something is in the way."""
    if not settings.report:
        return None
    path = settings.checkpoint
    folder = settings.output or Path(f"diagnosis-{path.stem or path.resolve().name}")
    if path_exists(folder) and not settings.overwrite:
        raise FileError("file-exists", f"{folder.name} is there already", where=folder)
    return folder
