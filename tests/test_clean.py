"""The command `clean`: makes room, asks first, and never takes what a run still needs."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.runs import assert_newest, edit_state, flip_bit, names_in, new_run, save, saved_by_child
from voxgraft.checkpoints.steps import TrainState, clean, list_complete_steps
from voxgraft.cli import run_cli
from voxgraft.config.commands import CleanSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.progress import use_prompt_callbacks
from voxgraft.core.results import Line, SimpleResult, Table, plain_text
from voxgraft.core.run import RunFolder
from voxgraft.training.checkpoint import move_later_steps_aside, save_step

ROOT = Path(__file__).parent.parent
IMPATIENT = """
import sys
from voxgraft.cli import app, console, run_cli
app.SHOW_AFTER_SECONDS, console.POLL_SECONDS = 0.0, 0.001
sys.exit(run_cli(sys.argv[1:]))
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    save(run, 100, 200, 300, 400, keep=(200,))
    return run


def cleaned(run: RunFolder, *, keep: int = 1, yes: bool = True) -> SimpleResult:
    return clean(CleanSettings(run=run.path, keep=keep, yes=yes))


def refused(run: RunFolder) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        cleaned(run)
    return caught.value


def text_of(report: SimpleResult) -> str:
    lines = [line.lines() if isinstance(line, Table) else [plain_text(line)] for line in report.lines()]
    return "\n".join(text for texts in lines for text in texts)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_last_and_the_best_stay_and_the_rest_goes(run: RunFolder) -> None:
    report = cleaned(run)
    assert list_complete_steps(run) == [200, 400]
    assert_newest(run, 400)
    assert (report.exit_code, report.values["removed"]) == (0, True)
    assert text_of(report).startswith("removed 2 folders, ")


@pytest.mark.parametrize(("keep", "left"), [(1, [200, 400]), (2, [200, 300, 400]), (4, [100, 200, 300, 400])])
def test_as_many_of_the_last_stay_as_asked_for(run: RunFolder, keep: int, left: list[int]) -> None:
    report = cleaned(run, keep=keep)
    assert list_complete_steps(run) == left
    assert report.exit_code == 0
    assert ("nothing to remove" in text_of(report)) == (keep == 4)


def test_without_yes_and_with_nobody_to_ask_sizes_are_shown_and_nothing_goes(run: RunFolder) -> None:
    before = everything(run.steps)
    report = cleaned(run, yes=False)
    assert everything(run.steps) == before
    assert (report.exit_code, report.values["removed"]) == (1, False)
    size = sum(len(data) for name, data in before.items() if name.startswith(("step-000100", "step-000300")))
    assert report.values["bytes"] == size
    for word in ("step-000100", "step-000200", "remove", "keep", "the last", "the best", "MB", "--yes"):
        assert word in text_of(report)


@pytest.mark.parametrize("answer", [True, False])
def test_who_is_asked_sees_every_folder_and_decides(run: RunFolder, answer: bool) -> None:
    asked: list[tuple[list[Line], str]] = []

    def answerer(lines: object, question: str) -> bool:
        asked.append((list(lines), question))  # type: ignore[call-overload]
        return answer

    with use_prompt_callbacks(answerer):
        report = cleaned(run, yes=False)
    ((lines, question),) = asked
    assert isinstance(lines[0], Table)
    assert len(lines[0].rows) == 4
    assert question.startswith("remove 2 folders")
    assert list_complete_steps(run) == ([200, 400] if answer else [100, 200, 300, 400])
    assert report.exit_code == 0
    assert ("removed 2" in text_of(report)) == answer


def test_what_was_removed_without_asking_is_shown_afterwards(run: RunFolder) -> None:
    lines = text_of(cleaned(run)).splitlines()
    assert lines[0].startswith("removed 2 folders, ")
    fates = {line.split()[0]: line.split()[3] for line in lines if line.startswith("step-")}
    assert fates == {
        "step-000100": "removed",
        "step-000200": "kept",
        "step-000300": "removed",
        "step-000400": "kept",
    }


def test_the_first_and_the_best_are_called_so(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, 0, 100, 200, 300, keep=(0, 100))
    why = {one["folder"]: one["why"] for one in cleaned(run).values["folders"]}
    assert why["step-000000"].startswith("the first")
    assert (why["step-000100"], why["step-000200"], why["step-000300"]) == ("the best", "older", "the last")
    assert list_complete_steps(run) == [0, 100, 300]


def test_nothing_is_asked_when_there_is_nothing_to_remove(run: RunFolder) -> None:
    cleaned(run)
    with use_prompt_callbacks(lambda *_: pytest.fail("asked")):
        assert cleaned(run, yes=False).exit_code == 0


def test_a_run_without_steps_is_clean(tmp_path: Path) -> None:
    report = cleaned(new_run(tmp_path))
    assert (report.exit_code, text_of(report)) == (0, "nothing to remove")
    assert not (tmp_path / "steps").exists()


def test_a_run_at_which_a_trainer_works_is_refused(run: RunFolder) -> None:
    with run.lock("train"):
        assert refused(run).code == "run-locked"
    assert list_complete_steps(run) == [100, 200, 300, 400]


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    assert refused(RunFolder(tmp_path)).code == "file-missing"
    assert names_in(tmp_path) == ["steps"]
    assert refused(RunFolder(tmp_path / "nowhere")).code == "file-missing"


# ---- damaged steps and remains ------------------------------------------------------------------------------


def test_the_last_is_the_last_whole_one_down_to_the_bit(run: RunFolder) -> None:
    flip_bit(run.step(400) / "optimizer.safetensors")
    report = cleaned(run)
    assert list_complete_steps(run) == [200, 300]
    assert_newest(run, 300)
    assert run.step(400).is_dir()  # newer than the last whole one: somebody may want to look at it
    assert "incomplete" in {one["folder"]: one["why"] for one in report.values["folders"]}["step-000400"]


def test_damaged_steps_that_are_older_go_with_the_rest(run: RunFolder) -> None:
    (run.step(300) / "manifest.json").unlink()
    report = cleaned(run)
    assert names_in(run.steps) == ["step-000200", "step-000400"]
    assert (
        "manifest.json does not exist" in {one["folder"]: one["why"] for one in report.values["folders"]}["step-000300"]
    )


def test_a_damaged_best_step_stays(run: RunFolder) -> None:
    flip_bit(run.step(200) / "rows.safetensors")
    cleaned(run)
    assert names_in(run.steps) == ["step-000200", "step-000400"]


def test_without_a_whole_step_nothing_goes(run: RunFolder) -> None:
    for step in (100, 200, 300, 400):
        flip_bit(run.step(step) / "rows.safetensors")
    saved_by_child(run, 500, fault="save.verify:1:kill")
    (run.steps / "aside-1").mkdir()
    before = everything(run.steps)
    assert cleaned(run).exit_code == 0
    assert everything(run.steps) == before
    assert (run.steps / "aside-1").is_dir()


def test_remains_and_steps_set_aside_go(run: RunFolder) -> None:
    flip_bit(run.step(400) / "rows.safetensors")
    save(run, 400, 450)
    move_later_steps_aside(run, 400)
    shutil.copytree(run.step(400), run.steps / "step-000400.old")
    saved_by_child(run, 500, fault="save.verify:1:kill")
    assert len(names_in(run.steps)) == 8
    report = cleaned(run)
    assert names_in(run.steps) == ["step-000400"]  # the last save named no best step
    assert report.exit_code == 0
    assert_newest(run, 400)


def test_of_several_last_steps_each_is_named_and_what_they_replaced_or_outlived_goes(run: RunFolder) -> None:
    save(run, 400, keep=(300,))
    shutil.rmtree(run.steps / "step-000400.old", ignore_errors=True)
    shutil.copytree(run.step(300), run.steps / "step-000300.old")
    (run.step(200) / "manifest.json").unlink()
    whys = {one["folder"]: one["why"] for one in cleaned(run, keep=3).values["folders"]}
    assert names_in(run.steps) == ["step-000100", "step-000300", "step-000400"]
    assert whys["step-000300.old"] == "replaced by a newer save"
    assert whys["step-000200"].startswith("incomplete: ")
    assert [whys[f"step-000{step}"] for step in (100, 300, 400)] == [*["one of the last 3"] * 2, "the last"]


def test_what_is_not_ours_is_shown_and_never_touched(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.step(100), tmp_path / "elsewhere")
    (run.steps / "step-000050").symlink_to(tmp_path / "elsewhere")
    shutil.copytree(run.step(100), run.steps / "step-000100 backup")
    (run.steps / "notes.txt").write_text("mine")
    (run.path / "graft").mkdir()
    report = cleaned(run)
    assert names_in(run.steps) == ["notes.txt", "step-000050", "step-000100 backup", "step-000200", "step-000400"]
    assert len(names_in(tmp_path / "elsewhere")) == 5
    whys = {one["folder"]: one["why"] for one in report.values["folders"]}
    assert (whys["step-000050"], whys["notes.txt"]) == ("a link", "not written by voxgraft")


def test_a_step_that_cannot_be_removed_is_reported(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXGRAFT_FAULT", "remove.begin:1:eacces")
    report = cleaned(run)
    assert report.exit_code == 1
    assert [item["code"] for item in report.values["findings"]] == ["step-left"]
    assert "removed 1 folder," in text_of(report)
    assert list_complete_steps(run) == [100, 200, 400]


def test_a_run_of_a_newer_voxgraft_is_refused(run: RunFolder) -> None:
    edit_state(run.step(400), format=99)
    assert refused(run).code == "step-newer"
    assert len(names_in(run.steps)) == 4


# ---- on the command line ------------------------------------------------------------------------------------


def test_machines_are_reported_every_folder(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["clean", str(run.path), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["removed"] is False
    assert [folder["folder"] for folder in reported["folders"] if folder["remove"]] == ["step-000100", "step-000300"]
    assert run_cli(["clean", str(run.path), "--json", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] is True
    assert list_complete_steps(run) == [200, 400]


def test_keep_must_leave_a_step(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["clean", str(run.path), "--keep", "0", "--yes"]) == 2
    assert list_complete_steps(run) == [100, 200, 300, 400]


@pytest.mark.long(fast="y*")
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 2), (b"n\n", 4), (b"\n", 4)])
def test_a_person_at_a_terminal_is_asked(run: RunFolder, answer: bytes, left: int) -> None:
    large = {"body": {"weight": torch.zeros(10_000_000)}}
    save_step(run, TrainState(400, large, {}), keep_last=9, keep=[200])  # long enough to hash for a bar to show
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", IMPATIENT, "clean", str(run.path)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, env=environment)
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown and select.select([ours], [], [], 60)[0]:
        shown += os.read(ours, 4096)
    assert b"checking step 400" in shown
    assert b"step-000100" in shown
    assert shown.endswith(b"[y/N] ")
    os.write(ours, answer)
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert (b"removed 2 folders" in out) == (left == 2)
    assert len(list_complete_steps(run)) == left


def test_cleaning_needs_no_torch(run: RunFolder) -> None:
    program = (
        "import sys; from voxgraft.cli import run_cli; status = run_cli(['clean', sys.argv[1], '--quiet', '--yes'])\n"
        "sys.exit(status or ('torch' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, str(run.path)], check=True, cwd=ROOT)
