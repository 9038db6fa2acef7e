"""Normalisers: from text as people write it to text as people say it, one for each language, and one for the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from voxgraft.core.languages import base_language, find_exemplar, is_language_code
from voxgraft.text.normalize.generic import (
    GENERIC_VERSION,
    NUM2WORDS_LANGUAGES,
    TYPOGRAPHIC_MARKS,
    NormalizedText,
    Normalizer,
    TextChange,
    TextNote,
    find_num2words_config,
    num2words_fingerprint,
    replay_changes,
)
from voxgraft.text.normalize.rules import LANGUAGE_VERSIONS, NO_RULES, TextRules, TextRulesError
from voxgraft.text.spans import find_spans, split_seams

__all__ = [
    "LANGUAGE_VERSIONS",
    "NO_RULES",
    "NormalizedText",
    "Normalizer",
    "TextChange",
    "TextNote",
    "TextRules",
    "TextRulesError",
    "build_normalizer",
    "build_text_rules",
    "normalize_marked_text",
    "replay_changes",
]

# Letters for which people type an apostrophe. A language that has both (Uzbek) is left as it is typed.
APOSTROPHE_LETTERS = "ʼʻ"


def build_text_rules(language: str, *, normalize: bool = True, fold_homophones: bool = False) -> TextRules:
    """The rules of a language, `am-ET` like `am`. Homophones are folded in Amharic only: others have none."""
    if not normalize:
        return TextRules(NO_RULES, language)
    own = base_language(language)
    if own in LANGUAGE_VERSIONS:
        return TextRules(LANGUAGE_VERSIONS[own], language, fold_homophones=fold_homophones and own == "am")
    entry = find_exemplar(language)
    # CLDR lists the apostrophe among the punctuation of most languages, and among the letters of some.
    letters = entry.letters + entry.auxiliary if entry else ""
    kept = "".join(sorted(mark for mark in TYPOGRAPHIC_MARKS if mark in letters))
    typed = [letter for letter in APOSTROPHE_LETTERS if letter in letters]
    rules = TextRules(
        GENERIC_VERSION, language, kept_marks=kept, apostrophe=typed[0] if len(typed) == 1 and not kept else ""
    )
    number_config = find_num2words_config(language)
    if number_config is None:
        return rules
    code = next(code for code, own_words in NUM2WORDS_LANGUAGES.items() if own_words is number_config)
    return replace(rules, numbers=code, edition=num2words_fingerprint(number_config.code))


@lru_cache(maxsize=64)
def build_normalizer(language: str, *, fold_homophones: bool = False) -> Normalizer:
    """The normalizer of a language. Cached: an import asks for it once per clip."""
    return build_text_rules(language, fold_homophones=fold_homophones).normalizer


def normalize_marked_text(normalizer: Normalizer, text: str) -> NormalizedText:
    """Text by its rules; spans of other languages (`[en]...[/en]`) stay as they are written."""
    parts = find_spans(text, is_language_code)
    if parts is None:
        return normalizer.normalise(text)
    done, changes, notes = "", list[TextChange](), list[TextNote]()
    for code, part in parts:
        before, inner, after = split_seams(part)
        done += (f"[{code}]" if code else "") + before
        is_own = code in (None, normalizer.language.lower())
        found = normalizer.normalise(inner) if is_own else NormalizedText(inner)
        # Everything before this part is in its final form, so its places move by that much.
        changes += [replace(change, place=change.place + len(done)) for change in found.changes]
        notes += [replace(note, place=note.place + len(done)) for note in found.notes]
        done += found.text + after + (f"[/{code}]" if code else "")
    return NormalizedText(done, tuple(changes), tuple(notes))
