"""Options of the test suite, and the figures of its fuzzing."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.fixtures import Fixtures

# The workers share the cores: a thread pool of torch in each of them only makes them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that. Some tests interrupt children.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long one example takes says something about the machine and nothing about the code.
settings.register_profile("fast", deadline=None, max_examples=30)
settings.register_profile("all", deadline=None, max_examples=100)
settings.load_profile("fast")

FUZZ_SHARE = 0.02
"""Of a whole campaign, which takes minutes (`make fuzz`), in an ordinary run of the suite."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="only the tests that are marked as long: they prove at length what a fast test proves already",
    )
    parser.addoption("--all", action="store_true", help="the fast tests and the long ones")
    parser.addoption(
        "--fuzz",
        type=float,
        default=FUZZ_SHARE,
        metavar="N",
        help=f"run N whole fuzz campaigns of 37,000 inputs; by itself the suite runs {FUZZ_SHARE} of one",
    )
    parser.addoption(
        "--fuzz-seed", type=int, default=0, metavar="SEED", help="other fuzz inputs than the suite has by itself"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        settings.load_profile("all")
    config.addinivalue_line(
        "markers",
        "long(fast=PATTERNS): takes many seconds; run by `make long` (pytest --long) and not by `make test`. "
        "Cases whose id matches one of the patterns are fast all the same.",
    )


def is_long(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("long")
    if marker is None:
        return False
    fast = marker.kwargs.get("fast", ())
    patterns = (fast,) if isinstance(fast, str) else fast
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return not any(fnmatchcase(case, pattern) for pattern in patterns)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without an option the fast tests, with `--long` only the long ones: the two together run each test once."""
    if config.getoption("--all"):
        return
    wants_long = config.getoption("--long")
    config.hook.pytest_deselected(items=[item for item in items if is_long(item) != wants_long])
    items[:] = [item for item in items if is_long(item) == wants_long]


def pytest_collection_finish() -> None:
    """What was imported stays: nothing is gained by looking through it for garbage again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixtures]:
    """Bases, sets and runs that are made once for all tests, which leave them as they are."""
    from tests.support.fixtures import Fixtures

    made = Fixtures(tmp_path_factory)
    yield made
    assert made.changed() == [], "a test has written to what is common to all"


PROVE_ANEW = {"test_check_seeds", "test_graft_and_extend", "test_tokenizers_promise"}
"""Tests that make every comparison again."""


@pytest.fixture(scope="module", autouse=True)
def kept_comparisons(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """See tests/support/tokenizers.py."""
    if request.module.__name__.rpartition(".")[2] in PROVE_ANEW:
        yield
        return
    from tests.support.fixtures import shared_folder
    from tests.support.tokenizers import comparisons_kept

    with comparisons_kept(shared_folder(tmp_path_factory) / "comparisons"):
        yield


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How many files were damaged and read, and what came of them; by format where more was asked for."""
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    found = [value for report in reports for name, value in report.user_properties if name == "fuzz"]
    if not found:
        return
    inputs, loaded = (sum(campaign[name] for campaign in found) for name in ("inputs", "loaded"))
    codes = Counter[str]()
    for campaign in found:
        codes.update(campaign["outcomes"])
    failures = sum(campaign["failures"] for campaign in found)
    terminalreporter.write_line(
        f"fuzz: {inputs:,} files, {loaded:,} loaded, {inputs - loaded:,} refused with {len(codes) - 1} codes, {failures} failures"
    )
    if config.getoption("--fuzz") != FUZZ_SHARE or config.get_verbosity() > 0:
        for campaign in sorted(found, key=lambda campaign: str(campaign["target"])):
            outcomes = ", ".join(f"{code} {count:,}" for code, count in campaign["outcomes"].items())
            terminalreporter.write_line(f"  {campaign['target']}: {campaign['inputs']:,} files: {outcomes}")
