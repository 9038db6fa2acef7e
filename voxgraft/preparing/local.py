"""The local engine: processes on this machine, each with one thread. One that dies is replaced, its batch tried again.

Processes are started anew, never forked: a fork of a process that has computed with torch may hang. No pool of
`concurrent.futures`, as importing has: that breaks as a whole when one of its processes dies, with all that it did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

import voxgraft
from voxgraft.errors import finding
from voxgraft.preparing.stage import EncodeJob, EncodeResult, EncodeWorker, EncodeWorkerConfig

__all__ = ["encode_locally"]

MAX_TRIES = 2
STDERR_TAIL_BYTES = 2000


def encode_locally(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int) -> Iterator[EncodeResult]:
    """Outcomes as they come. With one worker the batches are encoded in this very process."""
    if workers == 1:
        yield from _encode_in_process(settings, jobs)
        return
    pool = _WorkerPool(settings)
    executor = ThreadPoolExecutor(min(workers, len(jobs)) or 1)
    try:
        for done in as_completed([executor.submit(pool.run, job) for job in jobs]):
            yield done.result()
    finally:
        pool.close()
        executor.shutdown(cancel_futures=True)
        pool.close()  # a thread may have started one more process before it heard of the end


def _encode_in_process(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob]) -> Iterator[EncodeResult]:
    import torch

    threads = torch.get_num_threads()
    stage = EncodeWorker(settings)
    try:
        for job in jobs:
            yield stage.run(job)
    finally:
        torch.set_num_threads(threads)


class _WorkerPool:
    """A process for each thread that asks, which hands it a batch and waits for the outcome."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self._settings = settings
        self._own = threading.local()
        self._processes: list[_WorkerProcess] = []
        self._closing = False

    def run(self, job: EncodeJob) -> EncodeResult:
        last = ""
        for _ in range(MAX_TRIES):
            if (outcome := self._process().ask(job)) is not None or self._closing:
                return outcome or EncodeResult(job.name)
            last = self._drop_worker()
        return _worker_died_result(job, last)

    def close(self) -> None:
        """What was in work is lost; what is written is whole."""
        self._closing = True
        for process in list(self._processes):
            process.kill()

    def _process(self) -> _WorkerProcess:
        if getattr(self._own, "process", None) is None:
            self._own.process = _WorkerProcess(self._settings)
            self._processes.append(self._own.process)
        process = self._own.process
        assert isinstance(process, _WorkerProcess)
        return process

    def _drop_worker(self) -> str:
        process, self._own.process = self._process(), None
        self._processes.remove(process)
        return process.kill()


class _WorkerProcess:
    """One worker process."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the process)
        root = str(Path(voxgraft.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "voxgraft.preparing.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the program that started it, which then ends it
        )
        self._write(settings.to_json())

    def ask(self, job: EncodeJob) -> EncodeResult | None:
        """The outcome of a batch; None where the process has died."""
        assert self._process.stdout is not None
        if not self._write(job.to_json()):
            return None
        line = self._process.stdout.readline()
        return EncodeResult.from_json(line) if line.endswith("\n") else None

    def kill(self) -> str:
        """End it, if it has not ended yet; how it ended, and what it said last."""
        if self._errors.closed:
            return ""
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self._errors.close()
        return f"it ended with {code}" + (f": {said[-1]}" if said else "")

    def _write(self, line: str) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True


def _worker_died_result(job: EncodeJob, last: str) -> EncodeResult:
    found = f"the process that encoded it died {MAX_TRIES} times; {last}"
    return EncodeResult(job.name, {key: finding("prepare-worker", found, where=path) for key, path in job.clips})
