"""Tokenizer file formats: `tokenizers` JSON with BPE (Chatterbox), SentencePiece (IndexTTS-2), and flat maps to judge.

A file is checked in full before the library sees it. What voxgraft cannot reason about (normalizers, byte fallback,
other pre-tokenizers) is refused, because promise 1 depends on knowing how a text is split.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard

import numpy as np
import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as schema

from voxgraft.core.errors import TokenizerError
from voxgraft.tokenizers import (
    WORD_START,
    Tokenizer,
    TokenizerAdditions,
    TokenizerKind,
    raise_broken_tokenizer,
    raise_unsupported_tokenizer,
)

MAX_TOKEN_ID = 1_000_000
_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class BpeJsonTokenizer(Tokenizer):
    """A `tokenizers` JSON file with a BPE model and the Whitespace pre-tokenizer."""

    kind = "bpe-json"
    lost_unknown: str | None = None
    """The piece for unknown letters, if the file does not name it: then such letters leave no id at all."""
    moved_tokens: Mapping[str, tuple[int, int]] = MappingProxyType({})
    """Added tokens whose id in the file is not the one that they get: both ids. Only in files to be judged."""

    def __init__(self, data: bytes, document: dict[str, Any], path: Path, *, judged: bool = False) -> None:
        _validate_bpe_json(document, path, judged=judged)
        super().__init__(data, path)
        self._document = document
        try:
            self._engine = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises nothing narrower
            found = str(error).splitlines()[0][:200]
            raise TokenizerError("tokenizer-broken", f"{path.name}: {found}", where=path) from None
        written = {token["content"]: token["id"] for token in document["added_tokens"]}
        # The library counts added tokens on from the number of entries, whatever the file says.
        added: dict[str, int] = {content: self._engine.token_to_id(content) or 0 for content in written}
        moved = {content: (at, added[content]) for content, at in written.items() if added[content] != at}
        if moved and not judged:
            raise TokenizerError("tokenizer-duplicate-id", describe_moved_tokens(moved), where=path)
        self.moved_tokens = MappingProxyType(moved)
        ids = {**added, **document["model"]["vocab"]}
        pieces: list[str | None] = [None] * (max(ids.values()) + 1)
        for piece, at in ids.items():
            pieces[at] = piece
        self.pieces = tuple(pieces)
        self.unknown_id = document["model"]["vocab"][document["model"]["unk_token"]]
        self.control_ids = frozenset(added.values())
        # The longest first: one added token may be the beginning of another.
        contents = sorted(added, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, contents)) or r"(?!)")

    def encode(self, prepared: str) -> list[int]:
        return list(self._engine.encode(prepared, add_special_tokens=False).ids)

    def unknown_text(self, prepared: str) -> str:
        encoding = self._engine.encode(prepared, add_special_tokens=False)
        if self.unknown_id not in encoding.ids:
            return ""
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return "".join(prepared[start:stop] for token, (start, stop) in spans if token == self.unknown_id)

    def normalise(self, prepared: str) -> str:
        return self._control_pattern.sub(" ", prepared)

    def units(self, prepared: str) -> list[tuple[str, ...]]:
        encoding = self._engine.encode(prepared, add_special_tokens=False)
        units: list[tuple[str, ...]] = []
        current: list[str] = []
        word: object = None
        for token, at in zip(encoding.ids, encoding.word_ids, strict=True):
            whole = token in self.control_ids or token == self.unknown_id
            if (whole or at != word) and current:
                units.append(tuple(current))
                current = []
            word = at
            if not whole:
                current.append(self.pieces[token] or "")
        if current:
            units.append(tuple(current))
        return units

    def grown(self, additions: TokenizerAdditions) -> bytes:
        document = json.loads(json.dumps(self._document))
        vocab, merges = document["model"]["vocab"], document["model"]["merges"]
        # The library would count the ids of added tokens that are in no vocabulary on from the end of the longer one.
        vocab |= {token["content"]: token["id"] for token in document["added_tokens"]}
        # Newer files write a merge as a pair, older ones as two pieces with a space between them.
        as_pairs = bool(merges) and not isinstance(merges[0], str)
        at = self.size
        if additions.tag is not None:
            vocab[additions.tag] = at
            flags = dict.fromkeys(_ADDED_TOKEN_FLAGS, False)
            document["added_tokens"].append({"id": at, "content": additions.tag, **flags})
            at += 1
        for piece in additions.pieces:
            vocab[piece.text] = at
            if piece.parts is not None:
                merges.append(list(piece.parts) if as_pairs else " ".join(piece.parts))
            at += 1
        return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "pre_tokenizer": ({"type": "Whitespace"},),
    "post_processor": (None,),
    "truncation": (None,),
    "padding": (None,),
}
_ACCEPTED_MODEL: dict[str, tuple[Any, ...]] = {
    "type": ("BPE",),
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}


UNKNOWN_PIECES = ("[UNK]", "<unk>")


def restore_unknown_token(document: dict[str, Any]) -> str | None:
    """Name the unknown token again where it was lost, as when a model is rebuilt from vocabulary and merges."""
    model, vocab = document["model"], document["model"].get("vocab")
    if model.get("unk_token") is not None or not isinstance(vocab, dict):
        return None
    lost = next((piece for piece in UNKNOWN_PIECES if piece in vocab), None)
    if lost is not None:
        model["unk_token"] = lost
    return lost


def describe_moved_tokens(moved: Mapping[str, tuple[int, int]]) -> str:
    """Added tokens with an id in the file and another one in programs."""
    content, (written, used) = next(iter(moved.items()))
    others = f", and {len(moved) - 1:,} more" if len(moved) > 1 else ""
    return f"added token {content!r:.40} has id {written} in the file, but programs that load it use id {used}{others}"


def _validate_bpe_json(document: dict[str, Any], path: Path, *, judged: bool = False) -> None:
    """Refuse whatever is broken or beyond what we can prove things about. Wrong ids of added tokens may be judged."""
    model = document["model"]
    for prefix, values, table in (("", document, _ACCEPTED), ("model.", model, _ACCEPTED_MODEL)):
        for key, accepted in table.items():
            if values.get(key) not in accepted:
                found = f"{prefix}{key} is {_shorten_json(values.get(key))}"
                raise_unsupported_tokenizer(path, found, _shorten_json(accepted[0]))
    vocab, added, merges = model.get("vocab"), document.get("added_tokens"), model.get("merges")
    if not isinstance(vocab, dict) or not vocab:
        raise_broken_tokenizer(path, "model.vocab is not a map from token to id")
    holders: dict[int, str] = {}
    for piece, at in vocab.items():
        if not _is_token_id(at):
            found = f"token {piece!r:.40} has id {_shorten_json(at)}"
            raise_broken_tokenizer(path, found, f"a whole number from 0 to {MAX_TOKEN_ID - 1:,}")
    for piece, at in vocab.items():
        if at in holders:
            found = f"{holders[at]!r:.40} and {piece!r:.40} both have id {at}"
            raise TokenizerError("tokenizer-duplicate-id", found, where=path)
        holders[at] = piece
    unknown = model.get("unk_token")
    if not isinstance(unknown, str) or unknown not in vocab:
        raise_broken_tokenizer(path, f"unk_token {_shorten_json(unknown)} is not in the vocabulary")
    if not isinstance(added, list):
        raise_broken_tokenizer(path, "added_tokens is not a list")
    seen: set[str] = set()
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
            raise_broken_tokenizer(path, f"added token {_shorten_json(token)} has no content")
        content, at = token["content"], token.get("id")
        if not _is_token_id(at):
            raise_broken_tokenizer(path, f"added token {content!r:.40} has id {_shorten_json(at)}")
        if any(type(token.get(flag)) is not bool for flag in _ADDED_TOKEN_FLAGS):
            raise_broken_tokenizer(path, f"added token {content!r:.40} lacks one of {', '.join(_ADDED_TOKEN_FLAGS)}")
        # An added token may also be in the vocabulary, but then with the same id.
        if not judged and (content in seen or vocab.get(content, at) != at or holders.get(at, content) != content):
            found = f"added token {content!r:.40} with id {at} clashes with another token"
            raise TokenizerError("tokenizer-duplicate-id", found, where=path)
        seen.add(content)
        holders[at] = content
    if not isinstance(merges, list):
        raise_broken_tokenizer(path, "model.merges is not a list")
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise_broken_tokenizer(path, f"merge {number} is {_shorten_json(merge)}", "two tokens")
        for piece in (*pair, "".join(pair)):
            if piece not in vocab:
                raise_broken_tokenizer(path, f"merge {number} needs {piece!r:.40}, which is not in the vocabulary")
    if len({type(merge) for merge in merges}) > 1:
        raise_broken_tokenizer(path, "merges are written in two styles")


def _is_token_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MAX_TOKEN_ID


def _shorten_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


_UNKNOWN_TOKENS = ("<UNK>", "<unk>")
# The id that the forks' own lookup uses if neither name is in the map.
_FALLBACK_UNKNOWN_ID = 1


class FlatMapTokenizer(Tokenizer):
    """A map from token to id, spelled character by character as the forks do it."""

    kind = "flat-map"

    def __init__(self, data: bytes, document: dict[str, Any], path: Path) -> None:
        super().__init__(data, path)
        for piece, at in document.items():
            if not _is_token_id(at):
                found = f"{path.name}: {piece!r:.40} has id {at!r:.40}"
                raise TokenizerError("tokenizer-broken", found, where=path)
        pieces: list[str | None] = [None] * (max(document.values()) + 1)
        for piece, at in document.items():
            if pieces[at] is not None:
                found = f"{pieces[at]!r:.40} and {piece!r:.40} both have id {at}"
                raise TokenizerError("tokenizer-duplicate-id", found, where=path)
            pieces[at] = piece
        self.pieces = tuple(pieces)
        self.unknown_id = next((document[name] for name in _UNKNOWN_TOKENS if name in document), _FALLBACK_UNKNOWN_ID)
        controls = (at for at, piece in enumerate(pieces) if piece and len(piece) > 2 and piece[0] in "[<")
        self.control_ids = frozenset(controls)

    def encode(self, prepared: str) -> list[int]:
        return [self.ids.get(character, self.unknown_id) for character in prepared]

    def unknown_text(self, prepared: str) -> str:
        return "".join(character for character in prepared if character not in self.ids)

    def normalise(self, prepared: str) -> str:
        return prepared

    def units(self, prepared: str) -> list[tuple[str, ...]]:
        return [tuple(word) for word in prepared.split()]

    def grown(self, additions: TokenizerAdditions) -> bytes:
        del additions
        raise TokenizerError(
            "tokenizer-flat-map", f"{self.path.name} cannot be extended: it has no merges", where=self.path
        )


# ModelProto.SentencePiece.Type and TrainerSpec.ModelType of sentencepiece_model.proto.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_MAX_SENTENCEPIECE_PIECES = 1_000_000


class SentencePieceTokenizer(Tokenizer):
    """What unigram and BPE models share; `parse_sentencepiece` picks the right one."""

    _model: Any

    def __init__(self, data: bytes, model: Any, path: Path) -> None:
        super().__init__(data, path)
        self._model = model
        # The checked model and not the file's bytes: it has lost the tests that a file may bring along.
        self._engine = _load_processor(model.SerializeToString(), path)
        self.pieces = tuple(piece.piece for piece in model.pieces)
        self.unknown_id = next(at for at, piece in enumerate(model.pieces) if piece.type == _UNKNOWN)
        spelled = (_NORMAL, _USER_DEFINED)
        self.control_ids = frozenset(at for at, piece in enumerate(model.pieces) if piece.type not in spelled)
        # User-defined pieces are matched as they are and never merged with their neighbours.
        self._apart = frozenset(at for at, piece in enumerate(model.pieces) if piece.type != _NORMAL)

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
        for number, piece in enumerate(additions.pieces):
            model.pieces.add(piece=piece.text, score=self._score(number, piece.score), type=_NORMAL)
        model.trainer_spec.vocab_size = len(model.pieces)
        return bytes(model.SerializeToString())

    @abstractmethod
    def _score(self, number: int, given: float | None) -> float:
        """Score of the n-th added piece, from the one that the additions give it, if they do."""


class SentencePieceUnigramTokenizer(SentencePieceTokenizer):
    """Spelling = the split with the highest sum of scores."""

    kind: ClassVar[TokenizerKind] = "sentencepiece-unigram"

    def _score(self, number: int, given: float | None) -> float:  # noqa: ARG002 (the order counts in BPE only)
        # Never below the base's lowest nor above its highest: the costs of unknown characters and of user-defined
        # pieces depend on these two, and would change for base text too.
        return self.lowest_score if given is None else min(max(given, self.lowest_score), self.highest_score)


class SentencePieceBpeTokenizer(SentencePieceTokenizer):
    """Spelling = neighbours merged while a piece for both exists, highest score first."""

    kind: ClassVar[TokenizerKind] = "sentencepiece-bpe"

    def _score(self, number: int, given: float | None) -> float:  # noqa: ARG002 (scores of BPE are an order)
        # Below every base piece, in the order in which they were learned: base merges always come first.
        return math.floor(self.lowest_score) - 1.0 - number


def parse_sentencepiece(data: bytes, path: Path) -> SentencePieceTokenizer:
    """A SentencePiece model from the bytes of its file."""
    model = schema.ModelProto()
    try:
        model.ParseFromString(data)
        _validate_sentencepiece(model, path)
    except (DecodeError, UnicodeDecodeError):
        found = f"{path.name} is neither JSON nor a SentencePiece model"
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
    if spec.byte_fallback or any(piece.type == _BYTE for piece in model.pieces):
        raise_unsupported_tokenizer(path, "byte fallback: it already encodes every character", "a model without it")
    if spec.treat_whitespace_as_suffix or not normaliser.escape_whitespaces:
        raise_unsupported_tokenizer(path, "spaces are marked after words, or not marked", "spaces marked before words")
    seen: dict[str, int] = {}
    for at, piece in enumerate(model.pieces):
        text = piece.piece
        if not isinstance(text, str):  # the parser hands on what is not UTF-8 as bytes
            raise_broken_tokenizer(path, f"piece {at} is not UTF-8")
        if not text or "\x00" in text:
            raise_broken_tokenizer(path, f"piece {at} is empty or contains NUL")
        if text in seen:
            found = f"piece {text!r:.40} has the ids {seen[text]} and {at}"
            raise TokenizerError("tokenizer-duplicate-id", found, where=path)
        seen[text] = at
        if not _NORMAL <= piece.type <= _UNUSED:
            raise_broken_tokenizer(path, f"piece {at} has type {piece.type}")
        if not math.isfinite(piece.score) or abs(piece.score) > 1e9:
            raise_broken_tokenizer(path, f"piece {at} has score {piece.score}")
    num_unknown = sum(piece.type == _UNKNOWN for piece in model.pieces)
    if num_unknown != 1:
        raise_broken_tokenizer(path, f"it has {num_unknown} unknown pieces", "exactly one")
    for name in ("bos", "eos"):
        at = getattr(spec, f"{name}_id")  # -1: the model has none
        if at >= len(model.pieces) or (at >= 0 and model.pieces[at].type not in (_CONTROL, _USER_DEFINED)):
            raise_broken_tokenizer(path, f"{name} has id {at}, which is not a control piece")
    for charsmap in (normaliser.precompiled_charsmap, model.denormalizer_spec.precompiled_charsmap):
        if charsmap:
            _validate_charsmap(charsmap, path)
    # The library would run the tests that a file brings along.
    if model.HasField("self_test_data"):
        model.ClearField("self_test_data")


def _validate_charsmap(charsmap: bytes, path: Path) -> None:
    """The normalizer's table: four bytes with its size, a double-array trie (Darts) of that size, then its texts.

    C++ walks the trie without bounds checks, so every jump is checked here.
    """
    size = int.from_bytes(charsmap[:4], "little") if len(charsmap) > 4 else 0
    if size < 1024 or size % 1024 or 4 + size >= len(charsmap) or charsmap[-1] != 0:
        raise_broken_tokenizer(path, "the normalizer's table is damaged")
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    inner = units >> 31 == 0  # a unit with the highest bit is a value
    # The offset has 22 bits from bit 10 on; bit 9 says that it counts in steps of 256.
    jumps = np.arange(len(units)) ^ (units >> 10 << ((units & 1 << 9) >> 6))
    if (jumps[inner] | 0xFF >= len(units)).any():  # any byte may be added to the target
        raise_broken_tokenizer(path, "the normalizer's table points outside itself")
    # A unit with bit 8 says that its jump leads to a value: the place of a text behind the table.
    offsets = units[jumps[inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    # These texts must begin at whole characters, or the normalizer's results could not be read back.
    texts = charsmap[4 + size :]
    starts = np.frombuffer(texts, dtype=np.uint8) & 0xC0 != 0x80
    if (offsets >= len(texts)).any() or not starts[offsets].all():
        raise_broken_tokenizer(path, "the normalizer's table points outside its texts")
    texts.decode("utf-8")
