"""Waveforms as WAV files: PCM of 8 to 32 bits in, 16 bits out. Does not resample; knows no other format."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxgraft.errors import FileError
from voxgraft.files import require_file

__all__ = ["encode_wav", "read_wav"]

WavSamples = NDArray[np.float32]
MAX_WAV_BYTES = 1 << 30
INT16_PEAK = 32767
SAMPLE_WIDTHS = (1, 2, 3, 4)
"""Bytes of a sample."""


def encode_wav(samples: WavSamples, rate: int) -> bytes:
    """One channel of samples between -1 and 1 as a file of 16 bits; what is louder is cut."""
    whole = np.round(np.clip(np.nan_to_num(samples), -1, 1) * INT16_PEAK).astype("<i2")
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return stream.getvalue()


def read_wav(path: Path) -> tuple[WavSamples, int]:
    """Samples between -1 and 1, several channels as their mean, and how many there are in a second."""
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
    if width == 1:  # the one width without a sign
        return (np.frombuffer(data, dtype=np.uint8).astype(np.float64) - 128) / 128
    if width == 3:
        parts = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
        return whole.astype(np.float64) / 2**23
    floats: NDArray[np.float64] = np.frombuffer(data, dtype=f"<i{width}").astype(np.float64) / 2 ** (8 * width - 1)
    return floats
