"""UnifiedVoice's encoders of voice and emotion against the original's outputs, and a batch of clips against each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.indextts2 import (
    FRAMES,
    LIMIT,
    golden_condition,
    golden_features,
    golden_model,
    random_condition,
    random_features,
    random_model,
)
from tests.support.shared import difference, expected
from voxgraft.core.errors import ConfigError, GraftError
from voxgraft.models.base import EmotionSource
from voxgraft.models.indextts2 import model as conformer
from voxgraft.models.indextts2.model import UnifiedVoiceCondition, build_training_condition, interpolate_emotion

UTTERANCES = ["a", "b"]


# ---- the original's outputs ---------------------------------------------------------------------------------


def test_the_position_tables_are_the_originals_bit_for_bit() -> None:
    wanted = expected("indextts2")["pe_rows_0_1_2_4999"]
    for encoder in (golden_model().conditioning_encoder, golden_model().emo_conditioning_encoder):
        assert difference(encoder.embed.pos_enc.pe[0, [0, 1, 2, 4999]], wanted) == 0


@torch.no_grad()
@pytest.mark.parametrize("utterance", UTTERANCES)
def test_the_speaker_conformer_gives_the_originals_frames(utterance: str) -> None:
    arrays, features, encoder = expected("indextts2"), golden_features(utterance), golden_model().conditioning_encoder
    assert difference(features[:4, :4], arrays[f"features_{utterance}_first4x4"]) == 0
    assert difference(encoder.embed(features)[:8], arrays[f"subsampled_{utterance}_first8"]) < LIMIT
    frames, heard = encoder([features])
    assert heard is None
    assert frames.shape[1] == int(arrays[f"conformer_{utterance}_frames"])
    assert difference(frames[0, :16], arrays[f"conformer_{utterance}_first16"]) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize("utterance", UTTERANCES)
def test_speaker_latents_and_emotion_are_the_originals(utterance: str) -> None:
    arrays, features, model = expected("indextts2"), golden_features(utterance), golden_model()
    assert difference(model.speaker_latents(features), arrays[f"cond_{utterance}"]) < LIMIT
    raw = model.emo_perceiver_encoder(*model.emo_conditioning_encoder([features]))[0, 0]
    assert difference(raw, arrays[f"emo_raw_{utterance}"]) < LIMIT
    assert difference(model.emotion_vector(features), arrays[f"emo_{utterance}"]) < LIMIT


def test_a_merged_emotion_is_the_originals() -> None:
    base, emotion = (torch.from_numpy(golden_condition(utterance).emotion) for utterance in UTTERANCES)
    assert difference(interpolate_emotion(base, emotion, 0.6), expected("indextts2")["emo_merged_a_b_alpha06"]) < LIMIT
    assert torch.equal(interpolate_emotion(base, emotion, 0.0), base)


def test_a_batch_gives_the_originals_solo_arrays_and_not_its_leaking_batch() -> None:
    """In the original's padded batch a bias leaks from the padding into the shorter clip: 0.005 in the latents and
    0.001 in the emotion. Stored conditions must not depend on which clips were prepared together.
    """
    arrays, model, clips = expected("indextts2"), golden_model(), [golden_features(name) for name in FRAMES]
    latents, emotions = model.batch_speaker_latents(clips), model.batch_emotion_vectors(clips)
    for row, utterance in enumerate(FRAMES):
        assert difference(latents[row], arrays[f"cond_{utterance}"]) < LIMIT
        assert difference(emotions[row], arrays[f"emo_{utterance}"]) < LIMIT
    assert difference(latents[1], arrays["cond_batch_b"]) > 1e-3
    assert difference(emotions[1], arrays["emo_batch_b"]) > 5e-4


# ---- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(3, 4, 5, 60), (61, 60, 59, 58, 58), (33,), (40, 40)])
def test_clips_give_in_a_batch_what_they_give_alone(lengths: tuple[int, ...]) -> None:
    model, clips = random_model(), [random_features(length) for length in lengths]
    latents, emotions = model.batch_speaker_latents(clips), model.batch_emotion_vectors(clips)
    assert latents.shape == (len(clips), 32, model.size.width)
    assert emotions.shape == (len(clips), model.size.width)
    for clip, voice, emotion in zip(clips, latents, emotions, strict=True):
        assert (model.speaker_latents(clip) - voice).abs().max() < LIMIT
        assert (model.emotion_vector(clip) - emotion).abs().max() < LIMIT


@torch.no_grad()
def test_a_long_clip_taken_piece_by_piece_gives_what_it_gives_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    embed, clip = random_model().conditioning_encoder.embed, random_features(2 * conformer.FRAMES_PER_CHUNK + 43)
    in_pieces = embed(clip)
    monkeypatch.setattr(conformer, "FRAMES_PER_CHUNK", len(clip))
    assert in_pieces.shape == ((len(clip) - 1) // 2, 32)
    assert (embed(clip) - in_pieces).abs().max() < LIMIT


def test_conditions_ask_for_no_gradient() -> None:
    model, clip = random_model(), random_features(20)
    assert not model.speaker_latents(clip).requires_grad
    assert not model.emotion_vector(clip).requires_grad


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(2, 1024), "features of 2 frames"),
        (torch.zeros(10_003, 1024), "features of 10,003 frames"),
        (torch.zeros(20, 80), r"shape \[20, 80\]"),
        (torch.zeros(1, 20, 1024), r"shape \[1, 20, 1024\]"),
        (torch.zeros(20, 1024, dtype=torch.int32), "int32"),
        (torch.full((20, 1024), torch.nan), "not finite"),
    ],
)
def test_features_that_the_encoders_cannot_read_are_refused(features: Tensor, message: str) -> None:
    model = random_model()
    encoders: list[Callable[[Tensor], Tensor]] = [model.speaker_latents, model.emotion_vector]
    for encode in encoders:
        with pytest.raises(GraftError, match=message) as error:
            encode(features)
        assert error.value.code == "features-form"
    with pytest.raises(GraftError, match="no clips"):
        model.batch_speaker_latents([])


# ---- conditions of an utterance -----------------------------------------------------------------------------


def test_the_slots_are_latents_with_the_emotion_on_each_then_both_speed_rows() -> None:
    model, conditions = random_model(), [random_condition(0), random_condition(1)]
    slots = model.embed_conditions(model.collate(conditions))
    assert slots.shape == (2, 34, model.size.width)
    for found, condition in zip(slots, conditions, strict=True):
        assert torch.equal(found[:32], torch.from_numpy(condition.latents + condition.emotion))
        assert torch.equal(found[32], model.speed_emb.weight[1])
        assert torch.equal(found[33], model.speed_emb.weight[0])


@pytest.mark.parametrize(
    ("latents", "emotion", "message"),
    [
        (np.zeros((31, 32)), np.zeros(32), r"speaker latents .* \[31, 32\]"),
        (np.zeros((32, 64)), np.zeros(32), r"speaker latents .* \[32, 64\]"),
        (np.zeros((1, 32, 32)), np.zeros(32), r"speaker latents .* \[1, 32, 32\]"),
        (np.zeros((32, 32)), np.zeros((1, 32)), r"an emotion .* \[1, 32\]"),
        (np.zeros((32, 32)), np.zeros(32, dtype=np.int64), "an emotion as int64"),
        (np.full((32, 32), np.inf), np.zeros(32), "1,024 of 1,024 numbers not finite"),
        (np.zeros((32, 32)), np.full(32, np.nan), "32 of 32 numbers not finite"),
    ],
)
def test_conditions_of_another_form_are_refused(
    latents: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    emotion: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    message: str,
) -> None:
    with pytest.raises(GraftError, match=message) as error:
        random_model().collate([random_condition(0), UnifiedVoiceCondition(latents, emotion)])
    assert error.value.code == "condition-form"


@pytest.mark.parametrize("emotion_from", ["target", "prompt"])
def test_the_voice_is_always_the_prompts_and_the_emotion_comes_from_where_it_is_asked(
    emotion_from: EmotionSource,
) -> None:
    clips = {"prompt": random_condition(0), "target": random_condition(1)}
    condition = build_training_condition(clips["prompt"], clips["target"], emotion_from)
    assert np.array_equal(condition.latents, clips["prompt"].latents)
    assert np.array_equal(condition.emotion, clips[emotion_from].emotion)


def test_an_emotion_from_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="target or prompt"):
        build_training_condition(random_condition(0), random_condition(1), "speaker")  # type: ignore[arg-type]
