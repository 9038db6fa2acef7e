"""A run that trains, as it is seen: on real terminals of several widths, in logs, interrupted from the keyboard, unread."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.support.fixtures import Fixtures
from tests.support.trainers import EVERY, OPTIONS, Place, loop_of
from voxgraft.cli import CliCommand, run_cli
from voxgraft.cli.console import BarDisplay, LineDisplay, ProgressReporter
from voxgraft.cli.train_view import (
    STOPPING_MESSAGE,
    DownsampledCurve,
    TrainProgress,
    braille_chart,
    render_training,
    sparkline,
)
from voxgraft.config.base import Settings
from voxgraft.core import progress
from voxgraft.training.callbacks import Callback, LogCallback
from voxgraft.training.trainer import Trainer

OPENING = ["run:       amharic: adds am to chatterbox", "base:      t3.safetensors, sha256 0123"]
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-9]")
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def place(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


def small_loop(place: Place, run: Path, steps: int = 6) -> Trainer:
    """A real training that tells what it does, as the command has it."""
    loop = loop_of(place, run, replace(OPTIONS, steps=steps), replace(EVERY, valid_every=2, save_every=3))
    loop.callbacks += [LogCallback(progress.report_event), Status()]
    return loop


class Status(Callback):
    def on_validation(self, step: int, _metrics: object) -> dict[str, str]:
        return {"state": "too early" if step < 4 else "learning", "why": f"step {step}"}


def train(loop: Trainer) -> None:
    values = {"lines": OPENING, "steps": loop.stepper.options.steps, "entries": loop.journal.read()}
    progress.report_event("opening", 0, values)
    loop.train(0)


@pytest.fixture(scope="module")
def reported(place: Place, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, Mapping[str, Any]]]:
    """Everything that a real training tells, in order."""
    heard: list[tuple[str, int, Mapping[str, Any]]] = []

    class Ear:
        @contextlib.contextmanager
        def task(self, _name: str, _total: int | None) -> Iterator[Any]:
            yield lambda _amount: None

        def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
            heard.append((kind, step, values))

    with progress.use_progress_listener(Ear()):
        train(small_loop(place, tmp_path_factory.mktemp("told") / "run"))
    return heard


@dataclass
class Terminal:
    """A real one: what is written to `stream` comes out at the other end."""

    reader: int
    stream: TextIO
    seen: str = ""

    def read(self, seconds: float = 0.0) -> None:
        while select.select([self.reader], [], [], seconds)[0]:
            try:
                part = os.read(self.reader, 65536)
            except OSError:  # Linux's way to say that the terminal is closed
                break
            if not part:
                break
            self.seen += part.decode(errors="replace")  # a letter may come in two parts

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + DEADLINE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < until, self.seen[-3000:]
            time.sleep(0.01)


@contextlib.contextmanager
def terminal(columns: int = 80, rows: int = 40) -> Iterator[Terminal]:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with os.fdopen(writer, "w") as stream:
        found = Terminal(reader, stream)
        over = threading.Event()

        def pump() -> None:
            while not over.is_set():
                found.read(0.05)

        thread = threading.Thread(target=pump)
        thread.start()  # a terminal that nobody reads fills up
        try:
            yield found
        finally:
            over.set()
            thread.join()
    found.read()
    os.close(reader)


def plain(text: str) -> str:
    return CONTROLS.sub("", text).replace("\r", "")


def test_a_terminal_sees_the_opening_first_and_everything_after_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    loop = small_loop(place, tmp_path / "run")
    with (
        terminal() as screen,
        ProgressReporter(BarDisplay(screen.stream), 0) as board,
        progress.use_progress_listener(board),
    ):
        progress.report_event("finding", 0, {"code": "step-damaged", "found": "told before [am]", "level": "warning"})
        train(loop)
        loop.write("finding", 6, code="plateau", found="no \x1b[2J better", level="warning", cure="wait.")
        loop.write(
            "samples", 6, folder="samples/step-000006", spoken=[{"name": "am", "seconds": 1.25, "stopped": False}]
        )
        loop.write("interpolation", 6, share=0.5, speech_losses={"am": 2.5, "en": 1.0}, past_bound={}, chosen=True)
    seen = plain(screen.seen)
    places = [seen.index(text) for text in (*OPENING, "step 0: warning step-damaged: told before [am]", "step 6 of 6")]
    assert places == sorted(places)
    assert "step 6: warning plateau: no \\x1b[2J better" in seen
    assert "step 4: learning: step 4" in seen
    assert "step 6: samples in samples/step-000006: am 1.2 s (did not stop)" in seen
    assert "step 6: interpolation weight 0.5: speech loss am 2.5000, en 1.0000, chosen" in seen
    last = seen[seen.rindex("step 6 of 6") :]
    entry = [line for line in loop.journal.read() if line["kind"] == "valid"][-1]
    start = loop.journal.read()[0]
    for shown in ("held out", "step 0", "chance", f"{entry['speech_loss']:.3f}", f"{entry['text_loss']:.3f}", "saved"):
        assert shown in last
    assert f"{math.log(start['speech_classes']):.3f}" in last
    assert "tokens/s" in last
    assert "memory" in last


def test_one_interrupt_is_answered_while_the_step_goes_on(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    loop = small_loop(place, tmp_path / "run", steps=50)
    with (
        terminal() as screen,
        ProgressReporter(BarDisplay(screen.stream), 0) as board,
        progress.use_progress_listener(board),
    ):

        def interrupt(kind: str, step: int, _values: Mapping[str, Any]) -> None:
            if (kind, step) == ("step", 3):
                os.kill(os.getpid(), signal.SIGINT)
                screen.wait_for(STOPPING_MESSAGE)  # the step is not over before this returns

        loop.callbacks.append(LogCallback(interrupt))
        train(loop)
    assert loop.journal.read()[-1]["reason"] == "stopped"
    assert "ended: stopped on request" in plain(screen.seen)
    assert "saved" in plain(screen.seen)


def test_a_log_gets_a_line_for_every_logged_step_and_no_control_codes(
    reported: list[tuple[str, int, Mapping[str, Any]]],
) -> None:
    stream = io.StringIO()
    with ProgressReporter(LineDisplay(stream), 3600) as board:
        for kind, step, values in reported:
            board.report(kind, step, values)
        board.report("stopping", 6, {"signal": "SIGINT"})
    lines = stream.getvalue().splitlines()
    assert lines[:2] == OPENING
    assert "\x1b" not in stream.getvalue()
    steps = [line for line in lines if re.match(r"step \d+ of 6 ", line)]
    assert len(steps) == 6
    entry = next(values for kind, step, values in reported if (kind, step) == ("step", 4))
    assert f"text {entry['text_loss']:.4f}  speech {entry['speech_loss']:.4f}" in steps[3]
    held_out = [line for line in lines if "held out am" in line]
    assert len(held_out) == sum(kind == "valid" for kind, _, _ in reported)
    assert all("chance" in line and "step 0" in line and "text use" in line for line in held_out)
    assert sum(line.endswith("saved") for line in lines) == sum(kind == "saved" for kind, _, _ in reported)
    assert lines[-1] == f"step 6  {STOPPING_MESSAGE}"


class SmallSettings(Settings):
    """A command that trains."""

    place: Path
    """Where base and sets are."""
    run: Path
    """Where the run goes."""


@dataclass(frozen=True)
class Ended:
    step: int
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step}

    def lines(self) -> list[str]:
        return [f"ended at {self.step}"]


def small(settings: SmallSettings) -> Ended:
    loop = small_loop(Place("chatterbox", settings.place), settings.run, steps=2)
    train(loop)
    return Ended(2)


SMALL = CliCommand("small", SmallSettings, f"{__name__}:small", "Train a little.")


@pytest.mark.parametrize("flag", ["--json", "--quiet", "--dry-run"])
def test_silence_is_kept_where_it_is_asked_for(
    flag: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["small", "--place", str(place.folder), "--run", str(tmp_path / "run"), flag]
    assert run_cli(words, [SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    if flag == "--json":
        assert json.loads(captured.out) == {"step": 2}
    elif flag == "--quiet":
        assert captured.out == ""


def test_of_many_processes_only_the_first_says_something(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    for rank, says in (("3", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        run = tmp_path / f"run{rank}"
        assert run_cli(["small", "--place", str(place.folder), "--run", str(run)], [SMALL]) == 0
        captured = capsys.readouterr()
        assert bool(captured.out) is says
        assert bool(captured.err) is says


def test_without_a_terminal_the_lines_go_to_standard_error_and_the_result_to_standard_output(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["small", "--place", str(place.folder), "--run", str(tmp_path / "run")], [SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.out == "ended at 2\n"
    assert captured.err.startswith(OPENING[0])
    assert "step 2 of 2 (100%)" in captured.err


def test_a_reader_that_has_gone_does_not_stop_training(place: Place, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    loop = small_loop(place, tmp_path / "run")
    stream = os.fdopen(writer, "w", buffering=1)
    with ProgressReporter(LineDisplay(stream), 0) as board, progress.use_progress_listener(board):
        train(loop)
    assert loop.journal.read()[-1]["reason"] == "done"
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def watched(reported: list[tuple[str, int, Mapping[str, Any]]], until: int | None = None) -> TrainProgress:
    found = TrainProgress()
    for kind, step, values in reported[:until]:
        found.add(kind, step, values)
    return found


def drawn(found: TrainProgress, columns: int, rows: int, **options: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=columns, height=rows, force_terminal=True, color_system="standard", **options)
    long = "a reason that is reported at length, so that it takes more than one row of a narrow terminal"
    found.history.add("valid", found.step, {"set": "en", "speech_loss": 3.0, "state": "stuck", "why": long})
    console.print(render_training(found, console, jobs=["saving step-000006: 40%, 2 s left"]))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("rows", [20, 40])
def test_the_picture_fits_its_terminal(
    columns: int, rows: int, reported: list[tuple[str, int, Mapping[str, Any]]]
) -> None:
    for until in (1, 3, len(reported) // 2, len(reported)):
        lines = plain(drawn(watched(reported, until), columns, rows)).splitlines()
        assert all(cell_len(line) <= columns for line in lines)
        assert "…" not in "".join(lines)
        assert len(lines) <= rows


def test_a_low_terminal_gets_small_curves_and_a_high_one_large_ones(
    reported: list[tuple[str, int, Mapping[str, Any]]],
) -> None:
    low, high = plain(drawn(watched(reported), 80, 20)), plain(drawn(watched(reported), 80, 40))
    assert re.search("[▁-█]{4}", low)
    assert not re.search("[\u2801-\u28ff]", low)
    assert re.search("[\u2801-\u28ff]{4}", high)
    assert "┄ chance" in high or "chance, step 0" in high or "┄ step 0" in high


def test_no_colour_is_no_colour(
    reported: list[tuple[str, int, Mapping[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COLOURS.search(drawn(watched(reported), 80, 40))
    monkeypatch.setenv("NO_COLOR", "1")
    without = drawn(watched(reported), 80, 40)
    assert not COLOURS.search(without)
    assert "stuck" in without


def test_a_terminal_without_unicode_is_given_none(reported: list[tuple[str, int, Mapping[str, Any]]]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=40)
    console.print(render_training(watched(reported), console, unicode=False))
    assert not re.search("[▁-█\u2800-\u28ff┄]", stream.getvalue())


def test_the_time_left_is_measured_over_twenty_steps_and_not_guessed_before() -> None:
    now = 100.0
    found = TrainProgress(clock=lambda: now)
    found.add("opening", 0, {"lines": [], "steps": 100})
    for step in range(1, 41):
        if step == 20:
            assert found.format_time_left() == "time known after 20 steps"
        found.add("doing", step, {"what": "step"})
        now += 3.0 if step > 1 else 500.0  # the first one compiles
    assert found.format_time_left() == "3 min 0 s left"


def test_a_long_run_keeps_little_in_memory(reported: list[tuple[str, int, Mapping[str, Any]]]) -> None:
    line = next(values for kind, _, values in reported if kind == "step")
    found = TrainProgress()
    for step in range(1, 5_001):
        found.add("step", step, {**line, "speech_loss": 9.0 - step / 1000})
    assert len(found.history.steps) <= 20
    assert "clips" not in found.history.steps[5_000]
    points = found.curves["speech_loss"].points
    assert 512 <= len(points) <= 1024
    assert points == sorted(points, reverse=True)
    assert found.curves["speech_loss"].last == 4.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=3000))
def test_a_thinned_curve_keeps_the_mean_and_stays_short(values: list[float]) -> None:
    curve = DownsampledCurve()
    for value in values:
        curve.add(value)
    assert len(curve.points) <= 1024
    assert curve.last == (values[-1] if values else None)
    if len(values) < 1024:
        assert curve.points == values
    elif values:
        assert min(values) - 1e-6 <= min(curve.points) <= max(curve.points) <= max(values) + 1e-6


@given(
    st.lists(st.floats(-1e6, 1e6), max_size=80),
    st.integers(2, 60),
    st.integers(2, 10),
    st.dictionaries(st.sampled_from(["chance", "step 0"]), st.floats(-1e6, 1e6)),
)
def test_a_chart_has_the_size_that_it_was_given(
    values: list[float], width: int, height: int, levels: dict[str, float]
) -> None:
    rows = braille_chart(values, width, height, levels)
    assert len(rows) == height
    assert all(len(row) == width for row in rows)
    assert len(sparkline(values, width)) == min(width, len(values))
