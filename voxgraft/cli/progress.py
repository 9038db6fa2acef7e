"""How far a long job is, and how a run stands: bars and a live picture on a terminal, lines elsewhere.

A job shows only after two seconds. One thread looks at all jobs and draws everything, so that advancing a job costs the
verb one addition, telling something one entry in a queue, and a terminal that hangs stops nobody.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from voxgraft.cli.console import print_lines
from voxgraft.core.progress import CHAPTER_EVENT, active_seconds
from voxgraft.core.results import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from voxgraft.cli.train_view import TrainLineView, TrainLiveView


SHOW_AFTER_SECONDS = 2.0
POLL_SECONDS = 0.2
LINE_INTERVAL_SECONDS = 10.0
MIN_PACE_SECONDS, MIN_PACE_SHARE = 2.0, 0.05
"""How long a pace is measured before it is told, or of how much of the job."""


@dataclass(eq=False, slots=True)
class ProgressTask:
    """One task that the library has opened."""

    name: str
    total: int | None
    done: int = 0
    started: float = field(default_factory=active_seconds)
    first: tuple[float, int] | None = None
    """When the first part was done, and how much that was: what came before also holds the start of the job."""

    def advance(self, amount: int) -> None:
        self.done += amount
        if self.first is None and self.done:
            self.first = (active_seconds(), self.done)

    @property
    def age_seconds(self) -> float:
        return active_seconds() - self.started

    def seconds_left(self) -> float | None:
        """Time left at the pace that was measured; None as long as that says nothing.

        Measured from the end of the first part on, for some seconds. Where the parts are large, the first is enough.
        """
        if not self.total or self.first is None:
            return None
        at, done = self.first
        seconds, parts = active_seconds() - at, self.done - done
        if parts <= 0 or seconds < MIN_PACE_SECONDS:
            if self.done < MIN_PACE_SHARE * self.total:
                return None
            seconds, parts = self.age_seconds, self.done
        return seconds * max(self.total - self.done, 0) / parts


class ProgressDisplay(Protocol):
    """How jobs and runs are shown: bars and a live picture, or lines."""

    def update(self, job: ProgressTask) -> None:
        """Show where a job is; called several times a second."""

    def finish(self, job: ProgressTask) -> None:
        """The job has ended; it may never have been shown."""

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Something happened in a run."""

    def refresh(self) -> None:
        """All that was to be shown at this look has been given."""

    def close(self) -> None:
        """No more jobs come."""


class ProgressReporter:
    """The listener for `progress.listening`: hands every job that takes long, and all that is told, to a display."""

    def __init__(self, display: ProgressDisplay, patience_seconds: float) -> None:
        self._display = display
        self._patience_seconds = patience_seconds
        self._jobs: list[ProgressTask] = []
        self._events: deque[Callable[[], None]] = deque()
        self._draw_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.look()
        with self._drop_broken_display():
            self._display.close()

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """What happens in a run; part of `progress.Listener`. Takes no lock: a signal's handler may call it."""
        self._events.append(lambda: self._display.tell(kind, step, values))
        self._begin()

    @contextlib.contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """One job; part of `progress.Listener`."""
        job = ProgressTask(name, total)
        self._jobs.append(job)
        self._begin()
        try:
            yield job.advance
        finally:
            self._jobs.remove(job)
            self._events.append(lambda: self._display.finish(job))

    def look(self) -> None:
        """Show what was told, and every job that has taken longer than the patience lasts."""
        active_seconds()  # so that a gap between two looks is known for what it is
        with self._draw_lock, self._drop_broken_display():
            while self._events:
                self._events.popleft()()
            for job in list(self._jobs):
                if job.age_seconds >= self._patience_seconds:
                    self._display.update(job)
            self._display.refresh()

    @contextlib.contextmanager
    def _drop_broken_display(self) -> Iterator[None]:
        """A stream that cannot be written to any more (a pipe that was closed) ends the showing, never the verb."""
        try:
            yield
        except OSError:
            self._display = NullDisplay()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll_loop, name="progress", daemon=True)
            self._thread.start()

    def _poll_loop(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            self.look()


class NullDisplay:
    """What nobody reads."""

    def update(self, job: ProgressTask) -> None: ...

    def finish(self, job: ProgressTask) -> None: ...

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class BarDisplay:
    """rich bars, which vanish when their job ends; once a run is told of, its live picture with the jobs in it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Progress | None = None
        self._bars: dict[ProgressTask, TaskID] = {}
        self._view: TrainLiveView | None = None
        self._words: dict[ProgressTask, str] = {}

    def update(self, job: ProgressTask) -> None:
        if self._view is not None:
            self._words[job] = f"{job.name}: {format_progress(job)}"
            return
        if self._progress is None:
            self._progress = _build_rich_progress(self._stream)
            self._progress.start()
        if job not in self._bars:
            self._bars[job] = self._progress.add_task(job.name, total=job.total, completed=job.done, left="")
        left = job.seconds_left()
        told = f"{format_duration(left)} left" if left is not None else ""
        self._progress.update(self._bars[job], completed=job.done, left=told)

    def finish(self, job: ProgressTask) -> None:
        self._words.pop(job, None)
        if self._progress is not None and job in self._bars:
            self._progress.remove_task(self._bars.pop(job))
            if not self._bars:
                self._stop_bars()  # with no bar left it would still draw, over whatever a verb asks meanwhile

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if kind == CHAPTER_EVENT:
            self.close()
            self._view = None
            print_lines(values["lines"], self._stream)
            return
        if self._view is None:
            from voxgraft.cli.train_view import TrainLiveView

            self._stop_bars()  # a terminal has room for one live thing
            self._view = TrainLiveView(self._stream)
        self._view.tell(kind, step, values)

    def refresh(self) -> None:
        if self._view is not None:
            self._view.refresh(tuple(self._words.values()))

    def close(self) -> None:
        self._stop_bars()
        if self._view is not None:
            self._view.close()

    def _stop_bars(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._bars = None, {}


class LineDisplay:
    """Plain lines for logs: one when a job shows first, then one every ten seconds, and one at its end."""

    def __init__(self, stream: TextIO, every_seconds: float = LINE_INTERVAL_SECONDS) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._printed: dict[ProgressTask, float] = {}
        self._view: TrainLineView | None = None

    def update(self, job: ProgressTask) -> None:
        now = time.monotonic()
        if job not in self._printed or now - self._printed[job] >= self._every_seconds:
            self._printed[job] = now
            self._print(f"{job.name}: {format_progress(job)}")

    def finish(self, job: ProgressTask) -> None:
        if self._printed.pop(job, None) is not None:
            self._print(f"{job.name}: {job.age_seconds:.0f} s")

    def tell(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if kind == CHAPTER_EVENT:
            self.close()
            self._view = None
            print_lines(values["lines"], self._stream)
            return
        if self._view is None:
            from voxgraft.cli.train_view import TrainLineView

            self._view = TrainLineView(self._stream)
        self._view.tell(kind, step, values)

    def refresh(self) -> None:
        """Lines are written as they come."""

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
        self._stream.flush()

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def format_progress(job: ProgressTask) -> str:
    """A job's progress in words: the share done and the time left, or what is known of them."""
    if not job.total:
        return f"{job.done:,} so far" if job.done else "working"
    left = job.seconds_left()
    return f"{job.done / job.total:.0%}" + (f", {left:.0f} s left" if left is not None else "")


def _build_rich_progress(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(file=stream),
        transient=True,
    )


SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE_BLANK = 0x2800
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille letter by row and column."""
LEVEL_DASH = "┄"
MAX_CURVE_POINTS = 1024


class DownsampledCurve:
    """A curve of any length in little room: when it has too many points, every two become their mean."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._means: list[float] = []
        self._open: list[float] = []
        self._stride = 1

    def add(self, value: float) -> None:
        self.last = value
        self._open.append(value)
        if len(self._open) == self._stride:
            self._means.append(sum(self._open) / self._stride)
            self._open = []
        if len(self._means) == MAX_CURVE_POINTS:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2

    @property
    def points(self) -> list[float]:
        """From first to last; those that are not enough for a point yet are one too."""
        return [*self._means, sum(self._open) / len(self._open)] if self._open else list(self._means)


def sparkline(values: Sequence[float], width: int) -> str:
    """The values from first to last in at most `width` letters; more values than letters are averaged."""
    shown = _average_to_width(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = high - low or 1.0
    return "".join(SPARKLINE_BLOCKS[round((value - low) / span * (len(SPARKLINE_BLOCKS) - 1))] for value in shown)


def braille_chart(values: Sequence[float], width: int, height: int, levels: Mapping[str, float]) -> list[str]:
    """The values as a curve in `height` rows of `width` letters; a level in its range is a dashed row with its name.

    A level that is far off would flatten the curve: one that is more than half the curve's own height away is left out.
    """
    if not values or width < 2 or height < 2:
        return [" " * width] * height
    low, high = _value_range(values, levels.values())
    rows = [[BRAILLE_BLANK] * width for _ in range(height)]
    heights = [_dot_row(value, low, high, 4 * height) for value in _stretch_to_width(values, 2 * width)]
    for column, (before, here) in enumerate(pairwise([heights[0], *heights])):
        for dot in range(min(before, here), max(before, here) + 1):
            rows[dot // 4][column // 2] |= BRAILLE_DOTS[dot % 4][column % 2]
    drawn = ["".join(chr(cell) for cell in row) for row in rows]
    marks: dict[int, list[str]] = {}
    for name, level in levels.items():
        if low <= level <= high:
            marks.setdefault(_dot_row(level, low, high, 4 * height) // 4, []).append(name)
    for row, names in marks.items():
        drawn[row] = _draw_level(drawn[row], ", ".join(names))
    return [line.replace(chr(BRAILLE_BLANK), " ") for line in drawn]


def _average_to_width(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in pairwise(edges)]


def _stretch_to_width(values: Sequence[float], width: int) -> list[float]:
    """As many values as there are columns: averaged if there are more, drawn out if there are fewer."""
    few = _average_to_width(values, width)
    places = [index * (len(few) - 1) / (width - 1) for index in range(width)]
    ends = [*few, few[-1]]
    return [ends[int(at)] + (ends[int(at) + 1] - ends[int(at)]) * (at % 1) for at in places]


def _value_range(values: Sequence[float], levels: Iterable[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    reach = (high - low) / 2
    near = [level for level in levels if low - reach <= level <= high + reach]
    return min([low, *near]), max([high, *near])


def _dot_row(value: float, low: float, high: float, dots: int) -> int:
    """The row of dots, from the top."""
    share = (value - low) / (high - low) if high > low else 0.5
    return min(dots - 1, max(0, round((1 - share) * (dots - 1))))


def _draw_level(row: str, name: str) -> str:
    label = f" {name} "
    dashed = "".join(LEVEL_DASH if ord(cell) == BRAILLE_BLANK else cell for cell in row)
    free = len(row) - len(label)
    return dashed[:free] + label if free > 4 and all(cell == LEVEL_DASH for cell in dashed[free:]) else dashed
