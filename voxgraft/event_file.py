"""The records of TensorBoard's event files, in bytes: numbers and texts at a step.

A record is its length, a checksum of that, an `Event` as protocol buffers write it, and a checksum of that. Written by
hand: the few fields we need take forty lines, TensorBoard's package takes ten others with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

__all__ = ["event", "first_event"]

VERSION = b"brain.Event:2"
POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
MASK = 0xA282EAD8
STRING = 7
"""The type of a tensor of texts."""
START = 1
"""The state of a session that has begun."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def first_event(wall_time: float) -> bytes:
    """What every file begins with: its version, and that all of other files from step 0 on is void."""
    began = _bytes(7, _varint(1, START))
    return _record(_fixed64(1, wall_time) + _bytes(3, VERSION)) + _record(_fixed64(1, wall_time) + began)


def event(wall_time: float, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    """One record of all that belongs to a step. Numbers that are too large for 32 bits become infinite."""
    values = [_bytes(1, _bytes(1, tag.encode()) + _fixed32(2, number)) for tag, number in numbers.items()]
    values += [_bytes(1, _text(tag, text)) for tag, text in texts.items()]
    return _record(_fixed64(1, wall_time) + _varint(2, step) + _bytes(5, b"".join(values)))


def _text(tag: str, text: str) -> bytes:
    """A tensor of one text, with the name of the plugin that shows it."""
    plugin = _bytes(1, _bytes(1, b"text"))
    shape = _bytes(2, _varint(1, 1))
    tensor = _varint(1, STRING) + _bytes(2, shape) + _bytes(8, text.encode("utf-8", "replace"))
    return _bytes(1, tag.encode()) + _bytes(9, plugin) + _bytes(8, tensor)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _checksum(length)) + data + struct.pack("<I", _checksum(data))


def _varint(field: int, value: int) -> bytes:
    return _plain(field << 3 | VARINT) + _plain(value)


def _fixed64(field: int, value: float) -> bytes:
    return _plain(field << 3 | FIXED64) + struct.pack("<d", value)


def _fixed32(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _plain(field << 3 | FIXED32) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _plain(field << 3 | BYTES) + _plain(len(value)) + value


def _plain(value: int) -> bytes:
    """A whole number, seven bits to a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _checksum(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def _table_entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = [_table_entry(index) for index in range(256)]
