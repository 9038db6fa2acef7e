"""Batches of a step made beside the step before it, so that a fast device does not wait for the processor.

What is made does not depend on when: the data order and the batches are functions of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from voxgraft.corpus.packs import assign_to_ranks, pack_microbatches
from voxgraft.corpus.stream import Sample
from voxgraft.families.model import PackedBatch
from voxgraft.families.moulds import pad_to_bucket, pin_batch
from voxgraft.training.examples import BatchBuilder
from voxgraft.training.nearness import KLBatch
from voxgraft.training.processes import DistributedContext

__all__ = ["BatchPrefetcher", "RankBatches"]


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
        self, examples: BatchBuilder, pack_tokens: int, group: DistributedContext, *, fill: bool = False
    ) -> None:
        """`fill` is for packs that are replayed: they are filled up, and stay on the processor."""
        self.batch_builder, self.pack_tokens, self.group = examples, pack_tokens, group
        self._buckets = examples.cuda_graph_buckets(pack_tokens) if fill else None
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
        packs = pack_microbatches(lengths, self.pack_tokens)
        mine = assign_to_ranks(packs, self.group.world_size)[self.group.rank]
        batches = tuple(self._made([items[at] for at in pack or packs[0]], pack is not None) for pack in mine)
        text, speech = self.batch_builder.num_scored_positions(items)
        counts = max(1, text), max(1, speech), max(1, self.batch_builder.num_kl_positions(items))
        return RankBatches(batches, counts, sum(lengths))

    def _made(self, items: Sequence[Sample], counts: bool) -> tuple[PackedBatch, KLBatch | None, bool]:
        return self._batch(items), self.batch_builder.kl_batch(items), counts

    def largest(self, items: Sequence[Sample]) -> PackedBatch:
        """A pack that takes as much memory as any will."""
        return self._batch(items, self.pack_tokens)

    def _batch(self, items: Sequence[Sample], at_least: int = 0) -> PackedBatch:
        if self._buckets is None:
            return self.batch_builder.batch(items)
        batch = self.batch_builder.batch(items, device="cpu")
        mould = self._buckets.of(batch, at_least)
        return batch.to(self.batch_builder.model.device) if mould is None else pin_batch(pad_to_bucket(batch, mould))
