"""Several processes train what one trains: the same clips in the same order, losses within rounding, any number of them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaigns.process_sums import CASES, measured
from tests.support.fixtures import Fixtures
from tests.support.runs import Child, child
from tests.support.trainers import Place
from tests.support.workers.train import main as work
from voxgraft.checkpoints.steps import load_step
from voxgraft.core.run import RunFolder, RunJournal, strip_clock_fields

PATIENCE_SECONDS = 180
SHORT: dict[str, Any] = {"steps": 6, "every": {"save_every": 3, "valid_every": 3}}


@pytest.fixture(scope="module")
def place(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


def train(place: Place, run: Path, world_size: int, **changed: Any) -> list[dict[str, Any]]:
    """Train with so many processes; gives the journal."""
    workers = started(place, run, world_size, **changed)
    assert [worker.wait(PATIENCE_SECONDS) for worker in workers] == [0] * world_size
    assert [worker.answer for worker in workers] == [None] * world_size
    return [strip_clock_fields(entry) for entry in RunJournal(RunFolder(run).journal).read()]


def started(place: Place, run: Path, world_size: int, **changed: Any) -> list[Child]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run.mkdir(exist_ok=True)
    return [
        child(work, place.folder, run, changed, environment={**together, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world_size)
    ]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], tolerance: float = 2e-4) -> None:
    assert [entry["kind"] for entry in one] == [entry["kind"] for entry in other]
    for left, right in zip(one, other, strict=True):
        assert left.get("clips") == right.get("clips")
        for key in ("text_loss", "speech_loss"):
            if key in left:
                assert left[key] == pytest.approx(right[key], rel=tolerance)
        if "gradients" in left:
            assert left["gradients"] == pytest.approx(right["gradients"], rel=tolerance)


@pytest.fixture(scope="module")
def straight(place: Place, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The journal of a run that one process has trained from its beginning to its end."""
    return train(place, tmp_path_factory.mktemp("straight") / "run", 1, **SHORT)


@pytest.mark.long(fast="2")
@pytest.mark.parametrize("world_size", [2, 4])
def test_two_and_four_processes_learn_what_one_learns(
    place: Place, straight: list[dict[str, Any]], tmp_path: Path, world_size: int
) -> None:
    same(straight, train(place, tmp_path / "run", world_size, **SHORT))


@pytest.mark.long
def test_two_processes_train_a_body_as_one_does(place: Place, tmp_path: Path) -> None:
    changed: dict[str, Any] = {**SHORT, "mode": "merged", "full_backbone": True}
    alone, together = (train(place, tmp_path / str(world_size), world_size, **changed) for world_size in (1, 2))
    same(alone, together)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_two_processes_sum_the_gradients_of_a_body_in_half_precision_as_one_does(
    place: Place, tmp_path: Path, precision: str
) -> None:
    """With several packs for each process: what was moved to the float32 masters before the last one counts too."""
    changed: dict[str, Any] = {"mode": "merged", "full_backbone": True, "precision": precision, "batch_tokens": 900}
    changed |= {"steps": 3, "every": {"save_every": 3, "valid_every": 3}}
    alone, together = (train(place, tmp_path / str(world_size), world_size, **changed) for world_size in (1, 2))
    same(alone, together, tolerance=1e-5)


@pytest.mark.long
def test_two_processes_are_one_in_every_mode_and_precision(place: Place, tmp_path: Path) -> None:
    pairs = measured(place, tmp_path, CASES, "cpu")
    assert [pair.row() for pair in pairs if not pair.is_same] == []


def test_a_run_whose_processes_hold_different_bits_stops_on_all_of_them_and_saves_nothing(
    place: Place, tmp_path: Path
) -> None:
    """One bit of one weight, on one process, after the validation of step 3."""
    run = tmp_path / "run"
    workers = started(place, run, 2, differ_at=3, **SHORT)
    for worker in workers:
        worker.wait(PATIENCE_SECONDS)
    assert [worker.answer for worker in workers] == ["processes-diverged"] * 2
    assert load_step(RunFolder(run)).state.step == 0
    last = RunJournal(RunFolder(run).journal).read()[-1]
    assert (last["kind"], last["code"], last["step"]) == ("finding", "processes-diverged", 3)


@pytest.mark.long
@pytest.mark.parametrize("astray", ["prefer_at", "lone_guard_at"])
def test_the_first_process_decides_which_step_is_best_and_when_to_stop(
    place: Place, straight: list[dict[str, Any]], tmp_path: Path, astray: str
) -> None:
    """The second one thinks otherwise: alone it would save or stop, and wait for the first for ever."""
    every = {**SHORT["every"], "patience": 50}
    same(straight, train(place, tmp_path / "run", 2, **{**SHORT, "every": every, astray: 3}))


@pytest.mark.long
def test_a_run_goes_on_with_another_number_of_processes(
    place: Place, straight: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "moved"
    for stop_at, world_size in ((2, 2), (4, 1), (None, 3)):
        train(place, run, world_size, stop_at=stop_at, **SHORT)
    moved = [strip_clock_fields(entry) for entry in RunJournal(RunFolder(run).journal).read()]
    steps_of = [entry for entry in straight if entry["kind"] == "step"]
    same(steps_of, [entry for entry in moved if entry["kind"] == "step"])
    assert load_step(RunFolder(run)).state.step == SHORT["steps"]
