"""The command `ui`: serves the web interface until it is interrupted. Its jobs continue without it.

The interface is an ASGI app: the gradio page, files of the projects, and in front of both a guard (`AccessGuard`) that
checks host names, origins and the password. Only `create_app` needs gradio.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import getpass
import gzip
import hmac
import logging
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, chdir, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxgraft.config.base import rebuild_settings_models
from voxgraft.config.commands import UiSettings
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.core.results import CommandResult, SimpleResult
from voxgraft.core.web import (
    SECURITY_HEADERS,
    App,
    Receive,
    Scope,
    Send,
    find_rejection_reason,
    is_local,
    list_host_names,
    listening_socket,
    read_headers,
    read_secret,
    sigterm_as_interrupt,
)
from voxgraft.ui.files import PROJECT_PATHS, Roots
from voxgraft.ui.jobs import PASSWORD_VARIABLE, ProjectJobs

if TYPE_CHECKING:
    from fastapi import FastAPI

    from voxgraft.ui.page import PageContext


# Characters; with the delay below, guessing eight of them is hopeless.
MIN_PASSWORD = 8
# Delay after a wrong password, so that guessing takes years.
WRONG_PASSWORD_SECONDS = 1.0
# Guesses from one address that may wait for their turn; more are refused unchecked.
MAX_WAITING_LOGINS = 20
REFUSAL_REASONS = {401: "a password is required", 429: "too many attempts; try again later"}
AUTH_COOKIE = "voxgraft-known"
# Nothing is loaded from or sent to another server. The inline scripts are gradio's own.
CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
# Between two looks into the queue of events: for some seconds after one, and else.
QUEUE_PAUSE_SECONDS, BUSY_SECONDS, IDLE_PAUSE_SECONDS = 0.02, 5.0, 0.2
# Longest file name of common file systems; gradio fails on longer ones.
MAX_NAME_BYTES = 255
# Errors that reading a malformed request body raises. Errors of the system (OSError) are the server's own.
MALFORMED = (KeyError, TypeError, ValueError)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PROXY_PATH = re.compile(r"/+(?:gradio_api/+)?proxy=")
PAGE_HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    *SECURITY_HEADERS,
)


# Kinds of files that are handed out; no others are.
MIME_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".zip": "application/zip",
}
# Reports may run their own scripts, and nothing else. They have no origin, so they cannot use the interface.
SANDBOX_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; font-src data:; "
    "frame-ancestors 'none'"
)


def ui(settings: UiSettings) -> CommandResult:
    """Serve until Ctrl-C."""
    roots = Roots.of(settings.roots)
    password = _resolve_password(settings)
    for package in ("fastapi", "gradio", "uvicorn"):
        try:
            import_module(package)
        except ImportError as error:
            found = f"{error.name} is not installed"
            raise ConfigError("package-missing", found, cure="pip install 'voxgraft[ui]'.") from None
    rebuild_settings_models()  # now, in one thread: requests are answered in many
    # Commands run in the first root; from there the page resolves the same relative paths as they do.
    with (
        sigterm_as_interrupt(),
        listening_socket(settings.host, settings.port) as listener,
        # Files lie here between the browser and the project: readable by nobody else, removed with the server.
        tempfile.TemporaryDirectory(prefix="voxgraft-ui-", ignore_cleanup_errors=True) as uploads,
        chdir(roots.home),
    ):
        os.environ["GRADIO_TEMP_DIR"] = uploads
        guarded = create_app(roots, settings, password)
        host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{settings.port}/"
        kept = "" if password is None else " (any user name, and the password)"
        progress.report_lines([f"voxgraft is at {address}{kept}", "Ctrl-C stops the web UI; jobs continue"])
        if settings.open_browser:
            import webbrowser

            webbrowser.open(address)
        import uvicorn

        # Headers of a proxy are not trusted: the throttle needs the real address of a client.
        config = uvicorn.Config(
            guarded, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            ws="none", proxy_headers=False,
        )  # fmt: skip

        class Server(uvicorn.Server):
            """Logs nothing about open pages at shutdown: their event streams never end on their own."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                await super().shutdown(sockets)

        # After a signal, uvicorn shuts down and then sends that signal to itself.
        with suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])
    jobs = list_running_jobs(roots)
    return SimpleResult({"stopped": True, "address": address, "jobs": jobs}, (_format_stop_message(jobs),))


def list_running_jobs(roots: Roots) -> list[str]:
    """Jobs that continue without the page: command and project."""
    projects = [Path(roots.home / name) for name in roots.find(PROJECT_PATHS)]
    return [f"{job.verb} in {roots.short(folder)}" for folder in projects for job in ProjectJobs(folder).at_work()]


def _format_stop_message(jobs: list[str]) -> str:
    """The page's last line."""
    words = f"still running: {', '.join(jobs)}; " if jobs else ""
    return f"the web UI has stopped; {words}start it again with `voxgraft ui`"


def create_app(roots: Roots, settings: UiSettings, password: str | None) -> AccessGuard:
    """The whole interface as an ASGI application, behind its guard."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    import gradio as gr
    from fastapi import FastAPI
    from fastapi.responses import FileResponse, PlainTextResponse

    from voxgraft.ui.app import (
        PAGE_CSS,
        PAGE_HEAD_HTML,
        build_page,
        build_theme,
        first_paint_html,
        layout_id,
        poll_stamp,
    )
    from voxgraft.ui.tabs.review import review_routes

    # The secret in the address replaces the password: a sandboxed page cannot send one.
    prefix = f"/pages/{secrets.token_urlsafe(24)}"
    app: FastAPI = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get(prefix + "/{path:path}", include_in_schema=False, response_model=None)
    def page(path: str) -> Any:
        try:
            found = roots.resolve_inside(path)
        except VoxgraftError:
            return PlainTextResponse("not found\n", 404)
        kind = MIME_TYPES.get(found.suffix.lower())
        if kind is None or not found.is_file():
            return PlainTextResponse("not found\n", 404)
        headers = {
            "content-security-policy": SANDBOX_POLICY,
            "cross-origin-resource-policy": "cross-origin",
            "cache-control": "no-store",
        }
        return FileResponse(found, media_type=kind, headers=headers)

    built: list[PageContext] = []

    @app.get("/voxgraft/stamp", include_in_schema=False, response_model=None)
    def stamp(tab: str = "", project: str = "") -> Any:
        found = f"{layout} {poll_stamp(built[0], tab, project[:4096])}"
        return PlainTextResponse(found, headers={"cache-control": "no-store"})

    demo = build_page(roots, prefix, built.append)
    layout = layout_id(demo)
    app.router.routes += review_routes(built[0])
    # Events of all pages share these threads; the limit of the queue stops a page that floods it.
    demo.queue(default_concurrency_limit=8, max_size=256, api_open=False)
    demo._queue.__class__ = _patient_queue()
    demo._queue.progress_update_sleep_when_free = IDLE_PAUSE_SECONDS  # no event here reports progress
    gr.mount_gradio_app(
        app, demo, "/", server_name=settings.host, server_port=settings.port, allowed_paths=[],
        show_error=True, max_file_size=settings.max_upload << 20, ssr_mode=False, pwa=False, mcp_server=False,
        enable_monitoring=False, footer_links=[], theme=build_theme(), css=PAGE_CSS,
        head=PAGE_HEAD_HTML.replace("{{layout}}", layout),
    )  # fmt: skip
    # Only then does gradio check that a file that a request names was uploaded here.
    demo.has_launched = True
    first = insert_first_paint(app, lambda query: first_paint_html(built[0], query))
    # Read now what every run's card needs (10 ms for each run.yaml), not when the first page waits for it.
    threading.Thread(target=first_paint_html, args=(built[0], ""), daemon=True).start()
    return AccessGuard(first, list_host_names(settings.host, settings.names), password, prefix)


def _patient_queue() -> type:
    """Gradio's queue, which looks for events less often while nobody uses the page.

    Gradio looks into its empty queue a thousand times a second, which costs an idle server some percent of a core.
    """
    from gradio.queueing import Queue

    class PatientQueue(Queue):  # type: ignore[misc]
        pushed = 0.0

        @property
        def sleep_when_free(self) -> float:
            return QUEUE_PAUSE_SECONDS if time.monotonic() - self.pushed < BUSY_SECONDS else IDLE_PAUSE_SECONDS

        async def push(self, *given: Any, **named: Any) -> Any:
            self.pushed = time.monotonic()
            return await super().push(*given, **named)

    return PatientQueue


def insert_first_paint(app: App, render: Callable[[str], str]) -> App:
    """The app, with what `render` makes of the address's query in front of gradio's part of the page."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await app(scope, receive, send)
            return
        held: list[MutableMapping[str, Any]] = []

        async def hold(message: MutableMapping[str, Any]) -> None:
            held.append(message)

        query = scope["query_string"].decode("latin-1")
        try:
            shown = (await asyncio.to_thread(render, query)).encode()
        except (VoxgraftError, OSError, LookupError, TypeError, ValueError, AttributeError):
            # Only what is seen first: gradio's own part follows, and reports its errors itself.
            shown = b""
        # Gradio must not compress what is changed here.
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await app({**scope, "headers": plain}, receive, hold)
        body = b"".join(message.get("body", b"") for message in held[1:]).replace(
            b"<gradio-app", shown + b"<gradio-app", 1
        )
        headers = [(name, value) for name, value in held[0]["headers"] if name != b"content-length"]
        if b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers.append((b"content-encoding", b"gzip"))
        await send({**held[0], "headers": [*headers, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    return answer


def _resolve_password(settings: UiSettings) -> str | None:
    """The password. None is needed if nobody else can reach the page."""
    given = read_secret(settings.password_file, PASSWORD_VARIABLE)
    if given is None and is_local(settings.host):
        return None
    if given is None and sys.stdin.isatty():
        given = getpass.getpass("Password for the web UI: ")
    if given is None or len(given) < MIN_PASSWORD:
        found = f"{settings.host} can be reached from other machines" if given is None else "the password is too short"
        raise ConfigError("ui-password", found, expected=f"a password of at least {MIN_PASSWORD} characters")
    return given


class LoginThrottle:
    """One guess at a time from each address: parallel guesses are no faster than guesses in turn."""

    def __init__(self) -> None:
        self.locks: dict[str, asyncio.Lock] = {}
        self.waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[bool]:
        """The turn of an address; False where too many wait already."""
        if self.waiting[client] >= MAX_WAITING_LOGINS:
            yield False
            return
        self.waiting[client] += 1
        # Locks of addresses that nobody waits for are removed, or every address ever seen would keep one.
        lock = self.locks.setdefault(client, asyncio.Lock())
        try:
            async with lock:
                yield True
        finally:
            self.waiting[client] -= 1
            if not self.waiting[client]:
                del self.waiting[client], self.locks[client]


@dataclass(frozen=True, slots=True)
class AccessGuard:
    """ASGI middleware that passes requests of the interface's own pages, and refuses all others."""

    app: App
    names: frozenset[str]
    """Host names, in lower case, under which the interface is reached."""
    password: str | None = None
    open_prefix: str = ""
    """Addresses under it contain a secret: sandboxed pages, which have no origin, may fetch them."""
    login_throttle: LoginThrottle = field(default_factory=LoginThrottle)
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    """Cookie value of browsers that have given the password: they do not wait while others guess."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, path = read_headers(scope), scope["path"]
        prefix, names = self.open_prefix, self.names
        if reason := find_rejection_reason(scope, headers, names, what="the web UI", open_prefix=prefix):
            await _send_refusal(scope, send, 403, reason)
        # Gradio answers addresses that cannot be the page's with an internal error. Its proxy, which fetches pages of
        # other servers, is not needed here and stays closed.
        elif (
            _CONTROL_CHARACTERS.search(path)
            or max(len(part.encode("utf-8", "surrogateescape")) for part in path.split("/")) > MAX_NAME_BYTES
            or _PROXY_PATH.match(path)
        ):
            await _send_refusal(scope, send, 404, "there is no such page")
        elif self.password is None:
            await _answer(self.app, scope, receive, _add_security_headers(send))
        elif status := await self._judged(scope, headers):
            await _send_refusal(scope, send, status, REFUSAL_REASONS[status])
        else:
            mark = (b"set-cookie", f"{AUTH_COOKIE}={self.secret}; Path=/; HttpOnly; SameSite=Strict".encode())
            await _answer(
                self.app, scope, receive, _add_security_headers(send, () if self._has_auth_cookie(headers) else (mark,))
            )

    async def _judged(self, scope: Scope, headers: dict[str, str]) -> int:
        """0 with the right password, else the status to refuse with. Guesses from one address are checked in turn."""
        given = headers.get("authorization")
        if given is None:
            return 401
        assert self.password is not None
        if self._has_auth_cookie(headers) and _password_matches(given, self.password):
            return 0
        client = str((scope.get("client") or ("",))[0])
        async with self.login_throttle.of(client) as has_turn:
            if not has_turn:
                return 429
            if _password_matches(given, self.password):
                return 0
            await asyncio.sleep(WRONG_PASSWORD_SECONDS)
        return 401

    def _has_auth_cookie(self, headers: dict[str, str]) -> bool:
        given = [part.strip() for part in headers.get("cookie", "").split(";")]
        wanted = f"{AUTH_COOKIE}={self.secret}".encode()
        return any(hmac.compare_digest(part.encode(), wanted) for part in given)


def _password_matches(authorization: str, password: str) -> bool:
    kind, _, coded = authorization.partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        given = base64.b64decode(coded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, password.encode())


async def _answer(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the app answer. A request body that it fails on is the client's error, not the server's: 400 instead of 500.

    Gradio validates only part of a body: text that is not UTF-8, NaN, or the number of a function that does not exist
    raise inside of it. The functions of the page are not affected: they run in the queue, which reports their errors.
    """
    if scope["type"] != "http" or scope.get("method") in ("GET", "HEAD"):
        await app(scope, receive, send)
        return
    held: list[MutableMapping[str, Any]] = []

    async def sender(message: MutableMapping[str, Any]) -> None:
        # Starlette sends its 500 first and raises afterwards, so hold the answer until it is clear which one it is.
        if held or (message["type"] == "http.response.start" and message["status"] == 500):
            held.append(message)
        else:
            await send(message)

    try:
        await app(scope, receive, sender)
    except Exception as error:
        is_malformed = isinstance(error, MALFORMED) or type(error).__module__.startswith("gradio.")
        if held and is_malformed:
            await _send_refusal(scope, send, 400, f"malformed request body ({type(error).__name__})")
            return
        for message in held:
            await send(message)
        raise
    for message in held:
        await send(message)


async def _send_refusal(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *PAGE_HEADERS]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="voxgraft", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


def _add_security_headers(send: Send, more: Sequence[tuple[bytes, bytes]] = ()) -> Send:
    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = [(name, value) for name, value in message.get("headers", [])]
            present = {name.lower() for name, _ in given}
            message["headers"] = [*given, *(pair for pair in PAGE_HEADERS if pair[0] not in present), *more]
        await send(message)

    return sender
