"""A whole small training on made-up sets, for tests: the real model, sets, data order, stepper and loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.datasets import make_set
from tools.random_bases import make_random_base
from voxgraft.checkpoints.steps import load_step
from voxgraft.config.train_options import TrainIntervals, TrainOptions
from voxgraft.core.run import RunFolder
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, list_samples
from voxgraft.models import get_family
from voxgraft.models.speech_model import load_model
from voxgraft.training.callbacks import Callback
from voxgraft.training.distributed import DistributedContext
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, make_trainable, restore_optimizer_state
from voxgraft.training.trainer import BestStepState, Trainer
from voxgraft.training.validation import Validator

NUM_NEW = 9
OPTIONS = TrainOptions(
    rank=4,
    alpha=4.0,
    steps=8,
    warmup_steps=3,
    batch_tokens=400,
    microbatch_tokens=240,
    text_dropout=0.2,
    weight_decay=0.1,
    kl_weight=0.0,
)
EVERY = TrainIntervals(log_every=1, valid_every=4, save_every=4, sample_every=100, keep_last=2)


@dataclass(frozen=True)
class Place:
    """Base and sets of a family on disk, shared by several trainings."""

    family_name: str
    folder: Path

    @classmethod
    def make(cls, family_name: str, folder: Path) -> Place:
        place = cls(family_name, folder)
        make_random_base(family_name, folder / "base", size="tiny", seed=1)
        model = load_model(get_family(family_name), place.files)
        spec = replace(model.spec, num_text_ids=model.num_text_ids + NUM_NEW)
        for at, (name, clips, speakers) in enumerate((("train", 24, 4), ("valid", 4, 2))):
            make_set(folder / name, family_name, spec, clips=clips, speakers=speakers, seed=at, seconds=(0.5, 1.2))
        make_set(
            folder / "replay",
            family_name,
            model.spec,
            clips=16,
            speakers=4,
            seed=2,
            seconds=(0.5, 1.2),
            language="en",
            role="replay",
        )
        return place

    @property
    def files(self) -> Any:
        return get_family(self.family_name).files(self.folder / "base")


def loop_of(
    place: Place,
    run: Path,
    options: TrainOptions = OPTIONS,
    every: TrainIntervals = EVERY,
    group: DistributedContext | None = None,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Trainer:
    """A training that has not begun. With a KL weight, merged mode has replay, and stays near the base on it.

    `dtype` is what the body is kept in: `train` keeps it in half precision where it computes in that.
    """
    from voxgraft.dataset.sets import open_clip_dataset

    kind = get_family(place.family_name)
    torch.manual_seed(0)
    model = load_model(kind, place.files, device=device, dtype=dtype)
    rows = {
        point.tensor: torch.from_numpy(
            np.random.default_rng(5).standard_normal((NUM_NEW, *_width(model, point.tensor)), dtype=np.float32)
        )
        * 0.05
        for point in kind.graft_points
    }
    trained = make_trainable(model, rows, options)
    has_replay = options.mode == "merged" and options.kl_weight > 0
    sets = [open_clip_dataset(place.folder / name) for name in ("train", "replay")[: 1 + has_replay]]
    valid = [open_clip_dataset(place.folder / "valid")]
    order = DataSamplerOptions(
        options.text_dropout,
        min_prompt_seconds=0.5,
        num_conditioning=model.spec.num_conditioning,
        num_framing=model.spec.text_framing + model.spec.speech_framing,
    )
    stream = DeterministicSampler(sets, [3.0, 1.0][: len(sets)], options.batch_tokens, options.seed, order)
    gated = options.mode == "gated"
    examples = BatchBuilder(kind, model, sets, kl_sets=frozenset([1] if has_replay else []), gated=gated)
    needs_copy = has_replay and options.full_backbone
    frozen = load_model(kind, place.files, device=device, dtype=dtype) if needs_copy else None
    stepper = TrainStep(trained, build_optimizer(trained, options), examples, options, group, frozen)
    validation = Validator(
        trained, BatchBuilder(kind, model, valid, gated=gated), list_samples(valid, 0, order), options.microbatch_tokens
    )
    run.mkdir(exist_ok=True)
    return Trainer(RunFolder(run), stepper, stream, {"am": validation}, every)


class StopAt(Callback):
    """Stops a training after the validation of a step."""

    def __init__(self, step: int | None, why: str = "enough for now") -> None:
        self.step, self.why = step, why

    def stop_reason(self, step: int, _metrics: object) -> str | None:
        return self.why if step == self.step else None


def resumed(loop: Trainer) -> int:
    """Put the newest saved step in; gives its number."""
    state = load_step(loop.run_folder).state
    loop.stepper.trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
    restore_optimizer_state(loop.stepper.optimizer, state.tensors["optimizer"])
    loop.best_state = BestStepState(**state.values["standing"])
    loop.has_started = True
    loop.journal.truncate_after(state.step)
    return state.step


def _width(model: Any, tensor: str) -> tuple[int, ...]:
    return tuple(model.state_dict()[tensor].shape[1:])
