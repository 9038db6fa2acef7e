"""One clip's sound file as a front end takes it: one channel, at the rate that is asked for. It cuts nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from voxgraft.errors import AudioError
from voxgraft.files import require_file

__all__ = ["read_resampled_audio"]

MAX_CLIP_SECONDS = 600
"""A clip is a sentence; whole films are cut before they come here."""


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
