"""Text files of any declared encoding: marks at the start are believed, a name can be given, nothing is guessed."""

from __future__ import annotations

import codecs
from pathlib import Path

from voxgraft.errors import ConfigError, TextError
from voxgraft.files import read_bytes

__all__ = ["MAX_TEXT_BYTES", "decoded", "read_any_text"]

MAX_TEXT_BYTES = 64 << 20
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""The longer marks first: one of UTF-16 begins one of UTF-32."""


def read_any_text(path: Path, encoding: str | None = None) -> str:
    """A whole text file; `encoding` is what the user says of files that do not say it themselves."""
    return decoded(read_bytes(path, MAX_TEXT_BYTES), path, encoding)


def decoded(data: bytes, where: Path | str, encoding: str | None = None) -> str:
    """Bytes as text, strictly; an error names the line of the first byte that does not fit."""
    name = next((name for mark, name in MARKS if data.startswith(mark)), None)
    if name is not None:
        data = data.removeprefix(next(mark for mark, own in MARKS if own == name))
    chosen = name or _known(encoding) or "utf-8"
    try:
        text = data.decode(chosen)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = f"line {line} holds byte 0x{data[error.start]:02x}, which is not {chosen.upper()}"
        raise TextError("text-encoding", found, where=where) from None
    if "\x00" in text:
        raise TextError("text-binary", "the file holds NUL characters", where=where)
    return text


def _known(encoding: str | None) -> str | None:
    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        if not info._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise ConfigError("text-encoding-unknown", f"there is no encoding {encoding!a:.40}") from None
    return info.name
