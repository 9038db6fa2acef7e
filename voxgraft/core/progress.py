"""Progress, events and questions of long jobs, without knowing who shows them.

The library calls `progress_task` and `report_event`; the command line installs a listener by
`use_progress_listener`. Without one nothing is printed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from voxgraft.core.results import Line

# A clock that is read several times a second was suspended if nobody could read it for this long.
SUSPENDED_SECONDS = 5.0
# Kind of lines that are shown between the commands of a longer story; they belong to no run.
CHAPTER_EVENT = "chapter"


class ActiveClock:
    """Seconds without those for which the process was suspended (Ctrl-Z, a closed lid), which would distort speeds.

    Works only while a thread reads it all the time, as the one does that draws progress.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last, self._suspended = clock(), 0.0

    def __call__(self) -> float:
        with self._lock:
            now = self._clock()
            if now - self._last > SUSPENDED_SECONDS:
                self._suspended += now - self._last
            self._last = now
            return now - self._suspended


active_seconds = ActiveClock()


class ProgressListener(Protocol):
    """What an interface installs to show progress."""

    def task(self, name: str, total: int | None) -> contextlib.AbstractContextManager[Callable[[int], None]]: ...

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """An event of a run: a line of its journal, or its first lines (`kind` is `opening`)."""


_active_listener: ContextVar[ProgressListener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def use_progress_listener(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of everything inside the block to `listener`."""
    token = _active_listener.set(listener)
    try:
        yield
    finally:
        _active_listener.reset(token)


@contextlib.contextmanager
def progress_task(name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """One job of `total` units (bytes, lines, steps; None if unknown). Yields the function that advances it."""
    listener = _active_listener.get()
    if listener is None:
        yield lambda _amount: None
    else:
        with listener.task(name, total) as advance:
            yield advance


def report_event(kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Report an event of a run."""
    listener = _active_listener.get()
    if listener is not None:
        listener.report(kind, step, values)


def report_lines(lines: Sequence[Line]) -> None:
    """Show lines that stay, below what was shown live before them."""
    if lines:
        report_event(CHAPTER_EVENT, 0, {"lines": lines})


# Shows the lines, then asks the question; whether the answer is yes.
ConfirmCallback = Callable[[Sequence[Line], str], bool]
# Shows the lines, then asks the question; the answer in the person's own words, which may be empty.
AskCallback = Callable[[Sequence[Line], str], str]
_confirm_callback: ContextVar[ConfirmCallback | None] = ContextVar("answerer", default=None)
_ask_callback: ContextVar[AskCallback | None] = ContextVar("teller", default=None)


@contextlib.contextmanager
def use_prompt_callbacks(answerer: ConfirmCallback, teller: AskCallback | None = None) -> Iterator[None]:
    """Send every question asked inside the block to `answerer`, and those that want words to `teller`."""
    tokens = _confirm_callback.set(answerer), _ask_callback.set(teller)
    try:
        yield
    finally:
        _confirm_callback.reset(tokens[0])
        _ask_callback.reset(tokens[1])


def confirm_with_user(lines: Sequence[Line], question: str) -> bool | None:
    """Show `lines` and ask a yes-or-no question; None if there is nobody to ask."""
    answerer = _confirm_callback.get()
    return None if answerer is None else answerer(lines, question)


def ask_user(lines: Sequence[Line], question: str) -> str | None:
    """Show `lines` and ask for a text; None if there is nobody to ask."""
    teller = _ask_callback.get()
    return None if teller is None else teller(lines, question)
