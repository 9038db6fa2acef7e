"""The verb `ui`: serves the web interface until it is interrupted. Jobs that it started go on without it."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from voxgraft import progress
from voxgraft.config import rebuild_settings_models
from voxgraft.errors import ConfigError
from voxgraft.files import format_error_reason, read_text
from voxgraft.results import CommandResult, SimpleResult
from voxgraft.ui.guard import LOCAL_NAMES, AccessGuard, is_local
from voxgraft.ui.jobs import PASSWORD_VARIABLE, ProjectJobs
from voxgraft.ui.roots import PROJECT_PATHS, Roots
from voxgraft.ui_settings import UiSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

MIN_PASSWORD = 8


def ui(settings: UiSettings) -> CommandResult:
    """Serve until Ctrl-C."""
    roots = Roots.of(settings.roots)
    password = _resolve_password(settings)
    _require_packages()
    rebuild_settings_models()  # its requests are answered in many threads
    # Commands run in the first root; standing there, the page reads the same paths as they do.
    with (
        _sigterm_as_interrupt(),
        _listening_socket(settings) as listener,
        _temporary_upload_folder() as uploads,
        chdir(roots.home),
    ):
        os.environ["GRADIO_TEMP_DIR"] = str(uploads)
        guarded = create_app(roots, settings, password)
        address = f"http://{_host_for_url(settings.host)}:{settings.port}/"
        kept = "" if password is None else " (any user name, and the password)"
        progress.report_lines([f"voxgraft is at {address}{kept}", "Ctrl-C stops the page; jobs go on without it"])
        _open_browser(settings, address)
        _serve(guarded, listener)
    jobs = list_running_jobs(roots)
    return SimpleResult({"stopped": True, "address": address, "jobs": jobs}, (_format_stop_message(jobs),))


def list_running_jobs(roots: Roots) -> list[str]:
    """What goes on without the page: verb and project."""
    projects = [Path(roots.home / name) for name in roots.find(PROJECT_PATHS)]
    return [f"{job.verb} in {roots.short(folder)}" for folder in projects for job in ProjectJobs(folder).at_work()]


def _format_stop_message(jobs: list[str]) -> str:
    """The page's last line."""
    words = f"{', '.join(jobs)} {'goes' if len(jobs) == 1 else 'go'} on; start it again" if jobs else "start it again"
    return f"the page has stopped; {words} with `voxgraft ui`, and it shows everything as it then is"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """`kill` and a service that is stopped end it as Ctrl-C does, so that nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def create_app(roots: Roots, settings: UiSettings, password: str | None) -> AccessGuard:
    """The whole interface as an ASGI application, behind its guard."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    import gradio as gr
    from fastapi import FastAPI

    from voxgraft.ui.app import PAGE_HEAD_HTML, build_page
    from voxgraft.ui.pages import add_file_routes
    from voxgraft.ui.style import PAGE_CSS, build_theme

    prefix = f"/pages/{secrets.token_urlsafe(24)}"
    app: FastAPI = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_file_routes(app, roots, prefix)
    demo = build_page(roots, prefix)
    demo.queue(default_concurrency_limit=8, max_size=256, api_open=False)
    gr.mount_gradio_app(
        app, demo, "/", server_name=settings.host, server_port=settings.port, allowed_paths=[],
        show_error=True, max_file_size=settings.max_upload << 20, ssr_mode=False, pwa=False, mcp_server=False,
        enable_monitoring=False, footer_links=[], theme=build_theme(), css=PAGE_CSS, head=PAGE_HEAD_HTML,
    )  # fmt: skip
    # Only then does gradio ask, of a file that a request names, whether it was uploaded here.
    demo.has_launched = True
    names = {*LOCAL_NAMES, *(name.lower() for name in settings.names)}
    if not is_local(settings.host):
        names |= {settings.host.strip("[]").lower(), socket.gethostname().lower()}
    return AccessGuard(app, frozenset(names), password, prefix)


def _resolve_password(settings: UiSettings) -> str | None:
    """The password; none is needed where nobody else can reach the page, unless one was given."""
    given: str | None = None
    if settings.password_file is not None:
        given = (read_text(settings.password_file, 4096).splitlines() or [""])[0].strip()
    elif PASSWORD_VARIABLE in os.environ:
        given = os.environ[PASSWORD_VARIABLE]
    elif is_local(settings.host):
        return None
    elif sys.stdin.isatty():
        given = getpass.getpass("A password for the web interface: ")
    if given is None or len(given) < MIN_PASSWORD:
        found = f"{settings.host} can be reached by others" if given is None else "the password is too short"
        raise ConfigError("ui-password", found, expected=f"a password of at least {MIN_PASSWORD} characters")
    return given


def _require_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import gradio  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        found = f"{error.name} is not installed"
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[ui]'.") from None


@contextmanager
def _listening_socket(settings: UiSettings) -> Iterator[socket.socket]:
    """The open port; asked for before the page is built, so that a taken one is said at once."""
    try:
        (kind, _, _, _, address), *_ = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(kind, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        found = f"cannot listen on {settings.host}:{settings.port}: {format_error_reason(error)}"
        raise ConfigError("ui-port", found) from None
    with listener:
        yield listener


@contextmanager
def _temporary_upload_folder() -> Iterator[Path]:
    """Where files lie between the browser and the project; nobody else may look in, and it goes with the server."""
    folder = Path(tempfile.mkdtemp(prefix="voxgraft-ui-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(guarded: AccessGuard, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        guarded, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2, ws="none",
        proxy_headers=False,
    )  # fmt: skip

    class Server(uvicorn.Server):
        """Says nothing of open pages that it ends: their event streams never end by themselves."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    # Told by a signal, uvicorn shuts down and then sends that signal to itself.
    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


def _open_browser(settings: UiSettings, address: str) -> None:
    if settings.open_browser:
        import webbrowser

        webbrowser.open(address)


def _host_for_url(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host
