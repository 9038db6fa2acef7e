"""The records of TensorBoard's event files, in bytes: numbers and texts at a step.

A record is its length, a checksum of that, an `HistoryEvent` as protocol buffers write it, and a checksum of that. Written by
hand: the few fields we need take forty lines, TensorBoard's package takes ten others with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

__all__ = ["encode_event", "encode_first_event"]

EVENT_FILE_VERSION = b"brain.Event:2"
CRC32C_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
CRC_MASK_DELTA = 0xA282EAD8
DT_STRING = 7
"""The type of a tensor of texts."""
SESSION_START = 1
"""The state of a session that has begun."""
WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 0, 1, 2, 5


def encode_first_event(wall_time: float) -> bytes:
    """What every file begins with: its version, and that all of other files from step 0 on is void."""
    began = _encode_bytes_field(7, _encode_varint_field(1, SESSION_START))
    return _encode_record(
        _encode_double_field(1, wall_time) + _encode_bytes_field(3, EVENT_FILE_VERSION)
    ) + _encode_record(_encode_double_field(1, wall_time) + began)


def encode_event(wall_time: float, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    """One record of all that belongs to a step. Numbers that are too large for 32 bits become infinite."""
    values = [
        _encode_bytes_field(1, _encode_bytes_field(1, tag.encode()) + _encode_float_field(2, number))
        for tag, number in numbers.items()
    ]
    values += [_encode_bytes_field(1, _encode_text_summary(tag, text)) for tag, text in texts.items()]
    return _encode_record(
        _encode_double_field(1, wall_time) + _encode_varint_field(2, step) + _encode_bytes_field(5, b"".join(values))
    )


def _encode_text_summary(tag: str, text: str) -> bytes:
    """A tensor of one text, with the name of the plugin that shows it."""
    plugin = _encode_bytes_field(1, _encode_bytes_field(1, b"text"))
    shape = _encode_bytes_field(2, _encode_varint_field(1, 1))
    tensor = (
        _encode_varint_field(1, DT_STRING)
        + _encode_bytes_field(2, shape)
        + _encode_bytes_field(8, text.encode("utf-8", "replace"))
    )
    return _encode_bytes_field(1, tag.encode()) + _encode_bytes_field(9, plugin) + _encode_bytes_field(8, tensor)


def _encode_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc32c(length)) + data + struct.pack("<I", _masked_crc32c(data))


def _encode_varint_field(field: int, value: int) -> bytes:
    return _encode_varint(field << 3 | WIRE_VARINT) + _encode_varint(value)


def _encode_double_field(field: int, value: float) -> bytes:
    return _encode_varint(field << 3 | WIRE_FIXED64) + struct.pack("<d", value)


def _encode_float_field(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _encode_varint(field << 3 | WIRE_FIXED32) + packed


def _encode_bytes_field(field: int, value: bytes) -> bytes:
    return _encode_varint(field << 3 | WIRE_BYTES) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    """A whole number, seven bits to a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + CRC_MASK_DELTA) & 0xFFFFFFFF


def _crc_table_entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (CRC32C_POLYNOMIAL if index & 1 else 0)
    return index


_CRC_TABLE = [_crc_table_entry(index) for index in range(256)]
