"""Whole verbs on damaged inputs, and files that are made to take for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz.harness import Campaign


@pytest.mark.long(fast="command-line")
@pytest.mark.parametrize("target", ["verbs", "command-line"])
def test_a_verb_that_refuses_its_input_leaves_nothing_behind(target: str, survive: Callable[[str], Campaign]) -> None:
    campaign = survive(target)
    assert campaign.loaded
    assert campaign.refused


@pytest.mark.long
def test_no_file_takes_for_ever_or_fills_memory(survive: Callable[[str], Campaign]) -> None:
    survive("bombs")
