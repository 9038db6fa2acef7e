"""Learning merges by continuing from a tokenizer's own spelling.

The units come spelled in the base's pieces and the new characters. Only merges whose result holds a new character
are taken, so base text can never meet one; and since every merge joins two neighbours that really stood side by
side in that spelling, every learnt piece can really occur.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from voxgraft import progress
from voxgraft.text.characters import SHARED_SCRIPTS, is_letter, script_of
from voxgraft.tokenizers.base import WORD_START, NewPiece

_JOINERS = frozenset("\u200c\u200d")
"""Zero-width joiners stand inside words in several scripts."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which merges may be learnt, and how many."""

    new_characters: frozenset[str]
    num_pieces: int
    min_count: int
    max_characters: int

    def allow(self, text: str) -> bool:
        """A piece must hold a new character and be part of one word in one script."""
        if len(text) > self.max_characters or not any(character in self.new_characters for character in text):
            return False
        word = text.removeprefix(WORD_START)
        if not all(is_letter(character) or character in _JOINERS for character in word):
            return False
        return len({script_of(character) for character in word} - SHARED_SCRIPTS) <= 1


def learn_merges(units: Mapping[tuple[str, ...], int], rules: MergeRules) -> list[NewPiece]:
    """The most frequent allowed merges, in the order in which they are to be applied. Ties go by code point."""
    learner = _Learner(units, rules)
    learnt: list[NewPiece] = []
    with progress.task("learning pieces", rules.num_pieces) as advance:
        while len(learnt) < rules.num_pieces:
            best = learner.best()
            if best is None:
                break
            learnt.append(best)
            learner.apply(best.text)
            advance(1)
    return learnt


class _Learner:
    """Units, and for every mergeable neighbour pair its count and the units that hold it, kept up to date."""

    def __init__(self, units: Mapping[tuple[str, ...], int], rules: MergeRules) -> None:
        self._rules = rules
        self._words = [list(unit) for unit in units]
        self._counts = list(units.values())
        self._pairs: Counter[str] = Counter()
        self._holders: defaultdict[str, set[int]] = defaultdict(set)
        self._parts: dict[str, tuple[str, str]] = {}
        self._allowed: dict[str, bool] = {}
        for at in range(len(self._words)):
            self._count(at, 1)
        self._heap = [(-count, text) for text, count in self._pairs.items()]
        heapq.heapify(self._heap)

    def best(self) -> NewPiece | None:
        """The most frequent pair, or None when no pair is frequent enough."""
        while self._heap:
            negative, text = heapq.heappop(self._heap)
            count = self._pairs.get(text, 0)
            if count == -negative and count >= self._rules.min_count:
                return NewPiece(text, self._parts[text], count)
        return None

    def apply(self, text: str) -> None:
        """Join every pair that spells `text`, leftmost first, as the tokenizers do."""
        changed: set[str] = set()
        for at in sorted(self._holders.pop(text, ())):
            changed |= self._count(at, -1)
            self._words[at] = _joined(self._words[at], text)
            changed |= self._count(at, 1)
        self._pairs.pop(text, None)
        for pair in changed:
            if (count := self._pairs.get(pair, 0)) > 0:
                heapq.heappush(self._heap, (-count, pair))

    def _count(self, at: int, sign: int) -> set[str]:
        touched: set[str] = set()
        for left, right in pairwise(self._words[at]):
            text = left + right
            allowed = self._allowed.get(text)
            if allowed is None:
                allowed = self._allowed[text] = self._rules.allow(text)
            if allowed:
                self._pairs[text] += sign * self._counts[at]
                self._holders[text].add(at)
                self._parts.setdefault(text, (left, right))
                touched.add(text)
        return touched


def _joined(word: list[str], text: str) -> list[str]:
    result: list[str] = []
    at = 0
    while at < len(word):
        if at + 1 < len(word) and word[at] + word[at + 1] == text:
            result.append(text)
            at += 2
        else:
            result.append(word[at])
            at += 1
    return result
