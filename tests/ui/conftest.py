"""A project that was trained and evaluated, for every test of this folder: as it was made, and as a copy to change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ui import PROJECT

if TYPE_CHECKING:
    from tests.support.fixtures import Fixtures


@pytest.fixture(scope="session")
def made_home(fixtures: Fixtures) -> Path:
    """The folder of the project, the same for all. Nobody writes to it."""
    from tests.support.ui import home_of

    return home_of(fixtures)


@pytest.fixture
def home(made_home: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with the project in it; its base stays where it is."""
    shutil.copytree(made_home / PROJECT, tmp_path / PROJECT)
    return tmp_path
