"""Tokenizers and their tables, damaged by the thousand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz.harness import Campaign


@pytest.mark.long(fast=("tokenizer-json", "sentencepiece"))
@pytest.mark.parametrize("target", ["tokenizer-json", "flat-map", "sentencepiece", "additions", "cangjie"])
def test_a_damaged_file_is_read_or_refused_with_a_code_and_a_sound_one_is_read(
    target: str, survive: Callable[[str], Campaign]
) -> None:
    campaign = survive(target)
    assert campaign.loaded
    assert campaign.refused
