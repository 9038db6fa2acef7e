"""A tiny random base of every family, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.cases import Case, case_of
from tests.support.fixtures import Fixtures
from voxgraft.models import family_names


@pytest.fixture(scope="session")
def bases(fixtures: Fixtures) -> dict[str, Path]:
    return {name: fixtures.base(name, seed=3).folder for name in family_names()}


@pytest.fixture(params=family_names())
def case(request: pytest.FixtureRequest, bases: dict[str, Path]) -> Case:
    return case_of(request.param, bases[request.param])
