"""Processes that work for another one and end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

__all__ = ["worker_pool"]


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that are started anew, not forked: the faces have threads, and a fork would copy their locks."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """End at once when the parent is gone: else its work would go on beside that of its successor, or wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
