"""The light evaluation in the training loop: what is heard decides the best step, also of a run that is continued with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.evaluation import Tones, in_order, parrot
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun
from tests.support.trainers import EVERY, Place, StopAt, loop_of, resumed
from tests.support.trainers import OPTIONS as USUAL
from voxgraft.core.run import History
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.evaluation.in_training import (
    InTrainingEvaluation,
    SpokenSteps,
    _choose_sentences,
    build_in_training_evaluation,
    clearly_fewer,
)
from voxgraft.evaluation.scores import SpeechRenderer, SpokenSentence, Transcriber, open_transcriber
from voxgraft.evaluation.sentences import EvalSentence, load_built_in_sentences
from voxgraft.models import get_family
from voxgraft.models.base import Clip
from voxgraft.pipeline.train import _add_speech_judges, _build_loop
from voxgraft.synthesis.engine import SpeakingModel
from voxgraft.synthesis.inputs import ReferenceVoice
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.training.callbacks import Callback
from voxgraft.training.distributed import DistributedContext
from voxgraft.training.setup import build_training_setup
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import RetentionBound

OPTIONS = replace(USUAL, steps=12)
SENTENCES = [EvalSentence("am", "abcd"), EvalSentence("am", "efgh")]
MOODS = {"perfect": ["abcd", "efgh"], "good": ["abcd", "efgx"], "bad": ["xxxx", "yyyy"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.make("tiny", tmp_path_factory.mktemp("tiny"))


def moody_listener(folder: Path, moods: Sequence[str]) -> str:
    """A program that hears round after round what the moods say."""
    return in_order(folder, [answer for mood in moods for answer in MOODS[mood]])


def judged(
    place: Place, run: Path, transcriber: Transcriber, *, sound: SpeechRenderer | None = None, listen: int = 4
) -> tuple[Trainer, InTrainingEvaluation]:
    loop = loop_of(place, run, OPTIONS, replace(EVERY, listen_every=listen))
    kind, trained = get_family("tiny"), loop.stepper.trained
    text_encoder = TextEncoder.of(kind, open_tokenizer(place.files.tokenizer), None, "am")
    system = SpeakingModel("graft", kind, trained.model, text_encoder, trained.gate, "gated")
    voices = [ReferenceVoice(name, clip) for name, clip in kind.voices(place.files).items()]
    light = InTrainingEvaluation(loop, system, SENTENCES, voices, sound or SpeechRenderer(Tones()), transcriber)
    loop.callbacks.append(light)
    return loop, light


def valid_lines(loop: Trainer) -> dict[int, dict[str, Any]]:
    return {line["step"]: line for line in loop.journal.read() if line["kind"] == "valid"}


@pytest.mark.long
def test_the_step_that_is_understood_best_is_the_best_and_is_saved_whatever_the_loss_says(
    place: Place, tmp_path: Path
) -> None:
    transcriber = open_transcriber(moody_listener(tmp_path, ["bad", "good", "perfect", "bad"]))
    loop, _ = judged(place, tmp_path / "run", transcriber)
    outcome = loop.train(0)
    lines = valid_lines(loop)
    assert [lines[step]["heard"]["cer"] for step in (0, 4, 8, 12)] == [1.0, 1 / 8, 0.0, 1.0]
    assert [lines[step]["best_step"] for step in (4, 8, 12)] == [4, 8, 8]
    assert outcome.best_state.best_step == 8
    assert outcome.best_state.best_loss == lines[8]["speech_loss"]
    assert outcome.best_state.rounds_without_better == 1
    assert loop.run_folder.step(8).is_dir()
    assert History.of(loop.journal.read()).held_out("heard", "cer") == [(0, 1.0), (4, 1 / 8), (8, 0.0), (12, 1.0)]


@pytest.mark.long
def test_a_run_that_is_gone_on_with_takes_the_same_step_for_the_best(place: Place, tmp_path: Path) -> None:
    transcriber = open_transcriber(moody_listener(tmp_path, ["bad", "perfect", "good", "bad"]))
    first, _ = judged(place, tmp_path / "run", transcriber)
    first.callbacks.append(StopAt(8, "enough"))
    assert first.train(0).step == 8
    again, _ = judged(place, tmp_path / "run", transcriber)
    start = resumed(again)
    assert start == 8
    assert again.train(start).best_state.best_step == 4


@pytest.mark.long
def test_where_nothing_can_be_heard_the_loss_goes_on_deciding_and_the_reason_stands_in_the_journal(
    place: Place, tmp_path: Path
) -> None:
    deaf, _ = judged(place, tmp_path / "deaf", Transcriber(None, "nobody is here"))
    plain = loop_of(place, tmp_path / "plain", OPTIONS, EVERY)
    assert deaf.train(0).best_state == plain.train(0).best_state
    assert valid_lines(deaf)[4]["heard"] == {"why": "nobody is here", "within": True}
    mute, _ = judged(
        place, tmp_path / "mute", open_transcriber(parrot(tmp_path, "x")), sound=SpeechRenderer(None, "no sound")
    )
    mute.train(0)
    assert valid_lines(mute)[4]["heard"]["why"] == "no sound"


@pytest.mark.long
def test_listening_leaves_no_trace_in_training(place: Place, tmp_path: Path) -> None:
    loop, _ = judged(place, tmp_path / "heard", open_transcriber(parrot(tmp_path, "abcd")))
    plain = loop_of(place, tmp_path / "plain", OPTIONS, EVERY)
    loop.train(0)
    plain.train(0)
    for group, tensors in plain.stepper.trained.tensors().items():
        for name, tensor in tensors.items():
            assert tensor.equal(loop.stepper.trained.tensors()[group][name]), name


def test_a_step_past_the_bound_on_old_languages_is_never_the_best(place: Place, tmp_path: Path) -> None:
    loop, light = judged(place, tmp_path / "run", Transcriber(None, "nobody"))
    found = loop.validations["am"].run()
    loop.best_state = type(loop.best_state)(first={"am": found.speech_loss, "en": 1.0})
    loop.bound = RetentionBound(0.05, frozenset({"en"}))
    worse = type(found)(found.text_loss, 2.0, None, None, 3)
    assert light.on_validation(4, {"am": found, "en": worse})["heard"]["within"] is False
    assert light.on_validation(8, {"am": found, "en": type(found)(0.0, 1.0, None, None, 3)})["heard"]["within"] is True
    assert not light._update_best_step(4, [(4, 0.0, False)], {"am": found})
    assert light._update_best_step(8, [(4, 0.0, False), (8, 0.5, True)], {"am": found})
    assert loop.best_state.best_step == 8


def test_a_process_that_does_not_write_does_not_listen(place: Place, tmp_path: Path) -> None:
    loop, light = judged(place, tmp_path / "run", open_transcriber(parrot(tmp_path, "abcd")))
    assert light._heard("step 4")["sentences"] == 2
    loop.stepper.group = DistributedContext(rank=1)
    assert light._heard("step 4") == {}


@pytest.fixture(scope="module")
def run(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return fixtures.whole_run("tiny").copied(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.long
def test_a_runs_own_judge_speaks_held_out_texts_in_held_out_voices(run: WholeRun, tmp_path: Path) -> None:
    setup = build_training_setup(run.folder, run.settings(train_listen_every=2), get_family("tiny"), run.files)
    loop = _build_loop(setup, DistributedContext())
    light = build_in_training_evaluation(setup, loop, parrot(tmp_path, "ሰላም"))
    assert loop.intervals.listen_every == 2
    held_out = {info.text.strip() for info in open_clip_dataset(run.folder.data_set("valid")).infos}
    assert light.sentences
    assert {one.text for one in light.sentences} <= held_out
    assert all(voice.name.startswith("valid/") for voice in light.voices)
    assert light.sound.vocoder is not None
    assert light.transcriber.why_unsupported("am") == ""


@pytest.mark.long
def test_without_a_recogniser_loops_and_lengths_judge_even_where_listening_was_asked_for(
    run: WholeRun, tmp_path: Path
) -> None:
    def judges(recognizer: str, every: int) -> list[type[Callback]]:
        asked = run.settings(train_listen_every=every, train_recognizer=recognizer)
        setup = build_training_setup(run.folder, asked, get_family("tiny"), run.files)
        loop = _build_loop(setup, DistributedContext())
        _add_speech_judges(setup, loop, asked)
        return [type(one) for one in loop.callbacks if isinstance(one, InTrainingEvaluation | SpokenSteps)]

    assert judges("none", 0) == [SpokenSteps]
    assert judges("none", 2) == [InTrainingEvaluation, SpokenSteps]
    assert judges(parrot(tmp_path, "ሰላም"), 2) == [InTrainingEvaluation]


def test_no_sentence_by_which_evaluate_judges_ever_chooses_the_best_step() -> None:
    judged_by = load_built_in_sentences("am")
    assert judged_by is not None
    texts = [one.text for one in judged_by.sentences]
    assert _choose_sentences("am", [f"{text}።" for text in texts]) == []
    assert [one.text for one in _choose_sentences("am", [*texts, "ይህ ሌላ ነው", "..."])] == ["ይህ ሌላ ነው"]
    assert len(_choose_sentences("ti", [f"ቃል {at}" for at in range(40)])) == 16


@pytest.mark.long
def test_there_is_a_round_wherever_one_is_due_and_at_the_last_step(place: Place, tmp_path: Path) -> None:
    loop, _ = judged(place, tmp_path / "run", open_transcriber(parrot(tmp_path, "abcd")), listen=5)
    loop.train(0)
    lines = valid_lines(loop)
    assert sorted(lines) == [0, 4, 5, 8, 10, 12]
    assert [step for step, line in sorted(lines.items()) if line.get("heard")] == [0, 5, 10, 12]


class Picky(Tones):
    """Has no sound for any voice."""

    def why_not(self, voice: Clip) -> str:
        return "this voice has no recording"


def test_a_voice_that_the_sound_cannot_have_is_the_reason_that_nothing_is_heard_and_no_error(
    run: WholeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = get_family("tiny")
    monkeypatch.setattr(type(kind), "vocoder", lambda *_: Picky())
    setup = build_training_setup(run.folder, run.settings(train_listen_every=2), kind, run.files)
    light = build_in_training_evaluation(setup, _build_loop(setup, DistributedContext()), parrot(tmp_path, "x"))
    assert light._heard("step 2") == {"why": "this voice has no recording"}


def test_between_base_and_tuned_one_number_says_how_well_it_is_understood(place: Place, tmp_path: Path) -> None:
    _, light = judged(place, tmp_path / "run", open_transcriber(moody_listener(tmp_path, ["good", "bad", "perfect"])))
    good, bad, perfect = (light.error(f"a share of {share}") for share in (0.25, 0.5, 1))
    assert good is not None
    assert bad is not None
    assert bad > good > 0
    assert perfect == 0


def test_where_nothing_is_heard_there_is_no_number_and_the_loss_decides(place: Place, tmp_path: Path) -> None:
    deaf = SpeechRenderer(None, why="there is no sound here")
    _, light = judged(place, tmp_path / "run", open_transcriber(parrot(tmp_path, "abcd")), sound=deaf)
    assert light.error("a share of 1") is None


@pytest.mark.long
def test_speech_with_two_saved_steps_leaves_the_weights_of_the_last(place: Place, tmp_path: Path) -> None:
    loop, light = judged(place, tmp_path / "run", open_transcriber("none"), listen=0)
    loop.train(0)
    want = {name: value.clone() for group in loop.stepper.trained.tensors().values() for name, value in group.items()}
    spoken = SpokenSteps(loop, light.system, SENTENCES, light.voices, 0.1)
    found = spoken.compare_steps(8, 12)
    assert found["utterances"] == 24
    assert {type(found[name]) for name in ("failed_before", "failed")} == {float}
    now = {name: value for group in loop.stepper.trained.tensors().values() for name, value in group.items()}
    assert all(torch.equal(now[name], value) for name, value in want.items())
    assert spoken.compare_steps(8, 12) == found, "a killed end decides the same again"


def test_loops_missing_ends_and_wrong_lengths_are_failures_and_few_of_them_decide_nothing(
    place: Place, tmp_path: Path
) -> None:
    loop, light = judged(place, tmp_path / "run", open_transcriber("none"), listen=0)
    spoken = SpokenSteps(loop, light.system, SENTENCES, light.voices, 0.5)  # four letters: 2 s

    def fails(codes: Sequence[int], *, stopped: bool = True) -> bool:
        return spoken._fails(SpokenSentence(SENTENCES[0], light.voices[0], tuple(codes), stopped, len(codes) / 25))

    cases = [range(50), [7] * 60, range(19), range(130)]
    assert [fails(codes) for codes in cases] == [False, True, True, True]
    assert fails(range(50), stopped=False)
    many, some, none = [True] * 12 + [False] * 12, [True] * 2 + [False] * 22, [False] * 24
    assert [clearly_fewer(many, none), clearly_fewer(some, none), clearly_fewer(none, many)] == [True, False, False]
