"""Waveforms for the tests of the front ends (golden, human, unusable), and films with captions."""

from __future__ import annotations

import wave
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.film import Film, make_film
from tests.support.shared import formula, shared
from voxgraft.core.errors import VoxgraftError

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
"""The original's numbers are asked of every device that is there."""


def golden_wave() -> Tensor:
    """Three seconds at 16 kHz."""
    return torch.from_numpy(formula().golden_wave())


def noise(num_samples: int, seed: int = 0) -> Tensor:
    return torch.randn(num_samples, generator=torch.Generator().manual_seed(seed)) * 0.1


def recordings() -> list[NDArray[np.float32]]:
    """Nine clips of human Amharic at 16 kHz, 2 to 10 s long."""
    found = []
    for path in sorted(shared("real/amharic").glob("*.wav")):
        with wave.open(str(path)) as reader:
            assert (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) == (16_000, 1, 2)
            samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)
        found.append(samples.astype(np.float32) / np.float32(32768))
    return found


UNUSABLE: dict[str, tuple[Any, str]] = {
    "empty": (torch.zeros(0), "audio-too-short"),
    "shorter than a frame": (torch.ones(300), "audio-too-short"),
    "two channels": (torch.zeros(2, 16_000), "audio-shape"),
    "a batch axis": (np.zeros((1, 16_000), np.float32), "audio-shape"),
    "a single number": (torch.tensor(0.5), "audio-shape"),
    "16-bit numbers": (np.zeros(16_000, np.int16), "audio-shape"),
    "16-bit numbers in a tensor": (torch.zeros(16_000, dtype=torch.int16), "audio-shape"),
    "16-bit numbers as floats": (np.full(16_000, 12_000.0), "audio-scale"),
    "a list": ([0.0] * 16_000, "audio-shape"),
    "complex": (torch.zeros(16_000, dtype=torch.complex64), "audio-shape"),
    "NaN": (torch.full((16_000,), float("nan")), "audio-not-finite"),
    "one infinite sample": (torch.cat([noise(16_000), torch.tensor([float("-inf")])]), "audio-not-finite"),
    "too large for float32": (np.full(16_000, 1e300), "audio-not-finite"),
}


def refuses_unusable(front_end: Callable[[list[Any]], Any], kind: str) -> None:
    """The second of two clips is refused with the code, by its place."""
    unusable, code = UNUSABLE[kind]
    with pytest.raises(VoxgraftError) as caught:
        front_end([noise(16_000), unusable])
    assert caught.value.code == code
    assert caught.value.finding.where == "clip 2 of 2"


@lru_cache(maxsize=8)
def film(num_sentences: int = 24, seed: int = 5, *, rolling: bool = False) -> Film:
    """A film with captions; skips the calling test where espeak-ng is absent."""
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    return make_film(num_sentences, seed, rolling=rolling)
