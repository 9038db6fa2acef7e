"""Takes pictures of the web interface at two sizes, light and dark: python tools/screenshots.py OUT [FOLDER]

Home without a run, then Home, Evaluate and Speak of a finished run, and Home and Train while it trains. FOLDER holds
that run; where it has none, one is made with `voxgraft demo`. The pictures of docs/ui.md are two of these.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.browser.browsing import Server, Window, chromium, serving
from voxgraft.config.run import set_run_yaml_values
from voxgraft.ui.commands import load_run_settings
from voxgraft.ui.jobs import ProjectJobs

SIZES = {"1440": (1440, 900), "390": (390, 844)}
SETTLE_MS = 6000
DEMO_STEPS = "60"
ENDLESS = "600"


def main(words: list[str]) -> None:
    out = Path(words[0])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        nothing = Path(made) / "nothing"
        nothing.mkdir()
        with serving(nothing) as server:
            take(browser, server, "", "home", out, "home-empty")
        folder = Path(words[1]).resolve() if len(words) > 1 else Path(made)
        project = next((path.parent for path in sorted(folder.glob("**/run.yaml"))), None)
        if project is None:
            demo = [sys.executable, "-m", "voxgraft", "demo", str(folder / "demo"), "--steps", DEMO_STEPS]
            subprocess.run([*demo, "--max-sentences", "4"], check=True)
            project = next(path.parent for path in folder.glob("**/run.yaml"))
        name = str(project.relative_to(folder))
        with serving(folder) as server:
            for tab in ("home", "evaluate", "speak"):
                take(browser, server, name, tab, out, f"{tab}-finished")
            steps = load_run_settings(project).train.steps
            set_run_yaml_values(project, {"train.steps": ENDLESS})
            job = ProjectJobs(project).start("train", ["train", name], folder)
            try:
                time.sleep(60)  # some steps, so that there are curves
                for tab in ("home", "train"):
                    take(browser, server, name, tab, out, f"{tab}-running")
            finally:
                while job.alive:
                    job.stop()
                    time.sleep(5)
                set_run_yaml_values(project, {"train.steps": str(steps or "")})


def take(browser: Any, server: Server, project: str, tab: str, out: Path, name: str) -> None:
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            window = Window(browser, server, width, height)
            window.page.emulate_media(color_scheme=scheme)
            window.open(project, tab)
            window.page.wait_for_timeout(SETTLE_MS)
            window.page.screenshot(path=out / f"{name}-{size}-{scheme}.png")
            window.page.close()


if __name__ == "__main__":
    main(sys.argv[1:])
