"""Opens a tokenizer file of any kind, recognised by its contents and not by its name."""

from __future__ import annotations

from pathlib import Path

from voxgraft.core.errors import TokenizerError
from voxgraft.core.files import decode_utf8, parse_json, read_bytes
from voxgraft.tokenizers.base import Tokenizer

# The published ones have under 1 MB.
MAX_TOKENIZER_BYTES = 16 << 20


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file: tokenizers-JSON BPE, SentencePiece unigram or BPE, or a flat map (to be judged)."""
    return parse_tokenizer(read_bytes(path, MAX_TOKENIZER_BYTES), path)


def parse_tokenizer(data: bytes, path: Path) -> Tokenizer:
    """The tokenizer in the bytes of a file; `path` is what errors name."""
    # On use: sentencepiece and tokenizers are slow to import, and commands without a tokenizer need neither.
    from voxgraft.tokenizers import formats

    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        return formats.parse_sentencepiece(data, path)
    document = parse_json(decode_utf8(data, path), path)
    if not isinstance(document, dict) or not document:
        raise TokenizerError("tokenizer-broken", f"{path.name} is not a tokenizer", where=path)
    if isinstance(document.get("model"), dict):
        return formats.BpeJsonTokenizer(data, document, path)
    if all(type(value) is int for value in document.values()):
        return formats.FlatMapTokenizer(data, document, path)
    found = f"{path.name} has the keys {', '.join(list(document)[:5])}"
    raise TokenizerError("tokenizer-broken", found, expected="a tokenizers-JSON file with a `model`", where=path)
