"""A tiny random base of every family, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.cases import CLONING_TINY, Case, case_of
from tests.support.fixtures import Fixtures
from tools.random_bases import make_random_base
from tools.random_bases.tiny import CLONING_SIZE
from voxgraft.models import family_names


@pytest.fixture(scope="session")
def bases(fixtures: Fixtures) -> dict[str, Path]:
    make_cloning = lambda folder: make_random_base("tiny", folder, size=CLONING_SIZE, seed=3)  # noqa: E731
    cloning = fixtures.folder(f"bases-3/{CLONING_TINY}", make_cloning)
    return {**{name: fixtures.base(name, seed=3).folder for name in family_names()}, CLONING_TINY: cloning}


@pytest.fixture(params=[*family_names(), CLONING_TINY])
def case(request: pytest.FixtureRequest, bases: dict[str, Path]) -> Case:
    return case_of(request.param, bases[request.param])
