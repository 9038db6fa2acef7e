"""YAML, damaged line by line and value by value: tags, aliases, merges, bombs; and changed in its form alone."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.fuzz.target import Random

BOM = b"\xef\xbb\xbf"
ODD_VALUES = (
    *(
        "",
        "~",
        "null",
        "true",
        "no",
        "0",
        "-1",
        "1.5",
        "1e400",
        "1e-400",
        ".nan",
        ".inf",
        "-.inf",
        "1_000",
        "0x1F",
        "0b101",
    ),
    *(
        "0o17",
        "017",
        "1:30:45",
        "190:20:30.15",
        "2001-01-01",
        "2001-13-45",
        "2001-12-14t21:59:43.10-05:00",
        "=",
        "<<",
        "0x_",
    ),
    *(
        "'text'",
        '"text"',
        '"\\0"',
        '"\\ud800"',
        '"\\U00110000"',
        '"\\x41\\u1234"',
        "'unclosed",
        '"unclosed',
        "@at",
        "`tick`",
    ),
    *(
        "[]",
        "{}",
        "[1, 2, 3]",
        "{a: 1}",
        "[[[[]]]]",
        "{a: {b: {c: {d: 1}}}}",
        "[a, b",
        "{a: b",
        "a: b: c",
        "- x",
        "? y",
    ),
    *(
        "&a x",
        "*a",
        "*missing",
        "&a [*a]",
        "!!int '5'",
        "!!int ''",
        "!!float ''",
        "!!bool x",
        "!!null x",
        "!!timestamp x",
    ),
    *(
        "!!binary '%%%'",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!str 5",
        "!!python/none",
        "!x y",
    ),
    *(
        "!!python/object/apply:os.system ['touch canary']",
        "!!python/name:os.system",
        "!!python/tuple [1]",
        "!<tag:x> y",
        "!",
    ),
    *(
        "|\n  block",
        ">\n  folded",
        "|9\n  x",
        "|+",
        "../../../etc/passwd",
        "/",
        "~",
        "~/x",
        "a\tb",
        "\tx",
        "#",
        "%x",
        "é",
        "ሰላም",
    ),
    *(
        "9" * 90,
        "9" * 5000,
        "0x" + "f" * 5000,
        "0b" + "1" * 20_000,
        "1:" * 3000 + "1",
        "x" * 300,
        "x" * 20_000,
        "a/" * 5000 + "a",
    ),
    *(
        "[" * 63 + "]" * 63,
        "[" * 70 + "]" * 70,
        "[" * 5000,
        "{a: " * 70,
        "- " * 70 + "x",
        "? " * 70 + "x",
        "\u2028",
        "\x85",
        "\u202e",
    ),
)
ODD_LINES = (
    *(
        "<<: {a: 1}",
        "<<: [1]",
        "<<: x",
        "<<: *a",
        "? [a, b]\n: c",
        "? {a: b}\n: c",
        "[a]: b",
        "{}: 1",
        "~: 1",
        "1: 2",
        "1.5: x",
    ),
    *(
        "true: x",
        "2001-01-01: x",
        '"": x',
        '"\\0": x',
        "!!int '1': x",
        "&a b: c",
        "---",
        "...",
        "%YAML 1.1",
        "%YAML 9.9",
        "%TAG ! x",
    ),
    *(
        "\tkey: tab",
        "  stray: indent",
        "key",
        ": x",
        "- item",
        "key: value: more",
        "# only a comment",
        "'quoted': x",
        "x" * 200 + ": 1",
    ),
)
_VALUE = re.compile(r"^(\s*(?:- )?[\w.\-\"']+:)(.*)$")


def edited(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to three injuries, and their names."""
    lines, names = data.decode().split("\n"), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        edit(lines, rng)
        names.append(edit.__name__)
    return "\n".join(lines).encode("utf-8", "surrogatepass"), " + ".join(names)


def _keyed(lines: list[str]) -> list[int]:
    return [at for at, line in enumerate(lines) if _VALUE.match(line) and not line.lstrip().startswith("#")] or [0]


def odd_value(lines: list[str], rng: Random) -> None:
    at = rng.choice(_keyed(lines))
    key = match[1] if (match := _VALUE.match(lines[at])) else "key:"
    lines[at] = f"{key} {rng.choice(ODD_VALUES)}"


def odd_line(lines: list[str], rng: Random) -> None:
    indent = rng.choice(("", "", "  ", "    "))
    lines.insert(rng.randrange(len(lines) + 1), indent + rng.choice(ODD_LINES))


def doubled_line(lines: list[str], rng: Random) -> None:
    at = rng.choice(_keyed(lines))
    lines.insert(rng.randrange(len(lines) + 1), lines[at])


def lost_line(lines: list[str], rng: Random) -> None:
    del lines[rng.choice(_keyed(lines))]
    if not lines:
        lines.append("")


def moved_indent(lines: list[str], rng: Random) -> None:
    at = rng.choice(_keyed(lines))
    lines[at] = rng.choice(("  ", " ", "\t", "      ")) + lines[at] if rng.random() < 0.6 else lines[at].lstrip()


def odd_key(lines: list[str], rng: Random) -> None:
    at = rng.choice(_keyed(lines))
    names = ("pices", "Base", "base ", "train.steps", "1", "~", "x" * 3000, "text_weigth", '"a b"', "no", "family", "é")
    lines[at] = re.sub(r"[\w.\-\"']+:", lambda _: f"{rng.choice(names)}:", lines[at], count=1)


def swapped_lines(lines: list[str], rng: Random) -> None:
    one, two = rng.choice(_keyed(lines)), rng.choice(_keyed(lines))
    lines[one], lines[two] = lines[two], lines[one]


def alias_bomb(lines: list[str], rng: Random) -> None:
    """Each line nine times the one before."""
    lines.append("a0: &a0 [x, x, x]")
    lines.extend(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, rng.choice((3, 10))))


def many_keys(lines: list[str], rng: Random) -> None:
    count = rng.choice((20, 300))
    lines.extend(f"key{at}: {at}" for at in range(count))
    if rng.random() < 0.5:
        lines.append(f"key{count - 1}: again")


def only_value(lines: list[str], rng: Random) -> None:
    lines[:] = [rng.choice((*ODD_VALUES, *ODD_LINES))]


EDITS: tuple[Callable[[list[str], Random], None], ...] = (
    *(odd_value, odd_value, odd_value, odd_line, odd_line, doubled_line, lost_line, moved_indent, odd_key),
    *(swapped_lines, alias_bomb, many_keys, only_value),
)


# ---- another form, the same meaning ----------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Comments, empty lines, spaces at the end, a document start, Windows line ends, a byte-order mark."""
    lines = data.decode().split("\n")
    for _ in range(rng.randrange(1, 8)):
        lines.insert(
            rng.randrange(len(lines) + 1), rng.choice(("", "# a remark: with a colon", "   # indented remark", "  "))
        )
    if rng.random() < 0.3:
        lines = [
            line + rng.choice(("", " ", "  # remark")) if _VALUE.match(line) and '"' not in line else line
            for line in lines
        ]
    if rng.random() < 0.3:
        lines.insert(0, "---")
    text = rng.choice(("\n", "\r\n")).join(lines)
    return rng.choice((b"", BOM)) + text.encode(), "remarks, spaces, line ends"
