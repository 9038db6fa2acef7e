"""SentencePiece models, damaged in their fields, in their wire format and in the tables of their normaliser."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as schema

from tests.fuzz import byte_mutations
from tests.fuzz.target import Random

ODD_FLOATS = (float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e10, -1e10, 0.0, -0.0, 1e-45, 1.0)
ODD_PIECES = (
    "",
    "a",
    "▁",
    "▁▁▁",
    "<s>",
    "<unk>",
    "\x00",
    "a\x00b",
    " ",
    "x" * 5000,
    "ሰ",
    "e\u0301",
    "\ufffd",
    "<0x41>",
    "\t",
)
ODD_SETTINGS: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "float": ODD_FLOATS,
    "str": ("", "x", "\x00", "▁", "a" * 5000),
    "int": (-1, 0, 1, 2, 5, 2**31 - 1, -(2**31)),
    "count": (0, 1, 2**31),
}
Model = Any


def wire(data: bytes) -> list[tuple[int, int, bytes]]:
    """The fields of a message: number, wire type, payload as it stands."""
    fields, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        start = at
        match key & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                size, start = _varint(data, at)
                at = start + size
            case _:
                at += 4
        fields.append((key >> 3, key & 7, data[start:at]))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def varint(value: int, pad: int = 0) -> bytes:
    """A number in the wire format; padded ones say the same in more bytes."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value | (0x80 if pad else 0))
    return bytes(made) + b"\x80" * (pad - 1) + (b"\x00" if pad else b"")


def unwire(fields: list[tuple[int, int, bytes]], pad: int = 0) -> bytes:
    made = b""
    for number, kind, payload in fields:
        made += varint(number << 3 | kind) + (varint(len(payload), pad) if kind == 2 else b"") + payload
    return made


def edited(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to three injuries to the fields, by their names."""
    model = schema.ModelProto.FromString(data)
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit = rng.choice(EDITS)
        edit(model, rng)
        names.append(edit.__name__)
    return bytes(model.SerializePartialToString()), " + ".join(names)


def _piece(model: Model, rng: Random) -> Any:
    return rng.choice(model.pieces) if model.pieces else model.pieces.add()


def odd_score(model: Model, rng: Random) -> None:
    _piece(model, rng).score = rng.choice(ODD_FLOATS)


def odd_piece(model: Model, rng: Random) -> None:
    _piece(model, rng).piece = rng.choice(ODD_PIECES)


def no_piece(model: Model, rng: Random) -> None:
    _piece(model, rng).ClearField(rng.choice(("piece", "score", "type")))


def doubled_piece(model: Model, rng: Random) -> None:
    model.pieces.add().CopyFrom(_piece(model, rng))


def lost_piece(model: Model, rng: Random) -> None:
    if model.pieces:
        del model.pieces[rng.randrange(len(model.pieces))]


def odd_type(model: Model, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 5, 100))):
        _piece(model, rng).type = rng.choice((1, 2, 3, 4, 5, 6))


def all_scores(model: Model, rng: Random) -> None:
    value = rng.choice((0.0, -1e9, 1e9, -1.0))
    for piece in model.pieces:
        piece.score = value


def odd_setting(model: Model, rng: Random) -> None:
    """Any scalar field of any part."""
    part = rng.choice((model.trainer_spec, model.normalizer_spec, model.denormalizer_spec))
    field = rng.choice(part.DESCRIPTOR.fields)
    if field.is_repeated:
        return
    name = _kind(field)
    if name == "bytes":
        setattr(part, field.name, rng.choice((b"", b"\x00", rng.randbytes(2000))))
    elif name == "enum":
        setattr(part, field.name, rng.choice([value.number for value in field.enum_type.values]))
    else:
        setattr(part, field.name, rng.choice(ODD_SETTINGS[name]))


def _kind(field: Any) -> str:
    if field.enum_type is not None:
        return "enum"
    if field.type in (field.TYPE_UINT32, field.TYPE_UINT64):
        return "count"
    default = field.default_value
    if isinstance(default, bool):
        return "bool"
    return type(default).__name__


def odd_ids(model: Model, rng: Random) -> None:
    name = rng.choice(("unk_id", "bos_id", "eos_id", "pad_id"))
    setattr(model.trainer_spec, name, rng.choice((-2, -1, 0, 1, 2, 3, 50, 10**6, 2**31 - 1)))


def odd_names(model: Model, rng: Random) -> None:
    name = rng.choice(("unk_piece", "bos_piece", "eos_piece", "pad_piece", "unk_surface"))
    setattr(model.trainer_spec, name, rng.choice(ODD_PIECES))


def self_test(model: Model, rng: Random) -> None:
    sample = model.self_test_data.samples.add()
    sample.input, sample.expected = rng.choice((("a", "b"), ("", ""), ("the cat", "▁the ▁cat"), ("x" * 3000, "")))


def many_pieces(model: Model, rng: Random) -> None:
    """Thousands of pieces that begin alike."""
    for number in range(rng.choice((100, 1500))):
        model.pieces.add(piece=f"{'a' * rng.choice((1, 30))}{number}", score=-float(number), type=rng.choice((1, 4, 5)))


def damaged_table(model: Model, rng: Random) -> None:
    """Odd numbers over the double array or the strings of the normaliser."""
    part = rng.choice((model.normalizer_spec, model.normalizer_spec, model.normalizer_spec, model.denormalizer_spec))
    table = bytearray(part.precompiled_charsmap or model.normalizer_spec.precompiled_charsmap)
    for _ in range(rng.choice((1, 1, 4, 64, 1000))):
        if len(table) > 8:
            at = rng.choice((0, 4, 4 * rng.randrange(len(table) // 4), rng.randrange(len(table))))
            value = rng.choice((0, 1, 0x1FF, 0x3FF, 2**31, 2**32 - 1, rng.getrandbits(32), 1 << rng.randrange(32)))
            table[at : at + 4] = struct.pack("<I", value)[: len(table) - at]
    part.precompiled_charsmap = bytes(table)


def damaged_units(model: Model, rng: Random) -> None:
    """The same, with units that are likely to be walked: labels and flags of real ones."""
    table = bytearray(model.normalizer_spec.precompiled_charsmap)
    if len(table) < 1028:
        return
    count = (len(table) - 4) // 4
    for _ in range(rng.choice((1, 8, 200))):
        at = 4 + 4 * rng.randrange(count)
        unit = struct.unpack_from("<I", bytes(table[at : at + 4]).ljust(4, b"\x00"))[0]
        unit ^= rng.choice((1 << 8, 1 << 9, 1 << 31, rng.getrandbits(22) << 10, 0xFF))
        table[at : at + 4] = struct.pack("<I", unit & 0xFFFFFFFF)[: len(table) - at]
    model.normalizer_spec.precompiled_charsmap = bytes(table)


def cut_table(model: Model, rng: Random) -> None:
    table = model.normalizer_spec.precompiled_charsmap
    model.normalizer_spec.precompiled_charsmap, _ = byte_mutations.damaged(table, rng)


EDITS: tuple[Callable[[Model, Random], None], ...] = (
    *(odd_score, odd_piece, no_piece, doubled_piece, lost_piece, odd_type, all_scores, odd_setting, odd_setting),
    *(
        odd_ids,
        odd_names,
        self_test,
        many_pieces,
        damaged_table,
        damaged_table,
        damaged_units,
        damaged_units,
        cut_table,
    ),
)


def damaged_wire(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Fields lost, doubled, moved, given other numbers or wire types, nested in themselves."""
    fields = wire(data)
    at = rng.randrange(len(fields))
    number, kind, payload = fields[at]
    match rng.randrange(7):
        case 0:
            fields[at] = (rng.choice((0, 1, 2, 3, 4, 5, 9, 2**28)), kind, payload)
        case 1:
            fields[at] = (number, rng.choice((0, 1, 2, 3, 4, 5, 6, 7)), payload)
        case 2:
            fields[at] = (number, kind, byte_mutations.damaged(payload, rng)[0])
        case 3:
            fields.insert(at, fields[at])
        case 4:
            del fields[at]
        case 5:
            nested = payload
            for _ in range(rng.choice((2, 200))):
                nested = unwire([(number, 2, nested)])
            fields[at] = (number, 2, nested)
        case _:
            return unwire(fields[:at]) + varint(number << 3 | 2) + varint(
                rng.choice((2**31, 2**32, 2**63))
            ) + payload, "wire length"
    return unwire(fields), "wire"


# ---- another form, the same model ------------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Settings before pieces, settings in two parts, unknown fields, numbers in more bytes than they need."""
    fields = wire(data)
    pieces = [field for field in fields if field[0] == 1]
    others = [field for field in fields if field[0] != 1]
    split: list[tuple[int, int, bytes]] = []
    for number, kind, payload in others:
        inner = wire(payload)
        cut = rng.randrange(len(inner) + 1)
        split += [(number, kind, unwire(inner[:cut])), (number, kind, unwire(inner[cut:]))]
    unknown = [(200, 2, b"a note"), (201, 0, b"\x07")]
    parts = [pieces, split if rng.random() < 0.5 else others, unknown]
    rng.shuffle(parts)
    return unwire([field for part in parts for field in part], pad=rng.choice((0, 0, 2))), "fields rearranged"
