"""safetensors headers that lie, and files that only look different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz import json_mutations as js
from tests.fuzz.json_mutations import Pairs, Raw
from tests.fuzz.target import Random

Parts = tuple[Any, bytes]
"""The header as a document, and the bytes after it."""

ODD_DTYPES = ("F4", "f32", "F33", "", "BF16 ", "I128", "F8_E4M3", "C64", "BOOL", "F64", "I8", "U64", 5, None, ["F32"])
ODD_SHAPES: tuple[Any, ...] = (
    *([], [0], [1], [2**48], [2**63], [2**20] * 4, [-1], [1.0], ["1"], [True], None, "3", [[2]], [1] * 33, [0, 2**60]),
    *([2**40, 0], [10**30], [1] * 1000),
)
ODD_OFFSETS: tuple[Any, ...] = (
    *([0, 0], [0], [0, 1, 2], [-1, 3], [4, 0], [0, 2**63], [2**63, 2**63], [0.0, 4], ["0", "4"], None, 7, [[0], [4]]),
    *([10**39, 10**39], [True, 4], [0, None]),
)
ODD_LENGTHS = (0, 1, 2, 7, 8, 2**16, 2**24, 2**24 + 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def split(data: bytes) -> Parts:
    length = int.from_bytes(data[:8], "little")
    return js.parsed(data[8 : 8 + length]), data[8 + length :]


def joined(header: bytes, values: bytes, length: int | None = None) -> bytes:
    stated = len(header) if length is None else length
    return stated.to_bytes(8, "little") + header + values


def lying(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One lie of the kinds that only safetensors can tell."""
    tree, values = split(data)
    entries = [entry for name, entry in tree if name != "__metadata__"]
    entry = rng.choice(entries)
    lie = rng.choice(LIES)
    lie(tree, entry, rng)
    text = js.rendered(tree, ascii_only=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return joined(text, values), lie.__name__


def lying_length(data: bytes, rng: Random) -> tuple[bytes, str]:
    length = int.from_bytes(data[:8], "little")
    stated = rng.choice((*ODD_LENGTHS, length - 1, length + 1, length - 8, length + 8, len(data), len(data) - 8))
    return joined(b"", data[8:], stated % 2**64), f"a header length of {stated}"


def edited_header(data: bytes, rng: Random) -> tuple[bytes, str]:
    length = int.from_bytes(data[:8], "little")
    header, how = js.edited(data[8 : 8 + length], rng)
    return joined(header, data[8 + length :]), how


def _set(entry: Any, key: str, value: Any) -> None:
    entry[:] = [(name, value if name == key else old) for name, old in entry]


def _get(entry: Any, key: str) -> Any:
    return next(value for name, value in entry if name == key)


def odd_dtype(tree: Any, entry: Any, rng: Random) -> None:
    _set(entry, "dtype", rng.choice(ODD_DTYPES))


def odd_shape(tree: Any, entry: Any, rng: Random) -> None:
    _set(entry, "shape", rng.choice(ODD_SHAPES))


def odd_offsets(tree: Any, entry: Any, rng: Random) -> None:
    _set(entry, "data_offsets", rng.choice(ODD_OFFSETS))


def moved_offsets(tree: Any, entry: Any, rng: Random) -> None:
    step = rng.choice((-8, -4, -1, 1, 4, 8, 64, 2**32, 2**62))
    _set(entry, "data_offsets", [at + step for at in _get(entry, "data_offsets")])


def stretched(tree: Any, entry: Any, rng: Random) -> None:
    begin, end = _get(entry, "data_offsets")
    _set(entry, "data_offsets", [begin, end + rng.choice((-4, -1, 1, 4, 2**40))])


def same_bytes(tree: Any, entry: Any, rng: Random) -> None:
    """Two tensors over the same bytes, as in a bomb."""
    name = f"again{rng.randrange(9)}"
    tree.append((name, Pairs(entry)))


def doubled_name(tree: Any, entry: Any, rng: Random) -> None:
    name = next(name for name, value in tree if value is entry)
    tree.insert(rng.randrange(len(tree) + 1), (name, Pairs(entry)))


def empty_tensors(tree: Any, entry: Any, rng: Random) -> None:
    end = _get(entry, "data_offsets")[1]
    for number in range(rng.choice((1, 50))):
        at = rng.choice((0, end, 2**62))
        shape = rng.choice(([0], [0, 5], [2**40, 0]))
        tree.append((f"none{number}", Pairs([("dtype", "F32"), ("shape", shape), ("data_offsets", [at, at])])))


def odd_metadata(tree: Any, entry: Any, rng: Random) -> None:
    notes: tuple[Any, ...] = (
        Pairs([("a", 1)]),
        Pairs([("a", None)]),
        [],
        "text",
        None,
        5,
        Pairs([("\ud800", "b")]),
        Raw("NaN"),
    )
    tree.insert(0, ("__metadata__", rng.choice(notes)))


def odd_name(tree: Any, entry: Any, rng: Random) -> None:
    at = next(at for at, (_, value) in enumerate(tree) if value is entry)
    tree[at] = (rng.choice(("", "\ud800", "\x00", "é", "e\u0301", "a/../b", "x" * 100_000, "𝒳", "\u202e")), entry)


def many_keys(tree: Any, entry: Any, rng: Random) -> None:
    entry.extend((f"key{number}" * 20, number) for number in range(rng.choice((1, 300))))


LIES: tuple[Callable[[Any, Any, Random], None], ...] = (
    *(odd_dtype, odd_shape, odd_offsets, moved_offsets, stretched, same_bytes, doubled_name, empty_tensors),
    *(odd_metadata, odd_name, many_keys),
)


# ---- another form, the same tensors ----------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Entries in another order, other spaces, other notes, values at other places."""
    tree, values = split(data)
    how = ["shuffled"]
    entries = [(name, value) for name, value in tree if name != "__metadata__"]
    if rng.random() < 0.5:
        values = _moved_values(entries, values, rng)
        how.append("values moved")
    rng.shuffle(entries)
    notes = Pairs([("note", "ማስታወሻ"), ("format", "pt")])
    tree = Pairs([("__metadata__", notes), *entries] if rng.random() < 0.5 else entries)
    spaces = rng.choice(("", " ", "\n"))
    text = js.rendered(tree, ascii_only=rng.random() < 0.5, between=f"{spaces},{spaces}", after_key=":" + spaces)
    padding = " " * rng.choice((0, 1, 8, 4096))
    return joined((text + padding).encode(), values), ", ".join(how)


def _moved_values(entries: list[tuple[str, Any]], values: bytes, rng: Random) -> bytes:
    order = list(range(len(entries)))
    rng.shuffle(order)
    moved = b""
    for at in order:
        name, entry = entries[at]
        begin, end = _get(entry, "data_offsets")
        fresh = Pairs(entry)
        _set(fresh, "data_offsets", [len(moved), len(moved) + end - begin])
        entries[at] = (name, fresh)
        moved += values[begin:end]
    return moved
