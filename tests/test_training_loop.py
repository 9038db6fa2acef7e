"""Training that is stopped and continued with is training that never stopped, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.trainers import EVERY, OPTIONS, Place, StopAt, loop_of, resumed
from voxgraft.core.run import History, strip_clock_fields
from voxgraft.dataset.sampler import list_samples
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.models import family_names, get_family
from voxgraft.training.callbacks import Callback
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import copy_optimizer_state
from voxgraft.training.trainer import Trainer, TrainOutcome
from voxgraft.training.validation import ValidationMetrics, Validator


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures) -> Place:
    return fixtures.place(request.param)


def everything(loop: Trainer) -> dict[str, torch.Tensor]:
    groups = {**loop.stepper.trained.tensors(), "optimizer": copy_optimizer_state(loop.stepper.optimizer)}
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def journal(loop: Trainer) -> list[dict[str, Any]]:
    return [strip_clock_fields(entry) for entry in loop.journal.read()]


@pytest.mark.long(fast=("tiny-gated", "tiny-full", "chatterbox-gated"))
@pytest.mark.parametrize("mode", ["gated", "rows-only", "merged", "full"])
def test_a_resumed_run_is_the_straight_one_bit_for_bit(place: Place, tmp_path: Path, mode: str) -> None:
    chosen: dict[str, Any] = {
        "gated": {},
        "rows-only": {"mode": "rows-only"},
        "merged": {"mode": "merged"},
        "full": {"mode": "merged", "full_backbone": True},
    }
    options = replace(OPTIONS, **chosen[mode])
    straight = loop_of(place, tmp_path / "straight", options)
    straight.train(0)
    broken = loop_of(place, tmp_path / "broken", options)
    broken.callbacks.append(StopAt(4, "enough for now"))
    assert broken.train(0).reason == "stopped"
    again = loop_of(place, tmp_path / "broken", options)
    assert resumed(again) == 4
    again.train(4)
    want, found = everything(straight), everything(again)
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)
    reported = [entry for entry in journal(again) if entry["kind"] not in ("stop-asked", "end")]
    assert reported == [entry for entry in journal(straight) if entry["kind"] != "end"]
    assert straight.best_state == again.best_state


@pytest.mark.long(fast="tiny")
def test_the_loss_falls_and_the_base_keeps_its_bits(place: Place, tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=16, lr_rows=2e-2, lr_adapter=2e-2, lr_backbone=1e-4)
    loop = loop_of(place, tmp_path / "run", options, replace(EVERY, valid_every=16, save_every=16))
    trained, sets = loop.stepper.trained, [open_clip_dataset(place.folder / "train")]
    examples = BatchBuilder(get_family(place.family_name), trained.model, sets)
    # Steps differ in their clips more than learning does: the same clips, before and after.
    learnt = Validator(trained, examples, list_samples(sets, 0, loop.stream.options), options.microbatch_tokens)
    loop.validations["learnt"] = learnt
    loop.train(0)
    before, after = (entry for entry in loop.journal.read() if entry["kind"] == "valid" and entry["set"] == "learnt")
    assert after["text_loss"] < before["text_loss"] - 0.05
    assert after["speech_loss"] < before["speech_loss"] - 0.005


@pytest.mark.long(fast="tiny")
def test_how_a_step_is_cut_into_packs_changes_nothing(place: Place, tmp_path: Path) -> None:
    few = loop_of(place, tmp_path / "few", replace(OPTIONS, steps=4, microbatch_tokens=2000))
    many = loop_of(place, tmp_path / "many", replace(OPTIONS, steps=4, microbatch_tokens=250))
    few.train(0)
    many.train(0)
    one, other = journal(few), journal(many)
    for left, right in zip(one, other, strict=True):
        if left["kind"] == "step":
            assert left["clips"] == right["clips"]
            assert left["speech_loss"] == pytest.approx(right["speech_loss"], rel=1e-5)
            assert left["text_loss"] == pytest.approx(right["text_loss"], rel=1e-5)


@pytest.mark.long(fast="tiny")
def test_early_stop_counts_over_a_resume(place: Place, tmp_path: Path) -> None:
    every = replace(EVERY, patience=2, min_delta=100.0, valid_every=2, save_every=2)
    straight = loop_of(place, tmp_path / "straight", OPTIONS, every)
    ended = straight.train(0)
    assert ended.reason == "no-better"
    broken = loop_of(place, tmp_path / "broken", OPTIONS, every)
    broken.callbacks.append(StopAt(4, "enough"))
    broken.train(0)
    again = loop_of(place, tmp_path / "broken", OPTIONS, every)
    assert again.train(resumed(again)).step == ended.step


def ended_with(
    place: Place, run: Path, *, better: bool, asked: list[tuple[int, int]], start: int | None = None
) -> tuple[Trainer, TrainOutcome]:
    """A training whose first validation has the lowest loss, and in which speech says whether the last is better."""
    loop = loop_of(place, run, every=replace(EVERY, min_delta=1e9))  # no later loss is lower by that much

    class Comparison(Callback):
        def compare_steps(self, best: int, last: int) -> dict[str, Any]:
            asked.append((best, last))
            return {"utterances": 24, "failed_before": 0.5, "failed": 0.1, "better": better}

    loop.callbacks.append(Comparison())
    return loop, loop.train(0 if start is None else resumed(loop))


@pytest.fixture
def reads_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of a random model would decide whether speech is asked at all."""
    was = Validator.run

    def run(self: Validator) -> ValidationMetrics:
        return replace(was(self), text_use=0.5)

    monkeypatch.setattr(Validator, "run", run)


@pytest.mark.usefixtures("reads_text")
def test_speech_decides_at_the_end_between_the_lowest_loss_and_the_last_step_and_is_asked_once(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    place, asked = fixtures.place("tiny"), list[tuple[int, int]]()
    loop, outcome = ended_with(place, tmp_path / "run", better=True, asked=asked)
    losses = {line["step"]: line["speech_loss"] for line in loop.journal.read() if line["kind"] == "valid"}
    assert (outcome.best_state.best_step, outcome.best_state.best_loss, asked) == (8, losses[8], [(4, 8)])
    assert "step 4 has the lowest loss, but 50% of 24" in outcome.choice
    assert History.of(loop.journal.read()).best_step == 8
    again, second = ended_with(place, tmp_path / "run", better=False, asked=asked, start=8)
    assert (second, asked) == (outcome, [(4, 8)]), "what the journal says of the end is not decided again"
    assert journal(again) == journal(loop)
    # Killed before the line of the end was whole: the next process decides the same again.
    again.journal.path.write_bytes(b"".join(again.journal.path.read_bytes().splitlines(keepends=True)[:-1]))
    assert ended_with(place, tmp_path / "run", better=True, asked=asked, start=8)[1] == outcome
    assert asked == [(4, 8), (4, 8)]


@pytest.mark.usefixtures("reads_text")
def test_the_lowest_loss_stays_the_best_where_the_last_step_does_not_speak_clearly_better(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    asked: list[tuple[int, int]] = []
    loop, outcome = ended_with(fixtures.place("tiny"), tmp_path / "run", better=False, asked=asked)
    assert (outcome.best_state.best_step, outcome.choice, asked) == (4, "", [(4, 8)])
    assert loop.journal.read()[-1]["speech"]["failed"] == 0.1
