"""When one of several processes ends, all end, soon, and say which it was and why; none waits for ever."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun
from tests.support.runs import Program, printing
from tests.support.workers.ending import work

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SECONDS = 90
"""Far less than a process would wait that nobody tells of the end."""


def started(how: str, world_size: int, folder: Path) -> list[Program]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        printing(
            work,
            how,
            beside=folder / str(rank),
            environment={**together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world_size)
    ]


def ended(workers: list[Program]) -> dict[int, tuple[int, str]]:
    """By rank, the exit code and what was said."""
    try:
        done = [worker.ended(LONGEST_SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return {rank: (one.returncode, one.stderr) for rank, one in enumerate(done)}


@pytest.mark.long
def test_an_error_of_one_process_ends_all_and_is_named_by_all(tmp_path: Path) -> None:
    found = ended(started("raise", 3, tmp_path))
    assert [code for code, _ in found.values()] == [2, 2, 2]
    assert found[1][1].startswith("error pack-too-small: clip 7 has 900 positions (expected: at most 400)")
    for rank in (0, 2):
        reported = "error process-failed: process 1 of 3 ended: pack-too-small: clip 7 has 900 positions\n"
        assert reported in found[rank][1]
        assert "from the last checkpoint" in found[rank][1]


@pytest.mark.long
def test_a_bug_in_one_process_is_reported_by_it_and_named_by_the_others(tmp_path: Path) -> None:
    found = ended(started("bug", 2, tmp_path))
    assert "Traceback" in found[1][1]
    assert "process 1 of 2 ended: RuntimeError('shapes do not fit')" in found[0][1]


def test_a_process_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    found = ended(started("kill", 2, tmp_path))
    assert found[1][0] == -9
    assert found[0][0] == 2
    assert "error process-lost: another process has ended (" in found[0][1]
    assert "torchrun" in found[0][1]


@pytest.mark.long
def test_a_process_that_hangs_is_ended_with_the_cause_of_the_one_that_failed(tmp_path: Path) -> None:
    found = ended(started("raise-while-others-hang", 2, tmp_path))
    assert found[0][0] == 2
    assert "error process-failed: process 1 of 2 ended: pack-too-small" in found[0][1]


@pytest.mark.long
def test_a_process_that_gives_no_sign_of_life_is_given_up(tmp_path: Path) -> None:
    workers = started("stop", 2, tmp_path)
    code, said = ended(workers[:1])[0]
    workers[1].kill()
    stopped = workers[1].ended(LONGEST_SECONDS)
    assert (stopped.returncode, stopped.stdout) == (-9, "stopping\n")
    assert code == 2
    assert re.search("error process-lost: process 1 of 2 sent no heartbeat for [0-9]+ seconds", said)


@pytest.mark.long
def test_processes_that_do_not_see_the_same_are_refused_by_all(tmp_path: Path) -> None:
    for code, said in ended(started("differ", 2, tmp_path)).values():
        assert code == 2
        assert "processes-differ: torch: 2 for process 0, 1 for process 1" in said


@pytest.mark.long
def test_processes_that_torchrun_starts_again_do_not_hear_of_those_before() -> None:
    words = [
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "-m",
        "tests.support.workers.ending",
        "once",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert all(f"process {rank} is fine" in done.stdout for rank in (0, 1))
    assert done.stderr.count("error pack-too-small") == 1
    assert "process 1 of 2 ended: pack-too-small" in done.stderr


# ---- through torchrun, as the page on several machines shows it --------------------------------------------------------


@pytest.fixture(scope="module")
def run(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return fixtures.whole_run("indextts2").copied(tmp_path_factory.mktemp("several") / "run")


def torchrun(run: WholeRun, *flags: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "voxgraft"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*words, *run.words(*flags, train_device="cpu")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.long
def test_torchrun_trains_a_run_with_two_processes_and_one_goes_on(run: WholeRun) -> None:
    done = torchrun(run)
    assert done.returncode == 0, done.stderr
    assert "cpu, float32, 2 processes" in done.stderr
    assert done.stdout.count("done at step 4") == 1
    assert run.logged() == [1, 2, 3, 4]
    alone = run.train(train_steps=5)
    assert (alone.start, alone.outcome.step) == (4, 5)
