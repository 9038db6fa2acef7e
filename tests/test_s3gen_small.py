"""S3Gen on machines that have none of the original's arrays, and the samples of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import s3gen
from tests.support.checkpoint_files import saved
from tests.support.fixtures import Fixtures
from tests.support.shared import difference
from tests.support.trainers import EVERY, OPTIONS, loop_of
from tests.test_s3gen import recorded, small_state, vocoder_of, write_conditions
from tools.random_bases import fan_in_scaled_blocks
from voxgraft.audio.files import read_audio
from voxgraft.evaluation.in_training import SampleCallback, SampleSentence
from voxgraft.models.campplus import COUNTER
from voxgraft.models.chatterbox.hift import fold_weight_norm, published_shapes
from voxgraft.models.chatterbox.s3gen import S3Gen, S3GenNoise, S3GenReference


def test_numbers_are_those_that_were_checked_against_the_original() -> None:
    """Kept from an implementation that met the original's arrays, for machines that do not have these."""
    model = S3Gen(s3gen.SMALL_SIZE)
    shapes = {name: shape for name, shape in published_shapes(model).items() if not name.endswith(COUNTER)}
    state = {
        name: torch.from_numpy(np.concatenate(list(fan_in_scaled_blocks(name, shape, 0)))).reshape(shape)
        for name, shape in shapes.items()
    }
    state["mel2wav.f0_predictor.classifier.weight"] *= 100  # voiced
    state["mel2wav.conv_post.parametrizations.weight.original0"] *= 0.2  # rarely clipped
    model.load_state_dict(fold_weight_norm(state), strict=False)
    reference = S3GenReference(
        torch.arange(5) * 1000, torch.linspace(-3, 3, 11 * 80).reshape(11, 80), torch.linspace(-1, 1, 192).square()
    )
    codes = list(range(0, 6000, 500))
    shapes = {"flow": (80, 34), "phases": (9, 1), "source": (9, 480 * 23)}
    draws = {name: torch.from_numpy(next(fan_in_scaled_blocks(name, (rows * columns,), 1))).reshape(rows, columns) * 50
             for name, (rows, columns) in shapes.items()}  # fmt: skip
    noise = S3GenNoise(**draws)
    (mel,), (wave,) = model.generate_mels([codes], [reference], [noise]), model.generate([codes], [reference], [noise])
    speaker = model.speaker_encoder.embed([recorded(9_000, 16_000)])[0]
    kept = Path(__file__).parent / "data" / "s3gen_small.npz"
    with np.load(kept) as arrays:
        assert difference(mel, arrays["mel"]) < 2e-4
        assert s3gen.signal_to_noise(wave, arrays["wave"]) > 40
        assert difference(speaker, arrays["speaker"]) < 1e-5
        assert float(np.abs(arrays["wave"]).max()) > 0.05


@pytest.mark.long
def test_samples_of_a_training_sound_in_the_built_in_voice(fixtures: Fixtures, tmp_path: Path) -> None:
    loop = loop_of(fixtures.place("chatterbox"), tmp_path / "run", OPTIONS, replace(EVERY, sample_every=8))
    sentence = SampleSentence("en", "en", "I", (20, 30, 40), False, 2)
    saved(small_state(), tmp_path / "s3gen.pt")
    silent = SampleCallback(loop, [sentence], vocoder_of(tmp_path)).on_sample(0)
    assert "neither a recording" in silent["silent_because"]
    write_conditions(tmp_path / "conds.pt")
    reported = SampleCallback(loop, [sentence], vocoder_of(tmp_path)).on_sample(0)
    assert reported["silent_because"] == ""
    samples, rate = read_audio(loop.run_folder.path / reported["folder"] / "en.wav")
    assert (len(samples), rate) == (960 * reported["spoken"][0]["codes"], 24_000)
