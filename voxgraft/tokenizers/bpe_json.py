"""Tokenizers in the `tokenizers` JSON format with a BPE model, as Chatterbox has them.

The file is checked in full before the library sees it. What voxgraft cannot reason about (normalisers, byte
fallback, other pre-tokenizers) is refused, since promise 1 rests on knowing how a text is cut.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from voxgraft.errors import TokenizerError
from voxgraft.tokenizers.base import Tokenizer, TokenizerAdditions, raise_broken_tokenizer, raise_unsupported_tokenizer

MAX_TOKEN_ID = 1_000_000
_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class BpeJsonTokenizer(Tokenizer):
    """A `tokenizers` JSON file with a BPE model and the Whitespace pre-tokenizer."""

    kind = "bpe-json"

    def __init__(self, data: bytes, document: dict[str, Any], path: Path) -> None:
        _validate_bpe_json(document, path)
        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._document = document
        added = {token["content"]: token["id"] for token in document["added_tokens"]}
        ids = {**document["model"]["vocab"], **added}
        pieces: list[str | None] = [None] * (max(ids.values()) + 1)
        for piece, at in ids.items():
            pieces[at] = piece
        self.pieces = tuple(pieces)
        self.unknown_id = document["model"]["vocab"][document["model"]["unk_token"]]
        self._whole = frozenset(added.values())
        try:
            self._engine = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises nothing narrower
            found = str(error).splitlines()[0][:200]
            raise TokenizerError("tokenizer-broken", f"{path.name}: {found}", where=path) from None

    @property
    def control_ids(self) -> frozenset[int]:
        return self._whole

    def encode(self, prepared: str) -> list[int]:
        return list(self._engine.encode(prepared, add_special_tokens=False).ids)

    def encode_exact(self, surface: str) -> list[int]:
        return self.encode(surface)

    def unknown_text(self, prepared: str) -> str:
        encoding = self._engine.encode(prepared, add_special_tokens=False)
        if self.unknown_id not in encoding.ids:
            return ""
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return "".join(prepared[start:stop] for token, (start, stop) in spans if token == self.unknown_id)

    def normalise(self, prepared: str) -> str:
        return self._whole_pattern.sub(" ", prepared)

    @cached_property
    def _whole_pattern(self) -> re.Pattern[str]:
        contents = sorted((token["content"] for token in self._document["added_tokens"]), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, contents)) or r"(?!)")

    def units(self, prepared: str) -> list[tuple[str, ...]]:
        encoding = self._engine.encode(prepared, add_special_tokens=False)
        units: list[tuple[str, ...]] = []
        current: list[str] = []
        word: object = None
        for token, at in zip(encoding.ids, encoding.word_ids, strict=True):
            whole = token in self._whole or token == self.unknown_id
            if (whole or at != word) and current:
                units.append(tuple(current))
                current = []
            word = at
            if not whole:
                current.append(self.pieces[token] or "")
        if current:
            units.append(tuple(current))
        return units

    @cached_property
    def _merges_as_pairs(self) -> bool:
        merges = self._document["model"]["merges"]
        return bool(merges) and not isinstance(merges[0], str)

    def grown(self, additions: TokenizerAdditions) -> bytes:
        document = json.loads(json.dumps(self._document))
        vocab, merges = document["model"]["vocab"], document["model"]["merges"]
        at = self.size
        if additions.tag is not None:
            vocab[additions.tag] = at
            document["added_tokens"].append(_added_token(additions.tag, at))
            at += 1
        for piece in additions.pieces:
            vocab[piece.text] = at
            if piece.parts is not None:
                merges.append(list(piece.parts) if self._merges_as_pairs else " ".join(piece.parts))
            at += 1
        return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def _added_token(tag: str, at: int) -> dict[str, Any]:
    return {"id": at, "content": tag, **dict.fromkeys(_ADDED_TOKEN_FLAGS, False)}


def _validate_bpe_json(document: dict[str, Any], path: Path) -> None:
    """Refuse whatever is broken or beyond what we can prove things about."""
    model = document["model"]
    for key, accepted in _ACCEPTED.items():
        value = document.get(key)
        if value not in accepted:
            raise_unsupported_tokenizer(path, f"{key} is {_shorten_json(value)}", f"{_shorten_json(accepted[0])}")
    for key, accepted in _ACCEPTED_MODEL.items():
        value = model.get(key)
        if value not in accepted:
            raise_unsupported_tokenizer(path, f"model.{key} is {_shorten_json(value)}", f"{_shorten_json(accepted[0])}")
    vocab = _validate_vocab(model.get("vocab"), path)
    unknown = model.get("unk_token")
    if not isinstance(unknown, str) or unknown not in vocab:
        raise_broken_tokenizer(path, f"unk_token {_shorten_json(unknown)} is not in the vocabulary")
    _validate_added_tokens(document.get("added_tokens"), vocab, path)
    _validate_merges(model.get("merges"), vocab, path)


_WHITESPACE = {"type": "Whitespace"}
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "pre_tokenizer": (_WHITESPACE,),
    "post_processor": (None,),
    "truncation": (None,),
    "padding": (None,),
}
_ACCEPTED_MODEL: dict[str, tuple[Any, ...]] = {
    "type": ("BPE",),
    "dropout": (None, 0, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}


def _validate_vocab(vocab: Any, path: Path) -> dict[str, int]:
    if not isinstance(vocab, dict) or not vocab:
        raise_broken_tokenizer(path, "model.vocab is not a map from piece to id")
    for piece, at in vocab.items():
        if type(at) is not int or not 0 <= at < MAX_TOKEN_ID:
            raise_broken_tokenizer(
                path,
                f"piece {piece!r:.40} has id {_shorten_json(at)}",
                f"a whole number from 0 to {MAX_TOKEN_ID - 1:,}",
            )
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for piece, at in vocab.items():
            if at in seen:
                found = f"{seen[at]!r:.40} and {piece!r:.40} both have id {at}"
                raise TokenizerError("tokenizer-duplicate-id", found, where=path)
            seen[at] = piece
    return dict(vocab)


def _validate_added_tokens(added: Any, vocab: dict[str, int], path: Path) -> None:
    if not isinstance(added, list):
        raise_broken_tokenizer(path, "added_tokens is not a list")
    holders = {at: piece for piece, at in vocab.items()}
    seen: set[str] = set()
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
            raise_broken_tokenizer(path, f"added token {_shorten_json(token)} has no content")
        content, at = token["content"], token.get("id")
        if type(at) is not int or not 0 <= at < MAX_TOKEN_ID:
            raise_broken_tokenizer(path, f"added token {content!r:.40} has id {_shorten_json(at)}")
        if any(type(token.get(flag)) is not bool for flag in _ADDED_TOKEN_FLAGS):
            raise_broken_tokenizer(path, f"added token {content!r:.40} lacks one of {', '.join(_ADDED_TOKEN_FLAGS)}")
        if content in seen or vocab.get(content, at) != at or holders.get(at, content) != content:
            found = f"added token {content!r:.40} with id {at} clashes with another piece"
            raise TokenizerError("tokenizer-duplicate-id", found, where=path)
        seen.add(content)
        holders[at] = content


def _validate_merges(merges: Any, vocab: dict[str, int], path: Path) -> None:
    if not isinstance(merges, list):
        raise_broken_tokenizer(path, "model.merges is not a list")
    styles: set[type] = set()
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise_broken_tokenizer(path, f"merge {number} is {_shorten_json(merge)}", "two pieces")
        styles.add(type(merge))
        for piece in (*pair, "".join(pair)):
            if piece not in vocab:
                raise_broken_tokenizer(path, f"merge {number} needs {piece!r:.40}, which is not in the vocabulary")
    if len(styles) > 1:
        raise_broken_tokenizer(path, "merges are written in two styles")


def _shorten_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
