"""The verb `clean`: makes room in a run. Shows every folder among the saved steps, asks, removes what is not needed.

Never touches the base, the first step, the best one, the last whole ones, or what is not ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.steps import (
    StepFolder,
    find_step_damage,
    list_leftover_folders,
    list_step_folders,
    read_step_state,
    remove_step_folder,
)
from voxgraft.config.commands import CleanSettings
from voxgraft.core.errors import FileError, Finding, finding
from voxgraft.core.files import is_file, require_folder
from voxgraft.core.progress import confirm_with_user
from voxgraft.core.results import Line, Table, format_bytes, pluralize
from voxgraft.core.run import RUN_FILE, RunFolder

__all__ = ["CleanResult", "FolderDecision", "clean"]

_DAMAGED_STEP_NAME = re.compile(r"step-[0-9]{6,18}\.damaged-[0-9]+")
_SET_ASIDE_NAME = re.compile(r"aside-[0-9]+")


@dataclass(frozen=True, slots=True)
class FolderDecision:
    """A folder among the steps: its size, and what becomes of it and why."""

    path: Path
    num_bytes: int
    remove: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"folder": self.path.name, "bytes": self.num_bytes, "remove": self.remove, "why": self.why}


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What was removed, or would be."""

    run: Path
    folders: tuple[FolderDecision, ...]
    done: bool
    """Whether the removing was done."""
    asked: bool
    """Whether somebody was asked."""
    findings: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 if something is to be removed and nobody was there to say so, or if it could not be removed."""
        return int(bool(self.findings) or not (self.done or self.asked))

    @property
    def freed_bytes(self) -> int:
        """Bytes that were freed, or would be."""
        return sum(folder.num_bytes for folder in self.folders if folder.remove)

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "removed": self.done,
            "bytes": self.freed_bytes,
            "folders": [folder.to_json() for folder in self.folders],
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        doomed = [folder for folder in self.folders if folder.remove]
        if not doomed:
            return [*_folder_table(self.folders), "nothing to remove", *self._finding_lines()]
        amount = f"{pluralize(len(doomed), 'folder')}, {format_bytes(self.freed_bytes)}"
        if self.done:  # who was asked has seen the table
            table = [] if self.asked else _folder_table(self.folders, done=True)
            return [f"removed {amount}", *table, *self._finding_lines()]
        if self.asked:
            return ["nothing was removed"]
        nobody = "nobody is there to be asked, so nothing was removed"
        return [*_folder_table(self.folders), f"{nobody}: {amount} would be. Run it again with --yes."]

    def _finding_lines(self) -> list[Line]:
        return [line for item in self.findings for line in item.lines()]


def clean(settings: CleanSettings) -> CleanResult:
    """Remove saved steps beyond the last `keep`, and remains; refused while a trainer is at work."""
    run = RunFolder(require_folder(settings.run))
    if not is_file(run.settings):
        raise FileError("file-missing", f"{run.path} has no {RUN_FILE}, so it is no run", where=run.settings)
    with run.lock("clean"):
        folders = tuple(_decide_folders(run, settings.keep))
        doomed = [folder for folder in folders if folder.remove]
        size = format_bytes(sum(folder.num_bytes for folder in doomed))
        question = f"remove {pluralize(len(doomed), 'folder')}, {size}?"
        asks = bool(doomed) and not settings.yes
        answer = confirm_with_user(_folder_table(folders), question) if asks else True
        if not answer:
            return CleanResult(run.path, folders, done=False, asked=answer is not None)
        findings = [item for folder in doomed for item in _remove_decided_folder(folder)]
    left = {item.where for item in findings}
    folders = tuple(replace(folder, remove=folder.remove and str(folder.path) not in left) for folder in folders)
    return CleanResult(run.path, folders, done=True, asked=asks, findings=tuple(findings))


def _decide_folders(run: RunFolder, keep: int) -> Iterator[FolderDecision]:
    """Every folder in `steps/`. Without a whole step nothing goes: then every remainder may be worth something."""
    steps = list_step_folders(run)
    last = _find_last_valid_steps(steps, keep)
    known: dict[str, str] = {}
    kept: set[int] = set()
    if last:
        kept = {step for step in read_step_state(last[-1])["keep"] if isinstance(step, int)}
        known = {path.name: "left by a process that was stopped" for path in list_leftover_folders(run)}
    by_name = {folder.path.name: folder for folder in steps}
    for name in sorted(os.listdir(run.steps)) if run.steps.is_dir() else []:
        path = run.steps / name
        remove, why = False, "not one of ours"
        if path.is_symlink() or not path.is_dir():
            why = "a link" if path.is_symlink() else why
        elif name in by_name:
            remove, why = _decide_step_folder(by_name[name], last, kept)
        elif name in known:
            remove, why = True, known[name]
        elif _SET_ASIDE_NAME.fullmatch(name):
            remove, why = bool(last), "set aside when the run went back behind it"
        elif _DAMAGED_STEP_NAME.fullmatch(name):
            remove, why = bool(last), "damaged, and saved again since"
        yield FolderDecision(path, _folder_bytes(path), remove, why)


def _find_last_valid_steps(steps: list[StepFolder], keep: int) -> list[StepFolder]:
    """The newest whole folders of `keep` steps, oldest first: every hash is checked, since the rest is to go."""
    found: dict[int, StepFolder] = {}
    for folder in reversed(steps):
        if len(found) < keep and folder.step not in found and find_step_damage(folder) is None:
            found[folder.step] = folder
    return list(reversed(found.values()))


def _decide_step_folder(folder: StepFolder, last: list[StepFolder], kept: set[int]) -> tuple[bool, str]:
    if folder in last:
        return False, "the last" if folder is last[-1] else f"one of the last {len(last)}"
    is_spare = folder.is_old and any(folder.step == other.step for other in last)
    if folder.step in kept and not is_spare:
        return False, "the first, which all is measured from" if folder.step == 0 else "the best"
    damage = find_step_damage(folder, quick=True)
    if not last or folder.step > last[-1].step:
        return False, f"not whole: {damage or 'a hash is wrong'}"
    if is_spare:
        return True, "saved again since"
    return True, f"not whole: {damage}" if damage else "older"


def _remove_decided_folder(fate: FolderDecision) -> Iterator[Finding]:
    try:
        remove_step_folder(fate.path, 0)
    except OSError as error:
        yield finding("step-left", f"{fate.path.name} cannot be removed: {error.strerror}", where=fate.path)


def _folder_bytes(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _folder_table(folders: tuple[FolderDecision, ...], *, done: bool = False) -> list[Line]:
    words = ("kept", "removed") if done else ("keep", "remove")
    rows = tuple((each.path.name, format_bytes(each.num_bytes), words[each.remove], each.why) for each in folders)
    return [Table(("in steps/", "size", "", "why"), rows)] if rows else []
