"""Training that is stopped and gone on with is training that never stopped, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers import EVERY, OPTIONS, Place, loop_of, resumed
from voxgraft.families import family_names
from voxgraft.journal import without_clock
from voxgraft.training.loop import Loop
from voxgraft.training.parts import optimizer_tensors


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.make(request.param, tmp_path_factory.mktemp(request.param))


def everything(loop: Loop) -> dict[str, torch.Tensor]:
    groups = {**loop.stepper.trained.tensors(), "optimizer": optimizer_tensors(loop.stepper.optimizer)}
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def journal(loop: Loop) -> list[dict[str, Any]]:
    return [without_clock(entry) for entry in loop.journal.read()]


@pytest.mark.parametrize("mode", ["gated", "rows-only", "merged", "full"])
def test_a_resumed_run_is_the_straight_one_bit_for_bit(place: Place, tmp_path: Path, mode: str) -> None:
    chosen: dict[str, Any] = {
        "gated": {},
        "rows-only": {"mode": "rows-only"},
        "merged": {"mode": "merged"},
        "full": {"mode": "merged", "full_body": True},
    }
    options = replace(OPTIONS, **chosen[mode])
    straight = loop_of(place, tmp_path / "straight", options)
    straight.go(0)
    broken = loop_of(place, tmp_path / "broken", options)
    broken.guards.append(lambda step, _found: "enough for now" if step == 8 else None)
    assert broken.go(0).reason == "told"
    again = loop_of(place, tmp_path / "broken", options)
    assert resumed(again) == 8
    again.go(8)
    want, found = everything(straight), everything(again)
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)
    told = [entry for entry in journal(again) if entry["kind"] not in ("stop-asked", "end")]
    assert told == [entry for entry in journal(straight) if entry["kind"] != "end"]
    assert straight.standing == again.standing


def test_the_loss_falls_and_the_base_keeps_its_bits(place: Place, tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=30, rates={"rows": 5e-3, "adapter": 5e-3, "body": 1e-4})
    loop = loop_of(place, tmp_path / "run", options)
    loop.go(0)
    steps = [entry for entry in loop.journal.read() if entry["kind"] == "step"]
    assert steps[-1]["text_loss"] < steps[0]["text_loss"]
    assert steps[-1]["speech_loss"] < steps[0]["speech_loss"]


def test_how_a_step_is_cut_into_packs_changes_nothing(place: Place, tmp_path: Path) -> None:
    few = loop_of(place, tmp_path / "few", replace(OPTIONS, steps=4, pack_tokens=2000))
    many = loop_of(place, tmp_path / "many", replace(OPTIONS, steps=4, pack_tokens=250))
    few.go(0)
    many.go(0)
    one, other = journal(few), journal(many)
    for left, right in zip(one, other, strict=True):
        if left["kind"] == "step":
            assert left["clips"] == right["clips"]
            assert left["speech_loss"] == pytest.approx(right["speech_loss"], rel=1e-5)
            assert left["text_loss"] == pytest.approx(right["text_loss"], rel=1e-5)


def test_early_stop_counts_over_a_resume(place: Place, tmp_path: Path) -> None:
    every = replace(EVERY, patience=2, min_delta=100.0, validate=2, save=2)
    straight = loop_of(place, tmp_path / "straight", OPTIONS, every)
    ended = straight.go(0)
    assert ended.reason == "no-better"
    broken = loop_of(place, tmp_path / "broken", OPTIONS, every)
    broken.guards.append(lambda step, _found: "enough" if step == 4 else None)
    broken.go(0)
    again = loop_of(place, tmp_path / "broken", OPTIONS, every)
    assert again.go(resumed(again)).step == ended.step
