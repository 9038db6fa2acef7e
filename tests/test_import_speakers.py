"""Voices are reported apart only where they clearly differ, and labels are never touched."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from benchmarks.film import RATE_HZ, amharic_sentences, speak
from voxgraft.audio.files import write_clip_audio
from voxgraft.config.data import DataSpeakersSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manage import SpeakerEmbeddings, cluster_speakers, data_speakers
from voxgraft.data.manifest import ManifestClip, read_manifest, write_manifest


def _vectors(*sizes: int, spread: float, seed: int = 0) -> SpeakerEmbeddings:
    """So many clips of each of several voices, as unit vectors around each voice's own."""
    chance = np.random.default_rng(seed)
    made = []
    for size in sizes:
        middle = np.abs(chance.normal(0, 1, 256))
        made.append(middle / np.linalg.norm(middle) + chance.normal(0, spread / 16, (size, 256)))
    return np.concatenate(made).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_voices_that_differ_are_reported_apart_and_the_most_frequent_is_first(seed: int) -> None:
    labels = cluster_speakers(_vectors(12, 30, 7, spread=0.35, seed=seed))
    assert labels == [1] * 12 + [0] * 30 + [2] * 7


def test_every_clip_of_a_very_long_recording_gets_its_voice() -> None:
    labels = cluster_speakers(_vectors(3_000, 2_000, spread=0.35))
    assert labels == [0] * 3_000 + [1] * 2_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_one_voice_stays_one_however_it_wavers(seed: int, spread: float) -> None:
    assert set(cluster_speakers(_vectors(40, spread=spread, seed=seed))) == {0}


def test_a_few_clips_are_never_parted() -> None:
    assert cluster_speakers(_vectors(2, 2, spread=0.1)) == [0] * 4
    assert cluster_speakers(_vectors(1, spread=0.1)) == [0]


def _dataset(folder: Path) -> list[ManifestClip]:
    """Twelve clips of two voices without labels, and four of two voices with one."""
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    texts, clips = amharic_sentences(), []
    for at in range(16):
        samples = speak(texts[at], ("m1", "f4")[at % 2])
        own = "talk" if at < 12 else "named"
        clip = ManifestClip(f"c{at}", f"clips/c{at}.flac", len(samples) / RATE_HZ, texts[at], "am", own, own, RATE_HZ)
        write_clip_audio(folder / clip.audio, samples, RATE_HZ)
        clips.append(replace(clip, speaker="named:Abebe") if own == "named" else clip)
    write_manifest(folder / "manifest.jsonl", clips)
    return clips


def test_voices_of_a_recording_without_labels_are_reported_apart(tmp_path: Path) -> None:
    """By the weights of Resemblyzer, whose network is the one that Chatterbox has taken over."""
    import torch

    from voxgraft.models.chatterbox.encoder import VoiceEncoder

    spec = importlib.util.find_spec("resemblyzer")
    if spec is None or spec.origin is None:
        pytest.skip("NOT TESTED: resemblyzer is absent (pip install --no-deps resemblyzer)")
    clips = _dataset(tmp_path)
    state = torch.load(Path(spec.origin).parent / "pretrained.pt", map_location="cpu", weights_only=True)["model_state"]
    encoder = VoiceEncoder()
    encoder.load_state_dict({name.replace("linear.", "proj."): tensor for name, tensor in state.items()})
    save_file(encoder.state_dict(), tmp_path / "ve.safetensors")
    settings = DataSpeakersSettings(dataset=tmp_path, voices=tmp_path / "ve.safetensors")
    assert data_speakers(settings).to_json()["voices"] == {"talk": 2}
    after = list(read_manifest(tmp_path / "manifest.jsonl"))
    assert [clip.speaker for clip in after[12:]] == ["named:Abebe"] * 4, "labels stay"
    assert {clip.speaker for clip in after[:12]} == {"talk:voice-1", "talk:voice-2"}
    assert len({clip.speaker for clip in after[:12:2]}) == len({clip.speaker for clip in after[1:12:2]}) == 1
    assert [replace(clip, speaker="") for clip in after] == [replace(clip, speaker="") for clip in clips]


def test_an_encoder_that_hears_no_difference_parts_nobody(tmp_path: Path) -> None:
    import torch

    from voxgraft.models.chatterbox.encoder import VoiceEncoder

    clips = _dataset(tmp_path)
    torch.manual_seed(0)
    save_file(VoiceEncoder().state_dict(), tmp_path / "ve.safetensors")
    done = data_speakers(DataSpeakersSettings(dataset=tmp_path, voices=tmp_path / "ve.safetensors"))
    assert done.to_json()["voices"] == {}
    assert list(read_manifest(tmp_path / "manifest.jsonl")) == clips


def test_a_rename_without_a_name_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path / "manifest.jsonl", [])
    with pytest.raises(VoxgraftError):
        data_speakers(DataSpeakersSettings(dataset=tmp_path, rename=("film",)))
