"""IndexTTS-2's emotions: the original's vectors in every mode, its sliders, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import s2mel as golden
from tests.support.checkpoint_files import saved
from voxgraft.core.errors import VoxgraftError
from voxgraft.models.base import BaseFiles, Clip
from voxgraft.models.indextts2.encoder import (
    SPEAKER_EMOTION,
    STYLE,
    VECTORS_PER_EMOTION,
    EmotionTable,
    blend_emotion,
    build_unified_voice_condition,
    mix_emotions,
    scale_shares,
    weigh_sliders,
)

Array = np.ndarray[Any, Any]
# The golden README recommends 1e-6; the rows must be the very ones.
LIMIT = 1e-6
SLIDERS = (0.1, 0, 0.35, 0.05, 0, 0.12345, 0, 0.3)
GREEDY = (0.9, 0.2, 0, 0.4, 0.1, 0, 0.3, 0.6)


def table() -> EmotionTable:
    voices, vectors = golden.floats("feat1", (73, 192), 1.0), golden.floats("feat2", (73, 1280), 0.5)
    return EmotionTable(voices.numpy(), vectors.numpy())


def emotion_of(name: str) -> Array:
    found: Array = golden.floats(f"emovec.{name}", (1280,), 1.0).numpy()
    return found


def off(found: Array, name: str) -> float:
    wanted = golden.arrays()[name].reshape(-1)
    assert found.shape == wanted.shape
    return float(np.abs(found.astype(np.float64) - wanted).max())


def clip(**voice: Array) -> Clip:
    return Clip(np.zeros(3, np.int64), voice)


def test_the_rows_are_those_that_the_original_chooses() -> None:
    arrays = golden.arrays()
    assert table().choose_rows(arrays["emo_style"].reshape(-1)) == _absolute_rows(arrays["emo_chosen_rows"])


def _absolute_rows(rows: Array) -> list[int]:
    """Rows counted within each emotion as rows of the file, if they are not that already."""
    found = rows.reshape(-1).tolist()
    starts = np.cumsum([0, *VECTORS_PER_EMOTION])[:-1].tolist()
    absolute = all(start <= row for start, row in zip(starts, found, strict=True))
    return found if absolute else [start + row for start, row in zip(starts, found, strict=True)]


@pytest.mark.parametrize(
    ("name", "shares", "weight"),
    [
        ("emo_vector", SLIDERS, 1.0),
        ("emo_vector_alpha06", SLIDERS, 0.6),
        ("emo_vector_and_audio", SLIDERS, 0.6),
        ("emo_vector_sum_above_1", GREEDY, 1.0),
        ("emo_text_alpha05", GREEDY, 0.5),
    ],
)
def test_vectors_of_the_eight_are_the_originals(name: str, shares: tuple[float, ...], weight: float) -> None:
    style = golden.arrays()["emo_style"].reshape(-1)
    found = table().blend(scale_shares(shares, weight), style, emotion_of("speaker"))
    assert off(found, name) < LIMIT


def test_voice_and_recording_modes_are_the_originals() -> None:
    own, other = emotion_of("speaker"), emotion_of("other")
    voice = build_unified_voice_condition(clip(latents=np.zeros((32, 1280)), emotion=own), None, "target")
    assert off(voice.emotion, "emo_speaker") < LIMIT
    assert off(voice.emotion, "emo_speaker_alpha_ignored") < LIMIT
    assert off(blend_emotion(voice, clip(emotion=other), 0.6).emotion, "emo_audio_alpha06") < LIMIT


def test_a_recordings_emotion_is_blended_with_that_of_the_speakers_own_signal() -> None:
    """The original hears the speaker's emotion in the signal that went through two resamplers, in this mode alone."""
    own, heard, other = (np.full(4, value, np.float32) for value in (1.0, 2.0, 6.0))
    voice = clip(latents=np.zeros((32, 4), np.float32), emotion=own, **{SPEAKER_EMOTION: heard})
    condition = build_unified_voice_condition(voice, None, "target")
    assert np.array_equal(condition.emotion, own)
    assert np.allclose(blend_emotion(condition, clip(emotion=other), 0.5).emotion, 4.0)


def test_sliders_are_weighed_and_capped_as_on_the_originals_page() -> None:
    arrays = golden.arrays()
    for given, biased, plain in zip(
        arrays["emo_normalize_in"], arrays["emo_normalize_bias"], arrays["emo_normalize_nobias"], strict=True
    ):
        assert np.allclose(weigh_sliders(given.tolist()), biased, rtol=0, atol=1e-12)
        assert np.allclose(weigh_sliders(given.tolist(), bias=False), plain, rtol=0, atol=1e-12)


def test_strength_cuts_to_four_decimals_and_stays_within_0_and_1() -> None:
    assert scale_shares([0.12345, 0.3], 0.6) == [0.074, 0.18]
    assert scale_shares([0.12345], 1.0) == scale_shares([0.12345], 7.0) == [0.12345]
    assert scale_shares([0.5], -1.0) == [0.0]


# ---- files ---------------------------------------------------------------------------------------------------------

WIDTH = 12


@pytest.fixture
def files(tmp_path: Path) -> BaseFiles:
    draw = torch.Generator().manual_seed(0)
    saved(torch.randn(73, 192, generator=draw), tmp_path / "feat1.pt")
    saved(torch.randn(73, WIDTH, generator=draw), tmp_path / "feat2.pt")
    return BaseFiles(tmp_path, tmp_path / "gpt.pth", tmp_path / "bpe.model")


def random_voice(seed: int = 1) -> Clip:
    draw = np.random.default_rng(seed)
    style, emotion = draw.standard_normal(192), draw.standard_normal(WIDTH)
    return clip(emotion=emotion.astype(np.float32), **{STYLE: style.astype(np.float32)})


def test_sliders_reach_the_emotion_of_a_voice_by_its_nearest_rows(files: BaseFiles) -> None:
    voice, known = random_voice(), EmotionTable.load(files)
    rows = known.choose_rows(voice.voice[STYLE])
    found = mix_emotions(files, [0, 0, 0.5, 0, 0, 0, 0, 0], 1.0, voice).voice["emotion"]
    assert np.allclose(found, 0.5 * known.vectors[rows[2]] + 0.5 * voice.voice["emotion"], atol=1e-6)
    strong = mix_emotions(files, [0, 0, 1, 0, 0, 0, 0, 0], 1.0, voice).voice["emotion"]
    assert np.allclose(strong, 0.8 * known.vectors[rows[2]] + 0.2 * voice.voice["emotion"], atol=1e-6)
    off_ = mix_emotions(files, [0, 0, 1, 0, 0, 0, 0, 0], 0.0, voice).voice["emotion"]
    assert np.array_equal(off_, voice.voice["emotion"])
    other = random_voice(2)
    assert known.choose_rows(other.voice[STYLE]) != rows


@pytest.mark.parametrize(
    ("sliders", "code"),
    [([0.0] * 8, "manner-unknown"), ([0.5] * 3, "manner-unknown"), ([1.5, *[0.0] * 7], "manner-unknown")],
    ids=["none set", "three", "beyond 1"],
)
def test_sliders_that_make_no_sense_are_refused(files: BaseFiles, sliders: list[float], code: str) -> None:
    assert error_of(lambda: mix_emotions(files, sliders, 1.0, random_voice())).code == code


def test_what_is_missing_is_said(files: BaseFiles) -> None:
    def mix(voice: Clip) -> Clip:
        return mix_emotions(files, [1, *[0] * 7], 1.0, voice)

    assert error_of(lambda: mix(clip(emotion=np.zeros(WIDTH, np.float32)))).code == "emotion-voice"
    wrong = clip(emotion=np.zeros(WIDTH + 1, np.float32), **{STYLE: np.ones(192, np.float32)})
    assert error_of(lambda: mix(wrong)).code == "tensors-mismatch"
    saved(torch.zeros(72, 192), files.folder / "feat1.pt")
    assert error_of(lambda: mix(random_voice())).code == "tensors-mismatch"
    (files.folder / "feat1.pt").unlink()
    assert error_of(lambda: mix(random_voice())).code == "base-file-missing"


def error_of(act: Callable[[], object]) -> VoxgraftError:
    with pytest.raises(VoxgraftError) as caught:
        act()
    return caught.value
