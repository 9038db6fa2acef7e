"""Everything that is printed: results, settings, errors, questions, and the progress of long tasks.

Results go to standard output, as text or JSON; errors, questions and progress to standard error. A terminal gets rich
text and bars, anything else plain lines. Text is data: it is never read as markup or as control codes. How a training
run is drawn is in `train_view.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from voxgraft.core import progress
from voxgraft.core.errors import Finding
from voxgraft.core.progress import CHAPTER_EVENT, active_seconds
from voxgraft.core.results import (
    LEVEL_STYLES,
    CommandResult,
    Line,
    StyledLine,
    Table,
    TableCell,
    format_duration,
    plain_text,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table as RichTable
    from rich.text import Text

    from voxgraft.cli.train_view import TrainView

# Age at which a task is shown; most tasks end before.
SHOW_AFTER_SECONDS = 2.0
POLL_SECONDS = 0.2
LINE_INTERVAL_SECONDS = 10.0
# Before a time left is shown, the pace is measured for these seconds, or for this share of the task.
MIN_PACE_SECONDS, MIN_PACE_SHARE = 2.0, 0.05
# Anything else is a no.
YES_ANSWERS = ("y", "yes")
# C0 and C1 control characters and DEL, except tab and newline.
_CONTROL_ESCAPES = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0)] if code not in (0x09, 0x0A)}


@dataclass(frozen=True, slots=True)
class ResultPrinter:
    """Where a command's result goes, and in which form."""

    json: bool = False
    quiet: bool = False

    def show(self, result: CommandResult) -> None:
        """Print a result; with `quiet` and without `json` nothing."""
        if self.json:
            _print_json(result.to_json())
        elif not self.quiet:
            print_lines(result.lines(), sys.stdout)

    def show_settings(self, values: Mapping[str, Any]) -> None:
        """Print resolved settings as YAML or JSON that --config reads again."""
        if self.json:
            _print_json(values)
        else:
            import yaml

            text = yaml.safe_dump(_to_plain_values(values), sort_keys=False, allow_unicode=True)
            _write_stream(text, sys.stdout)

    def show_error(self, finding: Finding) -> None:
        """Print an error for people, and with `json` for machines too."""
        if self.json:
            _print_json({"error": finding.to_json()})
        first, *rest = finding.lines()
        print_lines([StyledLine(((first, LEVEL_STYLES["error"]),)), *rest], sys.stderr)


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print with rich on a terminal, as plain text elsewhere."""
    if not stream.isatty():
        texts = [text for line in lines for text in (line.lines() if isinstance(line, Table) else [plain_text(line)])]
        _write_stream("".join(f"{escape_control_characters(text)}\n" for text in texts), stream)
        return
    from rich.console import Console

    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    for line in lines:
        if isinstance(line, Table):
            console.print(_build_rich_table(line))
        else:
            # The terminal wraps texts itself, so that they can be copied whole; tables fold their cells.
            console.print(_build_rich_text(line), soft_wrap=True)


def escape_control_characters(text: str) -> str:
    """The text with control characters spelled out, so that no file can control the terminal."""
    return text.translate(_CONTROL_ESCAPES)


@contextlib.contextmanager
def enable_terminal_prompts(before_prompt: Callable[[], None], *, silent: bool) -> Iterator[None]:
    """Let the person at the terminal answer a command's questions; without a terminal they stay unanswered.

    `before_prompt` is called before each question, so that no bar is drawn over it.
    """
    if silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield
        return

    def read_answer(lines: Sequence[Line], prompt: str) -> str:
        before_prompt()
        print_lines(lines, sys.stderr)
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    with progress.use_prompt_callbacks(
        lambda lines, question: read_answer(lines, f"{question} [y/N] ").lower() in YES_ANSWERS,
        lambda lines, question: read_answer(lines, f"{question} "),
    ):
        yield


def _print_json(value: Mapping[str, Any]) -> None:
    # Escapes instead of letters where the stream could not encode them.
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(_to_plain_values(value), ensure_ascii=ascii_only, allow_nan=False, indent=2)
    _write_stream(text + "\n", sys.stdout)


def _write_stream(text: str, stream: TextIO) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has closed the pipe. Without this Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _to_plain_values(value: Any) -> Any:
    """Plain values for JSON and YAML; paths become absolute, so that they mean the same from any folder."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_values(item) for item in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def _build_rich_text(line: TableCell) -> Text:
    from rich.text import Text

    parts = line.parts if isinstance(line, StyledLine) else ((line, ""),)
    return Text.assemble(*((escape_control_characters(text), style) for text, style in parts))


def _build_rich_table(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    rich_table = RichTable(title=table.title or None, title_justify="left")
    for number, column in enumerate(table.columns):
        rich_table.add_column(column, justify="right" if table.numeric(number) else "left", overflow="fold")
    for row in table.rows:
        rich_table.add_row(*map(_build_rich_text, row))
    return rich_table


class ProgressTask:
    """One task that the library has opened."""

    def __init__(self, name: str, total: int | None, done: int = 0, started: float | None = None) -> None:
        self.name, self.total, self.done = name, total, done
        self.started = active_seconds() if started is None else started
        # When the first part was done, and how large it was. The time before it also contains the task's start-up.
        self.first: tuple[float, int] | None = None

    def advance(self, amount: int) -> None:
        self.done += amount
        if self.first is None and self.done:
            self.first = (active_seconds(), self.done)

    @property
    def age_seconds(self) -> float:
        return active_seconds() - self.started

    def seconds_left(self) -> float | None:
        """Time left at the measured pace; None while there is no reliable measurement.

        Measured from the end of the first part on. Where the parts are large, the first one is enough.
        """
        # A wrong time is worse than none: nothing is spoken before there is something to measure.
        if not self.total or self.first is None:
            return None
        at, done = self.first
        seconds, parts = active_seconds() - at, self.done - done
        if parts <= 0 or seconds < MIN_PACE_SECONDS:
            if self.done < MIN_PACE_SHARE * self.total:
                return None
            seconds, parts = self.age_seconds, self.done
        return seconds * max(self.total - self.done, 0) / parts


def format_progress(job: ProgressTask) -> str:
    """A task's progress in words: the share done and the time left, as far as they are known."""
    if not job.total:
        return f"{job.done:,} so far" if job.done else "working"
    left = job.seconds_left()
    return f"{job.done / job.total:.0%}" + (f", {left:.0f} s left" if left is not None else "")


class ProgressReporter:
    """The listener of `core.progress`: passes long tasks and run events to a display.

    One thread polls all tasks and draws everything. So advancing a task costs the command one addition, reporting an
    event one queue entry, and a terminal that hangs blocks nobody.
    """

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
        self.look()  # what was queued since the thread last looked
        with self._drop_broken_display():
            self._display.close()

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Queue an event of a run. Takes no lock: a signal handler may call it."""
        # Appending to a deque is atomic; the thread that draws takes events from its other end.
        self._events.append(lambda: self._display.report(kind, step, values))
        self._begin()

    @contextlib.contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Open one task; yields the function that advances it."""
        job = ProgressTask(name, total)
        self._jobs.append(job)
        self._begin()
        try:
            yield job.advance
        finally:
            self._jobs.remove(job)
            self._events.append(lambda: self._display.finish(job))

    def look(self) -> None:
        """Show queued events, and every task that is older than the patience."""
        active_seconds()  # read the clock at every poll: only then does it notice a suspended process
        with self._draw_lock, self._drop_broken_display():
            while self._events:
                self._events.popleft()()
            for job in list(self._jobs):
                if job.age_seconds >= self._patience_seconds:
                    self._display.update(job)
            self._display.refresh()

    @contextlib.contextmanager
    def _drop_broken_display(self) -> Iterator[None]:
        """A stream that cannot be written to any more (a closed pipe) ends the display, never the command."""
        try:
            yield
        except OSError:
            self._display = ProgressDisplay()

    def _begin(self) -> None:
        def poll() -> None:
            while not self._closing.wait(POLL_SECONDS):
                self.look()

        if self._thread is None:  # most commands end without one
            self._thread = threading.Thread(target=poll, name="progress", daemon=True)
            self._thread.start()


class ProgressDisplay:
    """How tasks and runs are shown. This one shows nothing; subclasses draw bars or write lines."""

    view: TrainView | None = None
    """The view of a training run, once one has begun."""

    def update(self, job: ProgressTask) -> None:
        """Show how far a task is; called several times a second."""

    def finish(self, job: ProgressTask) -> None:
        """The task has ended; it may never have been shown."""

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Show an event of a run."""

    def refresh(self) -> None:
        """All updates of this poll were given."""

    def close(self) -> None:
        """No more tasks follow."""


class LineDisplay(ProgressDisplay):
    """Plain lines for logs: one when a task first shows, then one every ten seconds, and one at its end."""

    def __init__(self, stream: TextIO, every_seconds: float = LINE_INTERVAL_SECONDS) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._printed: dict[ProgressTask, float] = {}

    def update(self, job: ProgressTask) -> None:
        now = time.monotonic()
        if job not in self._printed or now - self._printed[job] >= self._every_seconds:
            self._printed[job] = now
            self._print(f"{job.name}: {format_progress(job)}")

    def finish(self, job: ProgressTask) -> None:
        if self._printed.pop(job, None) is not None:
            self._print(f"{job.name}: {job.age_seconds:.0f} s")

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if kind == CHAPTER_EVENT:
            self.close()
            self.view = None
            print_lines(values["lines"], self._stream)
            return
        if self.view is None:
            self.view = self._open_train_view()
        self.view.report(kind, step, values)

    def close(self) -> None:
        if self.view is not None:
            self.view.close()
        self._stream.flush()

    def _open_train_view(self) -> TrainView:
        from voxgraft.cli.train_view import TrainLineView

        return TrainLineView(self._stream)

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class BarDisplay(LineDisplay):
    """rich bars, which vanish when their task ends; during a run its live view, with the tasks inside it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._progress: Progress | None = None
        self._bars: dict[ProgressTask, TaskID] = {}
        self._words: dict[ProgressTask, str] = {}

    def update(self, job: ProgressTask) -> None:
        if self.view is not None:
            self._words[job] = f"{job.name}: {format_progress(job)}"
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            name, left_column = (
                TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[left]")
            )
            columns = (name, BarColumn(), TaskProgressColumn(), left_column)
            self._progress = Progress(*columns, console=Console(file=self._stream), transient=True)
            self._progress.start()
        if job not in self._bars:
            self._bars[job] = self._progress.add_task(job.name, total=job.total, completed=job.done, left="")
        seconds_left = job.seconds_left()
        left_text = f"{format_duration(seconds_left)} left" if seconds_left is not None else ""
        self._progress.update(self._bars[job], completed=job.done, left=left_text)

    def finish(self, job: ProgressTask) -> None:
        self._words.pop(job, None)
        if self._progress is not None and job in self._bars:
            self._progress.remove_task(self._bars.pop(job))
            if not self._bars:
                self._stop_bars()  # without a bar rich would still draw, over the questions of a command

    def refresh(self) -> None:
        if self.view is not None:
            self.view.refresh(tuple(self._words.values()))

    def close(self) -> None:
        self._stop_bars()
        super().close()

    def _open_train_view(self) -> TrainView:
        from voxgraft.cli.train_view import TrainLiveView

        self._stop_bars()  # a terminal has room for one live display
        return TrainLiveView(self._stream)

    def _stop_bars(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._bars = None, {}
