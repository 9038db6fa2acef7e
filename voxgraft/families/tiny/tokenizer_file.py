"""The tokenizer file of a tiny base: letters, the commonest pairs of pieces, special pieces and language tags.

Plain Python on purpose: the base is trained on machines that have no tokenizer library. Reading the file and spelling
with it is `voxgraft.tokenizers`' work.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from voxgraft.errors import ConfigError
from voxgraft.families.tiny.family import Tiny
from voxgraft.families.tiny.text import SIMPLE_PUNCTUATION, SPACE_TOKEN

MergePair = tuple[str, str]
UNKNOWN_TOKEN = "[UNK]"
WORD_PATTERN = re.compile(r"\w+|[^\w\s]+")
"""How text between special pieces is cut; pieces never reach across."""


def build_tokenizer_json(texts: Iterable[str], num_pieces: int, min_count: int = 1) -> dict[str, Any]:
    """A tokenizer of that many pieces for prepared texts (without tags), as its JSON file holds it.

    Characters that occur less than `min_count` times are left out, and so unknown to the base.
    """
    words = Counter(word for text in texts for word in WORD_PATTERN.findall(text.replace(SPACE_TOKEN, " ")))
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update({character: count * word.count(character) for character in set(word)})
    characters = sorted({c for c, count in counts.items() if count >= min_count} | set(SIMPLE_PUNCTUATION))
    tags = [f"[{language}]" for language in Tiny.languages]
    fixed = len(Tiny.special_ids) + len(tags) + len(characters)
    if num_pieces < fixed:
        expected = f"{fixed} or more, for the characters and tags alone"
        raise ConfigError("config-value", f"a tokenizer of {num_pieces} pieces was asked for", expected=expected)
    merges = learn_merges({word: n for word, n in words.items() if set(word) <= set(characters)}, num_pieces - fixed)
    filled = [f"[PLACEHOLDER{number}]" for number in range(num_pieces - fixed - len(merges))]
    special = [*sorted(Tiny.special_ids, key=Tiny.special_ids.__getitem__), *tags]
    pieces = [*special, *characters, *("".join(merge) for merge in merges), *filled]
    return _format_tokenizer_json({piece: at for at, piece in enumerate(pieces)}, [*special, *filled], merges)


def learn_merges(words: Mapping[str, int], num_merges: int) -> list[MergePair]:
    """The commonest pair of neighbours becomes a piece, again and again; of equally common ones the first by name."""
    spelled = {word: list(word) for word in words}
    counts: Counter[MergePair] = Counter()
    holders: defaultdict[MergePair, set[str]] = defaultdict(set)

    def count(word: str, sign: int) -> None:
        for pair in pairwise(spelled[word]):
            counts[pair] += sign * words[word]
            holders[pair].add(word)

    for word in words:
        count(word, 1)
    merges: list[MergePair] = []
    while len(merges) < num_merges:
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=("", ""))
        if counts[best] < 1:
            break
        merges.append(best)
        for word in tuple(holders[best]):
            count(word, -1)
            merge_pair_in_place(spelled[word], best)
            count(word, 1)
    return merges


def merge_pair_in_place(pieces: list[str], pair: MergePair) -> None:
    """Make one piece of every such pair, from the left."""
    at = 0
    while at < len(pieces) - 1:
        if pieces[at] == pair[0] and pieces[at + 1] == pair[1]:
            pieces[at : at + 2] = ["".join(pair)]
        at += 1


def _format_tokenizer_json(vocabulary: dict[str, int], added: list[str], merges: list[MergePair]) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[piece], "content": piece, **flags, "special": True} for piece in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN_TOKEN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": vocabulary,
            "merges": [" ".join(merge) for merge in merges],
        },
    }
