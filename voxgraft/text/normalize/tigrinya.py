"""Tigrinya number words, after F. Gaim, "Tigrinya Number Verbalization" (arXiv 2601.03403) and CLDR 48.

What that paper and CLDR do not settle is left as it is: fractions, months of unnamed calendars, sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from voxgraft.text.normalize.reader import Calendar, NumberVerbalizer

ONES = "ዜሮ ሓደ ክልተ ሰለስተ ኣርባዕተ ሓሙሽተ ሽዱሽተ ሸውዓተ ሸሞንተ ትሽዓተ".split()
TENS = "ዓሰርተ ዕስራ ሰላሳ ኣርብዓ ሓምሳ ሱሳ ሰብዓ ሰማንያ ቴስዓ".split()
HUNDRED, HUNDRED_IN_COMPOUNDS = "ሚእቲ", "ሚእት"
SCALES = ((10**12, "ትሪልዮን"), (10**9, "ቢልዮን"), (10**6, "ሚልዮን"), (10**3, "ሽሕ"))
# Written at every part of a number that has several.
AND_SUFFIX = "ን"
MASCULINE_ORDINALS = "ቀዳማይ ካልኣይ ሳልሳይ ራብዓይ ሓሙሻይ ሻድሻይ ሻውዓይ ሻምናይ ታሽዓይ ዓስራይ".split()
FEMININE_ORDINALS = "ቀዳመይቲ ካልአይቲ ሳልሰይቲ ራብዐይቲ ሓሙሸይቲ ሻድሸይቲ ሻውዐይቲ ሻምነይቲ ታሽዐይቲ ዓስረይቲ".split()
MONTHS = "ጥሪ ለካቲት መጋቢት ሚያዝያ ግንቦት ሰነ ሓምለ ነሓሰ መስከረም ጥቅምቲ ሕዳር ታሕሳስ".split()
_LARGEST_SINGLE_WORD = 10


class TigrinyaVerbalizer(NumberVerbalizer):
    """The Eritrean words, which the paper takes as its standard."""

    prefixes: ClassVar = frozenset("ብ ን".split())
    suffix: ClassVar = "(?:ን)?"
    ordinal_suffix: ClassVar = "-?(?:ይ|ቲ)"
    scales: ClassVar[Mapping[str, str]] = {
        **{word: word for _, word in SCALES},
        "ሽሕ": "ሽሕ",
        "ሚሊዮን": "ሚልዮን",
        "ቢሊዮን": "ቢልዮን",
        "million": "ሚልዮን",
        "billion": "ቢልዮን",
    }
    currencies: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("ናቕፋ", "ERN", "Nfk"), "ናቕፋ"),
        **dict.fromkeys(("ብር", "ETB", "Br", "Br."), "ብር"),
        **dict.fromkeys(("ዶላር", "$", "US$", "USD"), "ዶላር"),
        **dict.fromkeys(("ዩሮ", "€", "EUR"), "ዩሮ"),
    }
    units: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("km", "Km", "KM", "ኪሜ"), "ኪሎ ሜትር"),
        **dict.fromkeys(("kg", "Kg", "KG", "ኪግ"), "ኪሎግራም"),
        "g": "ግራም",
        "ha": "ሄክታር",
        "W": "ዋት",
        "kW": "ኪሎዋት",
        "MW": "ሜጋዋት",
        "MB": "ሜጋባይት",
        "GB": "ጊጋባይት",
        "°": "ዲግሪ",
    }
    hours: ClassVar = ("ሰዓት",)
    from_words: ClassVar = ("ካብ", "ብ", "ን")
    point: ClassVar = "ነጥቢ"
    operators: ClassVar[Mapping[str, str]] = {}
    minus: ClassVar = "ኣሉታ"
    percents: ClassVar[Mapping[str, str]] = {"%": "ሚእታዊት"}
    interval: ClassVar = ("ካብ ", "ክሳብ")

    def cardinal(self, number: int) -> str:
        return _join_with_and(_number_parts(number))

    def ordinal(self, number: int, suffix: str) -> str:
        if not 1 <= number <= _LARGEST_SINGLE_WORD:
            return f"መበል {self.cardinal(number)}"
        return (FEMININE_ORDINALS if suffix.endswith("ቲ") else MASCULINE_ORDINALS)[number - 1]

    def money(self, whole: int, cents: int, currency: str) -> str:
        small = f"{self.cardinal(cents)} ሳንቲም"
        words = f"{self.cardinal(whole)} {currency}"
        if not cents:
            return words
        return f"{words}{AND_SUFFIX} {small}{AND_SUFFIX}" if whole else small

    def fraction(self, whole: int | None, above: int, below: int) -> None:  # noqa: ARG002 (no source for them)
        return None

    def clock(self, hour: int, minute: int, second: int) -> str:
        words = f"{self.hours[0]} {self.cardinal(hour)}"
        if not minute and not second:
            return words
        words += AND_SUFFIX + (f" {self.cardinal(minute)} ደቒቕ{AND_SUFFIX}" if minute else "")
        return words + (f" {self.cardinal(second)} ካልኢት{AND_SUFFIX}" if second else "")

    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None:
        """Month names are the same in both calendars and begin at different days, so only a named one is read."""
        if calendar is None:
            return f"{self.cardinal(day)} {self.cardinal(month)} {self.cardinal(year)}"
        if calendar == "ethiopian":
            return None
        return f"{MONTHS[month - 1]} {self.cardinal(day)} {self.cardinal(year)}"

    def calendar(self, before: str, after: str) -> Calendar | None:  # noqa: ARG002 (era words are used for both)
        return None


def _number_parts(number: int, compound: bool = False) -> list[str]:
    """The parts that are joined by "and": one for each scale, the hundreds, the tens, the ones."""
    counted = []
    for size, word in SCALES:
        count, number = divmod(number, size)
        if count:
            counted.append((count, word))
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    if tens == 1 and ones:
        small = [f"{TENS[0]} {ONES[ones]}"]  # eleven to nineteen are one part
    else:
        small = [*([TENS[tens - 1]] if tens else []), *([ONES[ones]] if ones else [])]
    if not (counted or hundreds or small):
        small = [ONES[0]]
    # In a number of several parts the hundreds have another form.
    compound = compound or len(counted) + bool(hundreds) + len(small) > 1
    parts = [f"{_join_with_and(_number_parts(count, compound))} {word}" for count, word in counted]
    if hundreds:
        parts.append(f"{ONES[hundreds]} {HUNDRED_IN_COMPOUNDS if compound else HUNDRED}")
    return parts + small


def _join_with_and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else " ".join(part + AND_SUFFIX for part in parts)
