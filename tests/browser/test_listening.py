"""A listening test in a real browser: keys only, a reload in the middle, and answers that the command reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_home import axe
from tests.support.evaluation import tones
from voxgraft.config.commands import PreferenceSettings
from voxgraft.evaluation.listening import KEY_NAME, PAGE_NAME, ListeningPair, preference, write_pairs
from voxgraft.evaluation.sentences import EvalSentence

__all__ = ["axe"]

COUNT = 20
PROGRESS = "document.querySelector('#progress').textContent"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A test of twenty pairs of tones; every second one has an original."""
    pairs = []
    for number in range(COUNT):
        sentence = EvalSentence("ru" if number % 2 else "en", f"sentence </script> {number}")
        original = tones([9] * 10) if number % 2 else None
        pairs.append(ListeningPair(sentence, (tones([2] * 10), tones([30] * 10)), 16_000, original))
    write_pairs(tmp_path / "test", pairs, ("zebra", "okapi"))
    return tmp_path / "test"


def opened(browser: Any, folder: Path) -> tuple[Any, list[str]]:
    """The page as a rater opens it, from a file; and everything that went wrong or left the page."""
    page = browser.contexts[0].new_page()
    page.set_default_timeout(20_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else faults.append(request.url),
    )
    page.goto((folder / PAGE_NAME).as_uri())
    return page, faults


def answer(page: Any, place: int, key: str) -> None:
    """Listen to both by keys, and choose by a key."""
    page.wait_for_function(f"{PROGRESS} === 'Pair {place + 1} of {COUNT}'")
    assert page.locator("#choose-a").is_disabled()
    page.keyboard.press(key)  # refused: nothing was played
    assert page.evaluate(PROGRESS) == f"Pair {place + 1} of {COUNT}"
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.wait_for_function("!document.querySelector('#choose-a').disabled")
    page.keyboard.press(key)


def test_a_rater_answers_all_pairs_by_keys_over_a_reload_and_the_command_reads_the_file(
    browser: Any, made: Path, tmp_path: Path
) -> None:
    key = json.loads((made / KEY_NAME).read_text(encoding="utf-8"))
    # Prefers the zebra, except for two ties and three pairs.
    wanted = ["same"] * 2 + ["okapi"] * 3 + ["zebra"] * 15
    keys = [
        {pair["a"]: "a", pair["b"]: "b", "same": "s"}[system] for pair, system in zip(key["pairs"], wanted, strict=True)
    ]
    page, faults = opened(browser, made)
    page.locator("#rater").fill("Anna B")
    page.locator("#rater").blur()
    for place in range(9):
        answer(page, place, keys[place])
    page.reload()
    assert page.locator("#rater").input_value() == "Anna B"
    assert page.evaluate("document.querySelector('#state').textContent").startswith("9 of 20")
    page.locator("details summary").click()
    page.locator('[data-side="a"][value="noise"]').check()
    page.locator("#note").fill("a b s 1 2 p n")  # keys are letters here
    page.locator("#note").blur()
    for place in range(9, COUNT):
        answer(page, place, keys[place])
    assert "Please save" in page.locator("#state").inner_text()
    page.keyboard.press("p")
    assert page.evaluate(PROGRESS) == f"Pair {COUNT - 1} of {COUNT}"
    assert page.locator(f"#choose-{keys[COUNT - 2]}").get_attribute("aria-pressed") == "true"
    with page.expect_download() as saving:
        page.locator("#save").click()
    assert saving.value.suggested_filename == "listening-Anna-B.json"
    saving.value.save_as(tmp_path / "anna.json")
    document = json.loads((tmp_path / "anna.json").read_text(encoding="utf-8"))
    assert document["rater"] == "Anna B"
    assert document["answers"][9]["faults"] == {"a": ["noise"], "b": []}
    assert document["answers"][9]["note"] == "a b s 1 2 p n"
    found = preference(PreferenceSettings(test=made, answers=(tmp_path / "anna.json",))).to_json()
    assert (found["overall"]["wins"], found["overall"]["losses"], found["overall"]["ties"]) == (15, 3, 2)
    assert found["overall"]["share"]["value"] == pytest.approx(15 / 18)
    assert faults == []


def test_a_rater_sees_no_key_the_original_only_where_there_is_one_and_can_start_again(browser: Any, made: Path) -> None:
    page, faults = opened(browser, made)
    assert not {"zebra", "okapi"} & set(re.findall("[a-z]+", page.content()))
    key = json.loads((made / KEY_NAME).read_text(encoding="utf-8"))
    for pair in key["pairs"][:4]:
        assert page.locator("#text").inner_text() == pair["text"]
        assert page.locator("#text").get_attribute("lang") == pair["language"]
        assert page.locator("#reference").is_visible() == (pair["language"] == "ru")
        page.keyboard.press("n")
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.wait_for_function("!document.querySelector('#choose-a').disabled")
    page.locator("#choose-same").click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#again").click()
    assert page.evaluate(PROGRESS) == f"Pair 1 of {COUNT}"
    page.reload()
    assert page.locator("#state").inner_text().startswith("0 of 20")
    assert faults == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_the_page(browser: Any, made: Path, axe: str, scheme: str) -> None:
    page, _ = opened(browser, made)
    page.emulate_media(color_scheme=scheme)
    page.locator("details summary").click()
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [(one["id"], [node["html"][:80] for node in one["nodes"]]) for one in result["violations"]] == []
