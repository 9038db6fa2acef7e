"""The shapes in which numbers stand in texts, as patterns. Knows no words and reads nothing."""

from __future__ import annotations

import regex

from voxgraft.normalising.base import regex_alternation
from voxgraft.normalising.ethiopic import ETHIOPIC_LETTER
from voxgraft.normalising.words import NumberVerbalizer

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
        "interval": rf"(?P<first>{_INTERVAL_SIDE}) ?- ?(?P<last>{_INTERVAL_SIDE})(?! ?[-.:/]? ?\d)(?P<percent> ?%)?{_NOT_BEFORE_LATIN}",
        "mixed": rf"(?P<whole>\d+)(?: {_SLASH_FRACTION}| ?{_FRACTION_SIGN})",
        "fraction": rf"{_SLASH_FRACTION}|{_FRACTION_SIGN}",
        "zeros": rf"0\d+(?![.,]\d){_NOT_BEFORE_LATIN}",
        "ordinal": rf"(?P<whole>{NUMBER_PATTERN})(?P<ordinal>{words.ordinal_suffix})",
        "money": rf"{amount} ?(?P<currency>{regex_alternation(words.currencies)}){_WORD_ENDS}",
        "percent": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<percent>[%‰])",
        "unit": rf"(?P<minus>-)?{_DECIMAL_NUMBER} ?(?P<unit>{regex_alternation(words.units)}){_WORD_ENDS}(?P<dot>\.(?! ?$))?",
        "number": rf"(?P<minus>-)?{_DECIMAL_NUMBER}",
        "whole": rf"(?P<minus>-)?(?P<whole>{NUMBER_PATTERN})(?P<point>(?!)){{0}}",
    }
    return {name: regex.compile(pattern, regex.V1) for name, pattern in patterns.items()}
