"""What one worker does, on whichever engine: open the front end once, then turn batches of sound files into codes.

The same batch gives the same bytes wherever it is encoded: every worker computes with one thread. Knows no manifest.
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


BATCH_SUFFIX = ".safetensors"
CLIPS_METADATA_KEY, FAILED_METADATA_KEY = "clips", "failed"
CODES_TENSOR, VOICE_TENSOR_PREFIX = "codes", "voice."
MAX_OPEN_BATCHES = 64


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """What is kept of a clip's sound."""

    key: str
    seconds: float
    """As long as the sound really is."""
    codes: AnyArray
    voice: Mapping[str, AnyArray]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What stands at the head of one file."""

    path: Path
    clips: tuple[tuple[str, float, int], ...]
    """Key, seconds and number of codes of each."""
    failed: Mapping[str, Finding] = field(default_factory=dict)
    """What is wrong with clips of the batch that have no codes, by key."""


def batch_path(folder: Path, name: str) -> Path:
    """The place of a batch."""
    return folder / f"{name}{BATCH_SUFFIX}"


def write_batch_file(path: Path, clips: Sequence[EncodedClip], failed: Mapping[str, Finding]) -> None:
    """Write a batch, whole or not at all. Who writes the same batch a second time writes the same bytes."""
    arrays: dict[str, AnyArray] = {}
    for place, clip in enumerate(clips):
        arrays[f"{place}.{CODES_TENSOR}"] = np.ascontiguousarray(clip.codes, dtype=np.int32)
        arrays |= {
            f"{place}.{VOICE_TENSOR_PREFIX}{name}": np.ascontiguousarray(array) for name, array in clip.voice.items()
        }
    notes = {
        CLIPS_METADATA_KEY: json.dumps([(clip.key, clip.seconds, len(clip.codes)) for clip in clips]),
        FAILED_METADATA_KEY: json.dumps({key: asdict(item) for key, item in failed.items()}, ensure_ascii=False),
    }
    with atomic_write(path, overwrite=True) as stream:
        stream.write(save(arrays, notes))


class BatchStore:
    """All batches of a folder, found by the keys of their clips. A damaged file counts as absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[Path, int, float, int]] = {}
        """File, place in it, seconds and number of codes, by key."""
        self.failed: dict[str, Finding] = {}
        for path in sorted(folder.glob(f"*{BATCH_SUFFIX}")) if is_folder(folder) else ():
            if (found := _read_batch_header(path)) is not None:
                self._index_batch(found)
        self._arrays = lru_cache(MAX_OPEN_BATCHES)(_read_batch_arrays)

    def add(self, name: str) -> None:
        """Take in a batch that was written since."""
        if (found := _read_batch_header(batch_path(self.folder, name))) is not None:
            self._index_batch(found)

    def _index_batch(self, file: BatchHeader) -> None:
        for place, (key, seconds, num_codes) in enumerate(file.clips):
            self.places[key] = (file.path, place, seconds, num_codes)
        self.failed |= file.failed

    def clip(self, key: str) -> EncodedClip:
        """A clip that is in `places`."""
        path, place, seconds, _ = self.places[key]
        arrays, start = self._arrays(path), f"{place}."
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        voice = {
            name.removeprefix(VOICE_TENSOR_PREFIX): array
            for name, array in own.items()
            if name.startswith(VOICE_TENSOR_PREFIX)
        }
        return EncodedClip(key, seconds, own[CODES_TENSOR], dict(sorted(voice.items())))


def _read_batch_header(path: Path) -> BatchHeader | None:
    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            clips = tuple(
                (str(key), float(seconds), int(codes)) for key, seconds, codes in json.loads(notes[CLIPS_METADATA_KEY])
            )
            failed = {key: Finding(**item) for key, item in json.loads(notes[FAILED_METADATA_KEY]).items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return BatchHeader(path, clips, failed)


def _read_batch_arrays(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="numpy") as file:
        return dict(_iter_tensors(file))


def _iter_tensors(file: Any) -> Iterator[tuple[str, AnyArray]]:
    for name in file.keys():  # noqa: SIM118 (it is no mapping)
        yield name, file.get_tensor(name)


@dataclass(frozen=True, slots=True)
class EncodeWorkerConfig:
    """What a worker must know before the first batch; goes to it as JSON."""

    family: str
    base: str
    device: str
    folder: str
    """Where batches are written; every worker must see it, and the sound files."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EncodeWorkerConfig:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """One batch: clips that go through the encoder together, by key, and where their sound is."""

    name: str
    clips: tuple[tuple[str, str], ...]
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EncodeJob:
        values = json.loads(text)
        return cls(values["name"], tuple((key, path) for key, path in values["clips"]), values["seconds"])


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """What became of a batch."""

    name: str
    gone: Mapping[str, Finding] = field(default_factory=dict)
    """Clips, by key, of a batch that nobody could bring to an end; nothing was written."""
    refused: Finding | None = None
    """Why no batch at all can be encoded, such as a file that the base lacks."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> EncodeResult:
        values = json.loads(text)
        gone = {key: Finding(**item) for key, item in values["gone"].items()}
        return cls(values["name"], gone, Finding(**values["refused"]) if values["refused"] else None)


class EncodeWorker:
    """A front end that encodes one batch after the other. Opened with the first."""

    def __init__(self, settings: EncodeWorkerConfig) -> None:
        self.settings = settings
        self._encoder: ClipEncoder | None = None

    def run(self, job: EncodeJob) -> EncodeResult:
        """Encode a batch into its file. Clips that cannot be encoded are noted there; the rest goes on without them."""
        import torch

        try:
            encoder = self._opened()
            waves, failed = _read_clips(job.clips, encoder.sample_rate)
            encoded, refused = _encode_clips(encoder, waves)
            clips = [
                EncodedClip(key, len(waves[key]) / encoder.sample_rate, clip.codes, dict(sorted(clip.voice.items())))
                for key, clip in encoded.items()
            ]
            paths = dict(job.clips)
            failed |= {key: replace(item, where=paths[key]) for key, item in refused.items()}
            write_batch_file(batch_path(Path(self.settings.folder), job.name), clips, failed)
        except torch.OutOfMemoryError:
            return EncodeResult(job.name, refused=_out_of_memory_finding(job, self.settings.device))
        except VoxgraftError as error:  # a file that the base lacks, a full disk: no other batch would fare better
            return EncodeResult(job.name, refused=error.finding)
        except (OSError, MemoryError) as error:
            if (system := convert_system_error(error)) is None:
                raise
            return EncodeResult(job.name, refused=system.finding)
        return EncodeResult(job.name)

    def _opened(self) -> ClipEncoder:
        if self._encoder is None:
            import torch

            from voxgraft.models import get_family
            from voxgraft.models.load import load_model

            torch.set_num_threads(1)
            kind = get_family(self.settings.family)
            files = kind.files(Path(self.settings.base))
            self._encoder = kind.encoder(files, load_model(kind, files, device=self.settings.device))
        return self._encoder


def _out_of_memory_finding(job: EncodeJob, device: str) -> Finding:
    found = f"{len(job.clips)} clips of {job.seconds:.0f} s do not go through the encoder at once on {device}"
    return finding("memory-too-small", found, cure="run the same command again with a smaller --batch-seconds.")


def _read_clips(clips: Sequence[tuple[str, str]], rate: int) -> tuple[dict[str, Any], dict[str, Finding]]:
    from voxgraft.audio.files import MAX_CLIP_SECONDS, read_audio

    waves: dict[str, Any] = {}
    failed: dict[str, Finding] = {}
    for key, path in clips:
        try:
            waves[key], _ = read_audio(Path(path), rate, max_seconds=MAX_CLIP_SECONDS)
        except VoxgraftError as error:
            failed[key] = error.finding
    return waves, failed


def _encode_clips(encoder: ClipEncoder, waves: Mapping[str, Waveform]) -> tuple[dict[str, Clip], dict[str, Finding]]:
    """All together; where one of them is refused, the others together without it."""
    failed: dict[str, Finding] = {}
    while waves:
        try:
            return dict(zip(waves, encoder.encode(list(waves.values())), strict=True)), failed
        except VoxgraftError:
            found = {
                key: item for key, wave in waves.items() if (item := _find_encode_fault(encoder, wave)) is not None
            }
            if not found:  # each by itself would do, so it is not the clips that are at fault
                raise
            failed |= found
            waves = {key: wave for key, wave in waves.items() if key not in found}
    return {}, failed


def _find_encode_fault(encoder: ClipEncoder, wave: Waveform) -> Finding | None:
    try:
        encoder.encode([wave])
    except VoxgraftError as error:
        return error.finding
    return None


def main() -> None:
    """Encode batches until there are no more."""
    # Whatever a library prints must not come between the outcomes.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as outcomes:
        os.dup2(2, 1)
        stage = EncodeWorker(EncodeWorkerConfig.from_json(sys.stdin.readline()))
        for line in sys.stdin:
            outcomes.write(stage.run(EncodeJob.from_json(line)).to_json() + "\n")
            outcomes.flush()


if __name__ == "__main__":
    main()


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
