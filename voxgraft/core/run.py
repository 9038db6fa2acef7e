"""The run folder with its lock, and processes: worker pools and how a process is identified.

Knows nothing about the contents of the files.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from voxgraft.core.errors import FileError
from voxgraft.core.files import (
    LOCK_UNSUPPORTED_ERRNOS,
    FileLock,
    build_write_error,
    recover_folders,
    require_folder,
)

RUN_FILE = "run.yaml"

MAX_HOLDER_BYTES = 4096
# A process signs the lock file a moment after it has got the lock.
_HOLDER_TRIES, _HOLDER_WAIT_SECONDS = 5, 0.02


def step_folder_name(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:06d}"


class RunFolder:
    """The places of one run. Whoever reads them checks that they exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / RUN_FILE
        self.card = path / "card.json"
        self.graft = path / "graft"
        self.data = path / "data"
        self.journal = path / "journal.jsonl"
        self.steps = path / "steps"
        self.samples = path / "samples"
        self.eval = path / "eval"
        self.export = path / "export"
        self.lock_file = path / ".lock"
        # A folder that was finished when its process was killed gets its name now.
        recover_folders(path)
        recover_folders(self.data)

    def data_set(self, name: str) -> Path:
        """The folder of one set of prepared clips."""
        return self.data / name

    def step(self, step: int) -> Path:
        """The folder of one saved step."""
        return self.steps / step_folder_name(step)

    @contextmanager
    def lock(self, verb: str = "train") -> Iterator[None]:
        """Nobody else changes the run while the block lasts; an error that names the holder if somebody does.

        The file stays when the lock is gone: removing it would let two processes hold two files of one name.
        """
        path = self.lock_file
        require_folder(self.path)
        try:
            # A link is refused: its target would be overwritten. O_NONBLOCK: a pipe would wait for its other end.
            lock = FileLock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FileError("not-a-file", f"{path.name} is a link", where=path, cure="remove it.") from None
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                found = f"the run cannot be written to: {error.strerror}"
                raise FileError("file-unwritable", found, where=self.path) from None
            raise build_write_error(error, path) from None
        with lock:
            if not stat.S_ISREG(os.fstat(lock.descriptor).st_mode):
                raise FileError("not-a-file", f"{path.name} is not a regular file", where=path, cure="remove it.")
            try:
                lock.acquire()
            except BlockingIOError:
                raise self._locked_error(lock) from None
            except OSError as error:
                code = "run-lock-unsupported" if error.errno in LOCK_UNSUPPORTED_ERRNOS else "file-unwritable"
                found = f"{path.name} cannot be locked: {error.strerror}"
                raise FileError(code, found, where=self.path) from None
            since = time.strftime("%Y-%m-%d %H:%M:%S %z")
            holder = {"verb": verb, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
            # The signature is only information for others: a full disk must not stop who has the lock.
            with suppress(OSError):
                os.ftruncate(lock.descriptor, 0)
                os.pwrite(lock.descriptor, json.dumps(holder).encode() + b"\n", 0)
            yield
            with suppress(OSError):
                os.ftruncate(lock.descriptor, 0)

    def _locked_error(self, lock: FileLock) -> FileError:
        """The error that names the running process, by the signature in the lock file."""
        for _ in range(_HOLDER_TRIES):
            with suppress(OSError, ValueError, RecursionError):
                holder = json.loads(os.pread(lock.descriptor, MAX_HOLDER_BYTES, 0))
                if isinstance(holder, dict) and holder:
                    break
            time.sleep(_HOLDER_WAIT_SECONDS)
        else:
            found = "another process is working on this run"
            return FileError("run-locked", found, where=self.path)
        verb, host, pid = holder.get("verb", "?"), holder.get("host", "?"), holder.get("pid", "?")
        found = f"`voxgraft {verb}` is working on this run: process {pid} on {host}, since {holder.get('since', '?')}"
        cure = f"wait until it ends, or stop it: `kill {pid}` on {host}." if type(pid) is int else ""
        return FileError("run-locked", found, where=self.path, cure=cure)


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes. Not forked: the interfaces have threads, and a fork would copy their held locks."""
    context = _TrackingSpawnContext()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_exit_with_parent)
    try:
        yield pool
    except (BrokenProcessPool, OSError, KeyboardInterrupt):
        # A pool that breaks while it is still starting its processes forgets the last one, and waits for it forever.
        # After Ctrl-C nobody wants to wait for a film to be cut: what is written is whole, the rest is done again.
        for process in context.started:
            if process.pid is not None:
                process.terminate()
        raise
    finally:
        # If the pool was interrupted while it started its own thread, there is none to join: RuntimeError.
        with suppress(RuntimeError):
            pool.shutdown(wait=True, cancel_futures=True)


class _UninterruptibleProcess(SpawnProcess):
    """A process that never sees Ctrl-C, which a terminal sends to the whole group; its parent ends it."""

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            super().start()
            return
        # A process inherits the signal mask of the thread that starts it, so the mask is in force while its Python is
        # still starting. It does not protect the parent, where another thread may take the signal; a parent that is
        # interrupted in between leaves a child that waits for its orders. So the handler only notes it until then.
        in_main = threading.current_thread() is threading.main_thread()  # no other thread is ever interrupted
        seen: list[int] = []
        handler = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number)) if in_main else None
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if in_main:
                signal.signal(signal.SIGINT, handler)
        if seen:
            signal.raise_signal(signal.SIGINT)


class _TrackingSpawnContext(SpawnContext):
    """Starts such processes, and knows them before they run."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 (its name there)
        process = _UninterruptibleProcess(*args, **kwargs)
        self.started.append(process)
        return process


def _exit_with_parent() -> None:
    """End when the parent is gone: an orphan would work beside its parent's successor, or wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def machine_id() -> str:
    """Host, boot and PID namespace: a process number identifies a process only inside all three."""
    parts = [socket.gethostname(), _read_proc_text("/proc/sys/kernel/random/boot_id"), ""]
    with suppress(OSError):
        parts[2] = str(Path("/proc/self/ns/pid").readlink())
    return " ".join(parts)


def process_start_time(pid: int) -> str:
    """When the process of that number was started, in clock ticks since boot; empty if there is none."""
    # The name, in brackets, may hold anything, so count behind the last one: the start is the twentieth field there.
    words = _read_proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def _read_proc_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where there is no /proc
        return ""
