"""Recordings of voices that are no ordinary ones: each is refused or cleaned up, and nothing half-written is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support.run_folders import error_of
from tests.support.synthesis import spoken
from tests.test_speak_stream import base  # noqa: F401 (a fixture)
from voxgraft.audio.files import read_audio


def tone(seconds: float, rate: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    times = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * 150 * times) * (1 + 0.3 * np.sin(2 * np.pi * 3 * times))).astype(np.float32)


def words(base: Path, recording: Path, output: Path) -> tuple[str, ...]:  # noqa: F811
    return (
        "bring me the cup",
        f"--base={base}",
        "--language=en",
        "--max-seconds=0.4",
        f"--voice={recording}",
        f"--output={output}",
    )


@pytest.mark.parametrize(
    ("samples", "rate", "code"),
    [
        (tone(0.1, 24_000), 24_000, "audio-too-short"),
        (np.zeros(48_000, np.float32), 24_000, "audio-silent"),
        (np.full(48_000, np.nan, np.float32), 24_000, "audio-not-finite"),
        (np.zeros(0, np.float32), 24_000, ""),
    ],
    ids=["a tenth of a second", "silence", "no numbers", "nothing"],
)
def test_what_is_no_voice_is_refused_before_anything_is_spoken(
    base: Path,  # noqa: F811
    tmp_path: Path,
    samples: np.ndarray[tuple[int], np.dtype[np.float32]],
    rate: int,
    code: str,
) -> None:
    soundfile.write(tmp_path / "voice.wav", samples, rate, subtype="FLOAT")
    error = error_of(lambda: spoken(*words(base, tmp_path / "voice.wav", tmp_path / "out.wav")))
    assert error.code.startswith(code)
    assert error.finding.cure
    assert sorted(path.name for path in tmp_path.iterdir()) == ["voice.wav"]


def test_stereo_at_192_kilohertz_is_averaged_and_resampled(base: Path, tmp_path: Path) -> None:  # noqa: F811
    loud = tone(1.0, 192_000)
    soundfile.write(tmp_path / "voice.wav", np.stack([loud, 0.5 * loud], 1), 192_000, subtype="PCM_24")
    result = spoken(*words(base, tmp_path / "voice.wav", tmp_path / "out.wav"))
    wave, rate = read_audio(tmp_path / "out.wav")
    assert rate == 24_000
    assert len(wave) == 960 * len(result.said[0].pieces[0].codes)
    sound = result.said[0].voice.clip.voice["reference"]
    assert len(sound) == 24_000
    assert abs(float(np.abs(sound[2_000:22_000]).max()) - 0.75 * float(np.abs(loud).max())) < 0.02


@pytest.mark.long
def test_of_half_an_hour_only_the_start_is_heard(base: Path, tmp_path: Path) -> None:  # noqa: F811
    soundfile.write(tmp_path / "long.wav", np.tile(tone(60.0, 8_000), 30), 8_000)
    long = spoken(*words(base, tmp_path / "long.wav", tmp_path / "long-out.wav"))
    voice = long.said[0].voice.clip
    assert len(voice.voice["reference"]) == 240_000  # ten seconds
    assert len(voice.voice["prompt"]) == 150  # six
    assert len(read_audio(tmp_path / "long-out.wav")[0]) > 0
