"""Zip archives that lie: in the directory, in the records' own headers, at the end; and ones that only look different."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from tests.fuzz.target import Random

ODD = (0, 1, 2, 7, 30, 46, 255, 65535, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
WIDE = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(slots=True)
class Entry:
    """One record; what is None is written as it should be."""

    name: bytes
    data: bytes
    method: int = 0
    flags: int = 0
    crc: int | None = None
    size: int | None = None
    packed: int | None = None
    header: int | None = None
    extra: bytes = b""
    local_name: bytes | None = None
    local_extra: bytes = b""
    in_directory: bool = True


@dataclass(slots=True)
class Archive:
    """Records and the end of the file, with room for lies."""

    entries: list[Entry]
    comment: bytes = b""
    count: int | None = None
    directory_size: int | None = None
    directory_start: int | None = None
    disk: int = 0
    wide: dict[str, int] | None = None
    """Fields of a 64-bit end, which is written if this is not None."""
    gaps: dict[int, bytes] = field(default_factory=dict)
    """Bytes in front of a record, by its place."""

    def render(self) -> bytes:
        body, directory = b"", b""
        for at, entry in enumerate(self.entries):
            body += self.gaps.get(at, b"")
            start = len(body)
            local = entry.local_name if entry.local_name is not None else entry.name
            crc, size, packed = _sizes(entry)
            fields = (20, entry.flags, entry.method, 0, 0x21, crc, packed, size, len(local), len(entry.local_extra))
            body += struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + local + entry.local_extra + entry.data
            if entry.in_directory:
                header = start if entry.header is None else entry.header
                directory += _central(entry, header)
        return body + directory + self._end(len(body), len(directory))

    def _end(self, start: int, size: int) -> bytes:
        count = sum(entry.in_directory for entry in self.entries) if self.count is None else self.count
        start = start if self.directory_start is None else self.directory_start
        size = size if self.directory_size is None else self.directory_size
        end = b""
        if self.wide is not None:
            facts = {"count": count, "size": size, "start": start, "at": start + size, **self.wide}
            end = struct.pack(
                "<4sQ2H2I4Q",
                *(b"PK\x06\x06", 44, 45, 45, 0, 0, facts["count"], facts["count"], facts["size"], facts["start"]),
            )
            end += struct.pack("<4sIQI", b"PK\x06\x07", 0, facts["at"], 1)
        fields = (self.disk, 0, count % 2**16, count % 2**16, size % 2**32, start % 2**32, len(self.comment))
        return end + struct.pack("<4s4H2IH", b"PK\x05\x06", *fields) + self.comment


def _sizes(entry: Entry) -> tuple[int, int, int]:
    crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
    size = len(entry.data) if entry.size is None else entry.size
    packed = len(entry.data) if entry.packed is None else entry.packed
    return crc, size % 2**32, packed % 2**32


def _central(entry: Entry, header: int) -> bytes:
    crc, size, packed = _sizes(entry)
    fields = (20, 20, entry.flags, entry.method, 0, 0x21, crc, packed, size, len(entry.name), len(entry.extra))
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, 0, 0, 0, 0, header % 2**32) + entry.name + entry.extra


def archive_of(data: bytes) -> Archive:
    """A sound archive taken apart."""
    return Archive([Entry(name, contents) for name, contents in _records(data)])


@cache
def _records(data: bytes) -> list[tuple[bytes, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(info.filename.encode(), archive.read(info)) for info in archive.infolist()]


def record(data: bytes, name_end: str) -> bytes:
    """The contents of the one record whose name ends like that."""
    return next(entry.data for entry in archive_of(data).entries if entry.name.endswith(name_end.encode()))


def with_record(data: bytes, name_end: str, contents: bytes) -> bytes:
    """The archive with other contents in one record, and the right checksum."""
    archive = archive_of(data)
    for entry in archive.entries:
        if entry.name.endswith(name_end.encode()):
            entry.data = contents
    return archive.render()


def lying(data: bytes, rng: Random) -> tuple[bytes, str]:
    """One or two lies."""
    archive = archive_of(data)
    names = []
    for _ in range(rng.choice((1, 1, 2))):
        lie = rng.choice(LIES)
        lie(archive, rng)
        names.append(lie.__name__)
    return archive.render(), " + ".join(names)


def damaged_tail(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Odd numbers written over the directory and the end of the archive."""
    tail = len(data) - data.find(b"PK\x01\x02")
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = len(data) - 1 - rng.randrange(tail)
        size = rng.choice((1, 2, 4, 8))
        value = rng.choice((*ODD, *WIDE, rng.getrandbits(64))) % (1 << 8 * size)
        edited[at : at + size] = value.to_bytes(size, "little")
    return bytes(edited), "numbers over the directory"


def _entry(archive: Archive, rng: Random) -> Entry:
    if not archive.entries:
        archive.entries.append(Entry(b"a/data.pkl", b""))
    return rng.choice(archive.entries)


def odd_crc(archive: Archive, rng: Random) -> None:
    _entry(archive, rng).crc = rng.choice((0, 1, 2**32 - 1))


def odd_size(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    value = rng.choice((*ODD, len(entry.data) + 1, max(0, len(entry.data) - 1)))
    entry.size = value
    entry.packed = value if rng.random() < 0.7 else None


def odd_place(archive: Archive, rng: Random) -> None:
    _entry(archive, rng).header = rng.choice((*ODD, rng.randrange(2000)))


def same_place(archive: Archive, rng: Random) -> None:
    """Two records over the same bytes."""
    entry = _entry(archive, rng)
    archive.entries.append(replace(entry, name=rng.choice((entry.name, b"archive/data/99")), header=0))


def compressed(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    entry.size, entry.method = len(entry.data), 8
    entry.data = zlib.compress(entry.data)[2:-4]


def bomb(archive: Archive, rng: Random) -> None:
    """A small record that says that it unfolds to gigabytes."""
    entry = _entry(archive, rng)
    entry.data, entry.method = zlib.compress(bytes(1 << 20), 9)[2:-4], rng.choice((8, 0))
    entry.size = rng.choice((1 << 20, 2**32 - 2))


def odd_method(archive: Archive, rng: Random) -> None:
    _entry(archive, rng).method = rng.choice((1, 8, 9, 12, 14, 93, 99, 65535))


def odd_flags(archive: Archive, rng: Random) -> None:
    _entry(archive, rng).flags = rng.choice((1, 8, 0x41, 0x800, 0x2000, 0xFFFF))


def odd_name(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    names = (b"", b"/", b"../../x", b"data.pkl", b"archive/data.pkl", b"\xff\xfe", b"archive/data/0", b"a" * 60_000)
    entry.name = rng.choice((*names, entry.name + b"/", entry.name.upper(), entry.name + b"\x00"))


def other_local_name(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    entry.local_name = rng.choice((b"", b"x" * len(entry.name), entry.name + b"x"))


def lost(archive: Archive, rng: Random) -> None:
    archive.entries.remove(_entry(archive, rng))


def not_listed(archive: Archive, rng: Random) -> None:
    _entry(archive, rng).in_directory = False


def doubled(archive: Archive, rng: Random) -> None:
    archive.entries.insert(rng.randrange(len(archive.entries) + 1), replace(_entry(archive, rng)))


def odd_extra(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    entry.extra = rng.choice(
        (b"\x01\x00", b"\x01\x00\xff\xff", b"\x01\x00\x08\x00" + bytes(8), rng.randbytes(40), b"FB\x00\x00")
    )
    if rng.random() < 0.5:
        entry.size = entry.packed = 2**32 - 1


def wide_lies(archive: Archive, rng: Random) -> None:
    archive.wide = {rng.choice(("count", "size", "start", "at")): rng.choice(WIDE)} if rng.random() < 0.8 else {}


def odd_end(archive: Archive, rng: Random) -> None:
    name = rng.choice(("count", "directory_size", "directory_start", "disk"))
    setattr(archive, name, rng.choice(ODD) % (2**16 if name == "disk" else 2**32))


def odd_comment(archive: Archive, rng: Random) -> None:
    archive.comment = rng.choice((b"PK\x05\x06", b"PK\x05\x06" + bytes(18), b"note", bytes(65535)))


def other_contents(archive: Archive, rng: Random) -> None:
    entry = _entry(archive, rng)
    entry.data = rng.choice(
        (b"", b"big", b"\x00", b"little\n", b"2", entry.data[:-1], entry.data + b"\x00", bytes(100_000))
    )


def more_records(archive: Archive, rng: Random) -> None:
    number = rng.choice((1, 300))
    archive.entries.extend(Entry(b"archive/data/%d" % (1000 + at), b"1234") for at in range(number))


LIES: tuple[Callable[[Archive, Random], None], ...] = (
    *(odd_crc, odd_size, odd_place, same_place, compressed, bomb, odd_method, odd_flags, odd_name, other_local_name),
    *(lost, not_listed, doubled, odd_extra, wide_lies, odd_end, odd_comment, other_contents, more_records),
)


# ---- another form, the same records ----------------------------------------------------------------------------------


def reformed(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Records in another order, under another folder, with gaps, notes and records that nobody asks for."""
    archive = archive_of(data)
    folder = rng.choice((b"archive", b"model_final", "ሞዴል".encode()))
    for entry in archive.entries:
        entry.name = folder + entry.name[entry.name.index(b"/") :]
        entry.local_extra = rng.choice((b"", b"FB\x05\x00ZZZZZ"))
    rng.shuffle(archive.entries)
    archive.entries.append(Entry(folder + b"/.data/note", b"0123456789"))
    archive.gaps = {rng.randrange(1, len(archive.entries)): b"\x00" * rng.randrange(64)}
    archive.comment = rng.choice((b"", b"a note"))
    archive.wide = rng.choice((None, {}))
    return archive.render(), "reordered records"
