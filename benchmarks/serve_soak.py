"""Mixed load on a real server process: clients that vanish, malformed bodies, texts of 10 MB, slow readers.

    python -m benchmarks.serve_soak [--minutes 10] [--clients 4] [--out soak.json]

Counts statuses, compares the server's memory in the first half with that in the last, then kills the server with
SIGKILL, starts it again on the same port, and ends it with SIGTERM. Exits with 1 if anything but the intended happened.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.support.server import ServerProcess
from voxgraft.audio.files import AUDIO_TYPES

INTENDED = {200, 400, 404, 413, 415, 429}
SENTENCES = ("Take the red box.", "Bring me a cup.", "No!", "The pan is hot.", "Go home now.")
# The allocator and torch's caches fill up first; that is no leak.
WARM_UP_SHARE = 0.2
MAX_GROWTH = 0.05


def act(address: str, draw: random.Random, counts: Counter[str]) -> None:
    """One request of a random kind."""
    url, text = f"{address}/v1/audio/speech", " ".join(draw.choices(SENTENCES, k=draw.randint(1, 4)))
    body = {"input": text, "response_format": draw.choice(list(AUDIO_TYPES)), "seed": draw.randrange(1000)}
    body |= {"language": draw.choice(("en", "fr")), "speed": draw.choice((1.0, 1.0, 0.8, 1.5))}
    kind = draw.choice(("whole", "whole", "audio", "sse", "vanish", "malformed", "huge", "slow", "other"))
    if kind == "whole":
        answer = httpx.post(url, json=body, timeout=120)
        assert answer.status_code != 200 or len(answer.content) > 100
    elif kind in ("audio", "sse"):
        with httpx.stream("POST", url, json={**body, "stream_format": kind}, timeout=120) as answer:
            data = b"".join(answer.iter_bytes())
        assert kind != "sse" or answer.status_code != 200 or b"speech.audio.done" in data
    elif kind in ("vanish", "slow"):
        host, port = urlsplit(address).hostname, urlsplit(address).port
        payload = json.dumps({**body, "stream_format": "audio", "response_format": "wav"}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        with socket.create_connection((str(host), int(port or 0)), timeout=60) as own:
            own.sendall(f"{head}content-length: {len(payload)}\r\nconnection: close\r\n\r\n".encode() + payload)
            if kind == "vanish":
                time.sleep(draw.random() * 0.5)
            else:
                while own.recv(2048):
                    time.sleep(0.02)
        counts[kind] += 1
        return
    elif kind == "malformed":
        data = bytes(draw.choices(range(256), k=draw.randint(0, 200)))
        answer = httpx.post(
            url, content=draw.choice((data, b"{", b"[" * 5000)), headers={"content-type": "application/json"}
        )
    elif kind == "huge":
        answer = httpx.post(url, json={**body, "input": "a" * (10 << 20)}, timeout=120)
    else:
        answer = httpx.get(
            f"{address}{draw.choice(('/v1/models', '/metrics', '/', '/nothing', '/health'))}", timeout=60
        )
    counts[f"{kind} {answer.status_code}"] += 1
    assert answer.status_code in INTENDED, answer.status_code


def measure_memory(process: int) -> float:
    """Resident memory in megabytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    server, counts, faults = ServerProcess("--language=en", "--queue=3"), Counter[str](), list[str]()
    end = time.monotonic() + 60 * options.minutes

    def client(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end and len(faults) < 20:
            try:
                act(server.address, draw, counts)
            except httpx.WriteError:
                counts["huge closed"] += 1  # the server answers 413 before it has read 10 MB, and closes
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(options.clients)]
    for thread in threads:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(2)
        memory.append(measure_memory(server.process.pid))
    counted = memory[round(WARM_UP_SHARE * len(memory)) :]
    first, last = (statistics.median(half) for half in (counted[: len(counted) // 2], counted[len(counted) // 2 :]))
    internal = "internal_errors_total" in httpx.get(f"{server.address}/metrics").text
    port = int(server.address.rpartition(":")[2])
    killed = server.stop(signal.SIGKILL)
    again = ServerProcess("--language=en", port=port)
    spoken = httpx.post(f"{again.address}/v1/audio/speech", json={"input": "a cup"}, timeout=120).status_code
    stopped = again.stop()
    found = {
        "minutes": options.minutes, "clients": options.clients, "counts": dict(sorted(counts.items())), "faults": faults,
        "internal_errors": internal, "memory_mb_first_half": round(first, 1), "memory_mb_last_half": round(last, 1),
        "memory_mb_all": [round(one) for one in memory[:: max(1, len(memory) // 20)]],
        "sigkill": killed, "spoken_after_restart": spoken, "sigterm": stopped,
        "stderr": (server.output + again.output)[-2000:],
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    good = not faults and not internal and last <= first * (1 + MAX_GROWTH) and (spoken, stopped) == (200, 0)
    return 0 if good and "Traceback" not in found["stderr"] else 1


if __name__ == "__main__":
    sys.exit(main())
