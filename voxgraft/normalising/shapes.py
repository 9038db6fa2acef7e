"""The shapes in which numbers stand in texts, as patterns. Knows no words and reads nothing."""

from __future__ import annotations

import regex

from voxgraft.normalising.base import one_of
from voxgraft.normalising.ethiopic import LETTER
from voxgraft.normalising.words import Words

_LATIN = r"\p{Script=Latin}"
FRACTION_SIGNS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅛": (1, 8)}
_SIGN = f"(?P<sign>[{''.join(FRACTION_SIGNS)}])"
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d+)"
_SIDE = rf"{NUMBER}(?:\.\d+)?"
_WITH_POINT = rf"(?P<whole>{NUMBER})(?:\.(?P<point>\d+))?(?!\.?\d)"
_ALONE = rf"(?![{_LATIN}\d])"
_WORD_ENDS = rf"(?![\d{_LATIN}]|{LETTER})"
_TWO_NUMBERS = r"(?P<above>\d{1,2})/(?P<below>\d{1,2})(?![\d/])"

LATIN_WORD = regex.compile(rf"[{_LATIN}][{_LATIN}\p{{M}}]*(?:['.-][{_LATIN}][{_LATIN}\p{{M}}]*)*", regex.V1)
"""Latin letters, with what stands inside words and addresses. Digits are no part of it: they are read out."""
UNREAD = regex.compile(r"\d+(?:[/.,:]\d+)*|.", regex.DOTALL)
"""What is stepped over where nothing can be read."""
LETTERS_BEHIND = regex.compile(rf"{LETTER}+", regex.V1)
START = regex.compile(rf"[\d{_LATIN}{''.join(FRACTION_SIGNS)}\p{{Sc}}]|\+(?=\d)|(?<![\p{{L}}\d)])-(?=\d)", regex.V1)
"""Where something may begin. A minus stands before a digit and not behind a word."""


def shapes(words: Words) -> dict[str, regex.Pattern[str]]:
    """By name, in the order in which they are tried at a place."""
    scales, hours = one_of(words.scales), one_of(words.hours)
    signs = one_of(sign for sign in words.currencies if not regex.fullmatch(rf"{LETTER}+", sign, regex.V1))
    amount = rf"{_WITH_POINT}(?: ?(?P<scale>{scales}){_WORD_ENDS})?"
    hour_word = rf"(?: ?(?:{hours})(?!{LETTER}))?"
    patterns = {
        "money-before": rf"(?P<currency>{signs}) ?{amount}{_ALONE}",
        "iso-date": rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)(?![-\d]){_ALONE}",
        "date": rf"(?P<day>\d{{1,2}})(?P<by>[/.-])(?P<month>\d{{1,2}})(?P=by)(?P<year>\d{{4}}){_ALONE}",
        "time": rf"(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?!:?\d){hour_word}{_ALONE}",
        "phone": rf"(?:\+\d|0\d)\d*(?:[- ]\d{{2,}})*{_ALONE}",
        "dotted": rf"\d+(?:\.\d+){{2,}}{_ALONE}",
        "interval": rf"(?P<first>{_SIDE}) ?- ?(?P<last>{_SIDE})(?! ?[-.:/]? ?\d)(?P<percent> ?%)?{_ALONE}",
        "mixed": rf"(?P<whole>\d+)(?: {_TWO_NUMBERS}| ?{_SIGN})",
        "fraction": rf"{_TWO_NUMBERS}|{_SIGN}",
        "zeros": rf"0\d+(?![.,]\d){_ALONE}",
        "ordinal": rf"(?P<whole>{NUMBER})(?P<ordinal>{words.ordinal_suffix})",
        "money": rf"{amount} ?(?P<currency>{one_of(words.currencies)}){_WORD_ENDS}",
        "percent": rf"(?P<minus>-)?{_WITH_POINT} ?(?P<percent>[%‰])",
        "unit": rf"(?P<minus>-)?{_WITH_POINT} ?(?P<unit>{one_of(words.units)}){_WORD_ENDS}(?P<dot>\.(?! ?$))?",
        "number": rf"(?P<minus>-)?{_WITH_POINT}",
        "whole": rf"(?P<minus>-)?(?P<whole>{NUMBER})(?P<point>(?!)){{0}}",
    }
    return {name: regex.compile(pattern, regex.V1) for name, pattern in patterns.items()}
