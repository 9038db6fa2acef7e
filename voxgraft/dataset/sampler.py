"""The order of the data: which clips each step has, as a pure function of the seed, the step and the clips.

Each set is an endless stream of its clips, every epoch in another order, and a step takes from each set the clips that
start within the step's share of tokens. Nothing is remembered: no position is saved, and any step can be asked for.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from voxgraft.core import rng
from voxgraft.core.errors import ConfigError, Finding, GraftError, finding
from voxgraft.dataset.shards import ClipDataset, format_clip_names

SingleClipPolicy = Literal["leave-out", "own"]


class PromptSelector:
    """Chooses the prompt of each clip: another clip of the same speaker, drawn by seed, step and clip id."""

    def __init__(self, clips: ClipDataset, min_seconds: float, order: Sequence[int]) -> None:
        """`order` holds the indices of all clips, sorted by id, so that their order in the files does not matter."""
        self._clips = clips
        self._own = len(clips) > 0 and clips.prompt_of(0) is not None
        by_speaker: dict[str, list[int]] = defaultdict(list)
        for clip in order:
            by_speaker[clips.infos[clip].speaker].append(clip)
        # By speaker: the clips that are long enough to be prompts, and the two longest, the longest first.
        self._long: dict[str, list[int]] = {}
        self._longest: dict[str, list[int]] = {}
        for speaker, speaker_clips in by_speaker.items():
            self._long[speaker] = [clip for clip in speaker_clips if clips.infos[clip].seconds >= min_seconds]
            self._longest[speaker] = sorted(speaker_clips, key=lambda clip: -clips.infos[clip].seconds)[:2]
        self._place_among_long = {clip: index for long in self._long.values() for index, clip in enumerate(long)}

    def is_single_clip(self, clip: int) -> bool:
        """Whether the speaker has no other clip to take the voice from."""
        return not self._own and len(self._longest[self._clips.infos[clip].speaker]) == 1

    def has_only_short_prompts(self, clip: int) -> bool:
        """Whether every other clip of the speaker is too short, so that the longest of them is used."""
        return not self._own and not self.is_single_clip(clip) and not self._num_long_others(clip)

    def prompt(self, clip: int, seed: int, step: int) -> int:
        """Index of the clip whose voice is used; the clip itself only if the speaker has no other."""
        given = self._clips.prompt_of(clip)
        if given is not None:
            return given
        speaker = self._clips.infos[clip].speaker
        # Drawn by id, not by place: adding clips to a set does not change the prompts of other speakers.
        if others := self._num_long_others(clip):
            at = rng.hash_int("prompt", seed, step, self._clips.infos[clip].id) % others
            own = self._place_among_long.get(clip, others)
            return self._long[speaker][at + (at >= own)]  # skip the clip itself
        return next((one for one in self._longest[speaker] if one != clip), clip)

    def _num_long_others(self, clip: int) -> int:
        return len(self._long[self._clips.infos[clip].speaker]) - (clip in self._place_among_long)


# If such a share of the clips is the only one of its speaker, the names are hardly those of people.
MIN_CLIPS_FOR_WARNING, MOSTLY_SINGLE_SHARE = 3, 0.8


MAX_CACHED_EPOCHS = 3


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

    text_dropout: float = 0.0
    min_prompt_seconds: float = 3.0
    single_clip_speakers: SingleClipPolicy = "leave-out"
    """What becomes of a speaker's only clip: left out, or learned with its own voice."""
    max_tokens_per_clip: int | None = None
    """Longer clips are left out."""
    num_conditioning: int = 34
    """Positions in front of the text (`SequenceSpec.num_conditioning`)."""
    num_framing: int = 4
    """Positions beside text ids and codes: starts and stops (`text_framing` and `speech_framing` of the spec)."""

    def __post_init__(self) -> None:
        if not 0 <= self.text_dropout <= 1:
            raise ConfigError("stream-settings", f"text_dropout is {self.text_dropout}", expected="0 to 1")
        if self.single_clip_speakers not in get_args(SingleClipPolicy):
            expected = " or ".join(get_args(SingleClipPolicy))
            raise ConfigError(
                "stream-settings", f"single_clip_speakers is {self.single_clip_speakers!r}", expected=expected
            )


class DeterministicSampler:
    """The data order of a run. `step` may be asked for any step in any order."""

    def __init__(
        self,
        sets: Sequence[ClipDataset],
        weights: Sequence[float],
        batch_tokens: int,
        seed: int,
        options: DataSamplerOptions | None = None,
        *,
        left_for_others: float = 0.0,
    ) -> None:
        """`left_for_others` is the share of every step that sets will have which do not exist yet."""
        self.options = options or DataSamplerOptions()
        self.batch_tokens, self.seed = batch_tokens, seed
        if not sets or len(sets) != len(weights):
            found = f"{len(sets)} data folders and {len(weights)} weights"
            raise ConfigError("stream-settings", found, expected="at least one data folder, and a weight for each")
        names = [clips.name for clips in sets]
        if len(set(names)) != len(names):
            raise ConfigError("stream-settings", f"the data folders {', '.join(names)}", expected="unique names")
        if not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ConfigError("stream-settings", f"the weights {list(weights)}", expected="finite numbers above 0")
        if batch_tokens < 1:
            raise ConfigError("stream-settings", f"a step has {batch_tokens} tokens", expected="at least 1")
        # Fractions: shares of a step must add up exactly over any number of steps.
        total = sum(map(Fraction, weights)) / (1 - Fraction(left_for_others))
        self.streams = [
            DatasetStream(clips, Fraction(weight) / total * batch_tokens, seed, self.options)
            for clips, weight in zip(sets, weights, strict=True)
        ]
        # A share of at least the longest clip holds the start of some clip in every step.
        if all(flow.budget < flow.longest[0] for flow in self.streams):
            needed = min(math.ceil(flow.longest[0] * batch_tokens / flow.budget) for flow in self.streams)
            flow = max(self.streams, key=lambda flow: flow.budget)
            found = f"{batch_tokens:,} tokens per step, but clip {flow.longest[1]!r} has {flow.longest[0]:,}"
            raise ConfigError("step-too-small", found, expected=f"at least {needed:,}, so that no step is empty")
        self._steps_per_epoch = self.streams[0].total / self.streams[0].budget
        self._recent: tuple[int, tuple[Sample, ...]] = (0, ())  # the step that was requested last

    def step(self, number: int) -> tuple[Sample, ...]:
        """The clips of a step, counted from 1."""
        if number < 1:
            raise ConfigError("stream-settings", f"step {number}", expected="1 or more")
        recent = self._recent
        if recent[0] != number:
            items: list[Sample] = []
            draw = self.options.text_dropout
            for at, flow in enumerate(self.streams):
                for clip in flow.clips_of(number):
                    prompt = flow.prompts.prompt(clip, self.seed, number)
                    name = flow.set.infos[clip].id
                    silent = rng.hash_uniform("silent", self.seed, number, name) < draw
                    items.append(Sample(at, clip, (at, prompt), silent))
            recent = self._recent = (number, tuple(items))
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
        return max((flow.longest for flow in self.streams), key=lambda found: found[0])


class DatasetStream:
    """One set as an endless stream, and the share of a step that it has. Clips are named by their ids."""

    def __init__(self, clips: ClipDataset, budget: Fraction, seed: int, options: DataSamplerOptions) -> None:
        self.set, self.name, self.budget, self._seed = clips, clips.name, budget, seed
        order = sorted(range(len(clips)), key=lambda clip: clips.infos[clip].id)
        self.prompts = PromptSelector(clips, options.min_prompt_seconds, order)
        self._tokens = clips.num_text + clips.num_codes + (options.num_conditioning + options.num_framing)
        lone = [clip for clip in order if self.prompts.is_single_clip(clip)]
        left_out = {
            "lone speaker": lone if options.single_clip_speakers == "leave-out" else [],
            "too long": [clip for clip in order if self._tokens[clip] > (options.max_tokens_per_clip or math.inf)],
        }
        self.lone = tuple(clips.infos[clip].id for clip in sorted(lone))
        """Clips whose speaker has no other one."""
        self.left_out = {reason: tuple(clips.infos[clip].id for clip in found) for reason, found in left_out.items()}
        """By reason; a clip may have two."""
        out = {clip for found in left_out.values() for clip in found}
        self._used = np.array([clip for clip in order if clip not in out], dtype=np.int64)
        self.clips, self.used = len(clips), len(self._used)
        if not self.used:
            reasons = ", ".join(f"{reason}: {len(found):,}" for reason, found in left_out.items())
            raise GraftError(
                "stream-empty", f"no clip of {clips.name} can be used ({reasons})", expected="at least one clip"
            )
        self.total = int(self._tokens[self._used].sum())
        """Tokens of one pass over the clips that are used."""
        longest = int(self._used[np.argmax(self._tokens[self._used])])
        self.longest = int(self._tokens[longest]), clips.infos[longest].id
        self._epochs: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = OrderedDict()

    def clips_of(self, number: int) -> Iterator[int]:
        """Clips that start within the step's share. Starts are whole numbers, so the share's ends are rounded up."""
        begin, end = math.ceil((number - 1) * self.budget), math.ceil(number * self.budget)
        for epoch in range(begin // self.total, -(-end // self.total)):
            cached = self._epochs.get(epoch)  # once: another thread may drop it in between
            if cached is None:
                order = rng.hash_permutation(len(self._used), "order", self._seed, self.set.name, epoch)
                clips = self._used[order]
                # The clips of an epoch in their order, and the token at which each starts.
                cached = self._epochs[epoch] = (clips, np.cumsum(self._tokens[clips]) - self._tokens[clips])
                if len(self._epochs) > MAX_CACHED_EPOCHS:
                    self._epochs.popitem(last=False)
            clips, starts = cached
            first, last = np.searchsorted(starts, [begin - epoch * self.total, end - epoch * self.total])
            yield from clips[first:last].tolist()

    def findings(self) -> list[Finding]:
        """All that a user should know, with the cure."""
        found: list[tuple[str, str]] = []
        too_long = self.left_out["too long"]
        if self.lone:
            outcome = "left out" if self.left_out["lone speaker"] else "their own voice prompt, which teaches copying"
            text = f"{len(self.lone):,} of {self.clips:,} clips are the only clip of their speaker and are {outcome}"
            nearly_all = self.clips >= MIN_CLIPS_FOR_WARNING and len(self.lone) >= MOSTLY_SINGLE_SHARE * self.clips
            code = "speakers-one-clip" if nearly_all else "lone-speakers"
            found.append((code, f"{text}: {format_clip_names(self.lone)}"))
        if too_long:
            text = f"{len(too_long):,} of {self.clips:,} clips are too long and left out: {format_clip_names(too_long)}"
            found.append(("clips-left-out", text))
        used = self._used.tolist()
        if short := [self.set.infos[clip].id for clip in used if self.prompts.has_only_short_prompts(clip)]:
            text = f"{len(short):,} of {self.used:,} clips have no other clip of their speaker that is long enough"
            found.append(("short-prompts", f"{text}: {format_clip_names(short)}"))
        if self.budget < self.longest[0]:
            text = f"each step takes {float(self.budget):,.0f} tokens from this data folder"
            text += f", but the longest clip of the folder has {self.longest[0]:,}"
            found.append(("share-too-small", text))
        return [finding(code, text, where=self.name) for code, text in found]


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
        tokens = clips.num_text + clips.num_codes + (options.num_conditioning + options.num_framing)
        limit = options.max_tokens_per_clip or math.inf
        items += [Sample(at, clip, (at, prompts.prompt(clip, seed, 0))) for clip in order if tokens[clip] <= limit]
    return tuple(items)


class Microbatch(list[int]):
    """Places of the items that go through the model together."""

    def __init__(self, places: Iterable[int], tokens: int) -> None:
        super().__init__(places)
        self.tokens = tokens
        """Positions that they fill."""


def pack_microbatches(lengths: Sequence[int], microbatch_tokens: int) -> list[Microbatch]:
    """Every place in exactly one pack of at most `microbatch_tokens`; as few packs as can be, all about equally full.

    The longest first, each where there is most room: a last pack with the little that is left over would cost a device
    nearly as much as a full one.
    """
    if len(lengths) == 0:
        return []
    longest = int(np.argmax(lengths))
    require_clip_fits(int(lengths[longest]), microbatch_tokens, f"item {longest} of the step")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    count = -(-int(sum(lengths)) // microbatch_tokens)
    while True:  # ends at one clip per pack, which always fits
        packs = [Microbatch((), 0) for _ in range(count)]
        heap = [(0, number) for number in range(count)]  # a heap: tokens and number of each pack, the emptiest first
        for index in order:
            tokens, number = heapq.heappop(heap)
            packs[number].append(index)
            packs[number].tokens = tokens + int(lengths[index])
            heapq.heappush(heap, (packs[number].tokens, number))
        if max(pack.tokens for pack in packs) <= microbatch_tokens:
            return packs
        count += 1


def require_clip_fits(tokens: int, microbatch_tokens: int, clip: str) -> None:
    """Raise unless the longest clip fits into a pack; asked before training, not in the middle of it."""
    if tokens > microbatch_tokens:
        found = f"train.microbatch_tokens is {microbatch_tokens:,}, but {clip} has {tokens:,} tokens"
        raise ConfigError("pack-too-small", found, expected=f"at least {tokens:,}")


def assign_to_ranks(packs: Sequence[Microbatch], world_size: int) -> list[list[Microbatch | None]]:
    """For each process its packs, as many for each; None where one runs short. Tokens are spread evenly."""
    if world_size < 1:
        raise ConfigError("config-value", f"{world_size} processes", expected="at least 1")
    hands: list[list[Microbatch | None]] = [[] for _ in range(world_size)]
    tokens = [0] * world_size
    per_hand = -(-len(packs) // world_size)
    for at in sorted(range(len(packs)), key=lambda at: (-packs[at].tokens, at)):
        open_hands = (rank for rank in range(world_size) if len(hands[rank]) < per_hand)
        rank = min(open_hands, key=lambda rank: (tokens[rank], rank))
        hands[rank].append(packs[at])
        tokens[rank] += packs[at].tokens
    return [[*hand, *[None] * (per_hand - len(hand))] for hand in hands]
