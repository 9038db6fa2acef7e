"""What a message advises is true and can be done: it names the command's own run, and never blames what is right."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from voxgraft.cli import COMMANDS, run_cli
from voxgraft.config.commands import DiagnoseSettings, EvaluateSettings, TokenizerProveSettings
from voxgraft.config.data import DataImportSettings, DataReportSettings
from voxgraft.core.errors import VoxgraftError, fill_placeholders, find_nearest_name, finding, raise_first_error
from voxgraft.core.files import read_text, write_text
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import assign_voices
from voxgraft.data.report import data_report
from voxgraft.evaluation.command import evaluate
from voxgraft.graft.command import tokenizer_prove
from voxgraft.graft.folder import load_graft, read_merged_card
from voxgraft.inspect.diagnose import diagnose
from voxgraft.models import get_family


def outcome(words: Sequence[str | Path], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The error, or the result, that a command line prints as JSON."""
    run_cli([*map(str, words), "--json"])
    printed = json.loads(capsys.readouterr().out)
    result: dict[str, Any] = printed.get("error", printed)
    return result


@pytest.fixture
def new_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run with sources that are not imported yet."""
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.txt").write_text("ሰላም", encoding="utf-8")
    run = tmp_path / "my run"
    assert run_cli(["new", str(run), "--base=tiny", "--language=am", f"--sources={tmp_path / 'talks'}"]) == 0
    capsys.readouterr()
    return run


def test_a_fix_names_what_the_command_line_names() -> None:
    with fill_placeholders({"RUN": "'my run'", "BASE": "C:\\1"}):
        filled = finding("graft-broken", "odd").cure, finding("base-moved", "odd", cure="see RUN/graft and BASE").cure
    assert filled == (
        "check the path. If it is the right folder, create the graft again with `voxgraft graft 'my run'`, or download it again.",
        "see RUN/graft and C:\\1",
    )
    assert "voxgraft graft RUN" in finding("graft-broken", "odd").cure
    # A path with such a word stays as it is, also in an error that is made of a finding.
    with fill_placeholders({"RUN": "my-BASE", "BASE": "the-RUN"}):
        item = finding("base-moved", "odd", cure="RUN on BASE")
        errors = [error_of(lambda: raise_first_error([item])), VoxgraftError.of(item)]
    assert {item.cure, *(error.finding.cure for error in errors)} == {"my-BASE on the-RUN"}


def test_the_number_of_further_errors_is_reported_with_their_codes() -> None:
    items = [finding(code, "odd") for code in ("graft-broken", "set-empty", "set-empty")]
    error = error_of(lambda: raise_first_error(items))
    assert error.code == "graft-broken"
    assert error.finding.cure.endswith("There are 2 more errors (set-empty); `voxgraft check RUN` lists all.")


@pytest.mark.parametrize("command", ["train", "evaluate", "export"])
def test_a_run_without_a_graft_is_reported_so_by_every_command_with_a_next_step(
    command: str, new_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = outcome([command, new_run], capsys)
    assert error["code"] == "graft-missing"
    assert f"voxgraft go '{new_run}'" in error["cure"]


def test_sources_that_are_not_imported_yet_are_no_missing_file(
    new_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, code in (("graft", "config-missing"), ("prepare", "dataset-missing")):
        error = outcome([command, new_run], capsys)
        assert error["code"] == code
        assert f"voxgraft go '{new_run}'" in error["cure"]
    assert {item["code"] for item in outcome(["check", new_run], capsys)["findings"]} == {"graft-missing"}


def test_a_run_that_was_never_started_is_not_told_that_its_training_is_lost(new_run: Path) -> None:
    verdict = diagnose(DiagnoseSettings(checkpoint=new_run, report=False)).found.verdict
    assert verdict.word == "START FRESH"
    assert verdict.commands == (f"voxgraft go '{new_run}'",)
    assert "nothing was trained" in verdict.reason


def test_the_previous_graft_is_offered_only_where_there_is_one(fixtures: Fixtures, tmp_path: Path) -> None:
    graft = fixtures.whole_run("tiny").copied(tmp_path / "run").folder.graft
    previous = graft.with_name("graft.previous")
    shutil.rmtree(previous, ignore_errors=True)
    card = graft / "graft.json"
    value = json.loads(card.read_text(encoding="utf-8"))
    del value["card_sha256"]
    card.write_text(json.dumps({**value, "rows_sha256": "0" * 64}), encoding="utf-8")
    error = error_of(lambda: load_graft(graft))
    assert error.code == "graft-mismatch"
    assert "graft.previous" not in error.finding.cure
    previous.mkdir()
    assert "graft.previous" in error_of(lambda: load_graft(graft)).finding.cure


def test_a_graft_for_another_language_than_the_runs_is_reported_as_such(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    text = run.folder.settings.read_text(encoding="utf-8")
    text, count = re.subn(r"(?m)^language: .*$", "language: ti", text)
    assert count == 1
    run.folder.settings.write_text(text, encoding="utf-8")
    codes = {item["code"] for item in outcome(["check", run.path], capsys)["findings"]}
    assert "graft-other-language" in codes
    assert "tag-splits" not in codes
    assert outcome(["train", run.path], capsys)["code"] == "graft-other-language"


def test_parts_that_a_graft_lacks_are_named(fixtures: Fixtures, tmp_path: Path) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    card = json.loads((run.folder.graft / "graft.json").read_text(encoding="utf-8"))
    (run.folder.graft / card["tokenizer"]).unlink()
    error = error_of(lambda: load_graft(run.folder.graft))
    assert (error.code, error.finding.found) == ("graft-broken", f"{card['tokenizer']} is missing from the graft")
    (run.folder.graft / card["tokenizer"]).write_text("{bad", encoding="utf-8")
    error = error_of(lambda: load_graft(run.folder.graft))
    assert error.code == "graft-broken"
    assert error.finding.found.startswith(f"{card['tokenizer']}: line 1")
    shutil.rmtree(run.folder.graft)
    assert f"voxgraft go {run.path}" in error_of(lambda: load_graft(run.folder.graft)).finding.cure
    settings = EvaluateSettings(model=run.path)
    assert error_of(lambda: evaluate(settings)).code == "graft-missing"
    missing = error_of(lambda: read_merged_card(run.path / "merged"))
    assert missing.code == "merged-missing"
    assert "--train.mode merged" in missing.finding.cure


def test_a_step_of_a_run_without_steps_needs_training_first(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    error = outcome(["speak", "ሰላም", "--run", run.path, "--step", "5", "--output", tmp_path / "a.wav"], capsys)
    assert (error["code"], error["expected"]) == ("step-missing", "")
    assert f"voxgraft train {run.path}" in error["cure"]


def test_a_rate_from_a_flag_is_put_down_to_the_command_line(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    found = outcome(["check", run.path, "--train.lr-rows=5"], capsys)["findings"]
    assert [item["where"] for item in found if item["code"] == "rate-out-of-range"] == ["command line"]


# ---- diagnose ---------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_checkpoint_does_not_blame_the_base(tmp_path: Path) -> None:
    settings = DiagnoseSettings(checkpoint=tmp_path, base=Path("tiny"), report=False)
    assert error_of(lambda: diagnose(settings)).code == "checkpoint-missing"


class Caller:
    """Runs a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_a_file_with_code_is_never_advised_to_be_copied_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps({"a": Caller()}))
    found = diagnose(DiagnoseSettings(checkpoint=path, base=Path("tiny"), report=False)).found
    assert {item.code for item in found.findings} >= {"checkpoint-pickle", "pickle-code"}
    assert found.verdict.word == "START FRESH"
    assert "source that you trust" in found.verdict.reason
    assert "copy" not in found.verdict.sentence + found.verdict.reason
    assert "executed" not in capsys.readouterr().out


def test_a_truncated_file_is_to_be_copied_again_and_not_confused_with_the_base(tmp_path: Path) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    path = tmp_path / "t3.safetensors"
    path.write_bytes((base / "t3.safetensors").read_bytes()[:1_000_000])
    found = diagnose(DiagnoseSettings(checkpoint=path, base=Path("tiny"), report=False)).found
    assert "good copy" in found.verdict.sentence
    assert found.sizes is not None
    assert {row[2] for row in found.sizes.rows} == {"tokenizer.json of the base", "t3.safetensors of the base"}


def test_reports_of_two_files_of_one_name_have_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("d.pt", "d.safetensors"):
        Path(name).write_bytes(b"neither of them")
        diagnose(DiagnoseSettings(checkpoint=Path(name), base=Path("tiny")))
    assert {path.name for path in tmp_path.glob("diagnosis-*")} == {"diagnosis-d.pt", "diagnosis-d.safetensors"}


# ---- texts, files, recordings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named_with_the_command_that_converts_it(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "ሰላም ለዓለም\n" if encoding == "utf-16" else "hello\n"  # known by its mark, or by its NUL bytes
    path.write_bytes(text.encode(encoding))
    error = error_of(lambda: read_text(path))
    assert error.code == "text-not-utf8"
    assert "iconv -f UTF-16 -t UTF-8" in error.finding.cure
    path.write_bytes(b"\x7fELF\x02\x01\x00 and more, which is no text")
    assert error_of(lambda: read_text(path)).code == "text-binary"


def test_an_output_below_a_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    for below in ("b.wav", "c/b.wav"):
        error = error_of(lambda below=below: write_text(tmp_path / "taken" / below, "y"))
        assert (error.code, error.finding.where) == ("not-a-file", str(tmp_path / "taken"))


def _import(folder: Path, sources: Path) -> tuple[Any, DatasetFolder]:
    result = data_import(DataImportSettings(dataset=folder, sources=(sources,), language="am", workers=1))
    return result, DatasetFolder(folder)


def test_recordings_with_nan_are_rejected_by_that_name(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    rate, chance = 24_000, np.random.default_rng(0)
    for name, bad in (("good", []), ("nan", [np.nan]), ("inf", [np.inf, -np.inf])):
        samples = chance.normal(0, 0.1, 2 * rate).astype(np.float32)
        samples[10_000 : 10_000 + len(bad)] = bad
        soundfile.write(sources / f"{name}.wav", samples, rate, subtype="FLOAT")
        (sources / f"{name}.txt").write_text(f"ሰላም ለዓለም እንዴት ነህ {name}", encoding="utf-8")
    result, dataset = _import(tmp_path / "clips", sources)
    rejected = {Path(clip.source.rpartition(":")[0]).stem: "not-finite" in clip.rejected for clip in dataset.clips()}
    assert rejected == {"good": False, "nan": True, "inf": True}
    assert [problem.code for problem in result.problems] == ["media-not-finite"] * 2
    data_report(DataReportSettings(dataset=tmp_path / "clips", workers=1))
    assert sum("not-finite" in clip.rejected for clip in dataset.clips()) == 2


def test_a_copy_in_the_same_import_is_not_called_imported_before(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "talks" / name).mkdir(parents=True)
        noise = np.random.default_rng(1).normal(0, 0.1, 48_000)
        soundfile.write(tmp_path / "talks" / name / "a.wav", noise, 24_000)
        text = "1\n00:00:00,100 --> 00:00:01,900\nሰላም ለዓለም\n"
        (tmp_path / "talks" / name / "a.srt").write_text(text, encoding="utf-8")
    result, _ = _import(tmp_path / "clips", tmp_path / "talks")
    assert list(result.plan.copies) == ["a"]
    shown = [str(line) for line in result.lines()]
    assert not any(line.startswith("imported before") for line in shown)
    assert any("it is used once" in line for line in shown)


def test_an_unknown_voice_is_answered_with_voices_and_a_missing_sign_with_the_form() -> None:
    for given, says in (("talk0=zed", "choose a voice"), ("talk0", "SPEAKER=VOICE")):
        error = error_of(lambda given=given: assign_voices(["talk0"], ["m1", "f1"], [given]))
        assert error.code == "config-value"
        assert says in error.finding.cure


def test_a_tokenizer_that_encodes_everything_as_one_word_improves_nothing(tmp_path: Path) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"hello": 0, "world": 1}), encoding="utf-8")
    proof = tokenizer_prove(TokenizerProveSettings(base=base, extended=path, language="am"))
    assert proof.counts.base_unknown_moved > proof.counts.base_unknown_better
    assert not proof.old_text_same


# ---- the command line -------------------------------------------------------------------------------------------------


def test_help_shows_a_command_the_settings_that_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("prepare", "graft", "check"):
        assert run_cli([command, "--help"]) == 0
        assert "--train." not in capsys.readouterr().out
        assert run_cli([command, "--help", "--all"]) == 0
        assert "--train.lr-rows" in capsys.readouterr().out
    for verb in COMMANDS:
        known = {leaf.key for leaf in verb.leaves()} | {leaf.section for leaf in verb.leaves()}
        assert set(verb.reads) <= known, verb.name


@pytest.mark.parametrize(
    ("name", "valid", "nearest"),
    [
        ("nothing", ["import", "split", "graft", "train"], None),
        ("trian", ["import", "split", "graft", "train"], "train"),
        ("--train.freeze", ["--train.recognizer", "--train.steps"], None),
        ("--train.stepz", ["--train.recognizer", "--train.steps"], "--train.steps"),
        ("--row.noise", ["--rows.noise", "--rows.init"], "--rows.noise"),
    ],
)
def test_only_a_name_that_was_probably_meant_is_suggested(name: str, valid: list[str], nearest: str | None) -> None:
    assert find_nearest_name(name, valid) == nearest


def test_the_talks_of_the_tutorial_start_without_a_warning() -> None:
    words = [sys.executable, "-W", "error", "-m", "voxgraft.demo.data"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Warning" not in done.stderr
