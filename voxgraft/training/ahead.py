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


class Ahead:
    """Makes shares, on a device of its own speed one step ahead."""

    def __init__(self, examples: Examples, pack_tokens: int, group: Processes) -> None:
        self.examples, self.pack_tokens, self.group = examples, pack_tokens, group
        self._worker = ThreadPoolExecutor(1, "ahead") if examples.model.device.type == "cuda" else None
        self._coming: dict[tuple[Item, ...], Future[Share]] = {}

    def expect(self, items: Callable[[], Sequence[Item]]) -> None:
        """Begin with a step that comes next."""
        if self._worker is not None:
            chosen = tuple(items())
            self._coming[chosen] = self._worker.submit(self._share, chosen)

    def share(self, items: Sequence[Item]) -> Share:
        """This process's batches of a step."""
        expected = self._coming.pop(tuple(items), None)
        return self._share(items) if expected is None else expected.result()

    def _share(self, items: Sequence[Item]) -> Share:
        """A process that runs short computes some pack all the same, for nothing: all must come to the exchange."""
        packs = packs_of([self.examples.num_positions(item) for item in items], self.pack_tokens)
        mine = deal(packs, self.group.world_size)[self.group.rank]
        return Share(tuple(self._made([items[at] for at in pack or packs[0]], pack is not None) for pack in mine))

    def _made(self, items: Sequence[Item], counts: bool) -> tuple[PackedBatch, NearBatch | None, bool]:
        return self.examples.batch(items), self.examples.near_batch(items), counts
