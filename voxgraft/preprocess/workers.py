"""The local engine: processes on this machine, each with one thread. One that dies is replaced, its batch tried again.

Processes are started anew, never forked: a fork of a process that has computed with torch may hang. No pool of
`concurrent.futures`, as importing has: that breaks as a whole when one of its processes dies, with all that it did.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import voxgraft
from voxgraft.core.errors import ConfigError, finding
from voxgraft.preprocess.encode import EncodeJob, EncodeResult, EncodeWorker, EncodeWorkerConfig

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
            [sys.executable, "-m", "voxgraft.preprocess.encode"],
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


MEMORY_FACTOR = 2
"""A worker takes the bytes of its files once as weights, and once more while it opens them."""


def default_worker_count(device: str, file_bytes: int) -> int:
    """One for each core as far as memory goes; on CUDA one, which fills the device by itself."""
    if device.startswith("cuda"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _available_memory_bytes() // max(1, MEMORY_FACTOR * file_bytes)))


def _available_memory_bytes() -> int:
    """Memory that programs can have; on systems that do not say, all that there is."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


RAY_ADDRESS_VARIABLE = "RAY_ADDRESS"


def encode_on_ray(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int) -> Iterator[EncodeResult]:
    """Outcomes as they come. A worker that dies is replaced by Ray, and its batch given to another."""
    try:
        ray: Any = import_module("ray")
        data: Any = import_module("ray.data")
    except ImportError as error:
        found = f"--engine ray needs the package {error.name}"
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[ray]'.") from None
    # Ray reports its use to its makers unless told otherwise, and talks a lot.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    own = not ray.is_initialized()
    if own:
        here = {} if os.environ.get(RAY_ADDRESS_VARIABLE) else {"num_cpus": workers, "include_dashboard": False}
        ray.init(logging_level="error", log_to_driver=False, **here)
    try:
        yield from _iter_ray_results(data, settings, jobs, min(workers, len(jobs)))
    finally:
        if own:
            ray.shutdown()


def _iter_ray_results(
    data: Any, settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int
) -> Iterator[EncodeResult]:
    data.DataContext.get_current().enable_progress_bars = False
    rows = data.from_items([{"job": job.to_json()} for job in jobs], override_num_blocks=len(jobs))
    gpus = {"num_gpus": 1} if settings.device.startswith("cuda") else {"num_cpus": 1}
    done = rows.map_batches(
        RayEncodeWorker,
        fn_constructor_args=(settings.to_json(),),
        batch_size=1,
        compute=data.ActorPoolStrategy(size=workers),
        **gpus,
    )
    for row in done.iter_rows():
        yield EncodeResult.from_json(row["outcome"])


class RayEncodeWorker:
    """The stage as Ray Data calls it."""

    def __init__(self, settings: str) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self._stage = EncodeWorker(EncodeWorkerConfig.from_json(settings))

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        return {"outcome": [self._stage.run(EncodeJob.from_json(str(job))).to_json() for job in rows["job"]]}
