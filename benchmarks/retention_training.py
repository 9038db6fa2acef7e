"""Training for the retention benchmark: voxgraft's own step, for many runs one after another on one compiled model.

A rig is built once for a method; every run begins with the base's values, empty moments and options of its own, so that
what was compiled and recorded serves all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.retention_material import VOICES, Clips, Material
from benchmarks.retention_methods import METHODS, ROW_RATE, Method, Run
from voxgraft.checkpoints.tensors import read_tensors
from voxgraft.config.train_options import TrainOptions
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, Sample, list_samples
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.load import load_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn import backbones
from voxgraft.synthesis.inputs import ReferenceVoice
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.replay import ReplayGenerator, ReplayUtterance
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, copy_optimizer_state, make_trainable, restore_optimizer_state

__all__ = ["Bench", "Rig", "as_without_compiling"]

WARMUP_SHARE = 0.05
REPLAY_SHARE = 0.25
KL_WEIGHT = 1.0
MIN_SELF_MADE = 8


@dataclass(frozen=True)
class Bench:
    """What all runs have in common."""

    material: Material
    base: Path
    device: str
    steps: int
    tokens: int
    """Positions of a step, conditioning, text and speech."""
    held_out: int | None = None
    """At most so many held-out recordings of each language."""
    plain: bool = False
    """Nothing compiled, nothing recorded: slower, for a machine on which that does not work."""

    @property
    def kind(self) -> Family:
        return get_family("tiny")

    @property
    def files(self) -> BaseFiles:
        return self.kind.files(self.base)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_gpu else torch.float32

    def model(self, device: str | None = None) -> SpeechModel:
        return load_model(self.kind, self.files, device=device or self.device, dtype=self.dtype)

    def options(self, run: Run) -> TrainOptions:
        method, steps = METHODS[run.method], run.times_steps * self.steps
        text_weight, speech_weight = self.kind.loss_weights
        rates = {"rows": ROW_RATE, "adapter": 0.0, "body": 0.0, method.part: run.rate}
        return TrainOptions(
            mode=method.mode,
            full_body=method.full_body,
            rank=method.rank,
            alpha=float(method.rank),
            lr_rows=rates["rows"],
            lr_adapter=rates["adapter"],
            lr_backbone=rates["body"],
            steps=steps,
            warmup_steps=round(WARMUP_SHARE * self.steps),
            text_weight=text_weight,
            speech_weight=speech_weight,
            kl_weight=KL_WEIGHT if method.replay == "self-made" else 0.0,
            batch_tokens=self.tokens,
            microbatch_tokens=2 * self.tokens,
            text_dropout=0.0,
            seed=run.seed,
            precision="bf16" if self.on_gpu else "float32",
            compile=self.on_gpu and not self.plain,
        )

    def rows(self, start: str) -> dict[str, Tensor]:
        return {name: torch.from_numpy(rows) for name, rows in self.material.start(start).items()}

    def base_values(self, names: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The base's own values of some tensors, as they are stored."""
        return read_tensors(self.files.checkpoint, {name: tuple(value.shape) for name, value in names.items()})


class Rig:
    """A model that is made ready for a method."""

    def __init__(self, bench: Bench, name: str, minutes: Sequence[float] = (60.0,)) -> None:
        self.bench, self.name, self.method = bench, name, METHODS[name]
        options = bench.options(Run(name, self.method.rates[0]))
        self.trained = make_trainable(bench.model(), bench.rows("romanised"), options)
        if not self.method.masked:
            for table in self.trained.named().values():
                if table._backward_hooks:
                    table._backward_hooks.clear()
        whole = bench.material.clips("am.train")
        self.own = {length: whole.first(length) for length in minutes}
        self.replay = _replay(bench, self.method)
        sets = [*self.own.values(), *self.replay]
        near = frozenset(range(len(self.own), len(sets))) if options.kl_weight else frozenset()
        examples = BatchBuilder(bench.kind, self.trained.model, sets, near=near, unscored=near)
        frozen = bench.model() if near and self.trained.gate is None else None
        optimizer = build_optimizer(self.trained, options)
        self.stepper = TrainStep(self.trained, optimizer, examples, options, frozen=frozen)

    @property
    def model(self) -> SpeechModel:
        return self.trained.model

    def begin(self, run: Run) -> None:
        """Everything as before the first step."""
        options = self.bench.options(run)
        first = make_trainable(self.bench.model("cpu"), self.bench.rows(run.start), options).tensors()
        self.trained.restore(first)
        for moments in self.stepper.optimizer.state.values():
            for value in moments.values():
                value.zero_()
        self.stepper.options = options

    def take_over(self, other: Rig) -> None:
        """Weights and moments as another rig has left them."""
        self.trained.restore(other.trained.tensors())
        restore_optimizer_state(self.stepper.optimizer, copy_optimizer_state(other.stepper.optimizer))

    def train(self, run: Run, listen: Mapping[int, Callable[[], None]] | None = None) -> float:
        """All steps of a run; `listen` is called after the steps that it names. Gives the seconds without that."""
        order, stepper, seconds = self._order(run), self.stepper, 0.0
        for number in range(1, stepper.options.steps + 1):
            started = time.perf_counter()
            if number < stepper.options.steps:
                stepper.prefetcher.set_next_items(partial(order, number + 1))
            stepper.step(number, order(number))
            seconds += time.perf_counter() - started
            if listen and number in listen:
                listen[number]()
        return seconds

    def _order(self, run: Run) -> Callable[[int], tuple[Sample, ...]]:
        """The items of each step, by their places among all sets of the rig."""
        first = list(self.own).index(run.minutes)
        places = [first, *range(len(self.own), len(self.own) + len(self.replay))]
        sets = [self.own[run.minutes], *self.replay]
        share = REPLAY_SHARE if self.replay else 0.0
        weights = [1 - share, *(share / len(self.replay) for _ in self.replay)]
        stream = DeterministicSampler(sets, weights, self.bench.tokens, run.seed, stream_options(self.model))

        def order(number: int) -> tuple[Sample, ...]:
            return tuple(
                replace(item, set=places[item.set], prompt=(places[item.prompt[0]], item.prompt[1]))
                for item in stream.step(number)
            )

        return order


def stream_options(model: SpeechModel) -> DataSamplerOptions:
    return DataSamplerOptions(min_prompt_seconds=0.0, num_conditioning=model.frame.num_conditioning)


def held_out(bench: Bench, model: SpeechModel, language: str) -> tuple[BatchBuilder, tuple[Sample, ...]]:
    """Recordings of a language that nobody learns from."""
    sets = [bench.material.clips(f"{language}.valid")]
    return BatchBuilder(bench.kind, model, sets), list_samples(sets, 0, stream_options(model))[: bench.held_out]


@contextmanager
def as_without_compiling(model: SpeechModel) -> Iterator[None]:
    """Measuring has shapes and modes of its own, each of which would be compiled for nothing."""
    body = model.body
    before, body._run_block = body._run_block, backbones._run_block
    try:
        yield
    finally:
        body._run_block = before


def _replay(bench: Bench, method: Method) -> list[Clips]:
    if method.replay == "recorded":
        return [bench.material.clips(f"{language}.replay") for language in bench.kind.languages]
    return [_self_made(bench)] if method.replay == "self-made" else []


def _self_made(bench: Bench) -> Clips:
    """What the base says itself of as many texts, in the voices that all languages have."""
    most = max(MIN_SELF_MADE, bench.steps)  # where this is only tried, no more than a few steps need
    utterances = [
        ReplayUtterance(f"{language}-{at:05d}", language, str(at), tuple(ids.tolist()), False)
        for language in bench.kind.languages
        for at, ids in enumerate(bench.material.rows_of(f"{language}.said.ids")[:most])
    ]
    voices = [ReferenceVoice(name, bench.kind.voice(bench.files, name)) for name in VOICES]
    made = list(ReplayGenerator(bench.kind, bench.model(), voices, 0).clips(utterances))
    texts = [np.asarray(one.text_ids, np.int32) for one in made]
    codes = [np.asarray(one.codes, np.int32) for one in made]
    return Clips("old.self-made", texts, codes, [int(one.voice["speaker"][0]) for one in made])
