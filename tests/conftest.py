"""Options of the test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=float,
        default=1.0,
        metavar="N",
        help="run N times as many fuzz inputs as the suite does by itself",
    )
