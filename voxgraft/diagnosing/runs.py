"""A run of our own: does everything in it belong together, which of its steps are whole, what does its journal say?

What training has left as one checkpoint (merged, or as in the seeds) is looked at like anyone's. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from voxgraft.bases import resolve_base_folder
from voxgraft.checkup_settings import DiagnoseSettings
from voxgraft.codes import CATALOGUE
from voxgraft.config import parse_settings, read_settings_values
from voxgraft.diagnosing.looking import FAMILY_TITLES, Diagnosis, examine_subject, require_base_and_tokenizer
from voxgraft.diagnosing.merged_card import find_merged_card, is_of_last_training, keeps_old_languages
from voxgraft.diagnosing.verdict import DiagnosisCase
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.files import is_file
from voxgraft.findings import open_check_subject
from voxgraft.history import History, HistoryEvent
from voxgraft.journal import RunJournal
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import CheckSettings
from voxgraft.training.step_folders import StepFolder, damaged_step_finding, find_step_damage, list_step_folders

__all__ = ["diagnose_run", "is_run_folder"]

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
    values = {name: getattr(own, name) for name in RunSettings.model_fields}
    folders = list_step_folders(run)
    damaged = {folder: damage for folder in folders if (damage := find_step_damage(folder)) is not None}
    whole = tuple(folder.step for folder in folders if folder not in damaged)
    journal, broken = _read_journal(run)
    history, told = _read_history(journal, run, whole[-1] if whole else 0)
    checkpoint = _find_final_checkpoint(run, journal)
    with open_check_subject(CheckSettings(**values, run=run.path, checkpoint=checkpoint)) as subject:
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
