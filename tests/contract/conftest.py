"""A tiny random base of every family, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.cases import Case, case_of
from voxgraft.families import family_names
from voxgraft.families.random_base import make_random_base


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in family_names():
        made[name] = tmp_path_factory.mktemp("bases") / name
        make_random_base(name, made[name], size="tiny", seed=3)
    return made


@pytest.fixture(params=family_names())
def case(request: pytest.FixtureRequest, bases: dict[str, Path]) -> Case:
    return case_of(request.param, bases[request.param])
