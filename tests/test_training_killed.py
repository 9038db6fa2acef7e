"""A run that is killed at any instant, and continued with, ends as the run that was left alone. (100 kills: tests/support/campaigns/kills.py)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaigns.kills import Lives, rounds
from tests.support.fixtures import Fixtures

SHORT = {"steps": 6, "every": {"save_every": 2, "valid_every": 3}}


@pytest.mark.long(fast="1-1")
@pytest.mark.parametrize(("kills", "in_saves"), [(1, 1), (5, 3)])
def test_killed_runs_end_as_the_one_that_was_left_alone(
    fixtures: Fixtures, tmp_path: Path, kills: int, in_saves: int
) -> None:
    lives = Lives(fixtures.place("chatterbox"), SHORT)
    found = rounds(lives, tmp_path, kills=kills, in_saves=in_saves, seed=11)
    assert sum(one.was_killed for one in found) >= max(1, kills - 1)
    assert all(one.same for one in found), found
