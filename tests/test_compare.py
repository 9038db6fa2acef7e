"""The command `compare`: evaluations in one picture and one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.run_folders import error_of
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import CompareSettings
from voxgraft.core.results import Table, plain_text
from voxgraft.evaluation.command import CompareResult, compare
from voxgraft.evaluation.report import SCORES_FORMAT

PNG = b"\x89PNG\r\n"


def scores_file(
    folder: Path,
    *,
    mode: str = "gated",
    equal: bool = True,
    other: dict[str, Any] | None = None,
    **values: float | None,
) -> Path:
    """A run with an evaluation; `values` are LANGUAGE_WHO_MEASURE, `other` are keys of the document."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, value in values.items():
        language, who, measure = name.split("_", 2)
        low, high = (None, None) if value is None else (value * 0.8, value * 1.2)
        score = (
            {"value": None, "why": "nobody listened"} if value is None else {"value": value, "low": low, "high": high}
        )
        rows.setdefault((language, who), {})[measure] = {**score, "count": 100}
    document = {
        "format": SCORES_FORMAT,
        "subject": {"mode": mode, "step": 400, "system": "graft"},
        "language": "am",
        "rows": [{"language": one, "who": who, "scores": scores} for (one, who), scores in rows.items()],
        "retention": {"word": "?", "languages": {"en": {"equal": equal}, "fr": {"equal": equal}}},
        "base": "/bases/tiny",
        "base_sha256": "ab" * 32,
        "listener": {"name": "built-in"},
        "sentences": {"am": {"count": 100, "sha256": "cd" * 32}},
        **(other or {}),
    }
    place = folder / "eval" / "default"
    place.mkdir(parents=True)
    (place / "scores.json").write_text(json.dumps(document))
    return folder


def compared(output: Path, *runs: Path, **flags: Any) -> CompareResult:
    options = [f"--{name}={value}" for name, value in {"output": output, **flags}.items()]
    line = cast(CommandLine, parse_command_line(["compare", *map(str, runs), *options], COMMANDS))
    return compare(cast(CompareSettings, resolve_settings(line)))


def table_of(result: CompareResult) -> dict[str, tuple[str, ...]]:
    (table,) = [line for line in result.lines() if isinstance(line, Table)]
    return {str(row[0]): tuple(map(str, row[1:])) for row in table.rows}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    gated = scores_file(
        tmp_path / "gated", am_after_phone_error=0.046, en_before_phone_error=0.06, en_after_phone_error=0.07
    )
    naive = scores_file(
        tmp_path / "naive",
        mode="masked-finetune",
        equal=False,
        am_after_phone_error=0.03,
        en_before_phone_error=0.06,
        en_after_phone_error=0.96,
        fr_before_phone_error=0.06,
        fr_after_phone_error=0.46,
    )
    return [gated, naive]


def test_runs_stand_in_one_picture_with_their_error_and_their_worst_loss(tmp_path: Path, runs: list[Path]) -> None:
    result = compared(tmp_path / "picture", *runs)
    assert result.measure == "phone_error"
    png, svg = result.files
    assert png.read_bytes().startswith(PNG)
    picture = svg.read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    naive = result.to_json()["runs"]["naive"]
    assert naive["worst_language"] == "en"
    assert naive["worst_change"] == pytest.approx(0.9)
    rows = table_of(result)
    assert rows["naive"][:2] == ("masked-finetune", "400")
    assert rows["naive"][-2:] == ("+90.0 points", "not equal")


def test_a_language_that_is_proven_equal_has_not_changed_whatever_chance_drew(tmp_path: Path, runs: list[Path]) -> None:
    gated = compared(tmp_path / "picture", *runs).to_json()["runs"]["gated"]
    assert gated["worst_change"] == 0.0
    assert gated["logits"] == "equal"


def test_the_same_evaluations_give_the_same_bytes(tmp_path: Path, runs: list[Path]) -> None:
    first = compared(tmp_path / "one", *runs)
    second = compared(tmp_path / "two", *runs)
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in second.files]


def test_the_measure_is_the_first_that_all_have_and_who_lacks_one_is_named(tmp_path: Path) -> None:
    heard = scores_file(tmp_path / "heard", am_after_phone_error=0.1, am_after_speech_loss=1.5)
    silent = scores_file(tmp_path / "silent", am_after_phone_error=None, am_after_speech_loss=1.8)
    assert compared(tmp_path / "one", heard, silent).measure == "speech_loss"
    chosen = compared(tmp_path / "two", heard, silent, measure="phone_error")
    assert table_of(chosen)["silent"][2] == "–"
    assert "silent" in chosen.files[1].read_text(encoding="utf-8")


def test_nothing_to_compare_is_an_error_with_a_cure(tmp_path: Path) -> None:
    silent = scores_file(tmp_path / "silent", am_after_phone_error=None)
    (tmp_path / "empty").mkdir()
    for call in (
        lambda: compared(tmp_path / "one", silent),
        lambda: compared(tmp_path / "two", tmp_path / "empty"),
        lambda: compared(tmp_path / "three", silent, name="other"),
    ):
        error = error_of(call)
        assert error.code == "compare-nothing"
        assert error.finding.cure
    assert not list(tmp_path.glob("*.png"))


def test_pictures_that_are_there_are_replaced_only_if_asked(tmp_path: Path, runs: list[Path]) -> None:
    compared(tmp_path / "picture.png", *runs)
    assert (tmp_path / "picture.svg").is_file()
    assert error_of(lambda: compared(tmp_path / "picture", *runs)).code == "file-exists"


def test_evaluations_can_be_named_by_folder_or_file_and_those_of_one_name_are_reported_apart(tmp_path: Path) -> None:
    one = scores_file(tmp_path / "a" / "run", am_after_cer=0.2)
    two = scores_file(tmp_path / "b" / "run", am_after_cer=0.3)
    result = compared(tmp_path / "picture", one, two / "eval" / "default")
    assert {name: run["error"]["value"] for name, run in result.runs.items()} == {"run": 0.2, "default": 0.3}
    both = compared(tmp_path / "both", one, two)
    assert {name: run["error"]["value"] for name, run in both.runs.items()} == {str(one): 0.2, str(two): 0.3}


def test_the_same_evaluation_given_twice_is_refused(tmp_path: Path) -> None:
    run = scores_file(tmp_path / "run", am_after_cer=0.2)
    for again in (run, run / "eval" / ".." / "eval" / "default", run / "eval" / "default" / "scores.json"):
        error = error_of(lambda again=again: compared(tmp_path / "picture", run, again))
        assert error.code == "config-value"
        assert "more than once" in error.finding.found


@pytest.mark.parametrize(
    ("what", "other", "reported"),
    [
        ("language", {"language": "ti"}, "ti"),
        ("sentences", {"sentences": {"am": {"count": 20, "sha256": "cd" * 32}}}, "am 20 of cdcdcdcd"),
        ("listener", {"listener": {"name": "whisper:large"}}, "whisper:large"),
        ("base", {"base_sha256": "ef" * 32}, "tiny efefefef"),
    ],
)
def test_runs_that_were_not_measured_alike_are_reported_apart_run_by_run(
    tmp_path: Path, what: str, other: dict[str, Any], reported: str
) -> None:
    usual = scores_file(tmp_path / "usual", am_after_cer=0.2)
    alike = scores_file(tmp_path / "alike", am_after_cer=0.3)
    strange = scores_file(tmp_path / "strange", other=other, am_after_cer=0.3, ti_after_cer=0.3)
    assert compared(tmp_path / "one", usual, alike).differing == []
    result = compared(tmp_path / "two", usual, strange)
    assert result.to_json()["differing"] == [what]
    assert result.to_json()["runs"]["strange"]["how"][what] == reported
    lines = [plain_text(line) for line in result.lines() if not isinstance(line, Table)]
    assert any(f"different {what} between runs" in line and f"strange: {reported}" in line for line in lines)
    assert f"different between runs: {what}" in result.files[1].read_text(encoding="utf-8")


def test_an_old_language_that_nobody_listened_to_is_named_beside_the_worst(tmp_path: Path) -> None:
    half = scores_file(
        tmp_path / "half", equal=False, am_after_cer=0.2, en_before_cer=0.1, en_after_cer=0.2, fr_before_cer=0.1
    )
    result = compared(tmp_path / "picture", half)
    assert result.to_json()["runs"]["half"]["not_measured"] == ["fr"]
    assert table_of(result)["half"][4] == "en (not measured: fr)"


@pytest.mark.parametrize(
    "other",
    [
        {"rows": [{"language": "am", "who": "after", "scores": [1]}]},
        {"rows": [{"language": "am", "who": "after", "scores": {"cer": {"value": 0.1, "count": "many"}}}]},
        {"rows": [3]},
        {"subject": {"mode": ["gated"]}},
        {"subject": 5},
    ],
)
def test_a_file_of_scores_that_holds_something_else_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    run = scores_file(tmp_path / "run", other=other, am_after_cer=0.2)
    error = error_of(lambda: compared(tmp_path / "picture", run))
    assert error.code == "scores-format"
    assert error.finding.where
