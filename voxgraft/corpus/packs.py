"""From the clips of a step to packs, and from packs to processes. Pure functions of lengths, the same on every process.

Knows nothing of what the items are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from voxgraft.errors import ConfigError

__all__ = ["Microbatch", "assign_to_ranks", "pack_microbatches", "require_clip_fits"]


class Microbatch(list[int]):
    """Places of the items that go through the model together."""

    def __init__(self, places: Iterable[int], tokens: int) -> None:
        super().__init__(places)
        self.tokens = tokens
        """Positions that they fill."""


def pack_microbatches(lengths: Sequence[int], microbatch_tokens: int) -> list[Microbatch]:
    """Every place in exactly one pack of at most `pack_tokens`; as few packs as can be, all about equally full.

    The longest first, each where there is most room: a last pack with the little that is left over would cost a device
    nearly as much as a full one.
    """
    if len(lengths) == 0:
        return []
    longest = int(np.argmax(lengths))
    require_clip_fits(int(lengths[longest]), microbatch_tokens, f"item {longest} of the step")
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    fewest = -(-int(sum(lengths)) // microbatch_tokens)
    spread = (_fill_microbatches(order, lengths, count) for count in range(fewest, len(lengths) + 1))
    return next(packs for packs in spread if max(pack.tokens for pack in packs) <= microbatch_tokens)


def _fill_microbatches(order: Sequence[int], lengths: Sequence[int], count: int) -> list[Microbatch]:
    packs = [Microbatch((), 0) for _ in range(count)]
    room = [(0, at) for at in range(count)]
    for place in order:
        tokens, at = heapq.heappop(room)
        packs[at].append(place)
        packs[at].tokens = tokens + int(lengths[place])
        heapq.heappush(room, (packs[at].tokens, at))
    return packs


def require_clip_fits(tokens: int, microbatch_tokens: int, clip: str) -> None:
    """Raise unless the longest clip fits into a pack; asked before training, not in the middle of it."""
    if tokens > microbatch_tokens:
        found = f"packs of {microbatch_tokens:,} positions, and {clip} has {tokens:,}"
        raise ConfigError("pack-too-small", found, expected=f"packs of at least {tokens:,}")


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
