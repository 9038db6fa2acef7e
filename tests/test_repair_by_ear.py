"""On the base that speaks: a ruined body is heard to be ruined, and the point to go back to is chosen by ear."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.support.check_files import State, state_of
from tests.support.damaged_checkpoints import moved_body
from voxgraft.config.commands import DiagnoseSettings, RepairSettings
from voxgraft.inspect.diagnose import diagnose
from voxgraft.inspect.repair import PointTrial, repair, select_best_point
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles

TABLES = ["text_emb.weight", "text_head.weight"]


@pytest.fixture(scope="module")
def tiny() -> BaseFiles:
    folder = get_family("tiny").shipped_folder()
    assert folder is not None
    return get_family("tiny").files(folder)


@pytest.fixture(scope="module")
def ruined(tiny: BaseFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    state: State = moved_body(state_of(tiny), TABLES, 0.45)
    path = tmp_path_factory.mktemp("ruined") / "tuned.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    return path


@pytest.mark.long
def test_a_ruined_body_is_heard_and_the_way_back_is_chosen(
    ruined: Path, tiny: BaseFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnose(
        DiagnoseSettings(checkpoint=ruined, base=Path("tiny"), report=False, listen=True, max_sentences=1)
    ).found
    errors = {(one["language"], one["who"]): one["phone_error"] for one in found.heard}
    assert errors["en", "checkpoint"] > errors["en", "base"] + 0.2
    assert found.verdict.word == "START FRESH"
    settings = RepairSettings(
        checkpoint=ruined,
        base=Path("tiny"),
        output=tmp_path / "new.safetensors",
        choose=True,
        only=("body",),
        points=(0.0, 1.0),
        max_sentences=1,
        tokenizer=tiny.tokenizer,
        language="sw",  # the built-in recognizer does not know it
    )
    monkeypatch.setattr("voxgraft.inspect.repair._require_language_of_tokenizer", lambda *_: None)
    result = repair(settings)
    assert "--language is sw" in result.unspoken
    assert any("only old languages are spoken" in str(line) for line in result.lines())
    assert [one.within for one in result.tried_points] == [True, False]
    assert result.repairs.share == 0.0
    assert result.after.verdict.word == "RESUME"


def test_of_the_points_that_keep_old_languages_the_best_in_the_new_one_is_chosen() -> None:
    tried = [
        PointTrial(0.0, {"en": 0.1, "am": 0.9}, True),
        PointTrial(0.5, {"en": 0.12, "am": 0.4}, True),
        PointTrial(0.75, {"en": 0.14, "am": 0.4}, True),
        PointTrial(1.0, {"en": 0.8, "am": 0.2}, False),
    ]
    assert select_best_point(tried, "am").share == 0.5
    assert select_best_point(tried, None).share == 0.75
    assert select_best_point([one for one in tried if not one.within], "am").share == 1.0


def test_where_nothing_can_be_heard_the_reason_is_reported(tiny: BaseFiles, tmp_path: Path) -> None:
    (tmp_path / "torn.safetensors").write_bytes(tiny.checkpoint.read_bytes()[:-100])
    found = diagnose(
        DiagnoseSettings(
            checkpoint=tmp_path / "torn.safetensors", base=Path("tiny"), report=False, listen=True, max_sentences=1
        )
    ).found
    assert found.not_heard
    assert found.verdict.word == "START FRESH"
