"""S3Gen as a whole: the original's waveforms, strict files, the same sound in any batch, and speech of Chatterbox."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support import s3gen
from tests.support.checkpoint_files import saved
from tests.support.evaluation import evaluated
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of
from tests.support.shared import difference, formula
from tests.support.synthesis import spoken
from voxgraft.audio.files import encode_audio, read_audio
from voxgraft.core.errors import AudioError, CheckpointError
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.evaluation.judge import open_voice_encoder
from voxgraft.models import get_family
from voxgraft.models.base import REFERENCE_AUDIO, Clip
from voxgraft.models.campplus import CAMPPlusSize
from voxgraft.models.chatterbox.encoder import SpeechTokenizer, SpeechTokenizerSize
from voxgraft.models.chatterbox.flow import FlowSize
from voxgraft.models.chatterbox.hift import HiftSize, fold_weight_norm
from voxgraft.models.chatterbox.s3gen import (
    REFERENCE_LIMITS,
    S3Gen,
    S3GenNoise,
    S3GenReference,
    S3GenSize,
    S3GenVocoder,
    find_watermarker,
)
from voxgraft.synthesis.engine import ModelContext, open_base_model
from voxgraft.synthesis.inputs import ReferenceVoice

KINDS = ["small", pytest.param("full", marks=pytest.mark.long)]
SIZES = {
    "small": S3GenSize(
        FlowSize(1, 64, width=64, inner=32, head_width=16, transformers=1, mid_blocks=2),
        HiftSize(64, 32),
        CAMPPlusSize(8, 16, 32),
    ),
    "full": S3GenSize(),
}
UTTERANCES = {"a": (25, 40), "b": (18, 41)}
"""Codes, and frames of the reference, whose codes are 20: one more frame than they have, in the second."""
ROOT = math.sqrt(3)
SNR_LIMIT = 40.0


@cache
def golden_model(kind: str, *, meanflow: bool = False) -> S3Gen:
    size = replace(SIZES[kind], flow=replace(SIZES[kind].flow, meanflow=meanflow))
    model = S3Gen(size)
    state = s3gen.state(f"s3gen_{kind}{'_meanflow' if meanflow else ''}")
    model.load_state_dict(
        fold_weight_norm({key: one for key, one in state.items() if not key.startswith("tokenizer.")})
    )
    return model


def golden_noise(name: str, frames: int, new: int) -> S3GenNoise:
    return S3GenNoise(
        s3gen.floats(f"z.{name}", (1, 80, frames), ROOT)[0],
        s3gen.floats(f"phase.{name}", (1, 9, 1), math.pi)[0],
        s3gen.floats(f"sine_noise.{name}", (1, 9, 480 * new), ROOT)[0],
    )


def golden_utterance(name: str) -> tuple[list[int], S3GenReference, S3GenNoise]:
    codes, frames = UTTERANCES[name]
    reference = S3GenReference(
        torch.tensor(s3gen.token_ids(f"prompt_tokens.{name}", 20)),
        s3gen.floats(f"prompt_feat.{name}", (frames, 80), 2.0),
        s3gen.floats(f"embedding.{name}", (192,), 1.0),
    )
    ids = s3gen.token_ids(f"tokens.{name}", codes)
    assert ids == s3gen.golden()[f"in.{name}.tokens"].tolist()
    return ids, reference, golden_noise(name, 2 * (20 + codes), reference.num_frames(codes))


@pytest.mark.long(fast="*-small")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meanflow", [False, True])
@pytest.mark.parametrize("name", UTTERANCES)
def test_codes_become_the_mel_and_the_waveform_of_the_original(kind: str, meanflow: bool, name: str) -> None:
    model, golden = golden_model(kind, meanflow=meanflow), s3gen.golden()
    codes, reference, noise = golden_utterance(name)
    form = f"{kind}{'.meanflow' if meanflow else ''}.{name}"
    (mel,) = model.generate_mels([codes], [reference], [noise])
    assert difference(mel.T, golden[f"{form}.mel"]) < 2e-4
    (wave,) = model.generate([codes], [reference], [noise])
    assert s3gen.signal_to_noise(wave, golden[f"{form}.wave"]) > SNR_LIMIT
    assert difference(model.fade, golden["trim_fade"]) < 1e-6


@pytest.mark.long(fast="small")
@pytest.mark.parametrize("kind", KINDS)
def test_both_utterances_in_one_batch_are_the_originals_of_each_alone(kind: str) -> None:
    model, golden = golden_model(kind), s3gen.golden()
    codes, references, noise = (list(parts) for parts in zip(*map(golden_utterance, UTTERANCES), strict=True))
    for name, mel in zip(UTTERANCES, model.generate_mels(codes, references, noise), strict=True):
        assert difference(mel.T, golden[f"{kind}.{name}.mel"]) < 2e-4
    for name, wave in zip(UTTERANCES, model.generate(codes, references, noise), strict=True):
        assert s3gen.signal_to_noise(wave, golden[f"{kind}.{name}.wave"]) > SNR_LIMIT


@pytest.mark.long
def test_a_recording_becomes_the_reference_and_the_waveform_of_the_original() -> None:
    model, golden = golden_model("full"), s3gen.golden()
    tokenizer = SpeechTokenizer()
    computed = {name: tokenizer.state_dict()[name] for name in ("_mel_filters", "window")}
    tokenizer.load_state_dict(s3gen.state("s3gen_full", "tokenizer.") | computed)
    for name, seconds in (("w1", 3.0), ("w2", 2.07)):
        reference = model.prepare_reference(formula().golden_wave(seconds, 24_000), tokenizer)
        assert reference.codes.tolist() == golden[f"full.ref.{name}.prompt_tokens"].tolist()
        assert len(reference.mel) == int(golden[f"full.ref.{name}.prompt_frames"][0])
        assert difference(reference.speaker, golden[f"full.ref.{name}.embedding"]) < 1e-5
    codes = s3gen.token_ids("tokens.ref", 20)
    noise = golden_noise("ref", 2 * (51 + 20), reference.num_frames(20))
    (wave,) = model.generate([codes], [reference], [noise])
    assert s3gen.signal_to_noise(wave, golden["full.ref.w2.wave"]) > SNR_LIMIT


# ---- without the original's arrays -----------------------------------------------------------------------------------


def batch(model: S3Gen) -> tuple[list[list[int]], list[S3GenReference], list[S3GenNoise]]:
    """Utterances of different lengths in voices of different lengths, one of them odd."""
    codes = [[(37 * at + 5) % 6561 for at in range(count)] for count in (12, 3, 21, 1)]
    references = [s3gen.random_reference(*one) for one in ((6, 12, 1), (9, 19, 2), (2, 4, 3), (4, 8, 4))]
    generators = [torch.Generator().manual_seed(seed) for seed in range(4)]
    return codes, references, [
        S3GenNoise.draw(generator, len(own), reference, meanflow=model.size.flow.meanflow)
        for generator, own, reference in zip(generators, codes, references, strict=True)
    ]  # fmt: skip


@pytest.mark.long(fast="True")
@pytest.mark.parametrize("meanflow", [False, True])
def test_nothing_of_a_neighbour_leaks_through_the_masks(meanflow: bool) -> None:
    size = replace(s3gen.SMALL_SIZE, flow=replace(s3gen.SMALL_SIZE.flow, meanflow=meanflow))
    model = s3gen.random_model(size).double()
    codes, references, noise = batch(model)
    mels, waves = model.generate_mels(codes, references, noise), model.generate(codes, references, noise)
    for at, own in enumerate(codes):
        (mel,) = model.generate_mels([own], [references[at]], [noise[at]])
        (wave,) = model.generate([own], [references[at]], [noise[at]])
        assert len(mel) == 2 * len(own) - (at == 1)
        assert mel.shape == mels[at].shape
        assert wave.shape == waves[at].shape == (480 * len(mel),)
        assert float((mel - mels[at]).abs().max()) < 1e-10
        assert float((wave - waves[at]).abs().max()) < 1e-8
        assert float(wave.abs().max()) > 1e-3


def test_a_batched_utterance_sounds_as_it_does_alone_in_float32() -> None:
    model = s3gen.random_model()
    codes, references, noise = batch(model)
    for at, wave in enumerate(model.generate(codes, references, noise)):
        (alone,) = model.generate([codes[at]], [references[at]], [noise[at]])
        assert s3gen.signal_to_noise(wave, alone.numpy()) > 60


def test_the_first_twenty_milliseconds_are_silent_and_the_next_fade_in() -> None:
    model = s3gen.random_model()
    codes, references, noise = batch(model)
    (wave,) = model.generate(codes[:1], references[:1], noise[:1])
    assert not wave[:480].any()
    assert model.fade[480:].diff().min() > 0
    assert float(model.fade[-1]) == 1.0


def test_noise_comes_from_the_generator_alone() -> None:
    reference = s3gen.random_reference(5, 11, 0)
    torch.manual_seed(1)
    first = S3GenNoise.draw(torch.Generator().manual_seed(3), 7, reference)
    torch.manual_seed(2)
    again = S3GenNoise.draw(torch.Generator().manual_seed(3), 7, reference)
    other = S3GenNoise.draw(torch.Generator().manual_seed(4), 7, reference)
    for name, shape in (("flow", (80, 24)), ("phases", (9, 1)), ("source", (9, 480 * 13))):
        own: Tensor = getattr(first, name)
        assert own.shape == shape
        assert torch.equal(own, getattr(again, name))
        assert not torch.equal(own, getattr(other, name))
    assert float(first.phases.abs().max()) <= math.pi


# ---- files -----------------------------------------------------------------------------------------------------------


@cache
def small_tokenizer() -> SpeechTokenizer:
    torch.manual_seed(0)
    return SpeechTokenizer(SpeechTokenizerSize(64, 1))


@cache
def small_state(*, meanflow: bool = False) -> dict[str, Tensor]:
    size = replace(s3gen.SMALL_SIZE, flow=replace(s3gen.SMALL_SIZE.flow, meanflow=meanflow))
    return s3gen.published_state(s3gen.random_model(size), small_tokenizer())


@pytest.mark.long(fast="s3gen.safetensors-*")
@pytest.mark.parametrize(
    ("file", "meanflow"),
    [("s3gen.pt", False), ("s3gen.safetensors", False), ("s3gen_v3.pt", False), ("s3gen.pt", True)],
)
def test_it_sounds_the_same_after_its_way_through_a_file(tmp_path: Path, file: str, meanflow: bool) -> None:
    state = dict(small_state(meanflow=meanflow))
    if file == "s3gen_v3.pt":
        del state["tokenizer._mel_filters"], state["tokenizer.window"]
    if file.endswith(".pt"):
        saved(state, tmp_path / file)
    else:  # buffers may be absent from this one
        save_file({name: one for name, one in state.items() if one.dtype.is_floating_point}, tmp_path / file)
    size = replace(s3gen.SMALL_SIZE, flow=replace(s3gen.SMALL_SIZE.flow, meanflow=meanflow))
    made, loaded = s3gen.random_model(size), S3Gen.load(tmp_path / file)
    assert loaded.size == size
    codes, references, noise = batch(made)
    first, second = (one.generate_mels(codes, references, noise) for one in (made, loaded))
    assert all(torch.equal(own, found) for own, found in zip(first, second, strict=True))
    wave, found = (one.generate(codes[:1], references[:1], noise[:1])[0] for one in (made, loaded))
    assert s3gen.signal_to_noise(found, wave.numpy()) > 60  # gain and direction round a little


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda state: state.pop(name)


@pytest.mark.long(fast="*flow.extra*")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("flow.encoder.up_layer.conv.bias"), "flow.encoder.up_layer.conv.bias [512] is missing"),
        (
            without("mel2wav.resblocks.4.activations1.1.alpha"),
            "mel2wav.resblocks.4.activations1.1.alpha [8] is missing",
        ),
        (without("speaker_encoder.head.bn1.running_mean"), "speaker_encoder.head.bn1.running_mean [32] is missing"),
        (without("tokenizer.encoder.conv1.bias"), "tokenizer.encoder.conv1.bias [64] is missing"),
        (lambda state: state.update({"flow.extra": torch.zeros(2)}), "flow.extra [2] is not part of it"),
        (
            lambda state: state.update({"flow.encoder_proj.bias": torch.zeros(81)}),
            "flow.encoder_proj.bias is [81], not [80]",
        ),
        (
            lambda state: state.update({"mel2wav.conv_post.weight": torch.zeros(18, 4, 7)}),
            "mel2wav.conv_post.weight [18, 4, 7] is not part of it",
        ),
    ],
)
def test_a_file_with_other_tensors_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], said: str
) -> None:
    state = dict(small_state())
    change(state)
    saved(state, tmp_path / "s3gen.pt")
    vocoder = vocoder_of(tmp_path)
    assert said in vocoder.why_not(voice())  # training and evaluation continue without sound
    for load in (lambda: S3Gen.load(tmp_path / "s3gen.pt"), vocoder.validate, lambda: vocoder.sound([[1]], [voice()])):
        with pytest.raises(CheckpointError) as refusal:
            load()
        assert refusal.value.code == "tensors-mismatch"
        assert said in refusal.value.finding.found


# ---- the vocoder of a base folder ------------------------------------------------------------------------------------


def recorded(samples: int, rate: int = 24_000, hz: float = 150.0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    times = np.arange(samples) / rate
    return (0.2 * np.sin(2 * np.pi * hz * times) * (1 + 0.5 * np.sin(2 * np.pi * 3 * times))).astype(np.float32)


def voice(samples: int = 20_000, hz: float = 150.0) -> Clip:
    return Clip(voice={REFERENCE_AUDIO: recorded(samples, hz=hz)})


NOBODY = Clip()


def write_conditions(path: Path, codes: int = 10) -> None:
    t3 = {
        "speaker_emb": torch.nn.functional.normalize(torch.rand(1, 256)),
        "cond_prompt_speech_tokens": torch.randint(0, 6561, (1, 150)),
        "emotion_adv": torch.full((1, 1, 1), 0.5),
    }
    gen = {
        "prompt_token": torch.randint(0, 6561, (1, codes)),
        "prompt_token_len": torch.tensor([codes]),
        "prompt_feat": torch.randn(1, 2 * codes, 80),
        "prompt_feat_len": None,
        "embedding": torch.randn(1, 192),
    }
    torch.save({"t3": t3, "gen": gen}, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base")
    saved(small_state(), made / "s3gen.pt")
    return made


@pytest.fixture(scope="module")
def vocoder(folder: Path) -> S3GenVocoder:
    """One for all tests that only ask it; it loads its file at the first question."""
    return vocoder_of(folder)


def vocoder_of(folder: Path) -> S3GenVocoder:
    vocoder = S3GenVocoder.find(folder)
    assert vocoder is not None
    return vocoder


def test_it_sounds_like_the_recording_and_every_utterance_as_if_it_were_alone(folder: Path) -> None:
    vocoder = vocoder_of(folder)
    codes = [list(range(9)), [], list(range(50, 64)), list(range(9))]
    voices = [voice(), voice(), voice(hz=220), voice(hz=220)]
    waves = vocoder.sound(codes, voices)
    assert [len(wave) for wave in waves] == [960 * 9 - 480, 0, 960 * 14 - 480, 960 * 9 - 480]  # 41 frames of reference
    assert all(wave.dtype == np.float32 and np.isfinite(wave).all() for wave in waves)
    for own, someone, wave in zip(codes, voices, waves, strict=True):
        (alone,) = vocoder.sound([own], [someone])
        if len(own):
            assert s3gen.signal_to_noise(torch.from_numpy(wave), alone) > 60
    assert s3gen.signal_to_noise(torch.from_numpy(waves[0]), waves[3]) < 40  # another voice is another sound
    (again,) = vocoder_of(folder).sound(codes[:1], voices[:1])
    assert np.array_equal(again, vocoder.sound(codes[:1], voices[:1])[0])


@pytest.mark.long
def test_without_a_recording_it_needs_the_built_in_voice(folder: Path, tmp_path: Path) -> None:
    vocoder = vocoder_of(folder)
    assert "neither a recording" in vocoder.why_not(NOBODY)
    assert error_of(lambda: vocoder.sound([[1, 2]], [NOBODY])).code == "vocoder-voice"
    assert error_of(lambda: vocoder.sound([[1, 2]], [])).code == "packing"
    (tmp_path / "s3gen.pt").hardlink_to(folder / "s3gen.pt")
    write_conditions(tmp_path / "conds.pt")
    built_in = vocoder_of(tmp_path)
    assert built_in.why_not(NOBODY) == ""
    assert len(built_in.sound([[1, 2, 3]], [NOBODY])[0]) == 960 * 3
    torch.save({"t3": {}, "gen": {"embedding": torch.zeros(1, 192)}}, tmp_path / "conds.pt")
    error = error_of(lambda: vocoder_of(tmp_path).sound([[1, 2, 3]], [NOBODY]))
    assert error.code == "tensors-mismatch"
    assert "prompt_token and prompt_feat" in error.finding.found


@pytest.mark.parametrize(
    ("samples", "code"),
    [
        (np.zeros(0, np.float32), "audio-too-short"),
        (np.zeros(REFERENCE_LIMITS.min_samples - 1, np.float32), "audio-too-short"),
        (np.full(19_000, np.nan, np.float32), "audio-not-finite"),
        (np.full(19_000, 20_000, np.float32), "audio-scale"),
        (np.zeros((19_000, 2), np.float32), "audio-shape"),
        (np.zeros(24_000, np.float32), "audio-silent"),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused(
    vocoder: S3GenVocoder, samples: np.ndarray[tuple[int, ...], np.dtype[np.float32]], code: str
) -> None:
    with pytest.raises(AudioError) as refusal:
        vocoder.sound([[1, 2]], [Clip(voice={REFERENCE_AUDIO: samples})])
    assert refusal.value.code == code


@pytest.mark.long
def test_the_shortest_reference_sounds_and_of_a_long_one_ten_seconds_count(folder: Path) -> None:
    vocoder = vocoder_of(folder)
    (wave,) = vocoder.sound([[1, 2, 3]], [voice(REFERENCE_LIMITS.min_samples)])
    assert np.isfinite(wave).all()
    whole, cut = (vocoder.reference(voice(samples)) for samples in (260_000, 240_000))
    assert len(whole.mel) == 500
    assert torch.equal(whole.mel, cut.mel)
    assert torch.equal(whole.codes, cut.codes)


@pytest.mark.parametrize("codes", [[0, 6561], [-1], [1.5, 2.0]])
def test_codes_that_are_none_are_refused(vocoder: S3GenVocoder, codes: list[int]) -> None:
    assert error_of(lambda: vocoder.sound([codes], [voice()])).code == "codes-outside"


@pytest.fixture
def watermark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in the place of the real one, which is not at hand: its mark is a shift that can be seen."""
    body = (
        "def apply_watermark(self, wave, sample_rate):\n        assert sample_rate == 24000\n        return wave + 0.5"
    )
    (tmp_path / "perth.py").write_text(f"class PerthImplicitWatermarker:\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    find_watermarker.cache_clear()
    yield
    sys.modules.pop("perth", None)
    find_watermarker.cache_clear()


def test_sound_is_marked_where_the_package_is_installed(folder: Path, watermark: None) -> None:
    vocoder = vocoder_of(folder)
    (marked,) = vocoder.sound([[1, 2, 3]], [voice()])
    assert vocoder.findings() == []
    assert np.array_equal(marked[:480], np.full(480, 0.5, dtype=np.float32))
    assert marked.dtype == np.float32


def test_sound_without_a_mark_is_reported(folder: Path) -> None:
    if find_spec("perth") is not None:
        pytest.skip("resemble-perth is installed")
    assert [item.code for item in vocoder_of(folder).findings()] == ["watermark-absent"]


def run_with_s3gen(fixtures: Fixtures, folder: Path) -> tuple[WholeRun, Path]:
    """A run, and its base in a folder of its own whose S3Gen is whole."""
    run = fixtures.trained_run("chatterbox").copied(folder / "run")
    base = folder / "base"
    base.mkdir()
    for path in run.base.iterdir():
        if path.name != "s3gen.pt":
            (base / path.name).hardlink_to(path)
    saved(s3gen.published_state(s3gen.random_model(), SpeechTokenizer.load(run.base)), base / "s3gen.pt")
    return run, base


@pytest.mark.long
def test_chatterbox_speaks_without_a_companion_in_the_voice_that_is_asked_for(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run, base = run_with_s3gen(fixtures, tmp_path)
    short = ("ሰላም", f"--run={run.path}", "--max-seconds=0.4", "--pause=0")
    words = (*short, f"--base={base}")
    half = error_of(lambda: spoken(*short, f"--base={run.base}", f"--output={tmp_path / 'x.wav'}"))
    assert half.code == "no-waveform-end"  # the speech tokenizer alone
    recording = tmp_path / "me.wav"
    recording.write_bytes(encode_audio(recorded(32_000, 16_000), 16_000))
    result = spoken(*words, f"--voice={recording}", f"--output={tmp_path / 'one.wav'}")
    wave, rate = read_audio(tmp_path / "one.wav")
    assert rate == 24_000
    assert len(wave) == 960 * len(result.said[0].pieces[0].codes)
    assert float(np.abs(wave).max()) > 1e-3
    spoken(*words, f"--voice={recording}", f"--output={tmp_path / 'two.wav'}")
    assert (tmp_path / "one.wav").read_bytes() == (tmp_path / "two.wav").read_bytes()
    no_voice = error_of(lambda: spoken(*words, f"--output={tmp_path / 'y.wav'}"))
    assert no_voice.code == "vocoder-voice"  # a held-out clip has no sound of its own
    assert not (tmp_path / "y.wav").exists()
    write_conditions(base / "conds.pt")
    result = spoken(*words, f"--output={tmp_path / 'built-in.wav'}")
    assert result.said[0].voice.name == "built-in"
    assert len(read_audio(tmp_path / "built-in.wav")[0]) == 960 * len(result.said[0].pieces[0].codes)
    broken = {name: tensor for name, tensor in small_state().items() if name != "flow.encoder_proj.bias"}
    (base / "s3gen.pt").unlink()
    saved(broken, base / "s3gen.pt")
    refused = error_of(lambda: spoken(*words, f"--output={tmp_path / 'z.wav'}"))
    assert refused.code == "tensors-mismatch"
    assert "flow.encoder_proj.bias [80] is missing" in refused.finding.found
    assert not (tmp_path / "z.wav").exists()


@pytest.mark.long
def test_speech_of_chatterbox_is_judged_at_its_own_rate_with_the_likeness_of_its_voice(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    run, base = run_with_s3gen(fixtures, tmp_path)
    recording = tmp_path / "me.wav"
    recording.write_bytes(encode_audio(recorded(88_200, 44_100), 44_100))
    given = evaluated(run.path, tmp_path, voices=recording, name="given", base=base, recognizer="built-in").evaluation
    own = given.row("am", "after")
    assert own is not None
    assert own.score("cer").value is not None
    likeness = own.score("likeness").value
    assert likeness is not None
    assert -1 <= likeness <= 1
    place = ModelContext(get_family("chatterbox"), get_family("chatterbox").files(base), "cpu", torch.float32)
    held_out = open_clip_dataset(run.folder.data_set("valid"))
    clip = Clip(held_out.codes(0), held_out.voice(0))
    nobody = open_voice_encoder(open_base_model(place), place, [ReferenceVoice("valid/1", clip)])
    assert isinstance(nobody, str)
    assert "only part of the voice" in nobody
