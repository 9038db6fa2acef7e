"""Waveforms to bytes while they come, for `serve` and `speak --output -`: file formats, and the tempo of the speech."""

from __future__ import annotations

import io
import struct
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float32]
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

    def write(self, wave: Wave, *, last: bool = False) -> bytes:
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

    def write(self, wave: Wave, *, last: bool = False) -> Wave:
        """What comes out so far; with `last`, all of it."""
        import av

        if len(wave):
            self._graph.push(build_frame(wave, self._rate, self._position, "flt"))
            self._position += len(wave)
        if last:
            self._graph.push(None)
        found: list[Wave] = []
        while True:
            try:
                found.append(self._graph.pull().to_ndarray().reshape(-1).astype(np.float32, copy=False))
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate([np.zeros(0, np.float32), *found])


def build_frame(wave: Wave, rate: int, position: int, sample_format: str) -> Any:
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
