"""Audio files: WAV in and out, any media file as a stream of blocks, and the clips of a dataset.

`read_wav` and `encode_wav` need no codec. `MediaReader` decodes films and podcasts through FFmpeg (PyAV), mono and
resampled. Clips are written atomically with a checksum, so that damage is noticed without decoding them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import wave
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxgraft.core.errors import AudioError, FileError, WriteError
from voxgraft.core.files import build_write_error, format_error_reason, require_file

AudioSamples = NDArray[np.float32]
MAX_WAV_BYTES = 1 << 30
INT16_PEAK = 32767
SAMPLE_WIDTHS = (1, 2, 3, 4)  # bytes


def encode_wav(samples: AudioSamples, rate: int) -> bytes:
    """Mono samples between -1 and 1 as a 16-bit WAV file; louder samples are clipped."""
    whole = np.round(np.clip(np.nan_to_num(samples), -1, 1) * INT16_PEAK).astype("<i2")
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return stream.getvalue()


def read_wav(path: Path) -> tuple[AudioSamples, int]:
    """Samples between -1 and 1, the mean of all channels, and the sample rate."""
    if require_file(path).stat().st_size > MAX_WAV_BYTES:
        raise FileError("file-too-large", f"{path.name} has over {MAX_WAV_BYTES:,} bytes", where=path)
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        expected = "a WAV file of whole numbers (PCM, 8 to 32 bits)"
        raise FileError("wav-form", f"{path.name}: {error}", expected=expected, where=path) from None
    except OSError as error:
        raise FileError("file-unreadable", f"{path.name}: {error.strerror}", where=path) from None
    if width not in SAMPLE_WIDTHS or rate < 1 or channels < 1:
        found = f"{path.name} has {8 * width} bits, {channels:,} channels and {rate:,} samples a second"
        expected = f"{', '.join(str(8 * one) for one in SAMPLE_WIDTHS)} bits, and at least one of the others"
        raise FileError("wav-form", found, expected=expected, where=path)
    usable = len(data) - len(data) % (width * channels)
    samples = _decode_pcm(data[:usable], width).reshape(-1, channels).mean(1)
    return samples.astype(np.float32), rate


def _decode_pcm(data: bytes, width: int) -> NDArray[np.float64]:
    if width == 1:  # 8-bit WAV is the only unsigned width
        return (np.frombuffer(data, dtype=np.uint8).astype(np.float64) - 128) / 128
    if width == 3:
        parts = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
        return whole.astype(np.float64) / 2**23
    floats: NDArray[np.float64] = np.frombuffer(data, dtype=f"<i{width}").astype(np.float64) / 2 ** (8 * width - 1)
    return floats


AUDIO_SUFFIXES = tuple(".wav .flac .mp3 .m4a .aac .ogg .oga .opus .wma .aif .aiff .mka .amr".split())
VIDEO_SUFFIXES = (".mp4", ".mkv", ".avi", ".mov", ".webm", ".ts", ".mpg", ".mpeg", ".m4v", ".flv", ".wmv", ".3gp")
MEDIA_SUFFIXES = (*AUDIO_SUFFIXES, *VIDEO_SUFFIXES)
BLOCK_SECONDS = 2.0
# Timestamps of files jitter by less; a larger difference is a gap or a jump.
MIN_GAP_SECONDS = 0.06
MAX_GAP_SECONDS = 3600.0
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 768_000
# After this many broken packets the rest of a file is not decoded.
MAX_DECODE_ERRORS = 10_000


class MediaReader:
    """An open media file. `blocks` can be iterated once."""

    def __init__(self, path: Path, rate: int, data: bytes | None = None) -> None:
        self.path = require_file(path) if data is None else path
        self._source: Any = str(self.path) if data is None else io.BytesIO(data)
        self.rate = rate
        self.damaged: list[float] = []
        """Times in seconds of packets that could not be decoded."""

    def blocks(self) -> Iterator[AudioSamples]:
        """All audio in order, mono at `rate`, about two seconds at a time."""
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
                clock.rate = frame.sample_rate
                if not MIN_SAMPLE_RATE <= clock.rate <= MAX_SAMPLE_RATE:
                    found = f"{self.path.name} has {clock.rate:,} samples a second"
                    expected = f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,}"
                    raise AudioError("media-rate", found, expected=expected, where=self.path)
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
        """Decoded frames; a broken packet is recorded and skipped."""
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
        """The frame's samples, with silence before them if the file has a gap: subtitles count its time."""
        samples = _to_mono(frame)
        at = None if frame.pts is None or frame.time_base is None else float(frame.pts * frame.time_base)
        gap = clock.gap(at)
        placed = [samples]
        if gap > MAX_GAP_SECONDS:
            found = f"a gap of {gap:,.0f} s at {clock.seconds:.1f} s"
            raise AudioError("media-time", found, where=self.path)
        if gap > MIN_GAP_SECONDS:
            placed = [np.zeros(round(gap * clock.rate), np.float32), samples]
        elif gap < -MIN_GAP_SECONDS:  # the clock jumped back: continue from here
            clock.zero += gap
        clock.samples += sum(map(len, placed))
        return placed


class _StreamClock:
    """Position in the decoded audio, compared with the timestamps of the file."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self.rate = 0
        self.samples = 0

    @property
    def seconds(self) -> float:
        return self.samples / self.rate if self.rate else 0.0

    def gap(self, at: float | None) -> float:
        """Seconds that are missing before a frame with the timestamp `at`."""
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


@dataclass(frozen=True, slots=True)
class ClipChecksum:
    """Size and CRC-32 of a file, to notice damage without decoding it."""

    num_bytes: int
    crc32: int

    @classmethod
    def of(cls, data: bytes) -> ClipChecksum:
        return cls(len(data), zlib.crc32(data))

    @classmethod
    def from_json(cls, value: object) -> ClipChecksum:
        numbers = value if isinstance(value, list) else []
        if len(numbers) != 2 or not all(type(number) is int for number in numbers):
            raise FileError("manifest-line", f"{value!r:.80} is no size and checksum")
        return cls(*numbers)

    def to_json(self) -> list[int]:
        return [self.num_bytes, self.crc32]


def write_clip_audio(path: Path, samples: AudioSamples, rate: int) -> ClipChecksum:
    """Write a clip to a temporary file, sync it, and rename it over an existing one."""
    values = np.clip(np.round(samples * INT16_PEAK), -INT16_PEAK, INT16_PEAK).astype(np.int16)
    # libsndfile does not report a failed write inside a Python stream. So it encodes into memory, where no write fails,
    # and we write the file ourselves.
    memory = io.BytesIO()
    soundfile.write(memory, values, rate, format=path.suffix[1:].upper(), subtype="PCM_16")
    data = memory.getvalue()
    if not np.array_equal(_decode_int16(io.BytesIO(data)), values):
        found, cure = f"{path.name} decodes to other samples than were encoded", "check this machine's memory."
        raise WriteError("disk-fault", found, where=path, cure=cure)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fdatasync(stream.fileno())
            if (size := os.fstat(stream.fileno()).st_size) != len(data):
                raise OSError(errno.EIO, f"{size:,} of {len(data):,} bytes were kept")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise build_write_error(error, path) from None
    return ClipChecksum.of(data)


def is_clip_intact(path: Path, num_samples: int, expected: ClipChecksum | None) -> bool:
    """Whether a clip's file holds what was written. Without a checksum (older datasets) it is decoded."""
    try:
        if expected is None:
            return len(_decode_int16(path)) == num_samples
        return path.stat().st_size == expected.num_bytes and ClipChecksum.of(path.read_bytes()) == expected
    except soundfile.SoundFileError:
        return False
    except OSError as error:
        # A missing file or one on a bad sector can be written again; missing permissions are for the user to fix.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            return False
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None


def _decode_int16(source: Path | io.BytesIO) -> Any:
    """Samples as 16-bit numbers."""
    if isinstance(source, Path):
        source = io.BytesIO(source.read_bytes())  # errors of the operating system say more than those of libsndfile
    return soundfile.read(source, dtype="int16")[0]


def read_clip_audio(path: Path) -> tuple[AudioSamples, int]:
    """A clip that `write_clip_audio` wrote, and its rate."""
    require_file(path)
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("media-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None
    if rate < MIN_SAMPLE_RATE:
        found = f"{path.name} has {rate:,} samples a second"
        raise AudioError("media-rate", found, expected=f"at least {MIN_SAMPLE_RATE:,}", where=path)
    mono: AudioSamples = samples.mean(axis=1, dtype=np.float32)
    return mono, int(rate)


# A clip is a sentence; films are cut by `data import` first.
MAX_CLIP_SECONDS = 600


def read_resampled_audio(path: Path, rate: int) -> NDArray[np.float32]:
    """The samples of a WAV or FLAC file (or any other that libsndfile reads); several channels as their mean."""
    try:
        with soundfile.SoundFile(require_file(path)) as file:
            if file.frames > MAX_CLIP_SECONDS * file.samplerate:
                found = f"{path.name} has {file.frames / file.samplerate:,.0f} s"
                raise AudioError("audio-too-long", found, expected=f"at most {MAX_CLIP_SECONDS} s", where=path)
            samples = file.read(dtype="float32", always_2d=True).mean(axis=1, dtype=np.float32)
            found_rate = file.samplerate
    except soundfile.SoundFileError as error:
        reason = str(error).splitlines()[0]
        raise AudioError("sound-broken", f"{path.name}: {reason}", expected="WAV or FLAC", where=path) from None
    if found_rate == rate or not len(samples):
        return np.ascontiguousarray(samples)
    return np.ascontiguousarray(soxr.resample(samples, found_rate, rate), dtype=np.float32)
