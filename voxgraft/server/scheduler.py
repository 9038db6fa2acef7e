"""The work of the server: requests become sentences, which share a decode batch; their sound goes back in order.

Three threads: one plans texts, one owns the models and decodes, one runs the vocoder. An HTTP request has a `SpeechJob`
and reads its waveforms from an asyncio queue. Nothing of a request is kept once its job has ended.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.config.commands import SpeakSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.nn.layers import CAPTURE_LOCK
from voxgraft.synthesis.api import TTS
from voxgraft.synthesis.batching import DecodeBatch, DecodeRow
from voxgraft.synthesis.command import SpokenChunk, SpokenUtterance, build_request, plan_utterance, render_pieces
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.synthesis.inputs import ReferenceVoice, UtteranceRequest, VoiceLoader

Wave = NDArray[np.float32]
# A later sentence of a text is needed later: it counts as if it had come so many seconds after the one before it.
SENTENCE_SECONDS = 1.0
MAX_VOCODER_BATCH = 16
SECONDS_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class QueueFullError(Exception):
    """More requests wait than the server takes; `retry_seconds` is an estimate of when one may fit."""

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(f"retry in {retry_seconds} s")
        self.retry_seconds = retry_seconds


class ServerMetrics:
    """Counters and histograms, as Prometheus reads them. All of it is written under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._seconds: dict[str, dict[float, float]] = {}  # by upper edge the values up to it; -1 is their sum

    def add(self, name: str, value: float = 1, **labels: object) -> None:
        """Raise a counter."""
        text = ",".join(f'{key}="{label}"' for key, label in labels.items())
        key = f"{name}{{{text}}}" if text else name
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + value

    def observe(self, name: str, seconds: float) -> None:
        """One more value of a histogram."""
        with self._lock:
            found = self._seconds.setdefault(name, dict.fromkeys((*SECONDS_BUCKETS, math.inf, -1.0), 0.0))
            for edge in SECONDS_BUCKETS:
                found[edge] += seconds <= edge
            found[math.inf] += 1
            found[-1.0] += seconds

    def format(self, gauges: Mapping[str, float]) -> str:
        """The page of `/metrics`."""
        with self._lock:
            lines = []
            for kind in sorted({name.partition("{")[0] for name in self._counts}):
                own = sorted(name for name in self._counts if name.partition("{")[0] == kind)
                lines += [
                    f"# TYPE voxgraft_{kind} counter",
                    *(f"voxgraft_{name} {self._counts[name]:g}" for name in own),
                ]
            for name, found in sorted(self._seconds.items()):
                lines.append(f"# TYPE voxgraft_{name} histogram")
                for edge in (*SECONDS_BUCKETS, math.inf):
                    label = "+Inf" if edge == math.inf else f"{edge:g}"
                    lines.append(f'voxgraft_{name}_bucket{{le="{label}"}} {found[edge]:g}')
                lines += [f"voxgraft_{name}_sum {found[-1.0]:g}", f"voxgraft_{name}_count {found[math.inf]:g}"]
        for name, value in gauges.items():
            lines += [f"# TYPE voxgraft_{name} gauge", f"voxgraft_{name} {value:g}"]
        return "\n".join(lines) + "\n"


@dataclass(eq=False)
class SpeechJob:
    """One request: its sentences, and where its waveforms go, in their order. None ends them, an exception too."""

    utterance: UtteranceRequest
    settings: SpeakSettings
    loop: asyncio.AbstractEventLoop
    waves: asyncio.Queue[Wave | Exception | None] = field(default_factory=asyncio.Queue)
    started: float = field(default_factory=time.monotonic)
    plan: SpokenUtterance | None = None
    condition: Any = None
    cancelled: bool = False
    num_codes: int = 0
    _ready: dict[int, Wave] = field(default_factory=dict)
    _num_sent: int = 0

    def deliver(self, index: int, wave: Wave) -> None:
        """A sentence is ready. It is sent as soon as all before it are."""
        assert self.plan is not None
        self._ready[index] = wave
        while self._num_sent in self._ready:
            self._put(self._ready.pop(self._num_sent))
            self._num_sent += 1
        if self._num_sent == len(self.plan.pieces):
            self._put(None)

    def fail(self, error: Exception) -> None:
        """End it with an error; what is still in work for it is dropped."""
        self.cancelled = True
        self._put(error)

    def _put(self, value: Wave | Exception | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.waves.put_nowait, value)
        except RuntimeError:  # the server has stopped, and its loop is closed
            self.cancelled = True


class Scheduler:
    """Decodes the sentences of all requests together. `start` it, `submit` jobs, `stop` it."""

    def __init__(self, tts: TTS, voices: Mapping[str, ReferenceVoice], *, batch: int, max_jobs: int) -> None:
        self.tts, self.voices, self.metrics = tts, dict(voices), ServerMetrics()
        self._batch_size, self._max_jobs = batch, max_jobs
        self._batches: dict[int, DecodeBatch] = {}
        self._build_batches()
        self._planner = ThreadPoolExecutor(1, "planner")
        self._wake = threading.Condition()
        self._waiting: list[tuple[float, int, SpeechJob, int]] = []
        self._numbers = count()
        self._jobs: set[SpeechJob] = set()
        self._rows: dict[DecodeRow, tuple[SpeechJob, int]] = {}
        self._spoken: queue.SimpleQueue[tuple[SpeechJob, int, SpokenChunk] | None] = queue.SimpleQueue()
        self._closing = False
        self._job_seconds = 1.0  # a moving average, for Retry-After
        self._threads = [
            threading.Thread(target=self._decode, name="decoder", daemon=True),
            threading.Thread(target=self._vocode, name="vocoder", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Drop what is not finished, and wait for the threads."""
        with self._wake:
            self._closing = True
            for job in self._jobs:
                job.cancelled = True
            self._wake.notify()
        self._planner.shutdown(cancel_futures=True)
        for thread in self._threads:
            thread.join(timeout=30)

    @property
    def is_alive(self) -> bool:
        """Whether the threads run that every request needs."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def gauges(self) -> dict[str, float]:
        """What is being decoded now."""
        return {
            "requests_in_progress": len(self._jobs),
            "sentences_waiting": len(self._waiting),
            "sentences_decoding": len(self._rows),
        }

    async def submit(self, utterance: UtteranceRequest, settings: SpeakSettings) -> SpeechJob:
        """Plan a request and put its sentences into the queue. Raises `QueueFullError`, or what planning finds."""
        if len(self._jobs) >= self._max_jobs:
            raise QueueFullError(max(1, round(self._job_seconds * len(self._jobs) / self._batch_size)))
        loop = asyncio.get_running_loop()
        job = SpeechJob(utterance, settings, loop)
        self._jobs.add(job)
        try:
            await loop.run_in_executor(self._planner, self._plan, job)
        except BaseException:
            self.release(job)
            raise
        assert job.plan is not None
        now = time.monotonic()
        with self._wake:
            for index in range(len(job.plan.pieces)):
                heapq.heappush(self._waiting, (now + index * SENTENCE_SECONDS, next(self._numbers), job, index))
            self._wake.notify()
        return job

    def release(self, job: SpeechJob) -> None:
        """The response has ended, or the client is gone: what is not spoken yet is dropped."""
        job.cancelled = True
        if job in self._jobs:
            self._jobs.discard(job)
            self._job_seconds += 0.1 * (time.monotonic() - job.started - self._job_seconds)

    def _plan(self, job: SpeechJob) -> None:
        if job.cancelled:
            return
        models, vocoder = self.tts.models, self.tts.vocoder
        with CAPTURE_LOCK.work():  # a voice's recording is encoded on the device
            voices = VoiceLoader(models, job.settings, {None: self.voices[job.utterance.voice or ""]}, vocoder)
            plan = plan_utterance(models, voices, replace(job.utterance, voice=None), job.settings, vocoder)
            job.condition, job.plan = voices.condition(plan.voice), plan

    def _build_batches(self) -> None:
        """One batch for all models with the same backbone, for those that have none."""
        groups: dict[int, list[SpeakingModel]] = {}
        for system in self.tts.models.all:
            if id(system) not in self._batches:
                groups.setdefault(next(system.model.body.parameters()).data_ptr(), []).append(system)
        family, latents = self.tts.models.context.family, self.tts.vocoder.needs_latents
        sampling = replace(family.upstream_sampling(), readable=True)
        for group in groups.values():
            batch = DecodeBatch(group, sampling, code_hz=family.code_hz, latents=latents)
            self._batches |= {id(system): batch for system in group}

    def _decode(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._rows and not self._closing:
                    self._wake.wait()
                if self._closing:
                    self._spoken.put(None)
                    return
            try:
                with CAPTURE_LOCK.work():
                    self._advance()
            except Exception as error:  # a bug outside of a batch: all requests fail, and the thread remains
                self.report(error)
                with self._wake:
                    self._waiting.clear()
                self._rows.clear()
                self._batches.clear()
                for job in [job for job in tuple(self._jobs) if job.plan is not None]:  # others come later
                    job.fail(error)

    def _advance(self) -> None:
        """Cancelled rows leave, waiting sentences join, and every batch decodes a few codes."""
        chosen: list[tuple[SpeechJob, int]] = []
        with self._wake:
            while self._waiting and len(self._rows) + len(chosen) < self._batch_size:
                _, _, job, index = heapq.heappop(self._waiting)
                if not job.cancelled:
                    chosen.append((job, index))
        for row, (job, _) in list(self._rows.items()):
            if job.cancelled:
                self._batches[id(row.system)].remove(row)
                del self._rows[row]
        groups: dict[tuple[int, bool], list[tuple[SpeechJob, int]]] = {}
        for job, index in chosen:
            assert job.plan is not None
            key = (id(job.plan.system), job.plan.system.is_open(job.plan.pieces[index].language))
            groups.setdefault(key, []).append((job, index))
        for group in groups.values():
            self._join(group)
        for batch in dict.fromkeys(self._batches.values()):
            try:
                finished = batch.advance()
            except Exception as error:  # a bug, or no memory: the requests of this batch fail, others do not
                self.report(error)
                for row in [row for row in self._rows if self._batches[id(row.system)] is batch]:
                    self._rows.pop(row)[0].fail(error)
                # The next sentence builds it again, when this one's memory is free.
                self._batches = {key: own for key, own in self._batches.items() if own is not batch}
                continue
            for row in finished:
                job, index = self._rows.pop(row)
                assert job.plan is not None
                assert row.result is not None
                job.num_codes += len(row.result.codes)
                own = row.result
                piece = replace(job.plan.pieces[index], codes=own.codes, stop=own.stop, latents=own.latents)
                self._spoken.put((job, index, piece))

    def _join(self, group: Sequence[tuple[SpeechJob, int]]) -> None:
        """Sentences of one model, with its gate open for all or closed for all."""
        job = group[0][0]
        assert job.plan is not None
        system = job.plan.system
        try:
            if id(system) not in self._batches:
                self._build_batches()
            batch = self._batches[id(system)]
            if len(group) == 1 or batch.joins_together:
                requests = [
                    build_request(job.plan.pieces[index], job.condition) for job, index in group if job.plan is not None
                ]
                self._rows |= dict(zip(batch.join_all(requests, system), group, strict=True))
                return
        except Exception as error:
            if len(group) == 1:
                if not isinstance(error, VoxgraftError):
                    self.report(error)
                job.fail(error)
                return
        for one in group:  # a bad sentence must not end the requests of others
            self._join([one])

    def _vocode(self) -> None:
        with _own_stream(self.tts.models.context.device):
            self._render_spoken()

    def _render_spoken(self) -> None:
        waiting: list[tuple[SpeechJob, int, SpokenChunk]] = []
        is_closing = False
        while waiting or not is_closing:
            # Waits only if there is nothing to do.
            while not is_closing and len(waiting) < MAX_VOCODER_BATCH:
                try:
                    spoken = self._spoken.get(block=not waiting)
                except queue.Empty:
                    break
                if spoken is None:
                    is_closing = True
                else:
                    waiting.append(spoken)
            waiting = [one for one in waiting if not one[0].cancelled]
            # Powers of two: vocoders on CUDA are captured for each size of a batch.
            size = 1 << max(0, len(waiting).bit_length() - 1)
            groups, waiting = [waiting[:size]], waiting[size:]
            while groups:
                work = [one for one in groups.pop() if not one[0].cancelled]
                try:
                    with CAPTURE_LOCK.work():
                        self._render(work)
                except Exception as error:
                    self.report(error)
                    if len(work) == 1:
                        work[0][0].fail(error)
                    else:  # one by one: a bad sentence must not end the requests of others
                        groups += [[one] for one in work]

    def _render(self, work: Sequence[tuple[SpeechJob, int, SpokenChunk]]) -> None:
        rate = self.tts.sample_rate
        utterances = [replace(job.plan, pieces=(piece,)) for job, _, piece in work if job.plan is not None]
        for (job, index, piece), (wave,) in zip(
            work, render_pieces(utterances, self.tts.vocoder, MAX_VOCODER_BATCH), strict=True
        ):
            silence = np.zeros(round(piece.pause_seconds * rate), np.float32)
            job.deliver(index, np.concatenate([wave, silence]))
            self.metrics.add("audio_seconds_total", (len(wave) + len(silence)) / rate)

    def report(self, error: Exception) -> None:
        """On standard error, without the exception's text: that may contain what a user wanted to have spoken."""
        self.metrics.add("internal_errors_total")
        frames = "".join(traceback.format_tb(error.__traceback__))
        with suppress(OSError, ValueError):  # a closed standard error must not end a thread
            print(f"internal error: {type(error).__name__}\n{frames}", file=sys.stderr, flush=True)


def _own_stream(device: str) -> AbstractContextManager[Any]:
    """On CUDA a stream of its own: sound is made while codes are drawn, and neither waits for the other."""
    if not device.startswith("cuda"):
        return nullcontext()
    import torch

    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
