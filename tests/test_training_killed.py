"""A run that is killed at any instant, and continued with, ends as the run that was left alone. (100 kills: tests/support/campaigns/kills.py)"""

from __future__ import annotations

from pathlib import Path

from tests.support.campaigns.kills import Lives, rounds
from tests.support.fixtures import Fixtures

SHORT = {"steps": 6, "every": {"save_every": 2, "valid_every": 3}}


def test_five_killed_runs_end_as_the_one_that_was_left_alone(fixtures: Fixtures, tmp_path: Path) -> None:
    lives = Lives(fixtures.place("chatterbox"), SHORT)
    found = rounds(lives, tmp_path, kills=5, in_saves=3, seed=11)
    assert sum(one.was_killed for one in found) >= 4
    assert all(one.same for one in found), found
