"""What became of old keys, row by row, and one value for each new key that several of them lead to.

Settings that the user gave by hand win over old ones; of two old values for one key the last counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxgraft.old_keys import KeyFate

__all__ = ["KeyTranslation", "UserOverrides", "resolve_key_conflicts"]


@dataclass(frozen=True, slots=True)
class KeyTranslation:
    """What became of one old key."""

    old: str
    value: str
    fate: KeyFate
    why: str
    key: str = ""
    new: Any = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        new = [str(item) for item in self.new] if isinstance(self.new, tuple) else self.new
        return {
            "old": self.old,
            "value": self.value,
            "fate": self.fate,
            "why": self.why,
            "key": self.key,
            "new": str(new) if isinstance(new, Path) else new,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class UserOverrides:
    """What the user said by hand."""

    base: Path | None = None
    family: str | None = None
    language: str | None = None
    texts: tuple[Path, ...] = ()


def resolve_key_conflicts(rows: Sequence[KeyTranslation], given: UserOverrides) -> list[KeyTranslation]:
    """The same rows, of which for each new key at most one value is taken over."""
    return _without_epochs(_without_overruled(_joined(_without_given(rows, given))))


def _without_given(rows: Sequence[KeyTranslation], given: UserOverrides) -> list[KeyTranslation]:
    """What the user gave by hand wins."""
    hand = [name for name in ("base", "language", "texts") if getattr(given, name)]
    return [
        replace(row, fate="gone", why=f"--{row.key} was given by hand, and counts", key="", new=None)
        if row.key in hand and row.fate in ("mapped", "suggested")
        else row
        for row in rows
    ]


def _joined(rows: Sequence[KeyTranslation]) -> list[KeyTranslation]:
    """A flag that one command repeats, each time with another file, names them all."""
    together: dict[tuple[str, int | None], tuple[Any, ...]] = {}
    for row in rows:
        if row.fate == "mapped" and isinstance(row.new, tuple):
            together[row.key, row.line] = (*together.get((row.key, row.line), ()), *row.new)
    return [
        replace(row, new=tuple(dict.fromkeys(together[row.key, row.line])))
        if row.fate == "mapped" and isinstance(row.new, tuple)
        else row
        for row in rows
    ]


def _without_overruled(rows: Sequence[KeyTranslation]) -> list[KeyTranslation]:
    """Of two values that differ the last counts; the other stays as a comment."""
    last = {row.key: row for row in rows if row.fate == "mapped"}
    result = []
    for row in rows:
        if row.fate == "mapped" and row.new != last[row.key].new:
            other = last[row.key]
            why = f"another value comes later, and counts: {other.value} ({other.old})"
            row = replace(row, fate="suggested", why=why)
        result.append(row)
    return result


def _without_epochs(rows: Sequence[KeyTranslation]) -> list[KeyTranslation]:
    """A run has steps or epochs; the forks stopped at whichever came first."""
    if not any(row.fate == "mapped" and row.key == "train.steps" for row in rows):
        return list(rows)
    why = "train.steps is given too, and counts; empty that one to count epochs"
    return [
        replace(row, fate="suggested", why=why) if row.fate == "mapped" and row.key == "train.epochs" else row
        for row in rows
    ]
