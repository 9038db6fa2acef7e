"""`new --from` on shell scripts and notes: commands are found however they are written, and prose is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.migration import SCRIPT, codes, made_from, rows_by_name, settings_of, write
from tests.support.shared import shared
from voxgraft.config.commands import NewSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.inspect.legacy import SCRIPTS, LegacyScript
from voxgraft.pipeline.command import create_run


def test_a_shell_script_is_read_with_its_variables_and_continuations(tmp_path: Path) -> None:
    result = made_from(tmp_path, SCRIPT, "train.sh")
    rows = {(row.old, row.key): row for row in result.rows}
    made = settings_of(tmp_path / "run")
    assert (made.language, made.family) == ("am", "indextts2")
    train = made.train
    assert (train.lr_backbone, train.text_weight, train.speech_weight, train.warmup_steps) == (5e-5, 0.4, 0.6, 2000)
    assert train.steps == RunSettings().train.steps
    assert rows["train_gpt_v2 --max-steps", ""].outcome == "gone"
    missing = rows["train_gpt_v2 --train-manifest", "data.train"]
    assert (missing.outcome, missing.why) == ("suggested", "missing: train_pairs.jsonl")
    assert rows["train_gpt_v2 --train-manifest", "language"].new == "am"
    assert rows["train_gpt_v2 --amp", ""].value == ""
    assert rows["train_gpt_v2 --base-checkpoint", "base"].why == "this value depends on the shell"
    assert rows["train_gpt_v2 --output-dir", ""].value == "runs/out"
    not_read = next(item for item in result.findings if item.code == "old-not-read")
    assert not_read.found == "line 19: scripts/other.py"


def test_manifests_are_taken_over_all_that_one_command_names(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "val"):
        write(tmp_path, f"data/{name}_pairs.jsonl", "{}\n")
    command = "python trainers/train_gpt_v2.py --train-manifest {} --val-manifest data/val_pairs.jsonl::am"
    several = " --train-manifest ".join(f"data/{name}_pairs.jsonl::am" for name in ("a", "b"))
    made_from(tmp_path, f"{command.format('data/c_pairs.jsonl')}\n{command.format(several)}\n", "train.sh")
    data = settings_of(tmp_path / "run").data
    assert [path.name for path in data.train] == ["a_pairs.jsonl", "b_pairs.jsonl"]
    assert all(path.is_file() for path in (*data.train, *data.valid))
    assert settings_of(tmp_path / "run").language == "am"


def test_a_manifest_of_another_language_waits_for_a_decision(tmp_path: Path) -> None:
    for name in ("am", "en"):
        write(tmp_path, f"{name}.jsonl", "{}\n")
    flags = "--train-manifest am.jsonl::am --train-manifest en.jsonl::en"
    result = made_from(tmp_path, f"python trainers/train_gpt_v2.py {flags}", "train.sh", language="am")
    assert [path.name for path in settings_of(tmp_path / "run").data.train] == ["am.jsonl"]
    assert any(row.outcome == "suggested" and "data.replay" in row.why for row in result.rows)


def test_settings_of_the_training_loop_are_taken_over(tmp_path: Path) -> None:
    flags = (
        "--epochs 3 --log-interval 5 --val-interval 0 --save-interval 70 --keep-checkpoints 2 --grad-clip 0.5 --seed 9"
    )
    result = made_from(tmp_path, f"python train_gpt_v2.py {flags} --batch-size 64 --amp --max-steps 0", "train.sh")
    train = settings_of(tmp_path / "run").train
    assert (train.epochs, train.steps, train.log_every, train.save_every) == (3, None, 5, 70)
    assert (train.keep_last, train.max_grad_norm, train.seed, train.valid_every) == (
        2,
        0.5,
        9,
        RunSettings().train.valid_every,
    )
    fates = {row.old.partition(" ")[2]: row.outcome for row in result.rows}
    assert [fates[name] for name in ("--val-interval", "--batch-size", "--amp")] == ["gone", "gone", "gone"]


@pytest.mark.parametrize(
    "text",
    [
        "python trainers/train_gpt_v2.py --warmup-steps 7",
        "  $ python3.11 train_gpt_v2.py --warmup-steps=7",
        "(venv) $ uv run python trainers/train_gpt_v2.py --warmup 7",
        "!python -m trainers.train_gpt_v2 --warmup-steps 7",
        "./trainers/train_gpt_v2.py --warmup-steps 7",
        "1. Run `python trainers/train_gpt_v2.py --warmup-steps 7` and wait, don't stop it.",
        "cd x && nohup python trainers/train_gpt_v2.py --warmup-steps 7 2>&1 | tee log",
        "for i in 1; do python trainers/train_gpt_v2.py --warmup-steps 7; done",
        "python trainers/train_gpt_v2.py `\n  --warmup-steps 7",
        "python trainers\\train_gpt_v2.py ^\r\n  --warmup-steps 7\r\n".replace("\\t", "/t"),
        "python trainers/train_gpt_v2.py \\  # a remark\n  --warmup-steps 7",
        "W=7\npython trainers/train_gpt_v2.py --warmup-steps $W",
        '$Env:W = "7"\npython trainers/train_gpt_v2.py --warmup-steps ${env:W}',
        "python trainers/train_gpt_v2.py --warmup-steps 3\npython trainers/train_gpt_v2.py --warmup-steps 7",
    ],
)
def test_a_command_is_found_however_it_is_written_down(tmp_path: Path, text: str) -> None:
    made_from(tmp_path, text, "notes.md")
    assert settings_of(tmp_path / "run").train.warmup_steps == 7


def test_of_two_values_the_last_counts_and_the_other_is_named(tmp_path: Path) -> None:
    lines = [f"python trainers/train_gpt_v2.py --warmup-steps {steps}" for steps in (3, 7)]
    first, last = made_from(tmp_path, "\n".join(lines), "notes.txt").rows
    assert (first.outcome, last.outcome) == ("suggested", "mapped")
    assert first.why == "a later value is used: 7 (train_gpt_v2 --warmup-steps)"


@pytest.mark.parametrize(
    "text",
    [
        "Modified `trainers/train_gpt_v2.py` to freeze rows --always",
        "We don't run train_gpt_v2.py any more; it's broken",
        "echo python trainers/train_gpt_v2.py --warmup-steps 7",
        "# python trainers/train_gpt_v2.py --warmup-steps 7",
        "python my_own_trainer.py --warmup-steps 7",
        "just some words",
    ],
)
def test_prose_is_not_taken_for_a_command(tmp_path: Path, text: str) -> None:
    with pytest.raises(VoxgraftError) as caught:
        made_from(tmp_path, text, "notes.txt")
    assert caught.value.code == "old-unknown"


def test_yaml_blocks_in_notes_are_read_and_those_that_contradict_themselves_are_named(tmp_path: Path) -> None:
    notes = "# Fix\n```yaml\ntraining:\n  warmup_steps: 7\n```\nWrong and right:\n```yaml\na: 1\na: 2\n```\n"
    result = made_from(tmp_path, notes, "notes.md")
    assert settings_of(tmp_path / "run").train.warmup_steps == 7
    assert next(item for item in result.findings if item.code == "old-not-read").found == "line 8: a block of YAML"


@pytest.mark.parametrize("flag", ["--leaning-rate", "--learning_rate", "--lr-rate"])
def test_an_unknown_flag_gets_the_nearest_known_one(tmp_path: Path, flag: str) -> None:
    result = made_from(tmp_path, f"python train_gpt_v2.py --amp {flag} 1", "run.sh")
    assert rows_by_name(result)[f"train_gpt_v2 {flag}"].why == "did you mean train_gpt_v2 --learning-rate?"
    assert "old-keys-unknown" in codes(result)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.path)
def test_every_flag_of_every_known_script_is_reported_what_becomes_of_it(tmp_path: Path, script: LegacyScript) -> None:
    flags = script.flags or ("--any",)
    result = made_from(tmp_path, f"python x/{script.path} " + " ".join(f"{flag} 1" for flag in flags), "run.sh")
    rows = {row.old: row.outcome for row in result.rows}
    assert list(rows) == [f"{script.name} {flag}" for flag in flags]
    assert ("unknown" in rows.values()) is (not script.flags)


@pytest.mark.parametrize("number", range(5))
def test_the_notes_that_users_wrote_are_read_whole(tmp_path: Path, number: int) -> None:
    notes = next(shared("seeds").glob(f"{number:03}_*.txt"))
    result = create_run(NewSettings(run=tmp_path / "run", old=notes))
    assert result.rows
    assert not [row for row in result.rows if row.outcome == "unknown"]
    settings_of(tmp_path / "run")


def test_the_published_indextts2_config_has_no_unknown_key(tmp_path: Path) -> None:
    result = create_run(NewSettings(run=tmp_path / "run", old=shared("real/indextts2/config.yaml")))
    assert len(result.rows) > 80
    assert not [row.old for row in result.rows if row.outcome == "unknown"]
