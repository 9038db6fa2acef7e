"""Encode batches of audio files into codes and voices, on this machine or on a Ray cluster.

The same batch gives the same bytes wherever it is encoded: every worker computes with one thread. A batch is written to
its own file at once, so that a `prepare` that is killed loses at most the batches in progress. `python -m` this module
is one local worker process. Knows no manifest.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import voxgraft
from voxgraft.core.errors import ConfigError, Finding, VoxgraftError, finding
from voxgraft.core.files import atomic_write, convert_system_error, is_folder
from voxgraft.dataset.shards import AnyArray

if TYPE_CHECKING:
    from voxgraft.audio.features import Waveform
    from voxgraft.models.base import Clip, ClipEncoder


# A batch file is a safetensors file: tensors `<place>.codes` and `<place>.voice.<name>` for each clip. Its metadata
# holds two JSON values: `clips` (key, seconds and number of codes of each place) and `failed` (findings by key).
BATCH_SUFFIX = ".safetensors"
CLIPS_METADATA_KEY, FAILED_METADATA_KEY = "clips", "failed"
CODES_TENSOR, VOICE_TENSOR_PREFIX = "codes", "voice."
MAX_OPEN_BATCHES = 64
# How often a batch is given to a worker process before its clips count as failed.
MAX_TRIES = 2
STDERR_TAIL_BYTES = 2000
# A worker needs the bytes of its files once as weights, and once more while it opens them.
MEMORY_FACTOR = 2
RAY_ADDRESS_VARIABLE = "RAY_ADDRESS"


class BatchStore:
    """All batch files of a folder, found by the keys of their clips. A damaged file counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int, float, int]] = {}
        """File, place in it, seconds and number of codes, by key."""
        self.failed: dict[str, Finding] = {}
        """What is wrong with clips that have no codes, by key."""
        for path in sorted(folder.glob(f"*{BATCH_SUFFIX}")) if is_folder(folder) else ():
            self.add(path.stem)
        self._arrays = lru_cache(MAX_OPEN_BATCHES)(_read_batch_arrays)

    def add(self, name: str) -> None:
        """Index a batch file. Only its header is read."""
        path = self.folder / f"{name}{BATCH_SUFFIX}"
        try:
            with safe_open(str(path), framework="numpy") as file:
                notes = file.metadata() or {}
                clips = [
                    (str(key), float(seconds), int(codes))
                    for key, seconds, codes in json.loads(notes[CLIPS_METADATA_KEY])
                ]
                failed = {key: Finding(**item) for key, item in json.loads(notes[FAILED_METADATA_KEY]).items()}
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            return
        for index, (key, seconds, num_codes) in enumerate(clips):
            self.places[key] = (path, index, seconds, num_codes)
        self.failed |= failed

    def read(self, key: str) -> tuple[float, AnyArray, Mapping[str, AnyArray]]:
        """Seconds, codes and voice of a clip that is in `places`."""
        path, index, seconds, _ = self.places[key]
        arrays, start = self._arrays(path), f"{index}.{VOICE_TENSOR_PREFIX}"
        voice = {name.removeprefix(start): arrays[name] for name in sorted(arrays) if name.startswith(start)}
        return seconds, arrays[f"{index}.{CODES_TENSOR}"], voice


def _read_batch_arrays(path: Path) -> dict[str, AnyArray]:
    with safe_open(str(path), framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)


@dataclass(frozen=True, slots=True)
class EncodeWorkerConfig:
    """What a worker must know before the first batch. Sent to it as JSON."""

    family: str
    base: str
    device: str
    folder: str
    """Folder of the batch files. Every worker must see it, and the audio files."""


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """One batch: clips that go through the encoder together, as (key, path of the audio)."""

    name: str
    clips: Sequence[tuple[str, str]]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """What became of a batch."""

    name: str
    gone: Mapping[str, Finding] = field(default_factory=dict)
    """Clips, by key, of a batch that no worker could finish; nothing was written."""
    refused: Finding | None = None
    """Why no batch at all can be encoded, such as a file that the base lacks."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> EncodeResult:
        values = json.loads(text)
        lost = {key: Finding(**item) for key, item in values["gone"].items()}
        return cls(values["name"], lost, Finding(**values["refused"]) if values["refused"] else None)


class EncodeWorker:
    """A front end that encodes one batch after the other. Opened with the first."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self.settings = settings
        self._encoder: ClipEncoder | None = None

    def run(self, job: EncodeJob) -> EncodeResult:
        """Encode a batch into its file. Clips that cannot be encoded are recorded there as failed."""
        import torch

        from voxgraft.audio.files import MAX_CLIP_SECONDS, read_audio
        from voxgraft.models import get_family
        from voxgraft.models.speech_model import load_model

        waves: dict[str, Waveform] = {}
        failed: dict[str, Finding] = {}
        try:
            if self._encoder is None:
                torch.set_num_threads(1)  # sums in another order would give other bytes
                kind = get_family(self.settings.family)
                files = kind.files(Path(self.settings.base))
                self._encoder = kind.encoder(files, load_model(kind, files, device=self.settings.device))
            encoder = self._encoder
            for key, path in job.clips:
                try:
                    waves[key], _ = read_audio(Path(path), encoder.sample_rate, max_seconds=MAX_CLIP_SECONDS)
                except VoxgraftError as error:
                    failed[key] = error.finding
            encoded, refused = _encode_clips(encoder, waves)
            paths = dict(job.clips)
            failed |= {key: replace(item, where=paths[key]) for key, item in refused.items()}
            arrays: dict[str, AnyArray] = {}
            for index, clip in enumerate(encoded.values()):
                arrays[f"{index}.{CODES_TENSOR}"] = np.ascontiguousarray(clip.codes, dtype=np.int32)
                for name, array in sorted(clip.voice.items()):
                    arrays[f"{index}.{VOICE_TENSOR_PREFIX}{name}"] = np.ascontiguousarray(array)
            seconds = {key: len(waves[key]) / encoder.sample_rate for key in encoded}
            notes = {
                CLIPS_METADATA_KEY: json.dumps([(key, seconds[key], len(clip.codes)) for key, clip in encoded.items()]),
                FAILED_METADATA_KEY: json.dumps(
                    {key: asdict(item) for key, item in failed.items()}, ensure_ascii=False
                ),
            }
            # Two workers may write the same batch; both write the same bytes.
            with atomic_write(Path(self.settings.folder) / f"{job.name}{BATCH_SUFFIX}", overwrite=True) as stream:
                stream.write(save(arrays, notes))
        except torch.OutOfMemoryError:
            device = self.settings.device
            found = f"{len(job.clips)} clips of {job.seconds:.0f} s need more memory than the encoder has on {device}"
            cure = "run the same command again with a smaller --batch-seconds."
            return EncodeResult(job.name, refused=finding("memory-too-small", found, cure=cure))
        except VoxgraftError as error:  # a file that the base lacks, a full disk: no other batch would fare better
            return EncodeResult(job.name, refused=error.finding)
        except (OSError, MemoryError) as error:
            if (system := convert_system_error(error)) is None:
                raise
            return EncodeResult(job.name, refused=system.finding)
        return EncodeResult(job.name)


def _encode_clips(encoder: ClipEncoder, waves: Mapping[str, Waveform]) -> tuple[dict[str, Clip], dict[str, Finding]]:
    """Encode all clips together; if some are refused, the others together without them."""
    failed: dict[str, Finding] = {}
    while waves:
        try:
            return dict(zip(waves, encoder.encode(list(waves.values())), strict=True)), failed
        except VoxgraftError:
            found: dict[str, Finding] = {}
            for key, wave in waves.items():
                try:
                    encoder.encode([wave])
                except VoxgraftError as error:
                    found[key] = error.finding
            if not found:  # each alone can be encoded, so the clips are not at fault
                raise
            failed |= found
            waves = {key: wave for key, wave in waves.items() if key not in found}
    return {}, failed


def default_worker_count(device: str, file_bytes: int) -> int:
    """One worker for each core as far as memory allows; on CUDA one, which fills the device on its own."""
    if device.startswith("cuda"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):  # other systems only state the total
        available = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(1, min(cores, available // max(1, MEMORY_FACTOR * file_bytes)))


def encode_locally(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int) -> Iterator[EncodeResult]:
    """Results in the order in which batches finish. With one worker the batches are encoded in this process."""
    if workers == 1:
        import torch

        threads = torch.get_num_threads()
        stage = EncodeWorker(settings)
        try:
            yield from map(stage.run, jobs)
        finally:
            torch.set_num_threads(threads)
        return
    # Not a pool of `concurrent.futures`: that breaks as a whole, with all unfinished work, when one process dies.
    pool = _WorkerPool(settings)
    executor = ThreadPoolExecutor(min(workers, len(jobs)) or 1)
    try:
        for done in as_completed([executor.submit(pool.run, job) for job in jobs]):
            yield done.result()
    finally:
        pool.close()
        executor.shutdown(cancel_futures=True)
        pool.close()  # a thread may have started one more process before it saw that the pool closes


class _WorkerPool:
    """One worker process for each thread that calls `run`. A process that dies is replaced."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self._settings = settings
        self._own = threading.local()
        self._processes: list[_WorkerProcess] = []
        self._closing = False

    def run(self, job: EncodeJob) -> EncodeResult:
        last = ""
        for _ in range(MAX_TRIES):
            process: _WorkerProcess | None = getattr(self._own, "process", None)
            if process is None:
                process = self._own.process = _WorkerProcess(self._settings)
                self._processes.append(process)
            if (outcome := process.ask(job)) is not None or self._closing:
                return outcome or EncodeResult(job.name)
            self._own.process = None
            self._processes.remove(process)
            last = process.kill()
        found = f"the process that encoded this clip died {MAX_TRIES} times; {last}"
        return EncodeResult(job.name, {key: finding("prepare-worker", found, where=path) for key, path in job.clips})

    def close(self) -> None:
        """Kill all processes. Batches in progress are lost; batch files are complete or absent."""
        self._closing = True
        for process in list(self._processes):
            process.kill()


class _WorkerProcess:
    """One process that runs `main`: the config, then one job per line on stdin; one result per line on stdout."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the process)
        root = str(Path(voxgraft.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # A new interpreter, not a fork: a fork of a process that has computed with torch may hang.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "voxgraft.preprocess.encode"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the program that started it, which then ends it
        )
        self._write(settings)

    def ask(self, job: EncodeJob) -> EncodeResult | None:
        """The result of a batch; None if the process has died."""
        assert self._process.stdout is not None
        if not self._write(job):
            return None
        line = self._process.stdout.readline()
        return EncodeResult.from_json(line) if line.endswith("\n") else None

    def kill(self) -> str:
        """End the process if it still runs; returns how it ended and the last line of its stderr."""
        if self._errors.closed:
            return ""
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        error_lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        self._errors.close()
        return f"exit code {code}" + (f": {error_lines[-1]}" if error_lines else "")

    def _write(self, values: EncodeWorkerConfig | EncodeJob) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(values)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True


def encode_on_ray(settings: EncodeWorkerConfig, jobs: Sequence[EncodeJob], workers: int) -> Iterator[EncodeResult]:
    """Results in the order in which batches finish. Ray replaces a worker that dies and runs its batch again."""
    try:
        ray: Any = import_module("ray")
        data: Any = import_module("ray.data")
    except ImportError as error:
        found = f"--engine ray needs the package {error.name}"
        raise ConfigError("package-missing", found, cure="pip install 'voxgraft[ray]'.") from None
    # Ray sends usage statistics unless this is 0, and logs a lot.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    own = not ray.is_initialized()
    if own:
        here = {} if os.environ.get(RAY_ADDRESS_VARIABLE) else {"num_cpus": workers, "include_dashboard": False}
        ray.init(logging_level="error", log_to_driver=False, **here)
    try:
        data.DataContext.get_current().enable_progress_bars = False
        rows = data.from_items([{"job": json.dumps(asdict(job))} for job in jobs], override_num_blocks=len(jobs))
        done = rows.map_batches(
            RayEncodeWorker,
            fn_constructor_args=(json.dumps(asdict(settings)),),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(workers, len(jobs))),
            **({"num_gpus": 1} if settings.device.startswith("cuda") else {"num_cpus": 1}),
        )
        for row in done.iter_rows():
            yield EncodeResult.from_json(row["outcome"])
    finally:
        if own:
            ray.shutdown()


class RayEncodeWorker:
    """The worker as Ray Data calls it."""

    def __init__(self, settings: str) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self._stage = EncodeWorker(EncodeWorkerConfig(**json.loads(settings)))

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        return {"outcome": [self._stage.run(EncodeJob(**json.loads(str(job)))).to_json() for job in rows["job"]]}


def main() -> None:
    """One local worker: encode batches until stdin ends."""
    # Results go to a copy of stdout. What libraries print on stdout goes to stderr, so that it cannot come in between.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as outcomes:
        os.dup2(2, 1)
        stage = EncodeWorker(EncodeWorkerConfig(**json.loads(sys.stdin.readline())))
        for line in sys.stdin:
            outcomes.write(stage.run(EncodeJob(**json.loads(line))).to_json() + "\n")
            outcomes.flush()


if __name__ == "__main__":
    main()
