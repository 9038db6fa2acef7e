"""From the clips of a step to packs, and from packs to processes. Pure functions of lengths, the same on every process.

Knows nothing of what the items are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from voxgraft.errors import ConfigError

__all__ = ["Pack", "deal", "packs_of", "require_fits"]


class Pack(list[int]):
    """Places of the items that go through the model together."""

    def __init__(self, places: Iterable[int], tokens: int) -> None:
        super().__init__(places)
        self.tokens = tokens
        """Positions that they fill."""


def packs_of(lengths: Sequence[int], pack_tokens: int) -> list[Pack]:
    """Every place in exactly one pack of at most `pack_tokens`: the longest first, each where it fits first."""
    if len(lengths) == 0:
        return []
    longest = int(np.argmax(lengths))
    require_fits(int(lengths[longest]), pack_tokens, f"item {longest} of the step")
    packs: list[Pack] = []
    free = np.zeros(len(lengths), dtype=np.int64)
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        length = int(lengths[place])
        fitting = np.flatnonzero(free[: len(packs)] >= length)
        if len(fitting):
            at = int(fitting[0])
        else:
            at = len(packs)
            packs.append(Pack((), 0))
            free[at] = pack_tokens
        packs[at].append(place)
        packs[at].tokens += length
        free[at] -= length
    return packs


def require_fits(tokens: int, pack_tokens: int, clip: str) -> None:
    """Raise unless the longest clip fits into a pack; asked before training, not in the middle of it."""
    if tokens > pack_tokens:
        found = f"packs of {pack_tokens:,} positions, and {clip} has {tokens:,}"
        raise ConfigError("pack-too-small", found, expected=f"packs of at least {tokens:,}")


def deal(packs: Sequence[Pack], world_size: int) -> list[list[Pack | None]]:
    """For each process its packs, as many for each; None where one runs short. Tokens are spread evenly."""
    if world_size < 1:
        raise ConfigError("config-value", f"{world_size} processes", expected="at least 1")
    hands: list[list[Pack | None]] = [[] for _ in range(world_size)]
    tokens = [0] * world_size
    per_hand = -(-len(packs) // world_size)
    for at in sorted(range(len(packs)), key=lambda at: (-packs[at].tokens, at)):
        open_hands = (rank for rank in range(world_size) if len(hands[rank]) < per_hand)
        rank = min(open_hands, key=lambda rank: (tokens[rank], rank))
        hands[rank].append(packs[at])
        tokens[rank] += packs[at].tokens
    return [[*hand, *[None] * (per_hand - len(hand))] for hand in hands]
