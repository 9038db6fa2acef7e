"""The command `clean`: lists every folder among the saved steps, asks, and removes those that are not needed.

Never touches the base, the first step, the best one, the last complete ones, or files that voxgraft did not write.
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
            "folders": [
                {"folder": one.path.name, "bytes": one.num_bytes, "remove": one.remove, "why": one.why}
                for one in self.folders
            ],
            "findings": [item.to_json() for item in self.findings],
        }

    def lines(self) -> list[Line]:
        doomed = [folder for folder in self.folders if folder.remove]
        problems = [line for item in self.findings for line in item.lines()]
        if not doomed:
            return [*_folder_table(self.folders), "nothing to remove", *problems]
        amount = f"{pluralize(len(doomed), 'folder')}, {format_bytes(self.freed_bytes)}"
        if self.done:  # a user who was asked has seen the table
            table = [] if self.asked else _folder_table(self.folders, done=True)
            return [f"removed {amount}", *table, *problems]
        if self.asked:
            return ["nothing was removed"]
        nobody = "there is no terminal to ask on, so nothing was removed"
        return [*_folder_table(self.folders), f"{nobody}: {amount} would be removed. Run the command again with --yes."]


def clean(settings: CleanSettings) -> CleanResult:
    """Remove saved steps beyond the last `keep`, and leftovers; refused while training runs."""
    run = RunFolder(require_folder(settings.run))
    if not is_file(run.settings):
        raise FileError("file-missing", f"{run.path} has no {RUN_FILE}, so it is not a run", where=run.settings)
    with run.lock("clean"):
        folders = tuple(_decide_folders(run, settings.keep))
        doomed = [folder for folder in folders if folder.remove]
        size = format_bytes(sum(folder.num_bytes for folder in doomed))
        question = f"remove {pluralize(len(doomed), 'folder')}, {size}?"
        asks = bool(doomed) and not settings.yes
        answer = confirm_with_user(_folder_table(folders), question) if asks else True
        if not answer:
            return CleanResult(run.path, folders, done=False, asked=answer is not None)
        findings = []
        for folder in doomed:
            try:
                remove_step_folder(folder.path, 0)
            except OSError as error:
                found = f"{folder.path.name} cannot be removed: {error.strerror}"
                findings.append(finding("step-left", found, where=folder.path))
    left = {item.where for item in findings}
    folders = tuple(replace(folder, remove=folder.remove and str(folder.path) not in left) for folder in folders)
    return CleanResult(run.path, folders, done=True, asked=asks, findings=tuple(findings))


def _decide_folders(run: RunFolder, keep: int) -> Iterator[FolderDecision]:
    """Every folder in `steps/`. Without a complete step nothing goes: then any remainder may be worth something."""
    steps = list_step_folders(run)
    # The newest complete folders of `keep` steps, oldest first. Every hash is checked, since the rest is removed.
    newest: dict[int, StepFolder] = {}
    for step in reversed(steps):
        if len(newest) < keep and step.step not in newest and find_step_damage(step) is None:
            newest[step.step] = step
    last = list(reversed(newest.values()))
    known: dict[str, str] = {}
    kept: set[int] = set()
    if last:
        kept = {step for step in read_step_state(last[-1])["keep"] if isinstance(step, int)}
        known = {path.name: "left by an interrupted process" for path in list_leftover_folders(run)}
    by_name = {folder.path.name: folder for folder in steps}
    for name in sorted(os.listdir(run.steps)) if run.steps.is_dir() else []:
        path = run.steps / name
        remove, why = False, "not written by voxgraft"
        if path.is_symlink() or not path.is_dir():
            why = "a link" if path.is_symlink() else why
        elif name in by_name:
            step = by_name[name]
            is_spare = step.is_old and any(step.step == other.step for other in last)
            damage = None if step in last else find_step_damage(step, quick=True)
            if step in last:
                why = "the last" if step is last[-1] else f"one of the last {len(last)}"
            elif step.step in kept and not is_spare:
                why = "the first, the reference for all measurements" if step.step == 0 else "the best"
            elif not last or step.step > last[-1].step:
                why = f"incomplete: {damage or 'a hash is wrong'}"
            elif is_spare:
                remove, why = True, "replaced by a newer save"
            else:
                remove, why = True, f"incomplete: {damage}" if damage else "older"
        elif name in known:
            remove, why = True, known[name]
        elif _SET_ASIDE_NAME.fullmatch(name):
            remove, why = bool(last), "moved aside when training resumed from an earlier step"
        elif _DAMAGED_STEP_NAME.fullmatch(name):
            remove, why = bool(last), "damaged, and replaced by a newer save"
        if path.is_symlink() or not path.is_dir():
            num_bytes = path.lstat().st_size
        else:
            num_bytes = sum(
                os.lstat(os.path.join(folder, one)).st_size for folder, _, names in os.walk(path) for one in names
            )
        yield FolderDecision(path, num_bytes, remove, why)


def _folder_table(folders: tuple[FolderDecision, ...], *, done: bool = False) -> list[Line]:
    words = ("kept", "removed") if done else ("keep", "remove")
    rows = tuple((each.path.name, format_bytes(each.num_bytes), words[each.remove], each.why) for each in folders)
    return [Table(("in steps/", "size", "", "why"), rows)] if rows else []
