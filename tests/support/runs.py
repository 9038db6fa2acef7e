"""Runs, states and real child processes for the tests of what makes a run impossible to lose."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from voxgraft.checkpoints.steps import TrainState, load_step, remove_leftover_folders
from voxgraft.core.errors import FileError, Finding, VoxgraftError
from voxgraft.core.files import FAILPOINT_VARIABLE
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.training.checkpoint import move_later_steps_aside, save_step

NOBODY = 65534
_START_OR_END = threading.Lock()
"""Whoever starts a child looks for those that have ended, and would take their exit codes from other threads."""
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.support.workers.preload"])


def new_run(folder: Path) -> RunFolder:
    (folder / "run.yaml").write_text("language: am\n")
    return RunFolder(folder)


def state(step: int, seed: int | None = None) -> TrainState:
    """A small state with every kind of tensor that training has, different for every seed (the step if not given)."""
    generator = torch.Generator().manual_seed(step if seed is None else seed)
    rows = torch.randn(7, 5, generator=generator)
    tensors = {
        "rows": {"text_emb.weight": rows, "text_head.weight": rows.to(torch.bfloat16)},
        "adapter": {
            "empty": torch.zeros(0, 3),
            "scale": torch.tensor(0.5),
            "turned": rows.t(),
            "large": torch.randn(160, 128, generator=generator),  # more than a write buffer holds
        },
        "optimizer": {
            "text_emb.weight/exp_avg": rows * 1e-3,
            "text_emb.weight/exp_avg_sq": rows.square(),
            "text_emb.weight/step": torch.tensor(float(step)),
            "count": torch.tensor(step, dtype=torch.int64),
        },
    }
    values = {"best": {"step": step, "score": 0.1 + step}, "versions": {"torch": "2"}, "patience": None, "seed": seed}
    return TrainState(step, tensors, values)


def save(
    run: RunFolder, *steps: int, keep_last: int = 100, keep: tuple[int, ...] = ()
) -> tuple[list[int], list[Finding]]:
    """Save these steps, and give what the last save said."""
    return [save_step(run, state(step), keep_last=keep_last, keep=keep) for step in steps][-1]


def assert_same(found: TrainState, expected: TrainState) -> None:
    """Equal to the last bit, kind and shape."""
    assert found.step == expected.step
    assert found.values == expected.values
    assert {group: list(named) for group, named in found.tensors.items()} == {
        group: list(named) for group, named in expected.tensors.items()
    }
    for group, named in expected.tensors.items():
        for name, tensor in named.items():
            other = found.tensors[group][name]
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
            assert bits(other) == bits(tensor), name


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else b""


def assert_newest(run: RunFolder, step: int) -> None:
    """The newest whole step is this one, with the bits that it was saved with."""
    assert_same(load_step(run).state, state(step))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def seal(folder: Path) -> None:
    """Make a step's manifest fit its files again, as a program that writes other contents would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_state(folder: Path, **changes: Any) -> None:
    """Change keys of state.json, so that the step is whole and says something else."""
    path = folder / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    seal(folder)


def flip_bit(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


# ---- child processes ----------------------------------------------------------------------------------------


@dataclass
class Child:
    """A real process that calls a function. `answer` is what it gave, or the code of the error that it met."""

    process: Any
    connection: Connection
    answer: Any = None

    def has_answered(self) -> bool:
        """Whether it has come to its end, or is gone."""
        return self.answer is not None or self.connection.poll()

    def wait(self, seconds: float = 60) -> int:
        """Its exit code: minus the signal if it was killed."""
        with contextlib.suppress(EOFError, ConnectionError):
            self.answer = self.connection.recv() if self.connection.poll(seconds) else None
        with _START_OR_END:
            self.process.join(seconds)
        assert self.process.exitcode is not None, "the child did not end"
        return int(self.process.exitcode)


def child(
    function: Callable[..., Any], *arguments: Any, fault: str = "", environment: Mapping[str, str] | None = None
) -> Child:
    """Start a process that calls `function`; `fault` as VOXGRAFT_FAULT takes it."""
    ours, theirs = processes.Pipe()
    variables = {**(environment or {}), FAILPOINT_VARIABLE: fault}
    process = processes.Process(target=_call, args=(function, arguments, variables, theirs), daemon=True)
    with _START_OR_END:
        process.start()
    theirs.close()
    return Child(process, ours)


def _call(
    function: Callable[..., Any], arguments: tuple[Any, ...], variables: Mapping[str, str], connection: Connection
) -> None:
    os.environ.update(variables)
    try:
        connection.send(function(*arguments))
    except VoxgraftError as error:
        connection.send(error.code)


@dataclass
class Program:
    """A process of its own, with standard output and errors of its own."""

    child: Child
    printed: Path
    said: Path

    @property
    def pid(self) -> int:
        return int(self.child.process.pid)

    def is_running(self) -> bool:
        return bool(self.child.process.is_alive())

    def kill(self) -> None:
        self.child.process.kill()

    def ended(self, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Its exit code and what it has printed."""
        code = self.child.wait(seconds)
        return subprocess.CompletedProcess((), code, self.printed.read_text(), self.said.read_text())


def program(words: Sequence[str], beside: Path, *, fault: str = "") -> Program:
    """`voxgraft` as its script calls it; what it prints is kept beside a folder."""
    return printing(_main, words, beside=beside, fault=fault)


def printing(
    function: Callable[..., object],
    *arguments: Any,
    beside: Path,
    fault: str = "",
    environment: Mapping[str, str] | None = None,
) -> Program:
    """Start a process that calls `function`; what it prints is kept beside a folder."""
    printed, said = (beside.with_name(f"{beside.name}.{name}") for name in ("out", "err"))
    for path in (printed, said):
        path.write_bytes(b"")
    started = child(_print, function, arguments, printed, said, fault=fault, environment=environment)
    return Program(started, printed, said)


def _print(function: Callable[..., object], arguments: tuple[Any, ...], printed: Path, said: Path) -> None:
    for stream, path in ((sys.stdout, printed), (sys.stderr, said)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream.fileno())
    function(*arguments)


def _main(words: Sequence[str]) -> None:
    from voxgraft.cli import main

    sys.argv = ["voxgraft", *words]
    sys.exit(main())


def saved_by_child(run: RunFolder, step: int, *, fault: str, seed: int | None = None, keep_last: int = 2) -> Child:
    """Save a step in a process of its own, to the end of that process."""
    process = child(_save, run, step, seed, keep_last, fault=fault)
    process.wait()
    return process


def _save(run: RunFolder, step: int, seed: int | None, keep_last: int) -> str:
    save_step(run, state(step, seed), keep_last=keep_last)
    return "saved"


@contextlib.contextmanager
def stopped_at(point: str, run: RunFolder, step: int) -> Iterator[Child]:
    """A process that saves a step and is still at a point inside the save until the block ends; then its end."""
    process = child(_save, run, step, None, 2, fault=f"{point}:1:stop")
    try:
        while Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert process.process.is_alive()
            time.sleep(0.001)
        yield process
    finally:
        os.kill(process.process.pid, signal.SIGCONT)
        process.wait()


def limit_file_size(num_bytes: int) -> None:
    """No file of this process can grow beyond this: writes come back short, then fail, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder and all in it that only root may write to; for root, use `as_nobody` in a child."""
    everything = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in everything}
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def as_nobody(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function without root's right to pass by permissions. In a child process only."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return function(*arguments)


# ---- what children do: here, where importing costs them little ----------------------------------------------


def write_without_end(path: Path) -> None:
    with RunJournal(path) as journal:
        for step in range(1_000_000):
            journal.write("step", step, clips=["a" * 20] * 20)


def write_and_cut_without_end(path: Path) -> None:
    with RunJournal(path) as journal:
        while True:
            for step in range(101, 121):
                journal.write("step", step, clips=["a" * 100] * 20)
            journal.truncate_after(100)


def write_until_full(path: Path, room: int) -> tuple[str, int]:
    limit_file_size(room)
    journal, step = RunJournal(path), 0
    try:
        while True:
            journal.write("step", step, text="x" * 100)
            step += 1
    except FileError as error:
        code = error.code
    return code, step


def write_once(path: Path) -> None:
    RunJournal(path).write("step", 1)


def hold(run: RunFolder, ready: Path) -> None:
    with run.lock():
        ready.touch()
        signal.pause()


def hold_with_worker(run: RunFolder, ready: Path) -> None:
    with run.lock():
        if os.fork() == 0:
            ready.write_text(str(os.getpid()))
            signal.pause()
        signal.pause()


def leftovers_left(run: RunFolder) -> list[tuple[str, str]]:
    """What is found of leftovers that cannot be removed."""
    return [(item.code, Path(item.where).name) for item in remove_leftover_folders(run)]


def take(run: RunFolder) -> str:
    with run.lock():
        return "taken"


def take_on_a_full_disk(run: RunFolder) -> str:
    limit_file_size(0)
    return take(run)


def save_with_files_limited(run: RunFolder, step: int, num_bytes: int) -> str:
    limit_file_size(num_bytes)
    return _save(run, step, None, 2)


def save_in_a_row(run: RunFolder, steps: list[int], seed: int) -> str:
    for step in steps:
        save_step(run, state(step, seed), keep_last=3, keep=[4])
    return "saved"


def set_all_aside(run: RunFolder) -> str:
    return str(move_later_steps_aside(run, 0))
