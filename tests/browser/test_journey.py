"""The whole journey in a real browser: from recordings to hearing a sentence, with everything that can happen on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import Server, Window, loudness, serving, wait_for_players
from tests.support.ui import make_project
from voxgraft.config.run import set_run_yaml_values
from voxgraft.demo.data import write_talks
from voxgraft.ui.jobs import ProjectJobs

PROJECT = "amharic"
WAIT_SECONDS = 480.0
SMALL = {
    "train.batch_tokens": "720",
    "train.warmup_steps": "2",
    "train.valid_every": "1000",
    "train.save_every": "10",
    "train.sample_every": "100000",
    "train.sample_texts": '["am:ሰ"]',
    "train.log_every": "1",
    "train.rank": "4",
    "train.tensorboard": "false",
}
"""What makes a step short, and a run of a few of them whole."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("journey") / "home"
    folder.mkdir()
    with serving(folder) as started:
        yield started


def until(found: Callable[[], Any]) -> Any:
    """Wait until something is there, and give it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
    return value


def step_of(project: Path) -> int:
    """The last step that the journal tells of."""
    try:
        lines = (project / "journal.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines), default=0)


@pytest.mark.long
def test_from_recordings_to_hearing_a_sentence(browser: Any, server: Server) -> None:
    project = server.folder / PROJECT
    make_project(server.folder, PROJECT)
    window = Window(browser, server)
    window.open(PROJECT, "data")
    _bring_recordings_in(window, server)
    _graft(window)
    _preflight(window)
    set_run_yaml_values(project, SMALL)
    _train_through_everything(browser, window, server)
    window = Window(browser, server)
    window.open(PROJECT, "speak")
    _hear(window)
    assert not window.foreign
    assert not [line for line in window.console if "Content Security Policy" in line]


def _bring_recordings_in(window: Window, server: Server) -> None:
    write_talks(server.folder.parent / "talks", 4, 4)
    window.upload("data-upload", *sorted((server.folder.parent / "talks").iterdir()))
    window.page.wait_for_selector("#data-upload-state .vg-good")
    assert window.command("data-import", "uploads") == (
        f"voxgraft data import {PROJECT}/data {PROJECT}/uploads --language am"
    )
    window.run("data-import")
    assert "new clips" in window.result("data-import")
    window.open_part("data-look")
    window.page.wait_for_selector("#data-facts .vg-fact")
    window.page.locator("#data-clip input").click()
    window.page.get_by_role("option").first.click()
    window.page.wait_for_selector("#data-sound audio, #data-sound #waveform, #data-sound button")
    window.open_part("data-splitting")
    window.command("data-split", f"{PROJECT}/data")
    window.run("data-split")


def _graft(window: Window) -> None:
    window.tab("Model")
    assert "manifest.jsonl" in window.command("graft", "data/manifest.jsonl")
    window.run("graft")
    assert "old text is encoded as before: yes" in window.result("graft")
    window.tab("Tokenizer")
    window.page.locator("#spell-start").click()
    window.page.wait_for_selector("#spell-state table")
    assert "[am]" in window.text("spell-state")


def _preflight(window: Window) -> None:
    window.tab("Preflight")
    window.command("check", PROJECT)
    window.run("check")
    window.page.locator("#cure-set-missing").click()
    window.ended("prepare")
    window.run("check")
    window.page.wait_for_function("document.querySelector('#check-verdict').innerText.includes('ready to train')")


def _train_through_everything(browser: Any, window: Window, server: Server) -> None:
    project = server.folder / PROJECT
    window.open(PROJECT, "train")
    window.command("train", PROJECT)
    window.fill("train-train-steps", "4000")
    window.command("train", "--train.steps 4000")
    window.page.locator("#train-start").click()
    until(lambda: step_of(project) >= 2)

    window.page.reload()
    window.ready(PROJECT)
    window.page.wait_for_selector("#train-state .vg-busy")
    assert "tab=train" in window.page.url

    server.kill()
    seen = step_of(project)
    until(lambda: step_of(project) >= seen + 3)
    server.start()
    window = Window(browser, server)
    window.open(PROJECT, "train")
    window.page.wait_for_selector("#train-state .vg-busy")

    until(lambda: step_of(project) >= 12)
    window.page.locator("#train-stop").click()
    window.page.wait_for_selector("#train-state .vg-note:not(.vg-busy)")
    first = ProjectJobs(project).latest("train")
    assert first is not None
    until(lambda: not first.alive)
    stopped_at = step_of(project)
    assert stopped_at < 4000

    window.page.reload()
    window.ready(PROJECT)
    window.command("train", PROJECT)
    window.fill("train-train-steps", str(stopped_at + 5))
    window.command("train", f"--train.steps {stopped_at + 5}")
    window.page.locator("#train-start").click()
    until(lambda: (ProjectJobs(project).latest("train") or first).number > first.number)
    window.ended("train")
    assert step_of(project) == stopped_at + 5
    second = ProjectJobs(project).latest("train")
    assert second is not None
    assert f"resumes from step {stopped_at:,}" in second.tail()


def _hear(window: Window) -> None:
    window.command("speak", "still needed: Text")
    window.fill("speak-text", "ሰላም ለዓለም")
    window.command("speak", "ሰላም")
    window.open_part("speak-advanced")
    window.open_part("speak-drawing")
    window.fill("speak-max-seconds", "1.5")
    assert "--language am" in window.command("speak", "--max-seconds 1.5")
    window.run("speak")
    wait_for_players(window, "speak-heard", 1)
    seconds, level = loudness(window, "#speak-heard audio")
    assert seconds > 0.3
    assert level > 0.001
    window.page.wait_for_function("document.querySelector('#speak-heard audio').duration > 0")
    assert window.page.evaluate("() => document.querySelector('#speak-heard audio').duration") == pytest.approx(seconds)
    window.fill("speak-text", "hello")
    window.fill("speak-language", "en")
    window.command("speak", "--language en")
    window.page.locator("#speak-base-start").click()
    wait_for_players(window, "speak-heard", 2)
