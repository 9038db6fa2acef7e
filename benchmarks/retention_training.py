"""The methods of the retention benchmark, its data as read back, and training: many runs on one compiled model.

A *job* is one process: one method at one size, so that its kernels are compiled once. Within it the rates of the grid
are tried with seed 0 on all data, the one with the lowest held-out loss of the new language is taken, and everything
else is run at that rate. A rig is built once for a method; every run begins with the base's values, empty moments and
options of its own, so that what was compiled and recorded serves all of them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from voxgraft.checkpoints.load import read_tensors
from voxgraft.config.train_options import TrainModeOrBaseline, TrainOptions, TrainPart
from voxgraft.dataset.sampler import DataSamplerOptions, DeterministicSampler, Sample, list_samples
from voxgraft.dataset.shards import AnyArray, ClipDataset, DatasetHeader, DatasetProvenance, Int32Array
from voxgraft.models import get_family
from voxgraft.models.base import BaseFiles, Clip, Family
from voxgraft.models.speech_model import SpeechModel, load_model
from voxgraft.nn import backbones
from voxgraft.synthesis.inputs import ReferenceVoice
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.replay import ReplayGenerator, ReplayUtterance
from voxgraft.training.step import TrainStep
from voxgraft.training.trainable import build_optimizer, copy_optimizer_state, make_trainable, restore_optimizer_state

FORMAT = "voxgraft-retention-1"
STARTS = ("romanised", "script-mean", "mean", "random")
"""How new rows may start."""
VOICES = ("m1", "m3", "f2", "f4")
"""Who says the sentences, in turns: the speakers that all three languages have."""
CODE_HZ = 25.0
Replay = Literal["", "recorded", "self-made"]
ROW_RATE = 1e-3
"""Of new rows beside an adapter or a body that has a rate of its own."""
BODY_RATES = (1e-4, 3e-4, 1e-3, 3e-3)
ADAPTER_RATES = (5e-4, 1e-3, 3e-3, 6e-3)
ROWS_RATES = (1e-3, 3e-3, 1e-2)
SHARES = (0.25, 0.5, 0.75)
"""Points between base and tuned that are measured after replay with KL."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to teach a language."""

    title: str
    mode: TrainModeOrBaseline
    part: TrainPart
    """Whose rate the grid is of. As the seeds trained, and naively, everything has that rate."""
    rates: tuple[float, ...]
    rank: int = 32
    full_backbone: bool = False
    masked: bool = True
    """Naive training is that of the seeds without their mask."""
    replay: Replay = ""

    @property
    def keeps_base(self) -> bool:
        return self.mode in ("gated", "rows-only")


METHODS = {
    "naive": Method("naive full training", "masked-finetune", "body", BODY_RATES, masked=False),
    "seeds": Method("masked-finetune", "masked-finetune", "body", (1e-4,)),
    "rows": Method("rows only", "rows-only", "rows", ROWS_RATES),
    **{
        f"gated-{rank}": Method(f"gated LoRA {rank}", "gated", "adapter", ADAPTER_RATES, rank)
        for rank in (8, 16, 32, 64)
    },
    "replay": Method("full + recorded replay", "merged", "body", BODY_RATES, full_backbone=True, replay="recorded"),
    "self": Method("full + self-made replay, KL", "merged", "body", BODY_RATES, full_backbone=True, replay="self-made"),
    "self-lora": Method("LoRA 32 + self-made replay, KL", "merged", "adapter", ADAPTER_RATES, replay="self-made"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One training, by all that it depends on beside the common settings."""

    method: str
    rate: float
    seed: int = 0
    minutes: float = 60.0
    start: str = "romanised"
    times_steps: int = 1

    @property
    def name(self) -> str:
        parts = [self.method, f"{self.rate:g}", f"seed {self.seed}"]
        parts += [f"{self.minutes:g} min"] if self.minutes != 60 else []
        parts += [self.start] if self.start != "romanised" else []
        parts += [f"{self.times_steps} times the steps"] if self.times_steps != 1 else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does for a method once its rate is chosen."""

    method: str
    seeds: int = 3
    minutes: tuple[float, ...] = ()
    starts: tuple[str, ...] = ()
    extra: tuple[Run, ...] = ()
    """Runs at rates of their own."""
    curve: bool = False
    """Listen on the way, to know by which step an error is reached."""
    waits: bool = False
    """For the grid of another process of the same method."""

    def after(self, rate: float, seeds: int) -> list[Run]:
        """The runs at the chosen rate, the most important first."""
        further = [Run(self.method, rate, seed) for seed in range(1, min(self.seeds, seeds))]
        shorter = [Run(self.method, rate, minutes=minutes) for minutes in self.minutes]
        return [*further, *shorter, *(Run(self.method, rate, start=start) for start in self.starts)]


SLOW_RATE = 1e-5
LONG = 10
JOBS = {
    "base": Job(""),
    "self": Job("self"),
    "gated-32": Job("gated-32", curve=True),
    "self-lora": Job("self-lora", seeds=1),
    "seeds-long": Job("seeds", seeds=0, extra=(Run("seeds", SLOW_RATE, times_steps=LONG),)),
    "naive": Job("naive", minutes=(10, 30)),
    "replay": Job("replay"),
    "resume": Job("seeds"),
    "seeds": Job("seeds", extra=(Run("seeds", SLOW_RATE),)),
    "gated-64": Job("gated-64", seeds=1),
    "starts": Job("gated-32", seeds=1, minutes=(10, 30), starts=STARTS[1:], curve=True, waits=True),
    "gated-16": Job("gated-16", seeds=1),
    "gated-8": Job("gated-8", seeds=1),
    "rows": Job("rows", seeds=1),
}
"""In the order in which they begin: the longest first."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence to be said and heard."""

    language: str
    text: str
    phones: tuple[str, ...]
    unheard: bool
    """Whether it has words that no training has heard."""
    ids: tuple[int, ...]
    speaker: int
    codes: tuple[int, ...]
    """As the codec has it of the synthesiser's voice."""


class Clips(ClipDataset):
    """A set in memory. A voice is a speaker's number, so that every clip can lend its own."""

    def __init__(
        self, name: str, texts: Sequence[Int32Array], codes: Sequence[Int32Array], speakers: Sequence[int]
    ) -> None:
        self.name = name
        self.header = DatasetHeader("tiny", name.partition(".")[0], "train", CODE_HZ, DatasetProvenance("", ""))
        self._texts, self._codes = list(texts), list(codes)
        self._voices = [{"speaker": np.array([number], np.int32)} for number in speakers]
        self.num_text = np.array([len(one) for one in texts], np.int64)
        self.num_codes = np.array([len(one) for one in codes], np.int64)
        self.infos = [
            Clip(id=f"{name}-{at:05d}", speaker=str(number), seconds=len(own) / CODE_HZ)
            for at, (own, number) in enumerate(zip(codes, speakers, strict=True))
        ]
        self.fingerprint = ""

    def text_ids(self, clip: int) -> Int32Array:
        return self._texts[clip]

    def codes(self, clip: int) -> Int32Array:
        return self._codes[clip]

    def voice(self, clip: int) -> dict[str, AnyArray]:
        return self._voices[clip]

    def prompt_of(self, clip: int) -> int:
        return clip

    @property
    def minutes(self) -> float:
        return float(self.num_codes.sum()) / CODE_HZ / 60

    def first(self, minutes: float) -> Clips:
        """Its first clips, as many as that."""
        count = int(np.searchsorted(np.cumsum(self.num_codes) / CODE_HZ, 60 * minutes)) + 1
        speakers = [int(voice["speaker"][0]) for voice in self._voices[:count]]
        return Clips(f"{self.name}-{minutes:g}", self._texts[:count], self._codes[:count], speakers)


class Material:
    """The whole file."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            self.notes: dict[str, Any] = json.loads(file.metadata()["retention"])
            self._arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        if self.notes["format"] != FORMAT:
            raise SystemExit(f"{path} is {self.notes['format']!r}, not {FORMAT!r}: make it anew")

    def require_base(self, checkpoint: Path, codec: Path) -> None:
        """Codes of another codec mean something else, and so do rows of another base."""
        for path, name in ((checkpoint, "base_sha256"), (codec, "codec_sha256")):
            if hashlib.sha256(path.read_bytes()).hexdigest() != self.notes[name]:
                raise SystemExit(f"the data were made for another {path.name}: run benchmarks.retention_data again")

    def clips(self, name: str) -> Clips:
        return Clips(name, self.rows_of(f"{name}.ids"), self.rows_of(f"{name}.codes"), self._speakers(name))

    def sentences(self, language: str, most: int | None = None) -> list[Sentence]:
        """The sentences of a language; fewer of them, if that is wanted, are spread over all."""
        reported, name = self.notes["sentences"][language], f"{language}.sentences"
        parts = zip(
            reported, self.rows_of(f"{name}.ids"), self.rows_of(f"{name}.codes"), self._speakers(name), strict=True
        )
        found = [
            Sentence(
                language,
                one["text"],
                tuple(one["phones"]),
                one["unheard"],
                tuple(ids.tolist()),
                speaker,
                tuple(codes.tolist()),
            )
            for one, ids, codes, speaker in parts
        ]
        count = min(most or len(found), len(found))
        return [found[at * len(found) // count] for at in range(count)]

    def start(self, name: str) -> dict[str, NDArray[np.float32]]:
        """First rows by tensor."""
        prefix = f"rows.{name}."
        return {
            key.removeprefix(prefix): value.astype(np.float32)
            for key, value in self._arrays.items()
            if key.startswith(prefix)
        }

    def rows_of(self, name: str) -> list[Int32Array]:
        """A list of rows of different lengths."""
        ends = np.cumsum(self._arrays[f"{name}.counts"], dtype=np.int64)
        return [part.astype(np.int32) for part in np.split(self._arrays[name], ends[:-1])]

    def _speakers(self, name: str) -> list[int]:
        return [int(number) for number in self._arrays[f"{name}.speakers"]]


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
            full_backbone=method.full_backbone,
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
    return DataSamplerOptions(min_prompt_seconds=0.0, num_conditioning=model.spec.num_conditioning)


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
