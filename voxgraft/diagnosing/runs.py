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
from voxgraft.diagnosing.looking import NAMES, Diagnosis, examined
from voxgraft.diagnosing.verdict import Case
from voxgraft.errors import Finding, VoxgraftError, finding
from voxgraft.files import is_file, read_json
from voxgraft.findings import opened
from voxgraft.history import Event, History
from voxgraft.journal import Journal
from voxgraft.run import RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import CheckSettings
from voxgraft.training.step_folders import StepFolder, damage_of, damaged_finding, step_folders

__all__ = ["is_run", "look_at_run"]

_LEFT = ("merged", "as-in-the-seeds")
"""Folders in which training leaves one ordinary checkpoint, and the card in them."""
_LEFT_CARD = "merged.json"
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
    checkpoint, card = _left(run)
    values = {name: getattr(own, name) for name in RunSettings.model_fields}
    folders = step_folders(run)
    damaged = {folder: damage for folder in folders if (damage := damage_of(folder)) is not None}
    whole = tuple(folder.step for folder in folders if folder not in damaged)
    history, told = _history(run)
    with opened(CheckSettings(**values, run=run.path, checkpoint=checkpoint)) as subject:
        case = Case(run.path, base, None, run=run.path, steps=whole if folders else None, language=own.language)
        more = [*(damaged_finding(*item) for item in damaged.items()), *told]
        found = examined(subject, case, more, heed_body=not _is_measured(card))
    return replace(found, what=_what(found, folders, whole, history))


def _left(run: RunFolder) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint that training has left, if it leaves one, and its card."""
    for name in _LEFT:
        path = run.path / name / _LEFT_CARD
        if is_file(path):
            card = read_json(path)
            file = card.get("checkpoint") if isinstance(card, dict) else None
            if isinstance(file, str) and "/" not in file and is_file(path.parent / file):
                return path.parent / file, card
    return None, {}


def _is_measured(card: dict[str, Any]) -> bool:
    """Whether held-out losses of old languages stand behind the body: then its distance says nothing more."""
    points = card.get("points")
    chosen = [one for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    own = [one for one in chosen if one.get("share") == card.get("share")]
    return any(one.get("speech_losses") and not one.get("past_bound") for one in own) and not card.get("label")


def _history(run: RunFolder) -> tuple[History, list[Finding]]:
    """The journal, and what it warned of; a journal that cannot be read is a finding itself."""
    try:
        history = History.of(Journal(run.journal).read())
    except VoxgraftError as error:
        return History(), [error.finding]
    worries = [event for event in history.findings if event.values.get("level") in ("warning", "error")]
    latest: dict[str, Event] = {str(event.values.get("code")): event for event in worries}
    told = [_of_journal(event, run) for code, event in list(latest.items())[-_MOST_TOLD:] if code in CATALOGUE]
    return history, told


def _of_journal(event: Event, run: RunFolder) -> Finding:
    """What was a stop then is a thing to know now."""
    found = f"at step {event.step:,}: {event.values.get('found', '')}"
    return finding(str(event.values["code"]), found, where=run.journal, level="warning")


def _what(found: Diagnosis, folders: list[StepFolder], whole: tuple[int, ...], history: History) -> str:
    name = NAMES.get(found.family, found.family) or "an unknown base"
    steps = f"{len(folders)} saved steps, {len(whole)} of them whole" if folders else "no saved step"
    newest = f", the newest whole one is {whole[-1]:,}" if whole else ""
    state = f"; the journal says: {history.state.values['state']}" if history.state else ""
    return f"a run of voxgraft on {name}: {steps}{newest}{state}"
