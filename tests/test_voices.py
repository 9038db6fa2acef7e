"""Voices are counted by ear, and speaker names that clearly disagree with them are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.film import RATE_HZ
from benchmarks.transcripts import say, sentences
from tools.random_bases.chatterbox import voice_encoder_shapes
from voxgraft.audio.voices import (
    MIN_VOICE_CLIPS,
    NUM_CEPSTRA,
    VECTOR_WIDTH,
    VoiceCount,
    VoiceVectors,
    compute_voice_vectors,
    count_voices,
)
from voxgraft.config.data import DataReportSettings, DataSplitSettings
from voxgraft.data.manifest import ManifestClip, write_manifest
from voxgraft.data.report import data_report, voice_findings
from voxgraft.data.split import data_split

RATE = 16_000


def _voice(pitch_hz: float, seconds: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A buzz with all harmonics."""
    time = np.arange(round(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * pitch_hz * number * time) / number for number in range(1, int(3_500 / pitch_hz)))
    return (0.2 * np.asarray(wave)).astype(np.float32)


@pytest.mark.parametrize("pitch_hz", [90, 150, 210, 330])
def test_the_pitch_of_a_voice_is_measured_within_a_semitone(pitch_hz: float) -> None:
    vectors = compute_voice_vectors(_voice(pitch_hz), RATE)
    assert vectors.shape == (2, VECTOR_WIDTH)
    assert np.abs(12 * (vectors[:, 0] - np.log2(pitch_hz))).max() < 1


@pytest.mark.parametrize("wave", [np.zeros(RATE), np.zeros(100), np.random.default_rng(0).normal(0, 0.1, RATE)])
def test_silence_and_noise_have_no_voice(wave: Any) -> None:
    assert compute_voice_vectors(wave.astype(np.float32), RATE).shape == (0, VECTOR_WIDTH)


def _draw(voices: int, apart: float, seed: int = 0, count: int = 50) -> list[VoiceVectors]:
    """Clips whose halves differ by 1, and clips of one voice by 0.5; voices differ in every dimension."""
    chance = np.random.default_rng(seed)
    clips = []
    for middle in chance.normal(0, apart, (voices, VECTOR_WIDTH)):
        own = middle + chance.normal(0, 0.5, (count, 1, VECTOR_WIDTH))
        clips += list((own + chance.normal(0, 1, (count, 2, VECTOR_WIDTH))).astype(np.float32))
    return clips


@pytest.mark.parametrize("voices", [1, 2, 3, 6])
def test_clusters_that_are_apart_are_counted(voices: int) -> None:
    found = count_voices(_draw(voices, apart=4.0))
    assert found is not None
    assert (found.voices, found.clips) == (voices, 50 * voices)
    assert found.is_one_certain == (voices == 1)


def test_another_room_alone_is_no_other_voice() -> None:
    clips = _draw(1, apart=0.0, count=60)
    room = np.zeros(VECTOR_WIDTH, np.float32)
    room[1 : 1 + NUM_CEPSTRA] = 4.0  # means of cepstra, which a microphone changes
    moved = [clip + room * (number % 2) for number, clip in enumerate(clips)]
    found = count_voices(moved)
    assert found is not None
    assert (found.voices, found.is_one_certain) == (1, False)
    # Without knowing which dimensions a room changes, these are two.
    assert getattr(count_voices(moved, has_channel_free=False), "voices", 0) == 2


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_copies_of_a_few_clips_are_counted_without_an_error(distinct: int) -> None:
    assert count_voices(_draw(1, 1.0)[:distinct] * 40) is not None


def test_too_few_clips_give_no_estimate() -> None:
    clips = _draw(1, 1.0)
    assert count_voices(clips[: MIN_VOICE_CLIPS - 1]) is None
    assert count_voices([np.zeros((0, VECTOR_WIDTH), np.float32)] * 100) is None


def _clip(number: int, speaker: str) -> ManifestClip:
    return ManifestClip(f"c{number}", f"clips/c{number}.flac", 5.0, "a b c", "en", speaker, f"r{number}", RATE_HZ)


@pytest.mark.parametrize(
    ("names", "counted", "code"),
    [
        (90, VoiceCount(1, 90, is_one_certain=True), "speakers-one-voice"),
        (90, VoiceCount(1, 90, is_one_certain=False), ""),
        (2, VoiceCount(1, 90, is_one_certain=True), ""),
        (1, VoiceCount(3, 90, is_one_certain=False), "speakers-many-voices"),
        (2, VoiceCount(3, 90, is_one_certain=False), ""),
        (3, VoiceCount(6, 90, is_one_certain=False), "speakers-many-voices"),
        (90, VoiceCount(8, 90, is_one_certain=False), ""),
        (1, None, ""),
    ],
)
def test_only_a_strong_disagreement_is_reported(
    tmp_path: Path, names: int, counted: VoiceCount | None, code: str
) -> None:
    clips = [_clip(number, f"s{number % names}") for number in range(90)]
    found = voice_findings(clips, counted, tmp_path)
    assert [item.code for item in found] == [code] * bool(code)
    assert {item.level for item in found} <= {"warning"}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ManifestClip]]:
    """Sixteen clips each of two synthetic voices, all long enough."""
    from voxgraft.audio.files import write_clip_audio

    folder, clips = tmp_path_factory.mktemp("voices"), list[ManifestClip]()
    texts = sorted(sentences("en"), key=len)[-16:]
    for voice in ("m1", "f2"):
        for text in texts:
            wave = say(text, voice, "en", 0.002, len(clips))
            clip = replace(_clip(len(clips), voice), text=text, seconds=len(wave) / RATE_HZ)
            write_clip_audio(folder / clip.audio, wave, RATE_HZ)
            clips.append(clip)
    return folder, clips


@pytest.mark.long
def test_report_and_split_hear_two_people_under_one_name(spoken: tuple[Path, list[ManifestClip]]) -> None:
    folder, clips = spoken
    write_manifest(folder / "manifest.jsonl", [replace(clip, speaker="somebody") for clip in clips])
    values = data_report(DataReportSettings(dataset=folder)).to_json()
    assert values["voices"]["voices"] == 2
    assert [item["code"] for item in values["findings"]] == ["speakers-many-voices"]
    again = data_split(DataSplitSettings(dataset=folder)).to_json()
    assert again["voices"] == values["voices"]
    assert "speakers-many-voices" in [item["code"] for item in again["findings"]]
    write_manifest(folder / "manifest.jsonl", clips)
    assert data_report(DataReportSettings(dataset=folder)).to_json()["findings"] == []


@pytest.mark.long
def test_the_voice_encoder_of_a_base_can_count_instead(spoken: tuple[Path, list[ManifestClip]], tmp_path: Path) -> None:
    folder, clips = spoken
    write_manifest(folder / "manifest.jsonl", clips)
    torch.manual_seed(0)
    torch.save({name: 0.1 * torch.randn(*shape) for name, shape in voice_encoder_shapes().items()}, tmp_path / "ve.pt")
    values = data_report(DataReportSettings(dataset=folder, voices=tmp_path)).to_json()
    assert values["voices"]["clips"] == len(clips)
    assert values["voices"]["voices"] >= 1
