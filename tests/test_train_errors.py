"""Bad days of a run, through `voxgraft train` itself: each is a clear error, costs no saved step, and can be fixed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.datasets import write_document
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, graft_anew, grow_tokenizer
from tests.support.runs import as_nobody, child, flip_bit, program, read_only
from voxgraft.cli.app import run_cli as run_command
from voxgraft.core.run import RunJournal
from voxgraft.dataset.shards import DatasetRole
from voxgraft.graft.folder import load_graft
from voxgraft.models import family_names
from voxgraft.models.base import Clip

FAMILY = "chatterbox"


@pytest.fixture(scope="module")
def made(fixtures: Fixtures) -> WholeRun:
    """A run that was not trained yet."""
    return fixtures.whole_run(FAMILY)


@pytest.fixture(scope="module")
def trained(fixtures: Fixtures) -> WholeRun:
    """The same, trained for four steps."""
    return fixtures.trained_run(FAMILY)


@pytest.fixture
def run(trained: WholeRun, tmp_path: Path) -> WholeRun:
    """A trained run of one's own."""
    return trained.copied(tmp_path / "run")


def assert_goes_on(run: WholeRun, start: int = 4, **changed: Any) -> None:
    result = run.train(train_steps=start + 1, **changed)
    assert (result.start, result.outcome.step, result.outcome.reason) == (start, start + 1, "done")


def edited(run: WholeRun, edit: Callable[[int, Clip], Clip]) -> Iterator[Clip]:
    """The clips of the run's training set, each changed."""
    for at, clip in enumerate(run.world.clips(16, 1)):
        yield edit(at, clip)


# ---- tokenizer and base ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_another_tokenizer_is_refused_with_the_token_that_differs(run: WholeRun, trained: WholeRun) -> None:
    graft_anew(run, pieces=30, longest=2)
    stale = run.refused("set-stale", train_steps=6)
    assert "made_from.tokenizer_sha256" in stale.finding.found
    run.write_sets()
    error = run.refused("resume-changed", train_steps=6)
    rows = [line.split() for line in error.finding.found.splitlines()]
    before, now = (load_graft(one.folder.graft).card for one in (trained, run))
    assert ["num_rows", str(before.num_rows), str(now.num_rows)] in rows
    assert rows[-1][:2] == ["new", "token"]
    assert run.train("--fresh", train_steps=2).start == 0


@pytest.mark.long
def test_a_tokenizer_that_lost_pieces_is_refused(run: WholeRun) -> None:
    graft_anew(run, pieces=5)
    run.write_sets()
    run.refused("resume-changed", train_steps=6)


@pytest.mark.long
@pytest.mark.parametrize("family_name", family_names())
def test_a_tokenizer_that_only_grew_keeps_rows_and_moments_of_what_stayed(
    family_name: str, fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run(family_name).copied(tmp_path / "run")
    old = run.state()
    extra = grow_tokenizer(run, tmp_path)
    made_anew = run.rows()
    run.write_sets()
    # The rates rise so slowly that what was restored is still to be seen after a step.
    run.train(train_steps=5, train_warmup_steps=10**9, train_weight_decay=0)
    new = run.state()
    assert new.step == 5
    for name, rows in old.tensors["rows"].items():
        assert len(new.tensors["rows"][name]) == len(rows) + extra
        stayed, added = new.tensors["rows"][name][: len(rows)], new.tensors["rows"][name][len(rows) :]
        assert torch.allclose(stayed, rows, rtol=0, atol=1e-8)
        assert not np.array_equal(made_anew[name][: len(rows)], rows.numpy())
        assert np.allclose(added.numpy(), made_anew[name][len(rows) :], rtol=0, atol=1e-8)
    for name, values in old.tensors["adapter"].items():
        assert torch.allclose(new.tensors["adapter"][name], values, rtol=0, atol=1e-8)
    assert {key: float(value) for key, value in new.tensors["optimizer"].items() if key.endswith("/step")} == {
        key: float(value) + 1 for key, value in old.tensors["optimizer"].items() if key.endswith("/step")
    }
    changed = {line["key"]: (line["was"], line["now"]) for line in run.journal("changed")}
    assert changed["num_rows"][1] - changed["num_rows"][0] == extra
    assert "tokenizer_sha256" in changed
    assert changed["best step so far"][0] == 4
    assert load_graft(run.folder.graft).card.method["trained"]["step"] == 5


@pytest.mark.long
def test_other_bytes_in_the_base_are_refused(run: WholeRun, fixtures: Fixtures) -> None:
    other = fixtures.base(FAMILY, seed=0).folder
    error = run.refused("base-other", "--base", str(other), train_steps=6)
    assert "sha256" in error.finding.found
    assert_goes_on(run)


def test_a_base_that_is_not_there_is_refused(run: WholeRun, tmp_path: Path) -> None:
    run.refused("file-missing", "--base", str(tmp_path / "nowhere"))


# ---- sets -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_set_that_was_made_with_another_tokenizer_or_base_is_refused(run: WholeRun) -> None:
    sets: tuple[DatasetRole, ...] = ("train", "valid")
    for name in sets:
        for key, code in (("tokenizer_sha256", "set-stale"), ("base_sha256", "set-foreign")):
            world = run.world
            strange: dict[str, Any] = {key: "0" * 64}
            other = replace(world, made_from=replace(world.made_from, **strange))
            other.write(name, other.clips(8, 3), name)
            error = run.refused(code, train_steps=6)
            assert f"made_from.{key}" in error.finding.found
            assert error.finding.where.endswith(f"data/{name}")
        run.write_sets()
    assert_goes_on(run)


def test_a_set_without_clips_is_refused(run: WholeRun) -> None:
    path = run.folder.data_set("train") / "set.json"
    before = path.read_text()
    empty = {**json.loads(before), "shards": [], "counts": {"clips": 0}}
    write_document(path.parent, empty)
    run.refused("set-empty", train_steps=6)
    path.write_text(before)
    assert_goes_on(run)


@pytest.mark.long(fast="0")
@pytest.mark.parametrize("beyond", [0, 1_000_000])
def test_ids_without_a_row_are_refused_by_the_name_of_the_clip(run: WholeRun, beyond: int) -> None:
    size = load_graft(run.folder.graft).tokenizer.size

    def edit(at: int, clip: Clip) -> Clip:
        return replace(clip, text_ids=[size + beyond, *clip.text_ids[1:]]) if at == 5 else clip

    run.write_train_set(edited(run, edit))
    error = run.refused("clips-text-outside", train_steps=6)
    assert "clip1-00005" in error.finding.found
    run.write_sets()
    assert_goes_on(run)


@pytest.mark.long(fast="nan")
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_voice_that_is_no_number_is_refused_by_the_name_of_the_clip(run: WholeRun, number: float) -> None:
    def edit(at: int, clip: Clip) -> Clip:
        voice = {**clip.voice, "speaker": np.full(256, number, np.float32)}
        return replace(clip, voice=voice) if at == 5 else clip

    run.write_train_set(edited(run, edit))
    error = run.refused("clips-voice-broken", train_steps=6)
    assert "clip1-00005" in error.finding.found
    run.write_sets()
    assert_goes_on(run)


@pytest.mark.long(fast="3e*")
@pytest.mark.parametrize(("number", "code"), [(np.inf, "condition-form"), (3e38, "loss-not-finite")])
def test_a_number_that_only_training_meets_stops_it_before_the_optimizer_moves_and_names_the_clip(
    run: WholeRun, monkeypatch: pytest.MonkeyPatch, number: float, code: str
) -> None:
    """Of large sets only some voices are looked at beforehand; and a finite number can be too large to be used."""
    monkeypatch.setattr("voxgraft.dataset.run_data.MAX_VOICES_CHECKED", 1)

    def edit(at: int, clip: Clip) -> Clip:
        voice = {**clip.voice, "speaker": np.full(256, number, np.float32)}
        return replace(clip, voice=voice) if at == 5 else clip

    run.write_train_set(edited(run, edit))
    error = run.refused(code, train_steps=40, train_save_every=40, train_valid_every=40)
    assert "with the voice of clip1-00005" in str(error)
    finding = run.journal("finding")[-1]
    assert (finding["code"], finding["found"]) == (code, error.finding.found)
    assert run.logged()[-1] == finding["step"] - 1
    run.write_sets()
    assert_goes_on(run)


def test_a_set_of_the_other_family_is_refused(run: WholeRun, fixtures: Fixtures) -> None:
    other = fixtures.whole_run("indextts2")
    error = run.refused("set-foreign", f"--data.train={other.folder.data_set('train')}", train_steps=6)
    assert "family" in error.finding.found


def test_a_run_without_data_is_reported_what_to_do(run: WholeRun) -> None:
    shutil.rmtree(run.folder.data)
    error = run.refused("set-missing", train_steps=6)
    assert "data.train" in error.finding.cure
    assert error.finding.where.endswith("data/train")
    run.write_sets()
    assert_goes_on(run)


# ---- saved steps ----------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.long(fast="flipped")
@pytest.mark.parametrize(
    ("damage", "name"),
    [(cut, "optimizer.safetensors"), (flip_bit, "rows.safetensors"), (Path.unlink, "state.json")],
    ids=["cut", "flipped", "removed"],
)
def test_a_damaged_step_is_passed_by_said_and_made_again(
    run: WholeRun, trained: WholeRun, damage: Callable[[Path], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run.folder.step(4) / name)
    assert run_command(run.words()) == 0
    assert "step 4 is incomplete" in capsys.readouterr().err
    said = [line for line in run.journal("finding") if line["code"] == "step-damaged"]
    assert [line["step"] for line in said] == [2]
    assert run.steps == [0, 2, 4]
    assert (run.folder.steps / "aside-1" / "step-000004").is_dir()
    want = trained.state().tensors
    assert all(torch.equal(value, want["rows"][name]) for name, value in run.state().tensors["rows"].items())


@pytest.mark.long
def test_a_run_whose_steps_are_all_damaged_says_so_and_can_begin_again(run: WholeRun) -> None:
    for step in (0, 2, 4):
        flip_bit(run.folder.step(step) / "rows.safetensors")
    error = run.refused("step-damaged", train_steps=6)
    assert all(f"step {step}" in str(error) for step in (0, 2, 4))
    graft_anew(run)
    assert run.train("--fresh", train_steps=2).outcome.step == 2
    assert len(list((run.folder.steps / "aside-1").iterdir())) == 3


@pytest.mark.long
def test_a_full_disk_during_a_save_costs_no_earlier_step(run: WholeRun, trained: WholeRun) -> None:
    before = run.saved()
    done = program(run.words("--from-step", "2"), run.path, fault="save.folder:1:enospc").ended()
    assert done.returncode == 2
    assert "disk-full" in done.stderr
    assert "Traceback" not in done.stderr
    assert run.steps == [0, 2]
    assert {name: data for name, data in before.items() if "000004" not in name} == run.saved()
    assert not list(run.folder.steps.glob(".*"))
    run.train()
    want = trained.state().tensors["rows"]
    assert all(torch.equal(value, want[name]) for name, value in run.state().tensors["rows"].items())


# ---- processes ------------------------------------------------------------------------------------------------------


def wait_for(what: Callable[[], bool], is_running: Callable[[], bool]) -> None:
    while not what():
        assert is_running()
        time.sleep(0.01)


def has_logged(run: WholeRun, step: int) -> bool:
    path = run.folder.journal
    return path.exists() and any(line["kind"] == "step" and line["step"] >= step for line in RunJournal(path).read())


@pytest.mark.long
def test_a_second_trainer_is_refused_and_the_first_is_not_harmed(made: WholeRun, tmp_path: Path) -> None:
    run = made.copied(tmp_path / "run")
    first = program(run.words(train_steps=6), run.path, fault="save.folder:2:stop")
    stat = Path(f"/proc/{first.pid}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", first.is_running)
    try:
        error = run.refused("run-locked", train_steps=6)
        assert str(first.pid) in error.finding.found
        assert str(first.pid) in error.finding.cure
    finally:
        os.kill(first.pid, signal.SIGCONT)
    done = first.ended()
    assert (done.returncode, run.state().step) == (0, 6), done


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_step_with_a_save_and_words(
    made: WholeRun, tmp_path: Path, number: signal.Signals
) -> None:
    run = made.copied(tmp_path / "run")
    words = run.words(train_steps=100_000, train_save_every=100_000, train_valid_every=100_000)
    process = program(words, run.path)
    wait_for(lambda: has_logged(run, 2), process.is_running)
    os.kill(process.pid, number)
    done = process.ended()
    assert done.returncode == 130
    assert "stopped on request" in done.stdout
    assert "run the same command to resume" in done.stdout
    assert "Traceback" not in done.stderr
    last = run.logged()[-1]
    assert run.steps == [0, last]
    assert run.journal()[-1]["reason"] == "stopped"
    result = run.train(train_steps=last + 1)
    assert (result.start, result.outcome.step) == (last, last + 1)


@pytest.mark.long
def test_a_run_that_cannot_be_written_to_is_refused(trained: WholeRun) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(trained.base, folder / "base")
        run = replace(trained.copied(folder / "run"), base=folder / "base")
        with read_only(run.path):
            process = child(as_nobody, train_more, run)
            assert process.wait() == 0
        assert process.answer == "file-unwritable"
        assert_goes_on(run)


def train_more(run: WholeRun) -> str:
    return run.train("--base", str(run.base), train_steps=6).outcome.reason
