"""The tiny family's second form: a base whose codec computes voices of recordings, beside bases with named voices."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tests.contract.test_encoders import clip
from tests.support.run_folders import error_of
from tools.random_bases import make_random_base
from tools.random_bases.tiny import CLONING_SIZE
from voxgraft.cli.app import CommandLine, parse_command_line, resolve_settings
from voxgraft.cli.commands import COMMANDS
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles
from voxgraft.models.chatterbox.model import T3ConditionBatch
from voxgraft.models.speech_model import load_model
from voxgraft.models.tiny.family import VOICES_NAME, write_voice_vectors, write_voices
from voxgraft.models.tiny.model import TinyCodec, TinyCodecConfig, load_codec
from voxgraft.synthesis.command import speak

TINY = get_family("tiny")
WIDTH = CLONING_SIZE.voice_vector
SMALL = TinyCodecConfig(
    (), (4, 3, 5), 20, 24, 32, 24, (1, 1, 1), (1, 1, 1), voice_vector=8, speaker_width=24, speaker_blocks=1
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> BaseFiles:
    return make_random_base("tiny", tmp_path_factory.mktemp("base") / "base", size=CLONING_SIZE)


@pytest.fixture
def copied(files: BaseFiles, tmp_path: Path) -> Path:
    return Path(shutil.copytree(files.folder, tmp_path / "base"))


@pytest.fixture(scope="module")
def codec() -> TinyCodec:
    torch.manual_seed(0)
    return TinyCodec(SMALL).eval()


def voices_of(files: BaseFiles, *waves: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [one.voice["speaker"] for one in TINY.encoder(files, load_model(TINY, files)).encode(list(waves))]


def test_whether_voices_are_cloned_is_a_fact_of_each_base(files: BaseFiles, tmp_path: Path) -> None:
    assert TINY.can_clone_voices(files)
    assert not TINY.can_clone_voices(make_random_base("tiny", tmp_path / "table"))
    shipped = TINY.shipped_folder()
    assert shipped is not None
    assert not TINY.can_clone_voices(TINY.files(shipped))
    assert list(TINY.voices(TINY.files(shipped))) == ["m1", "m3", "f2", "f4", "slt", "rms"]
    assert get_family("chatterbox").can_clone_voices(files)


def test_a_recording_gives_a_unit_vector_of_its_own_whatever_is_beside_it(files: BaseFiles) -> None:
    one, other = clip(2.0, 1), clip(3.1, 2)
    first, second = voices_of(files, one, other)
    assert first.shape == second.shape == (WIDTH,)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(first, second, atol=1e-4)
    (alone,) = voices_of(files, one)
    np.testing.assert_array_equal(first, alone)


@torch.no_grad()
def test_a_vector_in_a_padded_batch_is_that_of_the_recording_alone(codec: TinyCodec) -> None:
    assert codec.speaker_encoder is not None
    lengths = [16_000, 9_600, 4_000]
    waves = [torch.from_numpy(clip(length / 16_000, seed)) for seed, length in enumerate(lengths)]
    together = codec.speaker_encoder(torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor(lengths))
    for row, length, wave in zip(together, lengths, waves, strict=True):
        # The last frames see zeros behind the recording in both cases.
        padded = torch.nn.functional.pad(wave, (0, -length % 320))
        torch.testing.assert_close(row, codec.speaker_encoder(padded[None])[0], atol=1e-5, rtol=0)


def test_the_voice_changes_the_sound_and_not_its_length(files: BaseFiles) -> None:
    vocoder = TINY.vocoder(files)
    assert vocoder is not None
    encoder = TINY.encoder(files, load_model(TINY, files))
    voices = [*encoder.encode([clip(2.0, 1), clip(2.0, 2)]), TINY.voice(files, "one")]
    waves = vocoder.sound([[5, 6, 7]] * 3, voices)
    assert [len(wave) for wave in waves] == [3 * 640] * 3
    assert not np.array_equal(waves[0], waves[1])
    assert not np.array_equal(waves[0], waves[2])
    assert all(np.isfinite(wave).all() for wave in waves)


def test_a_base_speaks_in_the_voice_of_a_recording_or_of_a_name(files: BaseFiles, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "my.wav", clip(2.0, 4), 16_000)
    sounds: list[bytes] = []
    for voice in (str(tmp_path / "my.wav"), "one", None):
        target = tmp_path / f"{len(sounds)}.wav"
        words = ["speak", "oh", f"--base={files.folder}", "--language=en", f"--output={target}", "--max-seconds=1"]
        words += [] if voice is None else [f"--voice={voice}"]
        line = parse_command_line(words, COMMANDS)
        assert isinstance(line, CommandLine)
        speak(resolve_settings(line))  # type: ignore[arg-type]
        sounds.append(target.read_bytes())
    assert sounds[0] != sounds[1]
    assert sounds[1] == sounds[2]  # the first of the base's own voices


def test_a_condition_of_the_other_form_is_refused(files: BaseFiles, tmp_path: Path) -> None:
    model = load_model(TINY, files)
    table = load_model(TINY, make_random_base("tiny", tmp_path / "table"))
    vector = np.zeros(WIDTH, np.float32)
    for wrong in (np.array([1]), vector[:-1], np.full(WIDTH, np.nan, np.float32), vector.astype(np.int32)):
        assert error_of(lambda wrong=wrong: model.collate([wrong])).code == "condition-form"
    assert error_of(lambda: table.collate([vector])).code == "condition-form"
    batch = model.collate([vector] * 2)
    assert isinstance(batch, T3ConditionBatch)
    assert batch.speaker.shape == (2, WIDTH)


@pytest.mark.parametrize(
    "changed",
    [
        {"width": 0},
        {"width": "16"},
        {"voices": [1.0]},
        {"voices": {"one": [1.0]}},
        {"voices": {"one": ["x"] * WIDTH}},
        {"voices": {"": [0.5] * WIDTH}},
        {"format": "voxgraft-voices-3"},
    ],
)
def test_damaged_vectors_are_refused(copied: Path, changed: dict[str, Any]) -> None:
    document = json.loads((copied / VOICES_NAME).read_text(encoding="utf-8"))
    (copied / VOICES_NAME).write_text(json.dumps({**document, **changed}), encoding="utf-8")
    assert error_of(lambda: TINY.voices(TINY.files(copied))).code == "voices-broken"


def test_voices_of_another_form_or_width_than_the_codec_has_are_refused(copied: Path) -> None:
    write_voices(copied, ["one"])
    assert error_of(lambda: load_codec(copied)).code == "voices-broken"
    write_voice_vectors(copied, WIDTH + 1, {})
    assert error_of(lambda: load_codec(copied)).code == "voices-broken"
    assert error_of(lambda: TINY.build_empty_model(TINY.files(copied))).code == "voices-broken"
    write_voice_vectors(copied, WIDTH, {})
    assert load_codec(copied)[1] == ()  # a base needs no named voices


def test_a_codec_is_stored_with_its_speaker_encoder(codec: TinyCodec, tmp_path: Path) -> None:
    codec.save(tmp_path / "codec.safetensors")
    again = TinyCodec.open(tmp_path / "codec.safetensors")
    assert again.config == SMALL
    wave = torch.from_numpy(clip(1.0, 0))
    torch.testing.assert_close(again.embed_voices([wave]), codec.embed_voices([wave]), atol=2e-3, rtol=0)


def test_a_codec_may_have_another_rate_but_a_base_may_not(copied: Path) -> None:
    torch.manual_seed(0)
    config = replace(SMALL, encoder_blocks=(1, 1), decoder_blocks=(1, 1), voice_vector=WIDTH)
    fast = TinyCodec(config).eval()
    codes, counts = fast.encode(torch.from_numpy(clip(1.0, 0))[None])
    assert counts.tolist() == [50]
    vector = fast.embed_voices([torch.from_numpy(clip(1.0, 1))])
    assert fast.decode(codes, vector).shape == (1, 16_000)
    (copied / "codec.safetensors").unlink()
    fast.save(copied / "codec.safetensors")
    assert error_of(lambda: load_codec(copied)).code == "codec-notes"
