"""Merges as others make them, so that `prove` can be shown what it has to catch. Own code, after their description.

The community way for SentencePiece: train a throw-away candidate of twice the target size on raw text; take the
candidate's pieces that the base lacks, first the letters a to z and the digits, then in the candidate's order until the
target is reached; keep the candidate's scores. For Chatterbox: a flat map of the base's tokens and every new character.
"""

from __future__ import annotations

import io
import json
import re
import string
from collections.abc import Sequence
from typing import Any, Literal

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as schema

from voxgraft.tokenizers.base import Tokenizer

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
