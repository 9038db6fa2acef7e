"""The recipe for human voices: what it learns from, and all of it in small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.human_voices.make import LEARNED_SPLITS, main, utterances_of
from recipes.human_voices.pack import HumanClip, Split, read_pack, write_pack
from recipes.tiny_base.corpus import SPEAKERS, Utterance
from recipes.tiny_base.fitting import TrainingSetup
from recipes.tiny_base.train_codec import mixed_batches, pick_reference_clips, train_codec
from recipes.tiny_base.utterance_buffer import UtteranceBuffer, collect_symbols
from tests.contract.test_encoders import clip as speech_like
from voxgraft.asr import BuiltInRecognizer
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model

TEXTS = ("the cat sat", "a dog ran home", "she sees the sea", "we go home now", "the sea is deep", "he ran far away")
RUSSIAN = ("кот сидел", "она шла домой", "море было тихо", "он ушёл далеко", "мы идём домой", "день был долог")


def made_clips() -> list[HumanClip]:
    """Three speakers of tones, with every split."""
    clips = []
    for speaker, language, texts in (("anna", "en", TEXTS), ("ben", "fr", TEXTS), ("nsh", "ru", RUSSIAN)):
        splits: tuple[Split, ...] = ("train", "train", "train", "train", "valid", "test")
        for number, (text, split) in enumerate(zip(texts, splits, strict=True)):
            wave = (speech_like(0.9 + 0.1 * number, number + 10 * len(speaker)) * 32767).astype(np.int16)
            clips.append(HumanClip("made", f"{speaker}-{number}", language, speaker, text, "none", split, wave))
    return clips


def pile_of(*speakers: str) -> UtteranceBuffer:
    corpus = [
        Utterance("en", speaker, "ab", ("a",), np.full(4_000 + 100 * at, at, np.int16), "train")
        for at, speaker in enumerate(speakers)
    ]
    return UtteranceBuffer(corpus, collect_symbols(corpus), torch.device("cpu"))


def test_held_out_and_unseen_clips_are_not_learned_from() -> None:
    clips = made_clips()
    found = utterances_of(clips, as_phones=True)
    assert len(found) == 15
    assert not {one.text for one in found if one.language == "ru"} & {
        c.text for c in clips if c.split == "test" and c.language == "ru"
    }
    assert found[10].phones[:3] == ("ru.к", "ru.о", "ru.т")
    assert not any(one.phones for one in utterances_of(clips, as_phones=False))


def test_the_voice_is_taken_from_another_clip_of_the_same_speaker() -> None:
    utterance_buffer = pile_of("m1", "anna", "m1", "ben", "anna", "m1")
    assert utterance_buffer.names[: len(SPEAKERS)] == SPEAKERS
    seen: dict[int, set[int]] = {place: set() for place in range(6)}
    rng = np.random.default_rng(0)
    for _ in range(60):
        for place, other in enumerate(pick_reference_clips(utterance_buffer, np.arange(6), rng).tolist()):
            seen[place].add(other)
    assert seen == {0: {2, 5}, 1: {4}, 2: {0, 5}, 3: {3}, 4: {1}, 5: {0, 2}}


def test_a_crop_is_a_piece_of_its_own_clip() -> None:
    utterance_buffer = pile_of("m1", "anna", "ben")
    waves, lengths = utterance_buffer.crops(np.array([2, 0, 1]), 4_100, np.random.default_rng(0))
    assert lengths.tolist() == [4_100, 4_000, 4_100]
    for row, place in enumerate((2, 0, 1)):
        assert set((waves[row, : int(lengths[row])] * 32768).round().int().tolist()) == {place}
        assert not waves[row, int(lengths[row]) :].any()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_so_many_batches_are_of_people(share: float) -> None:
    utterance_buffer = pile_of(*["m1"] * 8, *["anna"] * 3)
    stream = mixed_batches(utterance_buffer, 10_000, share, np.random.default_rng(0))
    kinds = []
    for _ in range(400):
        places, _ = next(stream)
        is_human = set((places >= 8).tolist())
        assert len(is_human) == 1  # never mixed in one batch
        kinds.append(is_human.pop())
    assert np.mean(kinds) == pytest.approx(share, abs=0.07)


@pytest.mark.long
def test_the_smoke_mode_makes_a_base_that_clones_voices_a_recognizer_and_clips_to_read(tmp_path: Path) -> None:
    write_pack(tmp_path / "voices.npz", made_clips())
    main(
        [f"--pack={tmp_path / 'voices.npz'}", f"--out={tmp_path / 'made'}", "--smoke", "--minutes=0.4", "--device=cpu"]
    )
    report = json.loads((tmp_path / "made/report.json").read_text(encoding="utf-8"))
    assert report["codec"]["steps"] > 0
    assert report["listener"]["steps"] > 0
    assert report["base"]["trained"]["steps"] > 0
    tiny = get_family("tiny")
    files = tiny.files(tmp_path / "made/tiny")
    assert tiny.can_clone_voices(files)
    assert list(tiny.voices(files)) == ["anna", "ben"]  # those who speak a language of the base
    encoder, vocoder = tiny.encoder(files, load_model(tiny, files)), tiny.vocoder(files)
    assert vocoder is not None
    (voice,) = encoder.encode([speech_like(1.5, 3)])
    (sound,) = vocoder.sound([voice.codes.tolist()], [voice])
    assert len(sound) == len(voice.codes) * 640
    known = BuiltInRecognizer.open(tmp_path / "made/listener").languages
    assert known == frozenset({"en", "fr", "am", "ru"})
    made = read_pack(tmp_path / "made/resynthesised.npz")
    assert {(clip.speaker, clip.split) for clip in made} == {("anna", "test"), ("ben", "test"), ("nsh", "test")}


@pytest.mark.long
def test_a_codec_of_50_hz_is_trained_alone(tmp_path: Path) -> None:
    write_pack(tmp_path / "voices.npz", made_clips())
    words = ["--smoke", "--minutes=0.1", "--code-hz=50", "--levels=8,8,8,5", "--device=cpu"]
    main([f"--pack={tmp_path / 'voices.npz'}", f"--out={tmp_path / 'made'}", *words])
    report = json.loads((tmp_path / "made/report.json").read_text(encoding="utf-8"))
    assert report["code_hz"] == 50
    assert "base" not in report
    assert not (tmp_path / "made/tiny/t3.safetensors").exists()


@pytest.mark.long
def test_a_codec_with_a_table_of_speakers_is_still_trained(tmp_path: Path) -> None:
    corpus = [
        Utterance("en", SPEAKERS[at % 2], "ab", ("a", "b"), (speech_like(0.8, at) * 32767).astype(np.int16), split)
        for at in range(6)
        for split in LEARNED_SPLITS
    ]
    codec, report = train_codec(corpus, TrainingSetup("toy", 2.0, torch.device("cpu"), 0, lambda _line: None))
    assert codec.speakers == SPEAKERS
    assert not codec.clones_voices
    assert isinstance(report["steps"], int)
    assert report["steps"] > 0
