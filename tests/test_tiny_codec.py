"""The tiny codec keeps its promises whatever its weights are: these are random ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, VoxgraftError
from voxgraft.models.tiny.model import CODE_HZ, SAMPLE_RATE, FiniteScalarQuantizer, TinyCodec, TinyCodecConfig

SPEAKERS = ("m1", "f2", "slt")
SMALL = TinyCodecConfig(SPEAKERS, (4, 3, 5), 20, 24, 32, 24, encoder_blocks=(1, 2, 1), decoder_blocks=(1, 1, 2))
SAMPLES_A_CODE = SAMPLE_RATE // CODE_HZ


@pytest.fixture(scope="module")
def codec() -> TinyCodec:
    torch.manual_seed(1)
    codec = TinyCodec(SMALL).eval()
    with torch.no_grad():  # random latents hardly differ between frames: without their mean, many codes are used
        codec.encoder.leave.weight.mul_(20)
        codec.encoder.leave.bias.sub_(codec.latents(waves(32_000)[0]).mean((0, 1)))
    return codec


def waves(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    rows = [torch.randn(length) * 0.2 for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(lengths)


def test_codes_are_in_range_and_one_for_every_40_ms_begun(codec: TinyCodec) -> None:
    batch, lengths = waves(640, 641, 6400, 1)
    codes, counts = codec.encode(batch, lengths)
    assert counts.tolist() == [1, 2, 10, 1]
    assert codes.shape == (4, 10)
    assert int(codes.min()) >= 0
    assert int(codes.max()) < codec.num_codes == 60


def test_different_sounds_get_different_codes(codec: TinyCodec) -> None:
    batch, _ = waves(16_000, 16_000)
    codes, _ = codec.encode(batch)
    assert len(set(codes.flatten().tolist())) > 3
    assert not torch.equal(codes[0], codes[1])


def test_a_clip_has_the_same_codes_alone_and_beside_any_other(codec: TinyCodec) -> None:
    batch, lengths = waves(9_000, 3_333, 640, 12_345)
    codes, counts = codec.encode(batch, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, count = codec.encode(batch[row : row + 1, :length])
        assert torch.equal(codes[row, : counts[row]], alone[0, : count[0]])


def test_what_stands_behind_the_end_of_a_clip_changes_nothing(codec: TinyCodec) -> None:
    batch, lengths = waves(9_000, 3_333)
    padded = codec.latents(batch, -(-lengths // SAMPLES_A_CODE))[1, :6]
    alone = codec.latents(batch[1:, :3_333])[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)


def test_speech_is_as_long_as_its_codes(codec: TinyCodec) -> None:
    codes = torch.randint(0, codec.num_codes, (3, 7))
    together = codec.decode(codes, "f2")
    assert together.shape == (3, 7 * SAMPLES_A_CODE)
    assert codec.decode(codes[1], "f2").shape == (7 * SAMPLES_A_CODE,)
    torch.testing.assert_close(codec.decode(codes[1], "f2"), together[1], atol=1e-5, rtol=1e-5)
    assert bool(together.isfinite().all())


def test_speech_of_a_shorter_row_is_what_it_is_alone_and_then_silence(codec: TinyCodec) -> None:
    codes = torch.randint(0, codec.num_codes, (2, 9))
    together = codec.decode(codes, "m1", torch.tensor([9, 4]))
    torch.testing.assert_close(
        together[1, : 4 * SAMPLES_A_CODE], codec.decode(codes[1, :4], "m1"), atol=1e-5, rtol=1e-5
    )
    assert not together[1, 4 * SAMPLES_A_CODE :].any()


def test_speakers_sound_different(codec: TinyCodec) -> None:
    codes = torch.randint(0, codec.num_codes, (12,))
    assert not torch.allclose(codec.decode(codes, "m1"), codec.decode(codes, "slt"), atol=1e-3)


def test_a_file_of_half_size_gives_the_same_codec_every_time(codec: TinyCodec, tmp_path: Path) -> None:
    codec.save(tmp_path / "once.safetensors")
    once = TinyCodec.open(tmp_path / "once.safetensors")
    once.save(tmp_path / "twice.safetensors")
    twice = TinyCodec.open(tmp_path / "twice.safetensors")
    assert (tmp_path / "once.safetensors").read_bytes() == (tmp_path / "twice.safetensors").read_bytes()
    assert once.config == twice.config == SMALL
    assert once.speakers == SPEAKERS
    assert all(parameter.dtype == torch.float32 for parameter in once.parameters())
    batch, _ = waves(8_000)
    assert torch.equal(once.encode(batch)[0], twice.encode(batch)[0])
    assert all(tensor.dtype == torch.float16 for tensor in load_file(tmp_path / "once.safetensors").values())


@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.data())
def test_every_code_is_made_of_its_own_digits(levels: list[int], data: st.DataObject) -> None:
    digits = FiniteScalarQuantizer(tuple(levels))
    total = int(torch.tensor(levels).prod())
    number = torch.tensor(data.draw(st.integers(0, total - 1)))
    own = digits.codes_to_digits(number)
    assert digits.numbers(own) == number
    assert bool((digits.scale_digits(own).abs() <= 1).all())


@given(st.integers(2, 9))
def test_every_digit_can_be_reached_and_no_other(level: int) -> None:
    digits = FiniteScalarQuantizer((level,))
    reached = digits.numbers(digits.rounded(torch.linspace(-9, 9, 2_000)[:, None]))
    assert set(reached.tolist()) == set(range(level))


def test_training_reaches_the_encoder_through_the_rounding(codec: TinyCodec) -> None:
    batch, _ = waves(3_200)
    made = codec.decoder(codec.digits.rounded(codec.latents(batch)), torch.tensor([0]))
    made.square().sum().backward()
    gradient = codec.encoder.enter.weight.grad
    codec.zero_grad(set_to_none=True)
    assert gradient is not None
    assert bool(gradient.abs().sum() > 0)


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(640), torch.zeros(1, 640, dtype=torch.int16), torch.zeros(1, 1, 640)],
    ids=["no batch", "16-bit numbers", "channels"],
)
def test_what_is_no_batch_of_waves_is_refused(codec: TinyCodec, bad: torch.Tensor) -> None:
    with pytest.raises(AudioError) as caught:
        codec.encode(bad)
    assert caught.value.code == "audio-shape"


def test_empty_clips_and_lengths_past_the_end_are_refused(codec: TinyCodec) -> None:
    for batch, lengths in [
        (torch.zeros(1, 0), None),
        (torch.zeros(2, 640), torch.tensor([640, 0])),
        (torch.zeros(1, 640), torch.tensor([641])),
        (torch.zeros(2, 640), torch.tensor([640])),
    ]:
        with pytest.raises(AudioError) as caught:
            codec.encode(batch, lengths)
        assert caught.value.code == "audio-too-short"


def test_unknown_codes_and_speakers_are_refused_by_name(codec: TinyCodec) -> None:
    with pytest.raises(AudioError, match="code 60"):
        codec.decode(torch.tensor([0, 60]), "m1")
    with pytest.raises(AudioError, match="code -1"):
        codec.decode(torch.tensor([-1]), "m1")
    with pytest.raises(ConfigError, match="m1, f2, slt"):
        codec.decode(torch.tensor([0]), "m7")


def test_files_that_are_no_codec_are_refused(codec: TinyCodec, tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError) as caught:
        TinyCodec.open(tmp_path / "other.safetensors")
    assert caught.value.code == "codec-notes"
    codec.save(tmp_path / "codec.safetensors")
    whole = (tmp_path / "codec.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(VoxgraftError):
        TinyCodec.open(tmp_path / "cut.safetensors")
    with pytest.raises(VoxgraftError):
        TinyCodec.open(tmp_path / "none.safetensors")
