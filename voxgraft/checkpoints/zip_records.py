"""The records of a zip archive as torch writes them: stored, not compressed, each at a place of its own.

Reads the directory at the end of the file and trusts nothing in it. The contents of records are read by others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from voxgraft.checkpoints.source import ByteSource
from voxgraft.errors import CheckpointError

MAX_DIRECTORY_BYTES = 32 << 20
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
CENTRAL_HEADER = struct.Struct("<4s6H3I5H2I")
END_RECORD = struct.Struct("<4s4H2IH")
END64_RECORD = struct.Struct("<4sQ2H2I4Q")
LOCATOR64_RECORD = struct.Struct("<4sIQI")
LOCAL_SIGNATURE, CENTRAL_SIGNATURE, END_SIGNATURE = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_SIGNATURE, LOCATOR64_SIGNATURE = b"PK\x06\x06", b"PK\x06\x07"
MAX_UINT16, MAX_UINT32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED_FLAG = 1
ZIP64_EXTRA = 1


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One file inside the archive: its bytes are `size` bytes of the archive from `start`."""

    name: str
    start: int
    size: int
    crc: int
    header: int
    """Where its own header starts."""


@dataclass(frozen=True, slots=True)
class _ZipDirectory:
    start: int
    size: int
    count: int


def read_zip_records(source: ByteSource) -> dict[str, ZipRecord]:
    """All records by name, folders left out; an error for a directory that is broken or lies."""
    directory = _find_directory(source)
    records: dict[str, ZipRecord] = {}
    data = source.read(directory.start, directory.size)
    at = 0
    for _ in range(directory.count):
        record, at = _parse_directory_entry(source, data, at, directory.start)
        if record.name in records:
            raise _archive_error(source, f"the record {record.name!r} stands twice")
        records[record.name] = record
    if at != len(data):
        raise _archive_error(source, f"{len(data) - at} bytes follow the last entry of the directory")
    _check_no_overlap(source, records)
    return {name: record for name, record in records.items() if not name.endswith("/")}


def _find_directory(source: ByteSource) -> _ZipDirectory:
    tail_start = max(0, source.size - END_RECORD.size - MAX_UINT16)
    tail = source.read(tail_start, source.size - tail_start)
    at = tail.rfind(END_SIGNATURE)
    if at < 0 or at + END_RECORD.size > len(tail):
        found = f"the archive of {source.size:,} bytes has no directory at its end"
        raise CheckpointError("checkpoint-truncated", found, where=source.path)
    _, disk, first_disk, here, count, size, start, comment = END_RECORD.unpack_from(tail, at)
    end = tail_start + at
    if (disk, first_disk) != (0, 0) or here != count or end + END_RECORD.size + comment != source.size:
        raise _archive_error(source, "the end of the archive does not add up")
    directory = _ZipDirectory(start, size, count)
    if end >= LOCATOR64_RECORD.size and source.read(end - LOCATOR64_RECORD.size, 4) == LOCATOR64_SIGNATURE:
        directory, end = _find_directory64(source, end - LOCATOR64_RECORD.size, directory)
    if directory.start + directory.size != end or directory.size > MAX_DIRECTORY_BYTES:
        found = f"a directory of {directory.size:,} bytes at {directory.start:,} that should end at {end:,}"
        raise _archive_error(source, found)
    if directory.count * CENTRAL_HEADER.size > directory.size:
        raise _archive_error(source, f"{directory.count:,} entries in a directory of {directory.size:,} bytes")
    return directory


def _find_directory64(source: ByteSource, locator_at: int, old: _ZipDirectory) -> tuple[_ZipDirectory, int]:
    """The same facts in 64 bits; those that fit in the old form must agree with it."""
    _, _, at, _ = LOCATOR64_RECORD.unpack(source.read(locator_at, LOCATOR64_RECORD.size))
    if at + END64_RECORD.size > locator_at:
        raise _archive_error(source, f"the 64-bit end of the archive is said to be at {at:,}")
    signature, _, _, _, _, _, here, count, size, start = END64_RECORD.unpack(source.read(at, END64_RECORD.size))
    pairs = ((old.start, start, MAX_UINT32), (old.size, size, MAX_UINT32), (old.count, count, MAX_UINT16))
    agree = all(small in (large, full) for small, large, full in pairs)
    if signature != END64_SIGNATURE or here != count or not agree:
        raise _archive_error(source, "the two ends of the archive do not agree")
    return _ZipDirectory(start, size, count), at


def _parse_directory_entry(source: ByteSource, data: bytes, at: int, limit: int) -> tuple[ZipRecord, int]:
    if at + CENTRAL_HEADER.size > len(data):
        raise _archive_error(source, "the directory ends inside an entry")
    fields = CENTRAL_HEADER.unpack_from(data, at)
    signature, flags, method, crc, packed, size = fields[0], fields[3], fields[4], *fields[7:10]
    name_size, extra_size, comment_size, header = *fields[10:13], fields[16]
    end = at + CENTRAL_HEADER.size + name_size + extra_size + comment_size
    if signature != CENTRAL_SIGNATURE or end > len(data):
        raise _archive_error(source, "an entry of the directory is broken")
    name_end = at + CENTRAL_HEADER.size + name_size
    name_bytes = data[at + CENTRAL_HEADER.size : name_end]
    size, packed, header = _read_zip64_sizes(source, data[name_end : name_end + extra_size], (size, packed, header))
    name = name_bytes.decode("utf-8", "backslashreplace")
    if method != 0:
        raise CheckpointError("torch-compressed", f"the record {name!r} is compressed", where=source.path)
    if flags & ENCRYPTED_FLAG or packed != size:
        raise _archive_error(source, f"the record {name!r} is encrypted or has two sizes, {size:,} and {packed:,}")
    start = _find_data_start(source, header, name_bytes)
    if start + size > limit:
        raise _archive_error(source, f"the record {name!r} reaches past the directory")
    return ZipRecord(name, start, size, crc, header), end


def _read_zip64_sizes(source: ByteSource, extra: bytes, values: tuple[int, int, int]) -> tuple[int, int, int]:
    """Values that did not fit in 32 bits stand in an extra field, in this order."""
    if MAX_UINT32 not in values:
        return values
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == ZIP64_EXTRA:
            body = extra[at + 4 : at + 4 + size]
            wide = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
            first, second, third = (next(wide, MAX_UINT32) if value == MAX_UINT32 else value for value in values)
            return first, second, third
        at += 4 + size
    raise _archive_error(source, "a record of over 4 GiB without its 64-bit size")


def _find_data_start(source: ByteSource, header: int, name: bytes) -> int:
    if header + LOCAL_HEADER.size > source.size:
        raise _archive_error(source, f"the record {name!r} is said to be at {header:,}, past the end")
    fields = LOCAL_HEADER.unpack(source.read(header, LOCAL_HEADER.size))
    start = header + LOCAL_HEADER.size + int(fields[9]) + int(fields[10])
    if fields[0] != LOCAL_SIGNATURE or fields[9] != len(name) or start > source.size:
        raise _archive_error(source, f"there is no record {name!r} at {header:,}")
    if source.read(header + LOCAL_HEADER.size, len(name)) != name:
        raise _archive_error(source, f"the record at {header:,} is not {name!r}")
    return start


def _check_no_overlap(source: ByteSource, records: dict[str, ZipRecord]) -> None:
    """Records that overlap are how a small archive pretends to be a large one."""
    end = 0
    for record in sorted(records.values(), key=lambda record: record.header):
        if record.header < end:
            raise _archive_error(source, f"the record {record.name!r} overlaps the one before it")
        end = record.start + record.size


def _archive_error(source: ByteSource, found: str) -> CheckpointError:
    return CheckpointError("torch-archive", found, where=source.path)
