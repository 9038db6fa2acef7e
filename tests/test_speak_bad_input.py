"""References and vocoder files that cannot be used: `speak` says what is wrong, and writes nothing by half."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tests.support import s3gen
from tests.support.checkpoint_files import saved
from tests.support.fixtures import Fixtures
from tests.support.indextts2 import write_s2mel, write_waveform_end
from tests.support.preprocess_runs import voice_like
from tests.test_indextts2_vocoder import write_w2v_bert
from tools.random_bases import make_random_base
from voxgraft.cli.app import run_cli
from voxgraft.models.chatterbox.encoder import SpeechTokenizer

FAMILIES = ("chatterbox", "indextts2")
Samples = np.ndarray[Any, Any]


def make_base(family: str, folder: Path) -> None:
    """A small base with all files that a voice and its sound need."""
    make_random_base(family, folder, size="tiny", seed=0)
    if family == "chatterbox":
        saved(s3gen.published_state(s3gen.random_model(), SpeechTokenizer.load(folder)), folder / "s3gen.pt")
    else:
        write_waveform_end(folder, 64)
        write_w2v_bert(folder)


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, fixtures: Fixtures) -> Path:
    return fixtures.folder(f"sounding/{request.param}", lambda at: make_base(request.param, at))


def speak(base: Path, folder: Path, voice: Path) -> int:
    words = ["speak", "bring me the cup", "--base", base, "--language", "en", "--voice", voice, "--max-seconds", "0.4"]
    return run_cli(list(map(str, [*words, "--device", "cpu", "--output", folder / "out.wav"])))


def write_reference(path: Path, samples: Samples, rate: int) -> Path:
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


def with_nan(samples: Samples) -> Samples:
    samples[100] = np.nan
    return samples


REFUSED: dict[str, tuple[Callable[[], Samples], str]] = {
    "a tenth of a second": (lambda: voice_like(0.1, 0), "audio-too-short"),
    "silence": (lambda: np.zeros(24_000, np.float32), "audio-silent"),
    "not a number": (lambda: with_nan(voice_like(1.0, 0)), "audio-not-finite"),
    "nothing": (lambda: np.zeros(0, np.float32), "audio-too-short"),
}


@pytest.mark.long
@pytest.mark.parametrize("way", REFUSED)
def test_a_reference_without_a_voice_is_refused_before_anything_is_written(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    make, code = REFUSED[way]
    voice = write_reference(tmp_path / "voice.wav", make(), 24_000)
    (tmp_path / "out").mkdir()
    assert speak(base, tmp_path / "out", voice) == 2
    reported = capsys.readouterr()
    assert code in reported.err + reported.out
    assert "Traceback" not in reported.err + reported.out
    assert list((tmp_path / "out").iterdir()) == []


TAKEN: dict[str, Callable[[], tuple[Samples, int]]] = {
    "stereo at 192 kHz": lambda: (np.stack([np.repeat(voice_like(0.8, channel), 8) for channel in (0, 1)], 1), 192_000),
    "half an hour": lambda: (np.tile(voice_like(2.0, 0)[::3], 900), 8_000),
}


@pytest.mark.long
@pytest.mark.parametrize("way", TAKEN)
def test_channels_are_averaged_any_rate_is_resampled_and_a_long_reference_is_cut(
    base: Path, tmp_path: Path, way: str
) -> None:
    samples, rate = TAKEN[way]()
    assert speak(base, tmp_path, write_reference(tmp_path / "voice.wav", samples, rate)) == 1  # cut at its limit
    wave, _ = soundfile.read(tmp_path / "out.wav")
    assert np.isfinite(wave).all()
    assert len(wave) > 5_000
    assert np.abs(wave).max() > 1e-3


def another_shape(name: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        state = torch.load(folder / "s3gen.pt", weights_only=True)
        state[name] = torch.zeros(513)
        saved(state, folder / "s3gen.pt")

    return act


WRONG_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no s3gen": ("chatterbox", lambda at: (at / "s3gen.pt").unlink(), "no-waveform-end"),
    "s3gen of another shape": ("chatterbox", another_shape("flow.encoder.after_norm.weight"), "tensors-mismatch"),
    "no s2mel": ("indextts2", lambda at: (at / "s2mel.pth").unlink(), "no-waveform-end"),
    "no BigVGAN": (
        "indextts2",
        lambda at: shutil.rmtree(at / "bigvgan_v2_22khz_80band_256x"),
        "no-waveform-end",
    ),
    "s2mel of another width": ("indextts2", lambda at: write_s2mel(at, 96), "tensors-mismatch"),
    "no CAM++": ("indextts2", lambda at: (at / "campplus_cn_common.bin").unlink(), "vocoder-voice"),
}


@pytest.mark.long
@pytest.mark.parametrize("way", WRONG_FILES)
def test_vocoder_files_that_are_missing_or_wrong_are_named(
    fixtures: Fixtures, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    family, change, code = WRONG_FILES[way]
    made = fixtures.folder(f"sounding/{family}", lambda at: make_base(family, at))
    folder = shutil.copytree(made, tmp_path / "base")
    change(folder)
    voice = write_reference(tmp_path / "voice.wav", voice_like(1.0, 0), 24_000)
    (tmp_path / "out").mkdir()
    assert speak(folder, tmp_path / "out", voice) == 2
    reported = capsys.readouterr()
    assert code in reported.err + reported.out
    assert "Traceback" not in reported.err + reported.out
    assert list((tmp_path / "out").iterdir()) == []
