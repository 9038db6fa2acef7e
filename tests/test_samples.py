"""Sentences that are spoken on the way: written down, the same for old languages, and without a trace in training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.checkpoint_files import saved
from tests.support.fixtures import Fixtures
from tests.support.indextts2 import write_waveform_end
from tests.support.preprocess_runs import voice_like
from tests.support.s3gen import signal_to_noise
from tests.support.trainers import EVERY, OPTIONS, Place, StopAt, loop_of, resumed
from tests.test_s3gen import small_state
from voxgraft.audio.files import encode_audio, read_audio
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import CompanionError, VoxgraftError
from voxgraft.core.run import strip_clock_fields
from voxgraft.data.manifest import ManifestClip, write_manifest
from voxgraft.dataset.run_data import find_recordings
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.evaluation import in_training
from voxgraft.evaluation.in_training import (
    BASE_LANGUAGE_SAMPLES,
    SampleCallback,
    SampleSentence,
    build_sample_sentences,
)
from voxgraft.models import family_names, get_family
from voxgraft.models.base import Clip, Latents, Vocoder
from voxgraft.models.speech_model import compute_speech_latents
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer
from voxgraft.training.trainer import Trainer

OFTEN = replace(EVERY, sample_every=8)
OLD = SampleSentence("en", "en", "I", (20, 30, 40), False, 2)


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures) -> Place:
    return fixtures.place(request.param)


def speaking(place: Place, run: Path, options: TrainOptions = OPTIONS) -> Trainer:
    """A training that speaks an old sentence and a new one."""
    loop = loop_of(place, run, options, OFTEN)
    last = loop.stepper.trained.model.num_text_ids - 1
    new = SampleSentence("am", "am", "ሰ", (last - 1, last, 20, 30), True, 1)
    loop.callbacks.append(SampleCallback(loop, [new, OLD]))
    return loop


@pytest.fixture(scope="module")
def straight(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    loop = speaking(place, tmp_path_factory.mktemp("straight"))
    loop.train(0)
    return loop


def lines(loop: Trainer, kind: str = "samples") -> list[dict[str, Any]]:
    return [strip_clock_fields(entry) for entry in loop.journal.read() if entry["kind"] == kind]


@pytest.mark.long(fast="tiny")
def test_samples_are_written_from_step_0_on_and_the_journal_says_what_they_hold(straight: Trainer) -> None:
    reported = lines(straight)
    assert [entry["step"] for entry in reported] == [0, 8]
    for entry in reported:
        folder = straight.run_folder.path / entry["folder"]
        assert sorted(path.name for path in folder.iterdir()) == ["am.json", "en.json"]
        for said in entry["spoken"]:
            kept = json.loads((folder / f"{said['name']}.json").read_text(encoding="utf-8"))
            assert (kept["language"], kept["text"]) == (said["language"], said["text"])
            assert (len(kept["codes"]), kept["stopped"], kept["seconds"]) == (
                said["codes"],
                said["stopped"],
                said["seconds"],
            )
            assert kept["seconds"] == pytest.approx(len(kept["codes"]) / kept["code_hz"], abs=0.01)
            assert kept["voice"].startswith("valid/clip")


def test_an_old_language_is_spoken_code_for_code_as_before_the_first_step(straight: Trainer) -> None:
    old = [entry["spoken"][1] for entry in lines(straight)]
    assert [said.get("same_as_step_0") for said in old] == [None, True]
    assert all("same_as_step_0" not in entry["spoken"][0] for entry in lines(straight))


@pytest.mark.long(fast="tiny")
def test_speaking_leaves_no_trace_in_training(place: Place, straight: Trainer, tmp_path: Path) -> None:
    silent = loop_of(place, tmp_path / "silent", OPTIONS, OFTEN)
    before = torch.random.get_rng_state()
    silent.train(0)
    straight.callbacks[0].on_sample(8)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert straight.stepper.trained.gate is not None
    assert not straight.stepper.trained.gate.on
    for one, other in zip(
        straight.stepper.trained.tensors().values(), silent.stepper.trained.tensors().values(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one)
    for kind in ("step", "valid"):
        assert lines(straight, kind) == lines(silent, kind)


@pytest.mark.long(fast="tiny")
def test_a_run_that_is_gone_on_with_speaks_as_the_straight_one(place: Place, straight: Trainer, tmp_path: Path) -> None:
    broken = speaking(place, tmp_path / "broken")
    broken.callbacks.append(StopAt(4, "enough for now"))
    broken.train(0)
    again = speaking(place, tmp_path / "broken")
    again.train(resumed(again))
    assert lines(again) == lines(straight)


@pytest.mark.long(fast="tiny")
def test_a_body_that_is_trained_is_seen_to_speak_otherwise(place: Place, tmp_path: Path) -> None:
    options = replace(OPTIONS, mode="merged", full_backbone=True, lr_backbone=0.1, steps=4, text_dropout=0.0)
    loop = speaking(place, tmp_path / "run", options)
    loop.train(0)
    assert lines(loop)[-1]["spoken"][1]["same_as_step_0"] is False


def test_without_the_first_round_nothing_is_said_of_sameness(place: Place, tmp_path: Path) -> None:
    loop = speaking(place, tmp_path / "run")
    said = loop.callbacks[0].on_sample(4)
    assert said is not None
    assert said["spoken"][1]["same_as_step_0"] is None


def test_a_sentence_is_cut_off_when_it_takes_longer_than_slow_speech(place: Place, tmp_path: Path) -> None:
    loop = loop_of(place, tmp_path / "run", OPTIONS, OFTEN)
    kind = get_family(place.family_name)
    said = SampleCallback(loop, [OLD]).on_sample(0)["spoken"][0]
    assert said["codes"] <= round(2.4 * kind.code_hz)
    assert said["stopped"] or said["codes"] == round(2.4 * kind.code_hz)


@pytest.fixture(scope="module", params=family_names())
def text_encoder(request: pytest.FixtureRequest, fixtures: Fixtures) -> TextEncoder:
    base = open_tokenizer(fixtures.base(request.param).tokenizer)
    return TextEncoder.of(get_family(request.param), base, base, "am")


def test_one_sentence_in_the_new_language_and_two_in_old_ones_unless_others_are_asked_for(
    text_encoder: TextEncoder,
) -> None:
    usual = build_sample_sentences(text_encoder, (), (), 0)
    old = [pair for pair in BASE_LANGUAGE_SAMPLES.items() if pair[0] in text_encoder.family.languages]
    assert [(one.language, one.text) for one in usual] == [("am", "ሰላም ለዓለም"), *old[:2]]
    assert len(usual) == 1 + min(2, len(text_encoder.family.languages))
    assert [one.is_new for one in usual] == [True, False, False]
    asked = build_sample_sentences(text_encoder, ("en:One: two", "en: Three ", "am:ሰላም"), (), 0)
    assert [(one.name, one.text) for one in asked] == [("en", "One: two"), ("en-2", "Three"), ("am", "ሰላም")]
    assert asked[1].ids == tuple(text_encoder.base.encode(text_encoder.prepare_base("Three", "en")))


def test_a_base_that_speaks_few_of_the_usual_languages_speaks_proof_sentences(
    text_encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_training, "BASE_LANGUAGE_SAMPLES", {"en": "Hello world"})
    found = build_sample_sentences(text_encoder, (), (), 0)
    assert [one.language for one in found[:2]] == ["am", "en"]
    assert len(found) == 1 + min(2, len(text_encoder.family.languages))
    for other in found[2:]:
        assert (other.language, other.text) in load_proof_corpus()
        assert other.language in text_encoder.family.languages
        assert not other.is_new


def test_a_language_without_a_sentence_of_ours_gets_the_shortest_held_out_one(text_encoder: TextEncoder) -> None:
    other = replace(text_encoder, language="ti")
    found = build_sample_sentences(other, (), ["ሰላም", "እንታይ ክገብር እየ", "ከመይ ኣሎኻ ሎሚ"], 0)
    assert (found[0].language, found[0].text) == ("ti", "ከመይ ኣሎኻ ሎሚ")
    assert [one.language for one in build_sample_sentences(other, (), [], 0)] == [one.language for one in found[1:]]


@pytest.mark.parametrize("asked", ["Hello world", "en:", ":Hello", "xx:Hello"])
def test_a_sentence_that_cannot_be_used_is_refused(text_encoder: TextEncoder, asked: str) -> None:
    with pytest.raises(VoxgraftError) as caught:
        build_sample_sentences(text_encoder, (asked,), (), 0)
    assert caught.value.code == "sample-text"


class Broken(Vocoder):
    """A vocoder that fails when it is asked, as a companion that was killed does."""

    sample_rate = 16_000

    def __init__(self) -> None:
        self.asked = 0

    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        self.asked += 1
        raise CompanionError("companion-died", "it is gone")


class Beeps(Vocoder):
    sample_rate = 16_000

    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        assert len(voices) == len(codes)
        return [np.full(640 * len(some), 0.25, dtype=np.float32) for some in codes]


def test_samples_become_sound_where_there_is_a_waveform_end(fixtures: Fixtures, tmp_path: Path) -> None:
    loop = loop_of(fixtures.place("chatterbox"), tmp_path / "run", OPTIONS, OFTEN)
    reported = SampleCallback(loop, [OLD], Beeps()).on_sample(0)
    samples, rate = read_audio(loop.run_folder.path / reported["folder"] / "en.wav")
    assert (len(samples), rate) == (640 * reported["spoken"][0]["codes"], 16_000)
    assert reported["silent_because"] == ""


@pytest.mark.long(fast="indextts2")
@pytest.mark.parametrize("family_name", ["chatterbox", "indextts2"])
def test_samples_sound_in_the_voice_of_a_held_out_recording(
    fixtures: Fixtures, tmp_path: Path, family_name: str
) -> None:
    """The new language with the gate open, in the first pass and in that of the latents; an old one with it closed."""
    place = Place(family_name, tmp_path)
    shutil.copytree(fixtures.place(family_name).folder, tmp_path, dirs_exist_ok=True)
    if family_name == "indextts2":
        write_waveform_end(tmp_path / "base", 64)
    else:
        saved(small_state(), tmp_path / "base" / "s3gen.pt")
    loop = loop_of(place, tmp_path / "run", OPTIONS, OFTEN)
    trained = loop.stepper.trained
    for name, values in trained.tensors()["adapter"].items():
        trained.model.get_parameter(name).data = torch.randn_like(values)
    last = trained.model.num_text_ids - 1
    new = SampleSentence("am", "am", "ሰ", (last - 1, last, 20, 30), True, 1)
    family = get_family(family_name)
    vocoder = family.vocoder(place.files)
    assert vocoder is not None
    silent = SampleCallback(loop, [new], vocoder)
    assert silent.on_sample(0)["silent_because"] != ""

    clips = open_clip_dataset(tmp_path / "valid")
    names = [info.id for info in clips.infos]
    lengths = [info.seconds for info in clips.infos]
    rows = [
        ManifestClip(name, f"{name}.wav", length, "ሰ", "am", "m", "r", 24_000, split="validation")
        for name, length in zip(names, lengths, strict=True)
    ]
    write_manifest(tmp_path / "sound" / "manifest.jsonl", rows)
    for number, (name, length) in enumerate(zip(names, lengths, strict=True)):
        (tmp_path / "sound" / f"{name}.wav").write_bytes(encode_audio(voice_like(length, number), 24_000))
    recordings = find_recordings(loop.run_folder, tmp_path / "sound")
    assert sorted(recordings) == sorted(f"valid/{name}" for name in names)

    sampler = SampleCallback(loop, [new, OLD], vocoder, recordings)
    reported = sampler.on_sample(8)
    assert reported["silent_because"] == ""
    folder, gate, voice = loop.run_folder.path / reported["folder"], trained.gate, sampler._voice
    assert gate is not None
    for sentence in (new, OLD):
        kept = json.loads((folder / f"{sentence.name}.json").read_text(encoding="utf-8"))
        given = ([sentence.ids], [family.condition(voice)], [kept["codes"]])
        states = []
        for is_open in (sentence.is_new, not sentence.is_new):
            with gate.opened() if is_open else gate.closed():
                states.append([one.numpy() for one in compute_speech_latents(trained.model, *given)])
        samples, rate = read_audio(folder / f"{sentence.name}.wav")
        waves = [vocoder.sound([kept["codes"]], [voice], own)[0] for own in states]
        assert (len(samples), rate) == (len(waves[0]), vocoder.sample_rate)
        ratios = [signal_to_noise(torch.from_numpy(samples), wave) for wave in waves]
        assert ratios[0] > 50
        assert (ratios[1] < ratios[0] - 5) is vocoder.needs_latents


def test_a_waveform_end_that_fails_is_reported_of_and_asked_no_more(fixtures: Fixtures, tmp_path: Path) -> None:
    loop = loop_of(fixtures.place("chatterbox"), tmp_path / "run", OPTIONS, OFTEN)
    broken = Broken()
    sampler = SampleCallback(loop, [OLD], broken)
    assert [sampler.on_sample(step)["silent_because"] for step in (0, 8)] == ["it is gone", "it is gone"]
    assert broken.asked == 1
    assert not list(loop.run_folder.path.rglob("*.wav"))
