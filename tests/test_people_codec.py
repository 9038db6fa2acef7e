"""The codec for human voices: rows do not depend on each other, segments do not overlap, a step learns."""

from __future__ import annotations

import ctypes.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.human_voices.network import CTCTeacher, PeopleCodec
from recipes.human_voices.opus import Opus, read_opus_pack, write_opus_pack
from recipes.human_voices.pack import HumanClip
from recipes.human_voices.speech_buffer import (
    SPEEDS,
    SpeechBuffer,
    TrainingClip,
    add_noise,
    augment_channel,
    change_speed,
)
from recipes.human_voices.train_people import SMALL, Training, crop_clips
from recipes.human_voices.train_teacher import decode_greedy
from tests.contract.test_encoders import clip as speech_like

RATE_HZ = 16_000


def build_training_clips(voice: str, seconds: float, seed: int = 0) -> TrainingClip:
    wave = (speech_like(seconds, seed) * 32767).astype(np.int16)
    return TrainingClip(voice, wave, ("xx.a", "xx.b"), 1.0, has_speeds=True)


def two_voices() -> SpeechBuffer:
    clips = [build_training_clips(voice, 4.0 + number, number) for voice in "ab" for number in range(6)]
    return SpeechBuffer(clips, torch.device("cpu"), SPEEDS[:3])


def test_a_clip_has_the_same_codes_and_sound_beside_a_longer_one() -> None:
    torch.manual_seed(0)
    codec = PeopleCodec(SMALL.config).eval()
    waves = torch.zeros(2, 24_000)
    waves[0] = torch.from_numpy(speech_like(1.5, 0))
    waves[1, :15_000] = torch.from_numpy(speech_like(1.0, 1))[:15_000]
    lengths = torch.tensor([24_000, 15_000])
    codes, counts = codec.encode(waves, lengths)
    alone, (count,) = codec.encode(waves[1:, :15_000])
    assert counts.tolist() == [38, 24]
    assert count == 24
    assert torch.equal(codes[1, :24], alone[0])
    with torch.no_grad():
        voices = codec.speaker_encoder(waves, lengths)
        torch.testing.assert_close(voices[1], codec.speaker_encoder(waves[1:, :15_000])[0])
    sound, own = codec.decode(codes, voices, counts), codec.decode(alone, voices[1:])
    torch.testing.assert_close(sound[1, : own.shape[1]], own[0])
    assert not sound[1, own.shape[1] :].any()
    _, scores = CTCTeacher(3, 3, 64)(waves, lengths)
    assert scores.shape == (2, 75, 4)


def test_a_piece_and_its_reference_are_of_one_voice_and_do_not_overlap() -> None:
    buffer = two_voices()
    assert len(buffer.region_starts) == 6
    places: list[torch.Tensor] = []
    buffer.slice_at = lambda starts, _: places.append(starts) or starts  # type: ignore[assignment, func-returns-value]
    for _ in range(20):
        buffer.sample_segments(64, 51_200, 48_000)
    for piece, reference in zip(places[::2], places[1::2], strict=True):
        own = (torch.bucketize(piece, buffer.region_starts, right=True) - 1).tolist()
        assert own == (torch.bucketize(reference, buffer.region_starts, right=True) - 1).tolist()
        assert bool((reference >= buffer.region_starts[own]).all())
        assert bool((piece + 51_200 <= buffer.region_ends[own]).all())
        assert bool((reference + 48_000 <= buffer.region_ends[own]).all())
        assert bool(((reference >= piece + 51_200) | (reference + 48_000 <= piece)).all())


@pytest.mark.parametrize(("longer", "by"), [(6, 5), (15, 16)])
def test_a_slower_tape_is_longer_and_deeper(longer: int, by: int) -> None:
    times = torch.arange(3 * 160_000 + 777) / RATE_HZ
    tone = ((2 * torch.pi * 400 * times).sin() * 20_000).to(torch.int16)
    made = change_speed(tone, longer, by)
    assert len(made) == -(-len(tone) * longer // by)
    peak = torch.fft.rfft(made.float()).abs().argmax() * RATE_HZ / len(made)
    assert float(peak) == pytest.approx(400 * by / longer, rel=1e-3)


def test_clips_lie_where_the_row_says_they_do() -> None:
    clips = [build_training_clips("a", 5.0, 1), build_training_clips("a", 20.0, 2)]
    buffer = SpeechBuffer(clips, torch.device("cpu"), SPEEDS[:2])
    for start, length, number in zip(
        buffer.clip_starts[:2], buffer.clip_lengths[:2], buffer.clip_numbers[:2], strict=True
    ):
        np.testing.assert_array_equal(buffer.samples[start : start + length].numpy(), clips[number].wave)
    assert buffer.clip_lengths[2] == len(clips[0].wave) * 6 // 5


def test_a_room_changes_both_pieces_alike_and_noise_only_what_is_heard() -> None:
    torch.manual_seed(3)
    waves = torch.from_numpy(np.stack([speech_like(1.0, seed) for seed in range(8)])) * 0.3
    one, other = augment_channel(waves, waves)
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one, waves, atol=1e-3)
    noisy = [not torch.equal(a, b) for a, b in zip(add_noise(waves), waves, strict=True)]
    assert 0 < sum(noisy) < 8


def test_the_best_path_has_no_repeats_and_no_blanks() -> None:
    path = torch.tensor([[0, 1, 1, 0, 1, 2, 2, 0]])
    scores = torch.nn.functional.one_hot(path, 3).float()
    assert decode_greedy(scores, [8], ("a", "b")) == [("a", "a", "b")]
    assert decode_greedy(scores, [3], ("a", "b")) == [("a",)]


def test_steps_learn_with_and_without_the_critic() -> None:
    torch.manual_seed(0)
    sizes = replace(SMALL, rows=2, segment_samples=12_800, reference_samples=12_800, discriminator_samples=3_200)
    training = Training(sizes, two_voices(), CTCTeacher(2, 3, sizes.teacher_width), 2)

    def told(line: str) -> None:
        raise AssertionError(line)

    mels = []
    for step in range(14):
        training.take_step(0.2 if step < 12 else 0.8, told)
        mels.append(float(training.losses["mel"]))
    assert np.mean(mels[8:12]) < 0.9 * np.mean(mels[:3])
    assert {"discriminator", "adversarial", "feature_matching"} <= set(training.losses)
    assert all(torch.isfinite(value) for value in training.losses.values())
    assert not any(p.grad is None for p in training.parameters)
    held = crop_clips([build_training_clips("c", 0.5), build_training_clips("c", 2.0)], 12_800)
    assert held.shape == (2, 12_800)
    assert not held[0, 8_000:].any()
    assert 0 < training.validate(held)["mel"] < 3


@pytest.mark.skipif(ctypes.util.find_library("opus") is None, reason="libopus is not installed")
def test_an_opus_pack_has_every_clip_in_its_place(tmp_path: Path) -> None:
    opus = Opus()
    clips = [
        HumanClip(
            "p", str(seed), "ru", "s", f"Текст {seed}", "BSD", "train", build_training_clips("a", 1.0 + seed, seed).wave
        )
        for seed in range(3)
    ]
    write_opus_pack(tmp_path / "people.npz", clips, 24_000, opus)
    found = read_opus_pack(tmp_path / "people.npz", opus)
    for one, other in zip(clips, found, strict=True):
        assert replace(one, wave=other.wave) == other
        assert len(one.wave) == len(other.wave)
        assert np.corrcoef(one.wave, other.wave)[0, 1] > 0.8
    (tmp_path / "other.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="damaged, or is not a pack"):
        read_opus_pack(tmp_path / "other.npz", opus)
