"""Sentences that are spoken to be judged: built-in sets, and a user's own by file. No torch here.

A set is held out: no training has seen its sentences, and none has heard the words that its column `rare` names.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from voxgraft.errors import TextError
from voxgraft.files import read_lines, read_text
from voxgraft.run_settings import LANGUAGE_PATTERN

__all__ = ["Sentence", "SentenceSet", "built_in_languages", "built_in_set", "read_sentences", "sets_of"]

FOLDER = "data/sentences"
ENDING = ".tsv"
COLUMNS = ("text", "rare", "phones")
BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, what it sounds like where that is known, and the words in it that no training has heard."""

    language: str
    text: str
    rare: tuple[str, ...] = ()
    phones: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SentenceSet:
    """The sentences of one language, and where they come from."""

    language: str
    source: str
    sha256: str
    sentences: tuple[Sentence, ...]

    def spread(self, most: int) -> SentenceSet:
        """At most so many of the sentences, evenly over the whole set, so that every kind keeps its share."""
        count = len(self.sentences)
        if count <= most:
            return self
        return replace(self, sentences=tuple(self.sentences[at * count // most] for at in range(most)))


def built_in_languages() -> list[str]:
    """Languages that have a set of ours."""
    folder = resources.files("voxgraft").joinpath(FOLDER)
    return sorted(entry.name.removesuffix(ENDING) for entry in folder.iterdir() if entry.name.endswith(ENDING))


def built_in_set(language: str) -> SentenceSet | None:
    """Our own set of a language, if there is one."""
    if language not in built_in_languages():
        return None
    with resources.as_file(resources.files("voxgraft").joinpath(f"{FOLDER}/{language}{ENDING}")) as path:
        return replace(read_sentences(path), source=BUILT_IN)


def read_sentences(path: Path) -> SentenceSet:
    """A set by file, named after its language: am.txt with a sentence on each line, or am.tsv with named columns."""
    language = path.stem
    if not re.fullmatch(LANGUAGE_PATTERN, language) or path.suffix not in (".txt", ENDING):
        expected = f"a file that is named after its language: am.txt, or am{ENDING}"
        raise TextError("sentences-name", f"{path.name} names no language", expected=expected, where=path)
    if path.suffix == ENDING:
        lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
        sentences = _from_table(lines, language, path)
    else:
        lines = list(read_lines(path))
        sentences = [Sentence(language, text) for _, text in lines]
    sentences = [replace(one, text=unicodedata.normalize("NFC", one.text)) for one in sentences]
    unique = {one.text: one for one in sentences if any(character.isalpha() for character in one.text)}
    if not unique:
        raise TextError("text-empty", f"{len(lines)} lines, none with a letter", where=path)
    return SentenceSet(language, path.name, _digest(unique.values()), tuple(unique.values()))


def sets_of(languages: Sequence[str], files: Sequence[Path], most: int) -> dict[str, SentenceSet]:
    """The sets of these languages: a user's own before ours; a language that has neither is left out."""
    own: dict[str, SentenceSet] = {}
    for path in files:
        found = read_sentences(path)
        if found.language in own:
            raise TextError("sentences-name", f"two sets of {found.language}", expected="one a language", where=path)
        if found.language not in languages:
            expected = f"one of {', '.join(languages)}"
            raise TextError("sentences-language", f"a set of {found.language}", expected=expected, where=path)
        own[found.language] = found
    chosen = {language: own.get(language) or built_in_set(language) for language in languages}
    return {language: found.spread(most) for language, found in chosen.items() if found is not None}


def _from_table(lines: Sequence[tuple[int, str]], language: str, path: Path) -> list[Sentence]:
    header = lines[0][1].split("\t") if lines else []
    unknown = [name for name in header if name not in COLUMNS]
    if "text" not in header or unknown or len(set(header)) != len(header):
        found = f"the first line is {' | '.join(header)!r:.80}"
        expected = "names of columns: text, and if you like rare and phones, with tabs between"
        raise TextError("sentences-columns", found, expected=expected, where=path)
    sentences = []
    for number, line in lines[1:]:
        cells = line.split("\t")
        if len(cells) > len(header):
            found = f"line {number} has {len(cells)} columns"
            raise TextError("sentences-columns", found, expected=f"{len(header)}", where=path)
        values = dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))
        phones = tuple(values.get("phones", "").split()) or None
        sentences.append(Sentence(language, values["text"].strip(), tuple(values.get("rare", "").split()), phones))
    return sentences


def _digest(sentences: Iterable[Sentence]) -> str:
    lines = (f"{one.text}\t{' '.join(one.rare)}\t{' '.join(one.phones or ())}\n" for one in sentences)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
