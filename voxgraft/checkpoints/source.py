"""One checkpoint file opened for reading by position, a bounded piece at a time.

Knows nothing of formats. A read past the end is an error with a code, never a short answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from voxgraft.errors import CheckpointError, FileError
from voxgraft.files import require_file

CHUNK_BYTES = 1 << 20


class ByteSource:
    """A file's bytes by position. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = require_file(path)
        try:
            self._stream = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
            self._status = os.fstat(self._stream.fileno())
        except OSError as error:
            raise _read_error(path, error) from None
        self.size = self._status.st_size

    def close(self) -> None:
        self._stream.close()

    def read(self, start: int, size: int) -> bytes:
        """Exactly `size` bytes from `start`."""
        buffer = bytearray(size)
        self.fill(start, memoryview(buffer))
        return bytes(buffer)

    def fill(self, start: int, view: memoryview) -> None:
        """Fill the whole of `view` from `start`."""
        done = 0
        try:
            self._stream.seek(start)
            while done < len(view):
                count = self._stream.readinto(view[done:])
                if not count:
                    found = f"the file ends at byte {start + done:,} while {start + len(view):,} were being read"
                    raise CheckpointError("checkpoint-truncated", found, where=self.path)
                done += count
        except OSError as error:
            raise _read_error(self.path, error) from None

    def chunks(self, start: int, size: int) -> Iterator[memoryview]:
        """`size` bytes from `start`, a piece at a time. Each piece is good only until the next is asked for."""
        buffer = memoryview(bytearray(min(size, CHUNK_BYTES)))
        end = start + size
        while start < end:
            view = buffer[: end - start]
            self.fill(start, view)
            start += len(view)
            yield view

    def check_unchanged(self) -> None:
        """Refuse a file that somebody wrote to while it was open here."""
        now = os.fstat(self._stream.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise CheckpointError("checkpoint-changed", f"{self.path.name} changed while it was read", where=self.path)


def _read_error(path: Path, error: OSError) -> FileError:
    return FileError("file-unreadable", f"{path.name}: {error.strerror or error}", where=path)
