"""Reading a user's texts: strict UTF-8, one sentence per line, one normal form, each sentence once.

The manifest of a dataset is a text too: what is said in its clips.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import regex

from voxgraft.errors import TextError
from voxgraft.files import parse_json, read_lines

_EXCESSIVE_MARKS = regex.compile(r"\p{M}{64}")
_MAX_UNCHECKED_LENGTH = 1000
"""A line up to this length is composed quickly, whatever it holds."""
MANIFEST_SUFFIX, MANIFEST_PREFIX = ".jsonl", '{"voxgraft_manifest"'
"""How the manifest of a dataset is told from a text."""


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
        raise TextError("text-empty", f"{lines} lines, none with a letter", where=where)
    return TextCorpus(tuple(seen), lines - len(seen), renormalised)


def _iter_sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text; of a dataset's manifest, what is said in the clips that are learnt from."""
    lines = read_lines(path)
    for number, line in lines:
        if number == 1 and path.suffix == MANIFEST_SUFFIX and line.startswith(MANIFEST_PREFIX):
            break
        yield number, line
    for number, line in lines:
        clip = parse_json(line, f"{path}, line {number}")
        text = clip.get("text") if isinstance(clip, dict) else None
        if not isinstance(text, str):
            raise TextError("text-manifest", f"line {number} says no text", where=path)
        held_out = clip.get("split") not in (None, "train")
        rejected = bool(clip.get("rejected")) and not clip.get("taken_back")
        if text.strip() and not held_out and not rejected:
            yield number, text.strip()


def load_proof_corpus() -> Iterator[tuple[str, str]]:
    """The built-in corpus of base languages: language code and sentence. English first: most people can read it."""
    folder = resources.files("voxgraft").joinpath("data/proof")
    for entry in sorted(folder.iterdir(), key=lambda item: (item.name != "en.txt", item.name)):
        if entry.name.endswith(".txt"):
            code = entry.name.removesuffix(".txt")
            for line in entry.read_text(encoding="utf-8").splitlines():
                yield code, line


def read_user_corpus(paths: Iterable[Path], known: frozenset[str]) -> Iterator[tuple[str | None, str]]:
    """A user's own proof texts. A file that is named after a known language (`fr.txt`) is of that language."""
    for path in paths:
        code = path.stem if path.stem in known else None
        for number, line in read_lines(path):
            yield code, _compose_nfc(line, number, path)


def _compose_nfc(line: str, number: int, path: Path) -> str:
    """The line in NFC. Marks are sorted for that, which takes for ever when a megabyte of them stands on one letter."""
    if len(line) > _MAX_UNCHECKED_LENGTH and (heap := _EXCESSIVE_MARKS.search(line)):
        found = f"line {number} has over 64 marks on one letter, from character {heap.start() + 1:,} on"
        raise TextError("text-marks", found, where=path)
    return unicodedata.normalize("NFC", line)
