"""Takes a picture of every tab of the web interface at two widths, for the docs: python tools/screenshots.py [FOLDER]

Starts the interface on a demo project (made anew with `voxgraft demo` where FOLDER does not hold one), opens each tab in
chromium, and writes docs/images/ui/TAB-WIDTH.jpg, each below 150 kB.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image

from tests.browser.browsing import Window, chromium, serving
from voxgraft.ui.app import TABS

OUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "ui"
WIDTHS = (1280, 420)
MAX_HEIGHT = 1800
MAX_BYTES = 150_000
SETTLE_MS = 4000
DEMO_STEPS = "60"


def main(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(words[0]).resolve() if words else Path(made)
        project = next((path.parent for path in sorted(folder.glob("**/run.yaml"))), None)
        if project is None:
            demo = [sys.executable, "-m", "voxgraft", "demo", str(folder / "demo"), "--steps", DEMO_STEPS]
            subprocess.run([*demo, "--max-sentences", "4"], check=True)
            project = next(path.parent for path in folder.glob("**/run.yaml"))
        with serving(folder) as server, chromium() as browser:
            for width in WIDTHS:
                for tab in TABS:
                    take(Window(browser, server, width), str(project.relative_to(folder)), tab, width)


def take(window: Window, project: str, tab: str, width: int) -> None:
    window.open(project, tab)
    if tab == "preflight":
        window.run("check")  # its findings are what the tab is for
    window.page.wait_for_timeout(SETTLE_MS)
    height = min(MAX_HEIGHT, int(window.page.evaluate("document.documentElement.scrollHeight")))
    shot = window.page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)
    write(shot, OUT / f"{tab}-{width}.jpg")
    window.page.context.close()


def write(shot: bytes, path: Path) -> None:
    """As JPEG, in the best quality that keeps it small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    for quality in (85, 75, 65, 50, 35):
        picture.save(path, "JPEG", quality=quality, optimize=True)
        if path.stat().st_size < MAX_BYTES:
            break
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
