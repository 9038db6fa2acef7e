"""A file system that fails: chosen calls that would change files below one folder end with an error of the system.

Patches `os` and `io` in the running process. Code that writes files from C without Python is not reached; for that the
campaign has a limit on the size of files, which the kernel enforces.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["OPERATIONS", "VARIABLE", "Fault", "install", "install_from_environment"]

VARIABLE = "VOXGRAFT_TEST_FAULT"
OPERATIONS = ("open", "write", "fsync", "rename", "mkdir")
_CHANGING = ("w", "a", "x", "+")


@dataclass(frozen=True)
class Fault:
    """The `number`-th call of an operation below `root` fails with `errno`; with `lasting` all after it too."""

    root: str
    counter: str
    """A file outside of `root` that grows by one byte with each call, in all processes together."""
    operation: str
    number: int
    """From 1; 0 counts without failing."""
    errno: int
    lasting: bool = False

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def install_from_environment() -> None:
    if text := os.environ.get(VARIABLE):
        install(Fault(**json.loads(text)))


def install(fault: Fault) -> None:
    """Patch this process for good."""
    real_open, real_os_open = io.open, os.open
    root = os.path.realpath(fault.root)

    def is_inside(place: Any) -> bool:
        if isinstance(place, int):
            try:
                place = os.readlink(f"/proc/self/fd/{place}")
            except OSError:
                return False
            if not place.startswith(os.sep):  # a pipe or a socket, such as those to worker processes
                return False
        path = os.path.realpath(os.fsdecode(place))
        return path == root or path.startswith(root + os.sep)

    def count() -> int:
        descriptor = real_os_open(fault.counter, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            real_write(descriptor, b".")
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def trip(operation: str, place: Any) -> None:
        if fault.operation == operation and is_inside(place):
            number = count()
            if fault.number and (number == fault.number or (fault.lasting and number > fault.number)):
                name = None if isinstance(place, int) else os.fsdecode(place)
                raise OSError(fault.errno, os.strerror(fault.errno), name)

    class FailingFile(io.FileIO):
        def write(self, data: Any) -> int | None:  # type: ignore[override]
            trip("write", self.fileno())
            return super().write(data)

        def truncate(self, size: int | None = None) -> int:
            trip("write", self.fileno())
            return super().truncate(size)

    def failing_open(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None,
        closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if not any(sign in mode for sign in _CHANGING) or not is_inside(file):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            trip("open", file)
        bare = mode.replace("b", "").replace("t", "")
        raw = FailingFile(file, bare, closefd=closefd, opener=opener)
        if buffering == 0:
            return raw
        made = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return made if "b" in mode else io.TextIOWrapper(made, encoding or "utf-8", errors, newline)

    def failing_os_open(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            trip("open", path)
        return real_os_open(path, flags, *more, **named)

    def failing(name: str, operation: str, place: int = 0) -> None:
        real: Callable[..., Any] | None = getattr(os, name, None)
        if real is None:
            return

        def call(*arguments: Any, **named: Any) -> Any:
            trip(operation, arguments[place])
            return real(*arguments, **named)

        setattr(os, name, call)

    real_write = os.write
    for name in ("write", "pwrite", "writev", "pwritev", "sendfile", "ftruncate", "truncate", "posix_fallocate"):
        failing(name, "write")
    failing("copy_file_range", "write", 1)
    for name in ("fsync", "fdatasync"):
        failing(name, "fsync")
    for name in ("rename", "replace", "link"):
        failing(name, "rename", 1)
    failing("mkdir", "mkdir")
    builtins.open = io.open = failing_open
    os.open = failing_os_open
