"""Tokenizer files of every kind, and the additions that grow them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from tests.fuzz import byte_mutations, json_mutations
from tests.fuzz.target import Mutant, Random, Target
from voxgraft.graft.command import extend_tokenizer
from voxgraft.models import get_family
from voxgraft.tokenizers import NewPiece, Tokenizer, TokenizerAdditions, open_tokenizer

EVERYWHERE = "".join(map(chr, [*range(1, 0x300), *range(0x300, 0xD800, 251), *range(0xE000, 0x10FFFF, 9973)]))
"""A little of all of Unicode, so that every branch of a table is walked."""
TEXTS = (
    EVERYWHERE,
    "THE CAT  SAT ÉÉ",
    "",
    "a",
    "the cat sat, then it slept.",
    "[en][SPACE]the cat",
    "ሰላም ለዓለም",
    "e\u0301 é ﬁ ™ \U0001f600",
    "\u2581the\x7f\x00\t.",
)
PIECES = "[STOP] [UNK] [SPACE] a b c e h i l n p s t th the ca cat at , . s. [en] [START]".split()
MERGES = (("t", "h"), ("th", "e"), ("c", "a"), ("ca", "t"), ("a", "t"), ("s", "."))


def tokenizer_meaning(path: Path) -> object:
    """The pieces and what becomes of a few texts, through everything that a tokenizer can do."""
    tokenizer = open_tokenizer(path)
    spelled = [_spelled(tokenizer, text) for text in TEXTS]
    assert tokenizer.size == len(tokenizer.pieces)
    _ = tokenizer.characters, tokenizer.gaps, tokenizer.ids, tokenizer.control_ids, tokenizer.shown(-1)
    return tokenizer.kind, tokenizer.pieces, tokenizer.unknown_id, spelled


def _spelled(tokenizer: Tokenizer, text: str) -> object:
    ids = tokenizer.encode(text)
    for token in ids:
        tokenizer.shown(token)
    tokenizer.encode_exact(text)
    return ids, tokenizer.units(text), tokenizer.unknown_text(text), tokenizer.normalise(text)


def bpe_document(pairs: bool = False) -> dict[str, Any]:
    """A small tokenizer of the structure that Chatterbox has."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [piece for piece in PIECES if piece.startswith("[")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": PIECES.index(piece), "content": piece, **flags, "special": True} for piece in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": {piece: at for at, piece in enumerate(PIECES)},
            "merges": [list(merge) if pairs else " ".join(merge) for merge in MERGES],
        },
    }


def json_mutant(target: Target, rng: Random, same: float = 0.12) -> Mutant:
    """A damaged JSON file: structure, text or bytes."""
    seed, data = target.pick(rng)
    choice = rng.random()
    if choice < same:
        made, how = json_mutations.reformed(data, rng)
        return Mutant(seed, how, made, same=True)
    made, how = json_mutations.edited(data, rng) if choice < 0.75 else byte_mutations.damaged(data, rng)
    return Mutant(seed, how, made)


def write_documents(folder: Path, documents: Iterable[tuple[str, Any]]) -> None:
    for name, document in documents:
        (folder / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")


class BpeJsonTarget(Target):
    """tokenizers-JSON with a BPE model."""

    name: ClassVar[str] = "tokenizer-json"
    count: ClassVar[int] = 3000

    def make_seeds(self, folder: Path) -> None:
        write_documents(folder, [("texts.json", bpe_document()), ("pairs.json", bpe_document(pairs=True))])

    def mutant(self, rng: Random) -> Mutant:
        return json_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "tokenizer.json"
        path.write_bytes(data)
        return tokenizer_meaning(path)


class FlatMapTarget(BpeJsonTarget):
    """Maps from token to id without merges."""

    name: ClassVar[str] = "flat-map"
    count: ClassVar[int] = 2000

    def make_seeds(self, folder: Path) -> None:
        pieces = ["<PAD>", "<UNK>", *"abcdeth", "ሰ", "ላ", "ም", "the", "[am]"]
        write_documents(folder, [("map.json", {piece: at for at, piece in enumerate(pieces)})])


class AdditionsTarget(Target):
    """What a language adds to a tokenizer; sound ones are merged and used."""

    name: ClassVar[str] = "additions"
    count: ClassVar[int] = 2500

    def make_seeds(self, folder: Path) -> None:
        inner = folder / "base"
        inner.mkdir()
        write_documents(inner, [("tokenizer.json", bpe_document())])
        base = open_tokenizer(inner / "tokenizer.json")
        pieces = (
            NewPiece("ሰ"),
            NewPiece("ላ"),
            NewPiece("ም"),
            NewPiece("ሰላ", ("ሰ", "ላ"), 7),
            NewPiece("ሰላም", ("ሰላ", "ም"), 5, -3.5),
        )
        TokenizerAdditions("chatterbox", "am", base.kind, base.sha256, "[am]", pieces).save(folder / "additions.json")
        TokenizerAdditions("chatterbox", "sw", base.kind, base.sha256, "[sw]", ()).save(folder / "only_tag.json")

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.base = open_tokenizer(folder / "base" / "tokenizer.json")
        assert self.base.sha256 == hashlib.sha256(self.base.data).hexdigest()

    def mutant(self, rng: Random) -> Mutant:
        return json_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / "additions.json"
        path.write_bytes(data)
        additions = TokenizerAdditions.load(path)
        grown = extend_tokenizer(get_family("chatterbox"), self.base, additions, path)
        additions.save(scratch / "again.json")
        assert TokenizerAdditions.load(scratch / "again.json") == additions
        return grown.pieces, [_spelled(grown, text) for text in TEXTS]
