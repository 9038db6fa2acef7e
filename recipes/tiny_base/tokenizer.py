"""Encode text with the tiny base's tokenizer without a tokenizer library, as on the training machine.

The ids equal those of the library for the recipe's languages. The family's `tokenizer_file` trains the tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tools.random_bases import UNKNOWN_TOKEN
from tools.random_bases.tiny import WORD_PATTERN, merge_pair_in_place
from voxgraft.models.tiny.family import TinyTextFrontend

__all__ = ["Speller"]

SPELT_OUT = 0.15
"""Share of words that are encoded letter by letter: rare words and grafts need trained single letters."""


class Speller:
    """A tokenizer file with its text front end."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._front = TinyTextFrontend()
        self._ids: dict[str, int] = document["model"]["vocab"]
        merges = (tuple(merge.split(" ")) for merge in document["model"]["merges"])
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        whole = [token["content"] for token in document["added_tokens"]]
        self._whole = re.compile("(" + "|".join(map(re.escape, whole)) + ")")
        self._known: dict[str, list[int]] = {}

    def ids(self, text: str, language: str, rng: random.Random | None = None) -> list[int]:
        """Ids of a text, the language's tag first. With `rng`, some words are encoded letter by letter."""
        found: list[int] = []
        prepared = self._front.prepare(self._front.clean(text), language)
        for part in self._whole.split(prepared):
            if self._whole.fullmatch(part):
                found.append(self._ids[part])
            else:
                for word in WORD_PATTERN.findall(part):
                    spelt_out = rng is not None and rng.random() < SPELT_OUT
                    found += [self._id(letter) for letter in word] if spelt_out else self._word(word)
        return found

    def _word(self, word: str) -> list[int]:
        if word not in self._known:
            pieces = list(word)
            while len(pieces) > 1:
                pairs = [pair for pair in pairwise(pieces) if pair in self._ranks]
                if not pairs:
                    break
                merge_pair_in_place(pieces, min(pairs, key=self._ranks.__getitem__))
            self._known[word] = [self._id(piece) for piece in pieces]
        return self._known[word]

    def _id(self, piece: str) -> int:
        return self._ids.get(piece, self._ids[UNKNOWN_TOKEN])
