"""The speech server for tests: in this process, without a network, and as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from voxgraft.config.commands import ServeSettings
from voxgraft.core.web import App, list_host_names
from voxgraft.server.app import create_app
from voxgraft.server.command import collect_voices
from voxgraft.server.scheduler import Scheduler
from voxgraft.synthesis.api import TTS

KEY = "a key of enough characters"


@dataclass
class Answer:
    """What an application has sent for one request."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error; fails where the answer has another shape."""
        value = json.loads(self.body)
        assert set(value) == {"error"}
        assert set(value["error"]) == {"message", "type", "param", "code"}
        found: dict[str, Any] = value["error"]
        return found


@contextmanager
def open_app(tts: TTS, key: str | None = None, **settings: Any) -> Iterator[tuple[App, Scheduler]]:
    """The application with its threads, without a socket."""
    own = ServeSettings(**settings)
    scheduler = Scheduler(tts, collect_voices(tts, own), batch=own.batch, max_jobs=own.queue)
    scheduler.start()
    try:
        yield create_app(scheduler, own, list_host_names(own.host, own.names), key), scheduler
    finally:
        scheduler.stop()


async def ask(
    app: App,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    method: str | None = None,
    leave_after: float | None = None,
    stall: bool = False,
    unfinished: bool = False,
) -> Answer:
    """One request as a server hands it over. A client that leaves goes away after so many seconds; one that stalls
    takes the headers and nothing more; the body of one that is unfinished never ends."""
    sent = {"host": "localhost", "content-type": "application/json", **(headers or {})}
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""},
        **{"method": method or ("GET" if body is None else "POST"), "path": path, "raw_path": path.encode()},
        **{"query_string": b"", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)},
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
    }
    answer, given = Answer(), False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body or b"", "more_body": unfinished}
        await asyncio.sleep(3600 if leave_after is None else leave_after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            await asyncio.sleep(3600 if stall else 0)
            answer.chunks.append(message.get("body", b""))
            answer.complete = not message.get("more_body", False)

    await app(scope, receive, send)
    answer.body = b"".join(answer.chunks)
    return answer


def speech(text: str, **values: Any) -> bytes:
    """The body of a request."""
    return json.dumps({"input": text, "voice": "f2", "response_format": "wav", **values}).encode()


class ServerProcess:
    """`voxgraft serve` as a process on a free port."""

    def __init__(self, *words: str, port: int = 0, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "voxgraft", "serve", f"--port={port}", "--device=cpu", *words]
        own = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
        self.said: list[str] = []
        self._ready = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(one,), daemon=True) for one in ("stderr", "stdout")]
        for thread in self._threads:
            thread.start()
        assert self._ready.wait(120), self.output
        self.address = re.findall(r"http://[\w.:\[\]]+", self.output)[0]
        for _ in range(600):
            try:
                if httpx.get(f"{self.address}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(self.output)

    @property
    def output(self) -> str:
        return "".join(self.said)

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(kind)
        code = self.process.wait(60)
        for thread in self._threads:
            thread.join(10)
        return code

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            self.said.append(line)
            if "Ctrl-C" in line:
                self._ready.set()
        self._ready.set()
