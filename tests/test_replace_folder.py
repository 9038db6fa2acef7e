"""A folder takes the place of another: whenever the process ends, one of the two is there, or is taken at the next start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.fixtures import Fixtures
from tests.support.runs import child, names_in, program
from voxgraft.cli.app import run_cli as run_command
from voxgraft.core.files import atomic_write_folder
from voxgraft.core.run import RunFolder
from voxgraft.graft.folder import load_graft, read_merged_card

NO_EXCHANGE = "folder.exchange:1:enosys"
"""A disk that cannot exchange two names: the name is free for a moment."""
BETWEEN = f"{NO_EXCHANGE},folder.moved:1:kill"
KILLS = {
    "folder.exchange:1:kill": "old",
    "folder.exchanged:1:kill": "new",
    f"{NO_EXCHANGE},folder.finished:1:kill": "old",
    BETWEEN: "new",
}


def write_new(folder: Path) -> str:
    with atomic_write_folder(folder) as new:
        (new / "file").write_text("new")
    return "written"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "graft").mkdir(parents=True)
    (run / "graft" / "file").write_text("old")
    return run / "graft"


@pytest.mark.long(fast="folder.exchange:1:enosys,folder.finished:1:kill-old")
@pytest.mark.parametrize(("fault", "left"), KILLS.items())
def test_a_process_that_is_killed_at_any_point_leaves_a_whole_folder(folder: Path, fault: str, left: str) -> None:
    process = child(write_new, folder, fault=fault)
    assert process.wait() == -signal.SIGKILL
    assert RunFolder(folder.parent).graft == folder
    assert (folder / "file").read_text() == left
    write_new(folder)
    assert (folder / "file").read_text() == "new"
    assert (folder.with_name("graft.previous") / "file").read_text() == left
    assert not folder.with_name(".graft.new").exists()


@pytest.mark.long(fast="folder.exchange:1:enosys")
@pytest.mark.parametrize("fault", ["", NO_EXCHANGE, "folder.exchange:1:eperm", "folder.exchange:1:exdev"])
def test_what_was_there_is_kept_and_nothing_else_is_left(folder: Path, fault: str) -> None:
    for _ in range(2):
        process = child(write_new, folder, fault=fault)
        process.wait()
        assert process.answer == "written"
    assert names_in(folder.parent) == ["graft", "graft.previous"]
    assert [(folder.with_name(name) / "file").read_text() for name in ("graft", "graft.previous")] == ["new", "new"]


@pytest.mark.long(fast="folder.exchange:1:enosys,folder.moved:1:eio")
@pytest.mark.parametrize(
    "fault", ["folder.exchange:1:eio", f"{NO_EXCHANGE},folder.moved:1:eio", f"{NO_EXCHANGE},folder.moved:1:enospc"]
)
def test_a_rename_that_fails_leaves_what_was_there(folder: Path, fault: str) -> None:
    process = child(write_new, folder, fault=fault)
    process.wait()
    assert process.answer == ("disk-full" if "enospc" in fault else "disk-fault")
    assert names_in(folder.parent) == ["graft"]
    assert (folder / "file").read_text() == "old"


@pytest.mark.long
@pytest.mark.parametrize("fault", KILLS)
def test_a_training_that_is_killed_while_it_writes_its_graft_has_it_at_the_next_start(
    fixtures: Fixtures, tmp_path: Path, fault: str
) -> None:
    run = fixtures.whole_run("chatterbox").copied(tmp_path / "run")
    assert program(run.words(), run.path, fault=fault).ended().returncode == -signal.SIGKILL
    assert (run.path / "graft").exists() == (fault != BETWEEN)
    if fault == BETWEEN:
        assert run_command(["check", str(run.path), "--data.min-prompt-seconds=0.1"]) == 0
    assert run.train().outcome.reason == "done"
    assert load_graft(run.folder.graft).card.method["trained"]["step"] == 4


@pytest.mark.long
def test_a_training_that_is_killed_while_it_writes_a_merged_checkpoint_has_it_at_the_next_start(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.whole_run("chatterbox").copied(tmp_path / "run")
    merged = {"train_mode": "merged", "data_self_replay": 0}
    run.train(**merged)
    assert program(run.words(train_steps=6, **merged), run.path, fault=BETWEEN).ended().returncode == -signal.SIGKILL
    assert not (run.path / "merged").exists()
    assert read_merged_card(RunFolder(run.path).path / "merged")["trained"]["steps"] == 6
    assert run.train(train_steps=6, **merged).merged is not None
