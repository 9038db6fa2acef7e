"""Progress: shown after a while, in the form that the stream takes, and never where it was not wanted."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from voxgraft.cli import CliCommand, console, run_cli
from voxgraft.config.base import Settings
from voxgraft.core import progress

SHOWN = threading.Event()


class Listening(io.StringIO):
    """A stream that tells when something was written to it."""

    def write(self, text: str) -> int:
        SHOWN.set()
        return super().write(text)


class SlowSettings(Settings):
    """A command that is slow."""

    wait_seconds: float = 30
    """How long it waits at most for its progress to show."""


@dataclass(frozen=True)
class Done:
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {}

    def lines(self) -> list[str]:
        return []


def slow(settings: SlowSettings) -> Done:
    with progress.progress_task("hashing base.pt", 200) as advance:
        advance(50)
        SHOWN.wait(settings.wait_seconds)
    return Done()


SLOW = CliCommand("slow", SlowSettings, f"{__name__}:slow", "Be slow.")


def watched_stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error as a stream of ours, and no patience, so that progress shows at once."""
    SHOWN.clear()
    stream = Listening()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("voxgraft.cli.app.SHOW_AFTER_SECONDS", 0.0)
    return stream


def test_without_a_terminal_a_long_job_writes_lines_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = watched_stderr(monkeypatch)
    assert run_cli(["slow"], [SLOW]) == 0
    first, last = stderr.getvalue().splitlines()
    assert first.startswith("hashing base.pt: 25%")
    assert last.startswith("hashing base.pt: ")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("flag", ["--quiet", "--json"])
def test_progress_is_silent_when_it_is_not_wanted(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = watched_stderr(monkeypatch)
    assert run_cli(["slow", flag, "--wait-seconds", "0.5"], [SLOW]) == 0
    assert stderr.getvalue() == ""


def test_a_job_shows_only_when_patience_is_over() -> None:
    stream = io.StringIO()
    with (
        console.ProgressReporter(console.LineDisplay(stream), patience_seconds=3600) as board,
        board.task("quick", 10) as advance,
    ):
        advance(5)
        board.look()
    assert stream.getvalue() == ""


def test_lines_come_once_in_a_while_and_not_at_every_look() -> None:
    stream = io.StringIO()
    with (
        console.ProgressReporter(console.LineDisplay(stream), patience_seconds=0) as board,
        board.task("long", None) as advance,
    ):
        for _ in range(50):
            advance(1)
            board.look()
        assert stream.getvalue() == "long: 1 so far\n"


def test_a_terminal_gets_a_bar_for_every_job_and_is_left_clean() -> None:
    reader, writer = pty.openpty()
    with (
        os.fdopen(writer, "w") as stream,
        console.ProgressReporter(console.BarDisplay(stream), patience_seconds=0) as board,
        board.task("reading [am].txt", 8) as outer,
        board.task("counting", None),
    ):
        outer(4)
        board.look()
    printed = ""
    with contextlib.suppress(OSError):  # Linux's way to say that the terminal is closed
        while part := os.read(reader, 65536):
            printed += part.decode()
    os.close(reader)
    assert "reading [am].txt" in printed
    assert "50%" in printed
    assert "counting" in printed
    after_the_last_erasure = printed.rpartition("\x1b[2K")[2]
    assert after_the_last_erasure.replace("\x1b[?25h", "").strip() == ""


def test_time_left_is_reported_only_after_a_measurement() -> None:
    job = console.ProgressTask("planning new rows", 1000, started=progress.active_seconds() - 4)
    job.advance(1)
    assert console.format_progress(job) == "0%", "the start of a job says nothing about its pace"
    job.first, job.done = (progress.active_seconds() - 2.5, 1), 501
    assert 2 <= (job.seconds_left() or 0) <= 3
    large = console.ProgressTask("importing sources", 4, started=progress.active_seconds() - 60)
    large.advance(1)
    assert 170 <= (large.seconds_left() or 0) <= 190, "the first of few parts is a measurement"


@pytest.mark.long
def test_the_time_for_which_a_process_was_suspended_is_not_counted_as_its_pace() -> None:
    code = (
        "import time\n"
        "from voxgraft.core import progress\n"
        "from voxgraft.cli import console as bars\n"
        "progress.SUSPENDED_SECONDS = 1.0\n"
        "with bars.ProgressReporter(bars.ProgressDisplay(), 0.0) as board, board.task('training', 100) as advance:\n"
        "    (job,) = board._jobs\n"
        "    for part in range(12):\n"
        "        advance(1)\n"
        "        time.sleep(0.15)\n"
        "        if part == 5:\n"
        "            print('now', flush=True)\n"
        "            time.sleep(0.5)\n"
        "    print(job.seconds_left(), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "now\n"
    child.send_signal(signal.SIGSTOP)
    time.sleep(4)
    child.send_signal(signal.SIGCONT)
    left = float(child.communicate(timeout=60)[0])
    assert left < 35, "88 parts at 0.2 s; with the suspension it would be 50 s"


@pytest.mark.parametrize(
    ("total", "done", "text"), [(None, 0, "working"), (None, 3400, "3,400 so far"), (0, 0, "working"), (10, 0, "0%")]
)
def test_a_job_of_unknown_size_or_pace_says_what_is_known(total: int | None, done: int, text: str) -> None:
    assert console.format_progress(console.ProgressTask("job", total, done)) == text
