"""Saving the state of training: a step is complete or absent at every instant.

`checkpoints/steps.py` defines the folders and reads them. The process that saves holds the run's lock; saving without
the lock loses nothing either.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from voxgraft import __version__
from voxgraft.checkpoints.base import TORCH_DTYPES, ByteSink, BytesLike
from voxgraft.checkpoints.steps import (
    MAX_ATTEMPTS,
    STATE_FORMAT,
    STEP_MANIFEST_NAME,
    STEP_STATE_NAME,
    TENSORS_SUFFIX,
    StepFolder,
    TrainState,
    find_step_damage,
    folder_identity,
    list_step_folders,
    lock_folder,
    make_hidden_step_name,
    remove_leftover_folders,
    remove_step_folder,
    sync_folder_if_possible,
)
from voxgraft.checkpoints.write import TensorBytes, write_safetensors
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, FileError, Finding, finding
from voxgraft.core.files import (
    LOCK_UNSUPPORTED_ERRNOS,
    build_write_error,
    failpoint,
    parse_json,
    require_disk_space,
    require_folder,
)
from voxgraft.core.run import RunFolder

WRITE_CHUNK_BYTES = 8 << 20
# Chunks that may have been written and not hashed yet; they are held in memory.
MAX_UNHASHED_CHUNKS = 8
SAFETENSORS_DTYPES: dict[torch.dtype, str] = {getattr(torch, name): stored for stored, name in TORCH_DTYPES.items()}
# Room for folders, manifest and journal beside the tensors.
DISK_SLACK_BYTES = 1 << 20
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")


def save_step(
    run: RunFolder, state: TrainState, *, keep_last: int, keep: Collection[int] = ()
) -> tuple[list[int], list[Finding]]:
    """Save a step, read it back from the disk, put it in its place, and only then remove steps that are not kept.

    Returns the steps that were removed, and what went wrong without harm to the step.

    Kept are the last `keep_last` complete ones up to this and those in `keep`, which the step remembers for `clean`. An
    earlier save of the same step is replaced. Later steps are never touched: who resumes before them moves them aside.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}")
    kept_steps = sorted({*keep})
    # Before anything is written: what cannot be read back must not cost a step.
    state_file = _encode_state(state, kept_steps)
    require_folder(run.path)
    step_folder = run.step(state.step)
    try:
        if not run.steps.is_dir():
            run.steps.mkdir()
            sync_folder_if_possible(run.path)
        findings = remove_leftover_folders(run)
        tensors = [tensor for group in state.tensors.values() for tensor in group.values()]
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        cure = f"free some space, for example with `voxgraft clean {run.path}`."
        require_disk_space(run.steps, num_bytes, f"step {state.step}", slack=DISK_SLACK_BYTES, cure=cure)
        with _create_hidden_folder(run, state.step) as new:
            _write_step_files(new, state, state_file, num_bytes)
            failpoint("save.verify")
            if damage := find_step_damage(StepFolder(state.step, new)):
                found = f"the checkpoint of step {state.step} was written, but {damage}"
                raise CheckpointError("step-unverified", found, where=new.parent)
            _publish_step(new, step_folder, state.step)
        failpoint("save.placed")
    except OSError as error:
        raise build_write_error(error, step_folder) from None
    removed, failed = _prune_steps(run, state.step, keep_last, kept_steps)
    return removed, [*findings, *failed]


def move_later_steps_aside(run: RunFolder, after: int) -> Path | None:
    """Move all steps later than `after` into a new folder, so that training resumes from there; returns that folder.

    The newest moves first: whenever this is stopped, what is left is a run that ends earlier. Nothing is removed.
    """
    later = [folder for folder in reversed(list_step_folders(run)) if folder.step > after]
    if not later:
        return None
    try:
        aside = _find_unused_name(run.steps, "aside-{}")
        aside.mkdir()
        for folder in later:
            failpoint("aside.move")
            os.rename(folder.path, aside / folder.path.name)
        sync_folder_if_possible(aside)
        sync_folder_if_possible(run.steps)
    except OSError as error:
        raise build_write_error(error, run.steps) from None
    return aside


def _encode_state(state: TrainState, keep: list[int]) -> bytes:
    """The content of state.json. Raises ValueError, naming the value, unless reading it gives exactly the same."""
    for name, value in state.values.items():
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` cannot be written as JSON: {error}") from None
        if not same:
            raise ValueError(f"`{name}` would not be read back unchanged: {value!r}")
    if state.step < 0 or not all(map(_GROUP_NAME.fullmatch, state.tensors)):
        raise ValueError(f"step {state.step} with the groups {list(state.tensors)} cannot be saved")
    content = {
        "format": STATE_FORMAT,
        "voxgraft": __version__,
        "step": state.step,
        "keep": keep,
        "groups": sorted(state.tensors),
        "values": dict(state.values),
    }
    text = _encode_json(content)
    parse_json(text.decode(), STEP_STATE_NAME)
    return text


def _encode_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


@contextlib.contextmanager
def _create_hidden_folder(run: RunFolder, step: int) -> Iterator[Path]:
    """A hidden, locked folder beside the steps, which is removed at the end unless it was renamed."""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_ATTEMPTS):
            folder = run.steps / make_hidden_step_name(step)
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                failpoint("save.claim")
                stack.enter_context(lock_folder(folder))
            except (BlockingIOError, FileNotFoundError):
                continue  # a process that removes leftovers took it before the lock was held
            except OSError as error:
                if error.errno not in LOCK_UNSUPPORTED_ERRNOS:
                    raise
            yield folder
            return
        cure = "stop other processes that use this run, and run the command again."
        raise FileError("file-unwritable", "other processes remove the written files", where=run.steps, cure=cure)


def _write_step_files(folder: Path, state: TrainState, state_file: bytes, num_bytes: int) -> None:
    """Tensors, state.json and the manifest with the hashes of both, all synced.

    The manifest comes last: a step is complete when its manifest exists.
    """
    # One thread hashes the chunks in their order while the next ones are written.
    with ThreadPoolExecutor(1) as pool, progress.progress_task(f"saving step {state.step}", num_bytes) as advance:

        def write_file(name: str, write: Callable[[ByteSink], None]) -> dict[str, Any]:
            failpoint("save.open")
            with (folder / name).open("xb") as stream:
                sink = _HashingSink(stream, pool, advance)
                write(sink)
                stream.flush()
                failpoint("save.sync")
                os.fsync(stream.fileno())
                # Drop the page cache: it would hide what the disk really holds from the read that verifies it.
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return {"bytes": sink.position, "sha256": sink.sha256}

        files = {}
        for name, group in state.tensors.items():
            stored = {key: _to_tensor_bytes(key, tensor) for key, tensor in group.items()}
            files[name + TENSORS_SUFFIX] = write_file(name + TENSORS_SUFFIX, partial(write_safetensors, tensors=stored))
        files[STEP_STATE_NAME] = write_file(STEP_STATE_NAME, lambda sink: sink.write(state_file))
        manifest = _encode_json({"step": state.step, "files": files})
        write_file(STEP_MANIFEST_NAME, lambda sink: sink.write(manifest))
    failpoint("save.folder")
    sync_folder_if_possible(folder)


class _HashingSink(ByteSink):
    """Hashes chunks in another thread while they are written. The chunks must not change until `sha256`."""

    def __init__(self, stream: IO[bytes], pool: ThreadPoolExecutor, advance: Callable[[int], None]) -> None:
        super().__init__(stream, advance=advance)
        self._pool, self._hash = pool, hashlib.sha256()
        self._pending: deque[Future[None]] = deque()

    def write(self, data: BytesLike) -> None:
        failpoint("save.write")
        self._pending.append(self._pool.submit(self._hash.update, data))
        super().write(data)
        if len(self._pending) > MAX_UNHASHED_CHUNKS:
            self._pending.popleft().result()

    @property
    def sha256(self) -> str:
        while self._pending:
            self._pending.popleft().result()
        return self._hash.hexdigest()


def _to_tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
    """A tensor as it is stored. It is copied off the device when its chunks are read, so one at a time."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.dtype not in SAFETENSORS_DTYPES:
        raise ValueError(f"{name} cannot be saved: {tensor.dtype}, {tensor.layout}, on {tensor.device}")

    def chunks() -> Iterator[memoryview]:
        if not tensor.numel():  # an empty tensor out of a file can have strides that torch will not view as bytes
            return
        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = values.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(flat), WRITE_CHUNK_BYTES):
            yield flat[start : start + WRITE_CHUNK_BYTES]

    return TensorBytes(SAFETENSORS_DTYPES[tensor.dtype], tuple(tensor.shape), chunks)


def _publish_step(new: Path, path: Path, step: int) -> None:
    """Rename the folder into its place. An existing step moves aside first, to where a load finds it as well."""
    for _ in range(MAX_ATTEMPTS):
        try:
            if os.path.lexists(path):
                old = path.with_name(path.name + ".old")
                before = folder_identity(path)
                damage = find_step_damage(StepFolder(step, path))
                # Checking the hashes takes seconds, in which another process may have replaced the folder.
                if folder_identity(path) != before:
                    raise FileNotFoundError(errno.ENOENT, "another process has moved it", str(path))
                if damage is not None:
                    old = _find_unused_name(path.parent, path.name + ".damaged-{}")
                elif os.path.lexists(old):
                    remove_step_folder(old, step)
                failpoint("save.make-way")
                os.rename(path, old)
            failpoint("save.rename")
            os.rename(new, path)
            break
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            if not new.is_dir():
                raise
        except OSError as error:  # ENOTEMPTY: another process has put a step there in this moment
            if error.errno != errno.ENOTEMPTY:
                raise
    else:
        raise FileError("file-unwritable", f"other processes keep writing {path.name}", where=path)
    sync_folder_if_possible(path.parent)


def _find_unused_name(folder: Path, pattern: str) -> Path:
    numbers = iter(range(1, 1_000_000))
    return next(path for number in numbers if not os.path.lexists(path := folder / pattern.format(number)))


def _prune_steps(run: RunFolder, newest: int, keep_last: int, keep: Collection[int]) -> tuple[list[int], list[Finding]]:
    """Remove complete steps that are not kept. Damaged steps stay for the user, as do links and foreign files."""
    folders = [
        folder
        for folder in list_step_folders(run)
        if folder.step <= newest and find_step_damage(folder, quick=True) is None
    ]
    last = sorted({folder.step for folder in folders})[-keep_last:]
    in_place = {folder.step for folder in folders if not folder.is_old}
    removed, findings = [], []
    for folder in folders:
        # `step-N.old` is what a later save of the same step has replaced.
        is_spare = folder.is_old and folder.step in in_place
        is_kept = not is_spare and (folder.step in last or folder.step in keep)
        if is_kept or folder.path.is_symlink():
            continue
        try:
            remove_step_folder(folder.path, folder.step)
            removed += [] if is_spare else [folder.step]
        except FileNotFoundError:
            continue  # another saver has removed it
        except OSError as error:
            found = f"{folder.path.name} cannot be removed: {error.strerror}"
            findings.append(finding("step-left", found, where=folder.path))
    return removed, findings
