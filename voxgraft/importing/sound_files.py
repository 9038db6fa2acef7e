"""Clips as files: 16-bit FLAC or WAV, one channel, whole or absent."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from voxgraft.errors import AudioError, FileError, WriteError
from voxgraft.files import build_write_error, format_error_reason, require_file
from voxgraft.importing.media import MIN_SAMPLE_RATE, AudioSamples

__all__ = ["ClipChecksum", "is_clip_intact", "read_clip_audio", "write_clip_audio"]

MAX_INT16 = 32_767


@dataclass(frozen=True, slots=True)
class ClipChecksum:
    """Size and checksum of a file, by which damage is noticed without decoding it."""

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
    """Write a clip beside its place, synced, and rename it there; one that is there is replaced."""
    values = np.clip(np.round(samples * MAX_INT16), -MAX_INT16, MAX_INT16).astype(np.int16)
    # libsndfile does not report a write that failed inside a Python stream. So it encodes into memory, where no write
    # fails, and the file is written by us.
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
        # A file on a bad sector can be made again; one that we may not read is a matter of permissions.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            return False
        raise FileError("file-unreadable", f"{path.name}: {format_error_reason(error)}", where=path) from None


def _decode_int16(source: Path | io.BytesIO) -> Any:
    """Samples as 16-bit numbers."""
    if isinstance(source, Path):
        source = io.BytesIO(source.read_bytes())  # the system's own errors are worth more than libsndfile's
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
