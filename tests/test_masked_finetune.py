"""The masked-finetune baseline, kept for comparison: what it does to the base, that it says so, and where its result goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures import Fixtures
from tests.support.run_folders import copied, train_settings
from tests.support.toy_language import World
from tests.support.trainers import NUM_NEW, OPTIONS, Place, StopAt, loop_of, resumed
from tests.test_training_loop import everything, journal
from voxgraft.core import progress
from voxgraft.core.errors import GraftError
from voxgraft.core.run import RunJournal
from voxgraft.dataset.sampler import Sample
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.graft.folder import MASKED_BASELINE_LABEL, read_merged_card
from voxgraft.models import family_names, get_family
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, load_model
from voxgraft.pipeline.train import train
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import learning_rate_factor
from voxgraft.training.trainer import Trainer

SEEDS = replace(OPTIONS, mode="masked-finetune", weight_decay=0.2, lr_rows=1e-3, lr_adapter=1e-3, lr_backbone=1e-3)


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures) -> Place:
    return fixtures.place(request.param)


@pytest.fixture(scope="module")
def world(fixtures: Fixtures) -> World:
    return fixtures.stopping_world()


def tables(model: SpeechModel) -> dict[str, Tensor]:
    """Text embedding and text head, as a file would hold them."""
    state = model.state_dict()
    return {name: state[f"{name}.weight"].clone() for name in (model.text_embedding_name, model.text_head_name)}


def base_speech(model: SpeechModel, place: Place) -> Tensor:
    """What a model says at every position of the base language's clips."""
    examples = BatchBuilder(get_family(place.family_name), model, [open_clip_dataset(place.folder / "replay")])
    with torch.no_grad():
        batch = examples.batch([Sample(0, clip, (0, clip + 4)) for clip in range(4)])
        return model.speech_logits(compute_hidden_states(model, batch)[batch.speech.scored])


@dataclass(frozen=True)
class Straight:
    """A training that was never stopped, and its tables before that."""

    loop: Trainer
    before: dict[str, Tensor]


@pytest.fixture(scope="module")
def straight(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    loop = loop_of(place, tmp_path_factory.mktemp("straight") / "run", SEEDS)
    before = tables(loop.stepper.trained.model)
    loop.train(0)
    return Straight(loop, before)


@pytest.mark.long(fast="tiny")
def test_masked_rows_shrink_by_weight_decay_step_by_step(straight: Straight) -> None:
    model, before = straight.loop.stepper.trained.model, straight.before
    pieces = model.num_text_ids - NUM_NEW
    kept = 1.0
    for step in range(1, SEEDS.steps + 1):
        kept *= 1 - SEEDS.rates["body"] * learning_rate_factor(step, SEEDS) * SEEDS.weight_decay
    assert kept < 0.9995
    for name, after in tables(model).items():
        torch.testing.assert_close(after[:pieces], before[name][:pieces] * kept, rtol=2e-6, atol=1e-8)
        assert not torch.equal(after[:pieces], before[name][:pieces])
    new = slice(pieces, pieces + NUM_NEW)
    head = model.text_head_name
    assert not torch.allclose(tables(model)[head][new], before[head][new] * kept)


@pytest.mark.long(fast="tiny")
def test_the_body_has_no_mask_so_base_speech_changes_where_a_gated_graft_leaves_every_bit(
    place: Place, straight: Straight, tmp_path: Path
) -> None:
    gated = loop_of(place, tmp_path / "gated", OPTIONS)
    before = base_speech(load_model(get_family(place.family_name), place.files), place)
    gated.train(0)
    assert torch.equal(base_speech(gated.stepper.trained.model, place), before)
    after = base_speech(straight.loop.stepper.trained.model, place)
    assert not torch.allclose(after, before, rtol=1e-2, atol=1e-2)


def test_everything_that_a_loss_reaches_is_decayed_at_one_rate(place: Place, tmp_path: Path) -> None:
    stepper = loop_of(place, tmp_path / "run", SEEDS).stepper
    (group,) = stepper.optimizer.param_groups
    model = stepper.trained.model
    reached = {name for name, _ in model.named_parameters() if not name.startswith(model.unused_param_prefixes)}
    assert set(group["names"]) == reached
    assert group["weight_decay"] == SEEDS.weight_decay
    assert stepper.trained.gate is None


@pytest.mark.long(fast="tiny")
def test_a_resumed_masked_baseline_is_the_straight_one_bit_for_bit(
    place: Place, straight: Straight, tmp_path: Path
) -> None:
    broken = loop_of(place, tmp_path / "broken", SEEDS)
    broken.callbacks.append(StopAt(4, "enough for now"))
    broken.train(0)
    again = loop_of(place, tmp_path / "broken", SEEDS)
    again.train(resumed(again))
    want, found = everything(straight.loop), everything(again)
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)
    assert _steps(straight.loop) == _steps(again)


def _steps(loop: Trainer) -> list[dict[str, Any]]:
    return [entry for entry in journal(loop) if entry["kind"] == "step"]


class _Listener:
    """Keeps the lines that a training opens with."""

    def __init__(self) -> None:
        self.opening: list[str] = []

    def task(self, _name: str, _total: int | None) -> Any:
        from contextlib import nullcontext

        return nullcontext(lambda _amount: None)

    def report(self, kind: str, _step: int, values: Mapping[str, Any]) -> None:
        if kind == "opening":
            self.opening = list(values["lines"])


@pytest.mark.long
def test_it_is_labelled_and_never_taken_for_a_graft(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    graft = {path.name: path.read_bytes() for path in (run / "graft").iterdir()}
    listener = _Listener()
    with progress.use_progress_listener(listener):
        result = train(train_settings(world, run, baseline="masked-finetune", lr_backbone=1e-3))
    assert any("comparison" in line for line in listener.opening)
    assert MASKED_BASELINE_LABEL in str(result.lines()[0])
    assert result.graft is None
    assert {path.name: path.read_bytes() for path in (run / "graft").iterdir()} == graft
    assert not (run / "merged").exists()
    card = read_merged_card(run / "masked-finetune")
    assert card["label"] == MASKED_BASELINE_LABEL
    assert card["keeps_base_rows"] is False
    assert MASKED_BASELINE_LABEL in (run / "masked-finetune" / "README.md").read_text()
    assert {path.name for path in (run / "steps" / "step-000004").iterdir()} == {
        "body.safetensors",
        "optimizer.safetensors",
        "state.json",
        "manifest.json",
    }


@pytest.mark.long
def test_it_has_no_replay_and_can_be_measured_on_base_languages(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    data = {"replay": (run / "data" / "english",), "replay_valid": (run / "data" / "english-valid",)}
    train(train_settings(world, run, baseline="masked-finetune", **data))
    entries = RunJournal(run / "journal.jsonl").read()
    clips = {clip for entry in entries if entry["kind"] == "step" for clip in entry["clips"]}
    learnt = {info.id for info in open_clip_dataset(run / "data" / "train").infos}
    assert clips <= learnt
    assert {entry["set"] for entry in entries if entry["kind"] == "valid"} == {"am", "en"}


def test_a_gated_run_is_not_resumed_as_the_masked_baseline(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    train(train_settings(world, run, steps=2))
    with pytest.raises(GraftError) as caught:
        train(train_settings(world, run, steps=4, baseline="masked-finetune"))
    assert caught.value.code == "resume-changed"
