"""Clips as files: 16-bit FLAC or WAV, one channel, whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import soundfile

from voxgraft.errors import AudioError
from voxgraft.files import existing_file, reason_of, write_error
from voxgraft.importing.media import LOWEST_HZ, Samples

__all__ = ["read_clip", "write_clip"]

LOUDEST = 32_767


def write_clip(path: Path, samples: Samples, rate: int) -> None:
    """Write a clip beside its place, synced, and rename it there; one that is there is replaced."""
    values = np.clip(np.round(samples * LOUDEST), -LOUDEST, LOUDEST).astype(np.int16)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            soundfile.write(stream, values, rate, format=path.suffix[1:].upper(), subtype="PCM_16")
            stream.flush()
            os.fdatasync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise write_error(error, path) from None


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
