"""A run of our own: does everything in it belong together, which of its steps are whole, what does its journal say?

What training has left as one checkpoint (merged, or as in the seeds) is looked at like anyone's. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from voxgraft.bases import base_folder
from voxgraft.checkup_settings import DiagnoseSettings
from voxgraft.codes import CATALOGUE
from voxgraft.config import read_settings, settings_from
from voxgraft.diagnosing.looking import NAMES, Diagnosis, examined, require_grounds
from voxgraft.diagnosing.merged_card import card_beside, is_of_last_training, keeps_old_languages
from voxgraft.diagnosing.verdict import Case
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.files import is_file
from voxgraft.findings import opened
from voxgraft.history import Event, History
from voxgraft.journal import Journal
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import CheckSettings
from voxgraft.training.step_folders import StepFolder, damage_of, damaged_finding, step_folders

__all__ = ["is_run", "look_at_run"]

_LEFT = ("merged", "as-in-the-seeds")
"""Folders in which training leaves one ordinary checkpoint."""
_MOST_TOLD = 20


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return is_file(RunFolder(path).settings)


def look_at_run(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a run."""
    run = RunFolder(settings.checkpoint)
    own = settings_from(RunSettings, read_settings(RunSettings, run.settings), run.settings)
    base = settings.base or own.base
    if base is not None:
        own = own.model_copy(update={"base": base_folder(base)})
    values = {name: getattr(own, name) for name in RunSettings.model_fields}
    folders = step_folders(run)
    damaged = {folder: damage for folder in folders if (damage := damage_of(folder)) is not None}
    whole = tuple(folder.step for folder in folders if folder not in damaged)
    journal, broken = _journal(run)
    history, told = _history(journal, run, whole[-1] if whole else 0)
    checkpoint = _left(run, journal)
    with opened(CheckSettings(**values, run=run.path, checkpoint=checkpoint)) as subject:
        if subject.base_checkpoint is None:
            require_grounds(subject)
        steps, kept = whole if folders else None, keeps_old_languages(checkpoint) if checkpoint else None
        case = Case(run.path, base, None, file=checkpoint, run=run.path, steps=steps, language=own.language, kept=kept)
        found = examined(subject, case, [*(damaged_finding(*item) for item in damaged.items()), *broken, *told])
    return replace(found, what=_what(found, folders, whole, history))


def _left(run: RunFolder, journal: list[dict[str, Any]]) -> Path | None:
    """The checkpoint that training has left, if it leaves one; not that of a training before the last."""
    mode = next((line.get("mode") for line in reversed(journal) if line["kind"] == "start"), None)
    for name in _LEFT:
        card = card_beside(run.path / name / "checkpoint")
        if card is not None and (mode != name or is_of_last_training(card, journal)):
            return run.path / name / str(card["checkpoint"])
    return None


def _journal(run: RunFolder) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Its lines; a journal that cannot be read is a finding itself."""
    try:
        return Journal(run.journal).read(), []
    except VoxgraftError as error:
        return [], [error.finding]


def _history(journal: list[dict[str, Any]], run: RunFolder, newest: int) -> tuple[History, list[Finding]]:
    """What the journal says, and what it warned of."""
    history = History.of(journal)
    worries = [event for event in history.findings if event.values.get("level") in ("warning", "error")]
    latest: dict[str, Event] = {str(event.values.get("code")): event for event in worries}
    told = [_of_journal(event, run, newest) for code, event in list(latest.items())[-_MOST_TOLD:] if code in CATALOGUE]
    return history, told


def _of_journal(event: Event, run: RunFolder, newest: int) -> Finding:
    """What stopped the run is a thing to know once it has saved a step since then; until then it would do so again."""
    found = f"at step {event.step:,}: {event.values.get('found', '')}"
    stops = event.values.get("level") == "error" and event.step >= newest
    return finding(str(event.values["code"]), found, where=run.journal, level="error" if stops else "warning")


def _what(found: Diagnosis, folders: list[StepFolder], whole: tuple[int, ...], history: History) -> str:
    name = NAMES.get(found.family, found.family) or "an unknown base"
    steps = f"{len(folders)} saved steps, {len(whole)} of them whole" if folders else "no saved step"
    newest = f", the newest whole one is {whole[-1]:,}" if whole else ""
    state = f"; the journal says: {history.state.values['state']}" if history.state else ""
    return f"a run of voxgraft on {name}: {steps}{newest}{state}"
