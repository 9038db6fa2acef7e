"""What merged training leaves, exported: the very checkpoint, with what it cost; a comparison is no export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fixtures import Fixtures
from tests.support.run_folders import copied, error_of, train_settings
from tests.support.synthesis import spoken
from tests.test_export import bits, exported
from voxgraft.evaluation.report import SCORES_FORMAT
from voxgraft.graft.folder import read_merged_card
from voxgraft.pipeline.train import train


def test_a_merged_run_gives_its_checkpoint_with_its_measured_cost_and_a_grown_base_beside_it(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    world = fixtures.stopping_world()
    run = copied(world, tmp_path / "run")
    data = {"replay": (run / "data" / "english",), "replay_valid": (run / "data" / "english-valid",)}
    train(train_settings(world, run, mode="merged", **data))
    card = read_merged_card(run / "merged")
    result = exported(run, "--to=indextts2", f"--base={world.files.folder}")
    merged = bits(result.folder / "merged" / "gpt.pth")
    own = bits(run / "merged" / card["checkpoint"])
    assert merged.keys() == own.keys()
    assert all((merged[name] == own[name]).all() for name in own)
    reported = {one["language"]: one for one in result.card["measured_cost"]}
    before = card["speech_losses_before"]
    assert reported["en"]["before"] == before["en"]
    assert reported["en"]["measure"] == "speech loss"
    page = (result.folder / "README.md").read_text(encoding="utf-8")
    assert f"| en | speech loss | {before['en']:.4f} |" in page
    assert result.card["checkpoints"]["extended"]["changed"] == 0
    assert json.loads((result.folder / "export.json").read_text(encoding="utf-8"))["step"] == card["step"]


@pytest.mark.long
def test_a_cost_is_reported_only_of_the_very_checkpoint_that_was_measured(fixtures: Fixtures, tmp_path: Path) -> None:
    world = fixtures.stopping_world()
    run = copied(world, tmp_path / "run")
    train(train_settings(world, run, mode="merged", steps=1))
    card = read_merged_card(run / "merged")
    row = {"language": "en", "who": "after", "title": "", "scores": {"cer": {"value": 0.25, "count": 4}}}
    document = {"format": SCORES_FORMAT, "rows": [row], "retention": {}, "language": "am"}
    for name, digest in {"own": card["checkpoint_sha256"], "other": "0" * 64, "old": None}.items():
        about = {"mode": "merged", "step": card["step"], "checkpoint_sha256": digest}
        (run / "eval" / name).mkdir(parents=True)
        text = json.dumps({**document, "subject": about})
        (run / "eval" / name / "scores.json").write_text(text, encoding="utf-8")
    result = exported(run, "--to=indextts2", f"--base={world.files.folder}", "--parts=merged")
    reported = [one["source"] for one in result.card["measured_cost"] if one["measure"] == "letter error"]
    assert reported == ["evaluation own"]


@pytest.mark.long
def test_a_masked_baseline_is_not_exported(fixtures: Fixtures, tmp_path: Path) -> None:
    world = fixtures.stopping_world()
    run = copied(world, tmp_path / "run")
    train(train_settings(world, run, baseline="masked-finetune", steps=2))
    error = error_of(lambda: exported(run, "--to=indextts2", f"--base={world.files.folder}"))
    assert error.code == "export-seeds"
    assert not (run / "export").exists()


@pytest.mark.long
def test_a_merged_run_of_indextts2_speaks_although_its_base_knows_fewer_rows(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    world = fixtures.stopping_world()
    run = copied(world, tmp_path / "run")
    train(train_settings(world, run, mode="merged", steps=1))
    words = ("ሰላም", f"--run={run}", f"--base={world.files.folder}", "--max-seconds=0.3", "--variant=merged")
    result = spoken(*words, f"--codes={tmp_path / 'codes.json'}")
    assert result.said[0].language == "am"
    assert result.said[0].pieces[0].codes
