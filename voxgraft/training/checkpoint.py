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
from dataclasses import asdict, dataclass
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
from voxgraft.core.files import LOCK_UNSUPPORTED_ERRNOS, build_write_error, failpoint, parse_json, require_folder
from voxgraft.core.run import RunFolder


def require_json_values(values: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the value, unless reading what was written gives exactly these values again."""
    for name, value in values.items():
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` cannot be written as JSON: {error}") from None
        if not same:
            raise ValueError(f"`{name}` would not be read back as it is: {value!r}")


WRITE_CHUNK_BYTES = 8 << 20
MAX_UNHASHED_CHUNKS = 8
"""Pieces that may have been written and not hashed yet."""
SAFETENSORS_DTYPES: dict[torch.dtype, str] = {getattr(torch, name): stored for stored, name in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What every file of one save is written with."""

    pool: ThreadPoolExecutor
    """Of one thread, which hashes what is written in its order."""
    advance: Callable[[int], None] = lambda _amount: None


def write_tensor_group(path: Path, tensors: Mapping[str, Tensor], writing: WriteContext) -> FileDigest:
    """Write a new file of tensors, synced. On the way one tensor at a time is copied off the device."""
    stored = {name: _to_tensor_bytes(name, tensor) for name, tensor in tensors.items()}
    return _write_hashed_file(path, writing, lambda sink: write_safetensors(sink, stored))


def write_hashed_bytes(path: Path, data: bytes, writing: WriteContext) -> FileDigest:
    """Write a new file, synced."""
    return _write_hashed_file(path, writing, lambda sink: sink.write(data))


def count_tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the values take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


class _HashingSink(ByteSink):
    """Hashes pieces in another thread while they are written. The pieces must stay as they are until `file_sum`."""

    def __init__(self, stream: IO[bytes], writing: WriteContext) -> None:
        super().__init__(stream, advance=writing.advance)
        self._pool = writing.pool
        self._sum = hashlib.sha256()
        self._pending_hashes: deque[Future[None]] = deque()

    def write(self, data: BytesLike) -> None:
        failpoint("save.write")
        self._pending_hashes.append(self._pool.submit(self._sum.update, data))
        super().write(data)
        if len(self._pending_hashes) > MAX_UNHASHED_CHUNKS:  # what waits is held in memory
            self._pending_hashes.popleft().result()

    def file_digest(self) -> FileDigest:
        while self._pending_hashes:
            self._pending_hashes.popleft().result()
        return FileDigest(self.position, self._sum.hexdigest())


def _write_hashed_file(path: Path, writing: WriteContext, write: Callable[[ByteSink], None]) -> FileDigest:
    failpoint("save.open")
    with path.open("xb") as stream:
        sink = _HashingSink(stream, writing)
        write(sink)
        stream.flush()
        failpoint("save.sync")
        os.fsync(stream.fileno())
        # What is in memory now would hide what the disk really holds from the read that verifies it.
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sink.file_digest()


def _to_tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
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


DISK_SLACK_BYTES = 1 << 20
"""Room for folders, manifest and journal beside the tensors."""
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")


@dataclass(frozen=True, slots=True)
class StepSaveResult:
    """What a save did: where the step is, which steps it removed, and what went wrong without harm to the step."""

    folder: Path
    removed: tuple[int, ...]
    findings: tuple[Finding, ...]


def save_step(run: RunFolder, state: TrainState, *, keep_last: int, keep: Collection[int] = ()) -> StepSaveResult:
    """Save a step, read it back from the disk, put it in its place, and only then remove steps that are not kept.

    Kept are the last `keep_last` whole ones up to this and those in `keep`, which the step remembers for `clean`. What
    was saved of this step before is replaced. Later ones are never touched: who goes back behind them sets them aside.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}")
    kept = sorted({*keep})
    files = _build_state_file(state, kept)
    require_folder(run.path)
    try:
        _create_steps_folder(run)
        findings = remove_leftover_folders(run)
        _require_disk_space(run, state)
        with _create_hidden_folder(run, state.step) as new:
            _write_step_files(new, state, files)
            _verify_step(new, state.step)
            _publish_step(new, run.step(state.step), state.step)
        failpoint("save.placed")
    except OSError as error:
        raise build_write_error(error, run.step(state.step)) from None
    removed, failed = _prune_steps(run, state.step, keep_last, kept)
    return StepSaveResult(run.step(state.step), tuple(removed), (*findings, *failed))


def move_later_steps_aside(run: RunFolder, after: int) -> Path | None:
    """Move all steps later than `after` into a folder of their own, so that training goes on from there; that folder.

    The newest goes first: whenever this is stopped, what is left is a run that ends earlier. Nothing is removed.
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


def _build_state_file(state: TrainState, keep: list[int]) -> dict[str, bytes]:
    """state.json, made before anything is written: what cannot be read back must not cost a step."""
    require_json_values(state.values)
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
    return {STEP_STATE_NAME: text}


def _create_steps_folder(run: RunFolder) -> None:
    if not run.steps.is_dir():
        run.steps.mkdir()
        sync_folder_if_possible(run.path)


def _require_disk_space(run: RunFolder, state: TrainState) -> None:
    need = sum(map(count_tensor_bytes, state.tensors.values())) + DISK_SLACK_BYTES
    free = shutil.disk_usage(run.steps).free
    if need > free:
        found = f"step {state.step} needs {need:,} bytes, {free:,} are free"
        cure = f"free some space, for example with `voxgraft clean {run.path}`."
        raise FileError("disk-too-small", found, where=run.steps, cure=cure)


@contextlib.contextmanager
def _create_hidden_folder(run: RunFolder, step: int) -> Iterator[Path]:
    """A hidden folder beside the steps, claimed, which is gone at the end unless it was given another name."""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_ATTEMPTS):
            folder = run.steps / make_hidden_step_name(step)
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                failpoint("save.claim")
                stack.enter_context(lock_folder(folder))
            except (BlockingIOError, FileNotFoundError):
                continue  # who removes leftovers was quicker than we were to claim it
            except OSError as error:
                if error.errno not in LOCK_UNSUPPORTED_ERRNOS:
                    raise
            yield folder
            return
        raise FileError("file-unwritable", "other processes keep removing what is written", where=run.steps)


def _write_step_files(folder: Path, state: TrainState, small_files: Mapping[str, bytes]) -> None:
    total = sum(map(count_tensor_bytes, state.tensors.values()))
    with ThreadPoolExecutor(1) as pool, progress.progress_task(f"saving step {state.step}", total) as advance:
        writing = WriteContext(pool, advance)
        sums = {
            name + TENSORS_SUFFIX: write_tensor_group(folder / (name + TENSORS_SUFFIX), group, writing)
            for name, group in state.tensors.items()
        }
        sums |= {name: write_hashed_bytes(folder / name, data, writing) for name, data in small_files.items()}
        manifest = {"step": state.step, "files": {name: asdict(file_sum) for name, file_sum in sums.items()}}
        write_hashed_bytes(folder / STEP_MANIFEST_NAME, _encode_json(manifest), writing)
    failpoint("save.folder")
    sync_folder_if_possible(folder)


def _verify_step(folder: Path, step: int) -> None:
    failpoint("save.verify")
    if damage := find_step_damage(StepFolder(step, folder)):
        raise CheckpointError("step-unverified", f"step {step} was written, but {damage}", where=folder.parent)


def _publish_step(new: Path, place: Path, step: int) -> None:
    """One rename, unless the place is taken: then what is there moves aside first, where a load finds it as well."""
    for _ in range(MAX_ATTEMPTS):
        try:
            if os.path.lexists(place):
                _move_existing_step(StepFolder(step, place))
            failpoint("save.rename")
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


def _move_existing_step(taken: StepFolder) -> None:
    old = taken.path.with_name(taken.path.name + ".old")
    before = folder_identity(taken.path)
    damage = find_step_damage(taken)
    if folder_identity(taken.path) != before:
        raise FileNotFoundError(errno.ENOENT, "another saver has moved it", str(taken.path))
    if damage is None:
        if os.path.lexists(old):
            remove_step_folder(old, taken.step)
    else:
        old = _find_unused_name(taken.path.parent, taken.path.name + ".damaged-{}")
    failpoint("save.make-way")
    os.rename(taken.path, old)


def _find_unused_name(folder: Path, pattern: str) -> Path:
    numbers = iter(range(1, 1_000_000))
    return next(path for number in numbers if not os.path.lexists(path := folder / pattern.format(number)))


def _prune_steps(run: RunFolder, newest: int, keep_last: int, keep: Collection[int]) -> tuple[list[int], list[Finding]]:
    """Remove whole steps that are not kept. Damaged ones stay for the user, as do links and whatever is not ours."""
    folders = [
        folder
        for folder in list_step_folders(run)
        if folder.step <= newest and find_step_damage(folder, quick=True) is None
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
            remove_step_folder(folder.path, folder.step)
            removed += [] if is_spare else [folder.step]
        except FileNotFoundError:
            continue  # another saver has removed it
        except OSError as error:
            found = f"{folder.path.name} cannot be removed: {error.strerror}"
            findings.append(finding("step-left", found, where=folder.path))
    return removed, findings


def _encode_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()
