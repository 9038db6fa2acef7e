"""Batches of a step made beside the step before it, so that a fast device does not wait for the processor.

What is made does not depend on when: the data order and the batches are functions of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from voxgraft.corpus.packs import deal, packs_of
from voxgraft.corpus.stream import Item
from voxgraft.families.model import PackedBatch
from voxgraft.families.moulds import filled, pinned
from voxgraft.training.examples import Examples
from voxgraft.training.nearness import NearBatch
from voxgraft.training.processes import Processes

__all__ = ["Ahead", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part of a step: batches, each with what shall stay near the base, and whether it counts.

    A batch that only keeps company counts nothing.
    """

    batches: tuple[tuple[PackedBatch, NearBatch | None, bool], ...]
    counts: tuple[int, int, int]
    """Positions that each loss of the whole step is a mean over; 1 where there is none."""
    num_positions: int
    """Of the whole step."""


class Ahead:
    """Makes shares, on a device of its own speed one step ahead."""

    def __init__(self, examples: Examples, pack_tokens: int, group: Processes, *, fill: bool = False) -> None:
        """`fill` is for packs that are replayed: they are filled up, and stay on the processor."""
        self.examples, self.pack_tokens, self.group = examples, pack_tokens, group
        self._moulds = examples.moulds(pack_tokens) if fill else None
        self._worker = ThreadPoolExecutor(1, "ahead") if examples.model.device.type == "cuda" else None
        self._next: Callable[[], Sequence[Item]] | None = None
        self._coming: Future[tuple[Sequence[Item], Share]] | None = None

    def expect(self, items: Callable[[], Sequence[Item]]) -> None:
        """Say which step comes next."""
        self._next = items

    def begin(self) -> None:
        """Make it, beside what the device was just given to do."""
        if self._worker is not None and self._next is not None:
            self._coming = self._worker.submit(self._made_of, self._next)
        self._next = None

    def share(self, items: Sequence[Item]) -> Share:
        """This process's batches of a step."""
        coming, self._coming = self._coming, None
        if coming is not None:
            expected, share = coming.result()
            if tuple(expected) == tuple(items):
                return share
        return self._share(items)

    def _made_of(self, chosen: Callable[[], Sequence[Item]]) -> tuple[Sequence[Item], Share]:
        items = chosen()
        return items, self._share(items)

    def _share(self, items: Sequence[Item]) -> Share:
        """A process that runs short computes some pack all the same, for nothing: all must come to the exchange."""
        lengths = [self.examples.num_positions(item) for item in items]
        packs = packs_of(lengths, self.pack_tokens)
        mine = deal(packs, self.group.world_size)[self.group.rank]
        batches = tuple(self._made([items[at] for at in pack or packs[0]], pack is not None) for pack in mine)
        text, speech = self.examples.num_scored(items)
        counts = max(1, text), max(1, speech), max(1, self.examples.num_near(items))
        return Share(batches, counts, sum(lengths))

    def _made(self, items: Sequence[Item], counts: bool) -> tuple[PackedBatch, NearBatch | None, bool]:
        return self._batch(items), self.examples.near_batch(items), counts

    def largest(self, items: Sequence[Item]) -> PackedBatch:
        """A pack that takes as much memory as any will."""
        return self._batch(items, self.pack_tokens)

    def _batch(self, items: Sequence[Item], at_least: int = 0) -> PackedBatch:
        if self._moulds is None:
            return self.examples.batch(items)
        batch = self.examples.batch(items, device="cpu")
        mould = self._moulds.of(batch, at_least)
        return batch.to(self.examples.model.device) if mould is None else pinned(filled(batch, mould))
