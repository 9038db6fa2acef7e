"""Processes that work for another one and end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

__all__ = ["worker_pool"]


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
