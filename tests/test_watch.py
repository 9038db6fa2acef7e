"""Whether a model really learns is reported in one word, and what keeps it from learning as findings, each once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.datasets import made_clips
from tests.support.fixtures import Fixtures
from tests.support.trainers import EVERY, NUM_NEW, OPTIONS, Place, StopAt, loop_of, resumed
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import finding
from voxgraft.core.run import History, strip_clock_fields
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.models import family_names, get_family
from voxgraft.models.speech_model import load_model
from voxgraft.training.step import NonFiniteError
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import (
    DeadRowMonitor,
    LearningMonitor,
    LearningThresholds,
    ValidationMetrics,
    ValidationPoint,
    assess_learning,
    list_validation_points,
)

LONG = TrainOptions(steps=2_000, warmup_steps=50, schedule="cosine")
CHANCE = 9.0


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Texts are made of the new rows but for the last two, so that each of those is met in every step."""
    common = fixtures.place(request.param)
    place = Place(request.param, tmp_path_factory.mktemp("place") / request.param)
    shutil.copytree(common.folder, place.folder, ignore=shutil.ignore_patterns("train"))
    header = open_clip_dataset(common.folder / "train").header
    model = load_model(get_family(request.param), place.files)
    clips = made_clips(request.param, model.spec, clips=24, speakers=4, seed=0, seconds=(0.5, 1.2))
    ids = model.num_text_ids + np.arange(NUM_NEW - 2)
    write_clip_dataset(place.folder / "train", header, (replace(clip, text_ids=ids) for clip in clips))
    return place


def looks(
    losses: Sequence[float], text_use: float | None = 1.0, voice_use: float | None = 0.1
) -> list[ValidationPoint]:
    """A validation every 50 steps."""
    return [ValidationPoint(50 * at, loss, text_use, voice_use) for at, loss in enumerate(losses)]


def falling(start: float, end: float, count: int) -> list[float]:
    return [start + (end - start) * at / (count - 1) for at in range(count)]


def codes_of(found: Sequence[Any]) -> list[str]:
    return [item.code for item in found]


def test_nothing_is_judged_before_twice_the_warm_up() -> None:
    slow = replace(LONG, warmup_steps=400)
    flat = [6.0] * 16
    assert assess_learning(looks(flat), slow).state == "too early"
    assert assess_learning([], LONG).state == "too early"
    assert assess_learning(looks([6.0]), LONG).state == "too early"
    assert assess_learning(looks([6.0] * 17), slow).state == "stuck"
    assert "2,000 steps" not in assess_learning(looks(flat), slow).why
    short = replace(LONG, steps=120)
    assert "after the end of this run (120 steps)" in assess_learning(looks([6.0]), short).why


def test_a_loss_that_falls_while_the_text_is_read_is_learning() -> None:
    found = assess_learning(looks(falling(6.0, 2.0, 12)), LONG, CHANCE)
    assert (found.state, found.findings) == ("learning", ())
    assert "2.000" in found.why
    assert "6.000" in found.why


def test_a_loss_that_falls_while_the_text_is_not_read_is_stuck() -> None:
    found = assess_learning(looks(falling(6.0, 2.0, 12), text_use=0.01), LONG, CHANCE)
    assert found.state == "stuck"
    assert codes_of(found.findings) == ["not-reading"]
    assert found.findings[0].found == found.why == "text use has been under 0.02 since step 200"


def test_one_low_validation_is_no_finding() -> None:
    once = looks(falling(6.0, 2.0, 12))
    once[-1] = replace(once[-1], text_use=0.0, voice_use=0.0)
    assert assess_learning(once, LONG, CHANCE).findings == ()


def test_a_use_that_cannot_be_measured_is_no_finding() -> None:
    found = assess_learning(looks(falling(6.0, 2.0, 12), text_use=None, voice_use=None), LONG, CHANCE)
    assert (found.state, found.findings) == ("learning", ())
    assert "not measured" in found.why


def test_a_prompt_that_makes_no_difference_is_reported_while_the_model_still_learns() -> None:
    found = assess_learning(looks(falling(6.0, 2.0, 12), voice_use=0.0), LONG, CHANCE)
    assert found.state == "learning"
    assert codes_of(found.findings) == ["not-hearing"]


def test_a_prompt_that_makes_no_difference_is_only_a_note_where_rows_alone_are_trained() -> None:
    found = assess_learning(looks(falling(6.0, 2.0, 12), voice_use=0.0), replace(LONG, mode="rows-only"), CHANCE)
    assert [(item.code, item.level) for item in found.findings] == [("not-hearing", "note")]
    assert "adapter" in found.findings[0].cure


def test_a_prompt_that_helps_as_often_as_it_hurts_makes_no_difference() -> None:
    noisy = [replace(look, voice_use=0.01 + 0.03 * (-1) ** at) for at, look in enumerate(looks(falling(6.0, 2.0, 12)))]
    steady = [replace(look, voice_use=0.01) for look in noisy]
    large = [replace(look, voice_use=0.05 + 0.03 * (-1) ** at) for at, look in enumerate(noisy)]
    assert codes_of(assess_learning(noisy, LONG, CHANCE).findings) == ["not-hearing"]
    assert assess_learning(steady, LONG, CHANCE).findings == ()
    assert assess_learning(large, LONG, CHANCE).findings == ()


def test_held_out_texts_that_get_no_easier_are_reported_unless_texts_are_not_learnt() -> None:
    rising = [replace(look, text_loss=6.0 + 0.1 * at) for at, look in enumerate(looks(falling(6.0, 2.0, 12)))]
    found = assess_learning(rising, LONG, CHANCE)
    assert (found.state, codes_of(found.findings)) == ("stuck", ["other-texts"])
    assert assess_learning(rising, replace(LONG, text_weight=0.0), CHANCE).findings == ()
    fallen = [replace(look, text_loss=6.0 - 0.1 * at) for at, look in enumerate(rising)]
    assert assess_learning(fallen, LONG, CHANCE).findings == ()


def test_a_plateau_of_a_model_that_hardly_reads_is_reported_while_the_rates_are_up() -> None:
    flat = looks([*falling(6.0, 4.5, 4), *[4.5] * 8], text_use=0.05)
    found = assess_learning(flat, LONG, CHANCE)
    assert found.state == "stuck"
    assert codes_of(found.findings) == ["plateau"]
    assert "since step 150" in found.findings[0].found
    at_the_end = assess_learning(flat, replace(LONG, steps=600), CHANCE)
    assert (at_the_end.state, at_the_end.findings) == ("stuck", ())


def test_a_flat_loss_of_a_model_that_reads_is_good_enough() -> None:
    found = assess_learning(looks([*falling(6.0, 2.0, 4), *[2.0] * 8], text_use=1.0), LONG, CHANCE)
    assert (found.state, found.findings) == ("good enough", ())


def test_slow_gains_add_up_and_are_no_plateau() -> None:
    slow = [6.0 * 0.998**at for at in range(40)]  # each is less than counts as better
    assert assess_learning(looks(slow, text_use=0.05), LONG, CHANCE).state == "learning"


@pytest.mark.parametrize(("start", "level"), [(6.0, "its level at step 0"), (12.0, "what guessing gives")])
def test_a_loss_that_never_leaves_its_first_level_or_that_of_guessing_is_reported(start: float, level: str) -> None:
    losses = [start, *[min(start, CHANCE) - 0.01] * 10]
    found = assess_learning(looks(losses), LONG, CHANCE)
    assert found.state == "stuck"
    assert codes_of(found.findings) == ["no-gain"]
    assert level in found.why


def test_what_is_found_stays_the_same_text_while_it_lasts() -> None:
    for low in (
        looks(falling(6.0, 2.0, 30), text_use=0.01),
        looks(falling(6.0, 2.0, 30), voice_use=0.0),
        looks([*falling(6.0, 4.5, 4), *[4.5] * 26], 0.05),
        [replace(look, text_loss=7.0 + at) for at, look in enumerate(looks(falling(6.0, 2.0, 30)))],
    ):
        reported = [assess_learning(low[:count], LONG, CHANCE).findings for count in range(1, 20)]
        assert len({item.found for found in reported for item in found}) == 1


@pytest.fixture(scope="module")
def straight(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A watched training that was never stopped."""
    loop = watched(place, tmp_path_factory.mktemp("straight"))
    loop.train(0)
    return loop


@pytest.mark.long(fast="*tiny*")
def test_the_state_depends_on_nothing_but_the_journal(straight: Trainer) -> None:
    entries = straight.journal.read()
    history = History.of(entries)
    states = [entry for entry in entries if entry["kind"] == "valid"]
    assert len(states) == 3
    for entry in states:
        known = [look for look in list_validation_points(history) if look.step <= entry["step"]]
        found = assess_learning(known, OPTIONS, history.chance["speech_loss"], EARLY)
        assert (entry["state"], entry["why"]) == (found.state, found.why)


EARLY = LearningThresholds(early_steps=8)


def watched(place: Place, run: Path, options: TrainOptions = OPTIONS) -> Trainer:
    """A training with everything that looks on."""
    loop = loop_of(place, run, options)
    stepper = loop.stepper
    sets = [open_clip_dataset(place.folder / "train")]
    rows = DeadRowMonitor(stepper.trained, stepper.optimizer, loop.stream, sets, lambda token: f"piece {token}")
    LearningMonitor(loop, rows, EARLY)
    return loop


def findings(loop: Trainer) -> list[dict[str, Any]]:
    return [entry for entry in loop.journal.read() if entry["kind"] == "finding"]


@pytest.mark.long(fast="*tiny*")
def test_a_watched_run_that_is_gone_on_with_tells_what_the_straight_one_tells(
    place: Place, straight: Trainer, tmp_path: Path
) -> None:
    broken = watched(place, tmp_path / "broken")
    broken.callbacks.append(StopAt(4, "enough for now"))
    broken.train(0)
    again = watched(place, tmp_path / "broken")
    again.train(resumed(again))
    reported = [
        strip_clock_fields(entry) for entry in again.journal.read() if entry["kind"] not in ("stop-asked", "end")
    ]
    assert reported == [strip_clock_fields(entry) for entry in straight.journal.read() if entry["kind"] != "end"]
    codes = [entry["code"] for entry in findings(again)]
    assert "no-gain" in codes  # the sets are random: there is nothing to learn
    assert len(codes) == len(set(codes))


def mask(part: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def masked(gradient: Tensor) -> Tensor:
        return torch.where(part(torch.arange(len(gradient))).reshape(-1, *[1] * (gradient.dim() - 1)), 0, gradient)

    return masked


@pytest.mark.long(fast="*tiny*")
def test_rows_that_get_no_gradient_are_reported_once_by_name(place: Place, tmp_path: Path) -> None:
    loop = watched(place, tmp_path / "run")
    for parameter in loop.stepper.trained.parameters["rows"].values():
        parameter.register_hook(mask(lambda rows: rows < 4))  # type: ignore[no-untyped-call]
    loop.train(0)
    model = loop.stepper.trained.model
    reported = [entry for entry in findings(loop) if entry["code"] == "dead-rows"]
    assert len(reported) == 2
    assert {entry["where"] for entry in reported} == {model.text_embedding_name, model.text_head_name}
    first = model.num_text_ids - NUM_NEW
    assert reported[0]["found"].startswith("4 new rows")
    assert all(f"'piece {first + row}'" in reported[0]["found"] for row in range(4))
    assert reported[0]["step"] == EVERY.valid_every


@pytest.mark.long(fast="*tiny*")
def test_rows_that_learn_and_rows_that_never_occur_are_not_dead(straight: Trainer) -> None:
    assert "dead-rows" not in [entry["code"] for entry in findings(straight)]


@pytest.mark.long(fast="*tiny*")
def test_a_loss_that_is_not_finite_stands_in_the_journal_before_training_ends(place: Place, tmp_path: Path) -> None:
    loop = watched(place, tmp_path / "run")
    with torch.no_grad():
        next(iter(loop.stepper.trained.parameters["rows"].values()))[0] = torch.nan
    with pytest.raises(NonFiniteError):
        loop.train(0)
    reported = [entry for entry in findings(loop) if entry["code"] == "loss-not-finite"]
    assert [entry["step"] for entry in reported] == [1]


@pytest.mark.long(fast="*tiny*")
def test_a_held_out_loss_that_is_not_finite_is_stuck_at_once(place: Place, tmp_path: Path) -> None:
    loop = watched(place, tmp_path / "run")
    found = {"am": ValidationMetrics(1.0, float("nan"), float("nan"), None, 3)}
    assert loop.callbacks[0].on_validation(0, found)["state"] == "stuck"
    assert loop.callbacks[0].stop_reason(0, found) is None
    assert [entry["code"] for entry in findings(loop)] == ["loss-not-finite"]


@pytest.mark.long(fast="*tiny*")
def test_a_finding_is_written_once_and_again_when_it_has_changed(place: Place, tmp_path: Path) -> None:
    loop = loop_of(place, tmp_path / "run")
    watch = LearningMonitor(loop)
    few = finding("clips-text-unknown", "3 unknown tokens", where="train")
    other = finding("clips-text-unknown", "3 unknown tokens", where="more")
    assert watch.tell(0, [few, other]) == []
    assert watch.tell(0, [few, other]) == [few, other]
    again = LearningMonitor(loop_of(place, tmp_path / "run"))
    assert again.tell(4, [few]) == [few]
    more = finding("clips-text-unknown", "5 unknown tokens", where="train")
    assert again.tell(4, [more]) == []
    assert [(entry["step"], entry["found"], entry["where"]) for entry in findings(loop)] == [
        (0, "3 unknown tokens", "train"),
        (0, "3 unknown tokens", "more"),
        (4, "5 unknown tokens", "train"),
    ]
