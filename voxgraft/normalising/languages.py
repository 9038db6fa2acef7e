"""The normalisers of languages that have their own: Amharic and Tigrinya, on one Ethiopic base."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import regex

from voxgraft.normalising import abbreviations, ethiopic, plain
from voxgraft.normalising.amharic import AmharicVerbalizer
from voxgraft.normalising.base import NormalizationStep, NormalizedText, TextEditor, TextNote, apply_until_stable
from voxgraft.normalising.reading import NumberExpander
from voxgraft.normalising.shapes import LATIN_WORD
from voxgraft.normalising.tigrinya import TigrinyaVerbalizer

AMHARIC_VERSION, TIGRINYA_VERSION = "amharic-1", "tigrinya-1"
ETHIOPIC_TEXT_MARKS = {**plain.TYPOGRAPHIC_MARKS, "ʼ": "'"}
"""Neither language has the letter U+02BC; there it is an apostrophe."""
_ETHIOPIC_TEXT_MARK = regex.compile("[" + "".join(ETHIOPIC_TEXT_MARKS) + "]")
_NUMBER_SIGN = regex.compile(r"[\p{No}\p{Nl}--[½⅓⅔¼¾⅕⅛²³፩-፼]]", regex.V1)
_SUPERSCRIPT_DIGIT = regex.compile("[²³]")
_AMPERSAND = regex.compile(r"(?<![\p{Script=Latin}])&(?![\p{Script=Latin}])")
_KEPT_MARKS = r".,?!;:'\"()-"
_SYMBOL = regex.compile(rf"(?P<fraction>\d+/\d+)|(?P<mark>[\u135d-\u135f])|[^\p{{L}}\p{{M}}\p{{N}} {_KEPT_MARKS}]")
"""Fractions that were not read stay whole. The marks are those of length, which no book of today has."""
_OTHER_SCRIPT = regex.compile(r"[\p{L}--[\p{Script=Ethiopic}\p{Script=Latin}]]+", regex.V1)
_DIGIT_GROUP = regex.compile(r"\p{N}+(?:[/.,:]\p{N}+)*")

HOMOPHONE_ROWS = {"ሐ": "ሀ", "ኀ": "ሀ", "ሠ": "ሰ", "ዐ": "አ", "ፀ": "ጸ"}
"""Rows of letters that are one sound in Amharic. Tigrinya keeps most of them apart."""
HOMOPHONE_LETTERS = {"ሃ": "ሀ", "ኣ": "አ"}
"""Of these two rows the first and the fourth letter sound alike in Amharic."""
_HOMOPHONE_TABLE = ethiopic.build_folding_table(HOMOPHONE_ROWS, HOMOPHONE_LETTERS)
_HOMOPHONES = regex.compile("[" + "".join(map(chr, _HOMOPHONE_TABLE)) + "]+")


@dataclass(frozen=True, slots=True)
class EthiopicNormalizer:
    """Text in Ethiopic script as it is said: plain marks, no abbreviations, no digits."""

    language: str
    version: str
    steps: tuple[NormalizationStep, ...]

    def normalise(self, text: str) -> NormalizedText:
        return apply_until_stable(text, self.steps, _collect_notes)


def build_amharic_normalizer(fold_homophones: bool = False) -> EthiopicNormalizer:
    """Amharic; `fold_homophones` writes one letter for those that sound alike."""
    steps = (
        _clean_without_joiners,
        _replace_typographic_marks,
        abbreviations.AbbreviationExpander(
            abbreviations.AMHARIC_ABBREVIATIONS, abbreviations.AMHARIC_PREFIX_ABBREVIATIONS
        ),
        _convert_number_signs,
        ethiopic.convert_to_ascii_digits,
        ethiopic.replace_ethiopic_marks,
        NumberExpander(AmharicVerbalizer()),
        _convert_superscripts,
        _replace_ampersand,
        _remove_symbols,
        ethiopic.fix_mark_spacing,
        plain.collapse_spaces,
    )
    if not fold_homophones:
        return EthiopicNormalizer("am", AMHARIC_VERSION, steps)
    return EthiopicNormalizer("am", f"{AMHARIC_VERSION}+homophones", (*steps, _fold_homophones))


def build_tigrinya_normalizer() -> EthiopicNormalizer:
    """Tigrinya."""
    steps = (
        _clean_without_joiners,
        _replace_typographic_marks,
        abbreviations.AbbreviationExpander(abbreviations.TIGRINYA_ABBREVIATIONS),
        _convert_number_signs,
        ethiopic.convert_to_ascii_digits,
        ethiopic.replace_ethiopic_marks,
        NumberExpander(TigrinyaVerbalizer()),
        _convert_superscripts,
        _remove_symbols,
        ethiopic.fix_mark_spacing,
        plain.collapse_spaces,
    )
    return EthiopicNormalizer("ti", TIGRINYA_VERSION, steps)


def _clean_without_joiners(draft: TextEditor) -> None:
    plain.clean_characters(draft, joiners=False)


def _replace_typographic_marks(draft: TextEditor) -> None:
    draft.translate("plain-mark", _ETHIOPIC_TEXT_MARK, ETHIOPIC_TEXT_MARKS)


def _convert_number_signs(draft: TextEditor) -> None:
    """Signs such as ① and Ⅳ as digits, where they are whole numbers."""
    draft.rewrite("number-sign", _NUMBER_SIGN, _sign_to_digits)


def _convert_superscripts(draft: TextEditor) -> None:
    """A raised 2 or 3 that no unit has taken is a number of its own."""
    draft.rewrite("number-sign", _SUPERSCRIPT_DIGIT, _sign_to_digits)


def _sign_to_digits(match: regex.Match[str]) -> str:
    value = unicodedata.numeric(match.group(), -1.0)
    return f" {int(value)} " if value >= 0 and value == int(value) else match.group()


def _replace_ampersand(draft: TextEditor) -> None:
    draft.rewrite("and-sign", _AMPERSAND, " እና ")


def _remove_symbols(draft: TextEditor) -> None:
    """Signs that nobody says are taken out, and words that they joined are parted."""
    draft.rewrite("symbol-removed", _SYMBOL, _symbol_replacement)


def _symbol_replacement(match: regex.Match[str]) -> str:
    if match["fraction"]:
        return match.group()
    return "" if match["mark"] else " "


def _fold_homophones(draft: TextEditor) -> None:
    draft.rewrite("homophone", _HOMOPHONES, lambda match: match.group().translate(_HOMOPHONE_TABLE))


def _collect_notes(text: str) -> Iterator[TextNote]:
    """What was left alone: Latin words, other scripts, digits, unknown abbreviations."""
    patterns = {
        "latin-word": LATIN_WORD,
        "other-script": _OTHER_SCRIPT,
        "digits-left": _DIGIT_GROUP,
        "abbreviation-unknown": abbreviations.UNKNOWN_ABBREVIATION,
    }
    found = [
        TextNote(rule, match.group(), match.start())
        for rule, pattern in patterns.items()
        for match in pattern.finditer(text)
    ]
    yield from sorted(found, key=lambda note: note.place)
