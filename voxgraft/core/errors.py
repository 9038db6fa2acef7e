"""What goes wrong, as data: findings (what `check` reports) and errors (what stops a command).

Both carry the same things: a code from the catalogue (`messages.toml`), what was found, what was expected, where, and
the cure. The library raises; only the command line and the web interface print.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

Level = Literal["error", "warning", "note"]
# A damaged file can hold a name of a megabyte.
MAX_FINDING_CHARACTERS = 800


@dataclass(frozen=True, slots=True)
class Code:
    """One entry of the catalogue: `why` says what it means for the user, `cure` what to do."""

    area: str
    why: str
    cure: str
    level: Level = "error"


@cache
def load_catalogue() -> dict[str, Code]:
    """All entries of `messages.toml`, parsed once."""
    text = Path(__file__).with_name("messages.toml").read_text(encoding="utf-8")
    return {code: Code(**entry) for code, entry in tomllib.loads(text).items()}


class Catalogue(Mapping[str, Code]):
    """Every code that an error or a finding can carry.

    The file is read at the first lookup: parsing takes about 15 ms, which `--help` does not have to spend.
    """

    def __getitem__(self, code: str) -> Code:
        return load_catalogue()[code]

    def __iter__(self) -> Iterator[str]:
        return iter(load_catalogue())

    def __len__(self) -> int:
        return len(load_catalogue())


CATALOGUE = Catalogue()
_PLACEHOLDERS: ContextVar[Mapping[str, str]] = ContextVar("placeholders", default=MappingProxyType({}))


@contextlib.contextmanager
def fill_placeholders(values: Mapping[str, str]) -> Iterator[None]:
    """Inside the block, words such as RUN and DATASET in a fix are replaced by what the command was given."""
    # The catalogue cannot know these names, and the code that finds a fault often has only a part of the run.
    token = _PLACEHOLDERS.set({**_PLACEHOLDERS.get(), **values})
    try:
        yield
    finally:
        _PLACEHOLDERS.reset(token)


def _fill_fix(text: str) -> str:
    values = _PLACEHOLDERS.get()
    if not values:
        return text
    # All at once: a path that is put in may itself contain such a word.
    words = "|".join(map(re.escape, values))
    return re.sub(rf"\b(?:{words})\b(?!/)", lambda match: values[match[0]], text)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has to say. Level and cure come from the catalogue unless given."""

    code: str
    found: str
    expected: str = ""
    where: str = ""
    cure: str = ""
    level: Level = "error"

    def lines(self) -> list[str]:
        """The finding as people read it: what was found, where, and the fix."""
        expected = f" (expected: {self.expected})" if self.expected else ""
        lines = [f"{self.level} {self.code}: {self.found}{expected}"]
        return lines + [f"  {name}: {text}" for name, text in (("in", self.where), ("fix", self.cure)) if text]

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def finding(
    code: str, found: str, *, expected: str = "", where: str | Path = "", cure: str = "", level: Level | None = None
) -> Finding:
    """Make a finding; a code that the catalogue does not have is our bug and raises KeyError."""
    entry = CATALOGUE[code]
    cure = _fill_fix(cure or entry.cure)
    texts = [found, expected, str(where), cure]
    half = MAX_FINDING_CHARACTERS // 2 - 20  # the middle goes: names differ at their ends
    for number, text in enumerate(texts):
        if len(text) > MAX_FINDING_CHARACTERS:
            texts[number] = f"{text[:half]} ... {len(text):,} characters ... {text[-half:]}"
    found, expected, where_text, cure = texts
    return Finding(code, found, expected, where_text, cure, level or entry.level)


class VoxgraftError(Exception):
    """Root of every error that a user can meet. The children say which kind of thing is at fault."""

    def __init__(self, code: str, found: str, *, expected: str = "", where: str | Path = "", cure: str = "") -> None:
        self.finding = finding(code, found, expected=expected, where=where, cure=cure, level="error")
        super().__init__("\n".join(self.finding.lines()))

    @classmethod
    def of(cls, item: Finding) -> Self:
        """The error that says what a finding says."""
        token = _PLACEHOLDERS.set({})  # they are filled in the finding already, with paths that may contain such words
        try:
            return cls(item.code, item.found, expected=item.expected, where=item.where, cure=item.cure)
        finally:
            _PLACEHOLDERS.reset(token)

    @property
    def code(self) -> str:
        return self.finding.code

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes send errors to their parent. The default would call the class with the message alone.
        return type(self).of, (self.finding,)


class FileError(VoxgraftError):
    """A file is missing, unreadable, too large, or not what its name says."""


class WriteError(FileError):
    """The system refused a write: the disk, the permissions or a limit is at fault, never the input."""


class TextError(VoxgraftError):
    """Text that cannot be used: not UTF-8, no letters, a line without end."""


class ConfigError(VoxgraftError):
    """A setting, a run.yaml or a command line that does not make sense."""


def exclusive_error(one: str, other: str) -> ConfigError:
    """The error for two flags of which only one can be given."""
    found, cure = f"{one} and {other} are both given", f"leave out {one} or {other}."
    return ConfigError("config-value", found, expected="only one of them", where="command line", cure=cure)


class TokenizerError(VoxgraftError):
    """A tokenizer file that is broken, of an unknown kind, or does not belong to the base."""


class CheckpointError(VoxgraftError):
    """A checkpoint that is broken, unsafe, or does not have the tensors that its family has."""


class GraftError(VoxgraftError):
    """A graft or a run folder whose parts do not belong together."""


class AudioError(VoxgraftError):
    """A waveform that cannot be used: empty, too short, not finite, not one channel."""


class CompanionError(VoxgraftError):
    """A program in an environment of its own that is missing, died, hung, or could not do its part."""


def raise_first_error(findings: Iterable[Finding]) -> None:
    """Raise the first error among findings, if there is one, and say which others there are."""
    errors = [item for item in findings if item.level == "error"]
    if not errors:
        return
    first = errors[0]
    others = ", ".join(dict.fromkeys(item.code for item in errors[1:] if item.code != first.code))
    count = "There is another error" if len(errors) == 2 else f"There are {len(errors) - 1} more errors"
    more = f" {count} ({others}); `voxgraft check RUN` lists all." if others else ""
    raise GraftError.of(replace(first, cure=first.cure + _fill_fix(more)))


# Below this share of common letters another name was meant: `nothing` and `train` have half of theirs in common.
_MIN_NAME_SIMILARITY = 0.6


def find_nearest_name(name: str, valid: list[str]) -> str | None:
    """The valid name closest to a mistyped one, if any is close. Of names in one section, their last parts count."""

    def similarity(other: str) -> float:
        one, two = (word.lstrip("-").replace("-", "_").rpartition(".") for word in (name, other))
        pair = (one[2], two[2]) if one[0] == two[0] else ("".join(one), "".join(two))
        return difflib.SequenceMatcher(None, *pair).ratio()

    nearest = max(valid, key=similarity, default=None)
    return nearest if nearest is not None and similarity(nearest) >= _MIN_NAME_SIMILARITY else None
