"""Fuzzed requests against the handlers of the speech server, in process. `python -m tests.fuzz.requests NUMBER [SEED]`

Most requests are refused before anything is spoken; those that are accepted are left by their client at once, so that
a million of them do not take weeks. Counts statuses; any other than the intended ones, an exception, or an answer with
a path, a key or a line break from the request in its headers is a bug.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from voxgraft.core.web import App
from voxgraft.server.app import REQUEST_KEYS
from voxgraft.server.scheduler import Scheduler

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, 10**400, 0.5, 1e308, -0.0, float("nan"), float("inf"), "", " ", "\x00", "a"),
    *("../../etc/passwd", "/etc/passwd", "C:\\x", "f2", "default", "wav", "mp3", "opus", "sse", "audio", "en", "am"),
    *("ሰላም", "\u202e\u200d", "a\ud800", "é" * 50, "<script>", "' OR 1=1", "a\r\nset-cookie: x=1", "%s%n", "{{7*7}}"),
    *("12:30", "[am]", "[en]x[/en]", "1" * 60, "😀" * 20, [], [1], [0.1] * 8, {}, {"id": "f2"}, {"id": {}}, [[[]]]),
)
PATHS = (
    "/v1/audio/speech",
    "/v1/models",
    "/v1/audio/voices",
    "/health",
    "/metrics",
    "/",
    "/..%2f",
    "/v1/audio/speech/",
)
METHODS = ("POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "BREW")
HEADERS = ("host", "origin", "authorization", "content-type", "content-length", "sec-fetch-site", "cookie", "expect")
HEADER_VALUES = (
    *("", "localhost", "evil.example", "http://localhost", "null", "Bearer x", "application/json", "text/plain", "-1"),
    *(
        "99999999999999",
        "1e3",
        "cross-site",
        "same-origin",
        "\xff\xfe",
        "a" * 9000,
        "[::1",
        "localhost:99999",
        "@localhost",
    ),
)


def build_request(draw: random.Random) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers and body."""
    usual = draw.random() < 0.9
    path, method = (PATHS[0], "POST") if usual else (draw.choice(PATHS), draw.choice(METHODS))
    headers = {"host": "localhost", "content-type": "application/json"}
    if not usual:
        headers |= {draw.choice(HEADERS): draw.choice(HEADER_VALUES) for _ in range(draw.randint(0, 3))}
    values: dict[str, Any] = {"input": "a cup", "voice": "f2", "response_format": "wav"}
    for _ in range(draw.randint(0, 3)):
        key = (
            draw.choice(sorted(REQUEST_KEYS))
            if draw.random() < 0.95
            else "".join(map(chr, draw.choices(range(1, 300), k=5)))
        )
        values[key] = draw.choice(VALUES)
    body = json.dumps(values).encode()
    if draw.random() < 0.2:  # broken bytes
        changed = bytearray(body)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        body = bytes(changed[: draw.randint(0, len(changed))])
    return method, path, headers, body


def fuzz_requests(app: App, scheduler: Scheduler, number: int, seed: int) -> Counter[int]:
    """So many requests, a few hundred at a time; the statuses of their answers."""
    draw, statuses = random.Random(seed), Counter[int]()

    async def one(method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        scope = {
            **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""},
            **{"method": method, "path": path, "raw_path": path.encode(), "query_string": b""},
            **{"server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)},
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
        messages, started = [{"type": "http.request", "body": body, "more_body": False}], []

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.append(message["status"])
                lines = b"\n".join(value for _, value in message["headers"])
                assert b"\r" not in lines
                assert b"set-cookie" not in {name for name, _ in message["headers"]}
            elif started[0] >= 400:
                text = message.get("body", b"")
                assert b"Traceback" not in text
                assert b"/site-packages" not in text
                assert b"/voxgraft/" not in text
                if text and method != "HEAD":
                    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}

        await app(scope, receive, send)
        # A client that has left gets no answer: the request was accepted.
        statuses[started[0] if started else 200] += 1

    async def all_of_them() -> None:
        begin = time.monotonic()
        for first in range(0, number, 200):
            requests = [build_request(draw) for _ in range(min(200, number - first))]
            await asyncio.gather(*(one(*request) for request in requests))
            if first % 20_000 == 0 and number > 20_000:
                print(f"{first:,} requests, {time.monotonic() - begin:.0f} s, {dict(statuses)}", flush=True)

    asyncio.run(all_of_them())
    assert "internal_errors_total" not in scheduler.metrics.format({})
    return statuses


if __name__ == "__main__":
    import voxgraft
    from tests.support.server import open_app

    total, start = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with open_app(voxgraft.load("tiny", device="cpu"), language="en", queue=200) as (application, own):
        print(dict(fuzz_requests(application, own, total, start)))
