"""The page of `voxgraft serve` in a real browser, on a real server: the tiny base with one graft.

Screenshots go to the folder in VOXGRAFT_SHOTS, if that is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import LOUDNESS, WAIT_MS
from tests.browser.test_home import axe
from tests.browser.test_journey import until
from tests.support.server import KEY, ServerProcess
from tests.support.synthesis import made_graft
from voxgraft.models import get_family

__all__ = ["axe"]
STATE = "#state"
# The policy of the page lets no script read a blob again, so the test keeps it; and it counts what is really played.
KEEP_SOUND = """const create = URL.createObjectURL;
URL.createObjectURL = sound => { window.lastSound = sound; return create(sound); };
window.played = 0;
document.addEventListener("playing", () => { window.played += 1; }, true);"""


@pytest.fixture(scope="module")
def graft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = get_family("tiny").shipped_folder()
    assert base is not None
    return made_graft(tmp_path_factory.mktemp("graft"), base, "am", 3)


@pytest.fixture(scope="module")
def address(graft: Path) -> Iterator[str]:
    server = ServerProcess(str(graft), "--language=en", environment={"OMP_NUM_THREADS": "1"})
    yield server.address
    assert server.stop() == 0


class SpeechPage:
    """The page, and what went wrong in it."""

    def __init__(self, browser: Any, address: str, *, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.contexts[0].new_page()
        self.console: list[str] = []
        self.page.set_viewport_size({"width": width, "height": 844})
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda line: self.console.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.add_init_script(KEEP_SOUND)
        self.page.goto(address)

    def wait_for_lists(self) -> None:
        # By selectors: the page's policy forbids the scripts with which a condition would be watched.
        self.page.wait_for_selector("#model option >> nth=3", state="attached")
        self.page.wait_for_selector("#voice option >> nth=1", state="attached")

    def speak(self, text: str, language: str = "", voice: str = "") -> None:
        """Fill in the form and send it."""
        self.page.locator("#text").fill(text)
        if language:
            self.page.locator("#model").select_option(language)
        if voice:
            self.page.locator("#voice").select_option(voice)
        self.page.get_by_role("button", name="Speak").click()

    def wait_for_end(self) -> str:
        """Wait for the answer; what the state line says."""
        self.page.wait_for_selector("#speak:not([disabled])")
        return str(self.page.locator(STATE).inner_text())

    def shows_error(self) -> bool:
        return bool(self.page.locator(f"{STATE}.error").count())

    def shoot(self, name: str) -> None:
        if folder := os.environ.get("VOXGRAFT_SHOTS"):
            self.page.screenshot(path=f"{folder}/serve-{name}.png")


def measure_sound(page: Any) -> tuple[float, float]:
    """Length and level of what the player has, as the browser decodes it."""
    player = page.locator("#player")
    until(lambda: page.evaluate("document.getElementById('player').duration > 0"))
    seconds, level = page.evaluate(
        LOUDNESS.replace("await (await fetch(source)).arrayBuffer()", "await window.lastSound.arrayBuffer()"),
        player.get_attribute("src"),
    )
    return float(seconds), float(level)


def test_a_text_is_spoken_in_the_chosen_language_and_voice_and_is_played(browser: Any, address: str) -> None:
    page = SpeechPage(browser, address)
    page.wait_for_lists()
    offered = page.page.locator("#model option").evaluate_all("all => all.map(one => one.value)")
    assert offered == ["voxgraft", "voxgraft-am", "voxgraft-en", "voxgraft-fr"]
    assert not page.page.locator("#key").is_visible()
    requests: list[Any] = []
    page.page.on("request", lambda request: requests.append(request) if request.method == "POST" else None)
    page.speak("ሰላም", "voxgraft-am", "f2")
    said = page.wait_for_end()
    assert "(am)" in said
    assert not page.shows_error()
    assert [(one.post_data_json["model"], one.post_data_json["voice"]) for one in requests] == [("voxgraft-am", "f2")]
    seconds, level = measure_sound(page.page)
    assert seconds > 0.1
    assert level > 0.0005
    until(lambda: page.page.evaluate("window.played === 1"))
    # With the model for all languages the script decides; the first sound is replaced.
    before = page.page.locator("#player").get_attribute("src")
    page.speak("ቤቱ ትልቅ ነው", "voxgraft")
    assert "(am)" in page.wait_for_end()
    assert page.page.locator("#player").get_attribute("src") != before
    page.speak("a cup")
    assert "(en)" in page.wait_for_end()
    assert page.console == []


@pytest.mark.long
def test_what_the_server_refuses_is_shown_and_the_next_text_is_spoken(browser: Any, address: str) -> None:
    page = SpeechPage(browser, address)
    page.wait_for_lists()
    page.speak("a" * 5000)
    assert "4,096" in page.wait_for_end()
    assert page.shows_error()
    page.page.route("**/v1/audio/speech", lambda route: route.abort())
    page.speak("a cup")
    assert page.wait_for_end()
    assert page.shows_error()
    page.page.unroute("**/v1/audio/speech")
    page.page.route("**/v1/audio/speech", lambda route: route.fulfill(status=502, body="<h1>proxy</h1>"))
    page.speak("a cup")
    assert "502" in page.wait_for_end()
    page.page.unroute("**/v1/audio/speech")
    page.speak("a cup")
    assert "(en)" in page.wait_for_end()
    assert not page.shows_error()
    assert all("Failed to load resource" in line for line in page.console), page.console


@pytest.mark.long
def test_a_server_with_a_key_asks_for_it_first(browser: Any, graft: Path) -> None:
    server = ServerProcess(str(graft), "--language=en", environment={"OMP_NUM_THREADS": "1", "VOXGRAFT_API_KEY": KEY})
    try:
        page = SpeechPage(browser, server.address)
        field = page.page.locator("#key")
        assert field.is_visible()
        assert not page.page.locator("#model option").count()
        assert page.console == [], "nothing is asked for without the key"
        field.fill("wrong")
        field.press("Tab")
        page.page.wait_for_selector(f"{STATE}.error")
        field.fill(KEY)
        field.press("Tab")
        page.wait_for_lists()
        assert not page.shows_error()
        page.speak("a cup")
        assert "(en)" in page.wait_for_end()
        assert all("401" in line for line in page.console), page.console
        assert page.page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
    finally:
        assert server.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_a_phone_and_axe_finds_no_violation(
    browser: Any, address: str, axe: str, scheme: str, width: int
) -> None:
    page = SpeechPage(browser, address, width=width, scheme=scheme)
    page.wait_for_lists()
    page.shoot(f"{scheme}-{width}-empty")
    page.speak("Take the red box.", "voxgraft-en", "f2")
    page.wait_for_end()
    page.shoot(f"{scheme}-{width}-spoken")
    found = []
    for number in range(2):
        page.page.evaluate(axe)
        result = page.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            (number, one["id"], [node["any"][0]["message"] for node in one["nodes"][:3] if node["any"]])
            for one in result["violations"]
        ]
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        page.speak("a" * 5000)  # and with an error
        page.wait_for_end()
        assert page.shows_error()
        page.shoot(f"{scheme}-{width}-error")
    assert found == []
