"""JSON, damaged in its structure: odd values, lost and doubled keys, bombs; and changed in its form alone.

Objects are lists of pairs here, so that a key can stand twice.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from tests.fuzz.target import Random

BOM = b"\xef\xbb\xbf"


class Pairs(list[tuple[str, Any]]):
    """A JSON object."""


class Raw(str):
    """Text that is written as it is, JSON or not."""

    __slots__ = ()


Slot = tuple[list[Any], int]
"""A place that holds a value: an object or array, and the index in it."""
Edit = Callable[[Any, Random], None]

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 255, 1.5, -0.0, 1e308, 2**31, 2**53 + 1, 2**63, 10**9, 10**40),
    *(
        "",
        " ",
        "\ud800",
        "\udcff",
        "\x00",
        "\u202e",
        "a\nb",
        "..",
        "/etc/passwd",
        "[am]",
        "▁",
        "é",
        "e\u0301",
        "\U0010ffff",
    ),
    *([], [[]], [None], [1, 2, 3], Pairs(), Pairs([("", 1)]), Pairs([("a", None)]), "x" * 20_000, [0] * 5000),
    *(Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-1e999"), Raw("9" * 4299), Raw("9" * 5000)),
    *(Raw("0x10"), Raw("01"), Raw("1."), Raw("'a'"), Raw('"\\ud83d"'), Raw('"\\x41"'), Raw('"\t"'), Raw("1e-999")),
    *(Raw("[" * 60 + "]" * 60), Raw("[" * 900 + "]" * 900), Raw("[" * 100_000), Raw('{"a":' * 50_000)),
    *(Raw('{"a":' * 300 + "1" + "}" * 300), Raw("// note\n1"), Raw("1,")),
)


def parsed(data: bytes) -> Any:
    """A document whose objects are `Pairs`."""
    return json.loads(data.decode("utf-8-sig"), object_pairs_hook=Pairs)


def rendered(tree: Any, *, ascii_only: bool = True, between: str = ", ", after_key: str = ": ") -> str:
    """A document as text."""
    if isinstance(tree, Raw):
        return str(tree)
    style = {"ascii_only": ascii_only, "between": between, "after_key": after_key}
    if isinstance(tree, Pairs):
        items = (f"{_text(key, ascii_only)}{after_key}{rendered(value, **style)}" for key, value in tree)  # type: ignore[arg-type]
        return "{" + between.join(items) + "}"
    if isinstance(tree, list):
        return "[" + between.join(rendered(value, **style) for value in tree) + "]"  # type: ignore[arg-type]
    return _text(tree, ascii_only)


def _text(value: Any, ascii_only: bool) -> str:
    text = json.dumps(value, ensure_ascii=ascii_only)
    return text if ascii_only else text.encode("utf-8", "backslashreplace").decode()


def edited(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to three injuries to the structure, and their names."""
    tree, names = parsed(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        edit(tree, rng)
        names.append(edit.__name__)
    text = rendered(tree, ascii_only=rng.random() < 0.8)
    return text.encode("utf-8", "surrogatepass"), " + ".join(names)


def edited_lines(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Injuries to one line of JSON Lines."""
    lines = data.split(b"\n")
    at = rng.choice([at for at, line in enumerate(lines) if line])
    lines[at], how = edited(lines[at], rng)
    return b"\n".join(lines), how


def slots(tree: Any) -> list[Slot]:
    """Every place in the document that holds a value, but for its root."""
    found: list[Slot] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            found.extend((node, at) for at in range(len(node)))
            waiting.extend(pair[1] for pair in node) if isinstance(node, Pairs) else waiting.extend(node)
    return found


def value_at(slot: Slot) -> Any:
    container, at = slot
    return container[at][1] if isinstance(container, Pairs) else container[at]


def put(slot: Slot, value: Any) -> None:
    container, at = slot
    container[at] = (container[at][0], value) if isinstance(container, Pairs) else value


def _any_slot(tree: Any, rng: Random) -> Slot | None:
    """Of the upper places as often as of the many at the bottom."""
    found = slots(tree)
    if found and rng.random() < 0.5:
        found = found[: max(1, len(found) // 10)]
    return rng.choice(found) if found else None


def odd_value(tree: Any, rng: Random) -> None:
    if slot := _any_slot(tree, rng):
        put(slot, copy.deepcopy(rng.choice(ODD_VALUES)))


def other_type(tree: Any, rng: Random) -> None:
    if slot := _any_slot(tree, rng):
        value = value_at(slot)
        plain = None if isinstance(value, list) else value
        put(
            slot,
            rng.choice((str(plain), [value], Pairs([("value", value)]), float(plain) if type(plain) is int else 0)),
        )


def near_number(tree: Any, rng: Random) -> None:
    numbers = [slot for slot in slots(tree) if type(value_at(slot)) in (int, float)]
    if numbers:
        slot = rng.choice(numbers)
        put(slot, value_at(slot) + rng.choice((-1, 1, -2, 2, 10, 2**16, 2**32, 2**62)))


def swapped_values(tree: Any, rng: Random) -> None:
    one, two = _any_slot(tree, rng), _any_slot(tree, rng)
    if one and two:
        first, second = copy.deepcopy(value_at(one)), copy.deepcopy(value_at(two))
        put(one, second)
        put(two, first)


def lost_item(tree: Any, rng: Random) -> None:
    if slot := _any_slot(tree, rng):
        container, at = slot
        del container[at]


def doubled_item(tree: Any, rng: Random) -> None:
    if slot := _any_slot(tree, rng):
        container, at = slot
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[at]))


def odd_key(tree: Any, rng: Random) -> None:
    objects = [slot for slot in slots(tree) if isinstance(slot[0], Pairs)]
    if objects:
        container, at = rng.choice(objects)
        key, value = container[at]
        new = rng.choice(
            ("", key + "x", key.upper(), "\ud800", "\x00", key + "\u0301", "x" * 5000, "__metadata__", "é", 'a"b\\')
        )
        container[at] = (new, value)


def extra_key(tree: Any, rng: Random) -> None:
    objects = [node for node in [tree, *map(value_at, slots(tree))] if isinstance(node, Pairs)]
    if objects:
        names = ("extra", "format", "type", "content", "id", "x" * 5000, "\udfff")
        rng.choice(objects).append((rng.choice(names), copy.deepcopy(rng.choice(ODD_VALUES))))


EDITS: tuple[Edit, ...] = (
    *(odd_value, odd_value, odd_value, other_type, near_number, near_number),
    *(swapped_values, lost_item, doubled_item, odd_key, extra_key),
)


# ---- another form, the same meaning ----------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """The same document written otherwise: spaces, order of keys, escapes, a byte-order mark."""
    tree = parsed(data)
    how = []
    if rng.random() < 0.7:
        _shuffle_keys(tree, rng)
        how.append("keys shuffled")
    spaces = rng.choice((" ", "", "\n", "\r\n  ", "\t"))
    text = rendered(tree, ascii_only=rng.random() < 0.5, between=f",{spaces}", after_key=f"{spaces}:{spaces}")
    mark = rng.choice((b"", BOM))
    how.append(f"spaces {spaces!r}, mark {mark!r}")
    return mark + (spaces + text + spaces).encode(), ", ".join(how)


def _shuffle_keys(tree: Any, rng: Random) -> None:
    for node in [tree, *map(value_at, slots(tree))]:
        if isinstance(node, Pairs):
            rng.shuffle(node)
