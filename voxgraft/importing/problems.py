"""What was found wrong in a source, by file and line, so that nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxgraft.codes import CATALOGUE
from voxgraft.errors import FileError, Finding, Level, VoxgraftError, finding

__all__ = ["LOST_CLIP_CODES", "REFUSAL_CODES", "SourceProblem"]

REFUSAL_CODES = frozenset(("source-changed", "import-settings"))
"""What was asked for and not done."""
LOST_CLIP_CODES = frozenset(
    (
        *("media-unreadable", "media-missing", "media-short", "media-rate", "media-time", "audio-too-long"),
        *("text-missing", "transcript-empty", "text-encoding", "text-binary", "table-line", "table-double-id"),
        *("file-empty", "file-unreadable", "file-missing", "file-too-large", "subtitle-time", "subtitle-too-long"),
    )
)
"""Problems because of which there is no clip of a recording or of a line, though there should be one."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Lines of a source that were not used as they stand, and why."""

    code: str
    found: str
    file: str
    line: int = 0
    """The first line, counted from 1; 0 where the whole file is meant."""
    last_line: int = 0
    cure: str = ""
    """Where it is not the catalogue's."""

    @property
    def loses_clip(self) -> bool:
        """Whether a recording or a line with a text gave no clip because of it."""
        return self.code in LOST_CLIP_CODES

    @property
    def lines(self) -> range:
        return range(self.line, max(self.line, self.last_line) + 1)

    def finding(self) -> Finding:
        where = f"{self.file}, line {self.line}" if self.line else self.file
        if self.code not in CATALOGUE:  # of another version of voxgraft
            return finding("source-failed", f"{self.code}: {self.found}", where=where)
        # What is wrong with one file or line is an error for that alone: the others were imported.
        level: Level | None = (
            "warning" if CATALOGUE[self.code].level == "error" and self.code not in REFUSAL_CODES else None
        )
        return finding(self.code, self.found, where=where, cure=self.cure, level=level)

    @classmethod
    def of(cls, error: VoxgraftError, file: str, line: int = 0) -> SourceProblem:
        """What an error says, about a file of which others can still be used."""
        item = error.finding
        expected = f" (expected: {item.expected})" if item.expected else ""
        cure = "" if item.code in CATALOGUE and item.cure == CATALOGUE[item.code].cure else item.cure
        return cls(item.code, item.found + expected, file, line, cure=cure)

    def to_json(self) -> dict[str, Any]:
        known = {"code": self.code, "found": self.found, "file": self.file, "line": self.line, "last": self.last_line}
        return {**known, "cure": self.cure} if self.cure else known

    @classmethod
    def from_json(cls, values: object) -> SourceProblem:
        """As `to_json` wrote it; an error where something else stands there."""
        kinds = {"code": str, "found": str, "file": str, "line": int, "last": int}
        if not isinstance(values, Mapping) or not all(
            isinstance(values.get(name), kind) for name, kind in kinds.items()
        ):
            raise FileError("manifest-line", f"{values!r:.80} is no problem that was written down")
        code, found, file, line, last = (values[name] for name in kinds)
        return cls(code, found, file, line, last, cure=str(values.get("cure", "")))
