"""Texts, damaged as files that went through other programs are: encodings, marks, control codes, lines without end."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from tests.fuzz.target import Random

ODD_CHARACTERS = (
    *(
        "\x00",
        "\x01",
        "\x07",
        "\x1b[31m",
        "\x1c",
        "\x7f",
        "\x85",
        "\u00ad",
        "\u200b",
        "\u200d",
        "\u2028",
        "\u2029",
        "\u202e",
    ),
    *(
        "\ufeff",
        "\ufffd",
        "\ufffe",
        "\ue000",
        "\U0001f600",
        "\U000e0001",
        "\U0010ffff",
        "\u0301" * 40,
        "ﷺ",
        "ﬁ",
        "™",
        "İ",
        "ß",
        "[am]",
    ),
    *(
        "[SPACE]",
        "\u1361",
        "፠",
        "&",
        "→",
        "\u0300\u0315" * 30,
        "\t",
        "\v",
        "\f",
        "\r",
        "\n\n",
        "\r\n",
        "\n\r",
        " " * 500,
    ),
)
ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-7", "utf-8-sig")
ODD_BYTES = (
    b"\xff",
    b"\xfe\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe1\x88",
    b"\x80",
    b"\xef\xbb\xbf",
    b"\x00",
)
Edit = Callable[[bytes, Random], bytes]


def edited(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to three injuries, and their names."""
    names = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        data = edit(data, rng)
        names.append(edit.__name__)
    return data, " + ".join(names)


def odd_character(data: bytes, rng: Random) -> bytes:
    text = data.decode("utf-8", "ignore")
    for _ in range(rng.choice((1, 1, 20))):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(ODD_CHARACTERS) + text[at:]
    return text.encode()


def odd_bytes(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(ODD_BYTES) + data[at:]


def other_encoding(data: bytes, rng: Random) -> bytes:
    return data.decode("utf-8", "ignore").encode(rng.choice(ENCODINGS))


def other_normal_form(data: bytes, rng: Random) -> bytes:
    lines = data.decode("utf-8", "ignore").split("\n")
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    return "\n".join(unicodedata.normalize(rng.choice(forms), line) for line in lines).encode()  # type: ignore[arg-type]


def other_line_ends(data: bytes, rng: Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\r", b"", b"\x85", b"\n\n\n", b"\v")))


def long_line(data: bytes, rng: Random) -> bytes:
    letter = rng.choice(("a", "ሰ", "ab ", "\u0301", "\u0315\u0300", "1", ".", "՞a", " ", "é")).encode()
    return data + letter * rng.choice((2000, 20_000))


def only_odd(data: bytes, rng: Random) -> bytes:
    del data
    return rng.choice(
        (
            b"",
            b"\n",
            b" \t \n" * 9,
            b"\xef\xbb\xbf",
            b"123 456\n",
            b"\x00" * 64,
            b"a",
            "ሰ".encode(),
            b"...\n!!!\n",
            b"\r",
        )
    )


def any_unicode(data: bytes, rng: Random) -> bytes:
    codes = [rng.randrange(0x110000) for _ in range(rng.choice((10, 300)))]
    return data + b"\n" + "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000).encode()


EDITS: tuple[Edit, ...] = (
    *(odd_character, odd_character, odd_bytes, other_encoding, other_normal_form, other_line_ends, long_line),
    *(only_odd, any_unicode),
)


# ---- another form, the same sentences ---------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """A byte-order mark, other line ends, empty lines, spaces, repetitions, no newline at the end, other normal forms."""
    lines = [line for line in data.decode().split("\n") if line]
    form = rng.choice(("NFC", "NFD"))
    lines = [unicodedata.normalize(form, line) for line in lines]  # type: ignore[arg-type]
    lines = [rng.choice(("", " ", "\t", "\u00a0")) + line + rng.choice(("", "  ", "\t")) for line in lines]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(lines) + 1)
        lines.insert(at, rng.choice(("", "   ", lines[at - 1] if at else "")))
    text = rng.choice(("\n", "\r\n")).join(lines) + rng.choice(("", "\n", "\r\n"))
    return rng.choice((b"", b"\xef\xbb\xbf")) + text.encode(), f"line ends, spaces, {form}"
