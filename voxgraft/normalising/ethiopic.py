"""What Amharic and Tigrinya share: the letters' rows, Ethiopic numerals, Ethiopic punctuation.

Numerals after W3C's Counter Styles (`ethiopic-numeric`) and Unicode's chapter on Ethiopic. Knows no words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import regex

from voxgraft.normalising.base import TextEditor

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
