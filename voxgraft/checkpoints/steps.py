"""Saved training steps: folder names, completeness, loading and removal. Imports torch only to load tensors.

`manifest.json` is written last and says what the other files are; it keeps its form in every later format. In `steps/`:

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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voxgraft.config.train_options import rename_saved_values
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import LOCK_UNSUPPORTED_ERRNOS, FileLock, compute_sha256, failpoint, fsync_folder, read_json
from voxgraft.core.run import RunFolder, step_folder_name

if TYPE_CHECKING:
    from torch import Tensor

STATE_FORMAT = 2
"""Of state.json and the tensors beside it. 2: options have the names of the settings (1: older names for some)."""
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
    1: lambda state: replace(state, values=rename_saved_values(state.values))
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
    return rename_saved_values(state["values"]) if state["format"] == 1 else dict(state["values"])


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
                        found = f"the groups are {', '.join(groups)}"
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
            found = "the run has no saved step" if step is None else f"the run has no step {step}"
            there = ", ".join(str(folder.step) for folder in list_step_folders(run)) or "none"
            expected = f"one of the saved steps: {there}"
            raise CheckpointError("step-missing", found, expected=expected, where=run.steps)
    raise FileError("file-unreadable", "the steps keep changing while they are read", where=run.steps)


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
