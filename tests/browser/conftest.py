"""The browser, for every test of this folder."""

from tests.browser.browsing import browser

__all__ = ["browser"]
