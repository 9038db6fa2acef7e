"""The run folder with its lock and its journal, and processes: worker pools and how a process is identified.

The journal is the one record of a run, and the history is read from it. One JSON object per line; lines are appended,
and removed only from the end. A line counts once its line break is written, so a process killed in the middle of a line
leaves nothing that is read. Writers hold the run's lock; readers need none.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import math
import multiprocessing
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, NoReturn, Self

from voxgraft.core.errors import FileError
from voxgraft.core.files import (
    LOCK_UNSUPPORTED_ERRNOS,
    MAX_TEXT_BYTES,
    FileLock,
    atomic_write,
    build_write_error,
    fsync_folder,
    is_file,
    path_exists,
    recover_folders,
    require_folder,
)

RUN_FILE = "run.yaml"

MAX_HOLDER_BYTES = 4096
# A process signs the lock file a moment after it has got the lock.
_HOLDER_TRIES, _HOLDER_WAIT_SECONDS = 5, 0.02


def step_folder_name(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:06d}"


def missing_run_error(path: Path) -> FileError:
    """The error for a path that is not the folder of a run: it names runs inside it, else how a run is created."""
    inside = sorted(folder.parent for folder in path.glob(f"*/{RUN_FILE}")) if path.is_dir() else []
    cure = "check the path; "
    if is_file(path.parent / RUN_FILE):
        cure += f"the folder is a part of the run {path.parent}."
    elif inside:
        cure += f"the folder contains {'the run' if len(inside) == 1 else 'runs, such as'} {inside[0]}."
    else:
        place = "FOLDER" if path_exists(path) else path
        cure += f"a run is created with `voxgraft new {place} --base BASE --language CODE --sources RECORDINGS`."
    return FileError("file-missing", f"{path} has no {RUN_FILE}", where=path / RUN_FILE, cure=cure)


class RunFolder:
    """The places of one run. Whoever reads them checks that they exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / RUN_FILE
        self.card = path / "card.json"
        self.graft = path / "graft"
        self.data = path / "data"
        self.journal = path / "journal.jsonl"
        self.steps = path / "steps"
        self.samples = path / "samples"
        self.eval = path / "eval"
        self.export = path / "export"
        self.lock_file = path / ".lock"
        # A folder that was finished when its process was killed gets its name now.
        recover_folders(path)
        recover_folders(self.data)

    def data_set(self, name: str) -> Path:
        """The folder of one set of prepared clips."""
        return self.data / name

    def step(self, step: int) -> Path:
        """The folder of one saved step."""
        return self.steps / step_folder_name(step)

    @contextmanager
    def lock(self, command: str = "train") -> Iterator[None]:
        """Nobody else changes the run while the block lasts; an error that names the holder if somebody does.

        The file stays when the lock is gone: removing it would let two processes hold two files of one name.
        """
        path = self.lock_file
        require_folder(self.path)
        try:
            # A link is refused: its target would be overwritten. O_NONBLOCK: a pipe would wait for its other end.
            lock = FileLock(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FileError("not-a-file", f"{path.name} is a link", where=path, cure="remove it.") from None
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                found = f"the run cannot be written to: {error.strerror}"
                raise FileError("file-unwritable", found, where=self.path) from None
            raise build_write_error(error, path) from None
        with lock:
            if not stat.S_ISREG(os.fstat(lock.descriptor).st_mode):
                raise FileError("not-a-file", f"{path.name} is not a regular file", where=path, cure="remove it.")
            try:
                lock.acquire()
            except BlockingIOError:
                raise self._locked_error(lock) from None
            except OSError as error:
                code = "run-lock-unsupported" if error.errno in LOCK_UNSUPPORTED_ERRNOS else "file-unwritable"
                found = f"{path.name} cannot be locked: {error.strerror}"
                raise FileError(code, found, where=self.path) from None
            since = time.strftime("%Y-%m-%d %H:%M:%S %z")
            holder = {"verb": command, "host": socket.gethostname(), "pid": os.getpid(), "since": since}
            # The signature is only information for others: a full disk must not stop who has the lock.
            with suppress(OSError):
                os.ftruncate(lock.descriptor, 0)
                os.pwrite(lock.descriptor, json.dumps(holder).encode() + b"\n", 0)
            yield
            with suppress(OSError):
                os.ftruncate(lock.descriptor, 0)

    def _locked_error(self, lock: FileLock) -> FileError:
        """The error that names the running process, by the signature in the lock file."""
        for _ in range(_HOLDER_TRIES):
            with suppress(OSError, ValueError, RecursionError):
                holder = json.loads(os.pread(lock.descriptor, MAX_HOLDER_BYTES, 0))
                if isinstance(holder, dict) and holder:
                    break
            time.sleep(_HOLDER_WAIT_SECONDS)
        else:
            found = "another process is working on this run"
            return FileError("run-locked", found, where=self.path)
        command, host, pid = holder.get("verb", "?"), holder.get("host", "?"), holder.get("pid", "?")
        found = (
            f"`voxgraft {command}` is working on this run: process {pid} on {host}, since {holder.get('since', '?')}"
        )
        cure = f"wait until it ends, or stop it: `kill {pid}` on {host}." if type(pid) is int else ""
        return FileError("run-locked", found, where=self.path, cure=cure)


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned processes. Not forked: the interfaces have threads, and a fork would copy their held locks."""
    context = _TrackingSpawnContext()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_exit_with_parent)
    try:
        yield pool
    except (BrokenProcessPool, OSError, KeyboardInterrupt):
        # A pool that breaks while it is still starting its processes forgets the last one, and waits for it forever.
        # After Ctrl-C nobody wants to wait for a film to be cut: what is written is whole, the rest is done again.
        for process in context.started:
            if process.pid is not None:
                process.terminate()
        raise
    finally:
        # If the pool was interrupted while it started its own thread, there is none to join: RuntimeError.
        with suppress(RuntimeError):
            pool.shutdown(wait=True, cancel_futures=True)


class _UninterruptibleProcess(SpawnProcess):
    """A process that never sees Ctrl-C, which a terminal sends to the whole group; its parent ends it."""

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            super().start()
            return
        # A process inherits the signal mask of the thread that starts it, so the mask is in force while its Python is
        # still starting. It does not protect the parent, where another thread may take the signal; a parent that is
        # interrupted in between leaves a child that waits for its orders. So the handler only notes it until then.
        in_main = threading.current_thread() is threading.main_thread()  # no other thread is ever interrupted
        seen: list[int] = []
        handler = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number)) if in_main else None
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if in_main:
                signal.signal(signal.SIGINT, handler)
        if seen:
            signal.raise_signal(signal.SIGINT)


class _TrackingSpawnContext(SpawnContext):
    """Starts such processes, and knows them before they run."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 (its name there)
        process = _UninterruptibleProcess(*args, **kwargs)
        self.started.append(process)
        return process


def _exit_with_parent() -> None:
    """End when the parent is gone: an orphan would work beside its parent's successor, or wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def machine_id() -> str:
    """Host, boot and PID namespace: a process number identifies a process only inside all three."""
    parts = [socket.gethostname(), _read_proc_text("/proc/sys/kernel/random/boot_id"), ""]
    with suppress(OSError):
        parts[2] = str(Path("/proc/self/ns/pid").readlink())
    return " ".join(parts)


def process_start_time(pid: int) -> str:
    """When the process of that number was started, in clock ticks since boot; empty if there is none."""
    # The name, in brackets, may hold anything, so count behind the last one: the start is the twentieth field there.
    fields = _read_proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _read_proc_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where there is no /proc
        return ""


JournalEntry = dict[str, Any]
_TAIL_BYTES = 1 << 16


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")  # NaN and Infinity, which Python's parser would take


_JSON_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


class RunJournal:
    """A run's journal. Nothing is opened or created before the first write."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a cut replaces the file, never a link to it
        self._descriptor: int | None = None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add one line with the time in `wall_time`; a number that is not finite becomes null.

        Whole or not at all: what a full disk took of it is cut again.
        """
        entry = {"kind": kind, "step": step, **_replace_non_finite(values), "wall_time": round(time.time(), 3)}
        rest = memoryview(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        try:
            descriptor = self._opened()
            end = os.fstat(descriptor).st_size
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, end)
                self.close()  # if that failed too, the next `_opened` truncates the partial line
                raise
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def sync(self) -> None:
        """Make everything written so far last through a power cut."""
        try:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def read(self) -> list[JournalEntry]:
        """Every whole line; none where there is no journal yet. A broken line is an error with its number."""
        # Very many small objects are made and none is dropped: garbage collection would take most of the time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return [self._entry(number, line) for number, line in enumerate(self._lines(), 1)]
        finally:
            if was_enabled:
                gc.enable()

    def truncate_after(self, step: int) -> int:
        """Remove the lines of later steps, in one rename; how many they were.

        A broken line is an error only if a line that stays comes after it: a power cut may spoil the end.
        """
        lines = self._lines()
        steps: list[int | None] = []
        for number, line in enumerate(lines, 1):
            try:
                steps.append(int(self._entry(number, line)["step"]))
            except FileError:
                steps.append(None)
        kept = [index for index, found in enumerate(steps) if found is not None and found <= step]
        for index in range(kept[-1] if kept else 0):
            if steps[index] is None:
                self._entry(index + 1, lines[index])  # raises
        if len(kept) < len(lines):
            self.close()
            # Left by a process that was killed in the middle of this. The run's lock lets one at a time truncate.
            for leftover in self.path.parent.glob(f".{self.path.name}.????????.part"):
                with contextlib.suppress(OSError):
                    leftover.unlink()
            with atomic_write(self.path, overwrite=True) as stream:
                stream.writelines(lines[index] + b"\n" for index in kept)
        return len(lines) - len(kept)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _lines(self) -> list[bytes]:
        """The whole lines, without their breaks."""
        if path_exists(self.path) and not is_file(self.path):
            raise FileError("not-a-file", f"{self.path.name} is not a regular file", where=self.path)
        try:
            with self.path.open("rb") as stream:
                data = stream.read(MAX_TEXT_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileError("file-unreadable", f"{self.path.name}: {error.strerror}", where=self.path) from None
        if len(data) > MAX_TEXT_BYTES:
            found = f"{self.path.name} has over {MAX_TEXT_BYTES:,} bytes"
            raise FileError("file-too-large", found, where=self.path)
        return data.split(b"\n")[:-1]

    def _entry(self, number: int, line: bytes) -> JournalEntry:
        try:
            entry = _JSON_DECODER.decode(line.decode("utf-8"))
            if isinstance(entry, dict) and isinstance(entry.get("kind"), str) and type(entry.get("step")) is int:
                return entry
            reason = "it is not an object with `kind` and `step`"
        except (ValueError, RecursionError) as error:  # what is not UTF-8, not JSON, or has a number without end
            reason = str(error).splitlines()[0]
        found = f"line {number} is damaged: {reason}"
        raise FileError("journal-broken", found, expected="one JSON object per line", where=self.path)

    def _opened(self) -> int:
        """Descriptor of the file that is at the path now: `truncate_after` may have replaced it."""
        if self._descriptor is not None:
            try:
                replaced = not os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
            except FileNotFoundError:
                replaced = True
            if replaced:
                self.close()
        if self._descriptor is None:
            is_new = not path_exists(self.path)
            # O_NONBLOCK: opening a pipe would otherwise wait for its reader. It is refused below.
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            self._descriptor = descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.close()
                raise FileError("not-a-file", f"{self.path.name} is not a regular file", where=self.path)
            # Truncate what a killed process left of a line: search the last line break backwards, block by block.
            size, whole = os.fstat(descriptor).st_size, 0
            for start in reversed(range(0, size, _TAIL_BYTES)):
                block = os.pread(descriptor, _TAIL_BYTES, start)
                if b"\n" in block:
                    whole = start + block.rindex(b"\n") + 1
                    break
            if whole < size:
                os.ftruncate(descriptor, whole)
            if is_new:
                fsync_folder(self.path.parent)
        return self._descriptor


def strip_clock_fields(entry: Mapping[str, Any]) -> JournalEntry:
    """A line without what depends on the clock and the machine's memory, so that two runs can be compared."""
    return {
        name: value
        for name, value in entry.items()
        if not name.startswith(("wall_", "memory_")) and not name.endswith("_per_second")
    }


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value


CurvePoints = list[tuple[int, float]]  # steps and values, by step
TEXT_LOSS, SPEECH_LOSS = "text_loss", "speech_loss"
# Logged steps over which the median of the speed is taken.
SPEED_WINDOW_STEPS = 20


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that happened at a step, with what the journal says of it."""

    step: int
    values: Mapping[str, Any]


@dataclass
class History:
    """What is known of a run. A line about a step that is known already replaces what was known."""

    language: str = ""
    """The new language: the set whose held-out loss decides."""
    num_steps: int = 0
    """Steps that the run is to have; 0 where the journal does not say."""
    chance: dict[str, float] = field(default_factory=dict)
    """By loss: what a model that knows nothing would have."""
    steps: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    valid: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    """By set."""
    findings: list[HistoryEvent] = field(default_factory=list)
    states: list[HistoryEvent] = field(default_factory=list)
    """Every state word with its reason: `state` and `why`."""
    samples: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    best_step: int = 0
    ended: HistoryEvent | None = None
    """How training ended, if it was not continued with."""

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> History:
        """The history that a journal tells."""
        history = cls()
        for entry in entries:
            history.add(entry["kind"], entry["step"], entry)
        return history

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One more line. Kinds that tell nothing of curves are passed over."""
        if kind == "start":
            self.language = str(values.get("language") or self.language)
            self.num_steps = int(as_finite_float(values.get("steps")) or 0)
            for loss, classes in ((TEXT_LOSS, "text_classes"), (SPEECH_LOSS, "speech_classes")):
                count = as_finite_float(values.get(classes))
                if count is not None and count >= 1:
                    self.chance[loss] = math.log(count)  # cross-entropy of a uniform guess
        elif kind == "step":
            self.steps[step] = {key: value for key, value in values.items() if key != "clips"}
        elif kind == "valid":
            name = str(values.get("set", ""))
            self.language = self.language or name
            self.valid.setdefault(name, {})[step] = values
            if name == self.language and isinstance(values.get("best_step"), int):
                self.best_step = values["best_step"]
        elif kind == "samples":
            self.samples[step] = values
        elif kind == "finding":
            self.findings.append(HistoryEvent(step, values))
        elif kind == "changed" and values.get("key") == "train.steps" and isinstance(values.get("now"), int):
            self.num_steps = values["now"]
        if isinstance(values.get("state"), str):
            self.states.append(HistoryEvent(step, {"state": values["state"], "why": values.get("why")}))
        if kind == "end":
            self.ended = HistoryEvent(step, values)
            if isinstance(values.get("best_step"), int):
                self.best_step = values["best_step"]  # speech may have decided otherwise than the loss
        elif kind in ("start", "step"):
            self.ended = None

    @property
    def last_step(self) -> int:
        """The last step of which something is known."""
        known = [step for lines in self.valid.values() for step in lines]
        return max([0, *self.steps, *known, *([self.ended.step] if self.ended is not None else [])])

    @property
    def state(self) -> HistoryEvent | None:
        """The state word now."""
        return self.states[-1] if self.states else None

    @property
    def state_changed(self) -> bool:
        """Whether the last state word differs from the one before it."""
        return len({event.values["state"] for event in self.states[-2:]}) == 2

    @property
    def base_languages(self) -> list[str]:
        """Sets on which retention is measured."""
        return [name for name in self.valid if name != self.language]

    def train(self, *keys: str) -> CurvePoints:
        """A value of the step lines, such as `text_loss`, or `rates` and `rows` for a nested one."""
        return _collect_points(self.steps, keys)

    def held_out(self, *keys: str, of: str | None = None) -> CurvePoints:
        """A value of the validations, of the new language unless another set is named."""
        return _collect_points(self.valid.get(self.language if of is None else of, {}), keys)

    def parts(self, key: str) -> list[str]:
        """What a value of the step lines is given for: the parts that have `rates`."""
        return list({name: None for values in self.steps.values() for name in values.get(key) or {}})

    def initial_loss(self, key: str) -> float | None:
        """A held-out loss of the new language before the first step."""
        return as_finite_float(self.valid.get(self.language, {}).get(0, {}).get(key))

    def retention(self, language: str) -> CurvePoints:
        """By how much the speech loss of a base language has risen since step 0, as a share; nothing without step 0."""
        points = self.held_out(SPEECH_LOSS, of=language)
        if not points or points[0][0] != 0 or points[0][1] <= 0:
            return []
        return [(step, loss / points[0][1] - 1) for step, loss in points]

    def seconds_per_step(self, positions: int | None = None) -> float | None:
        """Seconds of a step by the latest speeds in the journal; of a step with `positions`, if given."""
        known = []
        for step in sorted(self.steps)[-SPEED_WINDOW_STEPS:]:
            length = positions or as_finite_float(self.steps[step].get("positions"))
            speed = as_finite_float(self.steps[step].get("positions_per_second"))
            if length and speed:
                known.append(length / speed)
        return median(known) if known else None


def as_finite_float(value: Any) -> float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _collect_points(lines: Mapping[int, Mapping[str, Any]], keys: tuple[str, ...]) -> CurvePoints:
    found: CurvePoints = []
    for step in sorted(lines):
        value: Any = lines[step]
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        known = as_finite_float(value)
        if known is not None:
            found.append((step, known))
    return found
