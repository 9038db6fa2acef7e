"""Recordings at another sample rate."""

from __future__ import annotations

import numpy as np
import pytest

from voxgraft.audio.features import resample
from voxgraft.core.errors import AudioError


def tone(hz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_a_tone_is_the_same_tone_at_16_khz(rate: int) -> None:
    found = resample(tone(1_000, rate), rate, 16_000)
    wanted = tone(1_000, 16_000)
    assert len(found) == len(wanted)
    assert np.abs(found - wanted)[400:-400].max() < 1e-3


def test_what_16_khz_cannot_hold_is_gone_instead_of_folded_back() -> None:
    assert np.abs(resample(tone(11_000, 44_100), 44_100, 16_000))[400:-400].max() < 1e-3


def test_the_same_rate_changes_nothing_and_a_made_up_rate_is_refused() -> None:
    wave = tone(440, 16_000)
    assert resample(wave, 16_000, 16_000) is wave
    with pytest.raises(AudioError):
        resample(wave, 44_101, 16_000)
