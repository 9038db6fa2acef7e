"""Writes numbers, dates, times, money and measures of Ethiopic text in words.

`build_shape_patterns` finds them, `NumberExpander` reads them, and a `NumberVerbalizer` has the words of one language.
Latin words are skipped.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import regex

from voxgraft.text.normalize.generic import NO_MATCH, TextEditor, regex_alternation

Calendar = Literal["ethiopian", "gregorian"]
RegexMatch = regex.Match[str]
ETHIOPIC_LETTER = r"[\p{Script=Ethiopic}&&\p{L}]"
HUNDRED_SIGN, MYRIAD_SIGN = "፻", "፼"
# Unicode gives each consonant eight code points in a row, one for each vowel.
_VOWELS_PER_CONSONANT = 8

_NUMERAL = regex.compile("[፩-፼]+")
_UNDER_A_MYRIAD = "(?:[፲-፺]?[፩-፱]?፻)?[፲-፺]?[፩-፱]?"
_WHOLE_NUMERAL = regex.compile(rf"{_UNDER_A_MYRIAD}(?:፼{_UNDER_A_MYRIAD})*")
_NON_ASCII_DIGIT = regex.compile(r"[\p{Nd}--[0-9]]", regex.V1)
# The Unicode of `regex` is newer than that of `unicodedata`, which may not know a digit that `regex` has found.
_DIGIT_PATTERNS = {str(value): regex.compile(rf"\p{{Numeric_Value={value}}}") for value in range(10)}


def convert_to_ascii_digits(draft: TextEditor) -> None:
    """Ethiopic numerals and the digits of other scripts as 0 to 9."""

    def numeral_to_digits(match: RegexMatch) -> str:
        # The value, or sign by sign if the signs make no number; apart from digits beside it.
        value, signs = parse_ethiopic_numeral(match.group()), match.group()
        digits = str(value) if value is not None else " ".join(str(int(unicodedata.numeric(sign))) for sign in signs)
        before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
        return f"{' ' * before.isdecimal()}{digits}{' ' * after.isdecimal()}"

    draft.rewrite(
        "other-digits",
        _NON_ASCII_DIGIT,
        lambda match: next(value for value, pattern in _DIGIT_PATTERNS.items() if pattern.match(match.group())),
    )
    draft.rewrite("ethiopic-numeral", _NUMERAL, numeral_to_digits)


def parse_ethiopic_numeral(numeral: str) -> int | None:
    """The number that a numeral means; None for signs in an order that makes none."""
    if not numeral or not _WHOLE_NUMERAL.fullmatch(numeral):
        return None
    myriads = hundreds = ones = 0
    for sign in numeral:
        if sign == HUNDRED_SIGN:
            hundreds, ones = 100 * (ones or 1), 0
        elif sign == MYRIAD_SIGN:
            myriads, hundreds, ones = 10_000 * (myriads + hundreds + ones or 1), 0, 0
        else:
            ones += int(unicodedata.numeric(sign))
    return myriads + hundreds + ones


def is_same_consonant(one: str, other: str) -> bool:
    """Whether two letters are one consonant with different vowels."""
    return ord(one) // _VOWELS_PER_CONSONANT == ord(other) // _VOWELS_PER_CONSONANT


def build_folding_table(rows: Mapping[str, str], letters: Mapping[str, str]) -> dict[int, str]:
    """A table that writes one letter for another, for whole rows (by their first letters) and for single letters."""
    table = {
        ord(row) + vowel: chr(ord(same) + vowel)
        for row, same in rows.items()
        for vowel in range(_VOWELS_PER_CONSONANT - 1)  # the eighth code point of a row is a labial form
    }
    table = {code: letters.get(letter, letter) for code, letter in table.items()}
    return table | {ord(letter): same for letter, same in letters.items()}


# Longer numbers are identifiers, read digit by digit.
_MAX_CARDINAL_DIGITS = 15


class NumberVerbalizer(ABC):
    """Number words of one language, and the small words of its numbers."""

    prefixes: ClassVar[frozenset[str]]
    """Prepositions that are written at the word behind them, and so at a number."""
    suffix: ClassVar[str]
    """A pattern of endings that are written at a number and belong to its last word; `(?!)` for none."""
    ordinal_suffix: ClassVar[str]
    """A pattern of the letters behind digits that make an ordinal; empty where digits are never ordinals."""
    scales: ClassVar[Mapping[str, str]]
    """Words for a thousand and more, as people write them behind digits, each with our spelling."""
    currencies: ClassVar[Mapping[str, str]]
    """Signs, codes and words of money, each with the word that is spoken."""
    units: ClassVar[Mapping[str, str]]
    """Units behind a number, as written, each with the words that are spoken."""
    hours: ClassVar[tuple[str, ...]]
    """The word for the hour, as it may come before or behind a time."""
    from_words: ClassVar[tuple[str, ...]]
    """Words or prepositions before an interval after which "from" is not said again."""
    point: ClassVar[str]
    """The decimal point, said."""
    operators: ClassVar[Mapping[str, str]]
    """Signs between two numbers, each with the words that are spoken."""
    minus: ClassVar[str]
    percents: ClassVar[Mapping[str, str]]
    """Words behind the number, by sign."""
    interval: ClassVar[tuple[str, str]]
    """What is put before the first number ("from", with its space if it is a word), and the word before the last."""

    @abstractmethod
    def cardinal(self, number: int) -> str: ...

    @abstractmethod
    def ordinal(self, number: int, suffix: str) -> str: ...

    @abstractmethod
    def money(self, whole: int, cents: int, currency: str) -> str: ...

    @abstractmethod
    def fraction(self, whole: int | None, above: int, below: int) -> str | None:
        """A fraction, alone or behind a whole number; None leaves it as it is written."""

    @abstractmethod
    def clock(self, hour: int, minute: int, second: int) -> str: ...

    @abstractmethod
    def date(self, day: int, month: int, year: int, calendar: Calendar | None) -> str | None: ...

    @abstractmethod
    def calendar(self, before: str, after: str) -> Calendar | None:
        """The calendar that the words around a date name; always "gregorian" where no other is in use."""

    def digits(self, digits: str) -> str:
        """One by one."""
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def join(self, words: str, suffix: str) -> str:
        """Words with an ending of their last one."""
        return words + suffix


_LATIN = r"\p{Script=Latin}"
FRACTION_SIGNS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅛": (1, 8)}
_FRACTION_SIGN = f"(?P<sign>[{''.join(FRACTION_SIGNS)}])"
NUMBER_PATTERN = r"(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+)"
_INTERVAL_SIDE = rf"{NUMBER_PATTERN}(?:\.\d+)?"
_DECIMAL_NUMBER = rf"(?P<whole>{NUMBER_PATTERN})(?:\.(?P<point>\d+))?(?!\.?\d)"
_NOT_BEFORE_LATIN = rf"(?![{_LATIN}\d])"
_WORD_ENDS = rf"(?![\d{_LATIN}]|{ETHIOPIC_LETTER})"
_SLASH_FRACTION = r"(?P<above>\d{1,2})/(?P<below>\d{1,2})(?![\d/])"

# Latin letters, with what is inside words and addresses. Digits are no part of it: they are read out.
LATIN_WORD = regex.compile(rf"[{_LATIN}][{_LATIN}\p{{M}}]*(?:['.-][{_LATIN}][{_LATIN}\p{{M}}]*)*", regex.V1)
# What is skipped where nothing can be read: one character, but a group of digits only as a whole.
_SKIPPED_TEXT = regex.compile(r"\d+(?:[/.,:]\d+)*|.", regex.DOTALL)
_ETHIOPIC_LETTERS = regex.compile(rf"{ETHIOPIC_LETTER}+", regex.V1)
# Where something readable may begin. A minus is before a digit and not behind a word.
_READABLE_START = regex.compile(
    rf"[\d{_LATIN}{''.join(FRACTION_SIGNS)}\p{{Sc}}]|\+(?=\d)|(?<![\p{{L}}\d)])-(?=\d)", regex.V1
)


def build_shape_patterns(verbalizer: NumberVerbalizer) -> dict[str, regex.Pattern[str]]:
    """By name, in the order in which they are tried at a place."""
    scales, hours = regex_alternation(verbalizer.scales), regex_alternation(verbalizer.hours)
    signs = regex_alternation(
        sign for sign in verbalizer.currencies if not regex.fullmatch(rf"{ETHIOPIC_LETTER}+", sign, regex.V1)
    )
    amount = rf"{_DECIMAL_NUMBER}(?: ?(?P<scale>{scales}){_WORD_ENDS})?"
    hour_word = rf"(?: ?(?:{hours})(?!{ETHIOPIC_LETTER}))?"
    patterns = {
        "money-before": rf"(?P<currency>{signs}) ?{amount}{_NOT_BEFORE_LATIN}",
        "iso-date": rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)(?![-\d]){_NOT_BEFORE_LATIN}",
        "date": rf"(?P<day>\d{{1,2}})(?P<by>[/.-])(?P<month>\d{{1,2}})(?P=by)(?P<year>\d{{4}}){_NOT_BEFORE_LATIN}",
        "time": rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?!:?\d){hour_word}{_NOT_BEFORE_LATIN}",
        "phone": rf"(?:\+\d|0\d)\d*(?:[- ]\d{{2,}})*{_NOT_BEFORE_LATIN}",
        "dotted": rf"\d+(?:\.\d+){{2,}}{_NOT_BEFORE_LATIN}",
        "interval": rf"(?P<first>{_INTERVAL_SIDE}) ?- ?(?P<last>{_INTERVAL_SIDE})(?! ?[-.:/]? ?\d)"
        rf"(?P<percent> ?%)?{_NOT_BEFORE_LATIN}",
        "mixed": rf"(?P<whole>\d+)(?: {_SLASH_FRACTION}| ?{_FRACTION_SIGN})",
        "fraction": rf"{_SLASH_FRACTION}|{_FRACTION_SIGN}",
        "zeros": rf"0\d+(?![.,]\d){_NOT_BEFORE_LATIN}",
        "ordinal": rf"(?P<whole>{NUMBER_PATTERN})(?P<ordinal>{verbalizer.ordinal_suffix or NO_MATCH})",
        "money": rf"{amount} ?(?P<currency>{regex_alternation(verbalizer.currencies)}){_WORD_ENDS}",
        "percent": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<percent>[%‰])",
        "unit": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<unit>{regex_alternation(verbalizer.units)}){_WORD_ENDS}"
        r"(?P<dot>\.(?! ?$))?",
        "number": rf"(?P<minus>-)?{_DECIMAL_NUMBER}",
        "whole": rf"(?P<minus>-)?(?P<whole>{NUMBER_PATTERN})(?P<point>(?!)){{0}}",
    }
    return {name: regex.compile(pattern, regex.V1) for name, pattern in patterns.items()}


# Characters on each side in which a date's calendar is searched.
_CALENDAR_CONTEXT = 60
_HOURS, _MINUTES, _DAYS, _MONTHS, _ETHIOPIAN_MONTHS = 24, 60, 31, 12, 13
_PHONE_DIGITS = range(7, 16)
_CENT_DIGITS = 2
_DENOMINATORS = range(2, 11)
# Behind these words 1/2 is the number of a paper or a paragraph, not a half.
_NUMBERING_WORDS = ("ቁጥር", "ቍጥር", "አንቀጽ", "ቁጽሪ", "ዓንቀጽ")
_MAX_CLITIC_LETTERS = 4


@dataclass(frozen=True)
class NumberExpander:
    """The step that writes out what is in digits."""

    words: NumberVerbalizer

    def __call__(self, draft: TextEditor) -> None:
        """One sweep from left to right, after the signs of sums, which need digits on both sides."""
        for sign, words in self.words.operators.items():
            draft.rewrite("operator", regex.compile(rf"(?<=\d ?){regex.escape(sign)}(?= ?\d)"), f" {words} ")
        draft.sweep(_READABLE_START, self.read)

    @cached_property
    def _shapes(self) -> dict[str, regex.Pattern[str]]:
        return build_shape_patterns(self.words)

    def read(self, text: str, start: int) -> tuple[str, int, str]:
        """The rule, the end and the words of the thing that begins here; no rule where nothing is read."""
        for shape, pattern in self._shapes.items():
            match = pattern.match(text, start)
            spoken = self._speak(shape, match) if match else None
            if match is None or spoken is None:
                continue
            rule, words = spoken
            end = match.end()
            if not words:  # the shape is certain and its words are not: it stays as it is written
                return "", end, ""
            # Prepositions before the number and endings behind it stay attached; other letters are set apart.
            clitic = _letters_before(text, start) in self.words.prefixes
            apart_before = " " if text[:start][-1:].isalnum() and not clitic else ""
            if following := _ETHIOPIC_LETTERS.match(text, end):
                if regex.fullmatch(self.words.suffix, following.group()):
                    return rule, following.end(), apart_before + self.words.join(words, following.group())
                return rule, end, f"{apart_before}{words} "
            return rule, end, f"{apart_before}{words}{' ' * text[end : end + 1].isalnum()}"
        step = LATIN_WORD.match(text, start) or _SKIPPED_TEXT.match(text, start)
        return "", step.end() if step else start + 1, ""

    def _amount(self, match: RegexMatch) -> str:
        """The number of a match, with its point and its sign."""
        verbalizer, digits, point = self.words, match["whole"].replace(",", ""), match["point"]
        if len(digits) > _MAX_CARDINAL_DIGITS:
            words = verbalizer.digits(digits + (point or ""))
        else:  # digits behind the point are spoken one by one
            words = verbalizer.cardinal(int(digits)) + (
                f" {verbalizer.point} {verbalizer.digits(point)}" if point else ""
            )
        return f"{verbalizer.minus} {words}" if "minus" in match.groupdict() and match["minus"] else words

    def _speak(self, shape: str, match: RegexMatch) -> tuple[str, str | None] | None:
        """The rule and the words of a match; no words: leave it as it is written; None: it has another shape."""
        verbalizer, before = self.words, match.string[: match.start()]
        named = match.groupdict()
        digits = (named.get("whole") or "").replace(",", "")
        match shape:
            case "number" | "whole":
                rule = "negative" if named["minus"] else "decimal" if named["point"] else "cardinal"
                return rule if shape == "number" else "cardinal", self._amount(match)
            case "zeros":
                return "digit-by-digit", verbalizer.digits(match.group())
            case "ordinal" if len(digits) <= _MAX_CARDINAL_DIGITS:
                return "ordinal", verbalizer.ordinal(int(digits), named["ordinal"])
            case "percent" if named["percent"] in verbalizer.percents:
                return "percent", f"{self._amount(match)} {verbalizer.percents[named['percent']]}"
            case "unit":
                return "unit", f"{self._amount(match)} {verbalizer.units[named['unit']]}"
            case "money" | "money-before":
                currency, point, scale = verbalizer.currencies[named["currency"]], named["point"], named["scale"]
                if scale or (point and len(point) != _CENT_DIGITS) or len(digits) > _MAX_CARDINAL_DIGITS:
                    return "money", " ".join(
                        filter(None, (self._amount(match), verbalizer.scales.get(scale or ""), currency))
                    )
                return "money", verbalizer.money(int(digits), int(point or 0), currency)
            case "iso-date" | "date":
                day, month, year = (int(named[name]) for name in ("day", "month", "year"))
                months = _MONTHS if shape == "iso-date" else _ETHIOPIAN_MONTHS
                if day not in range(1, _DAYS + 1) or month not in range(1, months + 1):
                    return None
                behind = match.string[match.end() :][:_CALENDAR_CONTEXT]
                calendar = (
                    "gregorian" if shape == "iso-date" else verbalizer.calendar(before[-_CALENDAR_CONTEXT:], behind)
                )
                if calendar == "gregorian" and month > _MONTHS:
                    return "date", None
                return "date", verbalizer.date(day, month, year, calendar)
            case "time":
                hour, minute, second = int(named["hour"]), int(named["minute"]), int(named["second"] or 0)
                if hour > _HOURS or minute >= _MINUTES or second >= _MINUTES:
                    return None
                words = verbalizer.clock(hour, minute, second)
                said_before = before.rstrip().endswith(verbalizer.hours)
                return "time", words.removeprefix(f"{verbalizer.hours[0]} ") if said_before else words
            case "phone":
                number = "".join(filter(str.isdecimal, match.group()))
                return ("phone", verbalizer.digits(number)) if len(number) in _PHONE_DIGITS else None
            case "dotted":
                parts = (
                    verbalizer.cardinal(int(part)) if len(part) <= _MAX_CARDINAL_DIGITS else verbalizer.digits(part)
                    for part in match.group().split(".")
                )
                return "dotted-number", f" {verbalizer.point} ".join(parts)
            case "interval":
                return self._speak_interval(match, before.rstrip())
            case "mixed" | "fraction":
                above, below = FRACTION_SIGNS.get(named["sign"]) or (int(named["above"]), int(named["below"]))
                numbered = shape == "fraction" and before.rstrip().endswith(_NUMBERING_WORDS)
                readable = 0 < above < below and below in _DENOMINATORS and not numbered
                if not readable or len(digits) > _MAX_CARDINAL_DIGITS:
                    return None
                return "fraction", verbalizer.fraction(int(digits) if digits else None, above, below)
        return None

    def _speak_interval(self, match: RegexMatch, before: str) -> tuple[str, str] | None:
        say = self.words
        first, last = (self._shapes["number"].fullmatch(match[side]) for side in ("first", "last"))
        if first is None or last is None or (match["percent"] and "%" not in say.percents):
            return None
        one, other = self._amount(first), self._amount(last)
        if match["percent"]:
            other = f"{other} {say.percents['%']}"
        if float(first.group().replace(",", "")) >= float(last.group().replace(",", "")):
            return "two-numbers", f"{one} {other}"
        start, until = say.interval
        begun = _letters_before(before, len(before)) in say.from_words
        return "interval", f"{'' if begun else start}{one} {until} {other}"


def _letters_before(text: str, start: int) -> str:
    """The letters before a place; of a longer word only so many that no preposition is mistaken in it."""
    at = start
    while at > max(0, start - _MAX_CLITIC_LETTERS) and _ETHIOPIC_LETTERS.match(text, at - 1):
        at -= 1
    return text[at:start]
