"""The Ray engine: the bytes of the local one, with a worker that is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import CLIPS, preparing

WORKERS = 2


def test_ray_writes_the_same_bytes_as_the_local_engine_though_a_worker_is_killed(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    pytest.importorskip("ray.data", reason="NOT TESTED: Ray is not installed (pip install 'voxgraft[ray]')")
    flags = ("--batch-seconds=0.1", f"--workers={WORKERS}")
    local = preparing(fixtures, tmp_path / "local")
    local.prepare("--batch-seconds=0.1", "--workers=1")
    place = preparing(fixtures, tmp_path / "ray")
    command = [sys.executable, "-m", "voxgraft", *place.words("--engine", "ray", *flags)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed: list[int] = []
    killer = threading.Thread(target=lambda: killed.extend(kill_one(process, place.run.data / "preparing")))
    killer.start()
    reported, errors = process.communicate()
    killer.join()
    assert process.returncode == 0, f"{reported}\n{errors}"
    assert killed, "no worker was there to be killed in the middle"
    assert f"{CLIPS} clips encoded now" in reported
    assert place.sets() == local.sets()
    assert place.prepare().num_encoded == 0


def kill_one(process: subprocess.Popen[str], batches: Path) -> list[int]:
    """Kill a Ray worker that encodes, as soon as the first batch is there; its process id."""
    while process.poll() is None:
        if 2 <= len(list(batches.glob("*.safetensors"))) < CLIPS // 2:
            for worker in ray_workers(process.pid):
                os.kill(worker, signal.SIGKILL)
                return [worker]
        time.sleep(0.005)
    return []


def ray_workers(ancestor: int) -> list[int]:
    """Processes below another that call themselves the stage of ours."""
    parents: dict[int, int] = {}
    titles: dict[int, bytes] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(folder.name)] = (folder / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue

    def is_below(one: int) -> bool:
        while one in parents and one != ancestor:
            one = parents[one]
        return one == ancestor

    return [
        one for one, title in titles.items() if title.startswith(b"ray::") and b"RayStage" in title and is_below(one)
    ]
