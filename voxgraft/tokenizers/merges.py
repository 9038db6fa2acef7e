"""Learning merges by continuing from a tokenizer's own spelling.

The units come spelled in the base's pieces and the new characters. Only merges whose result holds a new character
are taken, so base text can never meet one; and since every merge joins two neighbours that really stood side by
side in that spelling, every learnt piece can really occur.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from voxgraft import progress
from voxgraft.text.characters import JOINERS, SHARED_SCRIPTS, is_letter, script_of
from voxgraft.tokenizers.base import WORD_START, NewPiece

_UNIT_BOUNDARY = -1
"""Stands between two units, so that no pair reaches across."""
_MERGED_AWAY = -2
"""Stands where the right half of a joined pair was."""
_PAIR_BASE = 1 << 32
"""A pair of piece numbers is kept as one number: left * this + right."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which merges may be learnt, and how many."""

    new_characters: frozenset[str]
    num_pieces: int
    min_count: int
    max_characters: int

    def allow(self, text: str) -> bool:
        """A piece must hold a new character and be part of one word in one script."""
        if len(text) > self.max_characters or self.new_characters.isdisjoint(text):
            return False
        word = text.removeprefix(WORD_START)
        if not all(is_letter(character) or character in JOINERS for character in word):
            return False
        return len({script_of(character) for character in word} - SHARED_SCRIPTS) <= 1


def learn_merges(units: Mapping[tuple[str, ...], int], rules: MergeRules) -> list[NewPiece]:
    """The most frequent allowed merges, in the order in which they are to be applied. Ties go by code point."""
    learnt: dict[str, NewPiece] = {}
    if not rules.num_pieces or not rules.new_characters:
        return []
    learner = _MergeLearner(units, rules)
    with progress.progress_task("learning pieces", rules.num_pieces) as advance:
        while len(learnt) < rules.num_pieces and (best := learner.best()) is not None:
            pair, piece = best
            learner.apply(pair, piece.text)
            # Where one text was first spelled in two ways (unigram), both ways lead to one piece.
            if piece.text not in learnt:
                learnt[piece.text] = piece
                advance(1)
    return list(learnt.values())


class _MergeLearner:
    """All units in one row of piece numbers, and for every pair that may merge its count and its places.

    Joining a pair touches its places and their neighbours only, so that long units (scripts without spaces) cost no
    more than short ones. Places are never removed, only looked at again: a place counts while the pair stands there.
    """

    def __init__(self, units: Mapping[tuple[str, ...], int], rules: MergeRules) -> None:
        self._rules = rules
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._allowed: dict[int, bool] = {}
        self._counts: Counter[int] = Counter()
        self._places: dict[int, array[int]] = {}
        self._tokens = array("i", [_UNIT_BOUNDARY])
        self._weights = array("i", [0])
        for unit, count in units.items():
            self._tokens.extend([self._number(piece) for piece in unit])
            self._tokens.append(_UNIT_BOUNDARY)
            self._weights.extend([count] * (len(unit) + 1))
        self._before = array("i", range(-1, len(self._tokens) - 1))
        self._after = array("i", range(1, len(self._tokens) + 1))
        for at in range(1, len(self._tokens) - 1):
            self._add(at, at + 1)
        self._heap = [(-count, self._text(pair), pair) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def best(self) -> tuple[int, NewPiece] | None:
        """The most frequent pair, or None when no pair is frequent enough."""
        while self._heap:
            negative, text, pair = heapq.heappop(self._heap)
            count = self._counts.get(pair, 0)
            if count == -negative and count >= self._rules.min_count:
                left, right = divmod(pair, _PAIR_BASE)
                return pair, NewPiece(text, (self._texts[left], self._texts[right]), count)
        return None

    def apply(self, pair: int, text: str) -> None:
        """Join every such pair, leftmost first, as the tokenizers do."""
        joined = self._number(text)
        left, right = divmod(pair, _PAIR_BASE)
        tokens, changed = self._tokens, {pair}
        for at in sorted(set(self._places.pop(pair))):
            other = self._after[at]
            if tokens[at] != left or tokens[other] != right:
                continue
            before, behind = self._before[at], self._after[other]
            changed |= {self._remove(before, at), self._remove(other, behind)}
            tokens[at], tokens[other] = joined, _MERGED_AWAY
            self._after[at] = behind
            self._before[behind] = at
            changed |= {self._add(before, at), self._add(at, behind)}
        self._counts.pop(pair, None)
        for touched in changed - {pair, _UNIT_BOUNDARY}:
            if (count := self._counts[touched]) > 0:
                heapq.heappush(self._heap, (-count, self._text(touched), touched))

    def _add(self, at: int, other: int) -> int:
        """Count the pair at two neighbouring places; gives the pair, or _END where none may merge."""
        pair = self._pair(at, other)
        if pair != _UNIT_BOUNDARY:
            self._counts[pair] += self._weights[at]
            if pair not in self._places:
                self._places[pair] = array("i")
            self._places[pair].append(at)
        return pair

    def _remove(self, at: int, other: int) -> int:
        pair = self._pair(at, other)
        if pair != _UNIT_BOUNDARY:
            self._counts[pair] -= self._weights[at]
        return pair

    def _pair(self, at: int, other: int) -> int:
        left, right = self._tokens[at], self._tokens[other]
        if left < 0 or right < 0:
            return _UNIT_BOUNDARY
        pair = left * _PAIR_BASE + right
        allowed = self._allowed.get(pair)
        if allowed is None:
            allowed = self._allowed[pair] = self._rules.allow(self._text(pair))
        return pair if allowed else _UNIT_BOUNDARY

    def _text(self, pair: int) -> str:
        left, right = divmod(pair, _PAIR_BASE)
        return self._texts[left] + self._texts[right]

    def _number(self, piece: str) -> int:
        number = self._numbers.get(piece)
        if number is None:
            number = self._numbers[piece] = len(self._texts)
            self._texts.append(piece)
        return number
