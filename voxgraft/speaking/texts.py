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
from voxgraft.language_names import suggest_language_code
from voxgraft.run_settings import LANGUAGE_PATTERN
from voxgraft.speaking.pieces import has_speakable_text

__all__ = ["UtteranceRequest", "read_utterances"]

TEXT_COLUMNS = ("text", "language", "voice", "name")
STANDARD_INPUT = Path("-")
MAX_INPUT_BYTES = 64 << 20
_UTTERANCE_NAME = re.compile(r"[^\W_][\w.-]{0,80}")


@dataclass(frozen=True, slots=True)
class UtteranceRequest:
    """One text, and what it says itself of how it is said."""

    name: str
    text: str
    language: str | None = None
    voice: str | None = None


def read_utterances(texts: Sequence[str], file: Path | None) -> list[UtteranceRequest]:
    """Texts first, then those of the file, named by their numbers unless a table names them."""
    rows: list[dict[str, str]] = [{"text": text} for text in texts]
    where = "command line"
    if file is not None:
        where = "standard input" if file == STANDARD_INPUT else str(file)
        rows += _read_rows(file)
    if not rows:
        raise TextError("speak-nothing", "there is no text", where=where)
    width = max(3, len(str(len(rows))))
    found = [_parse_utterance(row, f"{number:0{width}d}", where) for number, row in enumerate(rows, 1)]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TextError(
            "speak-table", f"two utterances are named {twice[0]}", expected="names of their own", where=where
        )
    return found


def _parse_utterance(row: dict[str, str], number: str, where: str) -> UtteranceRequest:
    text = unicodedata.normalize("NFC", row["text"]).strip()
    if not has_speakable_text(text):
        raise TextError("speak-nothing", f"utterance {number} is {text!r:.60}", expected="words", where=where)
    language, name = row.get("language") or None, row.get("name") or number
    if language is not None and not re.fullmatch(LANGUAGE_PATTERN, language):
        cure = suggest_language_code(language, "language")
        found = f"utterance {number} is in {language!r:.40}"
        raise TextError("speak-table", found, expected="a code, such as en", where=where, cure=cure)
    if not _UTTERANCE_NAME.fullmatch(name):
        raise TextError("speak-table", f"the name {name!r:.60}", expected="letters, digits, . _ and -", where=where)
    return UtteranceRequest(name, text, language, row.get("voice") or None)


def _read_rows(file: Path) -> Iterator[dict[str, str]]:
    if file == STANDARD_INPUT:
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        if len(data) > MAX_INPUT_BYTES:
            found = f"over {MAX_INPUT_BYTES:,} bytes"
            raise TextError("speak-table", found, expected=f"at most {MAX_INPUT_BYTES:,}", where="standard input")
        lines = text_lines(decode_utf8(data, "standard input"))
        yield from ({"text": line} for line in lines if line.strip())
    elif file.suffix.lower() == ".tsv":
        yield from _read_table_rows(file)
    else:
        yield from ({"text": text} for _, text in read_lines(file))


def _read_table_rows(file: Path) -> Iterator[dict[str, str]]:
    rows = [line.split("\t") for line in text_lines(read_text(file, MAX_INPUT_BYTES)) if line.strip()]
    header, lines = (rows[0], rows[1:]) if rows else ([""], [])
    if "text" not in header or set(header) - set(TEXT_COLUMNS) or len(set(header)) != len(header):
        found = f"the first line is {' | '.join(header)!r:.80}"
        raise TextError("speak-table", found, expected=" and ".join(TEXT_COLUMNS), where=file)
    for number, cells in enumerate(lines, 1):
        if len(cells) > len(header):
            found = f"row {number} has {len(cells)} columns"
            raise TextError("speak-table", found, expected=f"{len(header)}", where=file)
        yield {name: cell.strip() for name, cell in zip(header, cells, strict=False)} | (
            {} if cells and header.index("text") < len(cells) else {"text": ""}
        )
