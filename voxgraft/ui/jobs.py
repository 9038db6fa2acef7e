"""Jobs: commands that run as their own processes, and what their folders say of them.

A job outlives the server that started it. Between the two is a small process, `python -m voxgraft.ui.jobs`, that
starts the command and records its end. A job is alive while its lock is held, which dies with its processes: so a new
server, or none, sees the same. The folder of a job:

    job.json   command, argv, working folder, start;    log.txt    standard error
               modules to run before the command
    lock       held by the job's processes              out.txt    standard output, the result
    pid.json   processes, for stopping them             exit.json  exit code and end
    stop.json  how often Stop was pressed
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voxgraft.core.errors import ConfigError, FileError
from voxgraft.core.files import FileLock, build_write_error, format_error_reason, is_locked, read_json, write_json
from voxgraft.core.results import EXIT_INTERRUPTED
from voxgraft.core.run import MAX_HOLDER_BYTES, RUN_FILE, RunFolder, machine_id, process_start_time

JobState = Literal["running", "stopping", "done", "failed", "stopped", "lost"]
JOBS_FOLDER, UPLOADS_FOLDER = "jobs", "uploads"
PASSWORD_VARIABLE = "VOXGRAFT_UI_PASSWORD"
MAX_SHOWN_BYTES = 64 << 10
# The first lets training finish its step and save, the second ends it; a third one kills.
GRACEFUL_STOPS = 2
# Commands that are stages of `go`, which runs them itself: neither may run beside the other.
STAGE_BY_COMMAND = {
    "data import": "import",
    "data split": "split",
    **{name: name for name in ("graft", "prepare", "check", "train", "evaluate", "export")},
}
_JOB_FOLDER_NAME = re.compile(r"^(\d{4,})-[a-z-]+$")


@dataclass(frozen=True, slots=True)
class UiJob:
    """One job, by its folder."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name.partition("-")[0])

    @property
    def verb(self) -> str:
        return str(self.read("job.json").get("verb", ""))

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and if nobody recorded its end."""
        code = self.read("exit.json").get("exit_code")
        return code if isinstance(code, int) else None

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        started, ended = float(self.read("job.json").get("started", 0.0)), self.read("exit.json").get("ended")
        if not ended and self.alive:
            ended = time.time()
        elif not ended:
            ended = started
            with contextlib.suppress(OSError):
                ended = (self.folder / "log.txt").stat().st_mtime
        return max(0.0, float(ended) - started)

    @property
    def alive(self) -> bool:
        """Whether one of its processes holds its lock."""
        return is_locked(self.folder / "lock")

    @property
    def state(self) -> JobState:
        asked = (self.folder / "stop.json").exists()
        if self.alive:
            return "stopping" if asked else "running"
        code = self.exit_code
        if code is None:  # the last stop kills also the process that would record the end
            return "stopped" if self.read("stop.json").get("times", 0) > GRACEFUL_STOPS else "lost"
        if code == EXIT_INTERRUPTED or (asked and code != 0):
            return "stopped"
        if code < 0:  # killed by a signal, not by Stop
            return "lost"
        return "done" if code == 0 else "failed"

    @property
    def is_before_change(self) -> bool:
        """Whether settings or uploads of the project have changed since its end."""
        ended = float(self.read("exit.json").get("ended") or math.inf)
        for name in (RUN_FILE, UPLOADS_FOLDER):
            with contextlib.suppress(OSError):
                if (self.folder.parent.parent / name).stat().st_mtime > ended:
                    return True
        return False

    @property
    def done_since(self) -> set[str]:
        """Commands of the project that have succeeded in a later job."""
        newest = ProjectJobs(self.folder.parent.parent).newest_by_command()
        return {verb for verb, job in newest.items() if job.number > self.number and job.exit_code == 0}

    @property
    def is_superseded(self) -> bool:
        """Whether something was done since its end that may have solved its problem: a change, or a job of its kind."""
        if self.verb.startswith("speak"):
            return any(verb.startswith("speak") for verb in self.done_since)
        return self.is_before_change or not self.done_since.isdisjoint(("go", *STAGE_BY_COMMAND))

    def tail(self, name: str = "log.txt", max_bytes: int = MAX_SHOWN_BYTES) -> str:
        """The end of its log, or of out.txt, what it printed as its result."""
        try:
            with (self.folder / name).open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - max_bytes))
                data = stream.read()
        except OSError:
            return ""
        if size > max_bytes:
            data = data.partition(b"\n")[2]
        return data.decode("utf-8", errors="replace")

    def head(self) -> str:
        """The beginning of its log."""
        with contextlib.suppress(OSError), (self.folder / "log.txt").open("rb") as stream:
            return stream.read(MAX_SHOWN_BYTES).decode("utf-8", errors="replace")
        return ""

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file in its folder (out.txt is one after --json); empty if there is none, or no whole one."""
        try:
            found = read_json(self.folder / name)
        except (FileError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def stop(self) -> None:
        """Ask it to stop as Ctrl-C does; a second time is a second Ctrl-C, and a third one kills it."""
        if not self.alive:
            return
        about = self._processes()
        times = int(self.read("stop.json").get("times", 0)) + 1
        write_json(self.folder / "stop.json", {"times": times, "asked": time.time()}, overwrite=True)
        # `run_job` looks for stop.json after it has written pid.json: one of the two sees the other's file.
        about = about or self._processes()
        if about:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(about["group"], signal.SIGINT if times <= GRACEFUL_STOPS else signal.SIGKILL)

    def _processes(self) -> dict[str, Any]:
        """Its pid.json, empty before it is written; an error if its processes are on another machine."""
        about = self.read("pid.json")
        if not about:
            return about
        group = about.get("group")
        if about.get("machine") == machine_id() and isinstance(group, int) and group > 1:
            # The group is still the job's if one of its processes is: a number may belong to another process by now.
            for name, number in (about.get("starts") or {}).items():
                with contextlib.suppress(OSError):
                    if process_start_time(int(name)) == number and os.getpgid(int(name)) == group:
                        return about
        where = str(about.get("machine") or "?").partition(" ")[0]
        raise ConfigError("ui-job-elsewhere", f"the job runs on another machine: {where}")


class ProjectJobs:
    """The jobs of one project."""

    def __init__(self, project: Path) -> None:
        self.project, self.folder = project, project / JOBS_FOLDER

    def all(self) -> list[UiJob]:
        """Every job, the newest first."""
        with contextlib.suppress(OSError):
            found = [
                UiJob(path) for path in self.folder.iterdir() if _JOB_FOLDER_NAME.match(path.name) and path.is_dir()
            ]
            return sorted(found, key=lambda job: job.number, reverse=True)
        return []

    def latest(self, verb: str) -> UiJob | None:
        """The newest job of a command."""
        ending = verb.replace(" ", "-")
        return next((job for job in self.all() if job.folder.name.partition("-")[2] == ending), None)

    def newest_by_command(self) -> dict[str, UiJob]:
        """The newest job of every command."""
        found: dict[str, UiJob] = {}
        for job in self.all():
            found.setdefault(job.folder.name.partition("-")[2].replace("-", " "), job)
        return found

    def at_work(self) -> list[UiJob]:
        """Jobs that run."""
        return [job for job in self.newest_by_command().values() if job.alive]

    def conflicting(self, verb: str) -> UiJob | None:
        """A running job beside which a command cannot start: the same command, or `go` and one of its stages."""
        stages = (*STAGE_BY_COMMAND,) if verb == "go" else ("go",) if verb in STAGE_BY_COMMAND else ()
        newest = self.newest_by_command()
        return next((newest[name] for name in (verb, *stages) if name in newest and newest[name].alive), None)

    def start(self, verb: str, argv: Sequence[str], where: Path, first: Sequence[str] = ()) -> UiJob:
        """Start `voxgraft ARGV` in the folder `where`, as a process that outlives this one.

        `first` is a Python module with its arguments that runs before it; the command runs if that succeeds.
        """
        with self._start_lock():
            before = self.conflicting(verb)
            if before is not None:
                found = f"`{before.verb}` has been running for {before.seconds:.0f} s"
                raise ConfigError("ui-job-running", found, where=before.folder)
            about = {"verb": verb, "argv": [*argv], "where": str(where), "started": time.time(), "server": os.getpid()}
            about |= {"first": [*first]} if first else {}
            with self._made(verb, about) as (job, lock):
                _launch_runner(job, lock.descriptor)
            return job

    @contextlib.contextmanager
    def _start_lock(self) -> Iterator[None]:
        """One start at a time: of two clicks, or two servers, the second sees the job of the first."""
        try:
            self.folder.mkdir(exist_ok=True)
            lock = FileLock(self.folder / ".starting")
        except OSError as error:
            raise build_write_error(error, self.folder) from None
        with lock:
            _lock_exclusive(lock, self.folder)
            yield

    @contextlib.contextmanager
    def _made(self, verb: str, about: Mapping[str, Any]) -> Iterator[tuple[UiJob, FileLock]]:
        """A new job and its lock. It becomes visible only once it is locked: one without a lock looks lost."""
        hidden = self.folder / ".new"
        try:
            if hidden.is_dir() and not hidden.is_symlink():  # left by a server that was killed here
                shutil.rmtree(hidden)
            else:
                hidden.unlink(missing_ok=True)
            hidden.mkdir()
            write_json(hidden / "job.json", about)
            (hidden / "log.txt").touch()
            lock = FileLock(hidden / "lock")
        except OSError as error:
            raise build_write_error(error, self.folder) from None
        with lock:
            _lock_exclusive(lock, hidden)
            try:
                # Whatever has a number is counted, also what is no folder.
                numbers = [int(at[1]) for path in self.folder.iterdir() if (at := _JOB_FOLDER_NAME.match(path.name))]
                folder = self.folder / f"{max(numbers, default=0) + 1:04d}-{verb.replace(' ', '-')}"
                hidden.rename(folder)
            except OSError as error:
                raise build_write_error(error, self.folder) from None
            yield UiJob(folder), lock


def _launch_runner(job: UiJob, lock: int) -> None:
    """Start the process that runs `run_job`. It inherits the job's lock."""
    # A command has no use for the page's password, and might log its environment.
    environment = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
    try:
        with (job.folder / "log.txt").open("ab") as log:
            # -P: a file in the working folder must not be imported instead of a package. A session of its own: Ctrl-C
            # in the server's terminal must not reach the job.
            process = subprocess.Popen(  # noqa: S603 (a list of words, never a shell)
                [sys.executable, "-P", "-m", "voxgraft.ui.jobs", str(job.folder), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "PYTHONUTF8": "1"},
                pass_fds=(lock,),
                start_new_session=True,
            )
    except OSError as error:
        shutil.rmtree(job.folder, ignore_errors=True)  # or it would look like a job that was lost
        raise FileError("ui-job-unstarted", f"no process could be started: {format_error_reason(error)}") from None
    # The exit code must be collected while this server lives, or the process stays behind as a zombie.
    with contextlib.suppress(RuntimeError):  # no thread can be had: better a zombie than an error
        threading.Thread(target=process.wait, daemon=True).start()


def _lock_exclusive(lock: FileLock, folder: Path) -> None:
    try:
        lock.acquire(timeout=None)
    except OSError as error:
        raise FileError(
            "run-lock-unsupported", f"files cannot be locked here: {error.strerror}", where=folder
        ) from None


# Signatures whose process is known to be gone: lock file, inode, time of change.
_released_locks: set[tuple[Path, int, int]] = set()


def find_external_holder(project: Path) -> tuple[str, str] | None:
    """The command that works on the run without being a job of this page, and a message about it."""
    lock_file = RunFolder(project).lock_file
    try:
        with FileLock(lock_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as lock:
            found = json.loads(os.pread(lock.descriptor, MAX_HOLDER_BYTES, 0))
            status = os.fstat(lock.descriptor)
            signature = (lock_file, status.st_ino, status.st_mtime_ns)
            if not isinstance(found, dict) or signature in _released_locks:
                return None
            # A running process has signed, and one that ends well removes its signature. What a killed one has left is
            # tested once only: testing means holding the lock for a moment, in which a training that starts is refused.
            with contextlib.suppress(BlockingIOError):
                lock.acquire(shared=True)
                _released_locks.add(signature)
                return None
    except (OSError, ValueError):
        return None
    verb, pid, host, since = (str(found.get(key, "?")) for key in ("verb", "pid", "host", "since"))
    # `go` holds the lock in the name of the stage that it runs.
    if any(job.verb in (verb, "go") for job in ProjectJobs(project).at_work()):
        return None
    words = (
        f"`voxgraft {verb}` is running in this run, started elsewhere (process {pid} on {host}, since {since}). "
        "Stop it there, with Ctrl-C, before you start something here."
    )
    return verb, words


def run_job(folder: Path, lock: int) -> int:
    """Run one job to its end; its folder's lock is inherited by the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal to the group is for the command. A function, since a child would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    asked = read_json(folder / "job.json")
    commands = [asked["first"]] if asked.get("first") else []
    for words in (*commands, ["voxgraft", *asked["argv"]]):
        with (folder / "out.txt").open("wb") as out, (folder / "log.txt").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 (a list of words, never a shell)
                [sys.executable, "-P", "-m", *words],
                cwd=asked["where"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                pass_fds=(lock,),
            )
        starts = {str(pid): process_start_time(pid) for pid in (child.pid, os.getpid())}
        about = {"pid": child.pid, "group": os.getpgrp(), "started": time.time(), "machine": machine_id()}
        write_json(folder / "pid.json", {**about, "starts": starts}, overwrite=True)
        if (folder / "stop.json").exists():  # Stop was pressed before there was a process to signal
            child.send_signal(signal.SIGINT)
        code = child.wait()
        if code:
            break
    write_json(folder / "exit.json", {"exit_code": code, "ended": time.time()})
    return 0


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1]), int(sys.argv[2])))
