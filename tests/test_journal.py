"""The journal: what was written is read, whatever happened to the writer, and a cut is never seen half done."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.runs import (
    as_nobody,
    child,
    names_in,
    read_only,
    write_and_cut_without_end,
    write_once,
    write_until_full,
    write_without_end,
)
from voxgraft.core.errors import FileError
from voxgraft.core.run import JournalEntry, RunJournal, strip_clock_fields

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\ud800" not in json.dumps(value, ensure_ascii=False))


@pytest.fixture
def journal(tmp_path: Path) -> RunJournal:
    return RunJournal(tmp_path / "journal.jsonl")


def written(journal: RunJournal, steps: int) -> list[JournalEntry]:
    for step in range(1, steps + 1):
        journal.write("step", step, loss=1 / step)
    return journal.read()


def steps_of(entries: list[JournalEntry]) -> list[int]:
    return [entry["step"] for entry in entries]


def refused(action: Any, *arguments: Any) -> FileError:
    with pytest.raises(FileError) as caught:
        action(*arguments)
    return caught.value


# ---- writing and reading ------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(min_size=1).map(lambda name: f"x{name}"), JSON, max_size=4))
def test_values_are_read_as_they_were_written(values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, RunJournal(Path(folder) / "j") as journal:
        journal.write("valid", 7, **values)
        (entry,) = journal.read()
    assert strip_clock_fields(entry) == {"kind": "valid", "step": 7, **strip_clock_fields(values)}


def test_numbers_that_are_not_finite_become_null(journal: RunJournal) -> None:
    journal.write("step", 1, loss=math.nan, deep={"rates": [1.5, math.inf, (-math.inf,)]})
    (entry,) = journal.read()
    assert (entry["loss"], entry["deep"]) == (None, {"rates": [1.5, None, [None]]})


def test_what_depends_on_the_clock_can_be_left_out_of_a_comparison(journal: RunJournal) -> None:
    journal.write("step", 1, loss=2.0, tokens_per_second=1e5, wall_left_seconds=3)
    (entry,) = journal.read()
    assert abs(entry["wall_time"] - time.time()) < 3600
    assert strip_clock_fields(entry) == {"kind": "step", "step": 1, "loss": 2.0}


def test_half_a_character_does_not_stop_a_run(journal: RunJournal) -> None:
    journal.write("finding", 1, where="clip-\udce4.wav")
    assert journal.read()[0]["where"] == "clip-?.wav"


def test_a_run_that_never_trained_has_an_empty_journal_and_reading_makes_none(journal: RunJournal) -> None:
    assert journal.read() == []
    assert journal.truncate_after(0) == 0
    journal.sync()
    assert not journal.path.exists()


def test_another_journal_goes_on_where_the_first_stopped(journal: RunJournal) -> None:
    written(journal, 3)
    journal.close()
    RunJournal(journal.path).write("start", 3)
    assert steps_of(journal.read()) == [1, 2, 3, 3]


def test_a_hundred_thousand_lines_are_read(journal: RunJournal) -> None:
    line = json.dumps({"kind": "step", "step": 5, "loss": 2.5, "rates": {"rows": 1e-3, "adapter": 2e-4}})
    journal.path.write_text(f"{line}\n" * 100_000)
    assert len(journal.read()) == 100_000


# ---- torn and broken lines ----------------------------------------------------------------------------------


def test_a_journal_torn_at_any_byte_loses_its_last_line_and_nothing_else(journal: RunJournal) -> None:
    written(journal, 3)
    data = journal.path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data)):
        journal.path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        assert steps_of(RunJournal(journal.path).read()) == [1, 2, 3][:whole]
        with RunJournal(journal.path) as again:
            again.write("start", 9)
        assert steps_of(journal.read()) == [*[1, 2, 3][:whole], 9]


def test_a_torn_line_longer_than_any_block_is_cut(journal: RunJournal) -> None:
    written(journal, 2)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"kind": "step", "x": "' + b"x" * 300_000)
    journal.close()
    assert len(journal.read()) == 2
    journal.write("start", 2)
    assert journal.path.read_bytes().startswith(whole + b'{"kind": "start"')


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b'"text"', b'{"kind": "step"}', b'{"kind": 1, "step": 1}', b'{"kind": "x", "step": true}',
             b'{"kind": "x", "step": 1, "loss": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}", b"\0" * 90]
)  # fmt: skip
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(journal: RunJournal, line: bytes) -> None:
    written(journal, 2)
    first, second = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(first + line + b"\n" + second)
    for action in (journal.read, lambda: journal.truncate_after(2)):
        error = refused(action)
        assert error.code == "journal-broken"
        assert "line 2 " in error.finding.found
    assert len(error.finding.found) < 1000


@pytest.mark.long
def test_a_writer_killed_at_any_time_leaves_whole_lines_without_a_gap(journal: RunJournal) -> None:
    for seconds in (0.0, 0.002, 0.01, 0.03, 0.05):
        process = child(write_without_end, journal.path)
        while not journal.path.exists() or journal.path.stat().st_size == 0:
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(process.process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        steps = steps_of(journal.read())
        assert steps == list(range(len(steps)))
        journal.write("start", len(steps))
        assert steps_of(journal.read()) == [*steps, len(steps)]
        journal.close()
        journal.path.unlink()


# ---- cutting ------------------------------------------------------------------------------------------------


def test_lines_after_the_restored_step_are_cut_and_the_rest_stays_byte_for_byte(journal: RunJournal) -> None:
    journal.write("start", 0)
    written(journal, 5)
    journal.write("valid", 3)
    before = journal.path.read_bytes().splitlines(keepends=True)
    assert journal.truncate_after(3) == 2
    assert journal.path.read_bytes() == b"".join([*before[:4], before[6]])
    journal.write("step", 4)
    assert steps_of(journal.read()) == [0, 1, 2, 3, 3, 4]
    assert journal.truncate_after(9) == 0
    assert journal.truncate_after(-1) == 6
    assert journal.read() == []


def test_an_end_spoilt_by_a_power_cut_is_cut_with_the_rest(journal: RunJournal) -> None:
    written(journal, 4)
    first, second, *_ = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(first + second + b"\0\0\0\n" + b'{"kind": "step", "step": 9}\n')
    assert journal.truncate_after(2) == 2
    assert steps_of(journal.read()) == [1, 2]


def test_a_writer_does_not_lose_lines_to_a_file_that_another_has_cut(journal: RunJournal) -> None:
    written(journal, 5)
    RunJournal(journal.path).truncate_after(2)
    journal.write("step", 3)
    assert steps_of(journal.read()) == [1, 2, 3]


def test_a_linked_journal_is_cut_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "j").symlink_to("big/j")
    journal = RunJournal(tmp_path / "j")
    written(journal, 3)
    journal.truncate_after(1)
    assert (tmp_path / "j").is_symlink()
    assert names_in(tmp_path / "big") == ["j"]


@pytest.mark.long
def test_readers_never_see_a_cut_half_done(journal: RunJournal) -> None:
    written(journal, 100)
    process = child(write_and_cut_without_end, journal.path)
    try:
        longest = 0
        for _ in range(300):
            steps = steps_of(journal.read())
            assert steps == list(range(1, len(steps) + 1))
            assert len(steps) >= 100
            longest = max(longest, len(steps))
        while longest == 100 and process.process.is_alive():
            longest = len(journal.read())
        assert longest > 100
    finally:
        process.process.kill()
        process.wait()


@pytest.mark.long
def test_a_cut_killed_at_any_time_leaves_the_journal_as_it_was_or_cut(journal: RunJournal) -> None:
    chance = random.Random(0)
    written(journal, 100)
    kept = journal.path.read_bytes()
    journal.close()
    for _ in range(12):
        process = child(write_and_cut_without_end, journal.path)
        while journal.path.stat().st_size == len(kept) and process.process.is_alive():
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        os.kill(process.process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert journal.path.read_bytes().startswith(kept)
        steps = steps_of(journal.read())
        assert steps == list(range(1, len(steps) + 1))
        (journal.path.parent / ".journal.jsonl.abcd1234.part").write_bytes(b"left by a killed cut")
        journal.write("step", 101)
        journal.truncate_after(100)
        journal.close()
        assert journal.path.read_bytes() == kept
        assert names_in(journal.path.parent) == ["journal.jsonl"]


# ---- bad places ---------------------------------------------------------------------------------------------


@pytest.mark.long(fast="1")
@pytest.mark.parametrize("room", [1, 150, 1_000, 4_096])
def test_a_line_that_a_full_disk_has_no_room_for_leaves_no_trace(journal: RunJournal, room: int) -> None:
    process = child(write_until_full, journal.path, room)
    process.wait()
    code, steps = process.answer
    assert code == "file-size-limit"
    assert journal.path.read_bytes().count(b"\n") == steps
    assert journal.path.read_bytes().endswith(b"\n" if steps else b"")
    journal.write("step", steps)
    assert steps_of(journal.read()) == list(range(steps + 1))


def test_a_journal_that_cannot_be_written_is_an_error() -> None:
    with tempfile.TemporaryDirectory() as name:
        written(RunJournal(Path(name) / "j"), 2)
        with read_only(Path(name)):
            process = child(as_nobody, write_once, Path(name) / "j")
            process.wait()
        assert process.answer == "file-unwritable"
        assert len(RunJournal(Path(name) / "j").read()) == 2


def test_a_folder_or_pipe_in_place_of_the_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe", "folder", "pipe"):
        assert refused(RunJournal(tmp_path / name).write, "step", 1).code in ("file-unwritable", "not-a-file")
        assert refused(RunJournal(tmp_path / name).read).code == "not-a-file"
