"""What a browser may not do here: leave the folders, use the page from elsewhere, run or render what somebody typed."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import Server, Window, serving
from tests.support.ui import PROJECT, make_project
from voxgraft.ui.jobs import ProjectJobs

PASSWORD = "a long password"
MARKUP = "x<img src=x onerror=window.broken=1>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("refusals") / "home"
    folder.mkdir()
    (folder.parent / "secret.txt").write_text("secret")
    make_project(folder)
    make_project(folder, MARKUP)
    with serving(folder) as started:
        yield started


def status(server: Server, path: str, data: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(server.address + path, data, {**headers, "content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def page_elsewhere(text: str) -> Iterator[str]:
    """A page of another origin: the same machine, another port."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{other.server_port}/"
        other.shutdown()


@pytest.mark.long
def test_a_path_that_leads_out_is_refused_in_the_form_and_nothing_starts(browser: Any, server: Server) -> None:
    window = Window(browser, server)
    window.open(PROJECT, "model")
    window.command("graft", f"voxgraft graft {PROJECT}")
    window.fill("graft-texts", "../secret.txt")
    assert "ui-outside" in window.command("graft", "ui-outside")
    window.page.locator("#graft-start").click()
    window.page.wait_for_selector("#graft-state .vg-bad")
    assert "outside" in window.text("graft-state")
    assert not (server.folder / PROJECT / "jobs").exists()


@pytest.mark.long
def test_an_address_with_a_project_elsewhere_opens_nothing(browser: Any, server: Server) -> None:
    window = Window(browser, server)
    for project in ("../..", "%00"):
        window.page.goto(f"{server.address}?project={project}")
        window.page.wait_for_selector("#project-state .vg-bad")
        assert window.value("project-chooser") == "", project


@pytest.mark.long
def test_no_file_is_served_that_the_page_has_not_made(server: Server) -> None:
    outside = server.folder.parent / "secret.txt"
    for path in (
        f"gradio_api/file={outside}",
        "gradio_api/file=/etc/passwd",
        f"gradio_api/file={server.folder / PROJECT / 'run.yaml'}",
        f"gradio_api/file={server.folder}/../secret.txt",
        "gradio_api/file/etc/passwd",
        f"pages/guess/{PROJECT}/run.yaml",
        "static/..%2f..%2f..%2f..%2fetc/passwd",
        "gradio_api/stream/x/y/..%2f..%2fetc",
    ):
        assert status(server, path) in (403, 404, 405), path


def outcome(server: Server, event: dict[str, Any], data: list[Any]) -> dict[str, Any]:
    """What the page's own way of asking gives: an event put into the queue, and the last word about it."""
    session = f"asked{time.monotonic_ns()}"
    body = {"data": data, "fn_index": event["id"], "session_hash": session}
    if status(server, "gradio_api/queue/join", json.dumps(body).encode()) != 200:
        return {"success": False, "output": "not let in"}
    with urllib.request.urlopen(f"{server.address}gradio_api/queue/data?session_hash={session}", timeout=60) as answer:
        for line in answer:
            message = json.loads(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}
            if message.get("msg") == "process_completed":
                return dict(message)
    return {"success": False, "output": "no answer"}


def uploaded(server: Server, name: str, content: bytes) -> str:
    """A file sent as the page sends it; where gradio has put it."""
    head = f'--cut\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + b"\r\n--cut--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=cut"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.address}gradio_api/upload", body, kind), timeout=60
    ) as answer:
        return str(json.load(answer)[0])


def test_a_request_that_names_a_file_of_the_machine_as_uploaded_is_refused(server: Server) -> None:
    with urllib.request.urlopen(server.address + "config", timeout=60) as answer:
        config = json.load(answer)
    files = {part["id"]: part["props"].get("elem_id") for part in config["components"] if part["type"] == "file"}
    events = [event for event in config["dependencies"] if files.keys() & set(event["inputs"])]

    def asked(event: dict[str, Any], path: str) -> dict[str, Any]:
        given = [{"path": path, "meta": {"_type": "gradio.FileData"}}]
        return outcome(server, event, [given if part in files else PROJECT for part in event["inputs"]])

    outside = server.folder.parent / "secret.txt"
    for event in events:
        found = asked(event, str(outside))
        assert not found["success"], found
    for path in (server.folder / PROJECT).rglob("*"):
        assert not path.is_file() or path.read_bytes() != outside.read_bytes(), path
    (own,) = [event for event in events if {files.get(part) for part in event["inputs"]} & {"data-upload"}]
    found = asked(own, uploaded(server, "talk.srt", b"1\n00:00:00,000 --> 00:00:01,000\nhello\n"))
    assert found["success"], found  # so that what was refused before was refused for its path
    assert (server.folder / PROJECT / "uploads" / "talk.srt").is_file()
    shutil.rmtree(server.folder / PROJECT / "uploads")  # the project is common to all tests here


@pytest.mark.long
def test_a_page_of_another_origin_can_neither_read_nor_drive_nor_frame_it(browser: Any, server: Server) -> None:
    body = json.dumps({"data": [], "fn_index": 0, "session_hash": "x"})
    script = f"""<script>
      window.got = [];
      const note = name => answer => window.got.push(name + " " + (answer.type === "opaque" ? "sent" : answer.status));
      const lost = name => () => window.got.push(name + " refused");
      fetch("{server.address}config").then(note("read"), lost("read"));
      fetch("{server.address}gradio_api/queue/join", {{method: "POST", body: '{body}', mode: "no-cors"}})
        .then(note("drive"), lost("drive"));
    </script><iframe src="{server.address}"></iframe>"""
    with page_elsewhere(script) as elsewhere:
        page = browser.new_page()
        answers: dict[str, int] = {}
        page.on("response", lambda answer: answers.update({answer.url: answer.status}))
        page.goto(elsewhere)
        page.wait_for_function("window.got.length === 2")
        page.wait_for_timeout(500)
        assert "read refused" in page.evaluate("window.got")
        ours = {url: code for url, code in answers.items() if url.startswith(server.address)}
        assert ours
        assert set(ours.values()) == {403}
        page.close()


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_foreign_names_and_origins_are_refused_everywhere(server: Server, header: dict[str, str]) -> None:
    for path in ("", "config", "gradio_api/info", "gradio_api/startup-events", "theme.css"):
        assert status(server, path, None, **header) == 403


@pytest.mark.long
def test_names_and_texts_with_markup_are_shown_as_they_are(browser: Any, server: Server) -> None:
    window = Window(browser, server)
    window.open()
    window.page.locator("#project-chooser input").click()
    window.page.get_by_role("option", name=MARKUP).click()
    window.ready(MARKUP)
    window.tab("Tokenizer")
    window.fill("spell-text", f"{MARKUP}<script>window.broken=1</script>")
    window.page.locator("#spell-start").click()
    window.page.wait_for_selector("#spell-state table")
    assert MARKUP in window.text("spell-state")
    assert window.page.evaluate("window.broken") is None
    assert not window.foreign


@pytest.mark.long
def test_with_a_password_nobody_gets_in_without_it(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    make_project(folder)
    with serving(folder, environment={"VOXGRAFT_UI_PASSWORD": PASSWORD}) as locked:
        for path in ("", "config", "gradio_api/info", "theme.css"):
            assert status(locked, path) == 401
        context = browser.new_context(http_credentials={"username": "me", "password": PASSWORD})
        page = context.new_page()
        page.goto(f"{locked.address}?project={PROJECT}")
        page.wait_for_function(
            "project => document.querySelector('#project-chooser input')?.value === project", arg=PROJECT
        )
        context.close()


@pytest.mark.long
def test_in_a_narrow_window_nothing_sticks_out_and_all_has_a_name_for_a_screen_reader(
    browser: Any, server: Server
) -> None:
    window = Window(browser, server, width=400)
    window.open(PROJECT, "data")
    window.page.wait_for_timeout(500)
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 400
    nameless = window.page.evaluate("""() => [...document.querySelectorAll("input, textarea, select, button")]
      .filter(part => part.offsetParent !== null && part.type !== "file")
      .filter(part => !(part.labels && part.labels.length && part.labels[0].innerText.trim())
        && !part.getAttribute("aria-label") && !part.getAttribute("aria-labelledby") && !part.title
        && !part.innerText.trim())
      .map(part => part.outerHTML.slice(0, 160))""")
    assert not nameless


@pytest.mark.long
def test_broken_recordings_and_subtitles_are_reported_of_and_break_nothing(browser: Any, server: Server) -> None:
    broken = server.folder.parent / "broken"
    broken.mkdir()
    files = {
        "talk.srt": b"1\n00:00:01,000 --> 00:00:02,000\nselam\n",
        "talk.mp4": b"\x00\x01not a film" * 99,
        "binary.srt": bytes(range(256)) * 9,
        "binary.wav": b"RIFF\xff\xff\xff\xffWAVE",
        "table.csv": b"\xff\xfe\x00|||\n",
        "lines.jsonl": b'{"audio": 7\n',
    }
    for name, data in files.items():
        (broken / name).write_bytes(data)
    window = Window(browser, server)
    window.open(PROJECT, "data")
    window.command("data-import", "still needed: From")
    window.upload("data-upload", *(broken / name for name in files))
    window.page.wait_for_selector("#data-upload-state .vg-good")
    window.command("data-import", "uploads")
    window.run("data-import", "bad")
    job = ProjectJobs(server.folder / PROJECT).latest("data import")
    assert job is not None
    assert job.exit_code in (1, 2)
    assert "Traceback" not in job.tail()
    assert not window.console
