"""Text on its way to a tokenizer. Here: what a family of models has to say about text.

Families must import without third-party text packages, so nothing is imported here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Protocol

__all__ = ["TextFamily", "TextFrontend"]


class TextFrontend(ABC):
    """Text to the string that the tokenizer file is given, exactly as the original program does it."""

    languages: ClassVar[tuple[str, ...]] = ()
    """Languages that this front end is for, where they are fewer than the family's."""
    closed_up: ClassVar[tuple[str, ...]] = ()
    """Marks before which the program removes a space."""

    @abstractmethod
    def clean(self, text: str) -> str:
        """The original program's punctuation clean-up, which comes before everything else."""

    @abstractmethod
    def prepare(self, text: str, language: str | None) -> str:
        """Cleaned text to tokenizer input. `language` is the code whose tag is put in front, where there are tags."""

    @abstractmethod
    def prepare_part(self, text: str, language: str | None, *, is_first: bool, is_last: bool) -> str:
        """One part, in one language, of a sentence in several: `clean` and `prepare`, without a tag.

        What the program does to the ends of a sentence is done to the first and the last part only."""


class TextFamily(Protocol):
    """What the text encoder needs to know of a family of models."""

    name: ClassVar[str]
    languages: ClassVar[tuple[str, ...]]

    def front(self, tokenizer: Path | None = None) -> TextFrontend:
        """The text front end that belongs to a tokenizer file."""

    def tag(self, language: str) -> str | None:
        """The language tag as the tokenizer spells it; None if the family has no tags."""
