"""The review table in a real browser: thousands of clips, keys only, undo, and a server that is really killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import Server, Window, loudness, serving
from tests.browser.test_home import axe
from tests.support.review import make_review_home
from tests.support.ui import PROJECT
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.manifest import TEXT_MISMATCH, ManifestClip, read_manifest

__all__ = ["axe"]
MANY = 5_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "home"
    folder.mkdir()
    make_review_home(folder, 60)
    with serving(folder) as started:
        yield started


def clips_of(server: Server) -> dict[str, ManifestClip]:
    return {clip.id: clip for clip in read_manifest(server.folder / PROJECT / "data/manifest.jsonl")}


def opened(browser: Any, server: Server, width: int = 1440, height: int = 900, **more: str) -> Window:
    window = Window(browser, server, width, height)
    words = "&".join(f"{key}={value}" for key, value in {"project": PROJECT, **more}.items())
    window.page.goto(f"{server.address}voxgraft/review?{words}")
    window.page.wait_for_selector("#rows tr[aria-current]")
    return window


def shown(window: Window) -> list[str]:
    return list(window.page.locator("#rows .id").all_inner_texts())


def saved(window: Window, words: str) -> None:
    """Wait until the page says that the newest decision is saved."""
    window.page.wait_for_function(
        "words => !document.querySelector('.unsaved') && document.querySelector('#status').textContent.includes(words)",
        arg=words,
    )


def press(window: Window, *keys: str) -> None:
    for key in keys:
        window.page.keyboard.press(key)


@pytest.mark.long
def test_thousands_of_clips_are_shown_by_pages_worst_first(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    make_review_home(folder, MANY)
    with serving(folder) as server:
        window = Window(browser, server, 1440, 900)
        window.open(PROJECT, "data")
        window.command("data-import", "still needed")
        window.open_part("data-look")
        window.page.locator("#data-review").click()
        window.page.wait_for_selector("#rows tr[aria-current]")
        window.console.clear()  # gradio reports its event streams, which end with its page
        clips = clips_of(server)
        names = shown(window)
        assert len(names) == 50
        assert window.page.locator("#rows tr").count() == 50
        scores = [clips[name].other["disagreement"] for name in names]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] == max(clip.other.get("disagreement", 0) for clip in clips.values())
        assert window.text("count") == "0 of 5,000 reviewed"
        window.page.select_option("#filter", "marked")
        assert window.page.locator("#filter option:checked").inner_text() == "Marked by verify (100)"
        window.page.locator("#after").click()
        assert window.text("page") == "Page 2 of 2"
        assert all(TEXT_MISMATCH in clips[name].rejected for name in shown(window))
        window.page.select_option("#filter", "all")
        window.page.fill("#search", "talk-0499")
        window.page.wait_for_function("() => document.querySelectorAll('#rows tr').length === 10")
        unverified = [name for name in shown(window) if "disagreement" not in clips[name].other]
        assert unverified == shown(window)[-1:] == ["talk-04990"]
        paint = window.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        print(f"first contentful paint after {paint:.0f} ms")
        assert not window.console
        assert not window.foreign


@pytest.mark.long
def test_with_keys_alone_a_reviewer_hears_edits_rejects_and_undoes_also_after_a_reload(
    browser: Any, server: Server
) -> None:
    window = opened(browser, server)
    first, second, third, fourth = shown(window)[:4]
    before = clips_of(server)
    assert TEXT_MISMATCH in before[first].rejected
    press(window, " ")
    window.page.wait_for_function("() => document.querySelector('#rows audio')?.currentTime > 0")
    assert loudness(window, "#rows audio") == pytest.approx((2.0, 0.141), abs=0.01)
    press(window, " ", "a")
    saved(window, f"{first} accepted")
    press(window, "e")
    window.page.keyboard.type("ሰላም 3 ልጆች")
    press(window, "Enter")
    saved(window, f"{second} edited")
    press(window, "r")
    saved(window, f"{third} rejected")
    assert window.page.locator("tr[aria-current] .id").inner_text() == fourth
    press(window, "k", "ArrowUp", "j", "ArrowDown", "e")
    window.page.keyboard.type("not this")
    press(window, "Escape")
    now = clips_of(server)
    assert [now[name].review_state for name in (first, second, third, fourth)] == ["accepted", "edited", "rejected", ""]
    assert now[second].text == "ሰላም ሶስት ልጆች", "normalized as at import"
    assert now[second].other["review_history"][0]["text"] == before[second].text
    assert now[first].rejected == ()
    assert window.text("count") == "3 of 60 reviewed"
    window.page.reload()
    window.page.wait_for_selector("#rows tr[aria-current]")
    assert window.text("count") == "3 of 60 reviewed"
    assert shown(window)[:4] == [first, second, third, fourth], "an edited clip keeps its place"
    field = window.page.locator("#rows textarea").nth(1)
    assert field.input_value() == now[second].text
    for name in (third, second, first):
        press(window, "u")
        saved(window, f"{name} is no longer")
    assert clips_of(server) == before
    assert window.page.locator("#undo").is_disabled()
    assert not window.console


@pytest.mark.long
def test_a_killed_server_loses_no_decision_that_was_shown_as_saved(browser: Any, server: Server) -> None:
    window = opened(browser, server)
    names = shown(window)
    press(window, "a")
    saved(window, names[0])
    server.kill()
    press(window, "e")
    window.page.keyboard.type("በቃ")
    press(window, "Enter")
    window.page.wait_for_selector("#problem:not([hidden])")
    now = clips_of(server)
    assert (now[names[0]].review_state, now[names[1]].review_state) == ("accepted", "")
    server.start()
    saved(window, f"{names[1]} edited")
    for at in range(2, 12):  # between, during and after writes
        press(window, "r")
        if at % 3 == 2:
            window.page.wait_for_timeout(5 * at)
            told = window.page.locator(".state.rejected").count()
            server.kill()
            now = clips_of(server)
            kept = sum(clip.review_state == "rejected" for clip in now.values())
            assert told <= kept <= at - 1
            server.start()
    saved(window, f"{names[11]} rejected")
    window.page.reload()
    window.page.wait_for_selector("#rows tr[aria-current]")
    states = [clips_of(server)[name].review_state for name in names[:13]]
    assert states == ["accepted", "edited", *["rejected"] * 10, ""]
    assert clips_of(server)[names[1]].text == "በቃ"


@pytest.mark.long
def test_what_another_process_does_meanwhile_is_kept_and_a_busy_dataset_is_waited_for(
    browser: Any, server: Server
) -> None:
    window = opened(browser, server)
    first, second, third = shown(window)[:3]
    dataset = DatasetFolder(server.folder / PROJECT / "data")
    line = ["data", "report", str(dataset.folder), "--workers", "1", "--reject", third, "--take-back", second, "--json"]
    done = subprocess.run([sys.executable, "-m", "voxgraft", *line], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["reviewed"]["rejected"] == 1, done.stderr
    with dataset.locked():
        press(window, "a")
        window.page.wait_for_selector("#problem >> text=Another command")
        assert clips_of(server)[first].review_state == ""
    saved(window, f"{first} accepted")
    window.page.wait_for_selector("#rows tr:nth-child(3) .rejected")
    now = clips_of(server)
    assert (now[first].review_state, now[second].taken_back, now[third].review_state) == ("accepted", True, "rejected")
    # The same clip in two windows: the second one sees what the first has done, and its text is not lost.
    other = opened(browser, server, clip=first)
    press(other, "r")
    saved(other, f"{first} rejected")
    window.page.evaluate("window.onfocus = null")
    field = window.page.locator("#rows textarea").first
    field.fill("ቡና")
    field.press("Enter")
    window.page.wait_for_selector("#problem >> text=was not saved")
    assert clips_of(server)[first].review_state == "rejected"
    assert field.input_value() == "ቡና"
    field.focus()
    field.press("Enter")
    saved(window, f"{first} edited")
    assert clips_of(server)[first].text == "ቡና"


@pytest.mark.long
def test_decisions_whose_answers_are_lost_are_sent_again_and_saved_once(browser: Any, server: Server) -> None:
    window = opened(browser, server)
    lost: list[str] = []

    def lose(route: Any) -> None:
        if len(lost) % 2 == 0:  # the server has done it, and its answer does not arrive
            route.fetch()
            route.abort()
        else:
            route.continue_()
        lost.append(route.request.post_data_json["decision"])

    window.page.route("**/review/decide", lose)
    first, *_ = shown(window)
    press(window, "r")
    saved(window, "rejected")
    assert clips_of(server)[first].review_state == "rejected"
    press(window, "u")
    saved(window, "no longer")
    assert lost == ["reject", "reject", "undo", "undo"]
    assert not clips_of(server)[first].review_state
    assert "not saved" not in window.page.locator("body").inner_text()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_axe_finds_no_serious_violation(
    browser: Any, server: Server, axe: str, scheme: str
) -> None:
    for width, height in ((1440, 900), (390, 844)):
        window = Window(browser, server, width, height)
        window.page.emulate_media(color_scheme=scheme)
        window.page.goto(f"{server.address}voxgraft/review?project={PROJECT}")
        window.page.wait_for_selector("#rows tr[aria-current]")
        press(window, "a", "r", "?")
        saved(window, "rejected")
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width
        if folder := os.environ.get("VOXGRAFT_SHOTS"):
            window.page.screenshot(path=f"{folder}/review-{scheme}-{width}.png")
        window.page.evaluate(axe)
        result = window.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found = [
            (one["id"], one["impact"], [node["html"][:120] for node in one["nodes"][:3]])
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert found == []
        window.page.close()
