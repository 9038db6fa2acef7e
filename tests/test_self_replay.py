"""Replay that the base makes itself: what is said, by whom, what is kept, and when it is made again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.datasets import ListedSet
from tests.support.fixtures import Fixtures
from tests.support.run_folders import copied, train_settings
from tests.support.toy_language import World
from voxgraft.config.run import DataSettings
from voxgraft.config.train_options import TrainModeOrBaseline
from voxgraft.core.errors import Finding, GraftError, TextError
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.run_data import HELD_OUT_RECORDING, is_self_replay, split_self_replay
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, list_samples
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.dataset.shards import ClipDataset
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.train import train
from voxgraft.synthesis.inputs import choose_voices
from voxgraft.training.replay import (
    DEFAULT_UTTERANCES,
    ReplayGenerator,
    SelfReplayBuilder,
    plan_replay,
    resolve_self_replay_count,
)

SENTENCES = [(language, f"{language} sentence {number}") for language in ("en", "fr", "de") for number in range(40)]


def spelled(text: str, language: str) -> list[int]:
    return [len(language), *map(ord, text)]


def any_ids(_ids: Sequence[int]) -> bool:
    return True


@pytest.fixture(scope="module")
def world(fixtures: Fixtures) -> World:
    return fixtures.stopping_world()


def self_replay(world: World, run: Path, **changed: Any) -> SelfReplayBuilder:
    seed = changed.pop("seed", 0)
    data = DataSettings(min_prompt_seconds=0.1, **changed)
    spec = get_family(world.family_name).sequence_spec(world.text_encoder.base.size)
    return SelfReplayBuilder(
        RunFolder(run), data, world.files, load_graft(run / "graft"), world.text_encoder, spec, seed
    )


def train_sets(run: Path) -> list[ClipDataset]:
    return [open_clip_dataset(run / "data" / "train")]


# ---- the plan ----------------------------------------------------------------------------------------------


def test_every_language_has_its_part_and_one_in_eight_is_held_out() -> None:
    found = plan_replay(SENTENCES, spelled, any_ids, 96, 0)
    for language in ("en", "fr", "de"):
        own = [one for one in found if one.language == language]
        assert len(own) == 32
        assert sum(one.held_out for one in own) == 4
    assert len({one.id for one in found}) == len(found)


def test_no_sentence_is_both_learnt_from_and_held_out() -> None:
    found = plan_replay(SENTENCES, spelled, any_ids, 600, 0)
    assert len(found) == 600
    learnt = {(one.language, one.text) for one in found if not one.held_out}
    assert learnt.isdisjoint((one.language, one.text) for one in found if one.held_out)


def test_the_plan_is_a_function_of_sentences_and_seed() -> None:
    found = plan_replay(SENTENCES, spelled, any_ids, 60, 3)
    assert plan_replay(list(reversed(SENTENCES)), spelled, any_ids, 60, 3) == found
    assert plan_replay(SENTENCES, spelled, any_ids, 60, 4) != found


def test_sentences_that_are_not_plain_text_are_passed_by() -> None:
    found = plan_replay(SENTENCES, spelled, lambda ids: ord("1") not in ids, 90, 0)
    assert found
    assert not any("1" in one.text for one in found)


def test_voices_are_those_of_as_many_speakers_as_possible() -> None:
    speakers = [f"s{number % 5}" for number in range(60)]

    class Voiced(ListedSet):
        def voice(self, clip: int) -> dict[str, Any]:
            return {"speaker": np.full(4, clip, dtype=np.float32)}

    clips = Voiced("train", speakers, [1.0 + number % 7 for number in range(60)])
    voices = choose_voices([clips], 3.0, 40, 0)
    by_id = {f"train/{info.id}": info for info in clips.infos}
    assert len(voices) == 10
    assert {by_id[voice.name].speaker for voice in voices[:5]} == set(speakers)
    assert all(by_id[voice.name].seconds >= 3.0 for voice in voices)
    assert len(choose_voices([clips], 100.0, 40, 0)) == 1


@pytest.mark.parametrize(
    ("mode", "settings", "expected"),
    [
        ("gated", {"self_replay": 50}, 0),
        ("rows-only", {}, 0),
        ("merged", {}, DEFAULT_UTTERANCES),
        ("merged", {"self_replay": 0}, 0),
        ("merged", {"replay": (Path("english"),)}, 0),
        ("merged", {"replay": (Path("english"),), "replay_texts": (Path("en.txt"),)}, DEFAULT_UTTERANCES),
        ("merged", {"replay": (Path("english"),), "self_replay": 7}, 7),
        ("masked-finetune", {}, 0),
        ("masked-finetune", {"replay_texts": (Path("en.txt"),)}, DEFAULT_UTTERANCES),
    ],
)
def test_merged_mode_has_replay_unless_told_otherwise(
    mode: TrainModeOrBaseline, settings: dict[str, Any], expected: int
) -> None:
    assert resolve_self_replay_count(DataSettings(**settings), mode) == expected


# ---- the set -----------------------------------------------------------------------------------------------


NUM_ASKED = 16


@dataclass(frozen=True)
class Spoken:
    """A run whose base has spoken as many utterances as were asked for, and what was said of that."""

    run: Path
    made: ClipDataset
    reported: Finding


@pytest.fixture(scope="module")
def spoken(world: World, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    run = copied(world, tmp_path_factory.mktemp("spoken") / "run")
    return Spoken(run, *self_replay(world, run).load_or_generate(NUM_ASKED, train_sets(run), "cpu", torch.float32))


@pytest.mark.long
def test_a_set_is_made_once_and_used_again_while_it_fits(world: World, spoken: Spoken, tmp_path: Path) -> None:
    run, made = Path(shutil.copytree(spoken.run, tmp_path / "run")), spoken.made
    again, told_again = self_replay(world, run).load_or_generate(NUM_ASKED, train_sets(run), "cpu", torch.float32)
    assert "spoken by the base" in spoken.reported.found
    assert "used again" in told_again.found
    assert made.fingerprint == again.fingerprint
    assert is_self_replay(made)
    assert made.header.role == "replay"
    assert 0 < len(made) <= NUM_ASKED
    other, told_other = self_replay(world, run, seed=1).load_or_generate(
        NUM_ASKED, train_sets(run), "cpu", torch.float32
    )
    assert "spoken by the base" in told_other.found
    assert other.fingerprint != made.fingerprint


def test_the_same_request_gives_the_same_codes(world: World, spoken: Spoken, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "other")
    other, reported = self_replay(world, run).load_or_generate(NUM_ASKED, train_sets(run), "cpu", torch.float32)
    assert "spoken by the base" in reported.found
    assert other.fingerprint == spoken.made.fingerprint


def test_a_set_that_was_cut_off_is_made_again(world: World, spoken: Spoken, tmp_path: Path) -> None:
    run = Path(shutil.copytree(spoken.run, tmp_path / "run"))
    (run / "data" / "self-replay" / "shard-00000.safetensors").write_bytes(b"torn")
    again, reported = self_replay(world, run).load_or_generate(NUM_ASKED, train_sets(run), "cpu", torch.float32)
    assert "spoken by the base" in reported.found
    assert again.fingerprint == spoken.made.fingerprint


@pytest.mark.long
def test_the_users_texts_are_said_and_spelled_by_the_base(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    text = tmp_path / "en.txt"
    text.write_text("the house is old\nwe see the sea\na man and a dog\n\N{ETHIOPIC SYLLABLE SA}\n")
    made, _ = self_replay(world, run, replay_texts=(text,)).load_or_generate(20, train_sets(run), "cpu", torch.float32)
    assert made.header.language == "en"
    assert {info.text for info in made.infos} <= set(text.read_text().splitlines()[:3])
    for place, info in enumerate(made.infos):
        assert made.text_ids(place).tolist() == world.text_encoder.encode(info.text, "en")


def test_a_text_that_names_no_base_language_is_refused(world: World, tmp_path: Path) -> None:
    for name in ("notes.txt", "am.txt"):
        (tmp_path / name).write_text("the house is old\n")
        with pytest.raises(TextError) as caught:
            self_replay(world, world.run, replay_texts=(tmp_path / name,)).plan(10)
        assert caught.value.code == "replay-text-language"


def test_texts_that_the_base_cannot_spell_are_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("ሰላም ለዓለም\n")
    with pytest.raises(TextError) as caught:
        self_replay(world, world.run, replay_texts=(tmp_path / "en.txt",)).plan(10)
    assert caught.value.code == "replay-texts-empty"


def test_an_utterance_is_learnt_in_the_voice_that_it_was_said_in(spoken: Spoken) -> None:
    own, made = train_sets(spoken.run)[0], spoken.made
    learnt, held_out = split_self_replay(made)
    assert learnt is not None
    assert len(learnt) + sum(map(len, held_out.values())) == len(made)
    assert all(info.recording != HELD_OUT_RECORDING for info in learnt.infos)
    voices = {f"train/{info.id}": own.voice(place) for place, info in enumerate(own.infos)}
    order = DataSamplerOptions(num_conditioning=34)
    stream = DeterministicSampler([learnt], [1.0], 4_000, 0, order)
    sets = [learnt, *held_out.values()]
    items = [*stream.step(1), *(item for part in held_out.values() for item in list_samples([part], 0, order))]
    assert not stream.streams[0].left_out["lone speaker"]
    for item in stream.step(1):
        expected = voices[learnt.infos[item.clip].speaker]
        lent = learnt.voice(item.prompt[1])
        assert all(np.array_equal(lent[name], expected[name]) for name in expected)
        assert len(learnt.codes(item.prompt[1])) == 0
    assert items
    assert {language: part.header.language for language, part in held_out.items()} == {
        language: language for language in held_out
    }
    assert len({part.name for part in sets}) == len(sets)


@pytest.mark.long
def test_what_does_not_end_is_left_out_and_counted(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    made, reported = self_replay(world, run).load_or_generate(40, train_sets(run), "cpu", torch.float32)
    dropped = 40 - len(made)
    assert dropped > 0
    assert f"{len(made)} utterances spoken" in reported.found
    assert f"{dropped} left out" in reported.found
    assert (made.num_codes > 0).all()


@pytest.mark.parametrize(("stop_bias", "max_codes"), [(100.0, 1500), (-100.0, 5)], ids=["says nothing", "never ends"])
def test_a_base_that_does_not_speak_cannot_make_replay(world: World, stop_bias: float, max_codes: int) -> None:
    model = load_model(get_family("indextts2"), world.files)
    with torch.no_grad():
        model.get_parameter("mel_head.bias")[model.spec.speech_stop] += stop_bias
    voices = choose_voices(train_sets(world.run), 0.1, 40, 0)
    speaking = ReplayGenerator(get_family("indextts2"), model, voices, 0)
    speaking.sampling = replace(speaking.sampling, max_codes=max_codes)
    with pytest.raises(GraftError) as caught:
        list(speaking.clips(self_replay(world, world.run).plan(40)))
    assert caught.value.code == "self-replay-runaway"
    assert speaking.num_kept == 0


@pytest.mark.long
def test_a_merged_run_makes_its_replay_once_stays_near_the_base_on_it_and_measures_each_language(
    world: World, tmp_path: Path
) -> None:
    run = copied(world, tmp_path / "run")
    made = [train(train_settings(world, run, mode="merged", self_replay=32, steps=steps)) for steps in (2, 4)]
    assert [result.start for result in made] == [0, 2]
    entries = RunJournal(run / "journal.jsonl").read()
    reported = [entry["found"] for entry in entries if entry.get("code") == "self-replay"]
    assert "spoken by the base" in reported[0]
    assert "used again" in reported[-1]
    steps = [entry for entry in entries if entry["kind"] == "step"]
    learnt, _ = split_self_replay(open_clip_dataset(run / "data" / "self-replay"))
    assert learnt is not None
    own = {info.id for info in learnt.infos}
    assert any(own & {*entry["clips"]} for entry in steps)
    assert all(entry["kl"] >= -1e-6 for entry in steps)
    assert {entry["set"] for entry in entries if entry["kind"] == "valid"} == {"am", "en", "zh"}
    assert made[-1].merged is not None
    assert made[-1].merged.point.losses.keys() == {"am", "en", "zh"}
