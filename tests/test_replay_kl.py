"""KL to the frozen base on replay: what it is, whose base it is, and that it holds the model there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.fixtures import Fixtures
from tests.support.trainers import OPTIONS, Place, StopAt, loop_of, resumed
from tests.test_training_loop import everything, journal
from tests.test_training_processes import train as train_together
from voxgraft.config.train_options import TrainOptions
from voxgraft.dataset.sampler import Sample
from voxgraft.models import family_names, get_family
from voxgraft.models.speech_model import compute_hidden_states, load_model
from voxgraft.training.prefetch import kl_sum
from voxgraft.training.step import TrainStep

NEAR = replace(OPTIONS, mode="merged", kl_weight=1.0)
WIDTH, ROWS, COUNT = 16, 50, 30


@pytest.fixture(scope="module", params=family_names())
def place(request: pytest.FixtureRequest, fixtures: Fixtures) -> Place:
    return fixtures.place(request.param)


@pytest.fixture(scope="module")
def t3(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


def heads() -> tuple[nn.Linear, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(1)
    hidden = torch.randn(COUNT, WIDTH, requires_grad=True)
    return nn.Linear(WIDTH, ROWS), nn.Linear(WIDTH, ROWS), hidden, torch.randn(COUNT, WIDTH)


def test_the_sum_is_the_kl_divergence_from_the_base_to_the_tuned_model() -> None:
    head, base_head, hidden, base_hidden = heads()
    base = torch.distributions.Categorical(logits=base_head(base_hidden))
    tuned = torch.distributions.Categorical(logits=head(hidden))
    expected = torch.distributions.kl_divergence(base, tuned).sum()
    torch.testing.assert_close(kl_sum(head, hidden, base_head, base_hidden, chunk=None), expected)


def test_a_model_that_is_its_base_is_at_no_distance() -> None:
    head, _, hidden, _ = heads()
    assert kl_sum(head, hidden, head, hidden.detach(), chunk=None).item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, COUNT - 1, COUNT])
def test_pieces_give_the_same_sum_and_gradients_and_none_to_the_base(chunk: int) -> None:
    head, base_head, hidden, base_hidden = heads()
    found: list[list[Any]] = []
    for size in (None, chunk):
        total = kl_sum(head, hidden, base_head, base_hidden, chunk=size)
        wanted = (head.weight, hidden, base_head.weight)
        found.append([total, *torch.autograd.grad(total, wanted, allow_unused=True)])
    for whole, pieces in zip(found[0][:3], found[1][:3], strict=True):
        torch.testing.assert_close(whole, pieces)
    assert found[0][3] is None
    assert found[1][3] is None


def items_of_replay(stepper: TrainStep) -> list[Sample]:
    return [Sample(1, clip, (1, (clip + 4) % 16), silent=clip == 2) for clip in range(6)]


@pytest.mark.long(fast="*tiny*")
def test_the_base_behind_a_closed_gate_is_the_base_to_the_last_bit(place: Place, tmp_path: Path) -> None:
    loop = loop_of(place, tmp_path / "run", NEAR)
    loop.train(0)
    stepper = loop.stepper
    assert stepper.base is not None
    near = stepper.batch_builder.kl_batch(items_of_replay(stepper))
    assert near is not None
    hidden = stepper.base.hidden(near[0])
    fresh = load_model(get_family(place.family_name), place.files)
    with torch.no_grad():
        expected = compute_hidden_states(fresh, near[0])[near[0].speech.scored]
        assert torch.equal(hidden, expected)
        assert torch.equal(stepper.base.head(hidden), fresh.speech_logits(expected))


@pytest.mark.long(fast=("*tiny*", "*xtts*"))
def test_the_places_of_a_pack_are_those_of_its_replay(place: Place, tmp_path: Path) -> None:
    stepper = loop_of(place, tmp_path / "run", NEAR).stepper
    own = [Sample(0, clip, (0, clip + 4)) for clip in range(3)]
    replay = items_of_replay(stepper)
    mixed = [own[0], replay[0], replay[1], own[1], replay[2], own[2]]
    near = stepper.batch_builder.kl_batch(mixed)
    alone = stepper.batch_builder.kl_batch(replay[:3])
    assert near is not None
    assert alone is not None
    model = stepper.trained.model
    with torch.no_grad():
        packed = compute_hidden_states(model, stepper.batch_builder.batch(mixed))[near[1]]
        apart = compute_hidden_states(model, alone[0])[alone[0].speech.scored]
    torch.testing.assert_close(packed, apart, rtol=1e-4, atol=1e-5)
    assert stepper.batch_builder.count_loss_positions(mixed)[2] == len(near[1])
    assert stepper.batch_builder.kl_batch(own) is None


@pytest.mark.long(fast=("*tiny*adapter*", "*adapter*tiny*"))
@pytest.mark.parametrize("full_backbone", [False, True], ids=["adapter", "body"])
def test_a_resumed_merged_run_with_replay_is_the_straight_one_bit_for_bit(
    place: Place, tmp_path: Path, full_backbone: bool
) -> None:
    options = replace(NEAR, full_backbone=full_backbone, steps=8)
    straight = loop_of(place, tmp_path / "straight", options)
    straight.train(0)
    broken = loop_of(place, tmp_path / "broken", options)
    broken.callbacks.append(StopAt(4, "enough for now"))
    broken.train(0)
    again = loop_of(place, tmp_path / "broken", options)
    again.train(resumed(again))
    want, found = everything(straight), everything(again)
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)
    steps = [entry for entry in journal(straight) if entry["kind"] == "step"]
    assert steps == [entry for entry in journal(again) if entry["kind"] == "step"]
    assert steps[-1]["kl"] > 0


def test_how_a_step_is_cut_into_packs_changes_no_distance(t3: Place, tmp_path: Path) -> None:
    distances = []
    for name, microbatch_tokens in (("few", 2000), ("many", 250)):
        loop = loop_of(t3, tmp_path / name, replace(NEAR, steps=4, microbatch_tokens=microbatch_tokens, chunk=64))
        loop.train(0)
        distances.append([entry["kl"] for entry in journal(loop) if entry["kind"] == "step"])
    assert distances[0] == pytest.approx(distances[1], rel=1e-3, abs=1e-6)


def kl_at_the_end(place: Place, run: Path, options: TrainOptions) -> float:
    """How far replay is from the base after a training, whatever was held there on the way."""
    loop = loop_of(place, run, options)
    loop.train(0)
    judge = loop_of(place, run.with_name(f"{run.name}-judge"), replace(options, kl_weight=1.0)).stepper
    judge.trained.restore(loop.stepper.trained.tensors())
    assert judge.base is not None
    near = judge.batch_builder.kl_batch(items_of_replay(judge))
    assert near is not None
    with torch.no_grad(), _open(judge):
        tuned = compute_hidden_states(judge.trained.model, near[0])[near[0].speech.scored]
        head: Callable[[Tensor], Tensor] = judge.trained.model.speech_logits
        return float(kl_sum(head, tuned, judge.base.head, judge.base.hidden(near[0]), chunk=None)) / len(tuned)


def _open(stepper: TrainStep) -> AbstractContextManager[None]:
    return stepper.trained.gate.opened() if stepper.trained.gate else nullcontext()


@pytest.mark.long(fast="adapter")
@pytest.mark.parametrize("full_backbone", [False, True], ids=["adapter", "body"])
def test_held_near_the_base_a_model_stays_many_times_nearer(t3: Place, tmp_path: Path, full_backbone: bool) -> None:
    options = replace(
        NEAR, full_backbone=full_backbone, warmup_steps=1, lr_rows=1e-3, lr_adapter=2e-2, lr_backbone=2e-3
    )
    free = kl_at_the_end(t3, tmp_path / "free", replace(options, kl_weight=0.0))
    held = kl_at_the_end(t3, tmp_path / "held", replace(options, kl_weight=30.0))
    assert free > 0.01
    assert held < free / 4


def test_what_the_base_said_itself_is_asked_nothing_but_to_stay_near(t3: Place, tmp_path: Path) -> None:
    examples = loop_of(t3, tmp_path / "run", NEAR).stepper.batch_builder
    self_made = replace(examples, unscored=frozenset([1]))
    own, replay = Sample(0, 0, (0, 4)), Sample(1, 0, (1, 4))
    assert self_made.count_loss_positions([own, replay])[:2] == examples.count_loss_positions([own])[:2]
    both = [builder.count_loss_positions([own, replay])[2] for builder in (self_made, examples)]
    assert both[0] == both[1] > 0
    batch, alone = self_made.batch([own, replay]), examples.batch([own])
    assert torch.equal(batch.speech.targets, alone.speech.targets)
    assert torch.equal(batch.text.targets, alone.text.targets)


def test_a_trained_body_without_a_copy_of_the_base_is_refused(t3: Place, tmp_path: Path) -> None:
    stepper = loop_of(t3, tmp_path / "run", replace(NEAR, full_backbone=True)).stepper
    with pytest.raises(ValueError, match="copy of the base"):
        TrainStep(stepper.trained, stepper.optimizer, stepper.batch_builder, stepper.options)


@pytest.mark.long
def test_two_processes_are_as_near_to_the_base_as_one(t3: Place, tmp_path: Path) -> None:
    changed = {"mode": "merged", "kl_weight": 1.0, "steps": 3}
    distances = []
    for world_size in (1, 2):
        found = train_together(t3, tmp_path / str(world_size), world_size, **changed)
        distances.append([entry["kl"] for entry in found if entry["kind"] == "step"])
    assert distances[0] == pytest.approx(distances[1], rel=1e-2, abs=1e-6)
    assert distances[0][-1] > 0
