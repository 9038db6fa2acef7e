"""Sound out of any file that FFmpeg reads, as a stream of mono blocks at one rate, in step with the file's own clock.

A file is decoded once, from its beginning to its end, and never lies in memory as a whole. Cuts nothing.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft.errors import AudioError
from voxgraft.files import format_error_reason, require_file

__all__ = ["MEDIA_SUFFIXES", "MIN_SAMPLE_RATE", "AudioSamples", "MediaReader"]

AudioSamples = NDArray[np.float32]
AUDIO_SUFFIXES = (
    ".wav",
    ".flac",
    ".mp3",
    ".m4a",
    ".aac",
    ".ogg",
    ".oga",
    ".opus",
    ".wma",
    ".aif",
    ".aiff",
    ".mka",
    ".amr",
)
VIDEO_SUFFIXES = (".mp4", ".mkv", ".avi", ".mov", ".webm", ".ts", ".mpg", ".mpeg", ".m4v", ".flv", ".wmv", ".3gp")
MEDIA_SUFFIXES = (*AUDIO_SUFFIXES, *VIDEO_SUFFIXES)
BLOCK_SECONDS = 2.0
MIN_GAP_SECONDS = 0.06
"""Clocks of files waver by less; more is a gap or a jump."""
MAX_GAP_SECONDS = 3600.0
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 768_000
MAX_DECODE_ERRORS = 10_000
"""Broken packets after which a file is given up."""


class MediaReader:
    """One media file, open. `blocks` can be gone through once."""

    def __init__(self, path: Path, rate: int, data: bytes | None = None) -> None:
        self.path = require_file(path) if data is None else path
        self._source: Any = str(self.path) if data is None else io.BytesIO(data)
        self.rate = rate
        self.damaged: list[float] = []
        """Places, in seconds, of what could not be decoded."""

    def blocks(self) -> Iterator[AudioSamples]:
        """The whole sound in order, about two seconds at a time."""
        try:
            with contextlib.closing(av.open(self._source, metadata_errors="ignore")) as container:
                yield from self._blocks(container)
        except (av.FFmpegError, OSError, ValueError, OverflowError) as error:
            raise AudioError(
                "media-unreadable", f"{self.path.name}: {format_error_reason(error)}", where=self.path
            ) from None

    def _blocks(self, container: Any) -> Iterator[AudioSamples]:
        if not container.streams.audio:
            raise AudioError("media-unreadable", f"{self.path.name} holds no sound", where=self.path)
        stream = container.streams.audio[0]
        clock = _StreamClock(float(container.start_time or 0) / av.time_base)
        resampler: Any = None
        pending: list[AudioSamples] = []
        for frame in self._frames(container, stream, clock):
            if clock.rate == 0:
                clock.rate = self._require_sample_rate(frame.sample_rate)
                resampler = _StreamResampler(clock.rate, self.rate)
            if frame.sample_rate != clock.rate:
                found = f"the rate changes from {clock.rate:,} to {frame.sample_rate:,} Hz at {clock.seconds:.1f} s"
                raise AudioError("media-rate", found, where=self.path)
            pending += self._fill_gaps(clock, frame)
            if sum(map(len, pending)) >= BLOCK_SECONDS * clock.rate:
                yield resampler(np.concatenate(pending))
                pending = []
        if resampler is None:
            raise AudioError("media-unreadable", f"{self.path.name} holds no sound", where=self.path)
        yield resampler(np.concatenate([*pending, np.zeros(0, np.float32)]), last=True)

    def _frames(self, container: Any, stream: Any, clock: _StreamClock) -> Iterator[Any]:
        """Decoded frames; a packet that is broken is noted and stepped over."""
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                frames = packet.decode()
            except av.FFmpegError as error:
                self.damaged.append(clock.seconds)
                if len(self.damaged) > MAX_DECODE_ERRORS or isinstance(error, av.EOFError):
                    return
                continue
            yield from frames

    def _fill_gaps(self, clock: _StreamClock, frame: Any) -> list[AudioSamples]:
        """The frame's samples, with silence before them where the file has a gap."""
        samples = _to_mono(frame)
        at = None if frame.pts is None or frame.time_base is None else float(frame.pts * frame.time_base)
        gap = clock.gap(at)
        placed = [samples]
        if gap > MAX_GAP_SECONDS:
            found = f"a gap of {gap:,.0f} s at {clock.seconds:.1f} s"
            raise AudioError("media-time", found, where=self.path)
        if gap > MIN_GAP_SECONDS:
            placed = [np.zeros(round(gap * clock.rate), np.float32), samples]
        elif gap < -MIN_GAP_SECONDS:  # the clock went back: what follows is taken to go on from here
            clock.zero += gap
        clock.samples += sum(map(len, placed))
        return placed

    def _require_sample_rate(self, rate: int) -> int:
        if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
            found = f"{self.path.name} has {rate:,} samples a second"
            raise AudioError(
                "media-rate", found, expected=f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,}", where=self.path
            )
        return rate


class _StreamClock:
    """How much was given so far, against what the file says."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self.rate = 0
        self.samples = 0

    @property
    def seconds(self) -> float:
        return self.samples / self.rate if self.rate else 0.0

    def gap(self, at: float | None) -> float:
        """Seconds that are missing before a frame that says it stands at `at`."""
        return 0.0 if at is None else at - self.zero - self.seconds


class _StreamResampler:
    def __init__(self, rate: int, wanted: int) -> None:
        self._stream = None if rate == wanted else soxr.ResampleStream(rate, wanted, 1, dtype="float32", quality="HQ")

    def __call__(self, samples: AudioSamples, last: bool = False) -> AudioSamples:
        made: AudioSamples = samples if self._stream is None else self._stream.resample_chunk(samples, last=last)
        return made


def _to_mono(frame: Any) -> AudioSamples:
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        scaled = (values.astype(np.float32) - 128.0) / 128.0
    elif values.dtype.kind == "i":
        scaled = values.astype(np.float32) / float(-int(np.iinfo(values.dtype).min))
    else:
        scaled = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    mixed: AudioSamples = scaled[0] if len(scaled) == 1 else scaled.mean(axis=0, dtype=np.float32)
    return np.clip(mixed, -4.0, 4.0)
