"""`diagnose` on runs of our own, and what it leaves: a report, a picture, JSON, an exit code."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.check_files import state_of
from tests.support.damaged_checkpoints import INDEX, Ground, make_ground, moved_body
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of
from tests.support.synthesis import spoken
from voxgraft.cli import run_cli as run_command
from voxgraft.config.commands import DiagnoseSettings, ExportSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.core.run import RunJournal
from voxgraft.export.command import export
from voxgraft.graft.folder import MERGED_FORMAT, load_graft
from voxgraft.inspect.diagnose import (
    DIAGNOSIS_JSON_NAME,
    DIAGNOSIS_PICTURE_NAME,
    DIAGNOSIS_REPORT_NAME,
    DiagnoseResult,
    diagnose,
    diagnose_checkpoint,
    keeps_base_languages,
)
from voxgraft.models.base import BaseFiles


def of_run(path: Path) -> DiagnoseResult:
    return diagnose(DiagnoseSettings(checkpoint=path, report=False))


def test_a_trained_run_is_resumed(fixtures: Fixtures) -> None:
    run = fixtures.trained_run("chatterbox")
    found = of_run(run.path).found
    assert found.verdict.word == "RESUME", found.verdict
    (command,) = found.verdict.commands
    assert command.startswith(f"voxgraft train {run.path} ")
    assert "--train.batch-tokens" in command  # run.yaml of this run has another value than its training had
    assert f"the newest complete one is {run.steps[-1]}" in found.what
    assert not [item for item in found.findings if item.level == "error"]


def test_a_run_whose_newest_step_is_damaged_goes_on_from_the_one_before(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    newest = run.folder.step(run.steps[-1])
    biggest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    biggest.write_bytes(biggest.read_bytes()[:-8])
    before = run.steps[-1]
    found = of_run(run.path).found
    assert found.verdict.word == "RESUME"
    assert f"step {before} is complete" in found.verdict.reason
    assert "step-damaged" in {item.code for item in found.findings}


def test_a_run_without_any_whole_step_starts_fresh(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    for step in list(run.steps):
        (run.folder.step(step) / "manifest.json").unlink()
    found = of_run(run.path).found
    assert found.verdict.word == "START FRESH"
    (command,) = found.verdict.commands
    assert command.startswith(f"voxgraft train {run.path} ")
    assert command.endswith(" --fresh")


@pytest.mark.long
def test_a_run_on_another_base_starts_fresh(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox")
    other = fixtures.base("chatterbox", seed=7)
    found = diagnose(DiagnoseSettings(checkpoint=run.path, base=other.folder, report=False)).found
    assert found.verdict.word == "START FRESH"
    assert "base-other" in {item.code for item in found.findings}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(INDEX, tmp_path_factory.mktemp("ground"))


def test_the_report_has_the_verdict_the_command_and_a_picture(ground: Ground, tmp_path: Path) -> None:
    path = ground.write(tmp_path, moved_body(ground.grown(), ground.tables, 0.1))
    wanted = DiagnoseSettings(
        checkpoint=path, base=ground.base.folder, tokenizer=ground.tokenizer, output=tmp_path / "report"
    )
    result = diagnose(wanted)
    page = (tmp_path / "report" / DIAGNOSIS_REPORT_NAME).read_text(encoding="utf-8")
    assert "REPAIR" in page
    assert "voxgraft repair" in page
    assert "<script>" in page
    assert "://" not in page.replace("http://www.w3.org", "")
    assert (tmp_path / "report" / DIAGNOSIS_PICTURE_NAME).read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "report" / DIAGNOSIS_JSON_NAME).read_text(encoding="utf-8"))
    assert document["verdict"]["word"] == "REPAIR"
    assert document["body_distance"] == pytest.approx(0.1, rel=1e-3)
    assert result.exit_code == 1
    with pytest.raises(VoxgraftError, match="file-exists"):
        diagnose(wanted)


def test_a_name_with_markup_in_it_is_only_a_name(ground: Ground, tmp_path: Path) -> None:
    path = ground.write(tmp_path, ground.grown())
    odd = tmp_path / "<script>alert(1)<&.pth"
    shutil.move(path, odd)
    diagnose(DiagnoseSettings(checkpoint=odd, base=ground.base.folder, output=tmp_path / "report"))
    assert "<script>alert" not in (tmp_path / "report" / DIAGNOSIS_REPORT_NAME).read_text(encoding="utf-8")


def test_the_command_line_prints_json_and_exits_by_the_verdict(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ground.write(tmp_path, ground.grown())
    words = ["diagnose", str(path), "--base", str(ground.base.folder), "--tokenizer", str(ground.tokenizer)]
    assert run_command([*words, "--no-report", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"]["word"] == "RESUME"
    assert {table["tensor"] for table in printed["rows"]} == set(ground.tables)
    assert run_command([*words, "--no-report"]) == 0
    assert "RESUME: nothing is wrong with it" in capsys.readouterr().out


def test_without_a_base_it_says_what_it_needs(ground: Ground, tmp_path: Path) -> None:
    with pytest.raises(VoxgraftError, match="--base"):
        diagnose(DiagnoseSettings(checkpoint=ground.write(tmp_path, ground.grown()), report=False))


def merged_run(run: Path, ground_base: BaseFiles, *, english: float) -> Path:
    """A run with what merged training leaves: one checkpoint whose body moved, and a card with measured losses."""
    folder = run / "merged"
    folder.mkdir()
    graft = load_graft(run / "graft")
    state = moved_body(state_of(ground_base), list(graft.rows), 0.08)
    for name, rows in graft.rows.items():
        state[name] = torch.cat([state[name], torch.from_numpy(rows)])
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / ground_base.checkpoint.name)
    point = {"share": 0.5, "speech_losses": {"am": 3.0, "en": english}, "past_bound": {}}
    before = {"language": "am", "speech_losses_before": {"am": 6.0, "en": 2.0}}
    written = folder / ground_base.checkpoint.name
    card: dict[str, Any] = {
        "format": MERGED_FORMAT,
        "checkpoint": written.name,
        "checkpoint_sha256": compute_sha256(written),
        "label": "",
    }
    card |= {"share": 0.5, "points": [point], **before}
    (folder / "merged.json").write_text(json.dumps(card), encoding="utf-8")
    return written


def test_a_merged_run_whose_old_languages_were_measured_raises_no_alarm(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    checkpoint = merged_run(run.path, run.files, english=2.05)
    found = of_run(run.path).found
    assert found.verdict.word == "RESUME", found.verdict
    assert found.distance == pytest.approx(0.08, rel=1e-2)
    alone = diagnose(DiagnoseSettings(checkpoint=checkpoint, base=run.base, report=False)).found
    assert alone.verdict.word == "RESUME", alone.verdict
    assert "measured" in alone.verdict.reason


@pytest.fixture(scope="module")
def really_merged(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run after two dozen steps of merged training, with English beside the new language."""
    run = fixtures.whole_run("indextts2").copied(tmp_path_factory.mktemp("merged") / "run")
    world = run.world
    english = replace(world, made_from=replace(world.made_from, tokenizer_sha256=world.text_encoder.base.sha256))
    english.write("english", english.clips(24, 11, "en"), "replay", "en")
    english.write("english-valid", english.clips(6, 12, "en"), "valid", "en")
    changed = {"train_steps": 24, "train_save_every": 12, "train_valid_every": 12, "train_lr_adapter": 4e-3}
    old = {"data_replay": run.path / "data/english", "data_replay_valid": run.path / "data/english-valid"}
    assert run.train("--train.mode=merged", data_self_replay=0, **changed, **old).merged is not None
    return run


@pytest.mark.long
def test_a_merged_run_that_was_really_trained_raises_no_alarm(really_merged: WholeRun) -> None:
    run, merged = really_merged, really_merged.path / "merged"
    for place in (run.path, merged, merged / run.files.checkpoint.name):
        found = diagnose(DiagnoseSettings(checkpoint=place, base=run.base, report=False)).found
        assert found.verdict.word == "RESUME", found.verdict
        assert not [item for item in found.findings if item.level == "error"]
        assert found.distance
        assert found.distance > 0.002
    assert "old languages were measured" in found.verdict.reason


@pytest.mark.long
def test_a_merged_checkpoint_of_an_earlier_training_stands_for_the_last_one_nowhere(
    really_merged: WholeRun, tmp_path: Path
) -> None:
    run = really_merged.copied(tmp_path / "run")
    lines = run.folder.journal.read_text(encoding="utf-8").splitlines(keepends=True)
    begun = "".join(line for line in lines if json.loads(line)["kind"] == "start")
    run.folder.journal.write_text(begun, encoding="utf-8")  # as a training leaves it that began again and was stopped
    assert of_run(run.path).found.distance is None
    words = ("ሰ", f"--run={run.path}", f"--codes={tmp_path / 'a.json'}", "--max-seconds=0.2")
    assert error_of(lambda: spoken(*words)).code == "merged-stale"
    wanted = ExportSettings(model=run.path, to="indextts2", output=tmp_path / "out")
    assert error_of(lambda: export(wanted)).code == "merged-stale"
    spoken(*words, "--variant=merged")


def test_a_merged_run_that_lost_old_languages_is_repaired_whatever_its_own_bound_was(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    checkpoint = merged_run(run.path, run.files, english=4.0)
    found = diagnose(DiagnoseSettings(checkpoint=checkpoint, base=run.base, report=False)).found
    assert found.verdict.word == "REPAIR"
    assert "--body 0.18" in found.verdict.commands[0]


def test_losses_that_were_measured_on_another_file_count_for_nothing(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    checkpoint = merged_run(run.path, run.files, english=2.0)
    state = load_file(checkpoint)
    save_file({name: tensor * 1.001 for name, tensor in state.items()}, checkpoint)
    found = diagnose(DiagnoseSettings(checkpoint=checkpoint, base=run.base, report=False)).found
    assert found.verdict.word == "REPAIR", found.verdict


@pytest.mark.long
def test_a_run_with_a_broken_part_is_never_resumed(fixtures: Fixtures, tmp_path: Path) -> None:
    def damage(run: WholeRun, part: str) -> None:
        if part == "rows":
            (run.folder.graft / "rows.safetensors").unlink()
        elif part == "card":
            run.folder.card.write_text("{", encoding="utf-8")
        elif part == "journal":
            run.folder.journal.write_text("not a line\n", encoding="utf-8")
        elif part == "data":
            shutil.rmtree(run.folder.data)
        else:
            with RunJournal(run.folder.journal) as journal:
                journal.write("finding", 9, code="loss-not-finite", found="the loss is nan", level="error", where="x")

    for part in ("rows", "card", "journal", "data", "loss"):
        run = fixtures.trained_run("chatterbox").copied(tmp_path / part)
        damage(run, part)
        found = of_run(run.path)
        assert found.found.verdict.word != "RESUME", (part, found.found.verdict)
        assert found.found.verdict.commands
        assert found.exit_code == 1


def test_a_stop_that_was_overcome_and_a_warning_are_reported_with_resume(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.trained_run("chatterbox").copied(tmp_path / "run")
    with RunJournal(run.folder.journal) as journal:
        journal.write("finding", 1, code="loss-not-finite", found="the loss is nan", level="error", where="x")
    verdict = of_run(run.path).found.verdict
    assert verdict.word == "RESUME"
    assert "nothing is wrong" not in verdict.sentence
    assert "loss-not-finite" in verdict.reason


def test_a_run_that_was_never_trained_and_has_no_data_is_reported_what_comes_first(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run = fixtures.whole_run("chatterbox").copied(tmp_path / "run")
    shutil.rmtree(run.folder.data)
    verdict = of_run(run.path).found.verdict
    assert verdict.word == "RESUME"
    assert "its data is not prepared yet" in verdict.sentence
    assert verdict.commands == (f"voxgraft go {run.path} --data.sources RECORDINGS",)


def test_a_path_that_is_not_there_gets_no_verdict(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["diagnose", str(tmp_path / "nothere.pth"), "--base", str(ground.base.folder), "--no-report"]
    assert run_command(words) == 2
    assert "file-missing" in capsys.readouterr().err


def test_a_part_of_a_run_gets_no_verdict_but_the_name_of_its_run(fixtures: Fixtures) -> None:
    run = fixtures.trained_run("chatterbox")
    step = run.folder.step(run.steps[-1])
    for part in (run.folder.graft, run.folder.graft / "rows.safetensors", step, step / "rows.safetensors"):
        with pytest.raises(VoxgraftError, match="checkpoint-part"):
            diagnose(DiagnoseSettings(checkpoint=part, base=run.base, report=False))


def test_where_no_base_was_heard_ears_say_nothing_of_old_languages(ground: Ground, tmp_path: Path) -> None:
    path = ground.write(tmp_path, moved_body(ground.grown(), ground.tables, 0.1))
    found = diagnose_checkpoint(DiagnoseSettings(checkpoint=path, base=ground.base.folder, report=False))
    found.heard = [{"language": "en", "who": "checkpoint", "sentences": 3, "phone_error": 0.0}]
    assert keeps_base_languages(found) is None
    found.heard.append({"language": "en", "who": "base", "sentences": 3, "phone_error": 0.1})
    assert keeps_base_languages(found) is True
    found.heard.append({"language": "fr", "who": "base", "sentences": 3, "phone_error": 0.1})
    assert keeps_base_languages(found) is False
