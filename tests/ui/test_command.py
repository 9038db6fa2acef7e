"""`voxgraft ui` says at its start what is wrong: no gradio, no password, a port that is taken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.ui import make_project
from voxgraft.config.commands import UiSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.ui.files import Roots
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.server import _format_stop_message, list_running_jobs, ui


def code_of(settings: UiSettings) -> str:
    with pytest.raises(VoxgraftError) as caught:
        ui(settings)
    return caught.value.code


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach_is_only_served_with_a_password(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOXGRAFT_UI_PASSWORD", raising=False)
    assert code_of(UiSettings(roots=(tmp_path,), host=host)) == "ui-password"
    monkeypatch.setenv("VOXGRAFT_UI_PASSWORD", "short")
    assert code_of(UiSettings(roots=(tmp_path,), host=host)) == "ui-password"
    (tmp_path / "word").write_text("\n")
    assert code_of(UiSettings(roots=(tmp_path,), host=host, password_file=tmp_path / "word")) == "ui-password"


def test_a_password_is_never_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXGRAFT_UI_PASSWORD", "hunter2")
    with pytest.raises(VoxgraftError) as caught:
        ui(UiSettings(roots=(tmp_path,), host="0.0.0.0"))
    assert "hunter2" not in str(caught.value)


def test_a_port_that_is_taken_is_said_before_anything_is_built(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert code_of(UiSettings(roots=(tmp_path,), port=taken.getsockname()[1])) == "ui-port"
    assert code_of(UiSettings(roots=(tmp_path / "nowhere",))) == "file-missing"


def test_without_gradio_the_cure_names_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['gradio'] = None\nfrom voxgraft.cli import run_cli\nsys.exit(run_cli(['ui', '--port', '1']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'voxgraft[ui]'" in done.stderr


def test_help_and_the_parts_below_the_page_need_no_gradio() -> None:
    code = (
        "import sys; from voxgraft.cli import run_cli; run_cli(['ui', '--help'])\n"
        "import voxgraft.ui.jobs, voxgraft.ui.files, voxgraft.ui.server, voxgraft.ui.commands\n"
        "sys.exit('gradio' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_leaves_nothing_behind_and_says_how_to_come_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent")
    waiting, home = tmp_path / "waiting", tmp_path / "home"
    waiting.mkdir()
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", "voxgraft", "ui", "--port", str(port)], cwd=home, text=True,
        env={**os.environ, "TMPDIR": str(waiting)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        _answering(server, port)
        assert list(waiting.glob("voxgraft-ui-*"))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as page:  # as an open page holds one
            host = f"Host: 127.0.0.1:{port}"
            page.sendall(f"GET /gradio_api/heartbeat/open HTTP/1.1\r\n{host}\r\n\r\n".encode())
            assert page.recv(12) == b"HTTP/1.1 200"
            server.send_signal(number)
            out, said = server.communicate(timeout=60)
    finally:
        server.kill()
    assert (server.returncode, said.lower().count("error"), said.count("Traceback")) == (0, 0, 0), said
    assert len(out.splitlines()) == 1, out
    assert "start it again with `voxgraft ui`" in out
    assert not list(waiting.glob("voxgraft-ui-*"))


def _answering(server: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("it has not started")


def test_the_last_line_names_what_goes_on_without_the_page(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    (tmp_path / "long.txt").write_text("1987 ዓ.ም. 25 % እና 3,000 ብር\n" * 1_000_000, encoding="utf-8")
    roots = Roots.of((tmp_path,))
    assert list_running_jobs(roots) == []
    job = ProjectJobs(project).start("data text", ["data", "text", "--language", "am", "--texts", "long.txt"], tmp_path)
    try:
        assert list_running_jobs(roots) == ["data text in am"]
        assert "still running: data text in am" in _format_stop_message(list_running_jobs(roots))
    finally:
        job.stop()
        while job.alive:
            time.sleep(0.05)
