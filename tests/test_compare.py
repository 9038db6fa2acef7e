"""The verb `compare`: evaluations in one picture and one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.whole_runs import error_of
from voxgraft.cli.flags import CommandLine, read_command_line
from voxgraft.cli.layers import resolve
from voxgraft.cli.verbs import VERBS
from voxgraft.compare import CompareResult, compare
from voxgraft.evaluating.scores_file import FORMAT
from voxgraft.results import Table
from voxgraft.settings import CompareSettings

PNG = b"\x89PNG\r\n"


def scores_file(folder: Path, *, mode: str = "gated", equal: bool = True, **values: float | None) -> Path:
    """A run with an evaluation; `values` are LANGUAGE_WHO_MEASURE."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, value in values.items():
        language, who, measure = name.split("_", 2)
        low, high = (None, None) if value is None else (value * 0.8, value * 1.2)
        score = (
            {"value": None, "why": "nobody listened"} if value is None else {"value": value, "low": low, "high": high}
        )
        rows.setdefault((language, who), {})[measure] = {**score, "count": 100}
    document = {
        "format": FORMAT,
        "subject": {"mode": mode, "step": 400, "system": "graft"},
        "language": "am",
        "rows": [{"language": one, "who": who, "scores": scores} for (one, who), scores in rows.items()],
        "retention": {"word": "?", "languages": {"en": {"equal": equal}, "fr": {"equal": equal}}},
    }
    place = folder / "eval" / "default"
    place.mkdir(parents=True)
    (place / "scores.json").write_text(json.dumps(document))
    return folder


def compared(output: Path, *runs: Path, **flags: Any) -> CompareResult:
    options = [f"--{name}={value}" for name, value in {"output": output, **flags}.items()]
    line = cast(CommandLine, read_command_line(["compare", *map(str, runs), *options], VERBS))
    return compare(cast(CompareSettings, resolve(line)))


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
        mode="as-in-the-seeds",
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
    assert rows["naive"][:2] == ("as-in-the-seeds", "400")
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


def test_evaluations_can_be_named_by_folder_or_file_and_those_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one = scores_file(tmp_path / "a" / "run", am_after_cer=0.2)
    two = scores_file(tmp_path / "b" / "run", am_after_cer=0.3)
    result = compared(tmp_path / "picture", one, two, two / "eval" / "default" / "scores.json")
    assert len({run.name for run in result.runs}) == len(result.runs) >= 2
