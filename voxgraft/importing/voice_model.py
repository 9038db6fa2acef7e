"""Whether a sound is a voice, by silero-vad's model: for recordings with music. An extra; runs on onnxruntime alone.

The package itself is not imported, only its model is read: it would bring torchaudio along.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from voxgraft.errors import ConfigError
from voxgraft.importing.media import AudioSamples

__all__ = ["SileroVad"]

VAD_SAMPLE_RATE = 16_000
VAD_WINDOW_SAMPLES, VAD_CONTEXT_SAMPLES = 512, 64
"""Samples that the model hears at once, and those before them that it wants to hear again."""
VAD_FRAMES_PER_SECOND = 100
VAD_MODEL_FILE = "data/silero_vad.onnx"


class SileroVad:
    """One recording, heard from its beginning. Gives the probability of a voice for every 10 ms so far."""

    def __init__(self, rate: int) -> None:
        self._session = _load_onnx_session()
        self._resampler = soxr.ResampleStream(rate, VAD_SAMPLE_RATE, 1, dtype="float32", quality="LQ")
        self._state = np.zeros((2, 1, 128), np.float32)
        self._before = np.zeros(VAD_CONTEXT_SAMPLES, np.float32)
        self._rest = np.zeros(0, np.float32)
        self._windows: list[float] = []

    def hear(self, samples: AudioSamples) -> None:
        """Take in the next part of the recording."""
        heard = np.concatenate([self._rest, self._resampler.resample_chunk(samples)])
        whole = len(heard) // VAD_WINDOW_SAMPLES * VAD_WINDOW_SAMPLES
        for at in range(0, whole, VAD_WINDOW_SAMPLES):
            window = heard[at : at + VAD_WINDOW_SAMPLES]
            given = {
                "input": np.concatenate([self._before, window])[None],
                "state": self._state,
                "sr": _SAMPLE_RATE_INPUT,
            }
            chance, self._state = self._session.run(None, given)
            self._windows.append(float(chance[0, 0]))
            self._before = window[-VAD_CONTEXT_SAMPLES:]
        self._rest = heard[whole:]

    def voice_probabilities(self, first: int, last: int) -> NDArray[np.float32]:
        """For frames of 10 ms; those that are not heard yet count as a voice."""
        seconds = (np.arange(first, last) + 0.5) / VAD_FRAMES_PER_SECOND
        places = (seconds * VAD_SAMPLE_RATE / VAD_WINDOW_SAMPLES).astype(np.int64)
        known = np.array([*self._windows[places[0] : places[-1] + 1]] if len(places) else [], np.float32)
        made = np.ones(len(places), np.float32)
        inside = places - (places[0] if len(places) else 0) < len(known)
        made[inside] = known[(places - places[0])[inside]] if len(places) else known
        return made


_SAMPLE_RATE_INPUT = np.array(VAD_SAMPLE_RATE, np.int64)


def _load_onnx_session() -> Any:
    spec = importlib.util.find_spec("silero_vad")
    try:
        import onnxruntime
    except ImportError:
        onnxruntime = None
    if spec is None or spec.origin is None or onnxruntime is None:
        found = "--activity silero needs silero-vad and onnxruntime"
        raise ConfigError("extra-missing", found, cure="pip install 'voxgraft[vad]'")
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    options.log_severity_level = 3
    path = Path(spec.origin).parent / VAD_MODEL_FILE
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
