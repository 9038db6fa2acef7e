"""The program that runs inside a companion environment: `python worker.py FAMILY [CHECKOUT]`.

`companion.py` in the family's folder loads the original program: its `start` returns the handlers of requests, and the
packages whose versions are reported. It runs by its path too, and imports nothing of voxgraft.

Both ends of the pipe use this file: voxgraft imports the messages from it, and another environment runs it by its path.
So it needs numpy only and must not import voxgraft. A message: magic, length of the header (little endian), the header
as JSON with the names, types and shapes of the arrays, then the arrays' bytes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROTOCOL = 1
MAGIC = b"VXG1"
MESSAGE_HEAD = struct.Struct("<4sI")
# What comes through the pipe is checked before memory is allocated for it.
MAX_HEADER_BYTES = 1 << 20
MAX_ARRAY_BYTES = 1 << 31
ALLOWED_DTYPES = ("float32", "int64", "int32")
PARENT_POLL_SECONDS = 0.5
EXIT_PARENT_GONE = 3

Arrays = Mapping[str, NDArray[Any]]
WorkerAnswer = tuple[Mapping[str, Any], Mapping[str, Any]]
WorkerHandlers = Mapping[str, Callable[[dict[str, Any], dict[str, Any]], WorkerAnswer]]


class PipeError(Exception):
    """Bytes from the pipe that are no message."""


def build_message(values: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """One message."""
    parts = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    shapes = [[name, str(array.dtype), list(array.shape)] for name, array in parts.items()]
    header = json.dumps({**values, "arrays": shapes}).encode()
    return b"".join([MESSAGE_HEAD.pack(MAGIC, len(header)), header, *(array.tobytes() for array in parts.values())])


def read_message(read: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """One message; `read` returns exactly as many bytes as requested."""
    magic, length = MESSAGE_HEAD.unpack(read(MESSAGE_HEAD.size))
    if magic != MAGIC or length > MAX_HEADER_BYTES:
        raise PipeError(f"{magic!r} and a header of {length:,} bytes")
    try:
        header = json.loads(read(length))
        shapes = header.pop("arrays")
        arrays = {}
        for name, dtype, sizes in shapes:
            shape = tuple(sizes)
            is_plain = len(shape) <= 4 and all(type(size) is int and size >= 0 for size in shape)
            if dtype not in ALLOWED_DTYPES or not is_plain:
                raise PipeError(f"an array of {dtype} {shape}")
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            if num_bytes > MAX_ARRAY_BYTES:
                raise PipeError(f"an array of {num_bytes:,} bytes")
            arrays[str(name)] = np.frombuffer(read(num_bytes), dtype).reshape(shape).copy()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipeError(f"a header that cannot be read: {error}") from None
    return header, arrays


def serve(answers: WorkerHandlers, about: Mapping[str, Any]) -> None:
    """The worker's loop: introduce itself, then answer requests until the pipe is closed.

    Each handler takes values and arrays, and returns values and arrays.
    """
    # Standard output is the pipe, so everything that a library prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    parent = os.getppid()

    def watch() -> None:
        # End when the parent has ended, also in the middle of a request: no process remains to close the pipe.
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        if os.getpgrp() == os.getpid():  # its own process group: children end with it
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_PARENT_GONE)

    threading.Thread(target=watch, daemon=True).start()

    def read_exactly(count: int) -> bytes:
        parts = []
        while count:
            part = os.read(0, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(values: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        remaining = memoryview(build_message(values, arrays))
        while remaining:
            remaining = remaining[os.write(out, remaining) :]

    send({"ready": True, "protocol": PROTOCOL, **about})
    while True:
        try:
            request, arrays = read_message(read_exactly)
        except EOFError:
            return
        try:
            response, response_arrays = answers[request["ask"]](request, arrays)
        except Exception as error:  # whatever the upstream program raises is reported to the other end
            traceback.print_exc()
            response, response_arrays = {"error": f"{type(error).__name__}: {error}"[:2000]}, {}
        send({"id": request.get("id"), **response}, response_arrays)


def main(name: str, arguments: list[str]) -> None:
    """Load the original program, then serve requests."""
    path = Path(__file__).resolve().parent.parent / "models" / name / "companion.py"
    spec = spec_from_file_location(f"{name}_companion", path)
    assert spec is not None
    assert spec.loader is not None
    family = module_from_spec(spec)
    spec.loader.exec_module(family)
    handlers, packages = family.start(arguments)
    serve(handlers, {"program": name, "versions": {package: version(package) for package in packages}})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
