"""The contract of every family's front end: a clip is encoded as if it were alone, and can be trained on and spoken."""

from __future__ import annotations

import wave as wave_files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.cases import TOLERANCE, Case
from tests.support.shared import shared
from voxgraft.models.base import Clip, ClipEncoder, build_sequence
from voxgraft.models.generate import GenerationPrompt, generate_codes
from voxgraft.models.speech_model import SpeechModel, compute_losses, pack_batch
from voxgraft.nn.decode import SamplingParams

RATE = 16_000
SECONDS = (1.0, 7.3, 2.51, 3.0, 6.4)


def clip(seconds: float, seed: int) -> np.ndarray[Any, Any]:
    """Something like a voice: a gliding tone with harmonics, and some noise."""
    draw = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * (90 + 60 * draw.random()) * time + 3 * np.sin(2 * np.pi * 2.2 * time)
    tone = sum(np.sin(k * phase) / k for k in range(1, 9)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))
    out: np.ndarray[Any, Any] = (0.1 * tone + 0.01 * draw.standard_normal(len(time))).astype(np.float32)
    return out


def encoder_of(case: Case, model: SpeechModel) -> ClipEncoder:
    if case.family.name != "indextts2":
        return case.family.encoder(case.files, model)
    return _index_encoder(case, model)


def _index_encoder(case: Case, model: SpeechModel) -> ClipEncoder:
    """w2v-bert of the published width and kind with one thin layer instead of 17: the real one has 580 M numbers."""
    transformers = pytest.importorskip("transformers", reason="NOT TESTED: transformers is not installed")
    from voxgraft.models.indextts2.encoder import SemanticCodec, UnifiedVoiceClipEncoder, W2vBertFeatureExtractor
    from voxgraft.models.indextts2.model import UnifiedVoice

    torch.manual_seed(1)
    config = transformers.Wav2Vec2BertConfig(num_hidden_layers=1, intermediate_size=64, hidden_size=1024)
    network = transformers.Wav2Vec2BertModel(config).eval()
    features = W2vBertFeatureExtractor(network, torch.zeros(1024), torch.ones(1024))
    assert isinstance(model, UnifiedVoice)
    return UnifiedVoiceClipEncoder(features, SemanticCodec.load(case.files.folder / "semantic_codec"), model)


@pytest.mark.long(fast=("tiny", "chatterbox"))
def test_a_clip_is_encoded_as_if_it_were_alone(case: Case) -> None:
    model = case.open()
    encoder = encoder_of(case, model)
    waves = [clip(seconds, seed) for seed, seconds in enumerate(SECONDS)]
    together = encoder.encode(waves)
    for one, wave in zip(together, waves, strict=True):
        single = encoder.encode([wave])[0]
        assert one.codes.shape == single.codes.shape
        assert np.mean(one.codes != single.codes) <= 0.02  # a number that lies on a rounding edge
        for name, array in single.voice.items():
            if array.dtype.kind == "f":
                assert np.abs(one.voice[name] - array).max() < TOLERANCE
            else:
                assert one.voice[name].shape == array.shape


def test_a_clip_has_as_many_codes_as_it_is_long_whoever_is_beside_it(case: Case) -> None:
    encoder = encoder_of(case, case.open())
    found = encoder.encode([clip(seconds, 0) for seconds in SECONDS])
    rates = [len(one.codes) / seconds for one, seconds in zip(found, SECONDS, strict=True)]
    assert max(rates) - min(rates) < 1.5
    assert all(one.codes.min() >= 0 for one in found)


def test_a_clip_is_encoded_alike_inside_autocast(case: Case) -> None:
    encoder = encoder_of(case, case.open())
    waves = [clip(1.0, 0), clip(1.2, 1)]
    want = encoder.encode(waves)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder.encode(waves)
        assert torch.is_autocast_enabled("cpu")
    for mine, other in zip(want, found, strict=True):
        assert np.array_equal(mine.codes, other.codes)
        assert all(np.array_equal(array, other.voice[name]) for name, array in mine.voice.items())


def test_encoded_clips_can_be_learnt_from_and_spoken_like(case: Case) -> None:
    model = case.open()
    prompt, target = encoder_of(case, model).encode([clip(7.0, 1), clip(2.0, 2)])
    ids = [5, 6, 7, 8]
    for emotion_from in ("target", "prompt"):
        condition = case.family.condition(prompt, target, emotion_from=emotion_from)
        batch = pack_batch(model, [build_sequence(model.spec, ids, target.codes)], [condition])
        with torch.no_grad():
            assert torch.isfinite(compute_losses(model, batch).speech_sum)
    spoken = generate_codes(model, [GenerationPrompt(ids, case.family.condition(prompt))], SamplingParams(max_codes=5))
    assert len(spoken[0].codes) <= 5


def test_human_speech_is_encoded(case: Case) -> None:
    paths = sorted(shared("real/amharic").glob("*.wav"))[:2]
    encoder = encoder_of(case, case.open())
    for one in encoder.encode([_read(path) for path in paths]):
        assert _varied(one)


def _varied(one: Clip) -> bool:
    return len(set(one.codes.tolist())) > 3


def _read(path: Path) -> np.ndarray[Any, Any]:
    with wave_files.open(str(path)) as file:
        assert file.getframerate() == RATE
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
