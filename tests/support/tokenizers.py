"""Small base tokenizers of the three kinds, languages added to them, merges as other tools make them, and a cache of proofs."""

from __future__ import annotations

import io
import json
import re
import string
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema

from tools.random_bases import get_random_base_spec
from voxgraft.config.run import VocabularySettings
from voxgraft.inspect import text
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces, prove_text_encoder
from voxgraft.text.normalize import build_text_rules
from voxgraft.tokenizers import TextCorpus, Tokenizer, parse_tokenizer, read_texts
from voxgraft.tokenizers.prove import TokenizerProof
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


_KEPT: dict[tuple[Any, ...], TokenizerProof] = {}


@contextmanager
def proofs_kept() -> Iterator[None]:
    """Training, and `check`, take a proof that was made before, where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "prove_text_encoder", _kept_or_made)
        yield


def _kept_or_made(text_encoder: TextEncoder, texts: TextCorpus, proof_texts: tuple[Path, ...]) -> TokenizerProof:
    base, grown = text_encoder.base, text_encoder.grown
    assert grown is not None
    # The path of the base stands for its front, which has tables in files beside the tokenizer.
    key = (text_encoder.family.name, text_encoder.language, base.path, base.sha256, grown.sha256, texts.sentences)
    if proof_texts or key not in _KEPT:
        proof = prove_text_encoder(text_encoder, texts, proof_texts)
        if proof_texts or proof.findings:
            return proof
        _KEPT[key] = proof
    return _KEPT[key]
