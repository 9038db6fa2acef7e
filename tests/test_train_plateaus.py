"""Runs that cannot learn are seen, most of them before the first step; a run that can is left in peace.

The same faults, and twenty healthy runs, at length: benchmarks/plateaus.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures import Fixtures
from tests.support.toy_language import (
    World,
    alone,
    make_world,
    padded,
    twice,
    with_other_texts,
    with_other_tokenizer,
    with_unknowns,
)
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import DataSettings, TokenizerSettings, TrainSettings
from voxgraft.config.train_options import TrainIntervals, TrainOptions
from voxgraft.core.errors import Finding, VoxgraftError
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, list_samples
from voxgraft.dataset.sets import (
    check_prompt_copies,
    check_text_tokenization,
    check_unused_rows,
    open_clip_dataset,
    write_clip_dataset,
)
from voxgraft.dataset.shards import ClipDataset
from voxgraft.graft.folder import load_graft
from voxgraft.models import family_names, get_family
from voxgraft.models.base import Clip
from voxgraft.models.speech_model import load_model
from voxgraft.pipeline.train import train
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.setup import TrainingSetup, build_training_setup
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import LearningMonitor, LearningThresholds, Validator

CLIPS = 80
ORDER = DataSamplerOptions(min_prompt_seconds=0.1)
SHORT: dict[str, Any] = {"batch_tokens": 800, "device": "cpu", "sample_texts": ("en:I", "am:ሰ")}


@pytest.fixture(scope="module", params=family_names())
def world(request: pytest.FixtureRequest, fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = fixtures.base(request.param, seed=1).folder
    made = make_world(request.param, tmp_path_factory.mktemp(request.param), base, pieces=20)
    made.write("valid", made.clips(8, 2), "valid")
    return made


def healthy(world: World) -> Iterator[Clip]:
    return world.clips(CLIPS, 1)


def unknown_heavy(world: World) -> Iterator[Clip]:
    return with_unknowns(healthy(world), grown(world).unknown_id, 0.5, seed=0)


def other_tokenizer(world: World) -> Iterator[Clip]:
    return with_other_tokenizer(healthy(world), world.text_encoder.base.size, grown(world).size, seed=0)


def grown(world: World) -> Any:
    assert world.text_encoder.grown is not None
    return world.text_encoder.grown


def settings(world: World, folder: Path, clips: Iterable[Clip], **data: Any) -> TrainCommandSettings:
    write_clip_dataset(folder / "made", world.header("am", "train"), clips)
    return TrainCommandSettings(
        run=world.run,
        base=world.files.folder,
        language="am",
        tokenizer=TokenizerSettings(pieces=20),
        data=DataSettings(train=(folder / "made",), min_prompt_seconds=0.1, **data),
        train=TrainSettings(**SHORT),
    )


def setup(world: World, chosen: TrainCommandSettings) -> TrainingSetup:
    return build_training_setup(RunFolder(world.run), chosen, get_family(world.family_name), world.files)


def alarms(findings: Iterable[Finding]) -> dict[str, str]:
    return {item.code: item.level for item in findings if item.level != "note"}


@pytest.mark.long(fast="tiny-*")
@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        (unknown_heavy, "clips-text-unknown"),
        (lambda world: padded(list(healthy(world)), code=7, batch=16), "clips-seconds"),
        (other_tokenizer, "clips-other-tokenizer"),
        (lambda world: twice(list(healthy(world))), "prompt-is-target"),
    ],
    ids=["unknown-heavy text", "padded codes", "wrong tokenizer of the same size", "prompt equal to target"],
)
def test_a_set_that_cannot_be_learnt_from_is_refused_before_the_first_step(
    world: World, tmp_path: Path, spoilt: Callable[[World], Iterator[Clip]], code: str
) -> None:
    with pytest.raises(VoxgraftError) as caught:
        train(settings(world, tmp_path, spoilt(world)))
    assert caught.value.code == code
    assert caught.value.finding.cure
    assert not (world.run / "steps").exists()


@pytest.mark.long(fast="tiny")
def test_clips_with_their_own_voice_are_reported_where_they_are_asked_for(world: World, tmp_path: Path) -> None:
    chosen = settings(world, tmp_path, alone(healthy(world)), single_clip_speakers="own")
    assert alarms(setup(world, chosen).findings) == {"speakers-one-clip": "warning"}


def test_a_healthy_set_raises_no_alarm(world: World, tmp_path: Path) -> None:
    found = setup(world, settings(world, tmp_path, healthy(world))).findings
    assert alarms(found) == {}
    assert "rows-unused" in [item.code for item in found]  # the script is grafted whole


def made(world: World, folder: Path, clips: Iterable[Clip]) -> ClipDataset:
    write_clip_dataset(folder / "made", world.header("am", "train"), clips)
    return open_clip_dataset(folder / "made")


def test_the_level_of_copied_prompts_is_by_how_many_they_are(world: World, tmp_path: Path) -> None:
    clips = list(world.clips(250, 1))
    levels = []
    for at, pairs in enumerate((1, 10, 40)):
        spoilt = [*clips[2 * pairs :], *twice(clips[:pairs])]
        sets = [made(world, tmp_path / str(at), spoilt)]
        found = check_prompt_copies(sets, DeterministicSampler(sets, [1.0], 800, 0, ORDER))
        levels += [item.level for item in found]
    assert levels == ["note", "warning", "error"]


def test_a_few_texts_that_were_cleaned_otherwise_are_a_warning(world: World, tmp_path: Path) -> None:
    clips = list(world.clips(50, 1))
    clips[7] = replace(clips[7], text_ids=clips[8].text_ids, codes=clips[8].codes)
    found = check_text_tokenization(made(world, tmp_path, clips), lambda text: world.text_encoder.encode(text, "am"))
    assert [item.level for item in found] == ["warning"]
    assert clips[7].id in found[0].found


def test_a_set_without_texts_is_not_compared(world: World, tmp_path: Path) -> None:
    silent = (replace(clip, text="") for clip in other_tokenizer(world))
    assert (
        check_text_tokenization(made(world, tmp_path, silent), lambda text: world.text_encoder.encode(text, "am")) == []
    )


def test_texts_that_never_use_a_new_row_are_reported(world: World, tmp_path: Path) -> None:
    english = [made(world, tmp_path, world.clips(20, 1, "en"))]
    pieces, size = world.text_encoder.base.size, grown(world).size
    off_new_rows = {"text-off-new-rows": "warning"}
    assert alarms(check_unused_rows(english, pieces, size - pieces, tag=False)) == off_new_rows
    assert check_unused_rows(english, pieces, 0, tag=False) == []
    assert check_unused_rows(english, pieces, 1, tag=True) == [], "a language without new letters"
    tag = pieces  # the first new row
    tagged = (replace(clip, text_ids=(tag, *clip.text_ids)) for clip in world.clips(20, 1, "en"))
    tagged_set = [made(world, tmp_path / "tagged", tagged)]
    assert alarms(check_unused_rows(tagged_set, pieces, size - pieces, tag=True)) == off_new_rows


@pytest.mark.long(fast="tiny")
def test_the_verb_tells_findings_once_the_state_always_and_speaks(world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.run, run)
    chosen = settings(world, tmp_path, healthy(world)).model_copy(update={"run": run})
    for steps in (2, 4):
        quick = {"steps": steps, "warmup_steps": 1, "valid_every": 2, "save_every": 2, "sample_every": 2, "rank": 2}
        train(chosen.model_copy(update={"train": TrainSettings(**{**SHORT, **quick})}))
    entries = RunJournal(RunFolder(run).journal).read()
    assert [entry["step"] for entry in entries if entry.get("code") == "rows-unused"] == [0]
    assert [(entry["step"], entry["state"]) for entry in entries if entry["kind"] == "valid"] == [
        (step, "too early") for step in (0, 2, 4)
    ]
    spoken = [entry["spoken"] for entry in entries if entry["kind"] == "samples"]
    assert [[one["language"] for one in said] for said in spoken] == [["en", "am"]] * 3
    assert [said[0].get("same_as_step_0") for said in spoken] == [None, True, True]


QUICK = TrainOptions(
    mode="merged",
    full_backbone=True,
    lr_rows=5e-3,
    lr_adapter=5e-3,
    lr_backbone=5e-3,
    steps=80,
    warmup_steps=10,
    batch_tokens=900,
    microbatch_tokens=2_000,
    text_dropout=0.0,
)


@pytest.mark.long
@pytest.mark.parametrize("slipped", [False, True], ids=["right texts", "texts of other clips"])
def test_a_model_that_learns_to_read_is_reported_from_one_that_cannot(
    fixtures: Fixtures, tmp_path: Path, slipped: bool
) -> None:
    files = fixtures.base("chatterbox", seed=1)
    world = make_world("chatterbox", tmp_path, files.folder, pieces=0)
    clips = list(world.clips(400, 1))
    sets = [world.write("train", with_other_texts(clips) if slipped else iter(clips))]
    valid = [world.write("valid", world.clips(16, 2), "valid")]
    model = load_model(get_family("chatterbox"), files)
    rows = {name: torch.from_numpy(values) for name, values in load_graft(world.run / "graft").rows.items()}
    trained = make_trainable(model, rows, QUICK)
    kind = get_family("chatterbox")
    stepper = TrainStep(trained, build_optimizer(trained, QUICK), BatchBuilder(kind, model, sets), QUICK)
    held_out = Validator(
        trained, BatchBuilder(kind, model, valid), list_samples(valid, 0, ORDER), QUICK.microbatch_tokens
    )
    stream = DeterministicSampler(sets, [1.0], QUICK.batch_tokens, 0, ORDER)
    loop = Trainer(
        RunFolder(world.run),
        stepper,
        stream,
        {"am": held_out},
        TrainIntervals(log_every=20, valid_every=20, save_every=80),
    )
    LearningMonitor(loop, None, LearningThresholds(early_steps=60))
    loop.train(0)
    entries = loop.journal.read()
    reported = [entry["code"] for entry in entries if entry["kind"] == "finding"]
    state = [entry["state"] for entry in entries if entry["kind"] == "valid"][-1]
    assert (state, "not-reading" in reported) == (("stuck", True) if slipped else ("learning", False))
