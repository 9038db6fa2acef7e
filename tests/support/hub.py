"""A hub on this machine: a real HTTP server with the few answers that huggingface_hub asks for when files come and go."""

from __future__ import annotations

import base64
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
    token: str = "hf_stand_in"
    """Who may write."""
    private: dict[str, bool] = field(default_factory=dict)
    """Repositories that were made here, and whether others may see them."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their SHA-256, before a commit names them."""

    def created(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
        hidden = asked.get("visibility") == "private" or bool(asked.get("private"))  # newer and older clients
        self.private.setdefault(name, hidden)
        self.repositories.setdefault(name, {})
        return {"url": f"{self.address}/{name}", "name": name, "id": name}

    def committed(self, repository: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        files = self.repositories[repository]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        url = f"{self.address}/{repository}/commit/{COMMIT}"
        return {"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""}

    def batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Where large files are to be put."""
        put = [{"upload": {"href": f"{self.address}/objects/{one['oid']}", "header": {}}} for one in asked["objects"]]
        objects = [{**one, "actions": actions} for one, actions in zip(asked["objects"], put, strict=True)]
        return {"transfer": "basic", "objects": objects}

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

        def do_PUT(self) -> None:
            path = self.noted()
            data = self.rfile.read(int(self.headers["Content-Length"]))
            assert hashlib.sha256(data).hexdigest() == path.rpartition("/")[2]
            hub.objects[path.rpartition("/")[2]] = data
            self.document({})

        def do_POST(self) -> None:
            path = self.noted()
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self.document({"error": "who are you?"}, 401)
            words = path.strip("/").split("/")
            repository = "/".join(words[2:4])
            if path == "/api/repos/create":
                return self.document(hub.created(json.loads(data)))
            if path == "/api/validate-yaml":
                return self.document({"errors": [], "warnings": []})
            if words[4:5] == ["preupload"]:
                files = json.loads(data)["files"]
                modes = ["regular" if one["path"].endswith(IN_GIT) else "lfs" for one in files]
                rows = [
                    {"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}
                    for one, mode in zip(files, modes, strict=True)
                ]
                return self.document({"files": rows})
            if path.endswith(".git/info/lfs/objects/batch"):
                return self.document(hub.batch(json.loads(data)), kind="application/vnd.git-lfs+json")
            if words[4:5] == ["commit"]:
                return self.document(hub.committed(repository, [json.loads(line) for line in data.splitlines()]))
            return self.nothing("EntryNotFound")

        def noted(self) -> str:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
            return path

        def document(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def answer(self, *, body: bool) -> None:
            words = self.noted().strip("/").split("/")
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
            self.document(value)

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
