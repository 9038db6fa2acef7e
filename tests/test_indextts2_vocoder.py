"""IndexTTS-2's vocoder: reference preparation and the whole chain of the original, batches, latents, a wav file."""

from __future__ import annotations

import shutil
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import s2mel as golden
from tests.support.indextts2 import (
    LIMIT,
    golden_condition,
    random_condition,
    random_model,
    random_vocoder,
    random_voice,
    write_s2mel,
    write_waveform_end,
)
from tests.support.indextts2 import golden_model as golden_unified_voice
from tests.support.run_folders import make_run
from tests.support.shared import difference, expected, formula, golden_state
from tests.support.synthesis import give_adapter, settings_of, spoken
from tests.test_bigvgan import golden_model as golden_bigvgan
from tools.random_bases import make_random_base
from voxgraft.audio.features import mel_filters
from voxgraft.audio.files import encode_audio
from voxgraft.core.errors import VoxgraftError
from voxgraft.models import get_family
from voxgraft.models.base import REFERENCE_AUDIO, Clip
from voxgraft.models.campplus import CAMPPlus, kaldi_fbank
from voxgraft.models.indextts2.encoder import STYLE, SemanticCodec, SemanticCodecSize
from voxgraft.models.indextts2.s2mel import count_target_frames
from voxgraft.models.indextts2.vocoder import IndexTTS2Vocoder, compute_mel, prepare_reference
from voxgraft.models.speech_model import compute_speech_latents
from voxgraft.nn.adapter import adapter_state, add_adapter, load_adapter_state
from voxgraft.synthesis.command import synthesize, write_audio_files
from voxgraft.synthesis.engine import open_synthesis_models
from voxgraft.synthesis.inputs import ReferenceVoice, UtteranceRequest, VoiceLoader

# Recommended by the golden README: 5e-4, 1e-5, 1e-3 (2e-2 from own resampling), 1e-4, and for the whole chain 2e-4, 8.
REFERENCE_MEL_LIMIT, WAVE_16K_LIMIT, FBANK_LIMIT, OWN_FBANK_LIMIT, STYLE_LIMIT = 5e-4, 1e-5, 1e-3, 2e-2, 1e-4
WHOLE_LIMIT, WHOLE_INT16_LIMIT = 1e-4, 4
RATE = 22_050


def golden_wave(seconds: float) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = formula().golden_wave(seconds, RATE)
    return found


@cache
def golden_campplus() -> CAMPPlus:
    prefix, state = "speaker_encoder.", {}
    for name, shape in golden.shapes("campplus").items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.zeros((), dtype=torch.int64)
            continue
        values = formula().golden_tensor(prefix + name, shape)
        if name.endswith("running_var"):  # a variance: the formula's rule for gains
            values = (1 + 0.1 * (values.astype(np.float64) / 0.05)).astype(np.float32)
        elif name == "xvector.dense.linear.weight":
            values = values * np.float32(4)
        state[name] = torch.from_numpy(values)
    network = CAMPPlus()
    network.load_state_dict(state)
    return network


@cache
def golden_code_table() -> torch.Tensor:
    codec = SemanticCodec(SemanticCodecSize(width=8, mlp=8, layers=1))
    codec.load_state_dict(golden_state(golden.shapes("codec_quantizer")), strict=False)
    return codec.vq2emb(torch.arange(8192))


# ---- the reference -------------------------------------------------------------------------------------------------


def test_the_mel_is_the_originals() -> None:
    arrays, samples = golden.arrays(), golden_wave(3.0)
    assert float(np.abs(samples.astype(np.float64)).sum()) == pytest.approx(
        float(arrays["mel_3s_wave_abs_sum"]), abs=1e-3
    )
    assert difference(compute_mel(torch.from_numpy(samples)), arrays["mel_3s"]) < REFERENCE_MEL_LIMIT
    filters = mel_filters(RATE, 1024, 80)
    assert difference(filters[[0, 40, 79]], arrays["mel_basis_rows_0_40_79"]) < 1e-6
    assert difference(filters.sum(1), arrays["mel_basis_row_sums"]) < 1e-5


@pytest.mark.parametrize("utterance", golden.UTTERANCES)
def test_waves_features_and_style_of_a_reference_are_the_originals(utterance: str) -> None:
    arrays = golden.arrays()
    speaker, speaker_16k, emotion_16k = prepare_reference(golden_wave(golden.REFERENCE_SECONDS[utterance]), RATE)
    assert difference(torch.from_numpy(speaker_16k), arrays[f"wave16k_{utterance}"]) < WAVE_16K_LIMIT
    assert (
        difference(compute_mel(torch.from_numpy(speaker)), arrays[f"small_ref_mel_{utterance}"]) < REFERENCE_MEL_LIMIT
    )
    given = torch.from_numpy(arrays[f"wave16k_{utterance}"])
    assert difference(kaldi_fbank(given), arrays[f"fbank_{utterance}"]) < FBANK_LIMIT
    assert difference(kaldi_fbank(torch.from_numpy(speaker_16k)), arrays[f"fbank_{utterance}"]) < OWN_FBANK_LIMIT
    assert difference(golden_campplus().embed([speaker_16k])[0], arrays[f"xvector_{utterance}"]) < STYLE_LIMIT
    # The emotion's signal is another one: it comes straight from the file.
    assert emotion_16k.shape == speaker_16k.shape
    assert np.abs(emotion_16k - speaker_16k).max() > 1e-4


def tone(seconds: float, rate: int) -> np.ndarray[Any, Any]:
    time = np.arange(round(seconds * rate)) / rate
    return (0.2 * np.sin(2 * np.pi * 220 * time)).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 192_000])
def test_a_long_reference_is_cut_to_15_seconds_at_any_rate(rate: int) -> None:
    assert [len(wave) for wave in prepare_reference(tone(40.0, rate), rate)] == [330_750, 240_000, 240_000]
    whole, _, emotion = prepare_reference(tone(2.0, rate), rate)
    assert abs(len(whole) - 44_100) <= 1
    assert len(emotion) == 32_000


@pytest.mark.parametrize(
    ("samples", "code"),
    [
        (tone(0.1, RATE), "audio-too-short"),
        (np.zeros(RATE, np.float32), "audio-silent"),
        (np.full(RATE, np.nan, np.float32), "audio-not-finite"),
        (np.zeros((2, RATE), np.float32), "audio-shape"),
        (3000 * tone(1.0, RATE), "audio-scale"),
    ],
    ids=["0.1 s", "silence", "NaN", "two channels", "16-bit numbers"],
)
def test_a_reference_without_a_voice_is_refused(samples: np.ndarray[Any, Any], code: str) -> None:
    assert error_of(lambda: prepare_reference(samples, RATE)).code == code


# ---- the whole chain -----------------------------------------------------------------------------------------------


def golden_vocoder(kind: str) -> IndexTTS2Vocoder:
    parts = (golden.model(kind), golden_bigvgan(kind), golden_code_table())
    return IndexTTS2Vocoder(lambda: parts)


def golden_voice() -> Clip:
    speaker, speaker_16k, _ = prepare_reference(golden_wave(golden.REFERENCE_SECONDS["a"]), RATE)
    style = golden_campplus().embed([speaker_16k])[0].numpy()
    return Clip(golden.arrays()["ref_codes_a"], {REFERENCE_AUDIO: speaker, STYLE: style})


@pytest.mark.parametrize("kind", ["small", pytest.param("full", marks=pytest.mark.long)])
def test_from_recording_codes_and_latents_to_the_originals_wave(kind: str) -> None:
    """Small: both segments in one padded batch, and yet what the original's `infer` gave one after the other."""
    arrays, vocoder, voice = golden.arrays(), golden_vocoder(kind), golden_voice()
    utterances = [one for one in golden.UTTERANCES if f"{kind}_whole_mel_{one}" in arrays]
    prompt = vocoder.prepare_prompt(voice)
    assert difference(prompt.mel, arrays["whole_ref_mel"]) < REFERENCE_MEL_LIMIT
    assert difference(prompt.style, arrays[f"{kind}_whole_style"]) < STYLE_LIMIT
    contents, noises = [], []
    for one in utterances:
        codes = arrays[f"codes_{one}"].tolist()
        contents.append(vocoder.embed_codes(codes, golden.latents(one).numpy()))
        frames = prompt.mel.shape[1] + count_target_frames(len(codes))
        noises.append(golden.floats(f"whole_noise.{one}", (80, frames), float(np.sqrt(3))))
    targets = vocoder.parts[0].length_regulator(
        contents, [arrays[f"{kind}_whole_mel_{one}"].shape[1] for one in utterances]
    )
    prompts = [prompt] * len(utterances)
    for one, mel in zip(utterances, vocoder.parts[0].solve(prompts, targets, noises), strict=True):
        assert difference(mel, arrays[f"{kind}_whole_mel_{one}"]) < WHOLE_LIMIT
    waves = vocoder.render(prompts, contents, noises)
    parts = []
    for one, samples in zip(utterances, waves, strict=True):
        assert difference(samples, arrays[f"{kind}_whole_wave_{one}"]) < WHOLE_LIMIT
        parts += [np.zeros(4410), np.trunc(np.clip(32767 * samples.numpy(), -32767, 32767))]
    joined = np.concatenate(parts[1:])
    assert np.abs(joined - arrays[f"{kind}_whole_int16"].reshape(-1)).max() <= WHOLE_INT16_LIMIT


# ---- batches, seeds and refusals -----------------------------------------------------------------------------------


def random_latents(num_codes: int, seed: int = 0, width: int = 24) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((num_codes, width), np.float32)


def test_an_utterance_in_a_batch_is_the_utterance_alone() -> None:
    vocoder, voices = random_vocoder(), [random_voice(0.6, 0), random_voice(0.9, 1)]
    codes = [list(range(count)) for count in (30, 0, 12, 31, 2, 30)]
    latents = [random_latents(len(own), seed) for seed, own in enumerate(codes)]
    whose = [voices[at % 2] for at in range(len(codes))]
    waves = vocoder.sound(codes, whose, latents)
    assert [len(found) for found in waves] == [256 * count_target_frames(len(own)) for own in codes]
    for own, voice, states, found in zip(codes, whose, latents, waves, strict=True):
        (alone,) = vocoder.sound([own], [voice], [states])
        assert not len(own) or np.abs(alone - found).max() < 2e-5
        assert not len(own) or np.abs(found).max() > 1e-3


def test_sound_depends_on_seed_latents_and_voice_and_on_nothing_else() -> None:
    vocoder, voice, codes = random_vocoder(), random_voice(0.6, 0), [[1, 2, 3, 4, 5]]
    usual = vocoder.sound(codes, [voice], [random_latents(5)])[0]
    torch.manual_seed(99)
    assert np.array_equal(vocoder.sound(codes, [voice], [random_latents(5)])[0], usual)
    assert not np.array_equal(vocoder.sound(codes, [voice], [random_latents(5, 1)])[0], usual)
    assert not np.array_equal(vocoder.sound(codes, [random_voice(0.6, 1)], [random_latents(5)])[0], usual)
    vocoder.seed = 1
    assert not np.array_equal(vocoder.sound(codes, [voice], [random_latents(5)])[0], usual)


def without(voice: Clip, name: str) -> Clip:
    return Clip(voice.codes, {key: value for key, value in voice.voice.items() if key != name})


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda vocoder, voice: vocoder.sound([[1]], [voice], []), "packing"),
        (lambda vocoder, voice: vocoder.sound([[1]], [voice]), "condition-form"),
        (lambda vocoder, voice: vocoder.sound([[1, 2]], [voice], [random_latents(3)]), "condition-form"),
        (lambda vocoder, voice: vocoder.sound([[1]], [voice], [np.full((1, 24), np.nan)]), "condition-form"),
        (lambda vocoder, voice: vocoder.sound([[50]], [voice], [random_latents(1)]), "codes-outside"),
        (lambda vocoder, voice: vocoder.sound([[-1]], [voice], [random_latents(1)]), "codes-outside"),
        (lambda vocoder, voice: vocoder.sound([[1]], [without(voice, STYLE)], [random_latents(1)]), "vocoder-voice"),
        (
            lambda vocoder, voice: vocoder.sound([[1]], [without(voice, REFERENCE_AUDIO)], [random_latents(1)]),
            "vocoder-voice",
        ),
    ],
    ids=["no latents of one", "none", "too many", "NaN", "code 50", "code -1", "no style", "no recording"],
)
def test_what_cannot_sound_is_refused(act: Callable[[IndexTTS2Vocoder, Clip], object], code: str) -> None:
    assert error_of(lambda: act(random_vocoder(), random_voice(0.6, 0))).code == code


def test_prompts_are_kept_for_the_last_voices_alone() -> None:
    vocoder, voices = random_vocoder(), [random_voice(0.6, seed) for seed in range(20)]
    first = vocoder.prepare_prompt(voices[0])
    assert vocoder.prepare_prompt(voices[0]) is first
    for voice in voices:
        vocoder.prepare_prompt(voice)
    assert vocoder.prepare_prompt(voices[-1]) is vocoder.prepare_prompt(voices[-1])
    again = vocoder.prepare_prompt(voices[0])
    assert again is not first
    assert torch.equal(again.mel, first.mel)


# ---- latents -------------------------------------------------------------------------------------------------------


def test_latents_of_a_batch_are_the_originals_second_pass() -> None:
    arrays, utterances = expected("indextts2"), ["a", "b"]
    found = compute_speech_latents(
        golden_unified_voice(),
        [arrays[f"text_{one}"].tolist() for one in utterances] + [arrays["text_a"].tolist()],
        [golden_condition(one) for one in utterances] + [golden_condition("a")],
        [arrays[f"mel_{one}"].tolist() for one in utterances] + [[]],
    )
    for one, latents in zip(utterances, found, strict=False):
        assert difference(latents, arrays[f"mel_latents_{one}"]) < LIMIT
    assert found[2].shape == (0, found[0].shape[1])


def test_latents_follow_the_adapters_gate() -> None:
    model = random_model()
    given = ([[5, 6, 7]], [random_condition(0)], [[3, 1, 4, 1, 5]])
    plain = compute_speech_latents(model, *given)[0]
    gate = add_adapter(model, model.adapter_layers(), rank=2, alpha=2, seed=0)
    draw = torch.Generator().manual_seed(1)
    load_adapter_state(
        model, {name: 0.3 * torch.randn(old.shape, generator=draw) for name, old in adapter_state(model).items()}
    )
    with gate.closed():
        assert torch.equal(compute_speech_latents(model, *given)[0], plain)
    with gate.opened():
        assert not torch.allclose(compute_speech_latents(model, *given)[0], plain)


# ---- a base folder that speaks -------------------------------------------------------------------------------------


def test_a_base_without_the_files_has_no_sound_and_one_with_a_broken_file_says_which(tmp_path: Path) -> None:
    base, family = tmp_path / "base", get_family("indextts2")
    make_random_base("indextts2", base, size="tiny", seed=0)
    assert family.vocoder(family.files(base)) is None
    write_waveform_end(base, 64)
    vocoder = family.vocoder(family.files(base))
    assert isinstance(vocoder, IndexTTS2Vocoder)
    assert (vocoder.sample_rate, vocoder.needs_latents) == (RATE, True)
    whole = (base / "s2mel.pth").read_bytes()
    (base / "s2mel.pth").write_bytes(whole[: len(whole) // 2])
    assert error_of(lambda: family.vocoder(family.files(base))).finding.where.endswith("s2mel.pth")
    (base / "s2mel.pth").write_bytes(whole)
    config = (base / "config.yaml").read_text()
    generator = base / "bigvgan_v2_22khz_80band_256x" / "bigvgan_generator.pt"
    other = generator.read_bytes()
    generator.write_bytes(whole)  # a file under another's name
    assert error_of(lambda: family.vocoder(family.files(base))).finding.where.endswith("bigvgan_generator.pt")
    generator.write_bytes(other)
    shutil.copytree(base, tmp_path / "wider")
    write_s2mel(tmp_path / "wider", 96)
    wrong = error_of(lambda: family.vocoder(family.files(tmp_path / "wider")))
    assert (wrong.code, wrong.finding.expected) == ("tensors-mismatch", "64, as in the GPT")
    (base / "config.yaml").write_text(config.replace("num_heads: 2", "num_heads: 5"))
    assert error_of(lambda: family.vocoder(family.files(base))).code == "base-config"
    (base / "s2mel.pth").unlink()
    assert family.vocoder(family.files(base)) is None


@pytest.mark.long
def test_a_graft_speaks_into_a_file_with_latents_behind_its_own_gate(tmp_path: Path) -> None:
    """Everything but w2v-bert, which is too large for this test: the voice comes as its encoder would give it."""
    run = make_run("indextts2", tmp_path)
    write_waveform_end(run.base, 64)
    give_adapter(run.path / "graft", run.base, seed=1)
    settings = settings_of("ሰላም። ቤቱ ትልቅ ነው", f"--run={run.path}", "--device=cpu", "--max-seconds=0.7", "--overwrite")
    speakers = open_synthesis_models(settings)
    family, files = speakers.context.family, speakers.context.files
    vocoder = family.vocoder(files)
    assert vocoder is not None
    loader = VoiceLoader(speakers, settings)
    loader._found[None] = ReferenceVoice("noise", random_voice(1.0, 0, gpt_width=64, num_codes=8192))
    requests = [UtteranceRequest("001", "ሰላም። ቤቱ ትልቅ ነው", "am"), UtteranceRequest("002", "bring me the cup", "en")]
    said = synthesize(speakers, loader, requests, settings, vocoder)
    outputs = (tmp_path / "am.wav", tmp_path / "en.wav")
    paths = write_audio_files(said, vocoder, outputs)
    model = speakers.system("am")
    condition = loader.condition(loader.voice(None))
    for one, path in zip(said, paths, strict=True):
        with wave.open(str(path)) as file:
            assert (file.getframerate(), file.getnchannels()) == (RATE, 1)
            assert file.getnframes() >= sum(256 * count_target_frames(len(piece.codes)) for piece in one.pieces)
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        assert np.abs(samples).max() > 100
        for piece in one.pieces:
            given = ([piece.ids], [condition], [piece.codes])
            with model.set_gate_for(one.language):
                (wanted,) = compute_speech_latents(model.model, *given)
            assert piece.latents is not None
            assert np.abs(piece.latents - wanted.numpy()).max() < 1e-4
    first = paths[0].read_bytes()
    write_audio_files(said, vocoder, outputs, overwrite=True)
    assert paths[0].read_bytes() == first


def write_w2v_bert(base: Path) -> None:
    """As wide as the published one, since the base's encoders take that width alone, and with thin layers."""
    transformers = pytest.importorskip("transformers", reason="NOT TESTED: transformers is not installed")
    torch.manual_seed(0)
    config = transformers.Wav2Vec2BertConfig(num_hidden_layers=17, intermediate_size=8)
    network = transformers.Wav2Vec2BertModel(config).to(torch.float16)
    network.save_pretrained(base / "w2v-bert-2.0")


@pytest.mark.long
def test_speak_writes_a_wav_in_the_voice_of_a_recording_and_with_sliders(tmp_path: Path) -> None:
    base = tmp_path / "base"
    make_random_base("indextts2", base, size="tiny", seed=0)
    write_waveform_end(base, 64)
    write_w2v_bert(base)
    rate = 44_100
    samples = np.stack([tone(1.5, rate), 0.5 * tone(1.5, rate)], 1).mean(1)
    (tmp_path / "voice.wav").write_bytes(encode_audio(samples.astype(np.float32), rate))
    (tmp_path / "short.wav").write_bytes(encode_audio(tone(0.1, rate), rate))
    words = ("bring me the cup", f"--base={base}", "--language=en", "--max-seconds=1", "--temperature=0")
    voice, out = f"--voice={tmp_path / 'voice.wav'}", tmp_path / "out.wav"
    usual = spoken(*words, voice, f"--output={out}")
    with wave.open(str(out)) as file:
        assert file.getframerate() == RATE
        assert file.getnframes() == sum(256 * count_target_frames(len(one.codes)) for one in usual.said[0].pieces)
    happy = spoken(*words, voice, f"--output={out}", "--overwrite", "--emotion=1,0,0,0,0,0,0,0")
    assert happy.said[0].pieces[0].codes != usual.said[0].pieces[0].codes
    missing = tmp_path / "none.wav"
    assert (
        error_of(lambda: spoken(*words, f"--voice={tmp_path / 'short.wav'}", f"--output={missing}")).code
        == "audio-too-short"
    )
    (base / "campplus_cn_common.bin").unlink()
    assert error_of(lambda: spoken(*words, voice, f"--output={missing}")).code == "vocoder-voice"
    assert not missing.exists()


def error_of(act: Callable[[], object]) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        act()
    return caught.value
