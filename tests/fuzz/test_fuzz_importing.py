"""Subtitles, lists of recordings, media and manifests, damaged by the thousand: no crash, and no line goes unsaid."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz.harness import Campaign


@pytest.mark.long(fast="subtitles")
@pytest.mark.parametrize("target", ["subtitles", "recording-list", "corpus", "media", "manifest", "bring"])
def test_a_damaged_source_is_read_or_refused_with_a_code_and_no_line_goes_unsaid(
    target: str, survive: Callable[[str], Campaign]
) -> None:
    campaign = survive(target)
    assert campaign.loaded
    assert campaign.refused
