"""Recordings at another sample rate, and in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxgraft.audio.files import encode_audio, read_audio, resample
from voxgraft.core.errors import AudioError


def tone(hz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_a_tone_is_the_same_tone_at_16_khz(rate: int) -> None:
    found = resample(tone(1_000, rate), rate, 16_000)
    wanted = tone(1_000, 16_000)
    assert abs(len(found) - len(wanted)) <= 1  # half a second at 11,025 Hz ends between two samples
    length = min(len(found), len(wanted))
    assert np.abs(found[:length] - wanted[:length])[400:-400].max() < 1e-3


def test_what_16_khz_cannot_hold_is_gone_instead_of_folded_back() -> None:
    assert np.abs(resample(tone(11_000, 44_100), 44_100, 16_000))[400:-400].max() < 1e-3


@pytest.mark.parametrize("rate", [-1, 0, 1, 3_999, 10_000_000])
def test_the_same_rate_changes_nothing_and_an_impossible_rate_is_refused(rate: int) -> None:
    wave = tone(440, 16_000)
    assert resample(wave, 16_000, 16_000) is wave
    with pytest.raises(AudioError):
        resample(wave, rate, 16_000)


@pytest.mark.parametrize(("file_format", "loss"), [("WAV", 1e-4), ("FLAC", 1e-4), ("OGG", 0.1), ("MP3", 0.1)])
def test_what_was_written_is_read_in_every_format(tmp_path: Path, file_format: str, loss: float) -> None:
    wave = tone(440, 24_000, 1.0) * np.float32(0.5)
    path = tmp_path / f"x.{file_format.lower()}"
    path.write_bytes(encode_audio(wave, 24_000, file_format))
    found, rate = read_audio(path)
    assert rate == 24_000
    assert abs(len(found) - len(wave)) <= 2_400  # an MP3 is a whole number of frames
    assert abs(float(np.sqrt(np.mean(found**2))) - float(np.sqrt(np.mean(wave**2)))) < loss
    assert len(read_audio(path, 16_000)[0]) == round(len(found) * 2 / 3)


def test_a_small_file_that_claims_hours_of_sound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(encode_audio(np.zeros(700 * 8_000, np.float32), 8_000, "FLAC"))
    with pytest.raises(AudioError) as caught:
        read_audio(path, 16_000, max_seconds=600)
    assert caught.value.code == "audio-too-long"
