"""What was found wrong in a source, by file and line, so that nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxgraft.codes import CATALOGUE
from voxgraft.errors import FileError, Finding, VoxgraftError, finding

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Lines of a source that were not used as they stand, and why."""

    code: str
    found: str
    file: str
    line: int = 0
    """The first line, counted from 1; 0 where the whole file is meant."""
    last_line: int = 0

    @property
    def lines(self) -> range:
        return range(self.line, max(self.line, self.last_line) + 1)

    def finding(self) -> Finding:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        if self.code not in CATALOGUE:  # of another version of voxgraft
            return finding("source-failed", f"{self.code}: {self.found}", where=where)
        return finding(self.code, self.found, where=where)

    @classmethod
    def of(cls, error: VoxgraftError, file: str, line: int = 0) -> Problem:
        """What an error says, about a file of which others can still be used."""
        item = error.finding
        expected = f" (expected: {item.expected})" if item.expected else ""
        return cls(item.code, item.found + expected, file, line)

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "found": self.found, "file": self.file, "line": self.line, "last": self.last_line}

    @classmethod
    def from_json(cls, values: object) -> Problem:
        """As `to_json` wrote it; an error where something else stands there."""
        kinds = {"code": str, "found": str, "file": str, "line": int, "last": int}
        if not isinstance(values, Mapping) or not all(
            isinstance(values.get(name), kind) for name, kind in kinds.items()
        ):
            raise FileError("manifest-line", f"{values!r:.80} is no problem that was written down")
        return cls(*(values[name] for name in kinds))
