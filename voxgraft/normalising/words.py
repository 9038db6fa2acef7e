"""What a language says for numbers and what stands beside them: the interface that the reader of numbers needs.

A method that gives None says: not certain. The text then stays as it is, and is noted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

Calendar = Literal["ethiopian", "gregorian"]
LARGEST_CARDINAL = 10**15 - 1
"""Longer numbers are identifiers, read digit by digit."""


class NumberVerbalizer(ABC):
    """Number words of one language, and the small words of its numbers."""

    prefixes: ClassVar[frozenset[str]]
    """Prepositions that are written at the word behind them, and so at a number."""
    suffix: ClassVar[str]
    """A pattern of endings that are written at a number and belong to its last word."""
    ordinal_suffix: ClassVar[str]
    """A pattern of the letters behind digits that make an ordinal."""
    scales: ClassVar[Mapping[str, str]]
    """Words for a thousand and more, as people write them behind digits, each with our spelling."""
    currencies: ClassVar[Mapping[str, str]]
    """Signs, codes and words of money, each with the word that is said."""
    units: ClassVar[Mapping[str, str]]
    """Units behind a number, as written, each with the words that are said."""
    hours: ClassVar[tuple[str, ...]]
    """The word for the hour, as it may stand before or behind a time."""
    from_words: ClassVar[tuple[str, ...]]
    """Words or prepositions before an interval after which "from" is not said again."""
    point: ClassVar[str]
    """The decimal point, said."""
    operators: ClassVar[Mapping[str, str]]
    """Signs between two numbers, each with the words that are said."""

    @abstractmethod
    def cardinal(self, number: int) -> str: ...

    @abstractmethod
    def ordinal(self, number: int, suffix: str) -> str: ...

    @abstractmethod
    def negative(self, words: str) -> str: ...

    @abstractmethod
    def percent(self, words: str, sign: str) -> str | None: ...

    @abstractmethod
    def money(self, whole: int, cents: int, currency: str) -> str: ...

    @abstractmethod
    def fraction(self, above: int, below: int) -> str | None: ...

    @abstractmethod
    def mixed_fraction(self, whole: int, above: int, below: int) -> str | None: ...

    @abstractmethod
    def clock(self, hour: int, minute: int, second: int) -> str: ...

    @abstractmethod
    def interval(self, first: str, last: str, begun: bool) -> str:
        """From one to the other; `begun` where the text before has one of `froms` already."""

    @abstractmethod
    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None: ...

    @abstractmethod
    def calendar(self, before: str, after: str) -> Calendar | None:
        """The calendar that the words around a date name."""

    def decimal(self, whole: int, digits: str) -> str:
        """Digits behind the point are said one by one."""
        return f"{self.cardinal(whole)} {self.point} {self.digits(digits)}"

    def digits(self, digits: str) -> str:
        """One by one."""
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def join(self, words: str, suffix: str) -> str:
        """Words with an ending of their last one."""
        return words + suffix
