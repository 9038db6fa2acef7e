"""The flat token-to-id map that some forks write in place of a tokenizer (`Am_tokenizer_merged.json`).

It has no merges, so it can only look single characters up. It is read in order to be judged, never to be used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from voxgraft.errors import TokenizerError
from voxgraft.tokenizers.base import Tokenizer, TokenizerAdditions
from voxgraft.tokenizers.bpe_json import MAX_TOKEN_ID

_UNKNOWN_TOKENS = ("<UNK>", "<unk>")
_FALLBACK_UNKNOWN_ID = 1
"""The id that the forks' own lookup falls back to when neither name is there."""


class FlatMapTokenizer(Tokenizer):
    """A map from token to id, spelled character by character as the forks do it."""

    kind = "flat-map"

    def __init__(self, data: bytes, document: dict[str, Any], path: Path) -> None:
        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        for piece, at in document.items():
            if type(at) is not int or not 0 <= at < MAX_TOKEN_ID:
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

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(at for at, piece in enumerate(self.pieces) if piece and len(piece) > 2 and piece[0] in "[<")

    def encode(self, prepared: str) -> list[int]:
        return [self.ids.get(character, self.unknown_id) for character in prepared]

    def encode_exact(self, surface: str) -> list[int]:
        return self.encode(surface)

    def unknown_text(self, prepared: str) -> str:
        return "".join(character for character in prepared if character not in self.ids)

    def normalise(self, prepared: str) -> str:
        return prepared

    def units(self, prepared: str) -> list[tuple[str, ...]]:
        return [tuple(word) for word in prepared.split()]

    def grown(self, additions: TokenizerAdditions) -> bytes:
        del additions
        raise TokenizerError("tokenizer-flat-map", f"{self.path.name} cannot grow: it has no merges", where=self.path)
