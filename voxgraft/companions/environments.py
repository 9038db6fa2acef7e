"""Upstream programs in virtual environments of their own, used as vocoders through a worker process.

The command `companion` creates such an environment and checks that its worker answers. The environment's card,
companion.json, is written last: an environment without one is not used.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from voxgraft.companions.worker import PROTOCOL, PipeError, build_message, read_message
from voxgraft.config.commands import CompanionSettings
from voxgraft.core import progress
from voxgraft.core.errors import CompanionError, ConfigError, FileError, VoxgraftError
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import (
    build_write_error,
    format_error_reason,
    is_file,
    path_exists,
    read_json,
    require_file,
    require_folder,
    write_json,
)
from voxgraft.core.results import SimpleResult, Table

START_TIMEOUT_SECONDS = 300.0
# Forty seconds of speech take minutes on a slow processor.
ANSWER_TIMEOUT_SECONDS = 900.0
SHUTDOWN_TIMEOUT_SECONDS = 2.0
STDERR_TAIL_BYTES, STDERR_TAIL_LINES = 8000, 6


class CompanionProcess:
    """One worker process; `command` starts it, at the first request."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        start_seconds: float = START_TIMEOUT_SECONDS,
        answer_seconds: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self.name, self.command = name, command
        self.start_seconds, self.answer_seconds = start_seconds, answer_seconds
        self.about: dict[str, Any] = {}
        """Its introduction; empty while it does not run."""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._count = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Of the worker, while it runs."""
        return self._process.pid if self._process else None

    def hello(self) -> dict[str, Any]:
        """The worker's introduction; starts it if necessary."""
        try:
            self._start()
        except BaseException:
            self.close(kill=True)
            raise
        return dict(self.about)

    def ask(self, what: str, arrays: Mapping[str, NDArray[Any]] | None = None, **values: Any) -> dict[str, Any]:
        """The answer to a request: its values and arrays by name. An error leaves no process behind."""
        try:
            self._start()
            self._count += 1
            deadline = time.monotonic() + self.answer_seconds
            self._write(build_message({"ask": what, "id": self._count, **values}, arrays), deadline)
            answer, answer_arrays = self._read(deadline)
        except BaseException:  # also Ctrl-C: the rest of an answer would be read as the next one
            self.close(kill=True)
            raise
        if "error" in answer:
            raise CompanionError("companion-failed", f"{self.name}: {answer['error']}")
        return {**answer, **answer_arrays}

    def close(self, *, kill: bool = False) -> None:
        """End the worker: at once, or after its current request."""
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
            self.close()  # it died between two requests
        # A file and no pipe: nobody reads it while the worker runs, and a full pipe would stop it.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        # PYTHONPATH and the like belong to this environment; the worker's packages are pinned, and nothing is fetched.
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
        # Without blocking, so that every read and write can have a deadline.
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        greeting, _ = self._read(time.monotonic() + self.start_seconds)
        # An environment may have been made by another version of voxgraft.
        if greeting.get("protocol") != PROTOCOL:
            found = f"{self.name} uses protocol version {greeting.get('protocol')}"
            raise CompanionError("companion-broken", found, expected=str(PROTOCOL))
        self.about = greeting

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        left = memoryview(data)
        descriptor = self._process.stdin.fileno()
        while left:
            self._wait(descriptor, deadline, writing=True)
            try:
                # A pipe holds 64 KB: an array of a voice goes through in parts, each within the deadline.
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
            return read_message(exactly)
        except PipeError as error:
            raise CompanionError("companion-broken", f"{self.name} sent {error}", where=self._stderr_tail()) from None

    def _wait(self, descriptor: int, deadline: float, *, writing: bool) -> None:
        left = deadline - time.monotonic()
        waiting = select.poll()  # `select.select` takes no descriptor above 1023, and data sets open many files
        waiting.register(descriptor, select.POLLOUT if writing else select.POLLIN)
        if not waiting.poll(max(left, 0) * 1000):
            seconds = self.answer_seconds if self.about else self.start_seconds
            found = f"{self.name} did not answer for {seconds:g} seconds and was stopped"
            raise CompanionError("companion-hung", found, where=self._stderr_tail())

    def _exit_error(self) -> CompanionError:
        assert self._process is not None
        try:
            code = self._process.wait(SHUTDOWN_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = "closed its pipe" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {signal.Signals(-code).name}"
        begun = "" if self.about else " before it was ready"
        return CompanionError("companion-died", f"{self.name} {how}{begun}", where=self._stderr_tail())

    def _stderr_tail(self) -> str:
        """The worker's last lines on standard error."""
        if self._said is None:
            return ""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - STDERR_TAIL_BYTES))
        lines = self._said.read().decode("utf-8", "replace").splitlines()
        return " / ".join(line.strip() for line in lines[-STDERR_TAIL_LINES:] if line.strip())


def _terminate_process(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """End a worker and its children. Without `kill` it may finish its current request."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if not kill:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_TIMEOUT_SECONDS)
    # The whole group: an upstream program may have started processes of its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


COMPANIONS_VARIABLE = "VOXGRAFT_COMPANIONS"
COMPANION_CARD_NAME = "companion.json"
COMPANION_FORMAT = "voxgraft-companion-1"
WORKER_PATH = Path(__file__).resolve().parent / "worker.py"


@dataclass(frozen=True, slots=True)
class CompanionEnvironment:
    """An environment that was created and has answered."""

    name: str
    folder: Path
    python: Path
    worker: Path
    arguments: tuple[str, ...] = ()

    def companion(self) -> CompanionProcess:
        """Its worker, not yet started."""
        return CompanionProcess(self.name, [str(self.python), str(self.worker), self.name, *self.arguments])


def companion_folder(name: str) -> Path:
    """The folder of a companion: in VOXGRAFT_COMPANIONS, else with the user's data."""
    if root := os.environ.get(COMPANIONS_VARIABLE):
        return Path(root) / name
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "voxgraft" / "companions" / name


def find_environment(name: str) -> CompanionEnvironment | None:
    """The environment of a companion; None if there is none."""
    folder = companion_folder(name)
    path = folder / COMPANION_CARD_NAME
    if not is_file(path):
        return None
    try:
        card = read_json(path)
    except VoxgraftError as error:
        raise CompanionError("companion-broken", f"{COMPANION_CARD_NAME}: {error.finding.found}", where=path) from None
    if not isinstance(card, dict) or card.get("format") != COMPANION_FORMAT or not isinstance(card.get("python"), str):
        raise CompanionError(
            "companion-broken", f"{COMPANION_CARD_NAME} is not in the format {COMPANION_FORMAT!r}", where=path
        )
    arguments = card.get("arguments")
    given = tuple(map(str, arguments)) if isinstance(arguments, list) else ()
    worker = card.get("worker")
    program = Path(worker) if isinstance(worker, str) else WORKER_PATH
    return CompanionEnvironment(name, folder, Path(card["python"]), program, given)


INSTALL_LOG_NAME = "install.log"
INSTALL_TAIL_LINES = 4


def create_environment(
    name: str, folder: Path, python: Path | None, pip_flags: Sequence[str], checkout: Path | None
) -> CompanionEnvironment:
    """A new environment in a folder; an error with the installer's last lines if a step fails."""
    recipe = FAMILIES[name].companion or {}
    log = folder / INSTALL_LOG_NAME
    venv_python = folder / "venv" / "bin" / "python"
    try:
        if path_exists(folder):
            is_ours = is_file(folder / COMPANION_CARD_NAME) or is_file(log)
            if not is_ours and any(folder.iterdir()):
                found = f"{folder.name} exists already and is not an environment of voxgraft"
                raise FileError("file-exists", found, where=folder)
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        interpreter = python or Path(getattr(sys, "_base_executable", sys.executable))
        with progress.progress_task(
            f"creating an environment for {recipe['title']}", len(recipe["steps"]) + 1
        ) as advance:
            _run_logged([interpreter, "-m", "venv", folder / "venv"], log)
            advance(1)
            for step in recipe["steps"]:
                packages = [word.format(checkout=checkout) for word in step]
                _run_logged(
                    [venv_python, "-m", "pip", "install", "--disable-pip-version-check", *pip_flags, *packages], log
                )
                advance(1)
        for pattern in recipe.get("removed", ()):
            for path in (folder / "venv").glob(f"lib/python*/site-packages/{pattern}"):
                path.unlink()
    except OSError as error:
        raise build_write_error(error, folder) from None
    return CompanionEnvironment(name, folder, venv_python, WORKER_PATH, (str(checkout),) if checkout else ())


def _run_logged(command: Sequence[str | Path], log: Path) -> None:
    with log.open("ab") as stream:
        try:
            process = subprocess.run(  # noqa: S603 (our own steps)
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, check=False
            )
        except OSError as error:
            raise CompanionError(
                "companion-install", f"{command[0]}: {format_error_reason(error)}", where=log
            ) from None
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        log_tail = " / ".join(line.strip() for line in lines[-INSTALL_TAIL_LINES:] if line.strip())
        raise CompanionError("companion-install", log_tail or f"exit code {process.returncode}", where=log)


def create_companion(settings: CompanionSettings) -> SimpleResult:
    """Create the environment, or check that the existing one answers."""
    name = settings.name
    package = (FAMILIES[name].companion or {}).get("checkout_package", "")
    rebuilds = settings.force or settings.environment is not None
    if package and settings.checkout is None and (rebuilds or find_environment(name) is None):
        found = f"{name} is installed from source, and --checkout is not set"
        raise ConfigError("config-missing", found, expected="--checkout FOLDER")
    if not package and settings.checkout is not None:
        raise ConfigError("config-value", f"--checkout is given, but {name} is a package", expected="no --checkout")
    if settings.checkout is not None:
        require_folder(settings.checkout / package)
    if settings.python is not None:
        require_file(settings.python)
    began = time.monotonic()
    # With --force a broken card is not even read: it must not block a new environment.
    environment = None if rebuilds else find_environment(name)
    is_new = environment is None
    folder = companion_folder(name)
    if environment is None and settings.environment is not None:
        # An environment that somebody else has created: only its card is kept in our folder.
        own_python = require_folder(settings.environment).resolve() / "bin" / "python"
        if not is_file(own_python):
            found = f"{settings.environment} has no bin/python"
            raise ConfigError("config-value", found, expected="the folder of a virtual environment")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COMPANION_CARD_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise build_write_error(error, folder) from None
        arguments = (str(settings.checkout.resolve()),) if settings.checkout else ()
        environment = CompanionEnvironment(name, folder, own_python, WORKER_PATH, arguments)
    elif environment is None:
        environment = create_environment(name, folder, settings.python, settings.pip_flags, settings.checkout)
    worker = environment.companion()
    try:
        versions = worker.hello().get("versions", {})
    finally:
        worker.close()
    python = str(environment.python)
    if is_new:
        card = {
            "format": COMPANION_FORMAT,
            "name": name,
            "python": python,
            "arguments": list(environment.arguments),
            "versions": versions,
        }
        write_json(environment.folder / COMPANION_CARD_NAME, card, overwrite=True)
    seconds = time.monotonic() - began
    result = {
        "name": name,
        "folder": str(environment.folder),
        "python": python,
        "versions": versions,
        "made": is_new,
        "seconds": round(seconds, 1),
    }
    how = f"created in {seconds:.0f} s" if is_new else "existed already"
    table = Table(("package", "version"), tuple(versions.items()))
    return SimpleResult(result, (table, f"{name} answers: {environment.folder} ({how})"))
