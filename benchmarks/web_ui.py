"""The web UI in chromium: first paint of Home with many runs, processor time of an idle page, memory while it trains.

    python -m benchmarks.web_ui --runs 50 --idle 60 --minutes 65 --samples memory.tsv
    python -m benchmarks.web_ui --table memory.tsv

Needs chromium and playwright. Processor time and memory are from /proc: of the server, of the training, and of all
chromium processes. The training is an ordinary job of the page on the tiny base, with the tab Train in view;
`--minutes 0` leaves it out. `--table` prints the mean of each quarter of the samples of such a training.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from voxgraft.cli.app import run_cli
from voxgraft.config.run import set_run_yaml_values
from voxgraft.demo.data import write_talks
from voxgraft.ui.jobs import ProjectJobs

TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = ("seconds", "step", "server", "training", "chromium", "heap", "nodes")


def processes(root: int) -> list[int]:
    """A process and everything below it. The children of a server include its jobs."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of processes so far."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_mb(pids: list[int]) -> float:
    """Memory of processes in MB (proportional set size: a page that several share counts once in their sum)."""
    total = 0
    for pid in pids:
        try:
            found = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in found.splitlines() if line.startswith("Pss:")), 0)
    return total * 1024 / 1e6


def make_runs(home: Path, count: int) -> None:
    """One run that is ready to train, and copies of it under other names."""
    write_talks(home / "talks", 4, 4)
    first = ["new", "run-00", "--base", "tiny", "--language", "am", "--sources", "talks", "--quiet"]
    assert run_cli(first) == 0
    small = {"train.steps": "1000000", "train.batch_tokens": "400", "train.rank": "4", "train.log_every": "5"}
    small |= {"train.valid_every": "200", "train.sample_every": "200", "train.save_every": "1000000"}
    set_run_yaml_values(home / "run-00", small)
    assert run_cli(["go", "run-00", "--until", "check", "--quiet"]) == 0
    for number in range(1, count):
        shutil.copytree(home / "run-00", home / f"run-{number:02d}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training; 0: none")
    parser.add_argument("--samples", type=Path, default=Path("memory.tsv"), help="file for the samples, one a minute")
    parser.add_argument("--table", type=Path, help="only print the quarters of such a file")
    given = parser.parse_args()
    if given.table:
        print_quarters(given.table)
        return 0
    given.samples = given.samples.resolve()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        home = Path(folder)
        os.chdir(home)
        make_runs(home, given.runs)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        address = f"http://127.0.0.1:{port}/"
        server = subprocess.Popen([sys.executable, "-m", "voxgraft", "ui", "--port", str(port)], cwd=home)
        try:
            _wait_for(address)
            with sync_playwright() as engine:
                browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                _measure(page, address, server.pid, given)
                browser.close()
        finally:
            for job in ProjectJobs(home / "run-00").at_work():
                job.stop()
            server.send_signal(signal.SIGINT)
            server.wait(30)
            time.sleep(5)
    return 0


def _measure(page: Any, address: str, server: int, given: argparse.Namespace) -> None:
    for visit in ("first", "second", "third"):
        began = time.monotonic()
        page.goto(address)
        page.wait_for_selector("#tab-home .block")
        shell = time.monotonic() - began
        page.wait_for_function(f"document.querySelectorAll('#home-runs .vg-card').length >= {given.runs}")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        cards = time.monotonic() - began
        print(
            f"{visit} visit: first paint {painted / 1000:.2f} s, Home {shell:.2f} s, all cards {cards:.2f} s",
            flush=True,
        )
    page.goto(f"{address}?project=run-00")
    page.wait_for_selector("#home-stages .vg-stage")
    page.wait_for_timeout(5000)
    own, shown = processes(server), _chromium()
    before, began = (cpu_seconds(own), cpu_seconds(shown)), time.monotonic()
    time.sleep(given.idle)
    seconds = time.monotonic() - began
    for name, pids, used in (("server", own, before[0]), ("chromium", shown, before[1])):
        print(
            f"idle for {seconds:.0f} s: {name} {100 * (cpu_seconds(pids) - used) / seconds:.2f} % of a core", flush=True
        )
    if not given.minutes:
        return
    page.goto(f"{address}?project=run-00&tab=train")
    page.locator("#train-start").click()
    page.wait_for_selector("#train-newest audio", timeout=300_000)
    sample_memory(page, server, given.samples, given.minutes)
    print_quarters(given.samples)


def sample_memory(page: Any, server: int, samples: Path, minutes: float) -> None:
    """Write one line a minute: memory of each part in MB, and the page's script heap (MB) and number of nodes."""
    job = next(job for job in ProjectJobs(Path("run-00")).at_work() if job.verb == "train")
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    began = time.monotonic()
    with samples.open("w") as out:
        print(*COLUMNS, sep="\t", file=out, flush=True)
        while time.monotonic() < began + 60 * minutes:
            assert job.alive, job.tail()
            about = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
            shown = re.search(r"step ([\d,]+)", page.locator("#jobs").inner_text())
            parts = ([server], processes(job.read("pid.json")["pid"]), _chromium())
            sizes = [f"{memory_mb(pids):.1f}" for pids in parts]
            row = [round(time.monotonic() - began), shown[1].replace(",", "") if shown else "-", *sizes]
            print(*row, f"{about['JSHeapUsedSize'] / 1e6:.1f}", int(about["Nodes"]), sep="\t", file=out, flush=True)
            page.wait_for_timeout(min(60.0, max(1.0, began + 60 * minutes - time.monotonic())) * 1000)


def print_quarters(samples: Path) -> None:
    """The mean of each quarter of the time, and the last quarter against the second."""
    rows = [line.split("\t") for line in samples.read_text().splitlines()[1:]]
    length = (int(rows[-1][0]) + 1) / 4
    quarters = [[row for row in rows if int(int(row[0]) / length) == quarter] for quarter in range(4)]
    print("| | first | second | third | last | last against second |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in COLUMNS[2:]:
        at = COLUMNS.index(name)
        means = [statistics.mean(float(row[at]) for row in quarter) for quarter in quarters]
        cells = " | ".join(f"{mean:.0f}" for mean in means)
        print(f"| {name} | {cells} | {100 * (means[3] / means[1] - 1):+.1f} % |")


def _chromium() -> list[int]:
    """The processes of this script's browser."""
    return [pid for pid in processes(os.getpid()) if b"chromium" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _wait_for(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError("the server has not started")


if __name__ == "__main__":
    sys.exit(main())
