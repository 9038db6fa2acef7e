"""A flipped bit anywhere in a prepared run is found, or changes nothing that is trained. (200: python -m tests.support.campaigns.bit_flips)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.campaigns.bit_flips import flips
from tests.support.fixtures import Fixtures
from tests.support.preprocess_runs import prepared

BAD = ("SILENT", "BUG")


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.long)])
def test_no_flipped_bit_is_used_without_a_word(fixtures: Fixtures, tmp_path: Path, count: int) -> None:
    found = flips(prepared(fixtures, tmp_path / "made"), tmp_path, count, seed=count)
    assert len(found) == count
    assert [one for one in found if one.verdict in BAD] == []
