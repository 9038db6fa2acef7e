"""A run's folder: one process at a time changes it, and nothing a dead process leaves behind is in the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import Child, as_nobody, child, hold, hold_with_worker, read_only, take, take_on_a_full_disk
from voxgraft.core.errors import FileError
from voxgraft.core.run import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def started(function: object, run: RunFolder, ready: Path) -> Child:
    process = child(function, run, ready)  # type: ignore[arg-type]
    while not ready.exists() or (function is hold_with_worker and not ready.read_text()):
        time.sleep(0.005)
    return process


@pytest.fixture
def holder(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    process = started(hold, run, tmp_path_factory.mktemp("ready") / "ready")
    yield process
    process.process.kill()
    process.wait()


def refused(run: RunFolder) -> FileError:
    with pytest.raises(FileError) as caught, run.lock():
        pass
    return caught.value


def test_every_place_is_inside_the_run(run: RunFolder) -> None:
    places = (run.settings, run.card, run.graft, run.data, run.journal, run.steps, run.samples, run.eval, run.export)
    assert [place.relative_to(run.path).as_posix() for place in (*places, run.lock_file)] == (
        "run.yaml card.json graft data journal.jsonl steps samples eval export .lock".split()
    )
    assert run.step(500) == run.steps / "step-000500"
    assert run.step(12_345_678).name == "step-12345678"
    assert run.data_set("train") == run.data / "train"


def test_a_second_trainer_is_reported_who_is_at_work_where_and_since_when(run: RunFolder, holder: Child) -> None:
    error = refused(run)
    assert error.code == "run-locked"
    for part in (f"process {holder.process.pid} on {socket.gethostname()}", time.strftime("since %Y-%m-"), "train"):
        assert part in error.finding.found
    assert f"kill {holder.process.pid}" in error.finding.cure


def test_the_lock_of_a_killed_trainer_blocks_nobody(run: RunFolder, holder: Child) -> None:
    os.kill(holder.process.pid, signal.SIGKILL)
    assert holder.wait() == -signal.SIGKILL
    assert json.loads(run.lock_file.read_text())["pid"] == holder.process.pid  # stale, and of no account
    with run.lock("clean"):
        assert json.loads(run.lock_file.read_text())["pid"] == os.getpid()
        assert json.loads(run.lock_file.read_text())["verb"] == "clean"


def test_a_worker_that_outlives_its_trainer_does_not_hold_the_lock(run: RunFolder, tmp_path: Path) -> None:
    trainer = started(hold_with_worker, run, tmp_path / "worker")
    assert refused(run).code == "run-locked"
    os.kill(trainer.process.pid, signal.SIGKILL)
    trainer.process.join()
    worker = int((tmp_path / "worker").read_text())
    try:
        os.kill(worker, 0)  # it is alive
        assert take(run) == "taken"
    finally:
        os.kill(worker, signal.SIGKILL)


def test_one_process_cannot_lock_a_run_twice(run: RunFolder) -> None:
    with run.lock():
        assert f"process {os.getpid()} " in refused(run).finding.found
    assert take(run) == "taken"


def test_the_lock_is_given_back_when_training_fails(run: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), run.lock():
        _ = 1 / 0
    assert take(run) == "taken"
    assert run.lock_file.read_text() == ""


def test_readers_that_have_the_files_open_are_not_in_the_way(run: RunFolder) -> None:
    run.lock_file.touch()
    folder = os.open(run.path, os.O_RDONLY)
    with run.lock_file.open():
        assert child(take, run).wait() == 0
    os.close(folder)


@pytest.mark.parametrize("left", [b"", b"no JSON", b"[1]", b"\xff" * 5000, b'{"pid": "x"}'])
def test_whatever_stands_in_the_lock_file_only_the_lock_counts(run: RunFolder, left: bytes) -> None:
    run.lock_file.write_bytes(left)
    with run.lock():
        run.lock_file.write_bytes(left)
        assert refused(run).code == "run-locked"
    assert take(run) == "taken"


def test_a_link_in_place_of_the_lock_is_refused_and_its_target_left_alone(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    run.lock_file.symlink_to("precious")
    assert refused(run).code == "not-a-file"
    assert (tmp_path / "precious").read_text() == "text"


def test_a_folder_or_pipe_in_place_of_the_lock_is_refused(run: RunFolder) -> None:
    run.lock_file.mkdir()
    assert refused(run).code == "file-unwritable"
    run.lock_file.rmdir()
    os.mkfifo(run.lock_file)
    assert refused(run).code == "not-a-file"


def test_a_run_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    assert refused(RunFolder(tmp_path / "nowhere")).code == "file-missing"
    assert not (tmp_path / "nowhere").exists()


def test_a_full_disk_does_not_keep_anybody_from_the_lock(run: RunFolder) -> None:
    process = child(take_on_a_full_disk, run)
    process.wait()
    assert process.answer == "taken"


def test_a_read_only_run_is_refused_with_the_reason() -> None:
    with tempfile.TemporaryDirectory() as name:
        with read_only(Path(name)):
            process = child(as_nobody, take, RunFolder(Path(name)))
            process.wait()
        assert process.answer == "file-unwritable"
        assert not (Path(name) / ".lock").exists()


def test_neither_the_run_nor_the_journal_needs_torch() -> None:
    program = "import sys, voxgraft.core.run, voxgraft.checkpoints.steps, voxgraft.core.files\n"
    subprocess.run([sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"], check=True)
