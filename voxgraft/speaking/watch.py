"""Who has to stop: speech past its limit, and speech that goes round in a loop of codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["StopCause", "StoppingCriteria", "find_loop_cut"]

StopCause = Literal["ended", "limit", "loop"]
MIN_LOOP_SECONDS = 2.0
"""Shorter repetitions are speech: a long vowel, a silence, a stutter."""
MAX_LOOP_PERIOD_SECONDS = 2.0
MIN_LOOP_ROUNDS = 3


def find_loop_cut(codes: Sequence[int], code_hz: float) -> int | None:
    """Where codes that end in a loop are cut: behind its first round. None if they end in none."""
    least = round(MIN_LOOP_SECONDS * code_hz)
    for period in range(1, round(MAX_LOOP_PERIOD_SECONDS * code_hz) + 1):
        needed = max(least, MIN_LOOP_ROUNDS * period)
        if len(codes) < needed:
            return None
        if codes[-1] == codes[-1 - period] and list(codes[-needed + period :]) == list(codes[-needed:-period]):
            start = len(codes) - needed
            while start > 0 and codes[start - 1] == codes[start - 1 + period]:
                start -= 1
            return start + period
    return None


class StoppingCriteria:
    """Looks at N utterances on their way, and remembers whom it stopped. Of one call of `Speaker.speak`."""

    def __init__(self, limits: Sequence[int], stop_id: int, code_hz: float) -> None:
        self.limits, self.stop_id, self.code_hz = tuple(limits), stop_id, code_hz
        self.stopped: dict[int, StopCause] = {}
        self._ended: set[int] = set()

    def __call__(self, codes: Tensor) -> Tensor:
        """[N, codes so far] -> [N] who stops now"""
        for row, own in enumerate(codes.tolist()):
            if row in self.stopped or row in self._ended:
                continue
            if self.stop_id in own:
                self._ended.add(row)
            elif find_loop_cut(own, self.code_hz) is not None:
                self.stopped[row] = "loop"
            elif len(own) >= self.limits[row]:
                self.stopped[row] = "limit"
        return torch.tensor([row in self.stopped for row in range(len(codes))], device=codes.device)

    def outcome(self, row: int, codes: Sequence[int], *, by_itself: bool) -> tuple[list[int], StopCause]:
        """What is kept of an utterance, and how it came to its end."""
        cut = find_loop_cut(codes, self.code_hz)
        if cut is not None:
            return list(codes[:cut]), "loop"
        limit = self.limits[row]
        if row in self.stopped or len(codes) > limit or not by_itself:
            return list(codes[:limit]), "limit"
        return list(codes), "ended"
