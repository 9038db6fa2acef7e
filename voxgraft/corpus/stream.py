"""The order of the data: which clips each step has, as a pure function of the seed, the step and the clips.

Each set is an endless stream of its clips, every epoch in another order, and a step takes from each set the clips that
start within the step's share of tokens. Nothing is remembered: no position is saved, and any step can be asked for.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from voxgraft.corpus import chance
from voxgraft.corpus.clips import ClipDataset
from voxgraft.corpus.prompts import PromptSelector, SingleClipPolicy
from voxgraft.corpus.stream_report import DataSamplerReport
from voxgraft.errors import ConfigError, GraftError

__all__ = ["DataSamplerOptions", "DeterministicSampler", "Sample", "list_samples"]

MAX_CACHED_EPOCHS = 3
_NUM_FRAMING_TOKENS = 4
"""Start and stop of the text and of the speech."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One clip of a step."""

    set: int
    clip: int
    prompt: tuple[int, int]
    """Set and place of the voice."""
    silent: bool = False
    """Whether its text is not to be seen, so that guidance keeps its meaning."""


@dataclass(frozen=True, slots=True)
class DataSamplerOptions:
    """The rules of a data order."""

    silent_share: float = 0.0
    min_prompt_seconds: float = 3.0
    lone_clips: SingleClipPolicy = "leave-out"
    """What becomes of a speaker's only clip: left out, or learnt with its own voice."""
    max_tokens_per_clip: int | None = None
    """Longer clips are left out."""
    num_conditioning: int = 34
    """Positions in front of the text (`Frame.num_conditioning`)."""

    def __post_init__(self) -> None:
        if not 0 <= self.silent_share <= 1:
            raise ConfigError("stream-settings", f"a silent share of {self.silent_share}", expected="0 to 1")
        if self.lone_clips not in get_args(SingleClipPolicy):
            expected = " or ".join(get_args(SingleClipPolicy))
            raise ConfigError("stream-settings", f"lone_clips is {self.lone_clips!r}", expected=expected)


class DeterministicSampler:
    """The data order of a run. `step` may be asked for any step in any order."""

    def __init__(
        self,
        sets: Sequence[ClipDataset],
        weights: Sequence[float],
        tokens_per_step: int,
        seed: int,
        options: DataSamplerOptions | None = None,
        *,
        left_for_others: float = 0.0,
    ) -> None:
        """`left_for_others` is the share of every step that sets will have which are not there yet."""
        self.options = options or DataSamplerOptions()
        self.tokens_per_step, self.seed = tokens_per_step, seed
        _require_data_sampler_settings(sets, weights, tokens_per_step)
        total = sum(map(Fraction, weights)) / (1 - Fraction(left_for_others))
        self._streams = [
            _DatasetStream(clips, Fraction(weight) / total * tokens_per_step, seed, self.options)
            for clips, weight in zip(sets, weights, strict=True)
        ]
        self._require_full_steps()
        self._recent: tuple[int, tuple[Sample, ...]] = (0, ())  # the step that was asked for last

    def step(self, number: int) -> tuple[Sample, ...]:
        """The clips of a step, counted from 1."""
        if number < 1:
            raise ConfigError("stream-settings", f"step {number}", expected="1 or more")
        recent = self._recent
        if recent[0] != number:
            items = tuple(
                self._build_sample(at, flow, clip, number)
                for at, flow in enumerate(self._streams)
                for clip in flow.clips_of(number)
            )
            recent = self._recent = (number, items)
        return recent[1]

    def epoch_at(self, number: int) -> float:
        """Passes over the first set that are done after a step."""
        return float(number / self._steps_per_epoch)

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which the first set is passed over once."""
        return float(self._steps_per_epoch)

    def steps_for_epochs(self, epochs: float) -> int:
        """The step by which every clip of the first set has been met that often."""
        return math.ceil(self._steps_per_epoch * Fraction(epochs))

    @property
    def longest(self) -> tuple[int, str]:
        """Tokens and id of the longest clip that any step can hold."""
        return max((flow.longest for flow in self._streams), key=lambda found: found[0])

    def report(self) -> tuple[DataSamplerReport, ...]:
        """For each set what is used, what is left out and why."""
        return tuple(flow.report() for flow in self._streams)

    @property
    def _steps_per_epoch(self) -> Fraction:
        return self._streams[0].total / self._streams[0].budget

    def _build_sample(self, at: int, flow: _DatasetStream, clip: int, number: int) -> Sample:
        prompt = flow.prompts.prompt(clip, self.seed, number)
        draw = self.options.silent_share
        silent = draw > 0 and chance.hash_uniform("silent", self.seed, number, flow.set.infos[clip].id) < draw
        return Sample(at, clip, (at, prompt), silent)

    def _require_full_steps(self) -> None:
        """A share of at least the longest clip holds the start of some clip in every step."""
        if any(flow.budget >= flow.longest[0] for flow in self._streams):
            return
        needed = min(math.ceil(flow.longest[0] * self.tokens_per_step / flow.budget) for flow in self._streams)
        flow = max(self._streams, key=lambda flow: flow.budget)
        found = f"{self.tokens_per_step:,} tokens a step, and clip {flow.longest[1]!r} has {flow.longest[0]:,}"
        raise ConfigError("step-too-small", found, expected=f"at least {needed:,}, so that no step is empty")


class _DatasetStream:
    """One set as an endless stream, and the share of a step that it has."""

    def __init__(self, clips: ClipDataset, budget: Fraction, seed: int, options: DataSamplerOptions) -> None:
        self.set, self.budget, self._seed, self._options = clips, budget, seed, options
        order = sorted(range(len(clips)), key=lambda clip: clips.infos[clip].id)
        self.prompts = PromptSelector(clips, options.min_prompt_seconds, order)
        self._tokens = clips.num_text + clips.num_codes + (options.num_conditioning + _NUM_FRAMING_TOKENS)
        lone = options.lone_clips == "leave-out"
        self._left_out = {
            "lone speaker": [clip for clip in order if lone and self.prompts.is_single_clip(clip)],
            "too long": [clip for clip in order if self._tokens[clip] > (options.max_tokens_per_clip or math.inf)],
        }
        out = {clip for clips in self._left_out.values() for clip in clips}
        self._used = np.array([clip for clip in order if clip not in out], dtype=np.int64)
        if not len(self._used):
            reasons = ", ".join(f"{reason}: {len(found):,}" for reason, found in self._left_out.items())
            raise GraftError("stream-empty", f"no clip of {clips.name} can be used ({reasons})", expected="some")
        self.total = int(self._tokens[self._used].sum())
        longest = int(self._used[np.argmax(self._tokens[self._used])])
        self.longest = int(self._tokens[longest]), clips.infos[longest].id
        self._epochs: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = OrderedDict()

    def clips_of(self, number: int) -> Iterator[int]:
        """Clips that start within the step's share. Starts are whole numbers, so the share's ends are rounded up."""
        begin, end = math.ceil((number - 1) * self.budget), math.ceil(number * self.budget)
        for epoch in range(begin // self.total, -(-end // self.total)):
            clips, starts = self._epoch(epoch)
            first, last = np.searchsorted(starts, [begin - epoch * self.total, end - epoch * self.total])
            yield from clips[first:last].tolist()

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The clips of an epoch in their order, and where each starts; a few epochs are kept."""
        kept = self._epochs.get(epoch)  # once: another thread may drop it in between
        if kept is None:
            clips = self._used[chance.hash_permutation(len(self._used), "order", self._seed, self.set.name, epoch)]
            kept = (clips, np.cumsum(self._tokens[clips]) - self._tokens[clips])
            self._epochs[epoch] = kept
            if len(self._epochs) > MAX_CACHED_EPOCHS:
                self._epochs.popitem(last=False)
        return kept

    def report(self) -> DataSamplerReport:
        infos = self.set.infos
        lone = [clip for clip in range(len(self.set)) if self.prompts.is_single_clip(clip)]
        short = [clip for clip in self._used.tolist() if self.prompts.has_only_short_prompts(clip)]
        return DataSamplerReport(
            name=self.set.name,
            clips=len(self.set),
            used=len(self._used),
            tokens=self.total,
            tokens_per_step=float(self.budget),
            longest=self.longest[0],
            left_out={reason: tuple(infos[clip].id for clip in found) for reason, found in self._left_out.items()},
            lone=tuple(infos[clip].id for clip in lone),
            short_prompts=tuple(infos[clip].id for clip in short),
        )


def list_samples(
    sets: Sequence[ClipDataset], seed: int, options: DataSamplerOptions | None = None
) -> tuple[Sample, ...]:
    """Every clip of some sets once, in the order of their ids and with fixed prompts, as for validation.

    A clip without another of its speaker has its own voice. Clips over `max_tokens_per_clip` are left out.
    """
    options = options or DataSamplerOptions()
    items: list[Sample] = []
    for at, clips in enumerate(sets):
        order = sorted(range(len(clips)), key=lambda clip: clips.infos[clip].id)
        prompts = PromptSelector(clips, options.min_prompt_seconds, order)
        tokens = clips.num_text + clips.num_codes + (options.num_conditioning + _NUM_FRAMING_TOKENS)
        limit = options.max_tokens_per_clip or math.inf
        items += [Sample(at, clip, (at, prompts.prompt(clip, seed, 0))) for clip in order if tokens[clip] <= limit]
    return tuple(items)


def _require_data_sampler_settings(sets: Sequence[ClipDataset], weights: Sequence[float], tokens_per_step: int) -> None:
    if not sets or len(sets) != len(weights):
        found = f"{len(sets)} sets and {len(weights)} weights"
        raise ConfigError("stream-settings", found, expected="at least one set, and a weight for each")
    names = [clips.name for clips in sets]
    if len(set(names)) != len(names):
        raise ConfigError("stream-settings", f"the sets {', '.join(names)}", expected="no name twice")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ConfigError("stream-settings", f"the weights {list(weights)}", expected="finite numbers above 0")
    if tokens_per_step < 1:
        raise ConfigError("stream-settings", f"{tokens_per_step} tokens a step", expected="at least 1")
