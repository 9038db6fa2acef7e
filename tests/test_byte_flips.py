"""A flipped bit anywhere in a prepared run is found, or changes nothing that is trained. (200: python -m tests.byte_flips)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.byte_flips import flips
from tests.made_once import MadeOnce
from tests.preparing_runs import prepared

BAD = ("SILENT", "BUG")


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.long)])
def test_no_flipped_bit_is_used_without_a_word(made_once: MadeOnce, tmp_path: Path, count: int) -> None:
    found = flips(prepared(made_once, tmp_path / "made"), tmp_path, count, seed=count)
    assert len(found) == count
    assert [one for one in found if one.verdict in BAD] == []
