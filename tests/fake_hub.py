"""A hub on this machine: a real HTTP server with the few answers that huggingface_hub asks for when it fetches files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

IN_GIT = (".json", ".md", ".yaml")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Repositories by name, each with files by name."""

    repositories: dict[str, dict[str, bytes]]
    asked: list[str] = field(default_factory=list)
    address: str = ""
    breaks_after: int | None = None
    """Bytes of the next large file after which the connection is cut, once."""
    broken: int = 0
    """How often it was."""
    damaged: set[str] = field(default_factory=set)
    """Files of which one bit is wrong when they are sent, and only then."""

    def info(self, repository: str) -> dict[str, Any]:
        files = self.repositories[repository]
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
                # As hubs do it: texts lie in git itself, and only the others have a SHA-256.
                "lfs": None
                if name.endswith(IN_GIT)
                else {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130},
            }
            for name, data in files.items()
        ]
        return {
            "_id": "1",
            "id": repository,
            "modelId": repository,
            "sha": COMMIT,
            "siblings": siblings,
            "private": False,
        }


@contextmanager
def running(repositories: dict[str, dict[str, bytes]]) -> Iterator[FakeHub]:
    """The hub, at an address of its own until the block ends."""
    hub = FakeHub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
            words = path.strip("/").split("/")
            if words[:2] == ["api", "models"] and len(words) >= 4:
                return self.listing("/".join(words[2:4]), words[4:])
            name = "/".join(words[:2])
            if len(words) > 4 and words[2] == "resolve" and "/".join(words[4:]) in hub.repositories.get(name, {}):
                file = "/".join(words[4:])
                data = hub.repositories[name][file]
                return self.file(bytes([data[0] ^ 1]) + data[1:] if file in hub.damaged else data, body=body)
            return self.nothing("EntryNotFound" if name in hub.repositories else "RepoNotFound")

        def listing(self, repository: str, rest: list[str]) -> None:
            if repository not in hub.repositories:
                return self.nothing("RepoNotFound")
            value: Any = hub.info(repository)
            if rest[:1] == ["tree"]:
                value = [
                    {"type": "file", "path": one["rfilename"], "size": one["size"], "oid": one["blobId"]}
                    for one in value["siblings"]
                ]
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def file(self, data: bytes, *, body: bool) -> None:
            start = 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if not body:
                return
            if hub.breaks_after is not None and len(data) > hub.breaks_after:
                self.wfile.write(data[start : hub.breaks_after])
                self.wfile.flush()
                hub.breaks_after, hub.broken = None, hub.broken + 1
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(data[start:])

        def nothing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
