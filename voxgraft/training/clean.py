"""The command `clean`: lists every folder among the saved steps, asks, and removes those that are not needed.

Never touches the base, the first step, the best one, the last complete ones, or files that voxgraft did not write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

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
from voxgraft.core.results import Line, SimpleResult, Table, format_bytes, pluralize
from voxgraft.core.run import RUN_FILE, RunFolder

_DAMAGED_STEP_NAME = re.compile(r"step-[0-9]{6,18}\.damaged-[0-9]+")
_SET_ASIDE_NAME = re.compile(r"aside-[0-9]+")


def clean(settings: CleanSettings) -> SimpleResult:
    """Remove saved steps beyond the last `keep`, and leftovers; refused while training runs."""
    run = RunFolder(require_folder(settings.run))
    if not is_file(run.settings):
        raise FileError("file-missing", f"{run.path} has no {RUN_FILE}, so it is not a run", where=run.settings)
    findings: list[Finding] = []
    with run.lock("clean"):
        folders = list(_decide_folders(run, settings.keep))
        doomed = {path: num_bytes for path, num_bytes, remove, _ in folders if remove}
        question = f"remove {pluralize(len(doomed), 'folder')}, {format_bytes(sum(doomed.values()))}?"
        asks = bool(doomed) and not settings.yes
        # None where no one can be asked: then nothing is removed, and the exit code says so.
        answer = confirm_with_user(_folder_table(folders, doomed), question) if asks else True
        for path in list(doomed) if answer else ():
            try:
                remove_step_folder(path, 0)
            except OSError as error:
                findings.append(finding("step-left", f"{path.name} cannot be removed: {error.strerror}", where=path))
                del doomed[path]
    amount = f"{pluralize(len(doomed), 'folder')}, {format_bytes(sum(doomed.values()))}"
    problems = [line for item in findings for line in item.lines()]
    lines: list[Line]
    if not doomed:
        lines = [*_folder_table(folders, doomed), "nothing to remove", *problems]
    elif answer:  # a user who was asked has seen the table
        lines = [f"removed {amount}", *([] if asks else _folder_table(folders, doomed, done=True)), *problems]
    elif answer is None:
        nobody = "there is no terminal to ask on, so nothing was removed"
        lines = [
            *_folder_table(folders, doomed),
            f"{nobody}: {amount} would be removed. Run the command again with --yes.",
        ]
    else:
        lines = ["nothing was removed"]
    values = {
        "run": str(run.path),
        "removed": bool(answer),
        "bytes": sum(doomed.values()),
        "folders": [
            {"folder": path.name, "bytes": num_bytes, "remove": path in doomed, "why": why}
            for path, num_bytes, _, why in folders
        ],
        "findings": [item.to_json() for item in findings],
    }
    return SimpleResult(values, tuple(lines), exit_code=int(bool(findings) or answer is None))


def _decide_folders(run: RunFolder, keep: int) -> Iterator[tuple[Path, int, bool, str]]:
    """Every folder in `steps/`: its size, whether it is removed, and why.

    Without a complete step nothing goes: then any remainder may be worth something.
    """
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
        yield path, num_bytes, remove, why


def _folder_table(
    folders: Sequence[tuple[Path, int, bool, str]], doomed: Collection[Path], *, done: bool = False
) -> list[Line]:
    words = ("kept", "removed") if done else ("keep", "remove")
    rows = tuple((path.name, format_bytes(size), words[path in doomed], why) for path, size, _, why in folders)
    return [Table(("in steps/", "size", "", "why"), rows)] if rows else []
