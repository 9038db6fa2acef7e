"""`voxgraft train` on whole runs: from zero, on from a saved step, begun again, with more steps, with other settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of, graft_anew
from voxgraft.checkpoints.steps import TrainState, list_step_folders, load_step
from voxgraft.cli.app import run_cli as run_command
from voxgraft.core import progress
from voxgraft.core.files import FAILPOINT_VARIABLE
from voxgraft.models import family_names


@pytest.fixture(scope="module")
def made(fixtures: Fixtures) -> WholeRun:
    """A run that was not trained yet."""
    return fixtures.whole_run("chatterbox")


@pytest.fixture(scope="module")
def trained(fixtures: Fixtures) -> WholeRun:
    """The same, trained for four steps."""
    return fixtures.trained_run("chatterbox")


@pytest.fixture
def run(trained: WholeRun, tmp_path: Path) -> WholeRun:
    """A trained run of one's own."""
    return trained.copied(tmp_path / "run")


class Listener:
    """Keeps the lines that training opens with, and calls a function as something happens."""

    def __init__(self, act: Callable[[str, int], None] = lambda _kind, _step: None) -> None:
        self.act, self.lines = act, list[str]()

    @contextmanager
    def _nothing(self) -> Iterator[Callable[[int], None]]:
        yield lambda _amount: None

    def task(self, _name: str, _total: int | None) -> AbstractContextManager[Callable[[int], None]]:
        return self._nothing()

    def report(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self.lines += values["lines"] if kind == "opening" else ()
        self.act(kind, step)


def interrupted_at(step: int) -> Listener:
    """A user who presses the keys once, at the beginning of a step."""
    waiting = [step]

    def press(kind: str, at: int) -> None:
        if kind == "doing" and [at] == waiting:
            waiting.clear()
            os.kill(os.getpid(), signal.SIGINT)

    return Listener(press)


def everything(state: TrainState) -> dict[str, torch.Tensor]:
    return {f"{group}/{name}": value for group, named in state.tensors.items() for name, value in named.items()}


def assert_same_end(one: WholeRun, other: WholeRun) -> None:
    """Both ended with the same bits in the last step and in the graft, and with the same steps in the journal."""
    found, want = everything(one.state()), everything(other.state())
    assert found.keys() == want.keys()
    assert [name for name in want if not torch.equal(found[name], want[name])] == []
    assert all(np.array_equal(values, other.rows()[name]) for name, values in one.rows().items())
    timed = ("wall_time", "positions_per_second", "memory_process_bytes")
    lines = [[{k: v for k, v in line.items() if k not in timed} for line in r.journal("step")] for r in (one, other)]
    assert lines[0] == lines[1]


@pytest.mark.long(fast="tiny")
@pytest.mark.parametrize("family_name", family_names())
def test_a_run_trains_from_zero_and_one_that_was_interrupted_ends_as_if_it_had_not_been(
    family_name: str, fixtures: Fixtures, tmp_path: Path
) -> None:
    made = fixtures.whole_run(family_name)
    straight, run = made.copied(tmp_path / "straight"), made.copied(tmp_path / "broken")
    straight.train()
    assert straight.steps == [0, 2, 4]
    assert straight.logged() == [1, 2, 3, 4]
    assert [line["step"] for line in straight.journal("valid")] == [0, 2, 4]
    assert straight.journal()[-1]["kind"] == "end"
    before, now = made.rows(), straight.rows()
    assert all(not np.array_equal(before[name], now[name]) for name in before)
    assert (straight.folder.graft / "adapter").is_dir()
    with progress.use_progress_listener(interrupted_at(3)):
        first = run.train()
    assert (first.outcome.reason, first.outcome.step, first.exit_code) == ("stopped", 3, 130)
    assert "run the same command to resume" in first.lines()
    assert run.steps == [0, 2, 3]
    again = run.train()
    assert (again.start, again.outcome.step, again.outcome.reason, again.exit_code) == (3, 4, "done", 0)
    assert_same_end(run, straight)


def test_from_step_goes_back_and_keeps_later_steps_aside(run: WholeRun, trained: WholeRun) -> None:
    later = run.saved()
    assert run.train("--from-step", "2").start == 2
    aside = run.folder.steps / "aside-1" / "step-000004"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == {
        name.partition("/")[2]: data for name, data in later.items() if name.startswith("step-000004/")
    }
    assert_same_end(run, trained)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(run: WholeRun) -> None:
    error = run.refused("step-missing", "--from-step", "3")
    assert "0, 2, 4" in error.finding.expected


def test_fresh_begins_with_the_first_rows_though_the_graft_holds_trained_ones(
    run: WholeRun, made: WholeRun, trained: WholeRun
) -> None:
    assert run.train("--fresh").start == 0
    first = run.state(0).tensors["rows"]
    assert all(np.array_equal(values, first[name].numpy()) for name, values in made.rows().items())
    assert_same_end(run, trained)
    assert {folder.name for folder in (run.folder.steps / "aside-1").iterdir()} == {"step-000002", "step-000004"}


@pytest.mark.long
def test_fresh_takes_the_rows_of_a_graft_that_was_made_anew(run: WholeRun, made: WholeRun) -> None:
    graft_anew(run, pieces=20, noise_seed=7)
    rows = run.rows()
    assert any(not np.array_equal(rows[name], values) for name, values in made.rows().items())
    run.train("--fresh", train_steps=2)
    first = run.state(0).tensors["rows"]
    assert all(np.array_equal(values, first[name].numpy()) for name, values in rows.items())


@pytest.mark.long
def test_fresh_that_is_killed_before_its_first_step_still_knows_the_first_rows(
    run: WholeRun, made: WholeRun, trained: WholeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps are set aside by then, and the graft holds trained rows."""
    monkeypatch.setenv(FAILPOINT_VARIABLE, "save.claim:1:enospc")
    assert error_of(lambda: run.train("--fresh")).code == "disk-full"
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    assert run.train().start == 0
    assert [line["step"] for line in run.journal("start")] == [0]
    first = run.state(0).tensors["rows"]
    assert all(np.array_equal(values, first[name].numpy()) for name, values in made.rows().items())
    assert_same_end(run, trained)


@pytest.mark.long
def test_fresh_says_what_to_do_when_the_first_rows_are_lost(run: WholeRun) -> None:
    (run.folder.step(0) / "rows.safetensors").unlink()
    error = run.refused("step-damaged", "--fresh")
    assert f"voxgraft graft {run.path}" in error.finding.cure
    graft_anew(run, pieces=20)
    assert run.train("--fresh", train_steps=2).outcome.step == 2


def test_fresh_and_from_step_exclude_each_other(run: WholeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.refused("config-value", "--fresh", "--from-step", "2")
    assert run_command(run.words("--fresh", "--from-step", "2")) == 2
    errors = capsys.readouterr().err
    assert "--fresh and --from-step are both given" in errors
    assert "Traceback" not in errors


def test_a_finished_run_says_so_and_changes_nothing(run: WholeRun) -> None:
    before = {path: path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file()}
    result = run.train()
    assert result.exit_code == 0
    assert "nothing left to train (done at step 4)" in str(result.lines()[0])
    assert "--train.steps" in str(result.lines()[0])
    after = {path: path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file()}
    assert [path for path in after if after[path] != before.get(path)] == []
    assert before.keys() == after.keys()


def test_a_finished_run_whose_graft_was_not_written_yet_gets_it(
    run: WholeRun, made: WholeRun, trained: WholeRun
) -> None:
    """As after a kill between the last step and the graft."""
    for path in run.folder.graft.rglob("*"):
        if path.is_file():
            path.unlink()
    (run.folder.graft / "adapter").rmdir()
    for path in made.folder.graft.iterdir():
        (run.folder.graft / path.name).write_bytes(path.read_bytes())
    run.train()
    assert_same_end(run, trained)


def test_more_steps_go_on_and_say_what_that_does_to_the_schedule(run: WholeRun) -> None:
    listener = Listener()
    with progress.use_progress_listener(listener):
        result = run.train(train_steps=8)
    assert (result.start, result.outcome.step) == (4, 8)
    assert run.logged() == list(range(1, 9))
    changed = {line["key"]: (line["was"], line["now"]) for line in run.journal("changed")}
    assert changed["train.steps"] == (4, 8)
    was, now = changed["learning rate factor at step 5"]
    assert was == pytest.approx(0.1)
    step = next(line for line in run.journal("step") if line["step"] == 5)
    assert now > 0.4
    assert step["rates"]["rows"] == pytest.approx(now * 1e-3, rel=1e-3)
    assert any(line.startswith("changed:") and "train.steps: was 4, is 8" in line for line in listener.lines)


def test_other_rates_are_applied_and_said(run: WholeRun) -> None:
    run.train("--from-step", "2", train_lr_rows=5e-3)
    changed = {line["key"]: line for line in run.journal("changed")}
    assert (changed["train.lr_rows"]["was"], changed["train.lr_rows"]["now"]) == (1e-3, 5e-3)
    rates = {line["step"]: line["rates"] for line in run.journal("step")}
    assert rates[3]["rows"] == pytest.approx(5 * rates[3]["adapter"])
    assert rates[2]["rows"] == pytest.approx(rates[2]["adapter"])


@pytest.mark.parametrize(
    ("flags", "key", "columns"),
    [
        ({"train_rank": 8}, "train.rank", ("4", "8")),
        ({"train_mode": "rows-only"}, "train.mode", ("gated", "rows-only")),
        ({"train_seed": 5}, "train.seed", ("0", "5")),
    ],
)
def test_what_a_saved_step_depends_on_is_refused_with_both_columns(
    run: WholeRun, flags: dict[str, Any], key: str, columns: tuple[str, str]
) -> None:
    error = run.refused("resume-changed", **flags, train_steps=6)
    head, *rows = error.finding.found.splitlines()[1:]
    assert head.split() == ["step", "4", "now"]
    assert (key, *columns) in [tuple(row.split()) for row in rows]
    assert "--fresh" in error.finding.cure


@pytest.mark.long
def test_early_stop_counts_over_an_interruption_and_is_not_forgotten(made: WholeRun, tmp_path: Path) -> None:
    asked = {"train_patience": 2, "train_min_delta": 100, "train_steps": 20, "train_valid_every": 2}
    run = made.copied(tmp_path / "run")
    with progress.use_progress_listener(interrupted_at(5)):
        assert run.train(**asked).outcome.step == 5
    result = run.train(**asked)
    # The first validation after step 0 is the best; two more are not better.
    assert (result.outcome.reason, result.outcome.step, result.outcome.best_state.best_step) == ("no-better", 6, 2)
    again = run.train(**asked)
    assert (again.outcome.reason, again.outcome.step) == ("no-better", 6)
    assert "--train.patience" in str(again.lines()[0])
    assert run.train(**{**asked, "train_patience": 3}).outcome.step == 8


def test_step_folders_of_a_run_are_whole_after_everything(run: WholeRun) -> None:
    run.train("--from-step", "2", train_steps=6, train_keep_last=1)
    assert [folder.step for folder in list_step_folders(run.folder)] == run.steps
    assert load_step(run.folder).state.step == 6
