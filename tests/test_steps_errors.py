"""Saving on bad days: full and failing disks, other savers and what dead ones left, going back, other versions."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs import (
    as_nobody,
    assert_newest,
    assert_same,
    child,
    edit_state,
    leftovers_left,
    names_in,
    new_run,
    read_only,
    save,
    save_in_a_row,
    save_with_files_limited,
    saved_by_child,
    state,
    stopped_at,
)
from voxgraft.checkpoints.steps import (
    STATE_FORMAT,
    STATE_MIGRATIONS,
    TrainState,
    list_complete_steps,
    list_leftover_folders,
    list_step_folders,
    load_step,
    migrate_state,
    read_step_values,
    sync_folder_if_possible,
)
from voxgraft.core.errors import CheckpointError, VoxgraftError
from voxgraft.core.files import FAILPOINT_VARIABLE
from voxgraft.core.run import RunFolder
from voxgraft.training.checkpoint import move_later_steps_aside, save_step

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def refused(action: Any, *arguments: Any, **named: Any) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        action(*arguments, **named)
    return caught.value


# ---- leftovers, and more than one saver ---------------------------------------------------------------------


def test_leftovers_of_dead_savers_are_removed_at_the_next_save_and_nothing_else(run: RunFolder) -> None:
    save(run, 1)
    assert saved_by_child(run, 2, fault="save.verify:1:kill").process.exitcode == -signal.SIGKILL
    assert len(list_leftover_folders(run)) == 1
    strangers = [".step-000002.abc.part", ".hidden.part", ".step-000002.part", ".step-000002.0123abcd.part.bak"]
    for name in strangers:
        (run.steps / name).mkdir()
    (run.steps / ".step-000002.00000000.part").symlink_to("step-000001")
    save(run, 2)
    assert list_leftover_folders(run) == []
    assert set(names_in(run.steps)) == {
        *strangers,
        ".step-000002.00000000.part",
        "step-000001",
        "step-000002",
    }


def test_a_leftover_that_cannot_be_removed_is_a_finding() -> None:
    with tempfile.TemporaryDirectory() as name:
        run = new_run(Path(name))
        for number in (1, 2):
            (run.steps / f".step-00000{number}.0123abcd.part").mkdir(parents=True)
        for path, mode in ((Path(name), 0o755), (run.steps, 0o777), (run.steps / ".step-000001.0123abcd.part", 0)):
            path.chmod(mode)
        process = child(as_nobody, leftovers_left, run)
        process.wait()
        assert process.answer == [("step-left", ".step-000001.0123abcd.part")]
        assert names_in(run.steps) == [".step-000001.0123abcd.part"], "the other one is gone"


def test_a_live_saver_is_not_taken_for_a_dead_one(run: RunFolder) -> None:
    save(run, 1)
    with stopped_at("save.verify", run, 2) as process:
        save(run, 3)
        assert len(list_leftover_folders(run)) == 1
    assert process.answer == "saved"
    assert list_complete_steps(run) == [1, 2, 3]


@pytest.mark.long
def test_savers_that_ignore_the_lock_spoil_nothing(run: RunFolder) -> None:
    save(run, 4)
    savers = [child(save_in_a_row, run, list(range(5, 25)), seed) for seed in (1, 2, 3)]
    while any(saver.process.is_alive() for saver in savers):
        loaded = load_step(run)
        assert_same(loaded.state, state(loaded.state.step, loaded.state.values["seed"]))
    for saver in savers:
        saver.wait()
        assert saver.answer == "saved"
    assert list_complete_steps(run)[-1] == 24
    assert 4 in list_complete_steps(run)
    save(run, 25, keep_last=1)
    assert names_in(run.steps) == ["step-000025"]


@pytest.mark.parametrize("error", ["enoent", "eagain"])
def test_a_saver_whose_folder_is_taken_before_it_is_locked_makes_another(
    run: RunFolder, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"save.claim:1:{error},save.claim:2:{error}")
    save(run, 1)
    assert names_in(run.steps) == ["step-000001"]
    assert_newest(run, 1)


def test_steps_are_saved_where_folders_cannot_be_locked(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, "save.claim:1:enolck")
    save(run, 1)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "save.claim:1:eio")
    assert refused(save, run, 2).code == "disk-fault"
    assert names_in(run.steps) == ["step-000001"]


@pytest.mark.parametrize("point", ["save.make-way", "save.rename"])
@pytest.mark.parametrize("error", ["enoent", "eexist", "enotdir", "enotempty"])
def test_a_step_takes_its_place_although_another_process_has_emptied_or_filled_it(
    run: RunFolder, point: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1)
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:1:{error}")
    save_step(run, state(1, seed=5), keep_last=2)
    assert_same(load_step(run).state, state(1, seed=5))
    assert list_leftover_folders(run) == []


# ---- going back ---------------------------------------------------------------------------------------------


def test_going_back_sets_later_steps_aside_and_removes_none(run: RunFolder) -> None:
    save(run, 1, 2, 3, 4)
    assert move_later_steps_aside(run, 2) == run.steps / "aside-1"
    assert_newest(run, 2)
    assert names_in(run.steps / "aside-1") == ["step-000003", "step-000004"]
    save(run, 3)
    assert move_later_steps_aside(run, -1) == run.steps / "aside-2"
    assert names_in(run.steps / "aside-2") == ["step-000001", "step-000002", "step-000003"]
    assert refused(load_step, run).code == "step-missing"
    assert move_later_steps_aside(run, 0) is None


# ---- bad disks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "code"), [("enospc", "disk-full"), ("eio", "disk-fault")])
def test_a_disk_that_fails_at_any_point_of_a_save_costs_that_save_only(
    run: RunFolder, error: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1, 2)
    failures = 0
    for count in range(1, 500):
        monkeypatch.setenv(FAILPOINT_VARIABLE, f"*:{count}:{error}")
        met = ""
        try:
            _, findings = save_step(run, state(3), keep_last=2)
        except VoxgraftError as failure:
            met = failure.code
        if met:
            assert met == code
            failures += 1
            assert names_in(run.steps) == [run.step(step).name for step in list_complete_steps(run)]
            assert_newest(run, list_complete_steps(run)[-1])  # 3 only if the failure came after it was in place
            assert {1, 2} <= {*list_complete_steps(run)}
            move_later_steps_aside(run, 2)
            shutil.rmtree(run.steps / "aside-1", ignore_errors=True)
            continue
        if not findings:
            break
        assert [item.code for item in findings] == ["step-left"]
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        save(run, 4, keep_last=2)
        assert names_in(run.steps) == [run.step(step).name for step in (3, 4)]
        shutil.rmtree(run.steps)
        save(run, 1, 2)
    assert failures > 20
    assert list_complete_steps(run) == [2, 3]


@pytest.mark.long(fast="40000")
@pytest.mark.parametrize("num_bytes", [0, 1, 100, 500, 700, 40_000])
def test_a_file_that_cannot_grow_on_fails_the_save_and_leaves_nothing(run: RunFolder, num_bytes: int) -> None:
    save(run, 1)
    process = child(save_with_files_limited, run, 2, num_bytes)
    process.wait()
    assert process.answer == "file-size-limit"
    assert names_in(run.steps) == ["step-000001"]
    assert_newest(run, 1)
    save(run, 2)
    assert_newest(run, 2)


FULL_DISK = """
import sys
from pathlib import Path
from tests.support.runs import *
from voxgraft.training.checkpoint import *
import voxgraft.training.checkpoint as saving
run = new_run(Path(sys.argv[1]))
save(run, 1)
codes = []
for look_ahead in (True, False):
    if not look_ahead:
        saving.require_disk_space = lambda *_, **__: None
    filler = (run.path / "filler").open("wb", buffering=0)
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        filler.truncate((run.path / "filler").stat().st_size - 65536)
    try:
        save(run, 2)
    except VoxgraftError as error:
        codes.append(error.code)
    assert names_in(run.steps) == ["step-000001"], names_in(run.steps)
    assert_newest(run, 1)
    filler.close()
    Path(run.path / "filler").unlink()
save(run, 2, keep_last=1)
assert_newest(run, 2)
print(*codes)
"""


@pytest.mark.long
def test_a_disk_that_is_really_full_costs_that_save_only(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=4m none "$1" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    words += [str(tmp_path), sys.executable, FULL_DISK]
    if shutil.which("unshare") is None or subprocess.run([*words[:4], "true"], check=False, stderr=-3).returncode:
        pytest.skip("NOT TESTED: no small disk can be mounted here")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["disk-too-small", "disk-full"], done.stderr


def test_a_run_that_cannot_be_written_to_is_reported_and_left_as_it_is() -> None:
    with tempfile.TemporaryDirectory() as name:
        run = new_run(Path(name))
        save(run, 1)
        with read_only(Path(name)):
            process = child(as_nobody, save_in_a_row, run, [2], 0)
            process.wait()
        assert process.answer == "file-unwritable"
        assert names_in(run.steps) == ["step-000001"]
        assert_newest(run, 1)


def test_a_run_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert refused(save_step, RunFolder(tmp_path / "nowhere"), state(1), keep_last=1).code == "file-missing"
    assert not (tmp_path / "nowhere").exists()


# ---- other versions -----------------------------------------------------------------------------------------


def test_a_step_of_the_first_format_still_opens(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "steps" / "format-1", tmp_path / "steps" / "step-000012")
    loaded = load_step(RunFolder(tmp_path))
    assert loaded.findings == ()
    expected = {
        "rows": {"text_emb.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3)},
        "optimizer": {
            "text_emb.weight/exp_avg": torch.full((2, 3), 0.5),
            "text_emb.weight/step": torch.tensor(12.0),
            "half": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
        },
    }
    assert_same(loaded.state, TrainState(12, expected, {"best": {"step": 12, "score": 1.25}}))


def test_a_step_of_a_newer_voxgraft_is_refused_and_not_passed_by(run: RunFolder) -> None:
    save(run, 1, 2)
    edit_state(run.step(2), format=STATE_FORMAT + 1, voxgraft="99.1")
    error = refused(load_step, run)
    assert error.code == "step-newer"
    assert "voxgraft 99.1" in error.finding.found
    assert "newer voxgraft" in error.finding.found


def test_a_step_of_a_format_without_a_migration_is_refused_and_not_passed_by(run: RunFolder) -> None:
    save(run, 1, 2)
    edit_state(run.step(2), format=0)
    assert 0 not in STATE_MIGRATIONS
    error = refused(load_step, run)
    assert error.code == "step-older"
    assert error.finding.where == str(run.step(2))


def test_a_step_with_the_option_names_of_format_1_is_read_by_todays_names(run: RunFolder) -> None:
    save(run, 1)
    options = {"mode": "as-in-the-seeds", "clip": 0.5, "final_share": 0.1, "silent_share": 0.2, "tokens_per_step": 99}
    options |= {"rates": {"rows": 1e-3, "adapter": 2e-3, "body": 3e-3}}
    old = {"identity": {"language": "am", "options": options}, "pack_tokens": 512, "standing": {"best_step": 1}}
    edit_state(run.step(1), format=1, values=old)
    renamed = {
        "identity": {
            "language": "am",
            "options": {
                "mode": "masked-finetune",
                "max_grad_norm": 0.5,
                "min_lr_ratio": 0.1,
                "text_dropout": 0.2,
                "batch_tokens": 99,
                "lr_rows": 1e-3,
                "lr_adapter": 2e-3,
                "lr_backbone": 3e-3,
            },
        },
        "microbatch_tokens": 512,
        "standing": {"best_step": 1},
    }
    assert load_step(run).state.values == renamed
    assert read_step_values(list_step_folders(run)[0]) == renamed


def test_older_states_go_through_every_migration_on_the_way(run: RunFolder) -> None:
    def marked(name: str) -> Any:
        return lambda old: TrainState(old.step, old.tensors, {**old.values, "way": [*old.values.get("way", []), name]})

    table = {1: marked("1 to 2"), 2: marked("2 to 3")}
    assert migrate_state(TrainState(5, {}, {}), 1, table, 3).values["way"] == ["1 to 2", "2 to 3"]
    assert migrate_state(TrainState(5, {}, {}), 2, table, 3).values["way"] == ["2 to 3"]
    assert migrate_state(TrainState(5, {}, {}), 3, table, 3).values == {}
    with pytest.raises(CheckpointError):
        migrate_state(TrainState(5, {}, {}), 0, table, 3)


def test_a_file_system_that_cannot_sync_folders_is_no_error_and_a_folder_that_is_gone_is_one(tmp_path: Path) -> None:
    sync_folder_if_possible(tmp_path)
    sync_folder_if_possible(Path("/proc/self"))  # EINVAL
    with pytest.raises(FileNotFoundError):
        sync_folder_if_possible(tmp_path / "gone")


def test_only_a_step_that_another_process_has_put_there_is_a_reason_to_rename_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 1)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "save.rename:1:eio")
    with pytest.raises(VoxgraftError) as failure:
        save_step(run, state(2), keep_last=2)
    assert failure.value.code == "disk-fault"
    assert list_complete_steps(run) == [1]
    monkeypatch.setenv(FAILPOINT_VARIABLE, "save.rename:1:enotempty")
    save_step(run, state(2), keep_last=2)
    assert list_complete_steps(run) == [1, 2]
