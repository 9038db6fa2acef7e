"""Merged mode: the bound on base languages, points between base and tuned, and the one checkpoint that it leaves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.datasets import made_clips
from tests.support.fixtures import Fixtures
from tests.support.run_folders import copied, make_merged_run, train_settings
from tests.support.toy_language import World
from tests.support.trainers import EVERY, OPTIONS, Place, StopAt, loop_of, resumed
from voxgraft.checkpoints import open_checkpoint
from voxgraft.checkpoints.steps import load_step
from voxgraft.config.train_options import TrainOptions
from voxgraft.core.errors import GraftError
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.sampler import Sample
from voxgraft.dataset.sets import open_clip_dataset, write_clip_dataset
from voxgraft.graft.folder import load_graft, read_merged_card
from voxgraft.models import family_names, get_family
from voxgraft.models.speech_model import SpeechModel, compute_hidden_states, load_model
from voxgraft.pipeline.train import train
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.trainable import TrainableModel, make_trainable
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import (
    InterpolationPoint,
    RetentionBound,
    Validator,
    WeightInterpolator,
    choose_interpolation_point,
    interpolate_tensor,
)

MERGED = replace(OPTIONS, mode="merged", steps=8)
EVERYTHING = {"adapter": replace(MERGED, full_backbone=False), "body": replace(MERGED, full_backbone=True)}


@pytest.fixture(scope="module")
def place(fixtures: Fixtures) -> Place:
    return fixtures.place("chatterbox")


@pytest.fixture(scope="module")
def t3(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_merged_run("chatterbox", tmp_path_factory.mktemp("world-t3"), fixtures.base("chatterbox").folder)


@pytest.fixture(scope="module")
def index(fixtures: Fixtures) -> World:
    return fixtures.stopping_world()


@pytest.fixture(scope="module")
def tiny(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_merged_run("tiny", tmp_path_factory.mktemp("world-tiny"), fixtures.base("tiny").folder)


@pytest.fixture(scope="module")
def xtts(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_merged_run("xtts", tmp_path_factory.mktemp("world-xtts"), fixtures.base("xtts").folder)


@pytest.fixture(params=family_names())
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue({"chatterbox": "t3", "indextts2": "index"}.get(request.param, request.param))
    return found


def entries(run: Path, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in RunJournal(run / "journal.jsonl").read() if entry["kind"] == kind]


# ---- the bound ---------------------------------------------------------------------------------------------


def test_a_bound_names_the_languages_that_have_passed_it_the_worst_first() -> None:
    bound = RetentionBound(0.1, frozenset(["en", "fr", "de", "it"]))
    first = {"am": 5.0, "en": 2.0, "fr": 4.0, "de": 1.0}
    assert bound.exceeded(first, {"am": 50.0, "en": 2.2, "fr": 4.3, "de": 1.1}) == {}
    passed = bound.exceeded(first, {"am": 1.0, "en": 2.5, "fr": 8.0, "de": 0.5, "it": 9.0})
    assert list(passed) == ["fr", "en"]
    assert passed == pytest.approx({"fr": 1.0, "en": 0.25})


def test_a_loss_that_is_not_a_number_is_past_every_bound() -> None:
    assert RetentionBound(10.0, frozenset(["en"])).exceeded({"en": 1.0}, {"en": float("nan")}).keys() == {"en"}


@pytest.fixture(scope="module")
def few_codes(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same, but the new language has few codes, so that learning it costs the old one, which has them all."""
    made = Place("chatterbox", tmp_path_factory.mktemp("few-codes") / "chatterbox")
    shutil.copytree(place.folder, made.folder, ignore=shutil.ignore_patterns("train", "valid"))
    spec = load_model(get_family("chatterbox"), place.files).spec
    for seed, name in enumerate(("train", "valid")):
        header = open_clip_dataset(place.folder / name).header
        clips = made_clips("chatterbox", spec, clips=12, speakers=4, seed=seed, seconds=(0.5, 1.2))
        write_clip_dataset(
            made.folder / name, header, (replace(clip, codes=np.asarray(clip.codes) % 20) for clip in clips)
        )
    return made


def with_english(place: Place, run: Path, bound: float, steps: int = 8) -> Trainer:
    """A training that is also validated on the base language of the replay set."""
    options = replace(MERGED, full_backbone=True, steps=steps, lr_rows=1e-3, lr_adapter=1e-3, lr_backbone=5e-2)
    loop = loop_of(place, run, options)
    trained, sets = loop.stepper.trained, [open_clip_dataset(place.folder / "replay")]
    items = [Sample(0, clip, (0, clip + 4)) for clip in range(6)]
    examples = BatchBuilder(get_family(place.family_name), trained.model, sets)
    loop.validations["en"] = Validator(trained, examples, items, 400)
    loop.bound = RetentionBound(bound, frozenset(["en"]))
    return loop


@pytest.mark.long
def test_past_the_bound_training_stops_with_a_finding_and_no_such_step_is_the_best(
    few_codes: Place, tmp_path: Path
) -> None:
    free = with_english(few_codes, tmp_path / "free", 100.0)
    free.train(0)
    losses = {
        entry["step"]: entry["speech_loss"] for entry in entries(tmp_path / "free", "valid") if entry["set"] == "en"
    }
    # Between what step 4 and step 8 have cost, so that the first is within the bound and the second is not.
    bound = (losses[4] + losses[8]) / 2 / losses[0] - 1
    assert losses[0] < losses[4] < losses[8]
    loop = with_english(few_codes, tmp_path / "bound", bound, steps=20)
    outcome = loop.train(0)
    assert (outcome.step, outcome.reason) == (8, "stopped")
    assert outcome.best_state.best_step == 4
    assert "en by" in outcome.why
    found = entries(tmp_path / "bound", "finding")
    assert [item["code"] for item in found] == ["retention-bound"]
    assert "step 4 is the best within the bound" in found[0]["found"]


def test_the_first_losses_outlive_a_resume(place: Place, tmp_path: Path) -> None:
    loop = with_english(place, tmp_path / "run", 100.0)
    loop.callbacks.append(StopAt(4, "enough"))
    loop.train(0)
    first = loop.best_state.first
    assert first.keys() == {"am", "en"}
    again = with_english(place, tmp_path / "run", -0.5)
    assert resumed(again) == 4
    assert again.best_state.first == first
    assert again.train(4).why


def test_the_best_step_is_saved_whatever_the_interval_of_saves(place: Place, tmp_path: Path) -> None:
    loop = loop_of(
        place, tmp_path / "run", replace(MERGED, steps=8), replace(EVERY, valid_every=2, save_every=100, keep_last=1)
    )
    outcome = loop.train(0)
    assert load_step(loop.run_folder, outcome.best_state.best_step).state.step == outcome.best_state.best_step > 0


# ---- between base and tuned --------------------------------------------------------------------------------


def test_nothing_added_leaves_the_bases_bits_and_all_of_it_gives_the_tuned_ones() -> None:
    torch.manual_seed(0)
    base = torch.randn(200, 50)
    tuned = base + 1e-3 * torch.randn(200, 50)
    assert torch.equal(interpolate_tensor(base, base, base, 0.3), base)
    assert torch.equal(interpolate_tensor(base, base, tuned, 1.0), tuned)
    torch.testing.assert_close(interpolate_tensor(base, base, tuned, 0.25), base + 0.25 * (tuned - base))
    rounded = base.bfloat16()
    assert torch.equal(interpolate_tensor(base, rounded, rounded.float(), 1.0), base)


def speech_logits(model: SpeechModel, examples: BatchBuilder, gate: AbstractContextManager[Any]) -> Tensor:
    with torch.no_grad(), gate:
        batch = examples.batch([Sample(0, clip, (0, clip + 4)) for clip in range(3)])
        return model.speech_logits(compute_hidden_states(model, batch)[batch.speech.scored])


def opened(trained: TrainableModel) -> AbstractContextManager[None]:
    return trained.gate.opened() if trained.gate else nullcontext()


@pytest.mark.parametrize("kind", ["adapter", "body"])
def test_a_point_is_a_share_of_the_way_and_leaves_no_trace(place: Place, tmp_path: Path, kind: str) -> None:
    loop = loop_of(place, tmp_path / "run", EVERYTHING[kind])
    loop.train(0)
    trained, examples = loop.stepper.trained, loop.stepper.batch_builder
    before = trained.tensors()
    base = load_model(get_family(place.family_name), place.files)
    names = trained.parameters.get("body", {})
    between = WeightInterpolator(trained, {name: base.get_parameter(name) for name in names})
    logits: dict[float, Tensor] = {}
    for share in (0.0, 0.5, 1.0):
        with between.at(share):
            logits[share] = speech_logits(trained.model, examples, opened(trained))
    untouched = speech_logits(trained.model, examples, opened(trained))
    assert torch.equal(logits[1.0], untouched)
    assert not torch.equal(logits[0.5], logits[1.0])
    after = trained.tensors()
    assert all(torch.equal(after[group][name], before[group][name]) for group in before for name in before[group])
    if kind == "adapter":
        with_new_rows_alone = speech_logits(trained.model, examples, nullcontext())
        torch.testing.assert_close(logits[0.0], with_new_rows_alone)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0.5, 3.0, False), (1.0, 2.0, False)], 1.0),
        ([(0.25, 4.0, False), (0.5, 3.0, False), (1.0, 2.0, True)], 0.5),
        ([(0.25, 4.0, True), (0.5, 3.0, True), (1.0, 2.0, True)], 0.25),
        ([(0.5, 2.0, False), (0.75, 1.9, False), (1.0, 2.0, False)], 0.75),
        ([(0.5, 2.0, False), (1.0, 2.0, False)], 0.5),
    ],
)
def test_the_lowest_loss_of_the_new_language_within_the_bound_is_chosen(
    points: list[tuple[float, float, bool]], expected: float
) -> None:
    measured = [
        InterpolationPoint(share, {"am": loss, "en": 1.0}, {"en": 0.2} if is_past else {})
        for share, loss, is_past in points
    ]
    assert choose_interpolation_point(measured).share == expected


def test_where_every_point_was_listened_to_what_was_heard_decides_and_never_past_the_bound() -> None:
    def point(share: float, loss: float, error: float | None, *, is_past: bool = False) -> InterpolationPoint:
        return InterpolationPoint(share, {"am": loss}, {"en": 0.2} if is_past else {}, error)

    heard = [point(0.5, 3.0, 0.1), point(0.75, 2.5, 0.2), point(1.0, 2.0, 0.05, is_past=True)]
    assert choose_interpolation_point(heard).share == 0.5
    assert choose_interpolation_point([point(0.5, 3.0, 0.1), point(0.75, 2.5, None)]).share == 0.75


# ---- what a run leaves -------------------------------------------------------------------------------------


def stored(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.tensors}


def english(run: Path) -> dict[str, Any]:
    return {"replay": (run / "data" / "english",), "replay_valid": (run / "data" / "english-valid",)}


def same_rows(world: World, base: Mapping[str, Any], merged: Mapping[str, Any], num_rows: int) -> None:
    """Base pieces first, new rows next, spare rows last: the base's bits wherever the base has any."""
    pieces = world.text_encoder.base.size
    for point in get_family(world.family_name).graft_points:
        old, new = base[point.tensor], merged[point.tensor]
        assert len(new) == len(old) + num_rows
        assert np.array_equal(new[:pieces], old[:pieces])
        assert np.array_equal(new[pieces + num_rows :], old[pieces:])


@pytest.mark.long(fast="indextts2")
def test_an_adapter_is_folded_into_one_checkpoint_and_everything_else_keeps_its_bits(
    world: World, tmp_path: Path
) -> None:
    run = copied(world, tmp_path / "run")
    result = train(train_settings(world, run, mode="merged", **english(run), interpolate=(0.5, 1.0)))
    assert result.merged is not None
    card = read_merged_card(run / "merged")
    base, merged = stored(world.files.checkpoint), stored(run / "merged" / card["checkpoint"])
    assert base.keys() == merged.keys()
    num_rows = load_graft(run / "graft").card.num_rows
    same_rows(world, base, merged, num_rows)
    empty = get_family(world.family_name).build_empty_model(world.files)
    adapted = {f"{name}.weight" for name in empty.adapter_layers()}
    tables = {point.tensor for point in get_family(world.family_name).graft_points}
    changed = {name for name in base.keys() - tables if not np.array_equal(base[name], merged[name])}
    assert changed == adapted
    assert [entry["share"] for entry in entries(run, "interpolation")] == [0.5, 1.0]
    assert [entry["share"] for entry in entries(run, "interpolation") if entry["chosen"]] == [card["share"]]
    assert card["speech_losses_before"].keys() == {"am", "en"}
    assert entries(run, "step")[-1]["kl"] >= 0
    assert (run / "graft" / "adapter").is_dir()


@pytest.mark.long(fast="tiny")
def test_a_trained_body_is_left_merged_and_never_as_a_graft(world: World, tmp_path: Path) -> None:
    run = copied(world, tmp_path / "run")
    before = (run / "graft" / "graft.json").read_bytes()
    result = train(train_settings(world, run, mode="merged", full_backbone=True, **english(run)))
    assert result.graft is None
    assert (run / "graft" / "graft.json").read_bytes() == before
    card = read_merged_card(run / "merged")
    same_rows(
        world,
        stored(world.files.checkpoint),
        stored(run / "merged" / card["checkpoint"]),
        load_graft(run / "graft").card.num_rows,
    )


def test_the_merged_checkpoint_says_what_the_trained_model_says(t3: World, tmp_path: Path) -> None:
    run = copied(t3, tmp_path / "run")
    train(train_settings(t3, run, mode="merged", **english(run), interpolate=(0.5,), lr_adapter=2e-2))
    kind, card = get_family("chatterbox"), read_merged_card(run / "merged")
    assert card["share"] == 0.5
    merged = load_model(kind, replace(t3.files, checkpoint=run / "merged" / card["checkpoint"]))
    state = load_step(RunFolder(run), card["step"]).state
    model = load_model(kind, t3.files)
    # Half the strength is half the way.
    trained = make_trainable(model, state.tensors["rows"], TrainOptions(mode="merged", rank=4, alpha=2.0))
    trained.restore({name: state.tensors[name] for name in ("rows", "adapter")})
    sets = [open_clip_dataset(run / "data" / "train")]
    tuned = speech_logits(model, BatchBuilder(kind, model, sets), opened(trained))
    found = speech_logits(merged, BatchBuilder(kind, merged, sets), nullcontext())
    torch.testing.assert_close(found, tuned, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_changed_file_in_the_merged_folder_is_reported(index: World, tmp_path: Path) -> None:
    run = copied(index, tmp_path / "run")
    train(train_settings(index, run, mode="merged", steps=1, **english(run)))
    card = read_merged_card(run / "merged")
    path = run / "merged" / card["tokenizer"]
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(GraftError) as caught:
        read_merged_card(run / "merged")
    assert caught.value.code == "merged-broken"


def test_merged_mode_without_replay_says_that_nothing_protects_the_old_languages(index: World, tmp_path: Path) -> None:
    run = copied(index, tmp_path / "run")
    train(train_settings(index, run, mode="merged", steps=1))
    codes = {entry["code"] for entry in entries(run, "finding")}
    assert {"replay-missing", "retention-unmeasured"} <= codes


def test_replay_in_the_new_language_is_refused(index: World, tmp_path: Path) -> None:
    run = copied(index, tmp_path / "run")
    replace(index, run=run).write("more", index.clips(4, 21), "replay")
    for name in ("replay", "replay_valid"):
        with pytest.raises(GraftError) as caught:
            train(train_settings(index, run, mode="merged", **{name: (run / "data" / "more",)}))
        assert caught.value.code == "replay-language"


def test_a_gated_graft_leaves_the_base_languages_loss_where_it_was(index: World, tmp_path: Path) -> None:
    run = copied(index, tmp_path / "run")
    settings = train_settings(index, run, replay_valid=english(run)["replay_valid"], lr_adapter=2e-2)
    train(settings)
    losses = {entry["speech_loss"] for entry in entries(run, "valid") if entry["set"] == "en"}
    assert len(losses) == 1
