"""SentencePiece models, unigram and BPE (IndexTTS-2's `bpe.model` is a unigram model in spite of its name).

The file is parsed and checked in full before the C++ library sees it, which trusts what it is given.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as schema

from voxgraft.errors import TokenizerError
from voxgraft.tokenizers.base import (
    WORD_START,
    Tokenizer,
    TokenizerAdditions,
    TokenizerKind,
    raise_broken_tokenizer,
    raise_unsupported_tokenizer,
)

_NORMAL, _UNKNOWN, _USER_DEFINED = 1, 2, 4
_UNIGRAM, _BPE = 1, 2
_MAX_SENTENCEPIECE_PIECES = 1_000_000


class SentencePieceTokenizer(Tokenizer):
    """What unigram and BPE models share; `parse_sentencepiece` picks the right one."""

    _model: Any

    def __init__(self, data: bytes, model: Any, path: Path) -> None:
        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._model = model
        self._engine = _load_processor(data, path)
        self.pieces = tuple(piece.piece for piece in model.pieces)
        self.unknown_id = next(at for at, piece in enumerate(model.pieces) if piece.type == _UNKNOWN)
        spelled = (_NORMAL, _USER_DEFINED)
        self._whole = frozenset(at for at, piece in enumerate(model.pieces) if piece.type not in spelled)
        # User-defined pieces are matched as they stand and never merged with their neighbours.
        self._apart = frozenset(at for at, piece in enumerate(model.pieces) if piece.type != _NORMAL)

    @property
    def control_ids(self) -> frozenset[int]:
        return self._whole

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """Score by id."""
        return tuple(piece.score for piece in self._model.pieces)

    @cached_property
    def lowest_score(self) -> float:
        """The lowest score of a normal piece: unknown characters cost ten more than this."""
        return min((piece.score for piece in self._model.pieces if piece.type == _NORMAL), default=0.0)

    @cached_property
    def highest_score(self) -> float:
        """The highest score of a normal piece: user-defined pieces are weighed by this."""
        return max((piece.score for piece in self._model.pieces if piece.type == _NORMAL), default=0.0)

    @cached_property
    def crosses_spaces(self) -> bool:
        """Whether some piece holds a space behind its first character, so that words are not spelled one by one."""
        return not self._model.normalizer_spec.add_dummy_prefix or any(
            WORD_START in piece.piece[1:] for piece in self._model.pieces
        )

    def encode(self, prepared: str) -> list[int]:
        return list(self._engine.encode(prepared))

    def encode_exact(self, surface: str) -> list[int]:
        return list(self._exact_engine.encode(surface.replace(WORD_START, " ")))

    @cached_property
    def _exact_engine(self) -> Any:
        model = schema.ModelProto()
        model.CopyFrom(self._model)
        model.normalizer_spec.add_dummy_prefix = False
        model.normalizer_spec.remove_extra_whitespaces = False
        return _load_processor(model.SerializeToString(), self.path)

    def unknown_text(self, prepared: str) -> str:
        ids = self.encode(prepared)
        if self.unknown_id not in ids:
            return ""
        spelled = zip(ids, self._engine.encode(prepared, out_type=str), strict=True)
        return "".join(surface for token, surface in spelled if token == self.unknown_id).replace(WORD_START, "")

    def normalise(self, prepared: str) -> str:
        return str(self._engine.normalize(prepared)).replace(WORD_START, " ")

    def units(self, prepared: str) -> list[tuple[str, ...]]:
        units: list[tuple[str, ...]] = []
        current: list[str] = []
        for token in self.encode(prepared):
            piece, apart = self.pieces[token] or "", token in self._apart
            if (apart or piece.startswith(WORD_START)) and current:
                units.append(tuple(current))
                current = []
            if not apart:
                current.append(piece)
        if current:
            units.append(tuple(current))
        return units

    def grown(self, additions: TokenizerAdditions) -> bytes:
        model = schema.ModelProto()
        model.CopyFrom(self._model)
        score = self._new_scores()
        for number, piece in enumerate(additions.pieces):
            model.pieces.add(piece=piece.text, score=score(number, piece.score), type=_NORMAL)
        model.trainer_spec.vocab_size = len(model.pieces)
        return bytes(model.SerializeToString())

    @abstractmethod
    def _new_scores(self) -> Callable[[int, float | None], float]:
        """Score of the n-th added piece, from the one that the additions give it, if they do."""


class SentencePieceUnigramTokenizer(SentencePieceTokenizer):
    """Spelling = the split with the highest sum of scores."""

    kind: ClassVar[TokenizerKind] = "sentencepiece-unigram"

    def _new_scores(self) -> Callable[[int, float | None], float]:
        # Never below the base's lowest nor above its highest: the costs of unknown characters and of user-defined
        # pieces hang on these two, and would move for base text too.
        low, high = self.lowest_score, self.highest_score
        return lambda _number, given: low if given is None else min(max(given, low), high)


class SentencePieceBpeTokenizer(SentencePieceTokenizer):
    """Spelling = neighbours merged while a piece for both exists, highest score first."""

    kind: ClassVar[TokenizerKind] = "sentencepiece-bpe"

    def _new_scores(self) -> Callable[[int, float | None], float]:
        # Below every base piece, in the order in which they were learnt: base merges always come first.
        first = math.floor(self.lowest_score) - 1.0
        return lambda number, _given: first - number


def parse_sentencepiece(data: bytes, path: Path) -> SentencePieceTokenizer:
    """A SentencePiece model from the bytes of its file."""
    model = schema.ModelProto()
    try:
        model.ParseFromString(data)
        _validate_sentencepiece(model, path)
    except (DecodeError, UnicodeDecodeError) as error:
        found = f"{path.name} is neither JSON nor a SentencePiece model ({str(error).splitlines()[0][:80]})"
        raise TokenizerError("tokenizer-broken", found, where=path) from None
    kind = SentencePieceUnigramTokenizer if model.trainer_spec.model_type == _UNIGRAM else SentencePieceBpeTokenizer
    return kind(data, model, path)


def _load_processor(data: bytes, path: Path) -> Any:
    engine = sentencepiece.SentencePieceProcessor()
    try:
        engine.LoadFromSerializedProto(data)
    except (RuntimeError, OSError) as error:
        found = f"{path.name}: {str(error).splitlines()[0][:120]}"
        raise TokenizerError("tokenizer-broken", found, where=path) from None
    return engine


def _validate_sentencepiece(model: Any, path: Path) -> None:
    spec, normaliser = model.trainer_spec, model.normalizer_spec
    if not 3 <= len(model.pieces) <= _MAX_SENTENCEPIECE_PIECES:
        raise_broken_tokenizer(path, f"it has {len(model.pieces)} pieces", f"3 to {_MAX_SENTENCEPIECE_PIECES:,}")
    if spec.model_type not in (_UNIGRAM, _BPE):
        raise_unsupported_tokenizer(path, f"model type {spec.model_type}", "unigram (1) or BPE (2)")
    if spec.byte_fallback or any(piece.type == 6 for piece in model.pieces):
        raise_unsupported_tokenizer(path, "byte fallback: it already spells every character", "a model without it")
    if spec.treat_whitespace_as_suffix or not normaliser.escape_whitespaces:
        raise_unsupported_tokenizer(path, "spaces are marked after words or not at all", "spaces marked before words")
    _validate_pieces(model, path)
    for name, piece_type in (("bos", 3), ("eos", 3)):
        at = getattr(spec, f"{name}_id")
        if at >= len(model.pieces) or (at >= 0 and model.pieces[at].type not in (piece_type, 4)):
            raise_broken_tokenizer(path, f"{name} has id {at}, which is no control piece")
    for charsmap in (normaliser.precompiled_charsmap, model.denormalizer_spec.precompiled_charsmap):
        _validate_charsmap(charsmap, path)
    if model.HasField("self_test_data"):
        model.ClearField("self_test_data")


def _validate_pieces(model: Any, path: Path) -> None:
    seen: dict[str, int] = {}
    for at, piece in enumerate(model.pieces):
        text = piece.piece
        if not isinstance(text, str):  # the parser hands on what is not UTF-8 as bytes
            raise_broken_tokenizer(path, f"piece {at} is not UTF-8")
        if not text or "\x00" in text:
            raise_broken_tokenizer(path, f"piece {at} is empty or holds NUL")
        if text in seen:
            found = f"piece {text!r:.40} stands at {seen[text]} and at {at}"
            raise TokenizerError("tokenizer-duplicate-id", found, where=path)
        seen[text] = at
        if piece.type not in (1, 2, 3, 4, 5):
            raise_broken_tokenizer(path, f"piece {at} has type {piece.type}")
        if not math.isfinite(piece.score) or abs(piece.score) > 1e9:
            raise_broken_tokenizer(path, f"piece {at} has score {piece.score}")
    unknowns = [at for at, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    if len(unknowns) != 1:
        raise_broken_tokenizer(path, f"it has {len(unknowns)} unknown pieces", "exactly one")


def _validate_charsmap(charsmap: bytes, path: Path) -> None:
    """The normaliser's double-array trie is walked by C++ without bounds checks: check every jump here."""
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little") if len(charsmap) > 4 else 0
    if size < 1024 or size % 1024 or 4 + size >= len(charsmap) or charsmap[-1] != 0:
        raise_broken_tokenizer(path, "the normaliser's table is damaged")
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    inner = units >> 31 == 0
    jumps = np.arange(len(units)) ^ (units >> 10 << ((units & 1 << 9) >> 6))
    if (jumps[inner] | 0xFF >= len(units)).any():
        raise_broken_tokenizer(path, "the normaliser's table points outside itself")
    # A unit with the ninth bit says that its jump leads to a value: the place of a text behind the table.
    places = units[jumps[inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    _validate_replacements(charsmap[4 + size :], places, path)


def _validate_replacements(texts: bytes, places: NDArray[np.int64], path: Path) -> None:
    """What the normaliser writes must be whole characters, or its results could not be read back."""
    starts = np.frombuffer(texts, dtype=np.uint8) & 0xC0 != 0x80
    if (places >= len(texts)).any() or not starts[places].all():
        raise_broken_tokenizer(path, "the normaliser's table points outside its texts")
    texts.decode("utf-8")
