"""Pickles, damaged opcode by opcode, and ones that would run something if anybody ever ran them."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable

from tests.fuzz.target import CANARY, Random

TOUCH = f"touch {CANARY}".encode()
Ops = list[bytes]
"""The operations of one pickle, each with its argument."""

HOSTILE_NAMES = (
    *(b"posix system", b"os system", b"builtins eval", b"builtins exec", b"subprocess Popen", b"nt system"),
    *(b"builtins getattr", b"__builtin__ eval", b"torch load", b"numpy load", b"operator attrgetter", b"os.path join"),
    *(
        b"torch._utils _rebuild_tensor_v2",
        b"torch.storage _load_from_bytes",
        b"collections OrderedDict",
        b"pickle loads",
    ),
    *(
        b"importlib import_module",
        b"torch FloatStorage",
        b"",
        b"a",
        b"torch.Size",
        b"torch.hub load",
        b"runpy _run_code",
    ),
)
ODD_INTEGERS = (0, 1, -1, 2, 255, 256, 65535, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63, -(2**63), 2**64, 2**500)


def _text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def _global(name: bytes) -> bytes:
    return b"c" + name.replace(b" ", b"\n", 1) + (b"\n" if b" " in name else b"\n\n")


def number(value: int) -> bytes:
    """An integer in the form that fits it."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data)) + data


HOSTILE: tuple[bytes, ...] = (
    _global(b"posix system") + _text(TOUCH) + b"\x85R",
    _global(b"builtins eval") + _text(f"open({CANARY!r}, 'w')".encode()) + b"\x85R",
    _global(b"builtins exec") + _text(f"open({CANARY!r}, 'w').close()".encode()) + b"\x85R",
    _global(b"subprocess check_call") + b"](" + _text(b"touch") + _text(CANARY.encode()) + b"e\x85R",
    _global(b"builtins getattr") + _global(b"os system") + _text(b"__call__") + b"\x86R" + _text(TOUCH) + b"\x85R",
    _text(b"posix") + _text(b"system") + b"\x93" + _text(TOUCH) + b"\x85R",
    b"(" + _text(TOUCH) + b"iposix\nsystem\n",
    b"(" + _global(b"posix system") + _text(TOUCH) + b"o",
    _global(b"posix system") + _text(TOUCH) + b"\x85\x81",
    _global(b"posix system") + _text(TOUCH) + b"\x85}\x92",
    _global(b"collections OrderedDict") + b")R" + b"}" + _text(b"__setstate__") + _global(b"posix system") + b"sb" + _text(TOUCH) + b"b",
    _global(b"torch._tensor _rebuild_from_type_v2")
    + b"(" + _global(b"posix system") + _global(b"builtins str") + _text(TOUCH) + b"\x85NtR",
    _global(b"torch._utils _rebuild_parameter") + b"(" + _global(b"posix system") + _text(TOUCH) + b"\x85R\x88NtR",
    b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00",
    b"Pposix.system\n",
    _text(TOUCH) + b"Q",
    b"(" + _text(b"storage") + _global(b"posix system") + _text(b"0") + _text(b"cpu") + number(2**62) + b"tQ",
    b"(" + _text(b"storage") + b"NNNNtQ",
    b"(" + b"]" * 5 + b"tQ",
)  # fmt: skip
"""Values that would run a program, open a file or ask for something that is not there."""


def _nested(depth: int, close: bytes) -> bytes:
    return b"N" + close * depth


def _memo_bomb(levels: int) -> bytes:
    """A list of two of the one before, again and again: 2 to the power of `levels` items, if anybody walked it."""
    made = b"]q\xf0"
    for _ in range(levels):
        made += b"](h\xf0h\xf0eq\xf0"
    return made


def _shared(entries: int, shared: int) -> bytes:
    """Many entries that all lead to the same large list."""
    made = b"(](" + b"N" * shared + b"eq\xf1"
    return made + b"h\xf1\x85" * entries + b"t"


BOMBS: tuple[Callable[[], bytes], ...] = (
    lambda: _nested(20_000, b"\x85"),
    lambda: b"(" * 20_000 + b"t" * 20_000,
    lambda: b"](" * 10_000 + b"e" * 10_000,
    lambda: b"}(N" * 10_000 + b"N" + b"u" * 10_000,
    lambda: _memo_bomb(200),
    lambda: _shared(300, 20_000),
    lambda: b"]q\xf2h\xf2a",
    lambda: b"}q\xf2Nh\xf2s",
    lambda: b"\x8b\xff\xff\xff\x7f",
    lambda: b"\x8b\xff\xff\xff\xff",
    lambda: b"\x8b\x00\x40\x00\x00" + b"\x7f" * 0x4000,
    lambda: b"\x8e" + struct.pack("<Q", 2**62) + b"a",
    lambda: b"\x8e" + struct.pack("<Q", 2**64 - 1),
    lambda: b"\x8d" + struct.pack("<Q", 2**40) + b"a",
    lambda: b"\x96" + struct.pack("<Q", 2**50) + b"a",
    lambda: b"B\xff\xff\xff\xff",
    lambda: b"T\xff\xff\xff\xff",
    lambda: b"I" + b"9" * 5000 + b"\n",
    lambda: b"L" + b"9" * 4000 + b"L\n",
    lambda: b"F1e999\n",
    lambda: b"Fnan\n",
    lambda: b"S'\\x80\xff'\n",
    lambda: b"V\\ud800\\udc00\\ud800\n",
    lambda: b"r\xff\xff\xff\xff",
    lambda: b"p-1\n",
    lambda: b"p" + b"9" * 300 + b"\n",
    lambda: b"g" + b"9" * 5000 + b"\n",
    lambda: b"}" * 40_000 + b"0" * 39_999,
)


def operations(data: bytes) -> Ops:
    """A sound pickle cut into its operations."""
    places = [at for _, _, at in pickletools.genops(data) if at is not None]
    return [data[start:stop] for start, stop in zip(places, [*places[1:], len(data)], strict=True)]


def edited(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to three injuries."""
    ops, names = operations(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        ops = ops or [b"."]
        edit(ops, rng)
        names.append(edit.__name__)
    return b"".join(ops), " + ".join(names)


def lost(ops: Ops, rng: Random) -> None:
    del ops[rng.randrange(len(ops))]


def doubled(ops: Ops, rng: Random) -> None:
    at = rng.randrange(len(ops))
    ops.insert(at, ops[at])


def swapped(ops: Ops, rng: Random) -> None:
    one, two = rng.randrange(len(ops)), rng.randrange(len(ops))
    ops[one], ops[two] = ops[two], ops[one]


def any_operation(ops: Ops, rng: Random) -> None:
    """A random opcode with a random argument."""
    opcode = rng.choice(pickletools.opcodes)
    argument = rng.choice(
        (b"", b"\x00", rng.randbytes(1), b"0\n", b"a\nb\n", rng.randbytes(9), struct.pack("<I", 2) + b"ab")
    )
    ops.insert(rng.randrange(len(ops)), opcode.code.encode("latin-1") + argument)


def odd_integer(ops: Ops, rng: Random) -> None:
    """One of the numbers that say how large something is, or where."""
    numbers = [at for at, op in enumerate(ops) if op[:1] in b"KMJ\x8a"]
    value = rng.choice((*ODD_INTEGERS, 2**20_000))
    ops[rng.choice(numbers) if numbers else rng.randrange(len(ops))] = number(value)


def other_kind(ops: Ops, rng: Random) -> None:
    """Another kind of value where a value stands."""
    values = [at for at, op in enumerate(ops) if op[:1] in b"KMJX\x8c)\x88\x89NG"]
    odd = (
        b"N",
        b"\x88",
        b")",
        b"]",
        b"}",
        b"\x8f",
        b"G" + bytes(8),
        _text(b"0"),
        _text(b"\xed\xa0\x80"),
        b"C\x01a",
        b"U\x01a",
    )
    ops[rng.choice(values) if values else rng.randrange(len(ops))] = rng.choice(odd)


def odd_text(ops: Ops, rng: Random) -> None:
    texts = [at for at, op in enumerate(ops) if op[:1] in b"X\x8c"]
    odd = (
        b"",
        b"0",
        b"storage",
        b"cpu",
        b"../../x",
        b"\xed\xa0\x80",
        b"a" * 70_000,
        b"\xff",
        b"model",
        b"\x00",
        b"__class__",
    )
    if texts:
        ops[rng.choice(texts)] = _text(rng.choice(odd))


def odd_name(ops: Ops, rng: Random) -> None:
    names = [at for at, op in enumerate(ops) if op[:1] == b"c"]
    if names:
        ops[rng.choice(names)] = _global(rng.choice(HOSTILE_NAMES))


def hostile(ops: Ops, rng: Random) -> None:
    """A hostile value in place of a harmless one, or dropped again after it was made."""
    values = [at for at, op in enumerate(ops) if op[:1] in b"KMJX\x8cN\x88\x89"]
    snippet = rng.choice(HOSTILE)
    if values and rng.random() < 0.6:
        ops[rng.choice(values)] = snippet
    else:
        ops.insert(rng.randrange(len(ops)) + 1, snippet + b"0")


def bomb(ops: Ops, rng: Random) -> None:
    values = [at for at, op in enumerate(ops) if op[:1] in b"KMJX\x8cN\x88\x89"]
    snippet = rng.choice(BOMBS)()
    if values and rng.random() < 0.6:
        ops[rng.choice(values)] = snippet
    else:
        ops.insert(rng.randrange(len(ops)) + 1, snippet + b"0")


def shared_entries(ops: Ops, rng: Random, size: int = 200) -> None:
    """Many entries of the outermost dictionary that all lead to the same large value."""
    ends = [at for at, op in enumerate(ops) if op == b"u"]
    if ends:
        large = rng.choice((b"](" + b"N" * size + b"e", b"}(" + b"".join(map(number, range(2 * size))) + b"u"))
        entries = b"".join(_text(b"entry%d" % at) + b"h\xf3" for at in range(size))
        ops.insert(ends[-1], _text(b"large") + large + b"q\xf3" + entries)


def wrong_memo(ops: Ops, rng: Random) -> None:
    places = [at for at, op in enumerate(ops) if op[:1] in b"hqjr"]
    if places:
        ops[rng.choice(places)] = rng.choice((b"h", b"q")) + bytes([rng.choice((0, 1, 2, 200, 255))])


def cut(ops: Ops, rng: Random) -> None:
    del ops[rng.randrange(len(ops)) :]


def odd_protocol(ops: Ops, rng: Random) -> None:
    ops[0] = rng.choice((b"", b"\x80\x06", b"\x80\xff", b"\x80\x00", b"\x95" + struct.pack("<Q", 2**63)))


EDITS: tuple[Callable[[Ops, Random], None], ...] = (
    *(lost, doubled, swapped, any_operation, odd_integer, odd_integer, other_kind, other_kind, odd_text, odd_name),
    *(hostile, hostile, hostile, bomb, shared_entries, wrong_memo, wrong_memo, cut, odd_protocol),
)


# ---- another form, the same value ------------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Values put down and taken up again, hints for buffering: operations that change nothing."""
    ops = operations(data)
    nothing = (
        b"N0",
        b"]0",
        b"}0",
        b"\x95" + bytes(8),
        b"(1",
        b"K\x010",
        b"(K\x01K\x02t0",
        _global(b"os system") + b"0",
    )
    for _ in range(rng.randrange(1, 6)):
        ops.insert(rng.randrange(1, len(ops)), rng.choice(nothing))
    return b"".join(ops), "operations that change nothing"
