"""What is said: texts of a command line, of a file with one on each line, of a table, or of standard input.

Reads and checks; chooses no model and splits nothing. No torch here.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxgraft.errors import TextError
from voxgraft.files import decode_utf8, read_lines, read_text, text_lines
from voxgraft.language_names import did_you_mean
from voxgraft.run_settings import LANGUAGE_PATTERN
from voxgraft.speaking.pieces import can_be_said

__all__ = ["Utterance", "utterances_of"]

COLUMNS = ("text", "language", "voice", "name")
STANDARD_INPUT = Path("-")
MAX_INPUT_BYTES = 64 << 20
_NAME = re.compile(r"[^\W_][\w.-]{0,80}")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One text, and what it says itself of how it is said."""

    name: str
    text: str
    language: str | None = None
    voice: str | None = None


def utterances_of(texts: Sequence[str], file: Path | None) -> list[Utterance]:
    """Texts first, then those of the file, named by their numbers unless a table names them."""
    rows: list[dict[str, str]] = [{"text": text} for text in texts]
    where = "command line"
    if file is not None:
        where = "standard input" if file == STANDARD_INPUT else str(file)
        rows += _rows_of(file)
    if not rows:
        raise TextError("speak-nothing", "there is no text", where=where)
    width = max(3, len(str(len(rows))))
    found = [_utterance(row, f"{number:0{width}d}", where) for number, row in enumerate(rows, 1)]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TextError(
            "speak-table", f"two utterances are named {twice[0]}", expected="names of their own", where=where
        )
    return found


def _utterance(row: dict[str, str], number: str, where: str) -> Utterance:
    text = unicodedata.normalize("NFC", row["text"]).strip()
    if not can_be_said(text):
        raise TextError("speak-nothing", f"utterance {number} is {text!r:.60}", expected="words", where=where)
    language, name = row.get("language") or None, row.get("name") or number
    if language is not None and not re.fullmatch(LANGUAGE_PATTERN, language):
        cure = did_you_mean(language, "language")
        found = f"utterance {number} is in {language!r:.40}"
        raise TextError("speak-table", found, expected="a code, such as en", where=where, cure=cure)
    if not _NAME.fullmatch(name):
        raise TextError("speak-table", f"the name {name!r:.60}", expected="letters, digits, . _ and -", where=where)
    return Utterance(name, text, language, row.get("voice") or None)


def _rows_of(file: Path) -> Iterator[dict[str, str]]:
    if file == STANDARD_INPUT:
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if len(data) > MAX_INPUT_BYTES:
            found = f"over {MAX_INPUT_BYTES:,} bytes"
            raise TextError("speak-table", found, expected=f"at most {MAX_INPUT_BYTES:,}", where="standard input")
        lines = text_lines(decode_utf8(data, "standard input"))
        yield from ({"text": line} for line in lines if line.strip())
    elif file.suffix.lower() == ".tsv":
        yield from _from_table(file)
    else:
        yield from ({"text": text} for _, text in read_lines(file))


def _from_table(file: Path) -> Iterator[dict[str, str]]:
    rows = [line.split("\t") for line in text_lines(read_text(file, MAX_INPUT_BYTES)) if line.strip()]
    header, lines = (rows[0], rows[1:]) if rows else ([""], [])
    if "text" not in header or set(header) - set(COLUMNS) or len(set(header)) != len(header):
        found = f"the first line is {' | '.join(header)!r:.80}"
        raise TextError("speak-table", found, expected=" and ".join(COLUMNS), where=file)
    for number, cells in enumerate(lines, 1):
        if len(cells) > len(header):
            found = f"row {number} has {len(cells)} columns"
            raise TextError("speak-table", found, expected=f"{len(header)}", where=file)
        yield {name: cell.strip() for name, cell in zip(header, cells, strict=False)} | (
            {} if cells and header.index("text") < len(cells) else {"text": ""}
        )
