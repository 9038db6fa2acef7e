"""How far a long job is: bars with the time left on a terminal, an occasional line elsewhere.

A job shows only after two seconds. One thread looks at all jobs, so that advancing a job costs the verb one addition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 2.0
TICK_SECONDS = 0.2
LINE_EVERY_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class Job:
    """One task that the library has opened."""

    name: str
    total: int | None
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def advance(self, amount: int) -> None:
        self.done += amount

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.started

    def seconds_left(self) -> float | None:
        """Time left at the pace so far, if that can be told."""
        if not self.total or not self.done:
            return None
        return self.age_seconds * max(self.total - self.done, 0) / self.done


class Display(Protocol):
    """How jobs are shown: bars or lines."""

    def update(self, job: Job) -> None:
        """Show where a job is; called several times a second."""

    def finish(self, job: Job) -> None:
        """The job has ended; it may never have been shown."""

    def close(self) -> None:
        """No more jobs come."""


class Board:
    """The listener for `progress.listening`: hands every job that takes long to a display."""

    def __init__(self, display: Display, patience_seconds: float) -> None:
        self._display = display
        self._patience_seconds = patience_seconds
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._display.close()

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """What happens in a run; part of `progress.Listener`."""

    @contextlib.contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """One job; part of `progress.Listener`."""
        job = Job(name, total)
        with self._lock:
            self._jobs.append(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            self._thread.start()
        try:
            yield job.advance
        finally:
            with self._lock:
                self._jobs.remove(job)
                self._display.finish(job)

    def look(self) -> None:
        """Show every job that has taken longer than the patience lasts."""
        with self._lock:
            for job in self._jobs:
                if job.age_seconds >= self._patience_seconds:
                    self._display.update(job)

    def _watch(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            self.look()


class Bars:
    """rich bars, which vanish when their job ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Progress | None = None
        self._bars: dict[Job, TaskID] = {}

    def update(self, job: Job) -> None:
        if self._progress is None:
            self._progress = _rich_progress(self._stream)
            self._progress.start()
        if job not in self._bars:
            self._bars[job] = self._progress.add_task(job.name, total=job.total, completed=job.done)
        self._progress.update(self._bars[job], completed=job.done)

    def finish(self, job: Job) -> None:
        if self._progress is not None and job in self._bars:
            self._progress.remove_task(self._bars.pop(job))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class Lines:
    """Plain lines for logs: one when a job shows first, then one every ten seconds, and one at its end."""

    def __init__(self, stream: TextIO, every_seconds: float = LINE_EVERY_SECONDS) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._printed: dict[Job, float] = {}

    def update(self, job: Job) -> None:
        now = time.monotonic()
        if job not in self._printed or now - self._printed[job] >= self._every_seconds:
            self._printed[job] = now
            self._print(f"{job.name}: {how_far(job)}")

    def finish(self, job: Job) -> None:
        if self._printed.pop(job, None) is not None:
            self._print(f"{job.name}: {job.age_seconds:.0f} s")

    def close(self) -> None:
        self._stream.flush()

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def how_far(job: Job) -> str:
    """A job's progress in words: the share done and the time left, or what is known of them."""
    if not job.total:
        return f"{job.done:,} so far" if job.done else "working"
    left = job.seconds_left()
    return f"{job.done / job.total:.0%}" + (f", {left:.0f} s left" if left is not None else "")


def _rich_progress(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
