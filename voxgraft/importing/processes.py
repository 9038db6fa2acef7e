"""Processes that work for another one and end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess

__all__ = ["worker_pool"]


class _Process(SpawnProcess):
    """A process that never sees Ctrl-C, from its first instruction on: the terminal sends it to the whole group.

    Its parent hears it and ends the process. The mask is inherited, so that it counts while Python is still starting.
    """

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are started anew, not forked: the faces have threads, and a fork would copy their locks."""
    pool = ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_end_with_parent)
    try:
        yield pool
    except (BrokenProcessPool, OSError, KeyboardInterrupt):
        # A pool that breaks while it is still starting its processes forgets the last one, and waits for it for ever.
        # After Ctrl-C nobody wants to wait for a film to be cut: what is written is whole, and the rest is made again.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """End at once when the parent is gone: else its work would go on beside that of its successor, or wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
