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
from voxgraft.files import existing_file, reason_of, write_error
from voxgraft.importing.media import LOWEST_HZ, Samples

__all__ = ["FileSum", "is_whole", "read_clip", "write_clip"]

LOUDEST = 32_767


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and checksum of a file, by which damage is noticed without decoding it."""

    num_bytes: int
    crc32: int

    @classmethod
    def of(cls, data: bytes) -> FileSum:
        return cls(len(data), zlib.crc32(data))

    @classmethod
    def from_json(cls, value: object) -> FileSum:
        numbers = value if isinstance(value, list) else []
        if len(numbers) != 2 or not all(type(number) is int for number in numbers):
            raise FileError("manifest-line", f"{value!r:.80} is no size and checksum")
        return cls(*numbers)

    def to_json(self) -> list[int]:
        return [self.num_bytes, self.crc32]


def write_clip(path: Path, samples: Samples, rate: int) -> FileSum:
    """Write a clip beside its place, synced, and rename it there; one that is there is replaced."""
    values = np.clip(np.round(samples * LOUDEST), -LOUDEST, LOUDEST).astype(np.int16)
    # libsndfile does not report a write that failed inside a Python stream. So it encodes into memory, where no write
    # fails, and the file is written by us.
    memory = io.BytesIO()
    soundfile.write(memory, values, rate, format=path.suffix[1:].upper(), subtype="PCM_16")
    data = memory.getvalue()
    if not np.array_equal(_decode(io.BytesIO(data)), values):
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
        raise write_error(error, path) from None
    return FileSum.of(data)


def is_whole(path: Path, num_samples: int, expected: FileSum | None) -> bool:
    """Whether a clip's file holds what was written. Without a checksum (older datasets) it is decoded."""
    try:
        if expected is None:
            return len(_decode(path)) == num_samples
        return path.stat().st_size == expected.num_bytes and FileSum.of(path.read_bytes()) == expected
    except soundfile.SoundFileError:
        return False
    except OSError as error:
        # A file on a bad sector can be made again; one that we may not read is a matter of permissions.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            return False
        raise FileError("file-unreadable", f"{path.name}: {reason_of(error)}", where=path) from None


def _decode(source: Path | io.BytesIO) -> Any:
    """Samples as 16-bit numbers."""
    if isinstance(source, Path):
        source = io.BytesIO(source.read_bytes())  # the system's own errors are worth more than libsndfile's
    return soundfile.read(source, dtype="int16")[0]


def read_clip(path: Path) -> tuple[Samples, int]:
    """A clip that `write_clip` wrote, and its rate."""
    existing_file(path)
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("media-unreadable", f"{path.name}: {reason_of(error)}", where=path) from None
    if rate < LOWEST_HZ:
        found = f"{path.name} has {rate:,} samples a second"
        raise AudioError("media-rate", found, expected=f"at least {LOWEST_HZ:,}", where=path)
    mono: Samples = samples.mean(axis=1, dtype=np.float32)
    return mono, int(rate)
