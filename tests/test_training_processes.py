"""Several processes train what one trains: the same clips in the same order, losses within rounding, any number of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import Place
from voxgraft.journal import Journal, without_clock
from voxgraft.run import RunFolder
from voxgraft.training.saving import load_step

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.make("chatterbox", tmp_path_factory.mktemp("places") / "chatterbox")


def train(place: Place, run: Path, world_size: int, **changed: Any) -> list[dict[str, Any]]:
    """Train with so many processes; gives the journal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.train_worker", str(place.folder), str(run), json.dumps(changed)]
    together = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run.mkdir(exist_ok=True)
    workers = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=180)
        assert worker.returncode == 0, errors[-3000:]
    return [without_clock(entry) for entry in Journal(RunFolder(run).journal).read()]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], tolerance: float = 2e-4) -> None:
    assert [entry["kind"] for entry in one] == [entry["kind"] for entry in other]
    for left, right in zip(one, other, strict=True):
        assert left.get("clips") == right.get("clips")
        for key in ("text_loss", "speech_loss"):
            if key in left:
                assert left[key] == pytest.approx(right[key], rel=tolerance)


@pytest.mark.parametrize("mode", ["gated", "full"])
def test_two_and_four_processes_learn_what_one_learns(place: Place, tmp_path: Path, mode: str) -> None:
    changed: dict[str, Any] = {} if mode == "gated" else {"mode": "merged", "full_body": True}
    alone = train(place, tmp_path / "one", 1, **changed)
    for world_size in (2, 4) if mode == "gated" else (2,):
        same(alone, train(place, tmp_path / str(world_size), world_size, **changed))


def test_a_run_goes_on_with_another_number_of_processes(place: Place, tmp_path: Path) -> None:
    straight = train(place, tmp_path / "straight", 1)
    run = tmp_path / "moved"
    for stop_at, world_size in ((4, 2), (8, 1), (None, 3)):
        train(place, run, world_size, stop_at=stop_at)
    moved = [without_clock(entry) for entry in Journal(RunFolder(run).journal).read()]
    steps_of = [entry for entry in straight if entry["kind"] == "step"]
    same(steps_of, [entry for entry in moved if entry["kind"] == "step"])
    assert load_step(RunFolder(run)).state.step == 12
