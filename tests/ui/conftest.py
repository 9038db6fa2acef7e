"""A project that was trained and evaluated, for every test of this folder: as it was made, and as a copy to change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ui_pages import PROJECT

if TYPE_CHECKING:
    from tests.made_once import MadeOnce


@pytest.fixture(scope="session")
def made_home(made_once: MadeOnce) -> Path:
    """The folder of the project, the same for all. Nobody writes to it."""
    from tests.ui_runs import home_of

    return home_of(made_once)


@pytest.fixture
def home(made_home: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with the project in it; its base stays where it is."""
    shutil.copytree(made_home / PROJECT, tmp_path / PROJECT)
    return tmp_path
