"""Normalisers: from text as people write it to text as people say it, one for each language, and one for the rest."""

from __future__ import annotations

from dataclasses import replace

from voxgraft.normalising.base import Change, Normalised, Normaliser, Note, replay
from voxgraft.normalising.languages import AMHARIC_VERSION, TIGRINYA_VERSION
from voxgraft.normalising.numbers import READ, fingerprint, number_words
from voxgraft.normalising.plain import MARKS
from voxgraft.normalising.plain import VERSION as GENERIC_VERSION
from voxgraft.normalising.rules import NO_RULES, TextRules, TextRulesError
from voxgraft.text.characters import exemplar

__all__ = [
    "NO_RULES",
    "OWN",
    "Change",
    "Normalised",
    "Normaliser",
    "Note",
    "TextRules",
    "TextRulesError",
    "normaliser_of",
    "replay",
    "rules_of",
]

APOSTROPHES = "ʼʻ"
"""Letters for which people type an apostrophe. A language that has both (Uzbek) is left as it is typed."""
OWN = {"am": AMHARIC_VERSION, "ti": TIGRINYA_VERSION}
"""Languages that have a normaliser of their own."""


def rules_of(language: str, *, normalise: bool = True, fold_homophones: bool = False) -> TextRules:
    """The rules of a language, `am-ET` like `am`. Homophones are folded in Amharic only: others have none."""
    if not normalise:
        return TextRules(NO_RULES, language)
    own = language.lower().replace("_", "-").partition("-")[0]
    if own in OWN:
        return TextRules(OWN[own], language, fold_homophones=fold_homophones and own == "am")
    entry = exemplar(language)
    # CLDR lists the apostrophe among the punctuation of most languages, and among the letters of some.
    letters = entry.letters + entry.auxiliary if entry else ""
    kept = "".join(sorted(mark for mark in MARKS if mark in letters))
    typed = [letter for letter in APOSTROPHES if letter in letters]
    rules = TextRules(
        GENERIC_VERSION, language, kept_marks=kept, apostrophe=typed[0] if len(typed) == 1 and not kept else ""
    )
    words = number_words(language)
    if words is None:
        return rules
    code = next(code for code, own_words in READ.items() if own_words is words)
    return replace(rules, numbers=code, edition=fingerprint(words.code))


def normaliser_of(language: str, *, fold_homophones: bool = False) -> Normaliser:
    """The normaliser of a language."""
    return rules_of(language, fold_homophones=fold_homophones).normaliser
