"""Small base tokenizers of the three kinds, languages added to them, merges as other tools make them, and a cache of proofs."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import string
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema

from tools.random_bases import get_random_base_spec
from voxgraft.config.run import VocabularySettings
from voxgraft.core.files import compute_sha256
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import TextCorpus, Tokenizer, parse_tokenizer, prove, read_texts
from voxgraft.tokenizers.prove import TaggedTextPreprocessor
from voxgraft.tokenizers.train import LearnedAdditions

KINDS = ("bpe-json", "sentencepiece-unigram", "sentencepiece-bpe")
LANGUAGES = ("am", "ti", "km", "vi", "yo", "sw")


@dataclass(frozen=True, slots=True)
class Grown:
    """One language grown onto one base."""

    text_encoder: TextEncoder
    learned: LearnedAdditions
    texts: TextCorpus

    @property
    def base(self) -> Tokenizer:
        return self.text_encoder.base

    @property
    def tokenizer(self) -> Tokenizer:
        return self.learned.grown

    @property
    def new_characters(self) -> frozenset[str]:
        return frozenset("".join(piece.text for piece in self.learned.additions.pieces)) - self.base.characters


@cache
def base(kind: str) -> TextEncoder:
    """A base of that kind, or of the family `xtts`, with its family's front, and no new language yet."""
    name = {"bpe-json": "chatterbox", "xtts": "xtts"}.get(kind, "indextts2")
    maker = get_random_base_spec(name)
    size = replace(maker.sizes["tiny"], sentencepiece="bpe" if kind == "sentencepiece-bpe" else "unigram")
    with tempfile.TemporaryDirectory() as folder:
        maker.write_side_files(Path(folder), size)
        path = next(Path(folder) / name for name in get_family(name).tokenizer_names if (Path(folder) / name).exists())
        data = _with_brackets(path.read_bytes()) if name == "chatterbox" else path.read_bytes()
        tokenizer = parse_tokenizer(data, Path(path.name))
    assert tokenizer.kind == ("bpe-json" if name == "xtts" else kind)
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


_NORMAL = 1
_LETTERS_AND_DIGITS = string.ascii_lowercase + string.digits


def community_merge(
    base: Tokenizer, sentences: Sequence[str], target: int, candidate: Literal["bpe", "unigram"] = "bpe"
) -> bytes:
    """The base's SentencePiece model, filled up to `target` pieces from a candidate that knows nothing of the base."""
    model: Any = schema.ModelProto.FromString(base.data)
    offered = {
        piece.piece: piece
        for piece in _candidate(sentences, 2 * target, candidate).pieces
        if piece.type == _NORMAL and piece.piece not in base.ids
    }
    patched = [offered.pop(character) for character in _LETTERS_AND_DIGITS if character in offered]
    for piece in [*patched, *offered.values()][: target - base.size]:
        model.pieces.add(piece=piece.piece, score=piece.score, type=_NORMAL)
    model.trainer_spec.vocab_size = len(model.pieces)
    return bytes(model.SerializeToString())


def _candidate(sentences: Sequence[str], size: int, kind: str) -> Any:
    """A model of that size, or of the largest that the text is enough for."""
    try:
        return _trained(sentences, size, kind)
    except RuntimeError as error:
        largest = re.search(r"value <= (\d+)", str(error))
        if largest is None:
            raise
        return _trained(sentences, int(largest.group(1)), kind)


def _trained(sentences: Sequence[str], size: int, kind: str) -> Any:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=written,
        model_type=kind,
        vocab_size=size,
        character_coverage=0.9999,
        hard_vocab_limit=kind == "bpe",
        bos_id=0,
        eos_id=1,
        unk_id=2,
        pad_id=-1,
        num_threads=2,
        minloglevel=2,
    )
    return schema.ModelProto.FromString(written.getvalue())


def flat_map(base: Tokenizer, sentences: Sequence[str], first: int | None = None) -> bytes:
    """Every base token and, from the next id on (or from `first`), every character that is not one of them."""
    tokens = dict(base.ids)
    new = sorted({character for text in sentences for character in text if not character.isspace()} - set(tokens))
    start = max(tokens.values()) + 1 if first is None else first
    tokens |= {character: start + number for number, character in enumerate(new)}
    return json.dumps(tokens, ensure_ascii=False).encode()


@contextmanager
def comparisons_kept(folder: Path) -> Iterator[None]:
    """`graft`, `check` and training take a comparison of the same two tokenizers from the folder, if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    compare = prove._compare_tokenizers

    def kept_or_made(
        base: Tokenizer,
        grown: Tokenizer,
        corpus: Iterable[tuple[str | None, str]],
        front: TaggedTextPreprocessor,
        tag: str | None,
    ) -> Any:
        sentences, encoder = tuple(corpus), getattr(front, "__self__", None)
        if not isinstance(encoder, TextEncoder):
            return compare(base, grown, sentences, front, tag)
        given = (encoder.family.name, _side_files(base.path.parent), base.sha256, grown.sha256, tag, _hash(sentences))
        path = folder / sha256(repr(given).encode()).hexdigest()
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps(compare(base, grown, sentences, front, tag)))
            unfinished.rename(path)
        return pickle.loads(path.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prove, "_compare_tokenizers", kept_or_made)
        yield


@cache
def _hash(sentences: tuple[tuple[str | None, str], ...]) -> str:
    return sha256(repr(sentences).encode()).hexdigest()


def _side_files(folder: Path) -> tuple[tuple[str, str], ...]:
    """The small files of a base, some of which are tables that its front reads."""
    small = [path for path in folder.glob("*.json") if path.stat().st_size < 1 << 20]
    return tuple(sorted((path.name, compute_sha256(path)) for path in small))
