"""The voice encoder: the original's numbers, one voice a clip whatever else is in the list, strict files and inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.audio import DEVICES, UNUSABLE, golden_wave, noise, recordings, refuses_unusable
from tests.support.checkpoint_files import saved
from tests.support.shared import difference, expected, golden_state, names
from voxgraft.audio.features import Waveform, find_sound_bounds
from voxgraft.core.errors import CheckpointError, VoxgraftError
from voxgraft.models.chatterbox.encoder import TRIM_DB, WINDOW_FRAMES, VoiceEncoder, split_into_windows

GOLDEN_LIMIT = 1e-5


@pytest.fixture(scope="module", params=DEVICES)
def golden_encoder(request: pytest.FixtureRequest) -> VoiceEncoder:
    encoder = VoiceEncoder()
    encoder.load_state_dict(golden_state(names("chatterbox", "ve")))
    return encoder.to(request.param)


@pytest.fixture(scope="module")
def random_encoder() -> VoiceEncoder:
    torch.manual_seed(0)
    return VoiceEncoder()


def test_names_and_shapes_are_upstreams() -> None:
    state = VoiceEncoder().state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == names("chatterbox", "ve")


def test_silence_is_trimmed_where_the_original_trims_it() -> None:
    arrays = expected("chatterbox", "ve_expected.npz")
    assert find_sound_bounds(golden_wave(), TRIM_DB) == tuple(arrays["trim_start_end"])


def test_mel_power_is_the_originals(golden_encoder: VoiceEncoder) -> None:
    arrays = expected("chatterbox", "ve_expected.npz")
    start, end = arrays["trim_start_end"]
    mel = golden_encoder.mel(golden_wave()[start:end])
    assert len(mel) == arrays["mel_frames"]
    assert difference(mel[:20], arrays["mel_first20"]) < GOLDEN_LIMIT
    assert difference(golden_encoder.mel_filters.cpu(), arrays["mel_basis"]) < 1e-8


def test_every_window_gives_the_originals_numbers(golden_encoder: VoiceEncoder) -> None:
    arrays = expected("chatterbox", "ve_expected.npz")
    start, end = arrays["trim_start_end"]
    windows = split_into_windows(golden_encoder.mel(golden_wave()[start:end]))
    assert (
        difference(golden_encoder(windows.to(golden_encoder.proj.weight)).cpu(), arrays["partial_embeddings"])
        < GOLDEN_LIMIT
    )


def test_the_voice_is_the_originals(golden_encoder: VoiceEncoder) -> None:
    arrays, wave = expected("chatterbox", "ve_expected.npz"), golden_wave()
    assert difference(golden_encoder.embed([wave])[0].cpu(), arrays["embedding"]) < GOLDEN_LIMIT
    untrimmed = golden_encoder.embed([wave], trim=False)[0].cpu()
    assert difference(untrimmed, arrays["embedding_no_trim"]) < GOLDEN_LIMIT
    half = golden_encoder.embed([wave], step_frames=80)[0].cpu()
    assert difference(half, arrays["embedding_overlap_half"]) < GOLDEN_LIMIT


def test_a_clip_has_the_same_voice_in_any_list(golden_encoder: VoiceEncoder) -> None:
    clips = recordings()
    together = golden_encoder.embed(clips)
    assert together.shape == (len(clips), 256)
    for row, clip in zip(together, clips, strict=True):
        assert float((row - golden_encoder.embed([clip])[0]).abs().max()) < 1e-6
        assert float(row.norm()) == pytest.approx(1, abs=1e-6)


def test_no_clips_give_no_voices(random_encoder: VoiceEncoder) -> None:
    assert random_encoder.embed([]).shape == (0, 256)


def test_silence_around_a_clip_does_not_change_its_voice(random_encoder: VoiceEncoder) -> None:
    clip, silence = noise(16_000), torch.zeros(10 * 512)
    around = torch.cat([silence, clip, silence])
    start, end = find_sound_bounds(around, TRIM_DB)
    kept = around[start:end]
    assert len(clip) <= len(kept) < len(clip) + 6 * 512
    voices = random_encoder.embed([around, torch.cat([silence, around, silence]), kept])
    assert torch.equal(voices[0], voices[1])
    assert torch.allclose(voices[0], voices[2], atol=1e-6)


@pytest.mark.parametrize(
    ("num_frames", "num_windows"),
    [(1, 1), (159, 1), (160, 1), (204, 1), (205, 2), (237, 2), (269, 2), (281, 2), (282, 3)],
)
def test_a_window_counts_if_it_is_full_or_the_last_and_filled_enough(num_frames: int, num_windows: int) -> None:
    mel = torch.arange(1, num_frames + 1.0)[:, None].expand(num_frames, 2)
    windows = split_into_windows(mel)
    assert windows.shape == (num_windows, WINDOW_FRAMES, 2)
    for number, window in enumerate(windows):
        own = torch.arange(WINDOW_FRAMES) + 77 * number + 1.0
        assert torch.equal(window[:, 0], own.where(own <= num_frames, torch.zeros(())))


def test_a_short_clip_has_a_voice_too(random_encoder: VoiceEncoder) -> None:
    voice = random_encoder.embed([noise(400)])[0]
    assert float(voice.norm()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("file", ["ve.pt", "ve.safetensors"])
def test_it_gives_the_same_bits_after_its_way_through_a_file(
    tmp_path: Path, random_encoder: VoiceEncoder, file: str
) -> None:
    state = random_encoder.state_dict()
    if file.endswith(".pt"):
        saved(state, tmp_path / file)
    else:
        save_file(state, tmp_path / file)
    clips: list[Waveform] = [noise(30_000), noise(9_000, seed=1).numpy().astype(np.float64)]
    for place in (tmp_path, tmp_path / file):
        assert torch.equal(VoiceEncoder.load(place).embed(clips), random_encoder.embed(clips))


def test_another_file_is_refused_with_every_tensor_that_does_not_fit(
    tmp_path: Path, random_encoder: VoiceEncoder
) -> None:
    state = random_encoder.state_dict()
    del state["lstm.bias_hh_l2"]
    state["proj.weight"] = torch.zeros(192, 256)
    path = saved(state, tmp_path / "ve.pt")
    with pytest.raises(CheckpointError) as caught:
        VoiceEncoder.load(tmp_path)
    text = str(caught.value)
    assert "lstm.bias_hh_l2 [1024] is missing" in text
    assert "proj.weight is [192, 256], not [256, 256]" in text
    assert str(path) in text


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_waveform_that_cannot_be_used_is_refused_by_its_place(random_encoder: VoiceEncoder, kind: str) -> None:
    refuses_unusable(random_encoder.embed, kind)


def test_a_single_waveform_is_not_taken_for_a_list(random_encoder: VoiceEncoder) -> None:
    with pytest.raises(VoxgraftError, match="put the waveform into a list"):
        random_encoder.embed(noise(16_000))  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [0.0, 1e-6])
def test_silence_has_no_voice(random_encoder: VoiceEncoder, level: float) -> None:
    with pytest.raises(VoxgraftError) as caught:
        random_encoder.embed([level * noise(16_000)])
    assert caught.value.code == "audio-silent"
