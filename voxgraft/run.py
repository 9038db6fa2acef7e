"""The run folder: where everything of one run has its place, and the lock that lets one process at a time change it.

Knows nothing of what the files hold. The lock is the system's own: it is gone with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.errors import FileError
from voxgraft.files import build_write_error, recover_folders, require_folder

__all__ = ["RUN_FILE", "RunFolder", "step_folder_name"]

RUN_FILE = "run.yaml"
"""What a run is asked for, in its folder."""

MAX_HOLDER_BYTES = 4096
HOLDER_TRIES, HOLDER_WAIT_SECONDS = 5, 0.02
"""A process signs a moment after it has got the lock."""
LOCK_UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held_locks: set[int] = set()
"""Descriptors of the locks that this process holds."""


def step_folder_name(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:06d}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run: its places. That they are there is the business of who reads them."""

    path: Path

    def __post_init__(self) -> None:
        """A folder that was finished when its process ended is taken by whoever opens the run next."""
        recover_folders(self.path)
        recover_folders(self.data)

    @property
    def settings(self) -> Path:
        return self.path / RUN_FILE

    @property
    def card(self) -> Path:
        return self.path / "card.json"

    @property
    def graft(self) -> Path:
        return self.path / "graft"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def steps(self) -> Path:
        return self.path / "steps"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def eval(self) -> Path:
        return self.path / "eval"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    def data_set(self, name: str) -> Path:
        """The folder of one set of prepared clips."""
        return self.data / name

    def step(self, step: int) -> Path:
        """The folder of one saved step."""
        return self.steps / step_folder_name(step)

    @contextlib.contextmanager
    def lock(self, verb: str = "train") -> Iterator[None]:
        """Nobody else changes the run while the block lasts; an error that names the holder if somebody does.

        The file stays when the lock is gone: removing it would let two processes hold two files of one name.
        """
        descriptor = _open_lock_file(require_folder(self.path), self.lock_file)
        _held_locks.add(descriptor)
        try:
            _acquire_lock(descriptor, self)
            _write_lock_holder(
                descriptor, {"verb": verb, "host": socket.gethostname(), "pid": os.getpid(), "since": _timestamp()}
            )
            yield
            _write_lock_holder(descriptor, None)
        finally:
            if descriptor in _held_locks:  # else this is a fork, which has closed it already
                _held_locks.remove(descriptor)
                os.close(descriptor)


def _open_lock_file(run: Path, path: Path) -> int:
    try:
        # A link is refused: what it leads to would be written over.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileError("not-a-file", f"{path.name} is a link", where=path, cure="remove it.") from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            found = f"the run cannot be written to: {error.strerror}"
            raise FileError("file-unwritable", found, where=run) from None
        raise build_write_error(error, path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError("not-a-file", f"{path.name} is not a regular file", where=path, cure="remove it.")
    return descriptor


def _acquire_lock(descriptor: int, run: RunFolder) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _build_lock_error(_read_lock_holder(descriptor), run) from None
    except OSError as error:
        code = "run-lock-unsupported" if error.errno in LOCK_UNSUPPORTED_ERRORS else "file-unwritable"
        raise FileError(code, f"{run.lock_file.name} cannot be locked: {error.strerror}", where=run.path) from None


def _write_lock_holder(descriptor: int, holder: dict[str, Any] | None) -> None:
    """Say in the file who holds the lock. That is a courtesy: a full disk does not stop who has the lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        if holder is not None:
            os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)


def _read_lock_holder(descriptor: int) -> dict[str, Any]:
    for _ in range(HOLDER_TRIES):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(os.pread(descriptor, MAX_HOLDER_BYTES, 0))
            if isinstance(found, dict):
                return found
        time.sleep(HOLDER_WAIT_SECONDS)
    return {}


def _build_lock_error(holder: dict[str, Any], run: RunFolder) -> FileError:
    verb, host, pid = holder.get("verb", "?"), holder.get("host", "?"), holder.get("pid", "?")
    found = f"`voxgraft {verb}` is at work on this run: process {pid} on {host}, since {holder.get('since', '?')}"
    if not holder:
        found = "another process is at work on this run; it did not leave its name"
    cure = f"wait until it ends, or stop it: `kill {pid}` on {host}." if type(pid) is int else ""
    return FileError("run-locked", found, where=run.path, cure=cure)


def _timestamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def _release_locks_after_fork() -> None:
    """A forked worker would hold the lock on after its parent was killed."""
    for descriptor in _held_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_locks.clear()


os.register_at_fork(after_in_child=_release_locks_after_fork)
