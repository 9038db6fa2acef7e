"""`check` on old configs and on the rates of a run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.support.check_files import checked, codes, found, old_yaml
from tools.random_bases import RandomBaseSize, make_random_base
from voxgraft.config.run import TrainMode, TrainSettings
from voxgraft.models.base import BaseFiles


@pytest.fixture(scope="module")
def chatterbox(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("chatterbox", tmp_path_factory.mktemp("t3") / "base", size=RandomBaseSize(16, 1, 640))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("indextts2", tmp_path_factory.mktemp("index") / "base", size=RandomBaseSize(16, 1, 1000))


@pytest.mark.parametrize(
    ("boundary", "code", "says"),
    [
        (640, "freeze-needless", "the base's number of tokens"),
        (100, "freeze-boundary", "base rows 100 to 639 are trained"),
        (650, "freeze-boundary", "new rows 640 to 649 are never trained"),
        (99_999, "freeze-boundary", "but the tokenizer has 700 tokens"),
    ],
)
def test_the_freeze_boundary_is_judged_by_the_base(
    boundary: int, code: str, says: str, chatterbox: BaseFiles, tmp_path: Path
) -> None:
    config = old_yaml(tmp_path / "old.yaml", model={"n_vocab": 700, "freeze_until_index": boundary})
    result = checked(base=chatterbox.folder, training_config=config)
    assert {item.code for item in result.findings if item.code.startswith("freeze")} == {code}
    assert says in found(result, code)


@pytest.mark.parametrize(
    ("rate", "level"), [("5.0e-6", "warning"), ("2.0e-5", None), ("2.0e-4", "warning"), ("1.0e-2", "error")]
)
def test_an_old_rate_is_judged_as_one_that_moves_the_body(
    rate: str, level: str | None, chatterbox: BaseFiles, tmp_path: Path
) -> None:
    config = tmp_path / "old.yaml"
    config.write_text(f"training:\n  learning_rate: {rate}\n")
    result = checked(base=chatterbox.folder, training_config=config)
    levels = [item.level for item in result.findings if item.code == "rate-out-of-range"]
    assert levels == ([level] if level else [])


def test_a_rate_that_yaml_reads_as_text_is_read_and_told(chatterbox: BaseFiles, tmp_path: Path) -> None:
    config = tmp_path / "old.yaml"
    config.write_text("training:\n  learning_rate: 1e-5\n")
    result = checked(base=chatterbox.folder, training_config=config)
    assert result.exit_code == 0
    assert "rate-as-text" in codes(result, "note")
    assert "rate-out-of-range" not in codes(result)


def test_the_rate_on_an_old_command_line_is_judged_too(index: BaseFiles, tmp_path: Path) -> None:
    config = tmp_path / "command.txt"
    config.write_text("python trainers/train_gpt_v2.py \\\n  --tokenizer a.model \\\n  --learning-rate 5e-6\n")
    result = checked(base=index.folder, training_config=config)
    assert "is 5e-06, below the range for the backbone of indextts2" in found(result, "rate-out-of-range")
    assert "rate-as-text" not in codes(result)


@pytest.mark.parametrize("full_backbone", [False, True])
@pytest.mark.parametrize("mode", get_args(TrainMode))
def test_only_rates_that_the_runs_mode_uses_are_judged(
    mode: str, full_backbone: bool, chatterbox: BaseFiles, tmp_path: Path
) -> None:
    """Merged mode trains an adapter, unless the body itself is asked for; no other mode trains the body."""
    values = {"mode": mode, "full_backbone": full_backbone, "lr_adapter": 0.02, "lr_backbone": 0.0008}
    result = checked(run=tmp_path, base=chatterbox.folder, train=TrainSettings.model_validate(values))
    said = found(result, "rate-out-of-range")
    trains_body = mode == "merged" and full_backbone
    assert ("lr_adapter" in said) == (mode != "rows-only" and not trains_body)
    assert ("lr_backbone" in said) == trains_body
