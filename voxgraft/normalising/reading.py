"""Reads numbers, dates, times, money and measures out, in the words of one language.

Finds them by `build_shape_patterns`; the words come from `Words`. Latin words are stepped over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import regex

from voxgraft.normalising.base import TextEditor
from voxgraft.normalising.shapes import (
    ETHIOPIC_LETTERS,
    FRACTION_SIGNS,
    LATIN_WORD,
    READABLE_START,
    SKIPPED_TEXT,
    build_shape_patterns,
)
from voxgraft.normalising.words import LARGEST_CARDINAL, NumberVerbalizer

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
