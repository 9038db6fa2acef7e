"""The comparison on which `tests/support/campaigns/kills.py` rests can say no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.campaigns.kills import COMPARED, differences
from tests.support.fixtures import Fixtures
from tests.support.trainers import Place
from tests.support.workers.train import main
from voxgraft.core.run import RunFolder, RunJournal

SHORT: dict[str, Any] = {"steps": 2, "every": {"save_every": 1, "valid_every": 2}}


@pytest.fixture(scope="module")
def place(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


def trained(place: Place, run: Path, **changed: Any) -> Path:
    main(place.folder, run, {**SHORT, "every": dict(SHORT["every"]), **changed})
    return run


@pytest.fixture(scope="module")
def straight(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(place, tmp_path_factory.mktemp("straight") / "run")


def test_a_run_that_was_killed_in_its_first_line_and_begun_again_is_the_same_in_everything(
    place: Place, straight: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    RunFolder(run).journal.write_bytes(b'{"kind": "start", "st')
    assert differences(trained(place, run), straight) == ()


@pytest.mark.parametrize(
    ("changed", "different"),
    [
        ({"seed": 1}, {"weights", "optimizer", "losses", "clip ids", "journal"}),
        ({"lr_rows": 2e-3}, {"weights", "rates", "journal"}),
        ({"steps": 3}, {"steps", "state"}),
    ],
    ids=["another order", "another rate", "one step more"],
)
def test_a_run_that_ended_otherwise_is_reported_with_what_is_different(
    place: Place, straight: Path, tmp_path: Path, changed: dict[str, Any], different: set[str]
) -> None:
    assert different <= set(differences(trained(place, tmp_path / "run", **changed), straight)) <= set(COMPARED)


def test_a_line_that_stands_twice_in_the_journal_is_a_difference(place: Place, straight: Path, tmp_path: Path) -> None:
    run = trained(place, tmp_path / "run")
    journal = RunJournal(RunFolder(run).journal)
    journal.path.write_bytes(journal.path.read_bytes() + journal.path.read_bytes().splitlines(keepends=True)[-1])
    assert differences(run, straight) == ("steps", "losses", "rates", "clip ids", "journal")
