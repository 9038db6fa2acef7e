"""Takes pictures of the web interface at two sizes, light and dark: python tools/screenshots.py OUT [FOLDER]

Home without a run; Home, Evaluate and Speak of the finished run in FOLDER; Home and Train while it trains. In a FOLDER
without a run, or without FOLDER, the demo button is pressed and the demo runs to its end in the browser, ten minutes on
two quiet cores: its report is opened and its sample played, and the script ends with an error where something of that
does not work. The pictures of docs/ui.md are two of these.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.browser.browsing import Server, Window, chromium, loudness, serving
from voxgraft.config.run import set_run_yaml_values
from voxgraft.ui.commands import load_run_settings
from voxgraft.ui.jobs import ProjectJobs

SIZES = {"1440": (1440, 900), "390": (390, 844)}
SETTLE_MS = 6000
ENDLESS = "600"
# From the press of the demo button, on a machine that does other work too.
DEMO_MS = 3_600_000
PLAY = """async player => {
  await player.play();
  await new Promise(done => setTimeout(done, 500));
  return player.currentTime;
}"""


def main(words: list[str]) -> None:
    out = Path(words[0])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        nothing = Path(made) / "nothing"
        nothing.mkdir()
        with serving(nothing) as server:
            take(browser, server, "", "home", out, "home-empty")
        folder = Path(words[1] if len(words) > 1 else made).resolve()
        folder.mkdir(exist_ok=True)
        project = next((path.parent for path in sorted(folder.glob("**/run.yaml"))), None)
        with serving(folder) as server:
            if project is None:
                run_demo(browser, server, out)
                take_finished(browser, server, "demo", out)
                return
            name = str(project.relative_to(folder))
            take_finished(browser, server, name, out)
            steps = load_run_settings(project).train.steps
            set_run_yaml_values(project, {"train.steps": ENDLESS})
            job = ProjectJobs(project).start("train", ["train", name], folder)
            try:
                time.sleep(60)  # some steps, so that there are curves
                take_running(browser, server, name, out)
            finally:
                while job.alive:
                    job.stop()
                    time.sleep(5)
                set_run_yaml_values(project, {"train.steps": str(steps or "")})


def run_demo(browser: Any, server: Server, out: Path) -> None:
    """From an empty folder to a finished demo with one click; stops where something of it does not work."""
    window, began = Window(browser, server, 1440, 900), time.monotonic()
    window.page.goto(server.address)

    def reached(what: str) -> None:
        print(f"{what}: {time.monotonic() - began:.0f} s after the click", flush=True)

    window.page.locator("#home-demo").click()
    window.page.wait_for_selector("#home-listen audio", timeout=DEMO_MS)
    reached("first sample")
    window.page.wait_for_selector("#home-listen >> text=/step [1-9]/", timeout=DEMO_MS)
    reached("first sample of a trained model")
    take_running(browser, server, "demo", out)
    window.page.wait_for_selector("#home-stages .vg-note.vg-good, #go-state .vg-bad", timeout=DEMO_MS)
    reached("end of the job")
    assert not window.page.locator("#go-state .vg-bad").count(), window.text("go-state")
    states = window.page.locator("#home-stages .vg-state").all_inner_texts()
    print(f"stages: {', '.join(state.strip() for state in states)}")
    played = window.page.locator("#home-listen audio").first.evaluate(PLAY)
    seconds, level = loudness(window, "#home-listen audio")
    print(f"newest sample: {seconds:.1f} s, root mean square {level:.4f}, {played:.1f} s played")
    assert played > 0
    assert level > 0.0005
    with window.page.expect_popup() as opened:
        window.page.locator("#home-listen a[target=_blank]").click()
    report = opened.value
    report.wait_for_selector("audio", state="attached")
    print(f"report: {report.title()}, {report.locator('audio').count()} players")
    assert not window.console, window.console
    assert not window.foreign, window.foreign
    report.close()
    window.page.close()


def take_running(browser: Any, server: Server, name: str, out: Path) -> None:
    for tab in ("home", "train"):
        take(browser, server, name, tab, out, f"{tab}-running")


def take_finished(browser: Any, server: Server, name: str, out: Path) -> None:
    for tab in ("home", "evaluate", "speak"):
        take(browser, server, name, tab, out, f"{tab}-finished")


def take(browser: Any, server: Server, project: str, tab: str, out: Path, name: str) -> None:
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            window = Window(browser, server, width, height)
            window.page.emulate_media(color_scheme=scheme)
            window.open(project, tab)
            window.page.wait_for_selector("#voxgraft-first", state="detached")
            window.page.wait_for_timeout(SETTLE_MS)
            window.page.screenshot(path=out / f"{name}-{size}-{scheme}.png")
            window.page.close()


if __name__ == "__main__":
    main(sys.argv[1:])
