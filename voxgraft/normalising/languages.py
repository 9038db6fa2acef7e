"""The normalisers of languages that have their own: Amharic and Tigrinya, on one Ethiopic base."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import regex

from voxgraft.normalising import abbreviations, ethiopic, plain
from voxgraft.normalising.amharic import Amharic
from voxgraft.normalising.base import Draft, Normalised, Note, Step, settle
from voxgraft.normalising.reading import Reader
from voxgraft.normalising.shapes import LATIN_WORD
from voxgraft.normalising.tigrinya import Tigrinya

AMHARIC_VERSION, TIGRINYA_VERSION = "amharic-1", "tigrinya-1"
MARKS = {**plain.MARKS, "ʼ": "'"}
"""Neither language has the letter U+02BC; there it is an apostrophe."""
_MARKS = regex.compile("[" + "".join(MARKS) + "]")
_NUMBER_SIGN = regex.compile(r"[\p{No}\p{Nl}--[½⅓⅔¼¾⅕⅛²³፩-፼]]", regex.V1)
_RAISED = regex.compile("[²³]")
_AND = regex.compile(r"(?<![\p{Script=Latin}])&(?![\p{Script=Latin}])")
_KEPT_MARKS = r".,?!;:'\"()-"
_SYMBOL = regex.compile(rf"(?P<fraction>\d+/\d+)|(?P<mark>[\u135d-\u135f])|[^\p{{L}}\p{{M}}\p{{N}} {_KEPT_MARKS}]")
"""Fractions that were not read stay whole. The marks are those of length, which no book of today has."""
_OTHER_SCRIPT = regex.compile(r"[\p{L}--[\p{Script=Ethiopic}\p{Script=Latin}]]+", regex.V1)
_DIGITS = regex.compile(r"\p{N}+(?:[/.,:]\p{N}+)*")

SAME_ROWS = {"ሐ": "ሀ", "ኀ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
"""Rows of letters that are one sound in Amharic. Tigrinya keeps most of them apart."""
SAME_LETTERS = {"ሃ": "ሀ", "ኣ": "አ"}
"""Of these two rows the first and the fourth letter sound alike in Amharic."""
_FOLDS = ethiopic.folding(SAME_ROWS, SAME_LETTERS)
_FOLDED = regex.compile("[" + "".join(map(chr, _FOLDS)) + "]+")


@dataclass(frozen=True, slots=True)
class EthiopicNormaliser:
    """Text in Ethiopic script as it is said: plain marks, no abbreviations, no digits."""

    language: str
    version: str
    steps: tuple[Step, ...]

    def normalise(self, text: str) -> Normalised:
        return settle(text, self.steps, _notes)


def amharic(fold_homophones: bool = False) -> EthiopicNormaliser:
    """Amharic; `fold_homophones` writes one letter for those that sound alike."""
    steps = (
        _clean,
        _plain_marks,
        abbreviations.Expander(abbreviations.AMHARIC, abbreviations.AMHARIC_FRONTS),
        _number_signs,
        ethiopic.arabic_digits,
        ethiopic.marks,
        Reader(Amharic()),
        _raised_digits,
        _amharic_and,
        _symbols,
        ethiopic.space_around_marks,
        plain.single_spaces,
    )
    if not fold_homophones:
        return EthiopicNormaliser("am", AMHARIC_VERSION, steps)
    return EthiopicNormaliser("am", f"{AMHARIC_VERSION}+homophones", (*steps, _fold_amharic))


def tigrinya() -> EthiopicNormaliser:
    """Tigrinya."""
    steps = (
        _clean,
        _plain_marks,
        abbreviations.Expander(abbreviations.TIGRINYA),
        _number_signs,
        ethiopic.arabic_digits,
        ethiopic.marks,
        Reader(Tigrinya()),
        _raised_digits,
        _symbols,
        ethiopic.space_around_marks,
        plain.single_spaces,
    )
    return EthiopicNormaliser("ti", TIGRINYA_VERSION, steps)


def _clean(draft: Draft) -> None:
    plain.clean(draft, joiners=False)


def _plain_marks(draft: Draft) -> None:
    draft.translate("plain-mark", _MARKS, MARKS)


def _number_signs(draft: Draft) -> None:
    """Signs such as ① and Ⅳ as digits, where they are whole numbers."""
    draft.rewrite("number-sign", _NUMBER_SIGN, _sign_in_digits)


def _raised_digits(draft: Draft) -> None:
    """A raised 2 or 3 that no unit has taken is a number of its own."""
    draft.rewrite("number-sign", _RAISED, _sign_in_digits)


def _sign_in_digits(match: regex.Match[str]) -> str:
    value = unicodedata.numeric(match.group(), -1.0)
    return f" {int(value)} " if value >= 0 and value == int(value) else match.group()


def _amharic_and(draft: Draft) -> None:
    draft.rewrite("and-sign", _AND, " እና ")


def _symbols(draft: Draft) -> None:
    """Signs that nobody says are taken out, and words that they joined are parted."""
    draft.rewrite("symbol-removed", _SYMBOL, _without_symbol)


def _without_symbol(match: regex.Match[str]) -> str:
    if match["fraction"]:
        return match.group()
    return "" if match["mark"] else " "


def _fold_amharic(draft: Draft) -> None:
    draft.rewrite("homophone", _FOLDED, lambda match: match.group().translate(_FOLDS))


def _notes(text: str) -> Iterator[Note]:
    """What was left alone: Latin words, other scripts, digits, unknown abbreviations."""
    patterns = {
        "latin-word": LATIN_WORD,
        "other-script": _OTHER_SCRIPT,
        "digits-left": _DIGITS,
        "abbreviation-unknown": abbreviations.UNKNOWN,
    }
    found = [
        Note(rule, match.group(), match.start())
        for rule, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]
    yield from sorted(found, key=lambda note: note.place)
