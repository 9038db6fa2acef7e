"""The worker's end of the pipe: answers questions one after another until there is nobody left to ask.

Whatever a library prints goes to standard error: standard output is the pipe. When the program that started the worker
is gone, the worker goes too, also in the middle of something.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

pipe: Any = import_module("pipe")  # beside this file: a worker runs by its path

PARENT_POLL_SECONDS = 0.5
EXIT_PARENT_GONE = 3
WorkerAnswer = tuple[Mapping[str, Any], Mapping[str, Any]]
WorkerHandlers = Mapping[str, Callable[[dict[str, Any], dict[str, Any]], WorkerAnswer]]


def serve(answers: WorkerHandlers, about: Mapping[str, Any]) -> None:
    """Say who we are, then answer: each function takes words and arrays, and gives words and arrays."""
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    _exit_with_parent()
    _send_frame(out, {"ready": True, "protocol": pipe.PROTOCOL, **about})
    while True:
        try:
            words, arrays = pipe.read_frame(_read_exactly)
        except EOFError:
            return
        try:
            said, given = answers[words["ask"]](words, arrays)
        except Exception as error:  # whatever a stock program does wrong is told to the other end
            traceback.print_exc()
            said, given = {"error": f"{type(error).__name__}: {error}"[:2000]}, {}
        _send_frame(out, {"id": words.get("id"), **said}, given)


def _read_exactly(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _send_frame(out: int, words: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
    left = memoryview(pipe.frame(words, arrays))
    while left:
        left = left[os.write(out, left) :]


def _exit_with_parent() -> None:
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        if os.getpgrp() == os.getpid():  # a group of our own: what we have started goes with us
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_PARENT_GONE)

    threading.Thread(target=look, daemon=True).start()
