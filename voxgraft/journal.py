"""The journal: the one record of a run, a JSON object per line, added to and never rewritten but to cut its end.

A line counts when its line break is there, so a process killed in the middle of one leaves nothing that is read.
Who writes holds the run's lock; readers need none.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from voxgraft.errors import FileError
from voxgraft.files import MAX_TEXT_BYTES, atomic_write, build_write_error, fsync_folder, is_file, path_exists

__all__ = ["JournalEntry", "RunJournal", "strip_clock_fields"]

JournalEntry = dict[str, Any]
TAIL_BYTES = 1 << 16


class RunJournal:
    """A run's journal. Nothing is opened or made before the first write."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a cut replaces the file, never a link to it
        self._descriptor: int | None = None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add one line with the time in `wall_time`; a number that is not finite becomes null.

        Whole or not at all: what a full disk took of it is cut again.
        """
        entry = {"kind": kind, "step": step, **_replace_non_finite(values), "wall_time": round(time.time(), 3)}
        rest = memoryview(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        try:
            descriptor = self._opened()
            end = os.fstat(descriptor).st_size
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, end)
                self.close()  # opening it again cuts what could not be cut here
                raise
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def sync(self) -> None:
        """Make everything written so far last through a power cut."""
        try:
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except OSError as error:
            raise build_write_error(error, self.path) from None

    def read(self) -> list[JournalEntry]:
        """Every whole line; none where there is no journal yet. A broken line is an error with its number."""
        with _pause_gc():
            return [self._entry(number, line) for number, line in enumerate(self._lines(), 1)]

    def truncate_after(self, step: int) -> int:
        """Remove the lines of later steps, in one rename; how many they were.

        A broken line is an error only if a line that stays comes after it: a power cut may spoil the end.
        """
        lines = self._lines()
        steps = [self._step_or_none(number, line) for number, line in enumerate(lines, 1)]
        kept = [index for index, found in enumerate(steps) if found is not None and found <= step]
        for index in range(kept[-1] if kept else 0):
            if steps[index] is None:
                self._entry(index + 1, lines[index])
        if len(kept) < len(lines):
            self.close()
            self._remove_leftovers()
            with atomic_write(self.path, overwrite=True) as stream:
                stream.writelines(lines[index] + b"\n" for index in kept)
        return len(lines) - len(kept)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _lines(self) -> list[bytes]:
        """The whole lines, without their breaks."""
        if path_exists(self.path) and not is_file(self.path):
            raise FileError("not-a-file", f"{self.path.name} is not a regular file", where=self.path)
        try:
            with self.path.open("rb") as stream:
                data = stream.read(MAX_TEXT_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileError("file-unreadable", f"{self.path.name}: {error.strerror}", where=self.path) from None
        if len(data) > MAX_TEXT_BYTES:
            found = f"{self.path.name} has over {MAX_TEXT_BYTES:,} bytes"
            raise FileError("file-too-large", found, where=self.path)
        return data.split(b"\n")[:-1]

    def _entry(self, number: int, line: bytes) -> JournalEntry:
        try:
            entry = _JSON_DECODER.decode(line.decode("utf-8"))
            if isinstance(entry, dict) and isinstance(entry.get("kind"), str) and type(entry.get("step")) is int:
                return entry
            reason = "no object with `kind` and `step`"
        except (ValueError, RecursionError) as error:  # what is not UTF-8, not JSON, or has a number without end
            reason = str(error).splitlines()[0]
        found = f"line {number} is broken: {reason}"
        raise FileError("journal-broken", found, expected="one JSON object per line", where=self.path)

    def _step_or_none(self, number: int, line: bytes) -> int | None:
        try:
            return int(self._entry(number, line)["step"])
        except FileError:
            return None

    def _opened(self) -> int:
        """The file to add to: the one that stands at the path now, which a cut may have replaced."""
        if self._descriptor is not None and not _is_same_file(self._descriptor, self.path):
            self.close()
        if self._descriptor is None:
            is_new = not path_exists(self.path)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            self._descriptor = descriptor
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.close()
                raise FileError("not-a-file", f"{self.path.name} is not a regular file", where=self.path)
            _truncate_partial_line(descriptor)
            if is_new:
                fsync_folder(self.path.parent)
        return self._descriptor

    def _remove_leftovers(self) -> None:
        """What a process killed in the middle of a cut has left; only one at a time cuts."""
        for leftover in self.path.parent.glob(f".{self.path.name}.????????.part"):
            with contextlib.suppress(OSError):
                leftover.unlink()


def strip_clock_fields(entry: Mapping[str, Any]) -> JournalEntry:
    """A line without what depends on the clock and the machine's memory, so that two runs can be compared."""
    return {
        name: value
        for name, value in entry.items()
        if not name.startswith(("wall_", "memory_")) and not name.endswith("_per_second")
    }


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value


@contextlib.contextmanager
def _pause_gc() -> Iterator[None]:
    """While very many small objects are made and none is dropped, looking for garbage takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_JSON_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _truncate_partial_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    for start, block in _read_blocks_backwards(descriptor, size):
        if b"\n" in block:
            whole = start + block.rindex(b"\n") + 1
            break
    else:
        whole = 0
    if whole < size:
        os.ftruncate(descriptor, whole)


def _read_blocks_backwards(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    for start in reversed(range(0, size, TAIL_BYTES)):
        yield start, os.pread(descriptor, TAIL_BYTES, start)
