"""`new --from` on YAML: every old key is found and gets one outcome, and no old file does harm."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fixtures import Fixtures
from tests.support.migration import CONFIG, SCRIPT, codes, every_rule, made_from, rows_by_name, settings_of, write
from voxgraft.config.base import iter_setting_fields
from voxgraft.config.commands import NewSettings
from voxgraft.config.run import RunSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.inspect.legacy import CHATTERBOX_KEYS, MAX_KEYS, SCRIPTS, read_legacy_config
from voxgraft.pipeline.command import create_run

# ---- the tables -----------------------------------------------------------------------------------------------------


def test_every_rule_leads_to_a_setting_or_gives_a_reason() -> None:
    known = {leaf.key for leaf in iter_setting_fields(RunSettings)}
    for name, rule in every_rule():
        assert rule.key in known if rule.outcome == "mapped" else (rule.why and not rule.key), name


def test_every_rule_that_a_script_has_is_for_a_flag_that_it_has() -> None:
    for script in SCRIPTS:
        assert set(script.rules) <= set(script.flags), script.name


# ---- YAML -----------------------------------------------------------------------------------------------------------


def test_each_key_of_a_training_config_gets_its_fate(tmp_path: Path) -> None:
    result = made_from(tmp_path, CONFIG)
    rows = rows_by_name(result)
    fates = {name: row.outcome for name, row in rows.items()}
    assert fates == {
        "model.name": "gone",
        "model.n_vocab": "gone",
        "model.freeze_original_embeddings": "gone",
        "model.freeze_until_index": "gone",
        "data.dataset_path": "later",
        "data.batch_size": "gone",
        "training.learning_rate": "mapped",
        "training.weight_decay": "mapped",
        "training.warmup_steps": "mapped",
        "training.max_steps": "mapped",
        "training.betas": "gone",
        "training.patience": "mapped",
        "training.lerning_rate": "unknown",
        "finetuning.pretrained_model": "suggested",
        "logging.wandb_entity": "gone",
        "paths.tokenizer": "suggested",
    }
    assert "training.learning_rate" in rows["training.lerning_rate"].why
    train = settings_of(tmp_path / "run").train
    assert (train.lr_backbone, train.weight_decay, train.warmup_steps, train.steps) == (1e-5, 0.02, 4000, 50000)
    assert settings_of(tmp_path / "run").family == "chatterbox"


def test_settings_of_the_training_loop_are_taken_over(tmp_path: Path) -> None:
    old = {"save_interval": 700, "eval_interval": 50, "log_interval": 7, "grad_clip_thresh": 0.5, "max_epochs": 12}
    made_from(tmp_path, yaml.safe_dump({"training": {**old, "patience": 9, "early_stopping": True}}))
    train = settings_of(tmp_path / "run").train
    assert (train.save_every, train.valid_every, train.log_every, train.max_grad_norm) == (700, 50, 7, 0.5)
    assert (train.epochs, train.steps, train.patience) == (12, None, 9)


def test_patience_does_not_count_where_early_stopping_was_off(tmp_path: Path) -> None:
    result = made_from(tmp_path, "training: {early_stopping: false, patience: 9}\n")
    assert rows_by_name(result)["training.patience"].outcome == "gone"
    assert settings_of(tmp_path / "run").train.patience == 0


def test_of_steps_and_epochs_the_steps_count(tmp_path: Path) -> None:
    result = made_from(tmp_path, "training: {max_epochs: 1000, max_steps: 50000}\n")
    train = settings_of(tmp_path / "run").train
    assert (train.steps, train.epochs) == (50000, None)
    assert rows_by_name(result)["training.max_epochs"].outcome == "suggested"


def test_run_yaml_names_the_old_key_beside_each_value(tmp_path: Path) -> None:
    made_from(tmp_path, CONFIG)
    lines = (tmp_path / "run" / "run.yaml").read_text(encoding="utf-8").splitlines()
    at = lines.index("  weight_decay: 0.02")
    assert lines[at - 1] == "  # from training.weight_decay: 0.02"


def test_an_old_tokenizer_is_only_proposed_with_the_command_that_judges_it(tmp_path: Path) -> None:
    write(tmp_path, "models/Am_tokenizer_merged.json", "{}")
    result = made_from(tmp_path, CONFIG, language="am")
    assert settings_of(tmp_path / "run").tokenizer.file is None
    proposal = next(item for item in result.findings if item.code == "old-tokenizer")
    command = proposal.cure[proposal.cure.index("voxgraft tokenizer prove") :]
    assert shlex.split(command)[3:] == [
        "--base",
        "BASE",
        "--extended",
        str(tmp_path / "models/Am_tokenizer_merged.json"),
        "--language",
        "am",
    ]
    text = (tmp_path / "run" / "run.yaml").read_text(encoding="utf-8")
    uncommented = re.sub(r"^  # (file: .*)\n  file:$", r"  \1", text, flags=re.MULTILINE)
    (tmp_path / "run" / "run.yaml").write_text(uncommented, encoding="utf-8")
    assert settings_of(tmp_path / "run").tokenizer.file == tmp_path / "models/Am_tokenizer_merged.json"


@pytest.mark.parametrize("place", ["old.yaml", "config/old.yaml", "scripts/amharic/old.yaml"])
def test_a_base_named_in_the_old_file_is_found_from_its_folder_or_above(
    fixtures: Fixtures, tmp_path: Path, place: str
) -> None:
    shutil.copytree(fixtures.base("chatterbox").folder, tmp_path / "models" / "chatterbox")
    made_from(tmp_path, CONFIG, place)
    base = settings_of(tmp_path / "run").base
    assert base is not None
    assert base.samefile(tmp_path / "models" / "chatterbox")


def test_a_file_that_is_not_published_is_never_taken_for_a_base(fixtures: Fixtures, tmp_path: Path) -> None:
    shutil.copytree(fixtures.base("chatterbox").folder, tmp_path / "models")
    result = made_from(tmp_path, "finetuning: {pretrained_model: models/chatterbox_extended.pt}\n")
    assert result.rows[0].outcome == "gone"
    assert "chatterbox_extended.pt" in result.rows[0].why
    assert settings_of(tmp_path / "run").base is None


def test_indextts2_own_config_makes_its_folder_the_base(fixtures: Fixtures, tmp_path: Path) -> None:
    shutil.copytree(fixtures.base("indextts2").folder, tmp_path / "checkpoints")
    result = create_run(NewSettings(run=tmp_path / "run", old=tmp_path / "checkpoints" / "config.yaml"))
    assert {row.outcome for row in result.rows} <= {"mapped", "gone"}
    base = settings_of(tmp_path / "run").base
    assert base is not None
    assert base.samefile(tmp_path / "checkpoints")
    assert codes(result) == ["run-incomplete"]


@pytest.mark.parametrize(("rate", "found"), [("5e-6", True), ("1e-5", False), ("0.0001", False), ("2.0e-4", True)])
def test_an_lr_backbone_outside_the_sane_range_is_taken_and_warned_about(
    tmp_path: Path, rate: str, found: bool
) -> None:
    result = made_from(tmp_path, f"training: {{learning_rate: {rate}}}\n")
    assert settings_of(tmp_path / "run").train.lr_backbone == float(rate)
    assert ("rate-out-of-range" in codes(result)) is found


@pytest.mark.parametrize(("index", "found"), [(2454, False), (704, True), (0, True), ("many", True)])
def test_a_freeze_boundary_unlike_the_base_is_named(tmp_path: Path, index: object, found: bool) -> None:
    result = made_from(tmp_path, f"model: {{freeze_until_index: {index}}}\n")
    assert ("freeze-boundary" in codes(result)) is found
    assert ("2,454" in result.rows[0].why) is found


def test_freezing_that_was_off_is_said(tmp_path: Path) -> None:
    assert "freeze-off" in codes(made_from(tmp_path, "model: {freeze_original_embeddings: false}\n"))


@pytest.mark.parametrize("value", ["abc", "-1", ".nan", ".inf", "true", "[1]", "1e999", "2020-01-01"])
def test_a_value_that_the_setting_cannot_take_waits_for_a_decision(tmp_path: Path, value: str) -> None:
    result = made_from(tmp_path, f"training: {{learning_rate: {value}}}\n")
    assert result.rows[0].outcome == "suggested"
    assert settings_of(tmp_path / "run").train == RunSettings().train


def test_what_is_given_by_hand_wins_over_the_old_file(fixtures: Fixtures, tmp_path: Path) -> None:
    for name in ("mine", "models/chatterbox"):
        shutil.copytree(fixtures.base("chatterbox").folder, tmp_path / name)
    result = made_from(tmp_path, CONFIG, base=tmp_path / "mine")
    assert settings_of(tmp_path / "run").base == tmp_path / "mine"
    assert rows_by_name(result)["finetuning.pretrained_model"].why == "--base was given by hand and is used"


def test_settings_of_another_family_are_warned_about(fixtures: Fixtures, tmp_path: Path) -> None:
    shutil.copytree(fixtures.base("indextts2").folder, tmp_path / "mine")
    assert "old-other-family" in codes(made_from(tmp_path, CONFIG, base=tmp_path / "mine"))


@pytest.mark.parametrize("text", [r'"x\nbase: evil\n"', r'"\u2028base: evil"', r'"\0"', r'"\x85language: en"'])
def test_nothing_in_an_old_value_can_become_a_key_of_run_yaml(tmp_path: Path, text: str) -> None:
    made_from(tmp_path, f"paths: {{tokenizer: {text}}}\ntraining: {{warmup_steps: {text}}}\n")
    assert settings_of(tmp_path / "run") == RunSettings(family="chatterbox")


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from([*CHATTERBOX_KEYS, "model.nonsense", "other.key", "paths"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers()),
        min_size=1,
    )
)
def test_no_key_is_dropped_in_silence(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    nested: dict[str, Any] = {"model": {"name": "known"}}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        if section:
            nested.setdefault(section, {})[key] = value
    folder = tmp_path_factory.mktemp("keys")
    result = made_from(folder, yaml.safe_dump(nested, allow_unicode=True))
    assert {row.old for row in result.rows} == {f"{section}.{key}" for section, keys in nested.items() for key in keys}
    settings_of(folder / "run")


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("old.yaml", b"", "file-empty"),
        ("old.yaml", b"\n# nothing\n", "config-shape"),
        ("old.yaml", b"- a\n- b\n", "config-shape"),
        ("old.yaml", b"just words", "config-shape"),
        ("old.yaml", b"model: [n_vocab, 2535]\n", "config-shape"),
        ("old.yaml", b"training: 5\n", "config-shape"),
        ("old.yaml", b"model: {a: &x [1], b: *x}\n", "yaml-alias"),
        ("old.yaml", b"model: {n_vocab: 1, n_vocab: 2}\n", "yaml-duplicate-key"),
        ("old.yaml", b"model:\n\t- x: [\n", "yaml-broken"),
        ("old.yaml", b"model: !!python/object/apply:os.system [ls]\n", "yaml-tag"),
        ("old.yaml", b"model: {name: " + b"[" * 500, "yaml-broken"),
        ("old.yaml", b"services: {web: {image: x}}\n", "old-unknown"),
        ("old.yaml", b"model: {colour: red}\n", "old-unknown"),
        ("old.yaml", b"language: am\nbase: x\n", "old-unknown"),
        ("old.yaml", b"training:\n" + b"".join(b"  k%d: 1\n" % n for n in range(MAX_KEYS + 1)), "old-unknown"),
        ("old.yaml", b"model: {name: caf\xe9}\n", "text-not-utf8"),
        ("old.yaml", b"\x00\x01\x02model", "text-binary"),
        ("old.txt", "python train_gpt_v2.py --amp".encode("utf-16"), "text-not-utf8"),
        ("old.txt", b"PK\x03\x04\x00\x00", "text-binary"),
        ("old.txt", b"x" * (64 << 20), "file-too-large"),
        ("old.sh", b"python trainers/train_gpt_v2.py --tokenizer 'open\n", "old-command"),
        ("old.sh", b"python train_gpt_v2.py " + b"--a 1 " * (MAX_KEYS + 1), "old-unknown"),
    ],
)
def test_a_bad_old_file_is_our_error_and_nothing_is_written(tmp_path: Path, name: str, data: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(VoxgraftError) as caught:
        create_run(NewSettings(run=tmp_path / "run", old=tmp_path / name))
    assert caught.value.code == code
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_variable_that_doubles_itself_fills_no_memory(tmp_path: Path) -> None:
    doubling = "A=xxxxxxxx\n" + 'A="$A$A"\n' * 200 + 'python train_gpt_v2.py --tokenizer "$A$A$A"\n'
    assert len(rows_by_name(made_from(tmp_path, doubling, "old.sh"))) == 1


@pytest.mark.long
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_old_file_is_read_or_refused_but_never_breaks_anything(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name, text = data.draw(
        st.sampled_from([("old.yaml", CONFIG), ("old.sh", SCRIPT), ("old.md", f"```yaml\n{CONFIG}```\n")])
    )
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw)))
        cut = data.draw(st.integers(0, 12))
        raw[at : at + cut] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"'", b'"', b"\n", b"\\\n", b"$", b": ", b"`", b"\t", b"- "])
        )
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / name).write_bytes(raw)
    try:
        result = create_run(NewSettings(run=folder / "run", old=folder / name))
    except VoxgraftError:
        assert [path.name for path in folder.iterdir()] == [name]
        return
    assert len(result.rows) >= len(read_legacy_config(folder / name).keys)
    assert result.lines()
    settings_of(folder / "run")
