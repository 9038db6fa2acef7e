"""Who is at work on a run, wherever it was started: told by the run's own lock, which is looked at and never taken."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from voxgraft.run import MAX_HOLDER_BYTES, RunFolder
from voxgraft.ui.jobs import ProjectJobs


@dataclass(frozen=True, slots=True)
class RunLockHolder:
    """A verb that was started elsewhere, as it signed."""

    verb: str
    pid: str = "?"
    host: str = "?"
    since: str = "?"

    @property
    def words(self) -> str:
        """What is to be said of it."""
        return (
            f"`voxgraft {self.verb}` is at work on this project, started elsewhere (process {self.pid} on {self.host}, "
            f"since {self.since}). Stop it there, with Ctrl-C, before you start something here."
        )


def find_external_holder(project: Path) -> RunLockHolder | None:
    """Who is at work on the run without being a job of this page."""
    holder = _read_lock_holder(RunFolder(project).lock_file)
    if holder is None or any(job.verb == holder.verb for job in ProjectJobs(project).at_work()):
        return None
    return holder


def _read_lock_holder(lock_file: Path) -> RunLockHolder | None:
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        signed = _parse_lock_holder(os.pread(descriptor, MAX_HOLDER_BYTES, 0))
        status = os.fstat(descriptor)
        # Who is at work has signed, and who ends well takes it back. What a killed one has left is tried once: to try
        # is to have the lock for a moment, in which a training that starts would be refused.
        if signed is None or _is_lock_free(lock_file, status.st_ino, status.st_mtime_ns, descriptor):
            return None
        return signed
    except OSError:
        return None
    finally:
        os.close(descriptor)


_released_locks: set[tuple[Path, int, int]] = set()
"""Signatures that nobody stands behind any more."""


def _is_lock_free(lock_file: Path, inode: int, changed: int, descriptor: int) -> bool:
    if (lock_file, inode, changed) in _released_locks:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _released_locks.add((lock_file, inode, changed))
    return True


def _parse_lock_holder(text: bytes) -> RunLockHolder | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return RunLockHolder(*(str(found.get(key, "?")) for key in ("verb", "pid", "host", "since")))
