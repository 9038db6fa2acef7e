"""Settings from run.yaml, --config and flags: which wins, where paths start, and how faults are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from voxgraft.cli import run_cli
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.base import format_commented_yaml, read_settings_values
from voxgraft.config.run import MAX_SEED, RunSettings, TrainSettings
from voxgraft.config.train_options import RENAMED_SETTINGS

EXTEND = ["extend", "base.pt", "--tokenizer", "grown.json", "--output", "grown.pt"]


def resolved(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    code = run_cli([*map(str, words), "--dry-run", "--json"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    return dict(json.loads(printed))


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, str]:
    code = run_cli([*map(str, words), "--dry-run", "--json"])
    printed = capsys.readouterr()
    assert code == 2, printed.out
    assert "pydantic" not in printed.out + printed.err
    return dict(json.loads(printed.out)["error"])


def make_run(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    return folder


def test_flags_win_over_config_which_wins_over_run_yaml_which_wins_over_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", "rows: {init: mean, noise: 0.1, seed: 1}\nlanguage: am\n")
    config = tmp_path / "other.yaml"
    config.write_text("rows: {noise: 0.2, seed: 2}\n")
    settings = resolved(capsys, "graft", made, "--config", config, "--rows.seed", "3")
    assert settings["rows"] == {"init": "mean", "noise": 0.2, "seed": 3}
    assert settings["language"] == "am"
    assert settings["tokenizer"]["pieces"] == RunSettings().tokenizer.pieces


def test_a_flag_that_repeats_a_default_still_wins_over_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", "rows: {init: mean}\n")
    assert resolved(capsys, "graft", made, "--rows.init", "romanised")["rows"]["init"] == "romanised"


def test_relative_paths_start_at_the_file_that_has_them_and_flags_at_the_current_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = "base: ../base\ntexts: [am.txt, /data/am.txt, ~/am.txt]\ntokenizer: {file: grown.json}\n"
    make_run(tmp_path / "runs" / "am", text)
    settings = resolved(capsys, "graft", "runs/am", "--proof-texts", "en.txt")
    assert settings["base"] == f"{tmp_path}/runs/base"
    assert settings["texts"] == [f"{tmp_path}/runs/am/am.txt", "/data/am.txt", f"{tmp_path}/home/am.txt"]
    assert settings["tokenizer"]["file"] == f"{tmp_path}/runs/am/grown.json"
    assert settings["proof_texts"] == [f"{tmp_path}/en.txt"]


def test_a_path_that_leads_out_of_the_folder_of_its_file_is_shown_short_and_leads_to_the_same_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "disk" / "x" / "b").mkdir(parents=True)
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "disk" / "x" / "b")
    for name, place in (("a", tmp_path / "talks"), ("b", tmp_path / "runs" / "b" / ".." / ".." / "talks")):
        file = tmp_path / "runs" / name / "run.yaml"
        file.write_text("data: {sources: [../../talks]}\n", encoding="utf-8")
        assert read_settings_values(RunSettings, file)["data"]["sources"] == [str(place)]


def test_what_dry_run_prints_is_a_config_that_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*EXTEND, "--rows.noise", "0.00001", "--no-verify", "--family", "indextts2"]
    before = resolved(capsys, *words)
    assert run_cli([*words, "--dry-run"]) == 0
    config = tmp_path / "extend.yaml"
    config.write_text(capsys.readouterr().out, encoding="utf-8")
    assert yaml.safe_load(config.read_text()) == before
    assert resolved(capsys, "extend", "--config", config) == before


def test_the_commented_run_yaml_is_read_back_as_the_settings_that_it_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", format_commented_yaml(RunSettings(language="am"), "A run."))
    settings = resolved(capsys, "graft", made)
    assert settings == {**RunSettings(language="am").model_dump(mode="json"), "run": str(made)}


def test_an_empty_value_in_a_file_means_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path / "am", "base:\nrows:\ntexts:\ntokenizer:\n  pieces:\n")
    settings = resolved(capsys, "graft", made)
    assert settings["tokenizer"]["pieces"] == RunSettings().tokenizer.pieces
    assert settings["rows"]["init"] == "romanised"
    assert settings["texts"] == []


def test_a_file_of_comments_alone_is_a_run_of_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path / "am", "# nothing yet\n")
    assert resolved(capsys, "check", made)["rows"]["init"] == "romanised"


def test_tokenizer_is_short_for_tokenizer_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path / "am", "tokenizer: {pieces: 7}\n")
    for flag in ("--tokenizer", "--tokenizer.file"):
        settings = resolved(capsys, "graft", made, flag, "/t/grown.json")
        assert settings["tokenizer"]["file"] == "/t/grown.json"
        assert settings["tokenizer"]["pieces"] == 7


def test_check_takes_loose_files_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    settings = resolved(capsys, "check", "--tokenizer", "/t.json", "--checkpoint", "/c.pt", "--texts", "/a", "/b")
    assert settings["run"] is None
    assert settings["tokenizer"]["file"] == "/t.json"
    assert settings["texts"] == ["/a", "/b"]


def test_sentences_and_places_keep_their_order_and_may_look_like_tags_or_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = resolved(capsys, "tokenizer", "show", "--base", "/b", "--language", "am", "[am] ሰላም", "two words")
    assert settings["text"] == ["[am] ሰላም", "two words"]
    assert resolved(capsys, "new", "/r", "--from", "/old.yaml")["old"] == "/old.yaml"


@pytest.mark.parametrize(
    ("flags", "code", "found", "expected"),
    [
        (["--rows.noise", "7"], "config-value", "`--rows.noise` is '7'", "less than or equal to 1"),
        (["--rows.noise=-1"], "config-value", "`--rows.noise` is '-1'", "greater than or equal to 0"),
        (["--rows.seed", "x"], "config-value", "`--rows.seed` is 'x'", "a valid integer"),
        (["--rows.seed=-1"], "config-value", "`--rows.seed` is '-1'", "greater than or equal to 0"),
        (
            ["--rows.seed", str(2**70)],
            "config-value",
            f"`--rows.seed` is '{2**70}'",
            f"less than or equal to {2**63 - 1}",
        ),
        (
            ["--rows.init", "meen"],
            "config-value",
            "`--rows.init` is 'meen'",
            "'romanised', 'script-mean', 'mean' or 'random'",
        ),
        (["--family", ""], "config-value", "`--family` is empty", "a value"),
        (["--base-tokenizer", ""], "config-value", "`--base-tokenizer` is empty", "a value"),
    ],
)
def test_a_bad_flag_is_reported_in_our_form(
    flags: list[str], code: str, found: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, *EXTEND, *flags)
    assert (error["code"], error["found"], error["expected"]) == (code, found, expected)
    assert error["where"] == "command line"
    assert error["cure"]


@pytest.mark.parametrize(("seed", "expected"), [(-1, "greater than or equal to 0"), (2**70, "less than or equal to ")])
def test_a_seed_that_no_generator_takes_is_refused_in_run_yaml(
    seed: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(f"train:\n  seed: {seed}\n")
    error = refused(capsys, "train", str(tmp_path))
    assert (error["code"], error["found"]) == ("config-value", f"`train.seed` is {seed}")
    assert error["expected"].startswith(expected)


def test_the_largest_seed_is_one_that_generators_take() -> None:
    assert torch.Generator().manual_seed(MAX_SEED).initial_seed() == MAX_SEED
    assert TrainSettings(seed=MAX_SEED).seed == MAX_SEED
    np.random.default_rng(MAX_SEED)


def test_all_that_is_missing_is_named_at_once_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "extend")
    assert error["code"] == "config-missing"
    assert error["found"] == "`CHECKPOINT` is not given"
    assert "`--tokenizer`" in error["cure"]
    assert "`--output`" in error["cure"]


@pytest.mark.parametrize(
    ("text", "code", "found", "cure"),
    [
        ("langauge: am", "config-unknown-key", "unknown key `langauge`", "did you mean `language`?"),
        ("rows: {nois: 1}", "config-unknown-key", "unknown key `rows.nois`", "did you mean `noise`?"),
        ("rows: {zzzzz: 1}", "config-unknown-key", "unknown key `rows.zzzzz`", "valid keys here: init, noise, seed."),
        ("train: {row_rate: 1}", "config-unknown-key", "unknown key `train.row_rate`", "write `train.lr_rows`"),
        ("train: {clip: 1}", "config-unknown-key", "unknown key `train.clip`", "write `train.max_grad_norm`"),
        ("run: elsewhere", "config-unknown-key", "unknown key `run`", ""),
        ("checkpoint: a.pt", "config-unknown-key", "unknown key `checkpoint`", "valid keys here"),
        ("rows: {noise: 7}", "config-value", "`rows.noise` is 7", "Noise that makes new rows differ"),
        ("family: chaterbox", "config-value", "`family` is 'chaterbox'", "did you mean `chatterbox`?"),
        ("language: no", "config-value", "`language` is False", "put it in quotes"),
        ("texts: am.txt", "config-value", "`texts` is ", "Text files of the new language"),
        ("texts: [1]", "config-value", "`texts.0` is 1", "Text files of the new language"),
        ("rows: 5", "config-value", "`rows` is 5", "give a valid value"),
        ("1: 2", "config-value", "`1` is ", "give a valid value"),
        ("base: ''", "config-value", "`base` is empty", "Folder of the base"),
        ("- a\n- b", "config-shape", "run.yaml contains a list", "key: value"),
        ("just words", "config-shape", "run.yaml contains a single value", "key: value"),
        ("rows: {", "yaml-broken", "line 2, column 1", "indentation"),
        ("a: &x 1\nb: *x", "yaml-alias", "line 1", "write the value itself"),
        ("base: a\nbase: b", "yaml-duplicate-key", "'base' appears twice", "remove one"),
    ],
)
@pytest.mark.parametrize("verb", ["graft", "check"])
def test_a_fault_in_run_yaml_is_reported_with_file_key_and_cure_by_every_verb(
    verb: str, text: str, code: str, found: str, cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", text + "\n")
    error = refused(capsys, verb, made)
    assert error["code"] == code
    assert found in error["found"]
    assert cure in error["cure"]
    assert error["where"] == str(made / "run.yaml")


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_every_old_name_is_refused_with_a_new_name_that_exists(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {leaf.key: command for command in COMMANDS for leaf in command.leaves()}
    assert new in known
    assert old not in known
    error = refused(capsys, *known[new].name.split(), f"--{old.replace('_', '-')}", "1")
    assert error["code"] == "usage-unknown-flag"
    assert f"`--{new.replace('_', '-')}`" in error["cure"]


OLD_RUN_YAML = """# my run
language: am

train:
  # the rate that worked last time
  row_rate: 0.002  # do not change
  steps: 40
  "clip": 0.5
data: {lone_clips: own, speaker: Abebe}
evaluate:
    recogniser: built-in
"""


def test_update_renames_old_keys_and_keeps_comments_values_and_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", OLD_RUN_YAML)
    error = refused(capsys, "graft", made)
    assert error["code"] == "config-unknown-key"
    assert f"voxgraft update {made}" in error["cure"]
    assert run_cli(["update", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["renamed"] == {
        "train.row_rate": "train.lr_rows",
        "train.clip": "train.max_grad_norm",
        "data.lone_clips": "data.single_clip_speakers",
        "evaluate.recogniser": "evaluate.recognizer",
    }
    new_names = {"row_rate": "lr_rows", '"clip"': "max_grad_norm", "lone_clips": "single_clip_speakers"}
    expected = OLD_RUN_YAML.replace("recogniser", "recognizer")
    for old, new in new_names.items():
        expected = expected.replace(old, new)
    assert (made / "run.yaml").read_text(encoding="utf-8") == expected
    assert resolved(capsys, "graft", made)["train"]["lr_rows"] == 0.002
    assert run_cli(["update", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["renamed"] == {}


def test_update_leaves_a_file_alone_that_has_an_old_and_the_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "train: {clip: 0.5, max_grad_norm: 1.0}\n"
    made = make_run(tmp_path / "am", text)
    assert run_cli(["update", str(made), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "yaml-duplicate-key"
    assert (made / "run.yaml").read_text(encoding="utf-8") == text


def test_a_fault_is_put_down_to_the_layer_that_it_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(tmp_path / "am", "rows: {noise: 0.5}\n")
    config = tmp_path / "other.yaml"
    config.write_text("rows: {noise: 8}\n")
    assert refused(capsys, "graft", made, "--config", config)["where"] == str(config)
    assert refused(capsys, "graft", made, "--rows.noise", "9")["where"] == "command line"
    assert resolved(capsys, "graft", made, "--config", config, "--rows.noise", "1")["rows"]["noise"] == 1


def test_an_unknown_key_in_a_config_is_put_down_to_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_run(tmp_path / "am", "language: am\n")
    config = tmp_path / "other.yaml"
    config.write_text("rowz: {noise: 0.1}\n")
    error = refused(capsys, "graft", made, "--config", config)
    assert (error["code"], error["where"]) == ("config-unknown-key", str(config))
    assert "`rows`" in error["cure"]


def test_a_folder_that_is_no_run_is_refused_with_the_way_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "graft", tmp_path / "nowhere")
    assert error["code"] == "file-missing"
    assert f"voxgraft new {tmp_path / 'nowhere'}" in error["cure"]
