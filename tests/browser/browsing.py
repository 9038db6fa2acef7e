"""A real browser on a real server: chromium through playwright, and `voxgraft ui` as a process that can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
# Enough for a machine with a quarter of the speed of two quiet cores.
START_SECONDS = 240
WAIT_MS = 240_000
LOUDNESS = """async source => {
  const data = await (await fetch(source)).arrayBuffer();
  const sound = await new OfflineAudioContext(1, 8000, 8000).decodeAudioData(data);
  const samples = sound.getChannelData(0);
  return [sound.duration, Math.sqrt(samples.reduce((sum, one) => sum + one * one, 0) / samples.length)];
}"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser; a loud skip where there is none."""
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: chromium is absent (on Debian: apt install chromium; or set CHROMIUM to its path)")
    playwright = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: playwright is absent")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser.new_context()  # common to all windows, which so need not each read and compile the page's scripts
        try:
            yield browser
        finally:
            browser.close()


class Server:
    """`voxgraft ui` on a folder."""

    def __init__(self, folder: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.flags = flags
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None
        self.program: Sequence[str] = ("-m", "voxgraft")
        """What python runs: the command, or a program that changes something and runs it."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def log(self) -> Path:
        """What it has printed."""
        return self.folder.parent / f"{self.folder.name}-server.txt"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = [sys.executable, *self.program, "ui", "--roots", str(self.folder), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, *self.flags], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.address, timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"the server has not started: {self.log.read_text()}")

    def kill(self) -> None:
        """Kill it as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def serving(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server for the length of the block."""
    server = Server(folder, *flags, environment=environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Window:
    """One page, by the ids of its controls. `console` has what went wrong in it."""

    def __init__(self, browser: Any, server: Server, width: int = 1280, height: int = 900) -> None:
        self.server = server
        self.page = browser.contexts[0].new_page()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.set_default_timeout(WAIT_MS)
        self.console: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda line: self.console.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.server.address, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, project: str = "", tab: str = "") -> None:
        """Open the page, with a project and a tab where they are named."""
        query = "&".join(f"{key}={value}" for key, value in (("project", project), ("tab", tab)) if value)
        address = f"{self.server.address}?{query}"
        try:
            self.page.goto(address)
        except Exception as error:
            # On a busy machine, the page that is left can lose an event just then. It loads itself again for that, which
            # ends the navigation.
            if "net::ERR_ABORTED" not in str(error):
                raise
            self.page.goto(address)
        self.ready(project)

    def ready(self, project: str = "") -> None:
        """Wait until the page is and the project is open."""
        self.page.wait_for_selector("#project-chooser")
        if project:
            self.page.wait_for_function(
                "project => document.querySelector('#project-chooser input')?.value === project"
                " && new URLSearchParams(window.location.search).get('project') === project",
                arg=project,
            )

    def tab(self, title: str) -> None:
        self.page.get_by_role("tab", name=title, exact=True).click()

    def fill(self, control: str, text: str) -> None:
        """Type into a text, a number, or a list that takes any text."""
        field = self.page.locator(f"#{control} textarea, #{control} input").first
        field.fill(text)
        if field.evaluate("field => field.tagName === 'INPUT' && field.type !== 'number'"):
            field.press("Enter")  # a list takes a text that it does not hold only so
        field.blur()

    def value(self, control: str) -> str:
        return str(self.page.locator(f"#{control} textarea, #{control} input").first.input_value())

    def check(self, control: str, *, on: bool = True) -> None:
        self.page.locator(f"#{control} input[type=checkbox]").set_checked(on)

    def open_part(self, control: str) -> None:
        """Unfold an accordion."""
        self.page.locator(f"#{control} > button, #{control} button.label-wrap").first.click()

    def upload(self, control: str, *files: Path) -> None:
        self.page.locator(f"#{control} input[type=file]").set_input_files([str(file) for file in files])

    def command(self, verb: str, part: str) -> str:
        """The command of a form, once it holds `part`."""
        self.page.wait_for_function(
            "([id, part]) => document.querySelector(`#${id}-command textarea`)?.value.includes(part)", arg=[verb, part]
        )
        return self.value(f"{verb}-command")

    def run(self, verb: str, ending: str = "good") -> str:
        """Press a form's button and wait for the job's end; what the state line says then."""
        self.page.locator(f"#{verb}-start").click()
        return self.ended(verb, ending)

    def ended(self, verb: str, ending: str = "good") -> str:
        """Wait until the newest job of a form has ended so (good, bad, note); what its line says."""
        self.page.wait_for_selector(f"#{verb}-state .vg-{ending}")
        return self.text(f"{verb}-state")

    def result(self, verb: str) -> str:
        """What the newest job of a form printed."""
        return str(self.page.locator(f"#{verb}-state .vg-result").inner_text())

    def text(self, control: str) -> str:
        return str(self.page.locator(f"#{control}").inner_text())


def loudness(window: Window, player: str) -> tuple[float, float]:
    """Length of what a player plays, and its root mean square, as the browser decodes it."""
    source = window.page.locator(player).first.get_attribute("src")
    seconds, level = window.page.evaluate(LOUDNESS, source)
    return float(seconds), float(level)


def wait_for_players(window: Window, part: str, count: int) -> None:
    """Wait until a part of the page has that many players."""
    window.page.wait_for_function(
        "([part, count]) => document.querySelectorAll(`#${part} audio`).length === count", arg=[part, count]
    )


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One browser for all tests here. It holds an event loop, so it must not outlive them: others run their own."""
    with chromium() as started:
        yield started
