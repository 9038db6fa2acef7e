"""Damage that any file can suffer: flipped bits, lost ends, doubled pieces, overwritten numbers."""

from __future__ import annotations

from tests.fuzz.target import Mutation, Random

ODD_NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
ODD_BYTES = b'\x00\x01\x7f\x80\xc0\xff\xfe"\\{}[],:\n\r \t0-.'
BIG_REPEAT = 40_000


def damaged(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One to four random injuries, and their names."""
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        mutation = rng.choice(MUTATIONS)
        data = mutation(data, rng)
        names.append(mutation.__name__)
    return data, " + ".join(names)


def flip_bit(data: bytes, rng: Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def odd_byte(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.choice(ODD_BYTES)]) + data[at + 1 :]


def odd_number(data: bytes, rng: Random) -> bytes:
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((*ODD_NUMBERS, len(data), len(data) + 1, rng.getrandbits(64))) % (1 << 8 * size)
    at = rng.randrange(len(data) + 1)
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def cut_end(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def cut_a_little(data: bytes, rng: Random) -> bytes:
    return data[: max(0, len(data) - rng.randrange(1, 20))]


def cut_start(data: bytes, rng: Random) -> bytes:
    return data[rng.randrange(1, 20) :]


def drop_piece(data: bytes, rng: Random) -> bytes:
    start, stop = _piece(data, rng)
    return data[:start] + data[stop:]


def double_piece(data: bytes, rng: Random) -> bytes:
    start, stop = _piece(data, rng)
    return data[:stop] + data[start:stop] + data[stop:]


def zero_piece(data: bytes, rng: Random) -> bytes:
    start, stop = _piece(data, rng)
    return data[:start] + bytes(stop - start) + data[stop:]


def move_piece(data: bytes, rng: Random) -> bytes:
    start, stop = _piece(data, rng)
    rest = data[:start] + data[stop:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + data[start:stop] + rest[at:]


def insert_noise(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:]


def insert_many(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.choice(ODD_BYTES)]) * rng.choice((100, BIG_REPEAT)) + data[at:]


def trailing(data: bytes, rng: Random) -> bytes:
    return data + rng.choice((b"\x00", b"\n", b"}", bytes(64), rng.randbytes(9)))


def twice(data: bytes, rng: Random) -> bytes:
    del rng
    return data + data


def _piece(data: bytes, rng: Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 100, 1000)))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bit,
    flip_bit,
    odd_byte,
    odd_number,
    cut_end,
    cut_a_little,
    cut_start,
    drop_piece,
    double_piece,
    zero_piece,
    move_piece,
    insert_noise,
    insert_many,
    trailing,
    twice,
)
