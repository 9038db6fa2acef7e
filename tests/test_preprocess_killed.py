"""Preparing that is really killed, command or worker, continues where it was and ends with the bytes of one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import CLIPS, Preparing, prepared, preparing
from voxgraft.models import get_family
from voxgraft.preprocess import command
from voxgraft.preprocess.encode import EncodeJob, EncodeWorkerConfig, encode_locally

ALONE = "--batch-seconds=0.1"
"""Every clip is a batch of its own."""
PATIENCE_SECONDS = 120
TRIES = 5


@pytest.fixture
def untouched(fixtures: Fixtures, tmp_path: Path) -> dict[str, bytes]:
    """The sets of a `prepare` that nobody has disturbed, with every clip alone."""
    place = Preparing(fixtures.folder("prepared/alone", lambda at: preparing(fixtures, at).prepare(*alone())))
    return place.sets()


def alone(workers: int = 1) -> tuple[str, str]:
    return ALONE, f"--workers={workers}"


def batches(place: Preparing) -> list[Path]:
    return list((place.run.data / "preparing").glob("*.safetensors"))


def wait_until(what: str, is_so: object) -> None:
    assert callable(is_so)
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def workers_of(process: int) -> list[int]:
    """Worker processes that another has started."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if b"voxgraft.preprocess.encode" in words and int(parent) == process:
            found.append(int(folder.name))
    return found


def test_a_killed_prepare_goes_on_where_it_was_and_ends_with_the_same_bytes(
    fixtures: Fixtures, tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    place = killed_in_the_middle(fixtures, tmp_path)
    kept = len(batches(place))
    assert not place.run.data_set("train").exists()
    assert place.prepare(*alone()).num_encoded == CLIPS - kept
    assert place.sets() == untouched
    assert batches(place) == []


def killed_in_the_middle(fixtures: Fixtures, folder: Path) -> Preparing:
    """A run whose preparing was killed with some clips done and others not."""
    for attempt in range(TRIES):
        place = preparing(fixtures, folder / str(attempt))
        command = [sys.executable, "-m", "voxgraft", *place.words(*alone())]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until("no batch was written", lambda: len(batches(place)) >= 2 or process.poll() is not None)  # noqa: B023
        process.kill()
        # On a busy machine the command may have come to its end meanwhile.
        if process.wait() == -signal.SIGKILL and 2 <= len(batches(place)) < CLIPS:
            return place
    raise AssertionError("it always came to its end before it was killed")


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_nobody_notices(
    fixtures: Fixtures, tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    place = preparing(fixtures, tmp_path)
    with killing_workers(at_most=1) as killed:
        assert place.prepare(*alone(workers=2)).num_encoded == CLIPS
    assert len(killed) == 1
    assert place.sets() == untouched


@pytest.mark.long
def test_a_worker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    script = "import time; from voxgraft.preprocess import encode\n"
    script += "encode._WorkerProcess(encode.EncodeWorkerConfig('tiny', '.', 'cpu', '.'))\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until("no worker was started", lambda: workers_of(process.pid))
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    wait_until("a worker stayed behind", lambda: not any(Path(f"/proc/{one}").exists() for one in workers))


@pytest.mark.long
def test_a_prepare_that_is_killed_between_two_sets_spells_the_rest_without_the_sound(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    place = prepared(fixtures, tmp_path / "killed")
    place.change(clip012={"split": "train"}, clip000={"split": "validation"})
    place.graft("--tokenizer.pieces=5")
    other = place.copied(tmp_path / "other")
    other.prepare()
    for clip in place.clips():
        place.sound(clip).unlink()
    before = (place.run.data_set("train") / "set.json").read_bytes()
    assert killed_after_a_set(place) == -signal.SIGKILL
    assert (place.run.data_set("train") / "set.json").read_bytes() != before
    assert place.prepare().num_encoded == 0
    assert place.sets() == other.sets()


def killed_after_a_set(place: Preparing) -> int:
    """How a process ends that is killed as soon as the first of the two sets is in its place."""
    child = os.fork()
    if child == 0:
        patched: Any = command
        write = patched.write_clip_dataset

        def write_and_die(*arguments: Any) -> None:
            write(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        patched.write_clip_dataset = write_and_die
        try:
            place.prepare()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_clips_whose_workers_die_every_time_are_reported_and_do_not_hang(tmp_path: Path) -> None:
    settings = EncodeWorkerConfig("tiny", str(get_family("tiny").shipped_folder()), "cpu", str(tmp_path))
    jobs = [EncodeJob(f"batch{number}", ((f"key{number}", f"{number}.wav"),)) for number in range(2)]
    with killing_workers():
        outcomes = {outcome.name: outcome for outcome in encode_locally(settings, jobs, workers=2)}
    for number, job in enumerate(jobs):
        item = outcomes[job.name].gone[f"key{number}"]
        assert (item.code, item.where) == ("prepare-worker", f"{number}.wav")
        assert "-9" in item.found


@contextmanager
def killing_workers(at_most: int = 100) -> Iterator[set[int]]:
    """So many worker processes that this one starts are killed at once, with a batch in their hands."""
    over, killed = threading.Event(), set[int]()

    def hunt() -> None:
        while not over.is_set():
            for worker in workers_of(os.getpid()):
                if worker not in killed and len(killed) < at_most:
                    os.kill(worker, signal.SIGKILL)
                    killed.add(worker)
            time.sleep(0.002)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        over.set()
        hunter.join()
