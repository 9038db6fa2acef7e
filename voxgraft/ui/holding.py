"""Who is at work on a run, wherever it was started: told by the run's own lock, which is looked at and never taken."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from voxgraft.run import MAX_HOLDER_BYTES, RunFolder
from voxgraft.ui.jobs import Jobs


@dataclass(frozen=True, slots=True)
class Holder:
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


def holder_elsewhere(project: Path) -> Holder | None:
    """Who is at work on the run without being a job of this page."""
    holder = _holder(RunFolder(project).lock_file)
    if holder is None or any(job.verb == holder.verb for job in Jobs(project).at_work()):
        return None
    return holder


def _holder(lock_file: Path) -> Holder | None:
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        signed = _signed(os.pread(descriptor, MAX_HOLDER_BYTES, 0))
        status = os.fstat(descriptor)
        # Who is at work has signed, and who ends well takes it back. What a killed one has left is tried once: to try
        # is to have the lock for a moment, in which a training that starts would be refused.
        if signed is None or _is_free(lock_file, status.st_ino, status.st_mtime_ns, descriptor):
            return None
        return signed
    except OSError:
        return None
    finally:
        os.close(descriptor)


_free: set[tuple[Path, int, int]] = set()
"""Signatures that nobody stands behind any more."""


def _is_free(lock_file: Path, inode: int, changed: int, descriptor: int) -> bool:
    if (lock_file, inode, changed) in _free:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _free.add((lock_file, inode, changed))
    return True


def _signed(text: bytes) -> Holder | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return Holder(*(str(found.get(key, "?")) for key in ("verb", "pid", "host", "since")))
