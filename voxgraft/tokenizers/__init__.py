"""One interface over every kind of text tokenizer, and the additions that a new language brings to one.

A file is recognized by its contents and not by its name. A tokenizer here reads text that its family's front has
prepared; it knows nothing of families, tags or languages.
"""

from __future__ import annotations

import hashlib
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import regex

from voxgraft.core.errors import FileError, TextError, TokenizerError
from voxgraft.core.files import (
    compute_sha256,
    decode_utf8,
    is_manifest,
    is_manifest_header,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    require_file,
    write_json,
)

TokenizerKind = Literal["bpe-json", "sentencepiece-unigram", "sentencepiece-bpe", "flat-map"]
ADDITIONS_FORMAT = "voxgraft-additions-1"
# The published ones have under 1 MB.
MAX_TOKENIZER_BYTES = 16 << 20
# SentencePiece's mark for a space before a word.
WORD_START = "▁"


@dataclass(frozen=True, slots=True)
class NewPiece:
    """One piece that a language adds. `parts` is the merge that makes it; a single character has none."""

    text: str
    parts: tuple[str, str] | None = None
    count: int = 0
    score: float | None = None
    """Log-probability; SentencePiece unigram only."""


@dataclass(frozen=True, slots=True)
class TokenizerAdditions:
    """All that a language adds to one base tokenizer, in id order: the tag, then characters, then merges."""

    family: str
    language: str
    kind: TokenizerKind
    base_sha256: str
    tag: str | None
    pieces: tuple[NewPiece, ...]

    @property
    def characters(self) -> tuple[NewPiece, ...]:
        return tuple(piece for piece in self.pieces if piece.parts is None)

    @property
    def merges(self) -> tuple[NewPiece, ...]:
        return tuple(piece for piece in self.pieces if piece.parts is not None)

    def __len__(self) -> int:
        return len(self.pieces) + (self.tag is not None)

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write as JSON."""
        write_json(path, self.to_json(), overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        return {"format": ADDITIONS_FORMAT, **asdict(self)}

    @classmethod
    def load(cls, path: Path) -> TokenizerAdditions:
        """Read back what `save` wrote; anything else is refused."""
        value = read_json(path)
        if not isinstance(value, dict) or value.get("format") != ADDITIONS_FORMAT:
            raise TokenizerError("additions-broken", f"{path.name} has no format {ADDITIONS_FORMAT!r}", where=path)
        try:
            pieces = []
            for item in value["pieces"]:
                text, parts = _require_text(item["text"]), None
                if item["parts"] is not None:
                    left, right = (_require_text(part) for part in item["parts"])
                    # A merge that makes another text would be one of base pieces, and change base text.
                    if left + right != text:
                        raise ValueError(f"{left!r:.40} and {right!r:.40} do not join to {text!r:.40}")
                    parts = left, right
                score = None if item["score"] is None else float(item["score"])
                pieces.append(NewPiece(text, parts, int(item["count"]), score))
            tag = None if value["tag"] is None else _require_text(value["tag"])
            names = [_require_text(value[key]) for key in ("family", "language", "kind", "base_sha256")]
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            reason = f"the key {error} is missing" if isinstance(error, KeyError) else f"a value is wrong ({error})"
            raise TokenizerError("additions-broken", f"{path.name}: {reason}", where=path) from None
        return cls(names[0], names[1], names[2], names[3], tag, tuple(pieces))  # type: ignore[arg-type]


def _require_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"expected text, found {value!r:.40}")
    return value


def raise_broken_tokenizer(path: Path, found: str, expected: str = "") -> NoReturn:
    """Refuse a tokenizer file that is damaged."""
    raise TokenizerError("tokenizer-broken", f"{path.name}: {found}", expected=expected, where=path)


def raise_unsupported_tokenizer(path: Path, found: str, expected: str) -> NoReturn:
    """Refuse a tokenizer file that works in a way about which nothing can be proven."""
    raise TokenizerError("tokenizer-unsupported", f"{path.name}: {found}", expected=expected, where=path)


class Tokenizer(ABC):
    """A tokenizer file, opened. Ids are 0 to size - 1; `pieces[id]` is None where the id map has a gap."""

    kind: ClassVar[TokenizerKind]
    path: Path
    data: bytes
    """The file's own bytes."""
    sha256: str
    pieces: tuple[str | None, ...]
    unknown_id: int
    control_ids: frozenset[int]
    """Ids of controls and tags, which are matched whole and never spelled from characters."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.path, self.data = path, data
        self.sha256 = hashlib.sha256(data).hexdigest()

    @property
    def size(self) -> int:
        """Highest id + 1: the number of rows that text can index."""
        return len(self.pieces)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id by piece."""
        return {piece: at for at, piece in enumerate(self.pieces) if piece is not None}

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        """Ids below size that no piece has."""
        return tuple(at for at, piece in enumerate(self.pieces) if piece is None)

    @cached_property
    def characters(self) -> frozenset[str]:
        """Every character of the pieces that text can become, so without tags and controls."""
        texts = (piece for at, piece in enumerate(self.pieces) if piece is not None and at not in self.control_ids)
        return frozenset("".join(texts))

    @abstractmethod
    def encode(self, prepared: str) -> list[int]:
        """Ids of text that the family's front has prepared."""

    def encode_exact(self, surface: str) -> list[int]:
        """Ids of a piece's own text, with nothing put before it."""
        return self.encode(surface)

    @abstractmethod
    def units(self, prepared: str) -> list[tuple[str, ...]]:
        """The spelling as pieces, cut into units that no piece may cross. Unknown characters end a unit."""

    @abstractmethod
    def unknown_text(self, prepared: str) -> str:
        """The characters of a text that became unknown tokens."""

    @abstractmethod
    def normalise(self, prepared: str) -> str:
        """What the file's own normalizer makes of prepared text; tags and controls in it become spaces."""

    @abstractmethod
    def grown(self, additions: TokenizerAdditions) -> bytes:
        """This tokenizer with the additions appended, as the bytes of a file of the same kind."""

    def has_control_token(self, tag: str) -> bool:
        """Whether a tag is one token, matched whole."""
        return self.ids.get(tag, -1) in self.control_ids

    def shown(self, token: int) -> str:
        """A token for people: its piece, or its number where it has none."""
        piece = self.pieces[token] if 0 <= token < self.size else None
        return piece if piece is not None else f"<{token}>"


_EXCESSIVE_MARKS = regex.compile(r"\p{M}{64}")
# A line up to this length is composed quickly, whatever it holds.
_MAX_UNCHECKED_LENGTH = 1000
# A text with this ending must be the manifest of a dataset; its clips' texts are read.
MANIFEST_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class TextCorpus:
    """The sentences of one or more files, in order, without repetitions."""

    sentences: tuple[str, ...]
    repeated: int = 0
    """Lines left out because an equal one came before."""
    renormalized: int = 0
    """Lines that were not in Unicode's composed form (NFC) and were brought into it."""


def read_texts(paths: Iterable[Path]) -> TextCorpus:
    """Sentences of the files. An error if no line of any holds a letter."""
    paths = tuple(paths)
    seen: dict[str, None] = {}
    lines = renormalised = 0
    for path in paths:
        for number, line in _iter_sentences(path):
            composed = _compose_nfc(line, number, path)
            lines += 1
            renormalised += composed != line
            seen[composed] = None
    if not any(character.isalpha() for sentence in seen for character in sentence):
        where = ", ".join(str(path) for path in paths)
        raise TextError("text-empty", f"none of {lines} lines contains a letter", where=where)
    return TextCorpus(tuple(seen), lines - len(seen), renormalised)


def _iter_sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text; of a dataset's manifest, the texts of the clips in the training split."""

    def parse(line: str, number: int) -> Any:
        try:
            return parse_json(line, path)
        except FileError as error:
            reason = error.finding.found.removeprefix("line 1, ")
            raise TextError("text-manifest", f"line {number} is not valid JSON: {reason}", where=path) from None

    lines = read_lines(path)
    if path.suffix != MANIFEST_SUFFIX:
        yield from lines
        return
    for number, line in lines:
        # As text, other JSON would be learned with its keys and braces.
        if not is_manifest_header(parse(line, number)):
            raise TextError("text-manifest", f"line {number} is not the header of a dataset manifest", where=path)
        break
    for number, line in lines:
        clip = parse(line, number)
        text = clip.get("text") if isinstance(clip, dict) else None
        if not isinstance(text, str):
            raise TextError("text-manifest", f"line {number} has no text", where=path)
        held_out = clip.get("split") not in (None, "train")
        rejected = bool(clip.get("rejected")) and not clip.get("taken_back")
        if text.strip() and not held_out and not rejected:
            yield number, text.strip()


def require_texts(path: Path) -> None:
    """Refuse a file of texts that does not exist, and a `.jsonl` that is not a dataset's manifest."""
    require_file(path)
    if path.suffix == MANIFEST_SUFFIX:
        for _ in _iter_sentences(path):
            pass


def compute_texts_sha256(path: Path) -> str:
    """SHA-256 of the texts of a file; of a manifest only of those that are learned from, not of all it says."""
    if path.suffix != MANIFEST_SUFFIX or not is_manifest(path):
        return compute_sha256(path)
    digest = hashlib.sha256()
    for _, text in _iter_sentences(path):
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


@cache
def load_proof_corpus() -> tuple[tuple[str, str], ...]:
    """The built-in corpus of base languages: language code and sentence. English first: most people can read it."""
    folder = resources.files("voxgraft").joinpath("assets/proof")
    names = sorted((entry.name for entry in folder.iterdir()), key=lambda name: (name != "en.txt", name))
    return tuple(
        (name.removesuffix(".txt"), line)
        for name in names
        if name.endswith(".txt")
        for line in folder.joinpath(name).read_text(encoding="utf-8").splitlines()
    )


def read_user_corpus(paths: Iterable[Path], known: frozenset[str]) -> Iterator[tuple[str | None, str]]:
    """A user's own proof texts. A file that is named after a known language (`fr.txt`) is of that language."""
    for path in paths:
        code = path.stem if path.stem in known else None
        for number, line in read_lines(path):
            yield code, _compose_nfc(line, number, path)


def _compose_nfc(line: str, number: int, path: Path) -> str:
    # Composing sorts marks, which takes forever if there are a megabyte of them on one letter.
    if len(line) > _MAX_UNCHECKED_LENGTH and (heap := _EXCESSIVE_MARKS.search(line)):
        found = f"line {number} has over 64 marks on one letter, from character {heap.start() + 1:,} on"
        raise TextError("text-marks", found, where=path)
    return unicodedata.normalize("NFC", line)


def open_tokenizer(path: Path, *, judged: bool = False) -> Tokenizer:
    """The tokenizer in a file: tokenizers-JSON BPE, SentencePiece unigram or BPE, or a flat map (to be judged).

    One that is only `judged` may have lost its unknown token, which is put back so that the rest can be looked at, and
    its added tokens may have other ids than the file says.
    """
    return parse_tokenizer(read_bytes(path, MAX_TOKENIZER_BYTES), path, judged=judged)


def parse_tokenizer(data: bytes, path: Path, *, judged: bool = False) -> Tokenizer:
    """The tokenizer in the bytes of a file; `path` is what errors name."""
    # On use: sentencepiece and tokenizers are slow to import, and commands without a tokenizer need neither.
    from voxgraft.tokenizers import formats

    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        return formats.parse_sentencepiece(data, path)
    document = parse_json(decode_utf8(data, path), path)
    if not isinstance(document, dict) or not document:
        raise TokenizerError("tokenizer-broken", f"{path.name} is not a tokenizer", where=path)
    if isinstance(document.get("model"), dict):
        lost = formats.restore_unknown_token(document) if judged else None
        tokenizer = formats.BpeJsonTokenizer(data, document, path, judged=judged)
        tokenizer.lost_unknown = lost
        return tokenizer
    if all(type(value) is int for value in document.values()):
        return formats.FlatMapTokenizer(data, document, path)
    found = f"{path.name} has the keys {', '.join(list(document)[:5])}"
    raise TokenizerError("tokenizer-broken", found, expected="a tokenizers-JSON file with a `model`", where=path)
