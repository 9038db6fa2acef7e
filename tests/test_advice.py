"""What a message advises is true and can be done: it names the command's own run, and never blames what is right."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

from tests.support.fixtures import Fixtures
from tests.support.run_folders import error_of
from voxgraft.cli import COMMANDS, run_cli
from voxgraft.config.commands import DiagnoseSettings, EvaluateSettings, TokenizerProveSettings
from voxgraft.config.data import DataImportSettings, DataReportSettings
from voxgraft.core.errors import VoxgraftError, fill_placeholders, find_nearest_name, finding, raise_first_error
from voxgraft.core.files import read_text, write_text
from voxgraft.core.run import RunJournal
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import assign_voices
from voxgraft.data.report import data_report
from voxgraft.evaluation.command import evaluate
from voxgraft.graft.command import tokenizer_prove
from voxgraft.graft.folder import load_graft, read_merged_card
from voxgraft.inspect.diagnose import diagnose
from voxgraft.models import get_family
from voxgraft.text.encoder import check_text_script


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
        "check the path. If it is the right folder, create the graft again with `voxgraft graft 'my run'`, or download it again. "
        "A trained run then needs `voxgraft train 'my run'`, which takes the trained rows from the saved steps "
        "(without any, add --fresh to train again).",
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


def edit_run_yaml(path: Path, key: str, value: str) -> None:
    text = path.read_text(encoding="utf-8")
    text, count = re.subn(rf"(?m)^( *){key}:.*$", rf"\g<1>{key}: {value}", text, count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")


def findings_of(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    """The findings of `check`, by code."""
    return {item["code"]: item for item in outcome(["check", run, *words], capsys)["findings"]}


@pytest.fixture
def text_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run with texts, without recordings and without a graft."""
    (tmp_path / "am.txt").write_text("ሰላም ለዓለም 25 ብር\nእንዴት ነህ Ω\n", encoding="utf-8")
    run = tmp_path / "run"
    assert run_cli(["new", str(run), "--base=tiny", "--language=am", f"--texts={tmp_path / 'am.txt'}"]) == 0
    capsys.readouterr()
    return run


def test_before_a_graft_only_characters_that_no_graft_adds_are_reported(
    text_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = findings_of(text_run, capsys)
    # Amharic's rules write numbers as words, and the graft adds its letters; a Greek letter stays without a token.
    assert not found.keys() & {"text-digits", "proof-unknown-letters"}
    unknown = found["proof-unknown-symbols"]["found"]
    assert "GREEK" in unknown
    assert "ETHIOPIC" not in unknown
    assert "DIGIT" not in unknown
    # What is left is what `graft` leaves.
    assert run_cli(["graft", str(text_run)]) == 0
    capsys.readouterr()
    assert "GREEK" in findings_of(text_run, capsys)["proof-unknown-symbols"]["found"]


@pytest.mark.parametrize("base", ["absent", "empty", ""])
def test_a_run_whose_base_cannot_be_opened_is_told_so_first(
    base: str, text_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text_run.parent / "empty").mkdir()
    edit_run_yaml(text_run / "run.yaml", "base", f"../{base}" if base else "")
    expected = {"absent": "file-missing", "empty": "base-unknown", "": "config-missing"}[base]
    assert outcome(["check", text_run], capsys)["not_checked"]["graft"] == "needs a base"
    assert run_cli(["check", str(text_run)]) == 1
    printed = capsys.readouterr().out
    assert 0 <= printed.index(f"error {expected}") < printed.index("error graft-missing")


def test_a_run_without_recordings_is_never_sent_to_prepare(text_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["check", text_run], capsys)["fine"] is False
    assert run_cli(["check", str(text_run)]) == 1
    assert f"next: voxgraft graft {text_run}" in capsys.readouterr().out.replace("\n", "")
    assert run_cli(["graft", str(text_run)]) == 0
    capsys.readouterr()
    go = f"voxgraft go {text_run} --data.sources RECORDINGS"
    assert go in findings_of(text_run, capsys)["set-missing"]["cure"]
    assert outcome(["prepare", text_run], capsys)["code"] == "dataset-missing"
    assert go in outcome(["prepare", text_run], capsys)["cure"]
    assert go in outcome(["train", text_run], capsys)["cure"]
    assert diagnose(DiagnoseSettings(checkpoint=text_run, report=False)).found.verdict.commands == (go,)


def test_settings_of_training_that_contradict_each_other_are_found_without_a_graft(
    text_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--train.full-backbone", "--train.steps=3", "--train.epochs=2")
    found = [item["found"] for item in outcome(["check", text_run, *words], capsys)["findings"]]
    assert sum("train.full_backbone" in text for text in found) == 1
    assert sum("train.steps" in text and "train.epochs" in text for text in found) == 1
    words = ("--train.full-backbone", "--train.mode=merged", "--train.steps=3")
    assert "config-value" not in findings_of(text_run, capsys, *words)


@pytest.mark.parametrize("flags", [("--train.steps=3", "--train.epochs=2")])
def test_training_refuses_settings_that_contradict_each_other(
    flags: tuple[str, ...], fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    assert outcome(["train", run.path, *flags], capsys)["code"] == "config-value"
    assert not run.folder.steps.exists()


def test_a_recognizer_of_training_is_checked_and_named_by_its_own_setting(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    words = ["--train.listen-every=1", "--train.recognizer=parrots"]
    item = findings_of(run.path, capsys, *words)["recognizer-unknown"]
    assert (item["where"], item["level"]) == ("train.recognizer", "error")
    error = outcome(["train", run.path, *words], capsys)
    assert (error["code"], error["where"]) == ("recognizer-unknown", "train.recognizer")
    assert "--recognizer" not in error["cure"]
    # A recognizer that is never asked is no error.
    assert "recognizer-unknown" not in findings_of(run.path, capsys, "--train.recognizer=parrots")
    evaluated = outcome(["evaluate", run.path, "--recognizer=parrots"], capsys)
    assert (evaluated["code"], evaluated["where"]) == ("recognizer-unknown", "--recognizer")


@pytest.mark.parametrize("command", ["train", "speak"])
def test_a_device_is_named_by_the_setting_that_chose_it(
    command: str, fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    words: list[str | Path] = ["train", run.path, "--train.device=abacus"]
    name = "train.device"
    if command == "speak":
        words, name = ["speak", "hello", "--device=abacus"], "--device"
    error = outcome(words, capsys)
    assert (error["code"], error["where"]) == ("device", name)


def test_training_that_was_started_with_flags_is_resumed_with_them(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    flags = ["--train.steps=2", "--train.lr-rows=0.0011", "--train.tensorboard=false", "--train.sample-every=100"]
    assert run_cli(["train", str(run.path), *flags]) == 0
    capsys.readouterr()
    (command,) = diagnose(DiagnoseSettings(checkpoint=run.path, report=False)).found.verdict.commands
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("voxgraft", "train")
    # The advised command changes no setting of the saved step: there is nothing left to train.
    result = outcome([verb, *words], capsys)
    assert (result["already"], result["step"]) == (True, 2)
    assert not [line for line in RunJournal(run.folder.journal).read() if line["kind"] == "changed"]


def test_flags_of_a_check_are_in_the_command_that_it_proposes(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    assert run_cli(["check", str(run.path), "--train.steps=7", "--train.deterministic"]) == 0
    *_, last = capsys.readouterr().out.rstrip().replace("\n  ", " ").splitlines()
    assert last == f"next: voxgraft train {run.path} --train.steps 7 --train.deterministic"


def test_a_run_in_another_language_than_its_graft_neither_speaks_nor_is_evaluated(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    edit_run_yaml(run.folder.settings, "language", "ti")
    commands: tuple[list[str | Path], ...] = (
        ["speak", "ሰላም", "--run", run.path, f"--output={tmp_path / 'x.wav'}"],
        ["evaluate", run.path],
    )
    for words in commands:
        assert outcome(words, capsys)["code"] == "graft-other-language"


def test_a_server_names_its_own_options_where_the_language_is_wrong(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn", reason="NOT TESTED: the server is absent (pip install 'voxgraft[server]')")
    error = outcome(["serve", "tiny", "--language=zu", "--port=0"], capsys)
    assert error["code"] == "speak-language"
    assert "--graft" not in error["cure"]
    assert "--run" not in error["cure"]


def test_a_base_is_not_downloaded_onto_a_file_and_a_mistyped_name_gets_all_that_begin_like_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        error = outcome(["download", "indextts2", folder, "--list"], capsys)
        assert (error["code"], error["where"]) == ("not-a-file", str(tmp_path / "taken"))
    cure = outcome(["download", "chaterbox"], capsys)["cure"]
    assert "`chatterbox-multilingual`" in cure
    assert "`chatterbox-english`" in cure
    assert "`indextts2`" in outcome(["download", "indextts"], capsys)["cure"]


def test_a_drop_in_is_refused_for_families_without_one_before_anything_is_read(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "run")
    error = outcome(["export", run.path, "--drop-in"], capsys)
    assert error["code"] == "export-kind"
    assert "tiny" in error["found"]
    assert "chatterbox" in error["expected"]
    assert "--to chatterbox" not in error["expected"]  # which no graft on tiny can be exported to


def test_a_licence_that_was_not_accepted_is_refused_before_the_base_is_read(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graft = tmp_path / "graft"
    shutil.copytree(fixtures.whole_run("xtts").folder.graft, graft)
    # A base that does not exist: with the licence accepted, that is what is refused.
    words: list[str | Path] = [
        "export",
        graft,
        f"--base={tmp_path / 'absent'}",
        f"--output={tmp_path / 'out'}",
        "--to=graft",
    ]
    assert outcome(words, capsys)["code"] == "licence-not-accepted"
    assert outcome([*words, "--accept-terms"], capsys)["code"] == "config-missing"


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--choose", "--language=zu"], "config-missing"),
        (["--choose", "--language=zu", "--tokenizer"], "repair-language"),
        (["--body=0.5", "--language=am"], "config-value"),
        (["--body=0.5", "--choose"], "config-value"),
    ],
)
def test_a_language_that_a_repair_cannot_speak_is_refused(
    flags: list[str], code: str, fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny")
    base = get_family("tiny").shipped_folder()
    assert base is not None
    words: list[str | Path] = [
        "repair",
        base / "t3.safetensors",
        "--base=tiny",
        f"--output={tmp_path / 'out.safetensors'}",
        *flags,
    ]
    if flags[-1] == "--tokenizer":
        words.append(load_graft(run.folder.graft).tokenizer.path)
    error = outcome(words, capsys)
    assert error["code"] == code
    assert not (tmp_path / "out.safetensors").exists()
    if code == "repair-language":
        assert error["expected"] == "one of am"


class _RunsSomething:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


@pytest.mark.parametrize("holds_tensors", [True, False])
def test_repair_is_advised_for_a_file_with_code_only_where_repair_can_convert_it(
    holds_tensors: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    path, output = tmp_path / "tuned.pt", tmp_path / "NEW.safetensors"
    tensors = load_file(base / "t3.safetensors") if holds_tensors else {}
    torch.save({**tensors, "extra": _RunsSomething()} if holds_tensors else _RunsSomething(), path)
    result = outcome(["check", "--checkpoint", path, "--base", "tiny"], capsys)
    (item,) = [item for item in result["findings"] if item["code"] == "pickle-code"]
    command = f"voxgraft repair {path} --base tiny --output NEW.safetensors"
    assert (command in item["cure"]) == holds_tensors
    words = shlex.split(command)[1:-1]
    assert ("error" not in outcome([*words, output], capsys)) or not holds_tensors
    assert output.exists() == holds_tensors
    assert "executed" not in capsys.readouterr().out


def test_a_repair_that_is_hopeless_names_the_commands_that_start_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    (tmp_path / "cut.safetensors").write_bytes((base / "t3.safetensors").read_bytes()[:90_000])
    words: list[str | Path] = [
        "repair",
        tmp_path / "cut.safetensors",
        "--base=tiny",
        f"--output={tmp_path / 'new.safetensors'}",
    ]
    error = outcome(words, capsys)
    assert error["code"] == "repair-hopeless"
    assert "voxgraft new RUN --base tiny" in error["cure"]
    assert "--only" not in error["cure"]


ENGLISH = ("the river runs down to the sea", "my mother bought bread", "we will meet again", "he looked out")
AMHARIC = ("ሰላም ለዓለም ሁሉ", "እንዴት ነህ ወንድሜ", "ውሃ ጠጣሁ ዛሬ", "ቤት ሄደ ማታ")


@pytest.mark.parametrize(
    ("language", "sentences", "code"),
    [
        ("am", ENGLISH, "text-other-script"),
        ("am", AMHARIC, None),
        ("am", (*AMHARIC, *AMHARIC, *ENGLISH[:2]), "text-mixed-scripts"),
        ("am", (*(10 * AMHARIC), ENGLISH[0]), None),  # a single quotation
        ("am", tuple(f"{sentence} iPhone WhatsApp" for sentence in AMHARIC), None),  # foreign words in sentences
        ("am", tuple(f"{sentence} [en]hello my old friend[/en]" for sentence in AMHARIC), None),
        ("sw", ENGLISH, None),  # of the same script, letters show nothing
        ("sw", AMHARIC, "text-other-script"),
        ("ja", ("これはペンです", "東京タワー", "日本語の文", "カタカナ"), None),
        ("ko", ("안녕하세요 여러분", "오늘은 날씨가 좋다"), None),
        ("sr-Latn", ("dobro jutro svima", "kako ste danas"), None),
        ("xx-unknown", AMHARIC, None),
        ("sw-Arab", AMHARIC, None),  # its letters are not known
    ],
)
def test_texts_in_another_script_are_found_and_no_others(
    language: str, sentences: tuple[str, ...], code: str | None
) -> None:
    assert [item.code for item in check_text_script(language, sentences)] == ([code] if code else [])


def test_an_import_warns_of_texts_in_another_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(0)
    for folder, sentences in (("english", ENGLISH), ("amharic", AMHARIC)):
        (tmp_path / folder).mkdir()
        for number, sentence in enumerate(sentences):
            voice = (noise.standard_normal(48_000) * 0.1).astype(np.float32)
            soundfile.write(tmp_path / folder / f"{number}.wav", voice, 24_000)
            (tmp_path / folder / f"{number}.txt").write_text(sentence, encoding="utf-8")
    for folder, expected in (("english", True), ("amharic", False)):
        settings = DataImportSettings(dataset=tmp_path / f"{folder}-set", sources=(tmp_path / folder,), language="am")
        items = {item.code: item for item in data_import(settings).findings()}
        assert ("text-other-script" in items) == expected
        assert not expected or items["text-other-script"].level == "warning"


def test_a_folder_that_is_no_run_or_no_graft_is_named_with_the_one_that_is(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fixtures.whole_run("tiny").copied(tmp_path / "runs" / "amharic")
    assert str(run.path) in outcome(["check", run.path.parent], capsys)["cure"]
    assert "--language" in outcome(["check", tmp_path / "absent"], capsys)["cure"]
    words = ["speak", "hello", "--language=en", f"--output={tmp_path / 'x.wav'}"]
    assert str(run.folder.graft) in outcome([*words, f"--graft={run.path}"], capsys)["cure"]
    assert outcome([*words, f"--run={run.folder.graft}"], capsys)["code"] == "file-missing"
