"""Audio files: whole recordings and clips with libsndfile, films and long media block by block with FFmpeg.

`AudioEncoder` makes a stream of bytes of sound that is still being made.
The libraries are imported where they are needed, so that models and training import without them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxgraft.core.errors import AudioError, FileError, WriteError
from voxgraft.core.files import build_write_error, format_error_reason, require_file

AudioSamples = NDArray[np.float32]
MAX_INT16 = 32_767
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 768_000
# A GiB of samples. A compressed file of a few megabytes can claim far more.
MAX_DECODED_SAMPLES = 1 << 28
# A clip is a sentence; whole films are cut before they come here.
MAX_CLIP_SECONDS = 600


def read_audio(
    path: Path, rate: int | None = None, *, max_seconds: float | None = None, code: str = "sound-broken"
) -> tuple[AudioSamples, int]:
    """The samples of a file and how many there are in a second; several channels as their mean.

    Reads what libsndfile reads: WAV, FLAC, OGG, MP3 and others. Resamples where `rate` is given. `code` is the code of
    the error for what is no sound.
    """
    import soundfile

    try:
        with soundfile.SoundFile(require_file(path)) as file:
            found_rate, seconds = int(file.samplerate), file.frames / max(1, file.samplerate)
            if max_seconds is not None and seconds > max_seconds:
                expected = f"at most {max_seconds:g} s"
                raise AudioError("audio-too-long", f"{path.name} lasts {seconds:,.0f} s", expected=expected, where=path)
            if file.frames * file.channels > MAX_DECODED_SAMPLES:
                found = f"{path.name} has {file.frames:,} samples in {file.channels:,} channels"
                raise FileError("file-too-large", found, expected=f"at most {MAX_DECODED_SAMPLES:,}", where=path)
            samples: AudioSamples = file.read(dtype="float32", always_2d=True).mean(axis=1, dtype=np.float32)
    except (soundfile.SoundFileError, OSError) as error:
        reason = format_error_reason(error).splitlines()[0]
        raise AudioError(code, f"{path.name}: {reason}", expected="WAV, FLAC, OGG or MP3", where=path) from None
    if found_rate < 1:
        raise AudioError(code, f"{path.name} has a sample rate of {found_rate} Hz", where=path)
    return (samples, found_rate) if rate is None else (resample(samples, found_rate, rate), rate)


def resample(samples: AudioSamples, from_hz: int, to_hz: int) -> AudioSamples:
    """The same sound at `to_hz` samples a second; as it is where the rates are equal."""
    if from_hz == to_hz or not len(samples):
        return samples
    if not MIN_SAMPLE_RATE <= from_hz <= MAX_SAMPLE_RATE:  # at 1 Hz a short file would become hours of samples
        expected = f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,} Hz"
        raise AudioError("audio-shape", f"the sample rate is {from_hz:,} Hz", expected=expected)
    import soxr

    return np.ascontiguousarray(soxr.resample(samples.astype(np.float32, copy=False), from_hz, to_hz), np.float32)


def encode_audio(samples: AudioSamples, rate: int, file_format: str = "WAV") -> bytes:
    """One channel of samples between -1 and 1 as a file; louder samples are clipped, NaN is silence.

    `file_format` is libsndfile's name. WAV and FLAC have 16 bits; OGG and MP3 lose what they lose.
    """
    import soundfile

    stream = io.BytesIO()
    if file_format in ("WAV", "FLAC"):
        soundfile.write(stream, _to_int16(samples), rate, format=file_format, subtype="PCM_16")
    else:
        soundfile.write(stream, np.clip(np.nan_to_num(samples), -1, 1), rate, format=file_format)
    return stream.getvalue()


def _to_int16(samples: AudioSamples) -> NDArray[np.int16]:
    return np.round(np.clip(np.nan_to_num(samples), -1, 1) * MAX_INT16).astype(np.int16)


AUDIO_SUFFIXES = tuple(".wav .flac .mp3 .m4a .aac .ogg .oga .opus .wma .aif .aiff .mka .amr .m4b .caf .au".split())
VIDEO_SUFFIXES = tuple(".mp4 .mkv .avi .mov .webm .ts .mpg .mpeg .m4v .flv .wmv .3gp .3g2 .mts .m2ts".split())
MEDIA_SUFFIXES = (*AUDIO_SUFFIXES, *VIDEO_SUFFIXES)
BLOCK_SECONDS = 2.0
# Clocks of files waver by less; more is a gap or a jump.
MIN_GAP_SECONDS = 0.06
MAX_GAP_SECONDS = 3600.0
# Broken packets after which decoding a file stops.
MAX_DECODE_ERRORS = 10_000


# A WAV that ends this much earlier than its header says was cut off; less is a matter of rounding.
MIN_MISSING_SECONDS = 0.1
# Programs that write into a pipe put about this, or more, where the length of the data belongs.
MIN_UNKNOWN_BYTES = 0x7FFF0000


def find_missing_audio(source: Path | bytes) -> tuple[float, float] | None:
    """Of a WAV file that was cut off: the seconds it holds, and those that its header promises. Else None.

    FFmpeg and libsndfile read such a file up to its end without an error.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
            size, bytes_per_second = stream.seek(0, os.SEEK_END), 0
            stream.seek(0)
            riff, _, kind = struct.unpack("<4sI4s", stream.read(12))
            while (riff, kind) == (b"RIFF", b"WAVE"):
                name, stated = struct.unpack("<4sI", stream.read(8))
                start = stream.tell()
                if name == b"fmt ":
                    bytes_per_second = struct.unpack("<8xI", stream.read(12))[0]
                elif name == b"data":
                    held = size - start
                    if not bytes_per_second or stated >= MIN_UNKNOWN_BYTES:
                        return None
                    is_cut_off = stated - held > MIN_MISSING_SECONDS * bytes_per_second
                    return (held / bytes_per_second, stated / bytes_per_second) if is_cut_off else None
                stream.seek(start + stated + stated % 2)
    except (OSError, struct.error):  # a header that is cut off itself is a matter of the decoder
        pass
    return None


class MediaReader:
    """One media file. `blocks` can be read once."""

    def __init__(self, path: Path, rate: int, data: bytes | None = None) -> None:
        self.path = require_file(path) if data is None else path
        self._source: Any = str(self.path) if data is None else io.BytesIO(data)
        self.rate = rate
        self.missing = find_missing_audio(self.path if data is None else data)
        """Seconds that the file holds, and those that its header promises, if it was cut off."""
        self.damaged: list[float] = []
        """Places, in seconds, of what could not be decoded."""
        self.not_finite: list[tuple[float, float]] = []
        """Parts, in seconds, with samples that were NaN or infinite; these are silence in the blocks."""

    def has_not_finite(self, start: float, end: float) -> bool:
        """Whether a sample between these times, as far as blocks were read, was NaN or infinite."""
        return any(first < end and start <= last for first, last in self.not_finite)

    def blocks(self) -> Iterator[AudioSamples]:
        """The whole sound in order, about two seconds at a time."""
        import av

        try:
            with contextlib.closing(av.open(self._source, metadata_errors="ignore")) as container:
                yield from self._blocks(container)
        except (av.FFmpegError, OSError, ValueError, OverflowError) as error:
            found = f"{self.path.name}: {format_error_reason(error)}"
            raise AudioError("media-unreadable", found, where=self.path) from None

    def _blocks(self, container: Any) -> Iterator[AudioSamples]:
        import av
        import soxr

        if not container.streams.audio:
            raise AudioError("media-unreadable", f"{self.path.name} contains no audio", where=self.path)
        # The file's time 0 in seconds, the file's rate, and the samples given so far: together the expected time.
        start_seconds, rate, num_samples = float(container.start_time or 0) / av.time_base, 0, 0
        resampler: Any = None
        pending: list[AudioSamples] = []
        packets = container.demux(container.streams.audio[0])
        while True:
            seconds = num_samples / rate if rate else 0.0
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                frames = packet.decode()
            except av.FFmpegError as error:  # a broken packet is noted and skipped
                self.damaged.append(seconds)
                if len(self.damaged) > MAX_DECODE_ERRORS or isinstance(error, av.EOFError):
                    break
                continue
            for frame in frames:
                if rate == 0:
                    rate = frame.sample_rate
                    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
                        found = f"{self.path.name} has a sample rate of {rate:,} Hz"
                        expected = f"{MIN_SAMPLE_RATE:,} to {MAX_SAMPLE_RATE:,} Hz"
                        raise AudioError("media-rate", found, expected=expected, where=self.path)
                    if rate != self.rate:
                        resampler = soxr.ResampleStream(rate, self.rate, 1, dtype="float32", quality="HQ")
                seconds = num_samples / rate
                if frame.sample_rate != rate:
                    found = f"the rate changes from {rate:,} to {frame.sample_rate:,} Hz at {seconds:.1f} s"
                    raise AudioError("media-rate", found, where=self.path)
                segments = [_to_mono(frame)]
                timed = frame.pts is not None and frame.time_base is not None
                gap = float(frame.pts * frame.time_base) - start_seconds - seconds if timed else 0.0
                if gap > MAX_GAP_SECONDS:
                    raise AudioError(
                        "media-time", f"the timestamps have a gap of {gap:,.0f} s at {seconds:.1f} s", where=self.path
                    )
                if gap > MIN_GAP_SECONDS:  # keep the times of subtitles right
                    segments = [np.zeros(round(gap * rate), np.float32), *segments]
                elif gap < -MIN_GAP_SECONDS:  # the clock jumped back: what follows continues from here
                    start_seconds += gap
                num_samples += sum(map(len, segments))
                bad = np.flatnonzero(~np.isfinite(segments[-1]))
                if len(bad):
                    before = num_samples - len(segments[-1])
                    self.not_finite.append(((before + int(bad[0])) / rate, (before + int(bad[-1])) / rate))
                    segments[-1][bad] = 0.0
                pending += segments
                if sum(map(len, pending)) >= BLOCK_SECONDS * rate:
                    block = np.concatenate(pending)
                    yield block if resampler is None else resampler.resample_chunk(block)
                    pending = []
        if rate == 0:
            raise AudioError("media-unreadable", f"{self.path.name} contains no audio", where=self.path)
        block = np.concatenate([*pending, np.zeros(0, np.float32)])
        yield block if resampler is None else resampler.resample_chunk(block, last=True)


def _to_mono(frame: Any) -> AudioSamples:
    values = frame.to_ndarray()  # [channels, N] if planar, else [1, N * channels]
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        scaled = (values.astype(np.float32) - 128.0) / 128.0
    elif values.dtype.kind == "i":
        scaled = values.astype(np.float32) / float(-int(np.iinfo(values.dtype).min))
    else:
        scaled = values.astype(np.float32)
    # Infinity of both signs in two channels is NaN in their mean.
    with np.errstate(invalid="ignore", over="ignore"):
        mixed: AudioSamples = scaled[0] if len(scaled) == 1 else scaled.mean(axis=0, dtype=np.float32)
    # Float formats may hold anything; speech may overshoot a little. What is not finite stays so for the caller.
    return np.where(np.isfinite(mixed), np.clip(mixed, -4.0, 4.0), mixed)


ClipChecksum = tuple[int, int]
"""Size and CRC-32 of a file, by which damage is noticed without decoding it."""


def write_clip_audio(path: Path, samples: AudioSamples, rate: int) -> ClipChecksum:
    """Write a clip beside its place, synced, and rename it there; one that exists is replaced."""
    # libsndfile does not report a write that failed inside a Python stream. So it encodes into memory, where no write
    # fails, and the file is written by us.
    data = encode_audio(samples, rate, path.suffix[1:].upper())
    if not np.array_equal(_decode_int16(data), _to_int16(samples)):
        found, cure = (
            f"{path.name} decodes to samples that differ from the encoded ones",
            "check this machine's memory.",
        )
        raise WriteError("disk-fault", found, where=path, cure=cure)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fdatasync(stream.fileno())
            if (size := os.fstat(stream.fileno()).st_size) != len(data):
                raise OSError(errno.EIO, f"{size:,} of {len(data):,} bytes were written")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise build_write_error(error, path) from None
    return len(data), zlib.crc32(data)


def is_clip_intact(path: Path, num_samples: int, expected: ClipChecksum | None) -> bool:
    """Whether a clip's file holds what was written. Without a checksum (older datasets) it is decoded."""
    import soundfile

    try:
        data = path.read_bytes()  # the system's own errors are worth more than libsndfile's
        return (
            len(_decode_int16(data)) == num_samples if expected is None else (len(data), zlib.crc32(data)) == expected
        )
    except soundfile.SoundFileError:
        return False
    except OSError as error:
        # A file on a bad sector can be made again; one that we may not read is a matter of permissions.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            return False
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None


def is_clip_usable(path: Path, expected: ClipChecksum | None) -> bool:
    """Whether a clip's file exists and is sound, by its size. One of another size is decoded: a user may edit clips."""
    import soundfile

    try:
        if expected is None or path.stat().st_size == expected[0]:
            return path.is_file()
        return bool(len(_decode_int16(path.read_bytes())) == soundfile.info(path).frames > 0)
    except (soundfile.SoundFileError, OSError):
        return False


def _decode_int16(data: bytes) -> Any:
    import soundfile

    return soundfile.read(io.BytesIO(data), dtype="int16")[0]


def read_clip_audio(path: Path) -> tuple[AudioSamples, int]:
    """A clip that `write_clip_audio` wrote, and its rate."""
    samples, rate = read_audio(path, code="media-unreadable")
    if rate < MIN_SAMPLE_RATE:
        found = f"{path.name} has a sample rate of {rate:,} Hz"
        raise AudioError("media-rate", found, expected=f"at least {MIN_SAMPLE_RATE:,}", where=path)
    return samples, rate


AUDIO_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
_LIBSNDFILE_NAMES = {"opus": ("OGG", "OPUS"), "flac": ("FLAC", "PCM_16")}
# Constant, so that a stream needs no header with its length.
MP3_BITS_PER_SECOND = 64_000
# OpenAI's clients take bare samples for this rate. Opus has it too, and no 22,050.
OPENAI_RATE = 24_000
# In the header of a file whose length is not known yet.
UNKNOWN_BYTES = 0xFFFFFFFF - 36
MIN_SPEED, MAX_SPEED = 0.25, 4.0
# The filter itself goes no lower; below, it is applied twice.
_MIN_TEMPO = 0.5


class AudioEncoder:
    """One response: `write` waveforms, `finish` it. Both return the bytes that are new."""

    def __init__(self, file_format: str, rate: int, speed: float = 1.0) -> None:
        self.format, self.rate = file_format, OPENAI_RATE if file_format in ("pcm", "opus") else rate
        self._tempo = TempoFilter(rate, speed) if speed != 1.0 else None
        self._resampler: Any = None
        if self.rate != rate:
            import soxr

            self._resampler = soxr.ResampleStream(rate, self.rate, 1, dtype="float32", quality="HQ")
        self._buffer, self._num_taken, self._file = io.BytesIO(), 0, None
        if file_format in _LIBSNDFILE_NAMES:
            import soundfile

            kind, subtype = _LIBSNDFILE_NAMES[file_format]
            self._file = soundfile.SoundFile(self._buffer, "w", self.rate, 1, format=kind, subtype=subtype)
        elif file_format == "mp3":
            import av

            options = {"write_xing": "0", "id3v2_version": "0"}
            self._container = av.open(self._buffer, "w", format="mp3", options=options)
            self._mp3 = self._container.add_stream("libmp3lame", rate=self.rate, layout="mono")
            self._mp3.bit_rate = MP3_BITS_PER_SECOND
        elif file_format == "wav":
            self._buffer.write(build_wav_header(self.rate, UNKNOWN_BYTES))
        self.num_samples = 0

    def write(self, wave: AudioSamples, *, last: bool = False) -> bytes:
        """More sound; what an encoder holds back comes later."""
        if self._tempo is not None:
            wave = self._tempo.write(wave, last=last)
        if self._resampler is not None:
            wave = self._resampler.resample_chunk(wave, last=last)
        wave = np.clip(np.nan_to_num(wave), -1, 1)
        self._buffer.seek(0, io.SEEK_END)
        if self._file is not None:
            if len(wave):
                self._file.write(wave)
            self._file.flush() if not last else self._file.close()
        elif self.format == "mp3":
            frames = [build_frame(wave, self.rate, self.num_samples, "fltp")] if len(wave) else []
            for frame in [*frames, *([None] if last else [])]:
                self._container.mux(self._mp3.encode(frame))
            if last:
                self._container.close()
        else:
            self._buffer.write(np.round(wave * 32767).astype("<i2").tobytes())
        self.num_samples += len(wave)
        # libsndfile writes some headers again at the end; what was sent before stays as it was.
        self._buffer.seek(self._num_taken)
        data = self._buffer.read()
        self._num_taken += len(data)
        return data

    def finish(self) -> bytes:
        """The rest."""
        return self.write(np.zeros(0, np.float32), last=True)

    def whole(self) -> bytes:
        """After `finish`: the complete file, whose header states its length."""
        data = self._buffer.getvalue()
        return build_wav_header(self.rate, len(data) - 44) + data[44:] if self.format == "wav" else data


class TempoFilter:
    """Faster or slower speech at the same pitch: ffmpeg's `atempo`, which overlaps and adds short windows."""

    def __init__(self, rate: int, speed: float) -> None:
        from av.filter import Graph

        self._rate, self._position, self._graph = rate, 0, Graph()
        # Not one factor below the filter's limit but its square root twice.
        factors = [speed] if speed >= _MIN_TEMPO else [speed**0.5] * 2
        source = f"sample_rate={rate}:sample_fmt=flt:channel_layout=mono:time_base=1/{rate}"
        parts = [self._graph.add("abuffer", source), *(self._graph.add("atempo", f"{one:.6f}") for one in factors)]
        parts.append(self._graph.add("abuffersink"))
        for first, second in pairwise(parts):
            first.link_to(second)
        self._graph.configure()

    def write(self, wave: AudioSamples, *, last: bool = False) -> AudioSamples:
        """What comes out so far; with `last`, all of it."""
        import av

        if len(wave):
            self._graph.push(build_frame(wave, self._rate, self._position, "flt"))
            self._position += len(wave)
        if last:
            self._graph.push(None)
        found: list[AudioSamples] = []
        while True:
            try:
                found.append(self._graph.pull().to_ndarray().reshape(-1).astype(np.float32, copy=False))
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate([np.zeros(0, np.float32), *found])


def build_frame(wave: AudioSamples, rate: int, position: int, sample_format: str) -> Any:
    """Samples of one channel as ffmpeg takes them; `position` counts those before."""
    import av

    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave[None]), format=sample_format, layout="mono")
    frame.sample_rate, frame.pts = rate, position
    return frame


def build_wav_header(rate: int, num_bytes: int) -> bytes:
    """Of one channel with 16 bits. 44 bytes"""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    riff = struct.pack("<4sI4s", b"RIFF", 36 + num_bytes, b"WAVE")
    return riff + form + struct.pack("<4sI", b"data", num_bytes)
