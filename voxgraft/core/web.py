"""What the web UI and the speech server share: who may reach a server, its socket, and how it is stopped.

Browsers send requests of any page to any address. A server on this machine therefore answers only requests for host
names that are its own (else a foreign name could be made to lead here) and only pages of its own origin.
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from voxgraft.core.errors import ConfigError
from voxgraft.core.files import format_error_reason, read_text

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# More than a port behind an IPv6 address.
_AFTER_ADDRESS = re.compile(r"\](?!:\d*$|$)")
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every answer of both servers. Each adds its own."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_local(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_secret(path: Path | None, variable: str) -> str | None:
    """A password or key: the first line of a file, or an environment variable. None if neither is given."""
    if path is not None:
        return (read_text(path, 4096).splitlines() or [""])[0].strip()
    return os.environ.get(variable)


def list_host_names(host: str, more: Collection[str]) -> frozenset[str]:
    """Names, in lower case, under which a server that listens on `host` is reached."""
    names = {*LOCAL_NAMES, *(name.lower() for name in more)}
    if not is_local(host):
        names |= {host.strip("[]").lower(), socket.gethostname().lower()}
    return frozenset(names)


def read_headers(scope: Scope) -> dict[str, str]:
    """Headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def find_rejection_reason(
    scope: Scope, headers: Mapping[str, str], names: Collection[str], *, what: str, open_prefix: str = ""
) -> str:
    """Why a request is not from one of our pages; empty if it is, or if no browser sent it."""
    host = headers.get("host", "")
    # The address itself is safe: only a foreign host name that resolves to us (DNS rebinding) is not.
    reached = str((scope.get("server") or ("",))[0]).lower().removeprefix("::ffff:")
    name = ""
    with suppress(ValueError):
        # urlsplit ignores text between the bracket and the port.
        name = (urlsplit(f"//{host}").hostname or "").lower() if not _AFTER_ADDRESS.search(host) else ""
    if not name or name not in {*names, reached}:
        return "this host name is not allowed; add it with --names"
    if open_prefix and scope["path"].startswith(open_prefix):
        return ""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return f"pages of other origins may not use {what}"
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in (None, "same-origin", "none"):
        return ""
    # Another page may link here, and do nothing else.
    is_link = scope.get("method") == "GET" and mode == "navigate" and headers.get("sec-fetch-dest") == "document"
    return "" if is_link else f"pages of other origins may not use {what}"


@contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """The open port; opened before anything slow is loaded, so that a taken port is reported at once."""
    try:
        (kind, _, _, _, address), *_ = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(kind, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        found = f"cannot listen on {host}:{port}: {format_error_reason(error)}"
        raise ConfigError("ui-port", found) from None
    with listener:
        yield listener


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM (`kill`, a stopped service) ends it as Ctrl-C does, so that nothing is left behind."""
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
