"""Options of the test suite, and the figures of its fuzzing."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

# The workers share the cores: a thread pool of torch in each of them only makes them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=float,
        default=1.0,
        metavar="N",
        help="run N times as many fuzz inputs as the suite does by itself",
    )
    parser.addoption(
        "--fuzz-seed", type=int, default=0, metavar="SEED", help="other fuzz inputs than the suite has by itself"
    )


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
    if config.getoption("--fuzz") != 1 or config.get_verbosity() > 0:
        for campaign in sorted(found, key=lambda campaign: str(campaign["target"])):
            outcomes = ", ".join(f"{code} {count:,}" for code, count in campaign["outcomes"].items())
            terminalreporter.write_line(f"  {campaign['target']}: {campaign['inputs']:,} files: {outcomes}")
