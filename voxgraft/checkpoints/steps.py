"""Saved training steps: folder names, completeness, loading, removal, and the command `clean`.

Imports torch only to load tensors. `manifest.json` is written last and says what the other files are; it keeps its form
in every later format. In `steps/`:

    step-000500             a saved step
    step-000500.old         the same step saved before, while the new one takes its place
    step-000500.damaged-1   one that was in the way of a new save and not whole; kept for the user to look at
    aside-1/step-000500     one that the user has gone back behind
    .step-000500.*.part     being written, or being removed; or left by a process that was killed at that
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voxgraft.config.train_options import rename_saved_values
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import (
    LOCK_UNSUPPORTED_ERRNOS,
    FileLock,
    compute_sha256,
    failpoint,
    fsync_folder,
    is_file,
    read_json,
    require_folder,
)
from voxgraft.core.progress import confirm_with_user
from voxgraft.core.results import Line, SimpleResult, Table, format_bytes, pluralize
from voxgraft.core.run import RUN_FILE, RunFolder, step_folder_name

if TYPE_CHECKING:  # training needs no pydantic, and `clean` no torch
    from torch import Tensor

    from voxgraft.config.commands import CleanSettings


STATE_FORMAT = 3
"""Of state.json and the tensors beside it. Each format has the option names of its time: see `RENAMED_SETTINGS`.
A renamed option needs a new format, since options are compared by name when a run is resumed."""
STEP_MANIFEST_NAME, STEP_STATE_NAME = "manifest.json", "state.json"
SYNC_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems that cannot sync a folder (some network and user-space ones); saving ignores them."""
_STEP_PATTERN = re.compile(r"step-([0-9]{6,18})(\.old)?")
_LEFTOVER_PATTERN = re.compile(r"\.step-[0-9]{6,18}\.[0-9a-f]{8}\.part")
_FILE_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
_NUM_HASH_THREADS = 4
TENSORS_SUFFIX = ".safetensors"
MAX_ATTEMPTS = 20
"""For a place that other processes fill and empty at the same time."""


@dataclass(frozen=True, slots=True)
class TrainState:
    """Everything that training needs to resume after `step` as if it had never stopped."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By group (rows, adapter, body, optimizer), then by name; each group is a file."""
    values: Mapping[str, Any]
    """Everything else, as JSON gives it back: texts, finite numbers, lists, and dictionaries with texts as keys."""


StateMigration = Callable[[TrainState], TrainState]
STATE_MIGRATIONS: dict[int, StateMigration] = {
    number: lambda state: replace(state, values=rename_saved_values(state.values)) for number in range(1, STATE_FORMAT)
}
"""For every older format that can still be opened: how its state becomes one of the next format."""


def migrate_state(
    state: TrainState,
    from_format: int,
    migrations: Mapping[int, StateMigration] = STATE_MIGRATIONS,
    to_format: int = STATE_FORMAT,
    where: str | Path = "",
) -> TrainState:
    """A state of format `found` as one of today's; an error if a format in between is no longer known."""
    for number in range(from_format, to_format):
        if number not in migrations:
            text = f"step {state.step} has format {from_format}; format {number} can no longer be converted"
            raise CheckpointError("step-older", text, expected=str(to_format), where=where)
        state = migrations[number](state)
    return state


class StepFolder(NamedTuple):
    """A folder that has a saved step's name, whole or not."""

    step: int
    path: Path
    is_old: bool = False
    """Whether it was moved aside while a newer save of the same step takes its place."""


def list_step_folders(run: RunFolder) -> list[StepFolder]:
    """All folders with the name of a step, the newest last. Copies and other files are ignored."""
    found = []
    for name in _list_names(run.steps):
        match = _STEP_PATTERN.fullmatch(name)
        if match and step_folder_name(int(match[1])) == f"step-{match[1]}" and (run.steps / name).is_dir():
            found.append(StepFolder(int(match[1]), run.steps / name, is_old=match[2] is not None))
    return sorted(found, key=lambda folder: (folder.step, not folder.is_old))


def list_complete_steps(run: RunFolder, *, quick: bool = False) -> list[int]:
    """The steps that can be loaded, oldest first. `quick` looks at sizes only and not at hashes."""
    return sorted({folder.step for folder in list_step_folders(run) if find_step_damage(folder, quick=quick) is None})


def find_step_damage(folder: StepFolder, *, quick: bool = False) -> str | None:
    """What is wrong with a step; None if it is whole: manifest there, every size and (unless `quick`) hash right."""
    try:
        manifest = read_step_manifest(folder.path)
        files = manifest["files"]
        if manifest["step"] != folder.step:
            return f"the folder is named {folder.path.name}, but contains step {manifest['step']}"
        for name, entry in files.items():
            try:
                status = os.stat(folder.path / name)
            except FileNotFoundError:
                return f"{name} does not exist"
            except OSError as error:
                return f"{name}: {error.strerror}"
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is not a file"
            if status.st_size != entry["bytes"]:
                return f"{name} has {status.st_size:,} bytes instead of {entry['bytes']:,}"
        if quick:
            return None
        wrong = []
        total = sum(entry["bytes"] for entry in files.values())
        threads = ThreadPoolExecutor(min(len(files), _NUM_HASH_THREADS))  # hashing releases the GIL
        with progress.progress_task(f"checking step {manifest['step']}", total) as advance, threads as pool:
            digests = pool.map(lambda name: compute_sha256(folder.path / name), files)
            for name, digest in zip(files, digests, strict=True):
                advance(files[name]["bytes"])
                wrong += [name] if digest != files[name]["sha256"] else []
        return f"{', '.join(wrong)} changed since it was written: its SHA-256 differs" if wrong else None
    except VoxgraftError as error:
        return error.finding.found


def damaged_step_finding(folder: StepFolder, damage: str) -> Finding:
    """The finding for a step that is not complete."""
    return finding("step-damaged", f"step {folder.step} is incomplete: {damage}", where=folder.path)


def read_step_manifest(folder: Path) -> dict[str, Any]:
    """`step`, and `files` by name with `bytes` and `sha256`; an error if it is anything else."""
    path = folder / STEP_MANIFEST_NAME
    manifest = read_json(path)
    step, files = (manifest.get("step"), manifest.get("files")) if isinstance(manifest, dict) else (None, None)
    sound = type(step) is int and isinstance(files, dict) and STEP_STATE_NAME in files
    for name, entry in files.items() if sound and isinstance(files, dict) else ():
        # Names come from a file that anyone may have written: none may lead out of the folder.
        named = _FILE_NAME_PATTERN.fullmatch(name) is not None and name != STEP_MANIFEST_NAME
        size, sha256 = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        hashed = isinstance(sha256, str) and _SHA256_PATTERN.fullmatch(sha256) is not None
        sound = sound and named and type(size) is int and hashed
    if not sound:
        expected = f"`step`, and `files` with {STEP_STATE_NAME} among them"
        raise CheckpointError(
            "step-damaged", f"{STEP_MANIFEST_NAME} was not written by voxgraft", expected=expected, where=path
        )
    return dict(manifest)


def read_step_state(folder: StepFolder) -> dict[str, Any]:
    """state.json with `format`, `step`, `keep` and `values`; refused if a newer voxgraft made it."""
    path = folder.path / STEP_STATE_NAME
    state = read_json(path)
    number = state.get("format") if isinstance(state, dict) else None
    if type(number) is int and number > STATE_FORMAT:
        maker = f"by voxgraft {state.get('voxgraft')}, a newer voxgraft than this"
        found = f"step {folder.step} was made {maker}: its format is {number}"
        raise CheckpointError("step-newer", found, expected=f"at most {STATE_FORMAT}", where=path)
    keep = state.get("keep") if isinstance(state, dict) else None
    kept_steps = isinstance(keep, list) and all(type(step) is int for step in keep)
    if type(number) is not int or number < 0 or not kept_steps or not isinstance(state.get("values"), dict):
        raise CheckpointError("step-damaged", f"{STEP_STATE_NAME} was not written by voxgraft", where=path)
    if state.get("step") != folder.step:
        found = f"{STEP_STATE_NAME} belongs to step {state.get('step')}"
        raise CheckpointError("step-damaged", found, expected=str(folder.step), where=path)
    return dict(state)


def read_step_values(folder: StepFolder) -> dict[str, Any]:
    """The values of a step, without its tensors, by today's names."""
    state = read_step_state(folder)
    return rename_saved_values(state["values"]) if state["format"] < STATE_FORMAT else dict(state["values"])


class StepLoadResult(NamedTuple):
    """A step that was read, and what is wrong with newer ones that were skipped."""

    state: TrainState
    folder: Path
    findings: tuple[Finding, ...]


def load_step(run: RunFolder, step: int | None = None) -> StepLoadResult:
    """The newest whole step, every hash checked; findings say what is wrong with newer ones. Or exactly `step`."""
    for _ in range(MAX_ATTEMPTS):
        folders = [folder for folder in reversed(list_step_folders(run)) if step in (None, folder.step)]
        findings: list[Finding] = []
        for folder in folders:
            before, damage = folder_identity(folder.path), find_step_damage(folder)
            state: TrainState | None = None
            if damage is None:
                from voxgraft.checkpoints.load import read_tensor_shapes, read_tensors  # torch, only to read tensors

                try:
                    saved = read_step_state(folder)
                    names = [name for name in read_step_manifest(folder.path)["files"] if name.endswith(TENSORS_SUFFIX)]
                    paths = {name.removesuffix(TENSORS_SUFFIX): folder.path / name for name in names}
                    groups = {
                        name: read_tensors(path, read_tensor_shapes(path), dtype=None) for name, path in paths.items()
                    }
                    if sorted(groups) != saved.get("groups"):
                        found = f"the checkpoint has the groups {', '.join(groups)}"
                        expected = str(saved.get("groups"))
                        raise CheckpointError("step-damaged", found, expected=expected, where=folder.path)
                    state = TrainState(folder.step, groups, saved["values"])
                    state = migrate_state(state, saved["format"], where=folder.path)
                except VoxgraftError as error:
                    if error.code in ("step-newer", "step-older"):
                        raise
                    damage = error.finding.found
            if before is None or folder_identity(folder.path) != before:
                break  # another folder took its place meanwhile, so that two may have been mixed: look again
            if state is not None:
                return StepLoadResult(state, folder.path, tuple(findings))
            findings.append(damaged_step_finding(folder, str(damage)))
        else:
            if findings:
                more = "".join(f" {item.found}." for item in findings[1:4])
                cure = f"restore the files, or resume from another step.{' Also:' if more else ''}{more}"
                raise CheckpointError("step-damaged", findings[0].found, where=findings[0].where, cure=cure)
            found = "the run has no checkpoint" if step is None else f"the run has no checkpoint of step {step}"
            numbers = ", ".join(str(folder.step) for folder in list_step_folders(run))
            expected = f"one of the steps {numbers}" if numbers else ""
            if not numbers:
                found = "the run has no checkpoint yet"
            cure = "choose one of these steps." if numbers else "train the run first: `voxgraft train RUN`."
            raise CheckpointError("step-missing", found, expected=expected, where=run.steps, cure=cure)
    cure = "wait until the other process has saved its checkpoint, and run the command again."
    raise FileError("file-unreadable", "the checkpoints change while they are read", where=run.steps, cure=cure)


def folder_identity(folder: Path) -> tuple[int, ...] | None:
    """Changes when another folder takes this one's place."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def make_hidden_step_name(step: int) -> str:
    """A name for a folder that is not a step yet, or no more."""
    return f".{step_folder_name(step)}.{secrets.token_hex(4)}.part"


def remove_step_folder(path: Path, step: int) -> None:
    """Take a folder of voxgraft away: out of sight in one rename, since nobody may meet it half removed; then
    its files."""
    failpoint("remove.begin")
    hidden = path.with_name(make_hidden_step_name(step))
    os.rename(path, hidden)
    for name in os.listdir(hidden):
        failpoint("remove.file")
        with contextlib.suppress(IsADirectoryError):
            os.unlink(hidden / name)
    shutil.rmtree(hidden)
    failpoint("remove.end")


def list_leftover_folders(run: RunFolder) -> list[Path]:
    """Hidden folders of voxgraft: being written or removed now, or left by a process that was killed."""
    paths = [run.steps / name for name in _list_names(run.steps) if _LEFTOVER_PATTERN.fullmatch(name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def remove_leftover_folders(run: RunFolder) -> list[Finding]:
    """Remove what dead processes left half written or half removed; what cannot be removed is reported.

    A live writer holds a lock on its folder. Where folders cannot be locked, nothing is known and nothing removed.
    """
    findings = []
    for path in list_leftover_folders(run):
        try:
            with lock_folder(path):
                shutil.rmtree(path)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError as error:
            if error.errno not in LOCK_UNSUPPORTED_ERRNOS:
                findings.append(finding("step-left", f"{path.name} cannot be removed: {error.strerror}", where=path))
    return findings


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder; an OSError if somebody has it, or took the folder away."""
    with FileLock(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as lock:
        lock.acquire()
        if not lock.is_at(folder):
            # Between open and flock the folder was renamed or removed: the lock is on something else.
            raise FileNotFoundError(errno.ENOENT, "another folder exists there now", str(folder))
        yield


def sync_folder_if_possible(path: Path) -> None:
    """Make renames in a folder last through a power cut, where the file system can."""
    try:
        fsync_folder(path)
    except OSError as error:
        if error.errno not in SYNC_UNSUPPORTED_ERRNOS:
            raise


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileError("file-unreadable", f"folder {folder.name}: {error.strerror}", where=folder) from None


_DAMAGED_STEP_NAME = re.compile(r"step-[0-9]{6,18}\.damaged-[0-9]+")
_SET_ASIDE_NAME = re.compile(r"aside-[0-9]+")


def clean(settings: CleanSettings) -> SimpleResult:
    """Remove saved steps beyond the last `keep`, and leftovers; refused while training runs.

    Never touches the base, the first step, the best one, the last complete ones, or files that voxgraft did not write.
    """
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
    kept_steps: set[int] = set()
    if last:
        kept_steps = {step for step in read_step_state(last[-1])["keep"] if isinstance(step, int)}
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
            elif step.step in kept_steps and not is_spare:
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
                os.lstat(os.path.join(folder, file_name)).st_size
                for folder, _, names in os.walk(path)
                for file_name in names
            )
        yield path, num_bytes, remove, why


def _folder_table(
    folders: Sequence[tuple[Path, int, bool, str]], doomed: Collection[Path], *, done: bool = False
) -> list[Line]:
    actions = ("kept", "removed") if done else ("keep", "remove")
    rows = tuple((path.name, format_bytes(size), actions[path in doomed], why) for path, size, _, why in folders)
    return [Table(("in steps/", "size", "", "why"), rows)] if rows else []
