"""Where a writer's bytes go: counted, hashed if asked, reported as progress."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import IO

BytesLike = bytes | bytearray | memoryview


class ByteSink:
    """A stream that is only ever added to."""

    def __init__(
        self, stream: IO[bytes], *, hashed: bool = False, advance: Callable[[int], None] | None = None
    ) -> None:
        self._stream = stream
        self._digest = hashlib.sha256() if hashed else None
        self._advance = advance
        self.position = 0

    def write(self, data: BytesLike) -> None:
        self._stream.write(data)
        if self._digest is not None:
            self._digest.update(data)
        if self._advance is not None:
            self._advance(len(data))
        self.position += len(data)

    def write_all(self, chunks: Iterable[BytesLike]) -> int:
        """Write piece by piece; the number of bytes."""
        start = self.position
        for chunk in chunks:
            self.write(chunk)
        return self.position - start

    @property
    def sha256(self) -> str | None:
        """Hash of everything written, if it was asked for."""
        return self._digest.hexdigest() if self._digest is not None else None


def as_sink(stream: IO[bytes] | ByteSink) -> ByteSink:
    """The sink itself, or one around a stream."""
    return stream if isinstance(stream, ByteSink) else ByteSink(stream)
