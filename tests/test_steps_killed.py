"""Real processes, really killed at every point of a save: the run is always what it was, or one step further."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.support.runs import (
    assert_newest,
    assert_same,
    child,
    names_in,
    new_run,
    save,
    save_in_a_row,
    saved_by_child,
    set_all_aside,
    state,
)
from voxgraft.checkpoints.steps import list_complete_steps, list_leftover_folders, load_step
from voxgraft.core.run import RunFolder
from voxgraft.training import checkpoint
from voxgraft.training.checkpoint import save_step

POINTS = sorted(
    {
        name
        for path in Path(checkpoint.__file__).parent.glob("*.py")
        for name in re.findall(r'failpoint\("((?:save|remove)\.[a-z-]+)"\)', path.read_text())
    }
)
ENOUGH = 500


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    save(run, 1, 2)
    return run


def assert_sound(run: RunFolder, newest: int, seed: int | None = None) -> None:
    """The newest step has its bits, nothing is damaged, and the next save works and tidies up."""
    loaded = load_step(run)
    assert loaded.findings == ()
    assert_same(loaded.state, state(newest, seed))
    save_step(run, state(newest + 1), keep_last=2)
    assert_newest(run, newest + 1)
    assert list_leftover_folders(run) == []
    assert names_in(run.steps) == [run.step(step).name for step in (newest, newest + 1)]


@pytest.mark.long(fast="save.write")
@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_crossed_by_a_save_that_replaces_and_prunes(run: RunFolder, point: str) -> None:
    process = saved_by_child(run, 2, seed=77, fault=f"{point}:1:kill", keep_last=1)
    assert process.process.exitcode == -signal.SIGKILL, point
    loaded = load_step(run)
    assert loaded.findings == ()
    assert_same(loaded.state, state(2, loaded.state.values["seed"]))


@pytest.mark.long
def test_a_save_killed_at_any_point_leaves_the_last_whole_step_or_the_new_one(run: RunFolder) -> None:
    newest, kills, moved_on = 2, 0, 0
    for count in range(1, ENOUGH):
        process = saved_by_child(run, newest + 1, fault=f"*:{count}:kill")
        if process.answer == "saved":
            break
        assert process.process.exitcode == -signal.SIGKILL
        kills += 1
        found = load_step(run).state.step
        assert found in (newest, newest + 1)
        moved_on += found - newest
        assert_sound(run, found)
        newest = found + 1
    assert kills >= 30
    assert 0 < moved_on < kills  # some kills came before the step was in place and some after


@pytest.mark.long
def test_a_save_killed_again_and_again_without_a_good_one_between_loses_nothing(run: RunFolder) -> None:
    for count in (3, 9, 15, 21, 24):
        assert saved_by_child(run, 3, fault=f"*:{count}:kill").process.exitcode == -signal.SIGKILL
        assert_newest(run, 2)
        assert len(list_leftover_folders(run)) == 1  # the one before was removed on the way
    assert_sound(run, 2)


@pytest.mark.long
def test_a_step_saved_again_and_killed_at_any_point_is_the_old_save_or_the_new_one(run: RunFolder) -> None:
    found: list[int | None] = []
    for count in range(1, ENOUGH):
        process = saved_by_child(run, 2, seed=77, fault=f"*:{count}:kill")
        loaded = load_step(run)
        assert loaded.findings == ()
        found.append(loaded.state.values["seed"])
        assert_same(loaded.state, state(2, found[-1]))
        if process.answer == "saved":
            break
        save(run, 2, keep_last=2)
        assert names_in(run.steps) == ["step-000001", "step-000002"]
    assert found == sorted(found, key=lambda seed: seed == 77)  # first always the old one, then always the new
    assert {*found} == {None, 77}


@pytest.mark.long
def test_going_back_and_killed_at_any_point_leaves_a_run_that_ends_earlier(run: RunFolder) -> None:
    ends = []
    for count in range(1, ENOUGH):
        save(run, 1, 2, 3)
        process = child(set_all_aside, run, fault=f"aside.move:{count}:kill")
        process.wait()
        steps = list_complete_steps(run)
        assert steps == [1, 2, 3][: len(steps)]
        ends.append(len(steps))
        if process.answer:
            break
    assert ends == [3, 2, 1, 0]


def test_savers_killed_at_random_times_leave_a_whole_newest_step(run: RunFolder) -> None:
    for number in range(10):
        first = load_step(run).state.step + 1
        process = child(save_in_a_row, run, list(range(first, first + 1000)), 5)
        if number == 9:  # a busy machine may kill the others before their first save
            while first not in list_complete_steps(run):
                time.sleep(0.01)
        time.sleep(0.03 + 0.011 * number)
        os.kill(process.process.pid, signal.SIGKILL)
        process.wait()
        loaded = load_step(run)
        assert loaded.findings == ()
        assert_same(loaded.state, state(loaded.state.step, loaded.state.values["seed"]))
    assert loaded.state.step > 2
