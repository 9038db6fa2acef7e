"""Sounds for the page: read here and handed over as samples, so that no folder of a project has to be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from voxgraft.errors import AudioError
from voxgraft.files import format_error_reason, require_file

MAX_PLAYER_SECONDS = 600


def read_player_audio(path: Path) -> tuple[int, Any]:
    """Sampling rate and samples (16 bits) of a sound file, as gradio's players take them."""
    import soundfile

    require_file(path)
    try:
        with soundfile.SoundFile(path) as stream:
            samples = stream.read(MAX_PLAYER_SECONDS * stream.samplerate, dtype="float32", always_2d=True)
            rate = int(stream.samplerate)
    except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
        raise AudioError("sound-broken", f"{path.name}: {format_error_reason(error)}", where=path) from None
    return rate, (np.clip(samples.mean(axis=1), -1, 1) * 32767).astype(np.int16)
