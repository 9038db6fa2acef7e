"""The fixture that runs a target's mutants and fails with what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.harness import Campaign, fuzz

SHOWN = 5


@pytest.fixture
def survive(
    request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Callable[[str], Campaign]:
    """Run a target: every mutant is read, or refused with a code; nothing else may happen."""

    def run(target: str) -> Campaign:
        campaign = fuzz(target, request.config.getoption("--fuzz-seed"), request.config.getoption("--fuzz"), tmp_path)
        record_property("fuzz", campaign.to_json())
        if campaign.failures:
            shown = "\n\n".join(list(campaign.failures.values())[:SHOWN])
            pytest.fail(f"{len(campaign.failures)} of {campaign.inputs:,} failed:\n{shown}", pytrace=False)
        return campaign

    return run
