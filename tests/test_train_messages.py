"""What `train` says and leaves so that nobody is surprised later: flags that are not kept, steps that are gone, whose step a graft is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.run_folders import FLAGS, WholeRun, graft_anew
from tests.test_train_summary import Heard
from voxgraft.config.run import RunSettings, find_overrides
from voxgraft.core import progress
from voxgraft.core.errors import GraftError
from voxgraft.core.files import compute_sha256
from voxgraft.core.results import plain_text
from voxgraft.core.run import RunFolder
from voxgraft.graft.folder import load_graft
from voxgraft.pipeline.train import TrainResult


@pytest.fixture(scope="module")
def made(fixtures: Fixtures) -> WholeRun:
    """A run that was not trained yet."""
    return fixtures.whole_run("chatterbox")


@pytest.fixture(scope="module")
def first(made: WholeRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[WholeRun, TrainResult, dict[str, str]]:
    """The same trained for four steps, how it ended, and what it opened with."""
    run, heard = made.copied(tmp_path_factory.mktemp("trained") / "run"), Heard()
    with progress.use_progress_listener(heard):
        result = run.train()
    return run, result, heard.opening()


@pytest.fixture
def run(first: tuple[WholeRun, TrainResult, dict[str, str]], tmp_path: Path) -> WholeRun:
    return first[0].copied(tmp_path / "run")


def text_of(result: TrainResult) -> str:
    return "\n".join(plain_text(line) for line in result.lines() if not hasattr(line, "rows"))


# ---- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_flags_that_run_yaml_does_not_have_are_reported_before_and_after(
    first: tuple[WholeRun, TrainResult, dict[str, str]],
) -> None:
    _, result, opening = first
    assert set(result.only_now) == set(FLAGS)
    assert result.only_now["train.steps"] == "4"
    assert "train.steps: 4" in opening["flags"]
    said = text_of(result)
    assert "for this command only (not in run.yaml): " in said
    assert "train.steps: 4" in said
    assert "repeat the flags; to keep them, write them into run.yaml" in said
    assert result.to_json()["only_now"] == result.only_now


def test_what_stands_in_run_yaml_is_not_told_again(run: WholeRun) -> None:
    lines = run.folder.settings.read_text(encoding="utf-8").splitlines()
    written = ["  steps: 4" if line.startswith("  steps:") else line for line in lines]
    run.folder.settings.write_text("\n".join(written) + "\n", encoding="utf-8")
    assert "train.steps" not in run.train().only_now


def test_two_ways_to_one_file_are_the_same_and_a_run_without_settings_has_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    assert find_overrides(folder, RunSettings(base=Path("elsewhere"))) == {}
    folder.settings.write_text("base: ../base\ntrain:\n  seed: 3\n")
    assert find_overrides(folder, RunSettings.model_validate({"base": tmp_path / "base", "train": {"seed": 3}})) == {}
    other = RunSettings.model_validate({"base": tmp_path / "other", "data": {"train": ["a", "b"]}})
    assert find_overrides(folder, other) == {
        "base": str(tmp_path / "other"),
        "data.train": f"[{Path('a').absolute()}, {Path('b').absolute()}]",
        "train.seed": "0",
    }


# ---- the graft ------------------------------------------------------------------------------------------------------


def test_the_last_lines_say_which_step_the_graft_is(first: tuple[WholeRun, TrainResult, dict[str, str]]) -> None:
    run, result, _ = first
    best = result.outcome.best_state.best_step
    assert f"graft: {run.folder.graft}, with the weights of step {best:,}" in text_of(result)
    assert result.to_json()["graft_step"] == load_graft(run.folder.graft).card.method["trained"]["step"] == best


def test_a_trained_grafts_card_has_the_hashes_of_its_adapter_and_the_version_of_torch(run: WholeRun) -> None:
    card = load_graft(run.folder.graft).card
    folder = run.folder.graft / "adapter"
    assert card.adapter == {path.name: compute_sha256(path) for path in folder.iterdir()}
    assert card.versions["torch"] == torch.__version__
    assert "adapter/" in (run.folder.graft / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_graft_whose_adapter_is_not_the_one_that_was_written_is_refused(run: WholeRun, damage: str) -> None:
    path = run.folder.graft / "adapter" / "adapter_model.safetensors"
    if damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    else:
        path.unlink()
    with pytest.raises(GraftError) as caught:
        load_graft(run.folder.graft)
    assert caught.value.code == "graft-mismatch"
    assert "adapter/adapter_model.safetensors" in caught.value.finding.found


def test_a_card_cannot_lead_out_of_its_folder(run: WholeRun) -> None:
    path = run.folder.graft / "graft.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "adapter": {"../rows.safetensors": "0"}}))
    with pytest.raises(GraftError) as caught:
        load_graft(run.folder.graft)
    assert caught.value.code == "graft-broken"


# ---- steps that are gone --------------------------------------------------------------------------------------------


def opening_of(run: WholeRun, *flags: str) -> dict[str, str]:
    heard = Heard()
    with progress.use_progress_listener(heard):
        run.train(*flags, train_steps=2)
    return heard.opening()


@pytest.mark.long
def test_a_trained_graft_without_its_steps_is_not_trained_on_in_silence(run: WholeRun) -> None:
    rows, journal = run.rows(), run.folder.journal.read_bytes()
    shutil.rmtree(run.folder.steps)
    error = run.refused("steps-gone")
    assert "the graft's rows are trained (step 4)" in error.finding.found
    assert "--fresh" in error.finding.cure
    assert f"voxgraft graft {run.path}" in error.finding.cure
    assert run.folder.journal.read_bytes() == journal
    opening = opening_of(run, "--fresh")
    assert opening["start"].startswith("step 0, from the graft's rows from step 4 of an earlier training")
    begun = run.state(0).tensors["rows"]
    assert all(np.array_equal(values, begun[name].numpy()) for name, values in rows.items())


@pytest.mark.long
def test_fresh_says_that_it_begins_with_the_first_rows(run: WholeRun) -> None:
    assert opening_of(run, "--fresh")["start"] == "step 0, from the initial rows of the graft"


@pytest.mark.long
def test_a_journal_without_its_steps_is_not_cut_in_silence(run: WholeRun) -> None:
    """As where steps/ was lost, and the rows were made again since."""
    graft_anew(run)
    shutil.rmtree(run.folder.steps)
    error = run.refused("steps-gone")
    assert "the journal has step 4" in error.finding.found
    assert run.logged() == [1, 2, 3, 4]
    assert opening_of(run, "--fresh")["start"] == "step 0, from the initial rows of the graft"
