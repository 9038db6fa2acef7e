"""From items of the data order to packed batches: text and codes of one clip, the voice of another.

Everything random was decided by the data order; here nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from voxgraft.core.errors import ConfigError, VoxgraftError
from voxgraft.dataset.sampler import Sample, assign_to_ranks, pack_microbatches
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models.base import Clip, EmotionSource, Family
from voxgraft.models.sequence import IGNORED_TARGET, SequencePart, TokenSequence, build_sequence
from voxgraft.models.speech_model import PackedBatch, SpeechModel, compute_hidden_states, pack_batch
from voxgraft.nn.adapter import Gate
from voxgraft.training.cuda_graphs import BatchBucketSet, ClipLengths, pad_to_bucket, pin_batch
from voxgraft.training.distributed import DistributedContext

LogitHead = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KLBatch:
    """The items of a pack that are to stay near the base, packed by themselves, and where their speech stands there."""

    batch: PackedBatch
    places: Tensor  # [M] of the whole pack, in the order of `batch.speech.scored`


class FrozenBase:
    """The base as it was before training: what it would say at each position."""

    def __init__(self, model: SpeechModel, gate: Gate | None = None) -> None:
        """`model` with its gate closed is the base; without a gate it is a copy that nobody trains."""
        self.model, self.gate = model, gate

    @torch.no_grad()
    def hidden(self, near: KLBatch) -> Tensor:
        """What the base's speech head is given at the positions that count. [M, W]"""
        with self.gate.closed() if self.gate else nullcontext():
            return compute_hidden_states(self.model, near.batch)[near.batch.speech.scored]

    def head(self, hidden: Tensor) -> Tensor:
        """[M, W] -> [M, V]"""
        return self.model.speech_logits(hidden)


def kl_sum(head: LogitHead, hidden: Tensor, base_head: LogitHead, base_hidden: Tensor, *, chunk: int | None) -> Tensor:
    """Summed KL(base || tuned) in nats, a float32 number; gradients reach `head` and `hidden` alone. [M, W] twice -> []

    In this direction a speech code that the base would say and the tuned model would not costs the most. With a `chunk`
    the logits of at most that many positions exist at once, as in the cross-entropy.
    """
    if chunk is not None and chunk < 1:
        raise ConfigError("config-value", f"a chunk of {chunk} positions", expected="1 or more, or none at all")
    if chunk is None or len(hidden) <= chunk:
        return _kl_chunk_sum(head, hidden, base_head, base_hidden)
    sums = [
        checkpoint(_kl_chunk_sum, head, part, base_head, base, use_reentrant=False, preserve_rng_state=False)
        for part, base in zip(torch.split(hidden, chunk), torch.split(base_hidden, chunk), strict=True)
    ]
    return torch.stack(sums).sum()


def _kl_chunk_sum(head: LogitHead, hidden: Tensor, base_head: LogitHead, base_hidden: Tensor) -> Tensor:
    with torch.no_grad():
        base = base_head(base_hidden).float().log_softmax(-1)  # [M, V]
    tuned = head(hidden).float().log_softmax(-1)  # [M, V]
    return F.kl_div(tuned, base, reduction="sum", log_target=True)


@dataclass(frozen=True)
class BatchBuilder:
    """The sets of a run as what a model learns from."""

    family: Family
    model: SpeechModel
    sets: Sequence[ClipDataset]
    emotion_from: EmotionSource = "target"
    near: frozenset[int] = frozenset()
    """Sets (replay) on whose items the model is to stay near the base."""
    unscored: frozenset[int] = frozenset()
    """Those of them that no cross-entropy is taken of: what the base said itself teaches it nothing but its habits."""

    def batch(
        self,
        items: Sequence[Sample],
        texts: Sequence[Sample] = (),
        voices: Sequence[Sample] = (),
        device: str | None = None,
    ) -> PackedBatch:
        """A pack of items. `texts` and `voices` may name others whose text, or whose prompt, is used instead.

        On the model's device unless another is named.
        """
        texts, voices = texts or items, voices or items
        layouts = [self._layout(item, text) for item, text in zip(items, texts, strict=True)]
        layouts = [
            _drop_targets(layout) if item.set in self.unscored else layout
            for item, layout in zip(items, layouts, strict=True)
        ]
        return self._pack_items(items, layouts, voices, device)

    def kl_batch(self, items: Sequence[Sample]) -> KLBatch | None:
        """The items of a pack that are to stay near the base; None where there is none."""
        chosen = [item for item in items if item.set in self.near]
        if not chosen:
            return None
        batch = self._pack_items(chosen, [self._layout(item, item) for item in chosen], chosen)
        ends = np.cumsum([self.num_positions(item) for item in items])
        # The speech is the end of an item, and its last position is asked nothing.
        places = [
            np.arange(end - len(self.sets[item.set].codes(item.clip)) - 2, end - 1)
            for item, end in zip(items, ends, strict=True)
            if item.set in self.near
        ]
        return KLBatch(batch, torch.from_numpy(np.concatenate(places)).to(self.model.device))

    def num_scored_positions(self, items: Sequence[Sample]) -> tuple[int, int]:
        """Text and speech positions that items are asked about."""
        asked = [item for item in items if item.set not in self.unscored]
        text = sum(int(self.sets[item.set].num_text[item.clip]) + 1 for item in asked if not item.silent)
        return text, self._num_speech_positions(asked)

    def num_kl_positions(self, items: Sequence[Sample]) -> int:
        """Speech positions at which the items are to stay near the base."""
        return self._num_speech_positions([item for item in items if item.set in self.near])

    def num_positions(self, item: Sample) -> int:
        """Positions that an item takes in a pack."""
        clips = self.sets[item.set]
        frame = self.model.frame
        return frame.num_conditioning + int(clips.num_text[item.clip]) + 2 + int(clips.num_codes[item.clip]) + 2

    def cuda_graph_buckets(self, microbatch_tokens: int) -> BatchBucketSet:
        """The sizes that packs of these sets are filled up to."""
        slots = self.model.frame.num_conditioning
        lengths = [
            ClipLengths(np.asarray(clips.num_text) + 2, np.asarray(clips.num_codes) + 2, slots) for clips in self.sets
        ]
        return BatchBucketSet(lengths, microbatch_tokens)

    def name(self, item: Sample) -> str:
        """The clip's id, as the user knows it."""
        return self.sets[item.set].infos[item.clip].id

    def describe_item(self, item: Sample) -> str:
        """The clip's id and, since that may be what is wrong, the id of the one that lends its voice."""
        where, clip = item.prompt
        return f"{self.name(item)} with the voice of {self.sets[where].infos[clip].id}"

    def _pack_items(
        self,
        items: Sequence[Sample],
        layouts: Sequence[TokenSequence],
        voices: Sequence[Sample],
        device: str | None = None,
    ) -> PackedBatch:
        """A pack; what cannot be packed is looked for one by one, so that the error names it."""
        conditions = [self._condition(item, voice) for item, voice in zip(items, voices, strict=True)]
        silent = [item.silent for item in items]
        try:
            return pack_batch(self.model, layouts, conditions, silent=silent if any(silent) else (), device=device)
        except VoxgraftError:
            for voice, layout, condition in zip(voices, layouts, conditions, strict=True):
                self._require_packable(voice, layout, condition)
            raise

    def _require_packable(self, item: Sample, layout: TokenSequence, condition: Any) -> None:
        try:
            pack_batch(self.model, [layout], [condition])
        except VoxgraftError as error:
            where = f"{self.sets[item.set].name}, {self.describe_item(item)}"
            raise type(error).of(replace(error.finding, where=where)) from None

    def _num_speech_positions(self, items: Sequence[Sample]) -> int:
        return sum(int(self.sets[item.set].num_codes[item.clip]) + 1 for item in items)

    def _layout(self, item: Sample, text: Sample) -> TokenSequence:
        return build_sequence(
            self.model.frame, self.sets[text.set].text_ids(text.clip), self.sets[item.set].codes(item.clip)
        )

    def _condition(self, item: Sample, voice: Sample) -> Any:
        where, clip = voice.prompt
        prompt = self._clip(where, clip)
        return self.family.condition(prompt, self._clip(item.set, item.clip), emotion_from=self.emotion_from)

    def _clip(self, where: int, clip: int) -> Clip:
        return Clip(self.sets[where].codes(clip), self.sets[where].voice(clip))


def _drop_targets(layout: TokenSequence) -> TokenSequence:
    """The same sequence, of which no loss asks anything."""

    def silent(part: SequencePart) -> SequencePart:
        return replace(part, targets=np.full_like(part.targets, IGNORED_TARGET))

    return replace(layout, text=silent(layout.text), speech=silent(layout.speech))


@dataclass(frozen=True, slots=True)
class RankBatches:
    """One process's part of a step: batches, each with what shall stay near the base, and whether it counts.

    A batch that only keeps company counts nothing.
    """

    batches: tuple[tuple[PackedBatch, KLBatch | None, bool], ...]
    counts: tuple[int, int, int]
    """Positions that each loss of the whole step is a mean over; 1 where there is none."""
    num_positions: int
    """Of the whole step."""


class BatchPrefetcher:
    """Makes shares, on a device of its own speed one step ahead."""

    def __init__(
        self, examples: BatchBuilder, microbatch_tokens: int, group: DistributedContext, *, fill: bool = False
    ) -> None:
        """`fill` is for packs that are replayed: they are filled up, and stay on the processor."""
        self.batch_builder, self.microbatch_tokens, self.group = examples, microbatch_tokens, group
        self._buckets = examples.cuda_graph_buckets(microbatch_tokens) if fill else None
        self._worker = ThreadPoolExecutor(1, "ahead") if examples.model.device.type == "cuda" else None
        self._next: Callable[[], Sequence[Sample]] | None = None
        self._pending: Future[tuple[Sequence[Sample], RankBatches]] | None = None

    def set_next_items(self, items: Callable[[], Sequence[Sample]]) -> None:
        """Say which step comes next."""
        self._next = items

    def begin(self) -> None:
        """Make it, beside what the device was just given to do."""
        if self._worker is not None and self._next is not None:
            self._pending = self._worker.submit(self._build_ahead, self._next)
        self._next = None

    def share(self, items: Sequence[Sample]) -> RankBatches:
        """This process's batches of a step."""
        coming, self._pending = self._pending, None
        if coming is not None:
            expected, share = coming.result()
            if tuple(expected) == tuple(items):
                return share
        return self._share(items)

    def _build_ahead(self, chosen: Callable[[], Sequence[Sample]]) -> tuple[Sequence[Sample], RankBatches]:
        items = chosen()
        return items, self._share(items)

    def _share(self, items: Sequence[Sample]) -> RankBatches:
        """A process that runs short computes some pack all the same, for nothing: all must come to the exchange."""
        lengths = [self.batch_builder.num_positions(item) for item in items]
        packs = pack_microbatches(lengths, self.microbatch_tokens)
        mine = assign_to_ranks(packs, self.group.world_size)[self.group.rank]
        batches = tuple(self._made([items[at] for at in pack or packs[0]], pack is not None) for pack in mine)
        text, speech = self.batch_builder.num_scored_positions(items)
        counts = max(1, text), max(1, speech), max(1, self.batch_builder.num_kl_positions(items))
        return RankBatches(batches, counts, sum(lengths))

    def _made(self, items: Sequence[Sample], counts: bool) -> tuple[PackedBatch, KLBatch | None, bool]:
        return self._batch(items), self.batch_builder.kl_batch(items), counts

    def largest(self, items: Sequence[Sample]) -> PackedBatch:
        """A pack that takes as much memory as any will."""
        return self._batch(items, self.microbatch_tokens)

    def _batch(self, items: Sequence[Sample], at_least: int = 0) -> PackedBatch:
        if self._buckets is None:
            return self.batch_builder.batch(items)
        batch = self.batch_builder.batch(items, device="cpu")
        mould = self._buckets.of(batch, at_least)
        return batch.to(self.batch_builder.model.device) if mould is None else pin_batch(pad_to_bucket(batch, mould))
