"""Reads numbers, dates, times, money and measures out, in the words of one language.

Finds them by `build_shape_patterns`; the words come from `Words`. Latin words are stepped over.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import regex

from voxgraft.text.normalize.base import TextEditor, regex_alternation

ETHIOPIC_LETTER = r"[\p{Script=Ethiopic}&&\p{L}]"
HUNDRED_SIGN, MYRIAD_SIGN = "፻", "፼"
_VOWELS_PER_CONSONANT = 8
"""Code points of one consonant, one for each vowel."""

_DOUBLED_COLON_FULL_STOP = regex.compile(rf"(?:(?:፡ ?፡)+|(?<={ETHIOPIC_LETTER}):{{2,}})+", regex.V1)
_MARK_BETWEEN_DIGITS = regex.compile(r"(?<=[\d፩-፼])[፡፥](?=[\d፩-፼])")
_ETHIOPIC_MARK = regex.compile("[፡።፣፤፥፦፧፨]")
ETHIOPIC_MARKS = {"፡": " ", "።": ".", "፣": ",", "፤": ";", "፥": ":", "፦": ":", "፧": "?", "፨": "."}
"""Ethiopic marks with what a base language has for them, so that their rows bring their pauses along."""
_SPACE_BEFORE_A_MARK = regex.compile(r" +(?=[.,;:?!)](?:\s|[.,;:?!)]|$))")
_SPACE_AFTER_A_MARK = regex.compile(rf"(?<={ETHIOPIC_LETTER}[.,;:?!])(?={ETHIOPIC_LETTER}{{2}})", regex.V1)

_NUMERAL = regex.compile("[፩-፼]+")
_UNDER_A_MYRIAD = "(?:[፲-፺]?[፩-፱]?፻)?[፲-፺]?[፩-፱]?"
_WHOLE_NUMERAL = regex.compile(rf"{_UNDER_A_MYRIAD}(?:፼{_UNDER_A_MYRIAD})*")
_NON_ASCII_DIGIT = regex.compile(r"[\p{Nd}--[0-9]]", regex.V1)
_DIGIT_PATTERNS = {str(value): regex.compile(rf"\p{{Numeric_Value={value}}}") for value in range(10)}
"""As `regex` knows them, whose Unicode is newer than that of `unicodedata`: what one finds the other may not know."""


def replace_ethiopic_marks(draft: TextEditor) -> None:
    """Ethiopic punctuation as plain marks; the word separator becomes a space."""
    draft.rewrite("full-stop", _DOUBLED_COLON_FULL_STOP, ".")
    draft.rewrite("mark-between-digits", _MARK_BETWEEN_DIGITS, lambda match: ":" if match.group() == "፡" else " ")
    draft.translate("ethiopic-mark", _ETHIOPIC_MARK, ETHIOPIC_MARKS)


def fix_mark_spacing(draft: TextEditor) -> None:
    """Marks stand at the word before them, and apart from the word behind."""
    draft.rewrite("space-before-mark", _SPACE_BEFORE_A_MARK, "")
    draft.rewrite("space-after-mark", _SPACE_AFTER_A_MARK, " ")


def convert_to_ascii_digits(draft: TextEditor) -> None:
    """Ethiopic numerals and the digits of other scripts as 0 to 9."""
    draft.rewrite("other-digits", _NON_ASCII_DIGIT, _ascii_digit)
    draft.rewrite("ethiopic-numeral", _NUMERAL, _numeral_to_digits)


def _ascii_digit(match: regex.Match[str]) -> str:
    return next(value for value, pattern in _DIGIT_PATTERNS.items() if pattern.match(match.group()))


def parse_ethiopic_numeral(numeral: str) -> int | None:
    """The number that a numeral stands for; None for signs in an order that makes none."""
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
        for vowel in range(_VOWELS_PER_CONSONANT - 1)
    }
    table = {code: letters.get(letter, letter) for code, letter in table.items()}
    return table | {ord(letter): same for letter, same in letters.items()}


def _numeral_to_digits(match: regex.Match[str]) -> str:
    """The value, or sign by sign; apart from digits that stand at its side."""
    value = parse_ethiopic_numeral(match.group())
    digits = (
        str(value) if value is not None else " ".join(str(int(unicodedata.numeric(sign))) for sign in match.group())
    )
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    return f"{' ' * before.isdecimal()}{digits}{' ' * after.isdecimal()}"


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


_LATIN = r"\p{Script=Latin}"
FRACTION_SIGNS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅛": (1, 8)}
_FRACTION_SIGN = f"(?P<sign>[{''.join(FRACTION_SIGNS)}])"
NUMBER_PATTERN = r"(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+)"
_INTERVAL_SIDE = rf"{NUMBER_PATTERN}(?:\.\d+)?"
_DECIMAL_NUMBER = rf"(?P<whole>{NUMBER_PATTERN})(?:\.(?P<point>\d+))?(?!\.?\d)"
_NOT_BEFORE_LATIN = rf"(?![{_LATIN}\d])"
_WORD_ENDS = rf"(?![\d{_LATIN}]|{ETHIOPIC_LETTER})"
_SLASH_FRACTION = r"(?P<above>\d{1,2})/(?P<below>\d{1,2})(?![\d/])"

LATIN_WORD = regex.compile(rf"[{_LATIN}][{_LATIN}\p{{M}}]*(?:['.-][{_LATIN}][{_LATIN}\p{{M}}]*)*", regex.V1)
"""Latin letters, with what stands inside words and addresses. Digits are no part of it: they are read out."""
SKIPPED_TEXT = regex.compile(r"\d+(?:[/.,:]\d+)*|.", regex.DOTALL)
"""What is stepped over where nothing can be read."""
ETHIOPIC_LETTERS = regex.compile(rf"{ETHIOPIC_LETTER}+", regex.V1)
READABLE_START = regex.compile(
    rf"[\d{_LATIN}{''.join(FRACTION_SIGNS)}\p{{Sc}}]|\+(?=\d)|(?<![\p{{L}}\d)])-(?=\d)", regex.V1
)
"""Where something may begin. A minus stands before a digit and not behind a word."""


def build_shape_patterns(words: NumberVerbalizer) -> dict[str, regex.Pattern[str]]:
    """By name, in the order in which they are tried at a place."""
    scales, hours = regex_alternation(words.scales), regex_alternation(words.hours)
    signs = regex_alternation(
        sign for sign in words.currencies if not regex.fullmatch(rf"{ETHIOPIC_LETTER}+", sign, regex.V1)
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
        "ordinal": rf"(?P<whole>{NUMBER_PATTERN})(?P<ordinal>{words.ordinal_suffix})",
        "money": rf"{amount} ?(?P<currency>{regex_alternation(words.currencies)}){_WORD_ENDS}",
        "percent": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<percent>[%‰])",
        "unit": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<unit>{regex_alternation(words.units)}){_WORD_ENDS}"
        r"(?P<dot>\.(?! ?$))?",
        "number": rf"(?P<minus>-)?{_DECIMAL_NUMBER}",
        "whole": rf"(?P<minus>-)?(?P<whole>{NUMBER_PATTERN})(?P<point>(?!)){{0}}",
    }
    return {name: regex.compile(pattern, regex.V1) for name, pattern in patterns.items()}


_CALENDAR_CONTEXT = 60
"""Characters on each side in which a date's calendar is looked for."""
_HOURS, _MINUTES, _DAYS, _MONTHS, _ETHIOPIAN_MONTHS = 24, 60, 31, 12, 13
_PHONE_DIGITS = range(7, 16)
_CENT_DIGITS = 2
_DENOMINATORS = range(2, 11)
_NUMBERING_WORDS = ("ቁጥር", "ቍጥር", "አንቀጽ", "ቁጽሪ", "ዓንቀጽ")
"""Behind these words 1/2 is the number of a paper or a paragraph, not a half."""
_MAX_CLITIC_LETTERS = 4

RegexMatch = regex.Match[str]
SpokenForm = tuple[str, str] | None
"""The rule and the words; None where the text has another shape."""
KEEP_AS_WRITTEN = ("", "")
"""Said of a shape whose words are not certain: it stays as it is."""


@dataclass(frozen=True)
class NumberExpander:
    """The step that reads out what stands in digits."""

    words: NumberVerbalizer

    def __call__(self, draft: TextEditor) -> None:
        """One sweep from left to right, after the signs of sums, which need digits on both sides."""
        for sign, words in self.words.operators.items():
            draft.rewrite("operator", regex.compile(rf"(?<=\d ?){regex.escape(sign)}(?= ?\d)"), f" {words} ")
        draft.sweep(READABLE_START, self.read)

    def read(self, text: str, start: int) -> tuple[str, int, str]:
        """What is said for the thing that begins here; no rule where nothing is."""
        for name, pattern in self._shapes.items():
            match = pattern.match(text, start)
            said = getattr(self, "_" + name.replace("-", "_"))(match) if match else None
            if match and said == KEEP_AS_WRITTEN:
                return "", match.end(), ""
            if match and said:
                return self._among_letters(match, *said)
        step = LATIN_WORD.match(text, start) or SKIPPED_TEXT.match(text, start)
        return "", step.end() if step else start + 1, ""

    @cached_property
    def _shapes(self) -> dict[str, regex.Pattern[str]]:
        return build_shape_patterns(self.words)

    def _among_letters(self, match: RegexMatch, rule: str, words: str) -> tuple[str, int, str]:
        """The words at their place: prepositions and endings stay at them, other letters are set apart."""
        text, start, end = match.string, match.start(), match.end()
        before = _letters_before(text, start)
        apart_before = " " if text[:start][-1:].isalnum() and before not in self.words.prefixes else ""
        if behind := ETHIOPIC_LETTERS.match(text, end):
            if regex.fullmatch(self.words.suffix, behind.group()):
                return rule, behind.end(), apart_before + self.words.join(words, behind.group())
            return rule, end, f"{apart_before}{words} "
        return rule, end, f"{apart_before}{words}{' ' * text[end : end + 1].isalnum()}"

    def _amount(self, match: RegexMatch) -> str:
        """The number of a match, with its point and its sign."""
        digits, point = match["whole"].replace(",", ""), match["point"]
        if len(digits) > len(str(LARGEST_CARDINAL)):
            words = self.words.digits(digits + (point or ""))
        else:
            words = self.words.decimal(int(digits), point) if point else self.words.cardinal(int(digits))
        return self.words.negative(words) if "minus" in match.groupdict() and match["minus"] else words

    def _number(self, match: RegexMatch) -> SpokenForm:
        if match["minus"]:
            return "negative", self._amount(match)
        return ("decimal" if match["point"] else "cardinal"), self._amount(match)

    def _whole(self, match: RegexMatch) -> SpokenForm:
        return "cardinal", self._amount(match)

    def _zeros(self, match: RegexMatch) -> SpokenForm:
        return "digit-by-digit", self.words.digits(match.group())

    def _ordinal(self, match: RegexMatch) -> SpokenForm:
        digits = match["whole"].replace(",", "")
        known = len(digits) <= len(str(LARGEST_CARDINAL))
        return ("ordinal", self.words.ordinal(int(digits), match["ordinal"])) if known else None

    def _percent(self, match: RegexMatch) -> SpokenForm:
        words = self.words.percent(self._amount(match), match["percent"])
        return ("percent", words) if words else None

    def _unit(self, match: RegexMatch) -> SpokenForm:
        return "unit", f"{self._amount(match)} {self.words.units[match['unit']]}"

    def _money(self, match: RegexMatch) -> SpokenForm:
        currency, point, scale = self.words.currencies[match["currency"]], match["point"], match["scale"]
        digits = match["whole"].replace(",", "")
        if scale or (point and len(point) != _CENT_DIGITS) or len(digits) > len(str(LARGEST_CARDINAL)):
            return "money", " ".join(filter(None, (self._amount(match), self.words.scales.get(scale or ""), currency)))
        return "money", self.words.money(int(digits), int(point or 0), currency)

    _money_before = _money

    def _iso_date(self, match: RegexMatch) -> SpokenForm:
        day, month, year = (int(match[name]) for name in ("day", "month", "year"))
        if day not in range(1, _DAYS + 1) or month not in range(1, _MONTHS + 1):
            return None
        return _spoken_or_kept("date", self.words.date(day, month, year, "gregorian"))

    def _date(self, match: RegexMatch) -> SpokenForm:
        day, month, year = (int(match[name]) for name in ("day", "month", "year"))
        if day not in range(1, _DAYS + 1) or month not in range(1, _ETHIOPIAN_MONTHS + 1):
            return None
        before, behind = (
            match.string[: match.start()][-_CALENDAR_CONTEXT:],
            match.string[match.end() :][:_CALENDAR_CONTEXT],
        )
        return _spoken_or_kept("date", self.words.date(day, month, year, self.words.calendar(before, behind)))

    def _time(self, match: RegexMatch) -> SpokenForm:
        hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
        if hour > _HOURS or minute >= _MINUTES or second >= _MINUTES:
            return None
        said_before = match.string[: match.start()].rstrip().endswith(self.words.hours)
        words = self.words.clock(hour, minute, second)
        return "time", words.removeprefix(f"{self.words.hours[0]} ") if said_before else words

    def _phone(self, match: RegexMatch) -> SpokenForm:
        digits = "".join(filter(str.isdecimal, match.group()))
        return ("phone", self.words.digits(digits)) if len(digits) in _PHONE_DIGITS else None

    def _dotted(self, match: RegexMatch) -> SpokenForm:
        parts = (
            self.words.cardinal(int(part)) if len(part) <= len(str(LARGEST_CARDINAL)) else self.words.digits(part)
            for part in match.group().split(".")
        )
        return "dotted-number", f" {self.words.point} ".join(parts)

    def _interval(self, match: RegexMatch) -> SpokenForm:
        whole = self._shapes["number"].fullmatch
        first, last = whole(match["first"]), whole(match["last"])
        if first is None or last is None:
            return None
        one, other = self._amount(first), self._amount(last)
        if match["percent"]:
            other = self.words.percent(other, "%") or ""
            if not other:
                return None
        low, high = (float(side.group().replace(",", "")) for side in (first, last))
        if low >= high:
            return "two-numbers", f"{one} {other}"
        text = match.string[: match.start()].rstrip()
        return "interval", self.words.interval(one, other, _letters_before(text, len(text)) in self.words.from_words)

    def _mixed(self, match: RegexMatch) -> SpokenForm:
        above, below = _parse_fraction(match)
        if not _is_readable_fraction(above, below) or len(match["whole"]) > len(str(LARGEST_CARDINAL)):
            return None
        return _spoken_or_kept("fraction", self.words.mixed_fraction(int(match["whole"]), above, below))

    def _fraction(self, match: RegexMatch) -> SpokenForm:
        above, below = _parse_fraction(match)
        numbered = match.string[: match.start()].rstrip().endswith(_NUMBERING_WORDS)
        if numbered or not _is_readable_fraction(above, below):
            return None
        return _spoken_or_kept("fraction", self.words.fraction(above, below))


def _spoken_or_kept(rule: str, words: str | None) -> SpokenForm:
    return (rule, words) if words else KEEP_AS_WRITTEN


def _letters_before(text: str, start: int) -> str:
    """The letters that stand at a place; of a longer word only so many that no preposition is mistaken in it."""
    at = start
    while at > max(0, start - _MAX_CLITIC_LETTERS) and ETHIOPIC_LETTERS.match(text, at - 1):
        at -= 1
    return text[at:start]


def _parse_fraction(match: RegexMatch) -> tuple[int, int]:
    if match["sign"]:
        return FRACTION_SIGNS[match["sign"]]
    return int(match["above"]), int(match["below"])


def _is_readable_fraction(above: int, below: int) -> bool:
    return 0 < above < below and below in _DENOMINATORS
