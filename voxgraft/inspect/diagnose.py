"""The verb `diagnose`: what is this checkpoint, what happened to it, and what to do with it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from voxgraft.checkpoints.steps import StepFolder, damaged_step_finding, find_step_damage, list_step_folders
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import DiagnoseSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.codes import CATALOGUE
from voxgraft.core.errors import ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import atomic_write, atomic_write_folder, is_file, path_exists, write_json, write_text
from voxgraft.core.journal import History, HistoryEvent, RunJournal
from voxgraft.core.results import Line, Table, style_line
from voxgraft.core.run import RunFolder
from voxgraft.evaluation.audio import SpeechRenderer, open_speech_renderer
from voxgraft.evaluation.scores import Transcriber, compute_error_rates, open_transcriber
from voxgraft.evaluation.sentences import SentenceSet, load_sentence_sets
from voxgraft.evaluation.synthesis import choose_eval_voices, synthesize_sentences
from voxgraft.graft.folder import find_text_rules
from voxgraft.graft.merged import find_merged_card, is_of_last_training, keeps_old_languages
from voxgraft.inspect.diagnosis import (
    FAMILY_TITLES,
    Diagnosis,
    diagnose_checkpoint,
    examine_subject,
    require_base_and_tokenizer,
)
from voxgraft.inspect.subject import open_check_subject, to_check_settings
from voxgraft.inspect.verdict import DiagnosisCase
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family
from voxgraft.synthesis.models import ModelContext, SpeakingModel, open_base_model
from voxgraft.synthesis.voices import ReferenceVoice
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import open_tokenizer

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
        from voxgraft.inspect.diagnosis_report import diagnosis_report_html, draw_diagnosis

        picture = draw_diagnosis(found) if found.tables or found.layers else None
        with atomic_write_folder(folder) as new:
            write_json(new / DIAGNOSIS_JSON_NAME, found.to_json())
            write_text(new / DIAGNOSIS_REPORT_NAME, diagnosis_report_html(found, picture))
            if picture is not None:
                with atomic_write(new / DIAGNOSIS_PICTURE_NAME) as stream:
                    stream.write(picture)
    return DiagnoseResult(found, folder)


def _inspect_checkpoint_or_run(settings: DiagnoseSettings) -> Diagnosis:

    return diagnose_run(settings) if is_run_folder(settings.checkpoint) else diagnose_checkpoint(settings)


def _measure_phone_errors(found: Diagnosis, settings: DiagnoseSettings) -> None:
    """Speak and listen where that can be done; else the reason stands in the report beside the rest."""

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


PhoneErrors = dict[str, float]
"""Phone errors, by language."""


@dataclass(frozen=True)
class ListeningTest:
    """A base with everything that is needed to listen to it and to what was made of it."""

    place: ModelContext
    base: SpeakingModel
    sets: dict[str, SentenceSet]
    voices: list[ReferenceVoice]
    sound: SpeechRenderer
    ear: Transcriber
    tokenizer: Path | None
    language: str | None
    """The new language; None where only old ones are spoken."""
    seed: int

    def base_errors(self) -> PhoneErrors:
        """Of the languages that the base knows."""
        return self._errors(self.base, [name for name in self.sets if name != self.language])

    def errors(self, checkpoint: Path, who: str) -> PhoneErrors:
        """Of a checkpoint of the same family; an error of ours where it makes no whole model."""
        files = replace(self.place.files, checkpoint=checkpoint, tokenizer=self.tokenizer or self.place.files.tokenizer)
        own = open_tokenizer(self.place.files.tokenizer)
        grown = open_tokenizer(self.tokenizer) if self.tokenizer else None
        # Nothing is known of how others normalised their texts, so they are read as they are.
        rules = (find_text_rules(self.tokenizer) if self.tokenizer else None) or TextRules(NO_RULES)
        spelling = TextEncoder.of(self.place.family, own, grown, self.language if grown else None, rules)
        system = SpeakingModel(who, self.place.family, self.place.model(files), spelling, None, "checkpoint")
        return self._errors(system, list(self.sets))

    def _errors(self, system: SpeakingModel, languages: list[str]) -> PhoneErrors:
        found: PhoneErrors = {}
        for language in languages:
            sentences = self.sets[language].sentences
            who = f"{system.name}, {language}"
            said = synthesize_sentences(system, sentences, self.voices, self.seed, who)
            heard = self.ear.hear(self.sound.waves(said, who), self.sound.rate, language, who)
            value = compute_error_rates(sentences, heard, self.seed)["phone_error"].value
            if value is not None:
                found[language] = value
        return found


def open_listening_test(
    family: Family, files: BaseFiles, tokenizer: Path | None, language: str | None, sentences: int, seed: int
) -> ListeningTest:
    """Everything opened; an error that says what is missing where nothing could be heard."""
    place = ModelContext(family, files, "cpu", torch.float32)
    sound, ear = open_speech_renderer(place), open_transcriber(None)
    if why := sound.why or ear.why:
        raise ConfigError("nothing-to-hear", why)
    languages = [*family.languages, *([language] if language and tokenizer else [])]
    sets = load_sentence_sets([name for name in languages if not ear.why_unsupported(name)], (), sentences)
    if not sets:
        raise ConfigError("nothing-to-hear", f"there are no sentences in {', '.join(languages)}")
    new = language if language in sets and language not in family.languages else None
    base = open_base_model(place)
    voices = choose_eval_voices(base, files, (), (), 0.0, seed)
    return ListeningTest(place, base, sets, voices, sound, ear, tokenizer, new, seed)


def phone_error_rows(hearing: ListeningTest, checkpoint: Path) -> list[dict[str, Any]]:
    """Phone errors of base and checkpoint, line by line."""
    by_who = {"base": hearing.base_errors(), "checkpoint": hearing.errors(checkpoint, "checkpoint")}
    return [
        {
            "language": language,
            "who": who,
            "sentences": len(hearing.sets[language].sentences),
            "phone_error": error,
        }
        for who, errors in by_who.items()
        for language, error in errors.items()
    ]


_FINAL_CHECKPOINT_FOLDERS = ("merged", "as-in-the-seeds")
"""Folders in which training leaves one ordinary checkpoint."""
_MAX_JOURNAL_FINDINGS = 20


def is_run_folder(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return is_file(RunFolder(path).settings)


def diagnose_run(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a run."""
    run = RunFolder(settings.checkpoint)
    own = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    base = settings.base or own.base
    if base is not None:
        own = own.model_copy(update={"base": resolve_base_folder(base)})
    folders = list_step_folders(run)
    damaged = {folder: damage for folder in folders if (damage := find_step_damage(folder)) is not None}
    whole = tuple(folder.step for folder in folders if folder not in damaged)
    journal, broken = _read_journal(run)
    history, told = _read_history(journal, run, whole[-1] if whole else 0)
    checkpoint = _find_final_checkpoint(run, journal)
    with open_check_subject(to_check_settings(own, run.path, checkpoint)) as subject:
        if subject.base_checkpoint is None:
            require_base_and_tokenizer(subject)
        steps, kept = whole if folders else None, keeps_old_languages(checkpoint) if checkpoint else None
        case = DiagnosisCase(
            run.path, base, None, file=checkpoint, run=run.path, steps=steps, language=own.language, kept=kept
        )
        found = examine_subject(
            subject, case, [*(damaged_step_finding(*item) for item in damaged.items()), *broken, *told]
        )
    return replace(found, what=_describe_run(found, folders, whole, history))


def _find_final_checkpoint(run: RunFolder, journal: list[dict[str, Any]]) -> Path | None:
    """The checkpoint that training has left, if it leaves one; not that of a training before the last."""
    mode = next((line.get("mode") for line in reversed(journal) if line["kind"] == "start"), None)
    for name in _FINAL_CHECKPOINT_FOLDERS:
        card = find_merged_card(run.path / name / "checkpoint")
        if card is not None and (mode != name or is_of_last_training(card, journal)):
            return run.path / name / str(card["checkpoint"])
    return None


def _read_journal(run: RunFolder) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Its lines; a journal that cannot be read is a finding itself."""
    try:
        return RunJournal(run.journal).read(), []
    except VoxgraftError as error:
        return [], [error.finding]


def _read_history(journal: list[dict[str, Any]], run: RunFolder, newest: int) -> tuple[History, list[Finding]]:
    """What the journal says, and what it warned of."""
    history = History.of(journal)
    worries = [event for event in history.findings if event.values.get("level") in ("warning", "error")]
    latest: dict[str, HistoryEvent] = {str(event.values.get("code")): event for event in worries}
    told = [
        _journal_finding(event, run, newest)
        for code, event in list(latest.items())[-_MAX_JOURNAL_FINDINGS:]
        if code in CATALOGUE
    ]
    return history, told


def _journal_finding(event: HistoryEvent, run: RunFolder, newest: int) -> Finding:
    """What stopped the run is a thing to know once it has saved a step since then; until then it would do so again."""
    found = f"at step {event.step:,}: {event.values.get('found', '')}"
    stops = event.values.get("level") == "error" and event.step >= newest
    return finding(str(event.values["code"]), found, where=run.journal, level="error" if stops else "warning")


def _describe_run(found: Diagnosis, folders: list[StepFolder], whole: tuple[int, ...], history: History) -> str:
    name = FAMILY_TITLES.get(found.family, found.family) or "an unknown base"
    steps = f"{len(folders)} saved steps, {len(whole)} of them whole" if folders else "no saved step"
    newest = f", the newest whole one is {whole[-1]:,}" if whole else ""
    state = f"; the journal says: {history.state.values['state']}" if history.state else ""
    return f"a run of voxgraft on {name}: {steps}{newest}{state}"
