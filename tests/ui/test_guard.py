"""Only the interface's own pages may use it, under names that are known, and with the password where one is set."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from voxgraft.core.web import is_local
from voxgraft.ui.files import Roots
from voxgraft.ui.jobs import ProjectJobs
from voxgraft.ui.live import RunningJobs
from voxgraft.ui.server import MAX_WAITING_LOGINS, AccessGuard

Result = TypeVar("Result")


def run_in_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also beside browser tests, whose event loop runs in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def answer(guard: AccessGuard, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of a guarded answer."""
    return run_in_thread(answering(guard, path, method, **headers))


async def answering(
    guard: AccessGuard,
    path: str = "/",
    method: str = "GET",
    client: str = "192.0.2.1",
    server: str = "",
    **headers: str,
) -> tuple[int, dict[str, str]]:
    """The same, beside others."""
    given = {"host": "127.0.0.1:7860", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "client": (client, 50_000),
        "server": (server, 7860) if server else None,
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await guard(scope, _never, send)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


async def _never() -> Any:
    raise AssertionError("nothing is to be received")


GUARD = AccessGuard(_inner, frozenset({"127.0.0.1", "localhost", "::1"}), open_prefix="/pages/secret")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860"])
def test_known_names_are_let_in(host: str) -> None:
    assert answer(GUARD, host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil:7860",
        "",
        "[::1",
        "[::1].evil.example",
        "evil.example@127.0.0.2",
    ],
)
def test_a_name_that_only_leads_here_is_refused_as_in_dns_rebinding(host: str) -> None:
    assert answer(GUARD, host=host)[0] == 403


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        *[("192.0.2.7", "192.0.2.7:7860", 200), ("::ffff:192.0.2.7", "192.0.2.7:7860", 200)],
        *[("2001:db8::7", "[2001:DB8::7]:7860", 200), ("192.0.2.7", "192.0.2.8:7860", 403)],
        *[("192.0.2.7", "evil.example", 403), ("192.0.2.7", "", 403)],
    ],
)
def test_the_address_that_a_request_came_to_is_known_and_no_other(server: str, host: str, status: int) -> None:
    assert answer(GUARD, server=server, host=host)[0] == status


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "http://127.0.0.1:7860.evil.example",
        "",
        "file://",
        "http://[x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_may_not_ask(origin: str, method: str) -> None:
    assert answer(GUARD, method=method, origin=origin)[0] == 403


def test_the_interfaces_own_pages_may_ask() -> None:
    assert answer(GUARD, method="POST", origin="http://127.0.0.1:7860", sec_fetch_site="same-origin")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_fetches_embeds_or_frames_is_refused_and_a_link_is_not(site: str) -> None:
    for mode, target in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("cors", "empty")):
        assert answer(GUARD, sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=target)[0] == 403
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert answer(GUARD, **link)[0] == 200
    assert answer(GUARD, method="POST", **link)[0] == 403


def test_reports_under_their_secret_may_be_fetched_by_their_own_sandboxed_page() -> None:
    foreign = {"origin": "null", "sec_fetch_site": "cross-site"}
    assert answer(GUARD, path="/pages/secret/x.wav", **foreign)[0] == 200
    assert answer(GUARD, path="/pages/guessed/x.wav", **foreign)[0] == 403
    assert answer(GUARD, path="/pages/secret/x.wav", host="evil.example")[0] == 403


def test_every_answer_forbids_frames_and_other_sources() -> None:
    for headers in (answer(GUARD)[1], answer(GUARD, host="evil.example")[1]):
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def _basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


def test_with_a_password_nothing_is_served_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxgraft.ui.server.WRONG_PASSWORD_SECONDS", 0)
    guard = AccessGuard(_inner, frozenset({"127.0.0.1"}), password="ሰላም:långt lösenord")
    assert answer(guard)[1]["www-authenticate"].startswith("Basic")
    for wrong in (_basic("wrong"), _basic(""), "Basic ***", "Bearer x", "Basic", _basic("ሰላም")):
        assert answer(guard, authorization=wrong)[0] == 401
    assert answer(guard, authorization=_basic("ሰላም:långt lösenord"))[0] == 200


def guesses(guard: AccessGuard, *asked: dict[str, str]) -> list[tuple[int, int, dict[str, str]]]:
    """Number, status and headers of many answers that were asked for at once, in the order in which they came."""
    came: list[tuple[int, int, dict[str, str]]] = []

    async def one(number: int, headers: dict[str, str]) -> None:
        came.append((number, *await answering(guard, **headers)))

    async def all_at_once() -> None:
        await asyncio.gather(*(one(number, headers) for number, headers in enumerate(asked)))

    run_in_thread(all_at_once())
    return came


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> AccessGuard:
    monkeypatch.setattr("voxgraft.ui.server.WRONG_PASSWORD_SECONDS", 0.02)
    return AccessGuard(_inner, frozenset({"127.0.0.1"}), password="correct horse")


def test_many_guesses_at_once_are_looked_at_one_after_the_other(locked: AccessGuard) -> None:
    wrong = [{"authorization": _basic(f"guess {number}")} for number in range(6)]
    came = guesses(locked, *wrong, {"authorization": _basic("correct horse")})
    assert [(number, status) for number, status, _ in came] == [*((number, 401) for number in range(6)), (6, 200)]


def test_more_guesses_than_can_wait_are_not_looked_at_at_all(locked: AccessGuard) -> None:
    wrong = [{"authorization": _basic(f"guess {number}")} for number in range(MAX_WAITING_LOGINS)]
    came = guesses(locked, *wrong, {"authorization": _basic("correct horse")})
    assert {number: status for number, status, _ in came}[MAX_WAITING_LOGINS] == 429
    assert answer(locked, authorization=_basic("correct horse"))[0] == 200, "it does not last"


def test_who_guesses_keeps_neither_another_address_nor_a_browser_that_knew_the_password_out(
    locked: AccessGuard,
) -> None:
    right = {"authorization": _basic("correct horse")}
    cookie = answer(locked, **right)[1]["set-cookie"].partition(";")[0]
    wrong = [{"authorization": _basic(f"guess {number}")} for number in range(MAX_WAITING_LOGINS + 5)]
    others = [{**right, "client": "192.0.2.9"}, {**right, "cookie": f"a=b; {cookie}"}]
    came = guesses(locked, *wrong, *others)
    good = [number for number, status, _ in came if status == 200]
    assert set(good) == {len(wrong), len(wrong) + 1}
    first_wrong = next(at for at, (_, status, _) in enumerate(came) if status == 401)
    assert all([number for number, _, _ in came].index(number) < first_wrong for number in good)
    assert answer(locked, cookie=cookie)[0] == 401, "the mark alone opens nothing"
    assert answer(locked, cookie=cookie, authorization=_basic("wrong"))[0] == 401


def test_which_addresses_only_this_machine_can_reach() -> None:
    assert all(map(is_local, ("127.0.0.1", "127.8.0.1", "localhost", "::1", "[::1]")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.0.4", "example.com", "127.0.0.1.example.com")))


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/proxy=", "/gradio_api/proxy=http://[::1", "/proxy=\0", "/a\nb", "/static/" + "x" * 3000, "/\x85"],
)
def test_an_address_that_gradio_would_answer_with_a_server_error_is_not_found(path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        assert answer(GUARD, path, method)[0] == 404


@pytest.mark.parametrize(
    "path", ["/", "/gradio_api/file=/tmp/a b.wav", "/gradio_api/file=/tmp/ሰላም\u200c.flac", "/config"]
)
def test_addresses_of_the_page_are_served(path: str) -> None:
    assert answer(GUARD, path)[0] == 200


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is served, inside one that is not."""
    folder = tmp_path_factory.mktemp("guarded") / "home"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def client(home: Path) -> Any:
    """The whole interface behind its guard, without a socket."""
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from starlette.testclient import TestClient

    from voxgraft.config.commands import UiSettings
    from voxgraft.ui.server import create_app

    return TestClient(create_app(Roots.of((home,)), UiSettings(), None), base_url="http://127.0.0.1:7860")


JSON, FORM = "application/json", "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\nabc\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("queue/join", JSON, b'{"fn_index": 99999999, "session_hash": "a", "data": []}'),
        ("queue/join", JSON, b'{"fn_index": -1, "session_hash": "a", "data": []}'),
        ("queue/join", JSON, b'{"fn_index": NaN}'),
        ("queue/join", JSON, b'{"fn_index": 1e400, "session_hash": "a", "data": []}'),
        ("queue/join", "text/plain", b"\xff\xfe{"),
        ("run/predict", JSON, b'{"session_hash": "a", "data": []}'),
        ("call/x", JSON, b'{"data": []}'),
        ("call/v2/x", JSON, b"{}"),
        ("reset", JSON, b'{"session_hash": "\\ud800"}'),
        ("upload", FORM, PART),
        ("component_server", FORM, PART),
    ],
)
def test_a_malformed_request_body_is_refused_and_is_no_error_of_the_server(
    client: Any, path: str, kind: str, body: bytes
) -> None:
    found = client.post(f"/gradio_api/{path}", content=body, headers={"content-type": kind})
    assert found.status_code == 400, found.text
    assert "Traceback" not in found.text
    assert found.text.startswith("malformed request body")


@pytest.mark.parametrize("project", ["../x", "%00", "a%00b", "/etc", "x" * 5000])
def test_the_stamp_says_nothing_of_a_project_outside(client: Any, home: Path, project: str) -> None:
    jobs = ProjectJobs(home.parent / "x")
    jobs.folder.mkdir(parents=True, exist_ok=True)

    def stamp() -> str:
        found = client.get(f"/voxgraft/stamp?tab=home&project={project}")
        assert found.status_code == 200
        return str(found.text)

    before = stamp()
    with jobs._made("train", {"verb": "train", "argv": [], "started": 0.0}):
        assert stamp() == before
        assert RunningJobs(Roots.of((home,))).find("../x") == []
    assert RunningJobs(Roots.of((home.parent,))).find("x") == [], "it has ended"


def test_an_error_of_the_server_itself_stays_one() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise OSError("disk")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"localhost")]}
    with pytest.raises(OSError, match="disk"):
        run_in_thread(AccessGuard(failing, frozenset({"localhost"}))(scope, _never, send))
    assert [message.get("status") for message in sent] == [500, None]
