"""XTTS's clip encoder: the original's arrays from the mel to codes and voices, batches, strict files, bad recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import xtts_audio as golden
from tests.support.audio import noise, recordings
from tests.support.checkpoint_files import saved
from tests.support.shared import difference
from voxgraft.audio.features import mel_filters, resample_sinc
from voxgraft.core.errors import AudioError, CheckpointError, ConfigError, FileError, VoxgraftError
from voxgraft.models.xtts.encoder import (
    DVAE_FFT,
    MAX_CONDITIONING_SAMPLES,
    MIN_CONDITIONING_SAMPLES,
    MIN_VOICE_SAMPLES,
    SAMPLE_RATE,
    SPEAKER_RATE,
    TOP_HZ,
    DiscreteVAE,
    DVAESize,
    ReferenceSettings,
    ResNetSpeakerEncoder,
    XTTSClipEncoder,
    choose_conditioning_span,
    compute_conditioning_mel,
    compute_dvae_mel,
    compute_speaker_mel,
    count_codes,
    prepare_reference,
    read_xtts_voices,
    split_conditioning_chunks,
)
from voxgraft.models.xtts.shapes import SPEAKER_ENCODER_PREFIX, dvae_shapes, speaker_encoder_shapes

# What the golden page recommends, in float32 on the CPU.
MEL_LIMIT, LATENT_LIMIT, MARGIN_LIMIT, INSIDE_LIMIT = 1e-4, 5e-5, 5e-3, 5e-4


# ---- the original's arrays -------------------------------------------------------------------------------------------


def test_filters_and_statistics_are_the_originals() -> None:
    arrays = golden.arrays()
    filters = mel_filters(SAMPLE_RATE, DVAE_FFT, 80, TOP_HZ, htk=True)
    assert difference(filters, arrays["mel_filters_1024"]) < 1e-6
    speaker_filters = mel_filters(SPEAKER_RATE, 512, 64, htk=True, equal_areas=False)
    assert difference(speaker_filters, arrays["spk.mel_filters"]) < 2e-5  # the original's are rounded
    assert difference(golden.mel_stats(), arrays["in.mel_stats"]) == 0


def test_mels_are_the_originals() -> None:
    arrays, stats = golden.arrays(), golden.mel_stats()
    assert difference(compute_conditioning_mel(golden.wave("w2"), stats), arrays["cond.w2.mel"]) < MEL_LIMIT
    for compute, place in (
        (compute_conditioning_mel, "cond.w1"),
        (compute_dvae_mel, "dvae.w1"),
        (compute_dvae_mel, "dvae.w2"),
    ):
        mel = compute(golden.wave(place[-2:]), stats)
        assert mel.shape == (80, arrays[f"{place}.frames"].item())
        assert difference(mel[:, :12], arrays[f"{place}.mel_first12"]) < MEL_LIMIT
        assert difference(mel[:, -12:], arrays[f"{place}.mel_last12"]) < MEL_LIMIT
        assert difference(mel.mean(1), arrays[f"{place}.mel_mean"]) < MEL_LIMIT


def test_mels_of_padded_training_clips_are_the_originals() -> None:
    wave = golden.wave("w1")
    clips = [torch.nn.functional.pad(wave[a:b], (0, 40_000 - (b - a))) for a, b in ((3_000, 36_000), (10_000, 50_000))]
    means = torch.stack([compute_conditioning_mel(clip, golden.mel_stats()).mean(1) for clip in clips])
    assert difference(means, golden.arrays()["small.train.cond_mel_mean"]) < MEL_LIMIT


def test_the_speaker_vector_is_the_originals_inside_and_outside() -> None:
    arrays, network = golden.arrays(), golden.speaker_encoder()
    wave = resample_sinc(golden.wave("w2"), SAMPLE_RATE, SPEAKER_RATE)
    assert len(wave) == arrays["spk.w2.resampled_length"]
    assert difference(wave[:2000], arrays["spk.w2.resampled_first2000"]) < 1e-6
    assert difference(wave[-200:], arrays["spk.w2.resampled_last200"]) < 1e-6
    assert difference(compute_speaker_mel(wave), arrays["spk.w2.mel"]) < 2e-3
    mel = network.compute_input(wave)
    assert difference(mel, arrays["spk.w2.input"]) < 2e-2
    places = {name.removeprefix("spk.at."): name for name in arrays if name.startswith("spk.at.")}
    with golden.outputs_of(network, {name: place for place, name in places.items()}) as seen:
        raw = network(mel[None])[0]
    assert difference(raw, arrays["spk.w2.raw"]) < 1e-4
    assert len(seen) == 9
    for name, found in seen.items():
        assert difference(golden.corners(found), arrays[name]) < INSIDE_LIMIT, name


def test_pre_emphasis_mirrors_the_first_sample() -> None:
    wave = noise(4_000)  # loud from the start, unlike the golden waves
    before = torch.nn.functional.pad(wave[None], (1, 0), mode="reflect")[0, :-1]
    window = torch.nn.functional.pad(torch.hamming_window(400), (56, 56))
    spectrum = torch.stft(wave - 0.97 * before, 512, 160, window=window, return_complex=True).abs().square()
    wanted = mel_filters(SPEAKER_RATE, 512, 64, htk=True, equal_areas=False) @ spectrum
    assert (compute_speaker_mel(wave) - wanted).abs().max() < 1e-4 * wanted.max()
    assert wanted[:, 0].max() > 0.01 * wanted.max()


def test_speaker_vectors_of_other_recordings_are_the_originals() -> None:
    arrays, network = golden.arrays(), golden.speaker_encoder()
    waves = [resample_sinc(golden.wave(name), SAMPLE_RATE, SPEAKER_RATE) for name in ("w1", "w2")]
    vectors = network.embed([*waves, golden.wave("w2", SPEAKER_RATE)])
    for vector, name in zip(vectors, ("w1", "w2", "w2_16k"), strict=True):
        assert difference(vector, arrays[f"spk.{name}.embedding"]) < 1e-5


@pytest.mark.long(fast="small-*")
@pytest.mark.parametrize("what", ["w1", "w2", "made"])
@pytest.mark.parametrize("kind", golden.KINDS)
def test_codes_are_the_originals(kind: str, what: str) -> None:
    arrays, network, place = golden.arrays(), golden.dvae(kind), f"{kind}.dvae.{what}"
    mel = golden.floats("dvae.mel", (80, 181), 4.0) if what == "made" else _dvae_mel(what)
    names = {f"{kind}.dvae.at.encoder.{number}": f"encoder.{number}" for number in (0, 1, 2, 4, 5)}
    with golden.outputs_of(network, names) as seen:
        latents = network(mel.T[None])[0]
    codes, margins = network.quantize(latents)
    assert difference(latents[:, :32], arrays[f"{place}.latent_first32"]) < LATENT_LIMIT
    assert codes.tolist() == arrays[f"{place}.codes"].tolist()
    assert difference(margins, arrays[f"{place}.margin"]) < MARGIN_LIMIT
    if what == "w1":
        for name, found in seen.items():
            assert difference(golden.corners(found), arrays[name]) < INSIDE_LIMIT, name
    if what == "w2":
        decoded = network.decode(codes[None])[0]
        assert decoded.shape == (80, arrays[f"{place}.decoded_frames"].item())
        assert difference(decoded[:, :24], arrays[f"{place}.decoded_first24"]) < LATENT_LIMIT


def _dvae_mel(name: str) -> Tensor:
    return compute_dvae_mel(golden.wave(name), golden.mel_stats())


def golden_encoder(kind: str, seconds: float = 30, speakers: ResNetSpeakerEncoder | None = None) -> XTTSClipEncoder:
    """With the golden speaker encoder, unless the vectors do not matter."""
    settings = ReferenceSettings(conditioning_seconds=seconds)
    speakers = speakers or golden.speaker_encoder()
    return XTTSClipEncoder(
        golden.conditioning_model(kind), speakers, golden.mel_stats(), settings, golden.dvae("small")
    )


@pytest.mark.long(fast="small")
@pytest.mark.parametrize("kind", golden.KINDS)
def test_a_voice_to_speak_with_is_the_originals(kind: str) -> None:
    """From a recording at 22,050 Hz to latents and speaker vector: 30 s or 5 s of it, in chunks of 4 s."""
    arrays = golden.arrays()
    voice = golden_encoder(kind).encode_voice(golden.wave("w2").numpy(), SAMPLE_RATE).voice
    assert difference(torch.from_numpy(voice["latents"]), arrays[f"{kind}.cond.w2.latents"]) < LATENT_LIMIT
    assert difference(torch.from_numpy(voice["speaker"]), arrays["spk.w2.embedding"]) < 1e-5
    thin = ResNetSpeakerEncoder(1)
    w1, w3, four = golden.wave("w1").numpy(), golden.wave("w3").numpy(), 4 * SAMPLE_RATE
    for seconds, wave, name in (
        (30, w1, "w1.latents_first16"),
        (30, w3, "w3.latents_chunk4"),
        (5, w3, "w3.latents_len5_first16"),
        (30, w3[: four + 7_276], "w3.short_tail_first16"),
        (30, w3[: four + 7_277], "w3.kept_tail_first16"),
    ):
        wanted = arrays[f"{kind}.cond.{name}"]
        latents = torch.from_numpy(golden_encoder(kind, seconds, thin).encode_voice(wave, SAMPLE_RATE).voice["latents"])
        assert difference(latents[:, : wanted.shape[1]], wanted) < LATENT_LIMIT, name


def test_several_recordings_are_joined_for_latents_and_averaged_for_the_speaker_vector() -> None:
    torch.manual_seed(0)
    encoder = golden_encoder("small", speakers=ResNetSpeakerEncoder(8))
    waves = [golden.wave(name).numpy() for name in ("w2", "w1")]
    both = encoder.encode_recordings([(wave, SAMPLE_RATE) for wave in waves]).voice
    alone = [encoder.encode_voice(wave, SAMPLE_RATE).voice["speaker"] for wave in waves]
    assert np.abs(both["speaker"] - (alone[0] + alone[1]) / 2).max() < 1e-6
    assert np.linalg.norm(both["speaker"]) < 1 - 1e-5  # the mean is not brought to length 1 again
    joined = encoder.encode_voice(np.concatenate(waves), SAMPLE_RATE).voice["latents"]
    assert np.abs(both["latents"] - joined).max() < 1e-5


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> XTTSClipEncoder:
    files = golden.write_base(tmp_path_factory.mktemp("xtts"))
    return XTTSClipEncoder.load(files, golden.open_base(files))


def test_codes_do_not_change_in_a_batch() -> None:
    network = DiscreteVAE(golden.SMALL_DVAE)
    size = golden.SMALL_DVAE
    network.load_state_dict(golden.random_tensors(dvae_shapes(size.width, size.code_width, size.codes)))
    mels = [torch.randn(80, frames, generator=torch.Generator().manual_seed(frames)) for frames in (97, 100, 89, 98, 8)]
    together = network.encode(mels)
    for mel, codes in zip(mels, together, strict=True):
        assert len(codes) == -(-mel.shape[1] // 4)
        assert codes.tolist() == network.encode([mel])[0].tolist()
    assert len(set(together[0].tolist())) > 10


def test_every_clip_is_encoded_as_if_it_were_alone(encoder: XTTSClipEncoder) -> None:
    waves = [noise(samples, samples) for samples in (22_050, 20_480, 7_277, 21_504, 7_277 + 1)]
    for wave, clip in zip(waves, encoder.encode(waves), strict=True):
        alone = encoder.encode([wave.numpy()])[0]
        assert clip.codes.tolist() == alone.codes.tolist()
        assert np.abs(clip.voice["latents"] - alone.voice["latents"]).max() < 1e-5
        assert np.array_equal(clip.voice["speaker"], alone.voice["speaker"])
        assert (clip.voice["latents"].shape, clip.voice["speaker"].shape) == ((32, 16), (512,))


@pytest.mark.parametrize("num_samples", [MIN_VOICE_SAMPLES, 8_191, 8_192, 8_193, 9_216])
def test_a_clip_has_a_code_for_every_1024_samples_begun(encoder: XTTSClipEncoder, num_samples: int) -> None:
    (clip,) = encoder.encode([noise(num_samples)])
    assert len(clip.codes) == count_codes(num_samples) == -(-num_samples // 1024)


def test_encoding_is_exact_inside_autocast(encoder: XTTSClipEncoder) -> None:
    wave = noise(10_000)
    (wanted,) = encoder.encode([wave])
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = encoder.encode([wave])
    assert found.codes.tolist() == wanted.codes.tolist()
    assert all(np.array_equal(array, found.voice[name]) for name, array in wanted.voice.items())


def test_human_speech_has_varied_codes_and_voices_of_length_one(encoder: XTTSClipEncoder) -> None:
    for clip in encoder.encode(recordings()[:2]):
        assert len(set(clip.codes.tolist())) > 3
        assert abs(np.linalg.norm(clip.voice["speaker"]) - 1) < 1e-5


# ---- what a voice is taken from --------------------------------------------------------------------------------------


def test_latents_of_a_clip_to_learn_from_are_of_3_to_6_s_or_half_of_a_shorter_one() -> None:
    spans = [choose_conditioning_span(noise(300_000, seed)) for seed in range(40)]
    lengths = [end - start for start, end in spans]
    assert all(start >= 0 and end <= 300_000 for start, end in spans)
    assert min(lengths) >= MIN_CONDITIONING_SAMPLES
    assert max(lengths) <= MAX_CONDITIONING_SAMPLES
    assert len(set(lengths)) > 30
    assert len({start for start, _ in spans}) > 30
    assert spans == [choose_conditioning_span(noise(300_000, seed)) for seed in range(40)]
    for num_samples in (MIN_VOICE_SAMPLES, MIN_CONDITIONING_SAMPLES - 1):
        start, end = choose_conditioning_span(noise(num_samples))
        assert (end - start, 0 <= start <= end <= num_samples) == (num_samples // 2, True)
    # A clip that is a little longer than the least may be drawn longer than it is: half of it then.
    start, end = choose_conditioning_span(noise(MIN_CONDITIONING_SAMPLES))
    assert end - start in (MIN_CONDITIONING_SAMPLES, MIN_CONDITIONING_SAMPLES // 2)


def test_what_latents_are_learned_from_is_filled_up_to_6_s(encoder: XTTSClipEncoder) -> None:
    waves = [3 * noise(30_000, 1), noise(150_000, 2)]  # the first one has samples beyond 1
    for wave, clip in zip(waves, encoder.encode(waves), strict=True):
        clipped = wave.clamp(-1, 1)
        start, end = choose_conditioning_span(clipped)
        filled = torch.zeros(MAX_CONDITIONING_SAMPLES)
        filled[: end - start] = clipped[start:end]
        wanted = encoder.model.voice_latents([compute_conditioning_mel(filled, encoder.mel_stats)])
        assert np.abs(clip.voice["latents"] - wanted.numpy()).max() < 1e-5


def test_chunks_under_a_third_of_a_second_are_left_out() -> None:
    settings = ReferenceSettings(conditioning_seconds=10, chunk_seconds=4)
    lengths = {
        11 * SAMPLE_RATE: [88_200, 88_200, 44_100],
        4 * SAMPLE_RATE + 7_276: [88_200],
        4 * SAMPLE_RATE + 7_277: [88_200, 7_277],
    }
    for num_samples, chunks in lengths.items():
        assert list(map(len, split_conditioning_chunks(noise(num_samples), settings))) == chunks


def test_reference_settings_come_from_the_config_and_are_published_ones_without_it(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"gpt_cond_len": 12, "gpt_cond_chunk_len": 6, "max_ref_len": 10, "sound_norm_refs": true}')
    assert ReferenceSettings.of(config) == ReferenceSettings(10, 12, 6, normalize=True)
    assert ReferenceSettings.of(None) == ReferenceSettings(30, 30, 4, normalize=False)
    for value in ("0", "true", '"4"', "Infinity", "-3"):
        config.write_text(f'{{"gpt_cond_chunk_len": {value}}}')
        with pytest.raises(ConfigError) as refusal:
            ReferenceSettings.of(config)
        assert refusal.value.code == "base-config"


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_099, 48_000, 192_000])
def test_a_reference_of_any_rate_is_cut_at_22050_hz(rate: int) -> None:
    time = np.arange(4 * rate, dtype=np.float64) / rate
    samples = (1.2 * np.sin(2 * np.pi * 300 * time)).astype(np.float32)
    wave = prepare_reference(samples, rate, ReferenceSettings(max_seconds=3))
    assert len(wave) == 3 * SAMPLE_RATE
    assert 0.99 < float(wave.abs().max()) <= 1  # clipped as the original clips
    expected = np.clip(1.2 * np.sin(2 * np.pi * 300 * np.arange(len(wave)) / SAMPLE_RATE), -1, 1)
    assert np.abs(wave.numpy() - expected)[200:].max() < 0.05
    loud = prepare_reference(samples / 3, rate, ReferenceSettings(normalize=True))
    assert float(loud.abs().max()) == pytest.approx(0.75)


def test_half_an_hour_of_a_voice_is_cut_to_30_s(encoder: XTTSClipEncoder) -> None:
    samples = np.tile(noise(16_000).numpy(), 1_800)
    assert len(samples) == 30 * 60 * 16_000
    wave = prepare_reference(samples, 16_000, encoder.settings)
    assert len(wave) == 30 * SAMPLE_RATE
    assert torch.equal(wave, prepare_reference(samples[: 40 * 16_000], 16_000, encoder.settings))


BAD_RECORDINGS: dict[str, tuple[Any, str]] = {
    "0.1 s": (noise(1_600).numpy(), "audio-too-short"),
    "empty": (np.zeros(0, np.float32), "audio-too-short"),
    "silence": (np.zeros(32_000, np.float32), "audio-silent"),
    "NaN": (np.full(32_000, np.nan, np.float32), "audio-not-finite"),
    "stereo": (np.zeros((32_000, 2), np.float32), "audio-shape"),
    "16-bit": (noise(32_000).numpy() * 32_768, "audio-scale"),
    "whole numbers": (np.zeros(32_000, np.int16), "audio-shape"),
}


@pytest.mark.parametrize("what", BAD_RECORDINGS)
def test_a_bad_recording_is_refused(encoder: XTTSClipEncoder, what: str) -> None:
    samples, code = BAD_RECORDINGS[what]
    for attempt in (lambda: encoder.encode_voice(samples, 16_000), lambda: encoder.encode([noise(20_000), samples])):
        with pytest.raises(AudioError) as refusal:
            attempt()
        assert refusal.value.code == code


@pytest.mark.parametrize("rate", [0, -1, 1, 1_000_000])
def test_an_impossible_rate_is_refused(encoder: XTTSClipEncoder, rate: int) -> None:
    with pytest.raises(AudioError):
        encoder.encode_voice(noise(32_000).numpy(), rate)


def test_a_clip_longer_than_the_model_can_learn_is_refused(encoder: XTTSClipEncoder) -> None:
    longest = encoder.model.spec.max_codes * 1024
    (clip,) = encoder.encode([noise(longest)])
    assert len(clip.codes) == encoder.model.spec.max_codes
    with pytest.raises(AudioError) as refusal:
        encoder.encode([noise(longest + 1)])
    assert refusal.value.code == "audio-too-long"


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", golden.KINDS)
def test_every_published_name_is_read_or_left_out_by_name(kind: str) -> None:
    published = golden.shapes(f"dvae_{kind}")
    size = DVAESize.of(published)
    unused = published.keys() - dvae_shapes(size.width, size.code_width, size.codes).keys()
    assert len(published) == 56
    assert sorted(unused) == sorted(
        [f"discrete_loss.accumulator{end}" for end in ("", "_filled", "_index")]
        + ["codebook.cluster_size", "codebook.embed_avg"]
    )
    stored = golden.shapes(f"model_{kind}", SPEAKER_ENCODER_PREFIX)
    assert stored == speaker_encoder_shapes()
    assert len(stored) == 295


def small_dvae_tensors() -> dict[str, Tensor]:
    size = golden.SMALL_DVAE
    return golden.random_tensors(dvae_shapes(size.width, size.code_width, size.codes))


@pytest.mark.parametrize("change", ["missing", "besides", "shape"])
def test_a_dvae_with_other_tensors_is_refused_by_name(tmp_path: Path, change: str) -> None:
    tensors = small_dvae_tensors()
    name = "encoder.3.net.2.bias"
    if change == "missing":
        del tensors[name]
    elif change == "besides":
        name = "encoder.9.weight"
        tensors[name] = torch.zeros(3)
    else:
        tensors[name] = torch.zeros(5)
    with pytest.raises(CheckpointError) as refusal:
        DiscreteVAE.load(saved(tensors, tmp_path / "dvae.pth"))
    assert refusal.value.code == "tensors-mismatch"
    assert name in refusal.value.finding.found


def test_a_dvae_is_the_same_after_its_way_through_a_file(tmp_path: Path) -> None:
    tensors = small_dvae_tensors()
    state = {"codebook.embed_avg": torch.zeros(6, 1024), "discrete_loss.accumulator_filled": torch.ones(1).long()}
    loaded = DiscreteVAE.load(saved({**tensors, **state}, tmp_path / "dvae.pth"))
    assert loaded.size == golden.SMALL_DVAE
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("change", ["missing", "besides"])
def test_a_speaker_encoder_with_other_tensors_is_refused_by_name(tmp_path: Path, change: str) -> None:
    tensors = {
        SPEAKER_ENCODER_PREFIX + name: one for name, one in golden.random_tensors(speaker_encoder_shapes(8)).items()
    }
    tensors["gpt.final_norm.weight"] = torch.ones(3)  # other parts of the file are no matter
    path = saved({"model": tensors}, tmp_path / "model.pth")
    assert ResNetSpeakerEncoder.load(path).conv1.weight.shape == (8, 1, 3, 3)
    name = "layer3.5.bn2.running_mean"
    if change == "missing":
        del tensors[SPEAKER_ENCODER_PREFIX + name]
    else:
        name = "layer5.0.weight"
        tensors[SPEAKER_ENCODER_PREFIX + name] = torch.zeros(2)
    with pytest.raises(CheckpointError) as refusal:
        ResNetSpeakerEncoder.load(saved({"model": tensors}, tmp_path / "other.pth"))
    assert refusal.value.code == "tensors-mismatch"
    assert name in refusal.value.finding.found


def test_speaking_needs_no_dvae_and_preparing_names_it(tmp_path: Path) -> None:
    files = golden.write_base(tmp_path)
    (tmp_path / "dvae.pth").unlink()
    encoder = XTTSClipEncoder.load(files, golden.open_base(files))
    assert encoder.encode_voice(noise(20_000).numpy(), 16_000).voice["latents"].shape == (32, 16)
    with pytest.raises(FileError) as refusal:
        encoder.encode([noise(20_000)])
    assert refusal.value.code == "base-file-missing"
    assert "dvae.pth" in refusal.value.finding.found


def test_statistics_that_nothing_can_be_divided_by_are_refused(tmp_path: Path) -> None:
    files = golden.write_base(tmp_path)
    model, tensors = golden.open_base(files), torch.load(files.checkpoint)["model"]
    for value in (0.0, float("nan"), float("inf")):
        tensors["mel_stats"][3] = value
        saved({"model": tensors}, files.checkpoint)
        with pytest.raises(CheckpointError) as refusal:
            XTTSClipEncoder.load(files, model)
        assert refusal.value.code == "statistics-broken"


# ---- built-in voices -------------------------------------------------------------------------------------------------


def test_built_in_voices_are_read_by_name(tmp_path: Path) -> None:
    latents, vectors = torch.randn(2, 1, 32, 16), torch.randn(2, 1, 512, 1)
    names = ("Claribel Dervla", "Dr. No")
    voices = {name: {"gpt_cond_latent": latents[at], "speaker_embedding": vectors[at]} for at, name in enumerate(names)}
    found = read_xtts_voices(saved(voices, tmp_path / "speakers_xtts.pth"))
    assert tuple(found) == names
    for at, name in enumerate(names):
        assert np.array_equal(found[name].voice["latents"], latents[at, 0].numpy())
        assert np.array_equal(found[name].voice["speaker"], vectors[at, 0, :, 0].numpy())


@pytest.mark.parametrize(
    "voices",
    [
        {"A": {"gpt_cond_latent": torch.zeros(1, 32, 16)}},
        {"A": {"gpt_cond_latent": torch.zeros(1, 32, 16), "speaker_embedding": torch.zeros(512)}},
        {"A": torch.zeros(1, 32, 16), "B": torch.zeros(1, 512, 1)},
        {"A": [1, 2, 3]},
    ],
    ids=["one tensor", "another shape", "no dictionaries", "no tensors"],
)
def test_a_file_that_holds_no_voices_is_refused(tmp_path: Path, voices: dict[str, Any]) -> None:
    with pytest.raises(VoxgraftError) as refusal:
        read_xtts_voices(saved(voices, tmp_path / "speakers_xtts.pth"))
    assert refusal.value.code in ("tensors-mismatch", "torch-contents")
