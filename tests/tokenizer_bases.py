"""Small base tokenizers of the three kinds, with the published structure, and languages grown onto them. Made once."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from tools.random_bases import get_random_base_spec
from voxgraft.config.run import VocabularySettings
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import parse_tokenizer
from voxgraft.tokenizers.base import TextCorpus, Tokenizer, read_texts
from voxgraft.tokenizers.train import LearnedAdditions

KINDS = ("bpe-json", "sentencepiece-unigram", "sentencepiece-bpe")
LANGUAGES = ("am", "ti", "km", "vi", "yo", "sw")


@dataclass(frozen=True, slots=True)
class Grown:
    """One language grown onto one base."""

    spelling: TextEncoder
    learnt: LearnedAdditions
    texts: TextCorpus

    @property
    def base(self) -> Tokenizer:
        return self.spelling.base

    @property
    def tokenizer(self) -> Tokenizer:
        return self.learnt.grown

    @property
    def new_characters(self) -> frozenset[str]:
        return frozenset("".join(piece.text for piece in self.learnt.additions.pieces)) - self.base.characters


@cache
def base(kind: str) -> TextEncoder:
    """A base of that kind with its family's front, and no new language yet."""
    name = "chatterbox" if kind == "bpe-json" else "indextts2"
    maker = get_random_base_spec(name)
    size = replace(maker.sizes["tiny"], sentencepiece="bpe" if kind == "sentencepiece-bpe" else "unigram")
    with tempfile.TemporaryDirectory() as folder:
        maker.write_side_files(Path(folder), size)
        path = next(Path(folder) / name for name in get_family(name).tokenizer_names if (Path(folder) / name).exists())
        data = path.read_bytes() if name == "indextts2" else _with_brackets(path.read_bytes())
        tokenizer = parse_tokenizer(data, Path(path.name))
    assert tokenizer.kind == kind
    return TextEncoder.of(get_family(name), tokenizer, None, None)


def _with_brackets(data: bytes) -> bytes:
    """The published tokenizer can spell brackets, and so a tag that it does not know; the small one cannot."""
    document = json.loads(data)
    vocabulary = document["model"]["vocab"]
    for character in "[]":
        vocabulary.setdefault(character, len(vocabulary))
    return json.dumps(document).encode()


@cache
def demo_texts(language: str) -> TextCorpus:
    """The text of a new language that comes with the package."""
    with resources.as_file(resources.files("voxgraft").joinpath(f"assets/demo/{language}.txt")) as path:
        return read_texts([path])


def learn(kind: str, language: str, sentences: tuple[str, ...], settings: VocabularySettings | None = None) -> Grown:
    """A language trained on these sentences."""
    before = replace(base(kind), language=language, stated_rules=build_text_rules(language))
    learnt = learn_language_pieces(before, TextCorpus(sentences), settings or VocabularySettings())
    return Grown(replace(before, grown=learnt.grown), learnt, TextCorpus(sentences))


@cache
def grown(kind: str, language: str) -> Grown:
    """A language trained on its demo text."""
    return learn(kind, language, demo_texts(language).sentences, VocabularySettings(pieces=300, min_count=2))
