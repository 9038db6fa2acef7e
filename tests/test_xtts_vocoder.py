"""XTTS's vocoder: the original's arrays from states to sound, batches, speed, strict files and voices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import xtts_audio as golden
from tests.support.checkpoint_files import saved
from tests.support.shared import difference
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, GraftError
from voxgraft.models.base import Clip
from voxgraft.models.xtts.shapes import VOCODER_PREFIX, vocoder_shapes
from voxgraft.models.xtts.vocoder import (
    HOP,
    HiFiGAN,
    HiFiGANSize,
    XTTSVocoder,
    interpolate_states,
    list_xtts_files,
)

# What the golden page recommends, in float32 on the CPU.
STATES_LIMIT, WAVE_LIMIT, INSIDE_LIMIT = 5e-5, 1e-4, 5e-4
TINY = HiFiGANSize(channels=16, inputs=8, speaker=512)


def count_frames(num_states: int) -> int:
    """Frames of 256 samples: each step rounds down."""
    return int(4 * num_states * 24_000 / 22_050)


def golden_states(kind: str) -> Tensor:
    return golden.floats("dec.latents", (20, golden.hifigan(kind).size.inputs), 1.7)


def golden_voice() -> Tensor:
    voice = golden.floats("dec.voice", (512,), 1.0)
    vector: Tensor = voice / voice.norm()
    return vector


# ---- the original's arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", golden.KINDS)
def test_every_published_name_is_read(kind: str) -> None:
    published = golden.shapes(f"model_{kind}", VOCODER_PREFIX)
    size = HiFiGANSize.of(published)
    assert len(published) == 241
    assert vocoder_shapes(size.inputs, size.channels, size.speaker) == published
    assert (size == HiFiGANSize()) == (kind == "full")


@pytest.mark.long(fast="small")
@pytest.mark.parametrize("kind", golden.KINDS)
def test_the_wave_is_the_originals_inside_and_outside(kind: str) -> None:
    arrays, network, states = golden.arrays(), golden.hifigan(kind), golden_states(kind)
    frames = interpolate_states(states)
    assert difference(frames.T[:8], arrays[f"{kind}.dec.interpolated_first8"]) < STATES_LIMIT
    start = f"{kind}.dec.at."
    names = {name: name.removeprefix(start) for name in arrays if name.startswith(start)}
    with golden.outputs_of(network, names) as seen:
        (wave,) = network.vocode([frames], [golden_voice()])
    assert difference(wave, arrays[f"{kind}.dec.wave"]) < WAVE_LIMIT
    assert len(seen) == 11
    for name, found in seen.items():
        # The original gives its first convolution no batch axis, so that "item 0" is the first channel there.
        own = found[:1] if name.endswith("conv_pre") else found
        assert difference(golden.corners(own), arrays[name]) < INSIDE_LIMIT, name


@pytest.mark.long(fast="small")
@pytest.mark.parametrize("kind", golden.KINDS)
def test_an_utterance_sounds_as_the_originals(tmp_path: Path, kind: str) -> None:
    """From the states of the GPT and a voice's vector to sound, from a file in the published form; also faster."""
    arrays = golden.arrays()
    tensors = {VOCODER_PREFIX + name: one for name, one in golden.state(f"model_{kind}", VOCODER_PREFIX).items()}
    path = saved({"model": tensors, "step": 0}, tmp_path / "model.pth")
    voice, states = Clip(voice={"speaker": arrays["spk.w2.embedding"]}), arrays[f"{kind}.latents_a"]
    vocoder = XTTSVocoder(path)
    (wave,) = vocoder.sound([range(20)], [voice], [states])
    assert difference(torch.from_numpy(wave), arrays[f"{kind}.utterance_a.wave"]) < WAVE_LIMIT
    # 20 codes of which the last is the stop: its state is sounded like the others.
    (with_stop,) = vocoder.sound([range(19)], [voice], [states])
    assert np.array_equal(with_stop, wave)
    vocoder.speed = 1.3
    (fast,) = vocoder.sound([range(20)], [voice], [states])
    assert len(fast) == arrays[f"{kind}.utterance_a.speed13_length"]
    assert difference(torch.from_numpy(fast[:4000]), arrays[f"{kind}.utterance_a.speed13_wave_first4000"]) < WAVE_LIMIT


@pytest.mark.parametrize("kind", golden.KINDS)
def test_states_are_interpolated_as_in_the_original(kind: str) -> None:
    arrays = golden.arrays()
    wanted = arrays[f"{kind}.utterance_a.speed13_latents_first16"]
    states = torch.from_numpy(arrays[f"{kind}.latents_a"])
    stretched = torch.nn.functional.interpolate(states.T[None], scale_factor=1 / 1.3, mode="linear")[0].T
    assert difference(stretched[:, :16], wanted) < STATES_LIMIT
    assert torch.equal(interpolate_states(states, 1.3), interpolate_states(stretched))


@pytest.mark.parametrize("speed", [1.0, 1.3, 0.5, 4.0])
def test_interpolation_takes_two_steps_and_ends_at_the_last_state(speed: float) -> None:
    """The formula of each step: half-pixel centres, not before the first and not behind the last."""
    for length in (1, 2, 7, 53):
        x = np.random.default_rng(length).standard_normal((length, 3))
        found = interpolate_states(torch.from_numpy(x).float(), speed)
        for scale in ([] if speed == 1 else [1 / speed]) + [4.0, 24_000 / 22_050]:
            count = int(len(x) * scale)
            if count == len(x) or not count:  # torch, and so the original, copies where the length stays
                x = x[:count]
                continue
            places = np.clip((np.arange(count) + 0.5) / scale - 0.5, 0, None)
            first = np.minimum(places.astype(int), len(x) - 1)
            after, share = np.minimum(first + 1, len(x) - 1), (places - first)[:, None]
            x = x[first] * (1 - share) + x[after] * share
        assert len(found) == len(x)
        if len(x):
            assert np.abs(found.numpy() - x).max() < 1e-4


# ---- batches ---------------------------------------------------------------------------------------------------------


def tiny_tensors(seed: int = 0) -> dict[str, Tensor]:
    return golden.random_tensors(vocoder_shapes(TINY.inputs, TINY.channels, TINY.speaker), seed)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return saved(
        {"model": {VOCODER_PREFIX + name: one for name, one in tiny_tensors().items()}}, tmp_path / "model.pth"
    )


def utterance(num_codes: int, seed: int | None = None) -> tuple[list[int], Clip, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(num_codes if seed is None else seed)
    vector = draw.standard_normal(512).astype(np.float32)
    return [0] * num_codes, Clip(voice={"speaker": vector}), draw.standard_normal((num_codes, 8)).astype(np.float32)


def test_utterances_of_different_lengths_are_what_they_are_alone(model_file: Path) -> None:
    vocoder = XTTSVocoder(model_file)
    codes, voices, latents = zip(*(utterance(length) for length in (23, 1, 20, 0, 23, 21, 2)), strict=True)
    together = vocoder.sound(codes, voices, latents)
    for own, voice, states, wave in zip(codes, voices, latents, together, strict=True):
        (alone,) = vocoder.sound([own], [voice], [states])
        assert len(wave) == len(alone) == HOP * count_frames(len(own))
        assert np.abs(wave - alone).max(initial=0) < 1e-5
    assert max(np.abs(wave).max(initial=0) for wave in together) > 0.05


def test_the_network_itself_masks_its_padding() -> None:
    network = HiFiGAN.from_tensors(TINY, tiny_tensors())
    draw = torch.Generator().manual_seed(0)
    frames = [torch.randn(length, 8, generator=draw) for length in (31, 9, 1)]
    voices = list(torch.randn(3, 512, generator=draw))
    for own, voice, wave in zip(frames, voices, network.vocode(frames, voices), strict=True):
        assert wave.shape == (HOP * len(own),)
        assert (wave - network(own[None], voice[None])[0]).abs().max() < 1e-5


def test_the_same_states_sound_differently_in_another_voice(model_file: Path) -> None:
    codes, voice, states = utterance(5)
    _, other, _ = utterance(5, seed=99)
    one, two = XTTSVocoder(model_file).sound([codes, codes], [voice, other], [states, states])
    assert np.abs(one - two).max() > 0.01


def test_speed_changes_the_length(model_file: Path) -> None:
    codes, voice, states = utterance(26)
    (usual,) = XTTSVocoder(model_file).sound([codes], [voice], [states])
    (fast,) = XTTSVocoder(model_file, speed=1.3).sound([codes], [voice], [states])
    assert (len(usual), len(fast)) == (HOP * count_frames(26), HOP * count_frames(20))
    # So fast that not one state is left.
    (nothing,) = XTTSVocoder(model_file, speed=4.0).sound([codes[:2]], [voice], [states[:2]])
    assert len(nothing) == 0
    for speed in (0.0, -1.0, 4.1, float("nan")):
        with pytest.raises(ConfigError):
            XTTSVocoder(model_file, speed=speed)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("no latents", "packing"),
        ("fewer latents", "packing"),
        ("fewer voices", "packing"),
        ("another width", "condition-form"),
        ("two states more", "condition-form"),
        ("a state less", "condition-form"),
        ("NaN", "condition-form"),
        ("no vector", "vocoder-voice"),
        ("another vector", "condition-form"),
    ],
)
def test_what_does_not_fit_together_is_refused(model_file: Path, what: str, code: str) -> None:
    vocoder = XTTSVocoder(model_file)
    codes, voice, states = utterance(4)
    given: tuple[Any, Any, Any] = {
        "no latents": ([codes], [voice], None),
        "fewer latents": ([codes, codes], [voice, voice], [states]),
        "fewer voices": ([codes, codes], [voice], [states, states]),
        "another width": ([codes], [voice], [states[:, :7]]),
        "two states more": ([codes[:2]], [voice], [states]),
        "a state less": ([[*codes, 0]], [voice], [states]),
        "NaN": ([codes], [voice], [states * np.float32(np.nan)]),
        "no vector": ([codes], [Clip()], [states]),
        "another vector": ([codes], [Clip(voice={"speaker": np.zeros(192, np.float32)})], [states]),
    }[what]
    with pytest.raises((GraftError, AudioError)) as refusal:
        vocoder.sound(*given)
    assert refusal.value.code == code


def test_why_not_says_what_a_voice_lacks(model_file: Path) -> None:
    vocoder = XTTSVocoder(model_file)
    assert vocoder.why_not(utterance(1)[1]) == ""
    assert "speaker vector" in vocoder.why_not(Clip(voice={"latents": np.zeros((32, 8), np.float32)}))


@pytest.mark.parametrize("change", ["missing", "besides", "shape"])
def test_a_checkpoint_without_a_whole_vocoder_is_found_and_refused_when_it_should_sound(
    tmp_path: Path, change: str
) -> None:
    files = golden.write_base(tmp_path)
    model = torch.load(files.checkpoint)["model"]
    name = "resblocks.7.convs2.1.parametrizations.weight.original1"
    if change == "missing":
        del model[VOCODER_PREFIX + name]
    elif change == "besides":
        name = "resblocks.12.convs1.0.bias"
        model[VOCODER_PREFIX + name] = torch.zeros(2)
    else:
        model[VOCODER_PREFIX + name] = torch.zeros(3)
    saved({"model": model}, files.checkpoint)
    vocoder = XTTSVocoder.find(files)
    assert vocoder is not None
    assert name in vocoder.why_not(utterance(1)[1])
    for attempt in (vocoder.validate, lambda: vocoder.sound([], [], [])):
        with pytest.raises(CheckpointError) as refusal:
            attempt()
        assert refusal.value.code == "tensors-mismatch"


def test_a_checkpoint_with_the_language_model_alone_has_no_vocoder(tmp_path: Path) -> None:
    files = golden.write_base(tmp_path)
    model = torch.load(files.checkpoint)["model"]
    assert XTTSVocoder.find(files) is not None
    saved({name: one for name, one in model.items() if name.startswith("gpt.")}, files.checkpoint)
    assert XTTSVocoder.find(files) is None


def test_a_base_speaks_with_a_voice_of_its_own_file(tmp_path: Path) -> None:
    from voxgraft.models.xtts.encoder import read_xtts_voices

    files = golden.write_base(tmp_path)
    voices = {"Ana": {"gpt_cond_latent": torch.randn(1, 32, 16), "speaker_embedding": torch.randn(1, 512, 1)}}
    clip = read_xtts_voices(saved(voices, tmp_path / "speakers_xtts.pth"))["Ana"]
    vocoder = XTTSVocoder.find(files)
    assert vocoder is not None
    vocoder.validate()
    states = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    (wave,) = vocoder.sound([[1] * 6], [clip], [states])
    assert (len(wave), bool(np.isfinite(wave).all()), vocoder.sample_rate) == (HOP * count_frames(6), True, 24_000)


# ---- files for `check BASE --speak` ----------------------------------------------------------------------------------


def test_sizes_of_all_files_of_a_base_are_read(tmp_path: Path) -> None:
    files = golden.write_base(tmp_path)
    saved(torch.ones(80), tmp_path / "mel_stats.pth")
    voices = {"Ana": {"a": torch.zeros(1, 32, 16), "b": torch.zeros(1, 512, 1)}}
    saved(voices, tmp_path / "speakers_xtts.pth")
    listed = {entry.names[0]: entry for entry in list_xtts_files(files)}
    assert {name for name, entry in listed.items() if entry.needed} == {"model.pth", "dvae.pth"}
    sizes = {name: entry.read_size(tmp_path / name) for name, entry in listed.items()}
    assert sizes["model.pth"] == golden.SMALL_SIZE
    assert sizes["dvae.pth"] == golden.SMALL_DVAE
    assert sizes["mel_stats.pth"] == listed["mel_stats.pth"].published[0]
    assert sizes["speakers_xtts.pth"] == {"latents": ((32, 16),)}
