"""Text files of any declared encoding: marks at the start are believed, a name can be given, nothing is guessed."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from voxgraft.errors import ConfigError, TextError, VoxgraftError
from voxgraft.files import read_bytes

__all__ = ["MAX_TEXT_BYTES", "decode_text", "parse_error_line", "read_encoded_text", "read_text_skipping_bad_lines"]

MAX_TEXT_BYTES = 64 << 20
MAX_UNDECODABLE_SHARE = 0.2
"""Share of lines that may be in another encoding than their file."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""The longer marks first: one of UTF-16 begins one of UTF-32."""


def read_encoded_text(path: Path, encoding: str | None = None) -> str:
    """A whole text file; `encoding` is what the user says of files that do not say it themselves."""
    return decode_text(read_bytes(path, MAX_TEXT_BYTES), path, encoding)


def decode_text(data: bytes, where: Path | str, encoding: str | None = None) -> str:
    """Bytes as text, strictly; an error names the line of the first byte that does not fit."""
    name = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if name is not None:
        data = data.removeprefix(next(mark for mark, own in BYTE_ORDER_MARKS if own == name))
    chosen = name or _choose_encoding(data, encoding)
    try:
        text = data.decode(chosen)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TextError("text-encoding", f"line {line} holds {_describe_bad_byte(data, error)}", where=where) from None
    if "\x00" in text:
        raise TextError("text-binary", "the file holds NUL characters", where=where)
    return text


def read_text_skipping_bad_lines(path: Path, encoding: str | None = None) -> tuple[str, dict[int, str]]:
    """A text file in which single lines may have another encoding: these become empty and are given by number.

    Where many lines are undecodable the file as a whole has another encoding, which is an error.
    """
    data = read_bytes(path, MAX_TEXT_BYTES)
    try:
        return decode_text(data, path, encoding), {}
    except TextError as error:
        if error.code != "text-encoding" or not _is_line_decodable(data, encoding):
            raise
        lines, broken = data.removeprefix(codecs.BOM_UTF8).split(b"\n"), dict[int, str]()
        for at, line in enumerate(lines):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as fault:
                broken[at + 1] = (
                    f"{line.decode('utf-8', 'replace').strip()!r:.60} holds {_describe_bad_byte(line, fault)}"
                )
                lines[at] = b""
        if len(broken) > max(1, MAX_UNDECODABLE_SHARE * sum(map(bool, lines))):
            raise
        return decode_text(b"\n".join(lines), path), broken


def parse_error_line(error: VoxgraftError) -> int:
    """The line that an error of this module names; 0 where it names none."""
    found = re.match(r"line (\d+) ", error.finding.found)
    return int(found[1]) if found else 0


def _describe_bad_byte(data: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{data[error.start]:02x}, which is not {error.encoding.upper()}"


def _choose_encoding(data: bytes, encoding: str | None) -> str:
    """UTF-8 where the bytes are that, else what the user says: a folder may hold files of both kinds.

    Only encodings of one byte a letter give way. Text in the others (UTF-16, GBK, ISO-2022) can look like UTF-8.
    """
    name = _resolve_encoding(encoding)
    if name is None:
        return "utf-8"
    if len(bytes(range(256)).decode(name, "replace")) != 256:
        return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return name
    return "utf-8"


def _is_line_decodable(data: bytes, encoding: str | None) -> bool:
    """Whether the file is to be read as UTF-8, in which every line can be decoded by itself."""
    mark = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    return mark == "utf-8" or (mark is None and encoding is None)


def _resolve_encoding(encoding: str | None) -> str | None:
    if encoding is None:
        return None
    try:
        info = codecs.lookup(encoding)
        if not info._is_text_encoding:
            raise LookupError
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise ConfigError("text-encoding-unknown", f"there is no encoding {encoding!a:.40}") from None
    return info.name
