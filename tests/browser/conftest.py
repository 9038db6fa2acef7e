"""The browser, for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.browsing import browser

__all__ = ["browser", "closed"]


@pytest.fixture(autouse=True)
def closed(browser: Any) -> Iterator[None]:
    """A page that is left open continues asking its server, and takes the processor from the tests after it."""
    yield
    common, *others = browser.contexts
    for opened in (*common.pages, *others):
        opened.close()
