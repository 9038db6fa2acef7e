"""A folder as a zip file, and back. The same folder always gives the same bytes; what comes in is never trusted."""

from __future__ import annotations

import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from voxgraft import progress
from voxgraft.errors import FileError
from voxgraft.files import (
    CHUNK_BYTES,
    atomic_write,
    atomic_write_folder,
    format_error_reason,
    require_file,
    require_folder,
)

__all__ = ["normalize_file_name", "pack_zip", "unpack_zip"]

ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first that a zip file can name: what is packed tells nothing of when."""
UNCOMPRESSED_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npy", ".zip")
"""Files of numbers, which do not get smaller."""
MAX_UNPACKED_BYTES = 64 << 30
MAX_ZIP_FILES = 20_000
MAX_COMPRESSION_RATIO = 200
"""A text of a thousand equal letters shrinks to a hundredth; a bomb to a thousandth."""
UNIX_SYSTEM, ENCRYPTED_FLAG = 3, 1
COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What `pack` writes: no other way of packing is read."""
ZIP_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OverflowError,
    ValueError,
    OSError,
)
"""What the standard library says to a damaged file. Errors of our own disk have become ours before."""


def pack_zip(folder: Path, path: Path, *, overwrite: bool = False, leave_out: Collection[str] = ()) -> int:
    """Write the folder's files as a zip file, whole or not at all; how many bytes it has."""
    files = sorted(
        file
        for file in require_folder(folder).rglob("*")
        if file.is_file() and file.relative_to(folder).as_posix() not in leave_out
    )
    total = sum(file.stat().st_size for file in files)
    with (
        atomic_write(path, overwrite=overwrite) as stream,
        progress.progress_task(f"packing {path.name}", total) as advance,
        zipfile.ZipFile(stream, "w", allowZip64=True) as archive,
    ):
        for file in files:
            name = file.relative_to(folder).as_posix()
            info = zipfile.ZipInfo(name, ZIP_EPOCH)
            info.create_system, info.external_attr = UNIX_SYSTEM, 0o644 << 16
            info.compress_type = zipfile.ZIP_STORED if file.suffix in UNCOMPRESSED_SUFFIXES else zipfile.ZIP_DEFLATED
            info.file_size = file.stat().st_size
            with file.open("rb") as source, archive.open(info, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    advance(len(chunk))
    return path.stat().st_size


def unpack_zip(path: Path, folder: Path) -> None:
    """Write the files of a zip file into a new folder, whole or not at all."""
    try:
        with zipfile.ZipFile(require_file(path)) as archive, atomic_write_folder(folder) as new:
            members = list(_check_zip_members(archive, path))
            with progress.progress_task(f"unpacking {path.name}", sum(info.file_size for info in members)) as advance:
                for info in members:
                    _extract_zip_member(archive, info, new / info.filename, path)
                    advance(info.file_size)
    except ZIP_DAMAGE_ERRORS as error:
        raise _zip_error(path, format_error_reason(error)) from None


def _check_zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[zipfile.ZipInfo]:
    """The files in it; an error for a name that leads out, a link, a file named twice, or sizes that are absurd."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MAX_ZIP_FILES or sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise _zip_error(path, f"{len(infos):,} files that unfold to {sum(info.file_size for info in infos):,} bytes")
    seen: set[str] = set()
    for info in infos:
        parts = PurePosixPath(info.filename)
        if parts.is_absolute() or ".." in parts.parts or "\\" in info.filename or not parts.name:
            raise _zip_error(path, f"the name {info.filename!r:.80} leads out of the folder")
        if not info.filename.isprintable() or info.filename != str(parts):
            raise _zip_error(path, f"the name {info.filename!r:.80} is none that we write")
        if info.compress_type not in COMPRESSION_METHODS or info.flag_bits & ENCRYPTED_FLAG:
            raise _zip_error(path, f"{info.filename!r:.80} is packed in a way that we do not write")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _zip_error(path, f"{info.filename!r:.80} is a link")
        if (same := normalize_file_name(info.filename)) in seen:
            raise _zip_error(path, f"{info.filename!r:.80} stands in it twice, or differs from another in case alone")
        if info.file_size > CHUNK_BYTES and info.file_size > MAX_COMPRESSION_RATIO * max(info.compress_size, 1):
            raise _zip_error(path, f"{info.filename!r:.80} unfolds {info.compress_size:,} bytes to {info.file_size:,}")
        seen.add(same)
        yield info


def normalize_file_name(name: str) -> str:
    """Equal for names that are one file on some systems: those that differ in case, or in how accents are written."""
    return unicodedata.normalize("NFC", name).casefold()


def _extract_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, path: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    left = info.file_size
    with archive.open(info) as source, target.open("wb") as stream:
        while chunk := source.read(CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise _zip_error(path, f"{info.filename!r:.80} is longer than it says")
            stream.write(chunk)
    if left:
        raise _zip_error(path, f"{info.filename!r:.80} is shorter than it says")


def _zip_error(path: Path, found: str) -> FileError:
    return FileError("zip-broken", f"{path.name}: {found}", where=path)
