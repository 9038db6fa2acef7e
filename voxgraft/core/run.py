"""The run folder: where everything of one run has its place, and the lock that lets one process at a time change it.

Knows nothing of what the files hold. The lock is the system's own: it is gone with its process, however that ends.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass
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
"""What a run is asked for, in its folder."""

MAX_HOLDER_BYTES = 4096
HOLDER_TRIES, HOLDER_WAIT_SECONDS = 5, 0.02
"""A process signs a moment after it has got the lock."""


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
        with _open_lock_file(require_folder(self.path), self.lock_file) as lock:
            _acquire_lock(lock, self)
            _write_lock_holder(
                lock, {"verb": verb, "host": socket.gethostname(), "pid": os.getpid(), "since": _timestamp()}
            )
            yield
            _write_lock_holder(lock, None)


def _open_lock_file(run: Path, path: Path) -> FileLock:
    try:
        # A link is refused: what it leads to would be written over. O_NONBLOCK: a pipe would wait for its other end.
        lock = FileLock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileError("not-a-file", f"{path.name} is a link", where=path, cure="remove it.") from None
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            found = f"the run cannot be written to: {error.strerror}"
            raise FileError("file-unwritable", found, where=run) from None
        raise build_write_error(error, path) from None
    if not stat.S_ISREG(os.fstat(lock.descriptor).st_mode):
        lock.close()
        raise FileError("not-a-file", f"{path.name} is not a regular file", where=path, cure="remove it.")
    return lock


def _acquire_lock(lock: FileLock, run: RunFolder) -> None:
    try:
        lock.acquire()
    except BlockingIOError:
        raise _build_lock_error(_read_lock_holder(lock), run) from None
    except OSError as error:
        code = "run-lock-unsupported" if error.errno in LOCK_UNSUPPORTED_ERRNOS else "file-unwritable"
        raise FileError(code, f"{run.lock_file.name} cannot be locked: {error.strerror}", where=run.path) from None


def _write_lock_holder(lock: FileLock, holder: dict[str, Any] | None) -> None:
    """Say in the file who holds the lock. That is a courtesy: a full disk does not stop who has the lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock.descriptor, 0)
        if holder is not None:
            os.pwrite(lock.descriptor, json.dumps(holder).encode() + b"\n", 0)


def _read_lock_holder(lock: FileLock) -> dict[str, Any]:
    for _ in range(HOLDER_TRIES):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(os.pread(lock.descriptor, MAX_HOLDER_BYTES, 0))
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


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are started anew, not forked: the faces have threads, and a fork would copy their locks."""
    context = _TrackingSpawnContext()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_exit_with_parent)
    try:
        yield pool
    except (BrokenProcessPool, OSError, KeyboardInterrupt):
        # A pool that breaks while it is still starting its processes forgets the last one, and waits for it for ever.
        # After Ctrl-C nobody wants to wait for a film to be cut: what is written is whole, and the rest is made again.
        for process in context.started:
            if process.pid is not None:
                process.terminate()
        raise
    finally:
        # Interrupted while the pool starts its own thread, it has nothing to wait for, and says so with this error.
        with suppress(RuntimeError):
            pool.shutdown(wait=True, cancel_futures=True)


class _UninterruptibleProcess(SpawnProcess):
    """A process that never sees Ctrl-C, which a terminal sends to a whole group: its parent sees it and ends it."""

    def start(self) -> None:
        with _defer_interrupt():
            super().start()


class _TrackingSpawnContext(SpawnContext):
    """Starts such processes, and knows them from their first instant on."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 (its name there)
        process = _UninterruptibleProcess(*args, **kwargs)
        self.started.append(process)
        return process


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Put Ctrl-C off until the block is over.

    A process inherits the mask of the thread that starts it, so that it counts while its Python is still starting. The
    mask does not stop the parent from being interrupted, since another of its threads can take the signal; a parent
    that is interrupted in between leaves a child that waits for its orders, and complains.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    in_main = threading.current_thread() is threading.main_thread()  # no other thread is ever interrupted
    seen: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number)) if in_main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if in_main:
            signal.signal(signal.SIGINT, handler)
    if seen:
        signal.raise_signal(signal.SIGINT)


def _exit_with_parent() -> None:
    """End at once when the parent is gone: else its work would go on beside that of its successor, or wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def machine_id() -> str:
    """The host, its boot and the space of process numbers: a process is known by its number only inside all three."""
    return " ".join(
        [socket.gethostname(), _read_proc_text("/proc/sys/kernel/random/boot_id"), _read_proc_link("/proc/self/ns/pid")]
    )


def process_start_time(pid: int) -> str:
    """When the process of that number was started, in the system's own clock; nothing where there is none."""
    # After the name, which stands in brackets and may hold anything, the twentieth word is the start.
    words = _read_proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 else ""


def _read_proc_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where there is no /proc
        return ""


def _read_proc_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
