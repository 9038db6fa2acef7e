"""Saving and loading the state of training: a step is whole or absent at every instant, the newest whole one counts.

`step_folders` knows the folders, `tensor_files` the tensors in them. Who saves holds the run's lock; saving without it
loses nothing either.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voxgraft import __version__, progress
from voxgraft.errors import CheckpointError, FileError, Finding, VoxgraftError, finding
from voxgraft.faults import crossing
from voxgraft.files import existing_folder, parse_json, write_error
from voxgraft.run import RunFolder
from voxgraft.training.state import TrainState, migrated, require_plain
from voxgraft.training.step_folders import (
    FORMAT,
    MANIFEST_NAME,
    NO_LOCK,
    STATE_NAME,
    StepFolder,
    claimed,
    damage_of,
    damaged_finding,
    hidden_name,
    read_manifest,
    read_state_file,
    remove_folder,
    remove_leftovers,
    step_folders,
    sync_folder_if_possible,
)
from voxgraft.training.tensor_files import Writing, num_bytes, read_group, write_bytes, write_group

__all__ = ["Loaded", "Saved", "TrainState", "load_step", "save_step", "set_aside"]

SUFFIX = ".safetensors"
SLACK_BYTES = 1 << 20
"""Room for folders, manifest and journal beside the tensors."""
_GROUP = re.compile(r"[a-z][a-z0-9_-]{0,40}")
TRIES = 20
"""For a place that other processes fill and empty at the same time."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save did: where the step is, which steps it removed, and what went wrong without harm to the step."""

    folder: Path
    removed: tuple[int, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A step that was read, and what is wrong with newer ones that had to be passed by."""

    state: TrainState
    folder: Path
    findings: tuple[Finding, ...]


def save_step(run: RunFolder, state: TrainState, *, keep_last: int, keep: Collection[int] = ()) -> Saved:
    """Save a step, read it back from the disk, put it in its place, and only then remove steps that are not kept.

    Kept are the last `keep_last` whole ones up to this and those in `keep`, which the step remembers for `clean`. What
    was saved of this step before is replaced. Later ones are never touched: who goes back behind them sets them aside.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}")
    kept = sorted({*keep})
    files = _small_files(state, kept)
    existing_folder(run.path)
    try:
        _make_steps_folder(run)
        findings = remove_leftovers(run)
        _require_room(run, state)
        with _new_folder(run, state.step) as new:
            _write(new, state, files)
            _verify(new, state.step)
            _put_in_place(new, run.step(state.step), state.step)
        crossing("save.placed")
    except OSError as error:
        raise write_error(error, run.step(state.step)) from None
    removed, failed = _prune(run, state.step, keep_last, kept)
    return Saved(run.step(state.step), tuple(removed), (*findings, *failed))


def load_step(run: RunFolder, step: int | None = None) -> Loaded:
    """The newest whole step, every hash checked; findings tell what is wrong with newer ones. Or exactly `step`."""
    for _ in range(TRIES):
        folders = [folder for folder in reversed(step_folders(run)) if step in (None, folder.step)]
        findings: list[Finding] = []
        for folder in folders:
            found = _read_if_whole(folder)
            if found is None:
                break
            if isinstance(found, TrainState):
                return Loaded(found, folder.path, tuple(findings))
            findings.append(found)
        else:
            raise _nothing_to_load(run, step, findings)
    raise FileError("file-unreadable", "the steps keep changing while they are read", where=run.steps)


def set_aside(run: RunFolder, after: int) -> Path | None:
    """Move all steps later than `after` into a folder of their own, so that training goes on from there; that folder.

    The newest goes first: whenever this is stopped, what is left is a run that ends earlier. Nothing is removed.
    """
    later = [folder for folder in reversed(step_folders(run)) if folder.step > after]
    if not later:
        return None
    try:
        aside = _free_name(run.steps, "aside-{}")
        aside.mkdir()
        for folder in later:
            crossing("aside.move")
            os.rename(folder.path, aside / folder.path.name)
        sync_folder_if_possible(aside)
        sync_folder_if_possible(run.steps)
    except OSError as error:
        raise write_error(error, run.steps) from None
    return aside


def _small_files(state: TrainState, keep: list[int]) -> dict[str, bytes]:
    """state.json, made before anything is written: what cannot be read back must not cost a step."""
    require_plain(state.values)
    if state.step < 0 or not all(map(_GROUP.fullmatch, state.tensors)):
        raise ValueError(f"step {state.step} with the groups {list(state.tensors)} cannot be saved")
    content = {
        "format": FORMAT,
        "voxgraft": __version__,
        "step": state.step,
        "keep": keep,
        "groups": sorted(state.tensors),
        "values": dict(state.values),
    }
    text = _json(content)
    parse_json(text.decode(), STATE_NAME)
    return {STATE_NAME: text}


def _make_steps_folder(run: RunFolder) -> None:
    if not run.steps.is_dir():
        run.steps.mkdir()
        sync_folder_if_possible(run.path)


def _require_room(run: RunFolder, state: TrainState) -> None:
    need = sum(map(num_bytes, state.tensors.values())) + SLACK_BYTES
    free = shutil.disk_usage(run.steps).free
    if need > free:
        found = f"step {state.step} needs {need:,} bytes, {free:,} are free"
        cure = f"free some space, for example with `voxgraft clean {run.path}`."
        raise FileError("disk-too-small", found, where=run.steps, cure=cure)


@contextlib.contextmanager
def _new_folder(run: RunFolder, step: int) -> Iterator[Path]:
    """A hidden folder beside the steps, claimed, which is gone at the end unless it was given another name."""
    with contextlib.ExitStack() as stack:
        for _ in range(TRIES):
            folder = run.steps / hidden_name(step)
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                crossing("save.claim")
                stack.enter_context(claimed(folder))
            except (BlockingIOError, FileNotFoundError):
                continue  # who removes leftovers was quicker than we were to claim it
            except OSError as error:
                if error.errno not in NO_LOCK:
                    raise
            yield folder
            return
        raise FileError("file-unwritable", "other processes keep removing what is written", where=run.steps)


def _write(folder: Path, state: TrainState, small_files: Mapping[str, bytes]) -> None:
    total = sum(map(num_bytes, state.tensors.values()))
    with ThreadPoolExecutor(1) as pool, progress.task(f"saving step {state.step}", total) as advance:
        writing = Writing(pool, advance)
        sums = {
            name + SUFFIX: write_group(folder / (name + SUFFIX), group, writing)
            for name, group in state.tensors.items()
        }
        sums |= {name: write_bytes(folder / name, data, writing) for name, data in small_files.items()}
        manifest = {"step": state.step, "files": {name: asdict(file_sum) for name, file_sum in sums.items()}}
        write_bytes(folder / MANIFEST_NAME, _json(manifest), writing)
    crossing("save.folder")
    sync_folder_if_possible(folder)


def _verify(folder: Path, step: int) -> None:
    crossing("save.verify")
    if damage := damage_of(StepFolder(step, folder)):
        raise CheckpointError("step-unverified", f"step {step} was written, but {damage}", where=folder.parent)


def _put_in_place(new: Path, place: Path, step: int) -> None:
    """One rename, unless the place is taken: then what is there moves aside first, where a load finds it as well."""
    for _ in range(TRIES):
        try:
            if os.path.lexists(place):
                _make_way(StepFolder(step, place))
            crossing("save.rename")
            os.rename(new, place)
            break
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            if not new.is_dir():
                raise
        except OSError as error:  # ENOTEMPTY: somebody has put a step there in this moment
            if error.errno != errno.ENOTEMPTY:
                raise
    else:
        raise FileError("file-unwritable", f"other processes keep writing {place.name}", where=place)
    sync_folder_if_possible(place.parent)


def _make_way(taken: StepFolder) -> None:
    old = taken.path.with_name(taken.path.name + ".old")
    before = _identity(taken.path)
    damage = damage_of(taken)
    if _identity(taken.path) != before:
        raise FileNotFoundError(errno.ENOENT, "another saver has moved it", str(taken.path))
    if damage is None:
        if os.path.lexists(old):
            remove_folder(old, taken.step)
    else:
        old = _free_name(taken.path.parent, taken.path.name + ".damaged-{}")
    crossing("save.make-way")
    os.rename(taken.path, old)


def _free_name(folder: Path, pattern: str) -> Path:
    numbers = iter(range(1, 1_000_000))
    return next(path for number in numbers if not os.path.lexists(path := folder / pattern.format(number)))


def _prune(run: RunFolder, newest: int, keep_last: int, keep: Collection[int]) -> tuple[list[int], list[Finding]]:
    """Remove whole steps that are not kept. Damaged ones stay for the user, as do links and whatever is not ours."""
    folders = [
        folder for folder in step_folders(run) if folder.step <= newest and damage_of(folder, quick=True) is None
    ]
    last = sorted({folder.step for folder in folders})[-keep_last:]
    in_place = {folder.step for folder in folders if not folder.is_old}
    removed, findings = [], []
    for folder in folders:
        is_spare = folder.is_old and folder.step in in_place
        is_kept = not is_spare and (folder.step in last or folder.step in keep)
        if is_kept or folder.path.is_symlink():
            continue
        try:
            remove_folder(folder.path, folder.step)
            removed += [] if is_spare else [folder.step]
        except FileNotFoundError:
            continue  # another saver has removed it
        except OSError as error:
            found = f"{folder.path.name} cannot be removed: {error.strerror}"
            findings.append(finding("step-left", found, where=folder.path))
    return removed, findings


def _read_if_whole(folder: StepFolder) -> TrainState | Finding | None:
    """The state, or what is wrong with it. None if another folder stands there now, so that two may have been mixed."""
    before = _identity(folder.path)
    damage = damage_of(folder)
    state: TrainState | None = None
    if damage is None:
        try:
            state = _read(folder)
        except VoxgraftError as error:
            if error.code in ("step-newer", "step-older"):
                raise
            damage = error.finding.found
    if before is None or _identity(folder.path) != before:
        return None
    return state or damaged_finding(folder, str(damage))


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _nothing_to_load(run: RunFolder, step: int | None, findings: list[Finding]) -> CheckpointError:
    if findings:
        more = "".join(f" {item.found}." for item in findings[1:4])
        cure = f"bring the files back, or go on from another step.{' Also:' if more else ''}{more}"
        return CheckpointError("step-damaged", findings[0].found, where=findings[0].where, cure=cure)
    found = "the run has no saved step" if step is None else f"the run has no step {step}"
    there = ", ".join(str(folder.step) for folder in step_folders(run)) or "none"
    return CheckpointError("step-missing", found, expected=f"one of those that are there: {there}", where=run.steps)


def _read(folder: StepFolder) -> TrainState:
    state = read_state_file(folder)
    names = [name for name in read_manifest(folder.path)["files"] if name.endswith(SUFFIX)]
    groups = {name.removesuffix(SUFFIX): read_group(folder.path / name) for name in names}
    if sorted(groups) != state.get("groups"):
        found = f"the groups are {', '.join(groups)}"
        raise CheckpointError("step-damaged", found, expected=str(state.get("groups")), where=folder.path)
    return migrated(TrainState(folder.step, groups, state["values"]), state["format"], where=folder.path)


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()
