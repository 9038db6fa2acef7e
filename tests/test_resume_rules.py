"""Every training setting has one rule for runs with saved steps, and `go` and `train` follow the same one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun
from tests.support.runs import edit_state
from voxgraft.checkpoints.steps import load_step
from voxgraft.config.commands import GoSettings
from voxgraft.config.run import TrainSettings
from voxgraft.config.train_options import RESUME_RULES, TrainIntervals, TrainOptions, options_with_rule
from voxgraft.core.errors import VoxgraftError
from voxgraft.models import get_family
from voxgraft.pipeline.stages import PipelineContext, decide_train
from voxgraft.training.setup import build_training_setup
from voxgraft.training.trainer import compare_identities, require_no_fixed_changes

INTERNAL = {"betas", "chunk"}
"""Options that are no settings."""
NOT_IN_A_STEP = {
    *(
        "epochs",
        "device",
        "tensorboard",
        "sample_texts",
        "sample_sound",
        "recognizer",
        "retention_bound",
        "interpolate",
    ),
    *(one.name for one in fields(TrainIntervals)),
}
"""Settings that no step depends on; `epochs` says how many `steps` there are."""
OTHER_VALUES: dict[str, Any] = {
    "mode": "rows-only",
    "full_backbone": True,
    "rank": 8,
    "alpha": 7.0,
    "lr_rows": 2e-3,
    "lr_adapter": 2e-3,
    "lr_backbone": 3e-5,
    "weight_decay": 0.02,
    "max_grad_norm": 0.5,
    "schedule": "linear",
    "warmup_steps": 2,
    "min_lr_ratio": 0.2,
    "steps": 7,
    "epochs": 1000.0,
    "batch_tokens": 2_000,
    "microbatch_tokens": 1_900,
    "text_weight": 0.3,
    "speech_weight": 0.7,
    "text_dropout": 0.3,
    "emotion_from": "prompt",
    "seed": 5,
    "device": "cpu",
    "precision": "bf16",
    "gradient_checkpointing": True,
    "compile": True,
    "deterministic": True,
    "log_every": 3,
    "tensorboard": True,
    "valid_every": 3,
    "save_every": 3,
    "sample_every": 3,
    "sample_texts": ("en:hello",),
    "sample_sound": False,
    "listen_every": 3,
    "recognizer": "none",
    "keep_last": 5,
    "patience": 9,
    "min_delta": 0.5,
    "min_steps": 3,
    "kl_weight": 0.5,
    "retention_bound": 0.1,
    "interpolate": (0.5,),
}


@pytest.fixture(scope="module")
def trained(fixtures: Fixtures) -> WholeRun:
    """A run that was trained for four steps."""
    return fixtures.trained_run("chatterbox")


def test_every_setting_is_an_option_an_interval_or_not_in_a_step() -> None:
    settings, options = set(TrainSettings.model_fields), {one.name for one in fields(TrainOptions)}
    assert options - settings == INTERNAL
    assert settings - options == NOT_IN_A_STEP
    assert RESUME_RULES.keys() == options
    assert OTHER_VALUES.keys() == settings


def test_defaults_that_are_not_left_open_are_those_of_the_options() -> None:
    for kind in (TrainOptions, TrainIntervals):
        for one in fields(kind):
            field = TrainSettings.model_fields.get(one.name)
            assert field is None or field.default in (None, one.default), one.name


def test_the_page_on_run_folders_names_all_settings_that_are_fixed() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "training.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `mode`"))
    assert row.split("|")[1].replace("`", "").replace(" ", "").split(",") == list(options_with_rule("fixed"))


@pytest.mark.long(fast="*-unfinished")
@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize("name", TrainSettings.model_fields)
def test_go_and_train_agree_on_what_another_value_means(trained: WholeRun, name: str, finished: bool) -> None:
    settings = trained.settings(train_steps=4 if finished else 6)
    values = settings.train.model_dump() | {name: OTHER_VALUES[name]}
    if name == "epochs":
        values["steps"] = None
    changed = settings.model_copy(update={"train": TrainSettings.model_validate(values)})
    rule = RESUME_RULES.get(name)

    setup = build_training_setup(trained.folder, changed, get_family("chatterbox"), trained.files)
    found = compare_identities(load_step(trained.folder).state.values["identity"], setup.identity)
    by_train = _refuses(lambda: require_no_fixed_changes(found, 4))
    assert by_train == (rule == "fixed")
    if rule is not None and name != "steps":
        assert f"train.{name}" in {change.key for change in found}

    given = {key: getattr(changed, key) for key in ("base", "train", "data")}
    work = PipelineContext(GoSettings(run=trained.path, **given))
    by_go = _refuses(lambda: decide_train(work))
    left = name in ("steps", "epochs") or not finished
    assert by_go == (by_train if left else rule in ("fixed", "schedule", "learning"))
    if not by_go:
        assert decide_train(work).runs == left


def _refuses(act: Any) -> bool:
    try:
        act()
    except VoxgraftError as error:
        if error.code not in ("resume-changed", "trained-otherwise"):
            raise
        return True
    return False


def test_a_step_with_old_names_and_equal_values_has_not_changed(trained: WholeRun, tmp_path: Path) -> None:
    """A run that was trained before the options were renamed resumes without a single change."""
    run = trained.copied(tmp_path / "run")
    values = dict(load_step(run.folder).state.values)
    options = dict(values["identity"]["options"])
    parts = {"rows": "lr_rows", "adapter": "lr_adapter", "body": "lr_backbone"}
    options["rates"] = {part: options.pop(name) for part, name in parts.items()}
    for new, old in {
        "max_grad_norm": "clip",
        "min_lr_ratio": "final_share",
        "text_dropout": "silent_share",
        "batch_tokens": "tokens_per_step",
        "microbatch_tokens": "pack_tokens",
        "gradient_checkpointing": "checkpointing",
    }.items():
        options[old] = options.pop(new)
    values["identity"] = {**values["identity"], "options": options}
    values["pack_tokens"] = values.pop("microbatch_tokens")
    edit_state(run.folder.step(4), format=1, values=values)
    result = run.train(train_steps=6)
    assert (result.start, result.outcome.step) == (4, 6)
    assert {line["key"] for line in run.journal("changed")} == {"train.steps", "learning rate factor at step 5"}


def test_a_step_of_format_2_with_the_old_name_of_the_full_backbone_has_not_changed(
    trained: WholeRun, tmp_path: Path
) -> None:
    run = trained.copied(tmp_path / "run")
    values = dict(load_step(run.folder).state.values)
    options = dict(values["identity"]["options"])
    options["full_body"] = options.pop("full_backbone")
    values["identity"] = {**values["identity"], "options": options}
    edit_state(run.folder.step(4), format=2, values=values)
    result = run.train(train_steps=6)
    assert (result.start, result.outcome.step) == (4, 6)
    assert "train.full_backbone" not in {line["key"] for line in run.journal("changed")}
