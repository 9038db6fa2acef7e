"""A worker as this program sees it: started when it is needed, asked over a pipe, and ended with whoever started it.

One that dies or hangs is an error that says so, and is gone; the next question starts another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from numpy.typing import NDArray

from voxgraft.companions.workers.pipe import PROTOCOL, PipeError, frame, read_frame
from voxgraft.errors import CompanionError

__all__ = ["CompanionProcess"]

START_TIMEOUT_SECONDS = 300.0
ANSWER_TIMEOUT_SECONDS = 900.0
"""Sound for forty seconds of speech takes minutes on a slow processor."""
SHUTDOWN_TIMEOUT_SECONDS = 2.0
STDERR_TAIL_BYTES, STDERR_TAIL_LINES = 8000, 6


@dataclass
class CompanionProcess:
    """One worker. `command` starts it."""

    name: str
    command: Sequence[str]
    start_seconds: float = START_TIMEOUT_SECONDS
    answer_seconds: float = ANSWER_TIMEOUT_SECONDS
    about: dict[str, Any] = field(default_factory=dict)
    """What it has said of itself; empty while it does not run."""
    _process: subprocess.Popen[bytes] | None = None
    _said: IO[bytes] | None = None
    _count: int = 0
    _finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Of the worker, while it runs."""
        return self._process.pid if self._process else None

    def hello(self) -> dict[str, Any]:
        """What the worker says of itself when it is ready; starts it if need be."""
        try:
            self._start()
        except BaseException:
            self.close(kill=True)
            raise
        return dict(self.about)

    def ask(self, what: str, arrays: Mapping[str, NDArray[Any]] | None = None, **words: Any) -> dict[str, Any]:
        """The answer to a question: its words and its arrays by name. An error leaves no process behind."""
        try:
            self._start()
            self._count += 1
            deadline = time.monotonic() + self.answer_seconds
            self._write(frame({"ask": what, "id": self._count, **words}, arrays), deadline)
            said, given = self._read(deadline)
        except BaseException:  # also when the keyboard interrupts: half an answer would be taken for the next one
            self.close(kill=True)
            raise
        if "error" in said:
            raise CompanionError("companion-failed", f"{self.name}: {said['error']}")
        return {**said, **given}

    def close(self, *, kill: bool = False) -> None:
        """End the worker, at once or after what it is at."""
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._process is not None:
            _terminate_process(self._process, kill=kill)
        if self._said is not None:
            self._said.close()
        self._process = self._said = None
        self.about = {}

    def _start(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                return
            self.close()  # it died between two questions, and nobody was waiting
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the command is our own)
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=environment,
                start_new_session=True,  # a group of its own, so that its children can be ended with it
            )
        except OSError as error:
            found = f"{self.name} cannot be started: {error.strerror}"
            raise CompanionError("companion-broken", found, where=str(self.command[0])) from None
        self._finalizer = weakref.finalize(self, _terminate_process, self._process, kill=True)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        said, _ = self._read(time.monotonic() + self.start_seconds)
        if said.get("protocol") != PROTOCOL:
            found = f"{self.name} speaks version {said.get('protocol')} of our protocol"
            raise CompanionError("companion-broken", found, expected=str(PROTOCOL))
        self.about = said

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        left = memoryview(data)
        descriptor = self._process.stdin.fileno()
        while left:
            self._wait(descriptor, deadline, writing=True)
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._exit_error() from None

    def _read(self, deadline: float) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()

        def exactly(count: int) -> bytes:
            parts = []
            while count:
                self._wait(descriptor, deadline, writing=False)
                try:
                    part = os.read(descriptor, min(count, 1 << 20))
                except BlockingIOError:
                    continue
                if not part:
                    raise self._exit_error()
                parts.append(part)
                count -= len(part)
            return b"".join(parts)

        try:
            return read_frame(exactly)
        except PipeError as error:
            raise CompanionError("companion-broken", f"{self.name} gave {error}", where=self._stderr_tail()) from None

    def _wait(self, descriptor: int, deadline: float, *, writing: bool) -> None:
        left = deadline - time.monotonic()
        waiting = select.poll()  # `select.select` takes no descriptor above 1023, and data sets open many files
        waiting.register(descriptor, select.POLLOUT if writing else select.POLLIN)
        if not waiting.poll(max(left, 0) * 1000):
            seconds = self.answer_seconds if self.about else self.start_seconds
            found = f"{self.name} has not answered for {seconds:g} seconds, and was ended"
            raise CompanionError("companion-hung", found, where=self._stderr_tail())

    def _exit_error(self) -> CompanionError:
        assert self._process is not None
        try:
            code = self._process.wait(SHUTDOWN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = "closed its pipe" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {signal.Signals(-code).name}"
        begun = "" if self.about else " before it was ready"
        return CompanionError("companion-died", f"{self.name} {how}{begun}", where=self._stderr_tail())

    def _stderr_tail(self) -> str:
        """What the worker said last on standard error."""
        if self._said is None:
            return ""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - STDERR_TAIL_BYTES))
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        return " / ".join(line.strip() for line in lines[-STDERR_TAIL_LINES:] if line.strip())


def _terminate_process(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """End a worker and all that it started. Without `kill` it may finish what it is at."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if not kill:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_TIMEOUT_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
