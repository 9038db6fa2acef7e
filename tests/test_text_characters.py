"""Scripts, letters and punctuation: what belongs to a language, and what is only a sign in its texts."""

from __future__ import annotations

import unicodedata

import pytest

from voxgraft.core.languages import (
    JOINERS,
    count_scripts,
    describe_character,
    find_exemplar,
    find_language_scripts,
    is_letter,
    is_punctuation,
    is_script_letter,
    script_characters,
    script_of,
)


@pytest.mark.parametrize(
    ("character", "script"),
    [
        *[("ሰ", "Ethiopic"), ("ក", "Khmer"), ("ệ", "Latin"), ("ש", "Hebrew"), ("۴", "Arabic"), ("한", "Hangul")],
        *[("\u0301", "Inherited"), ("&", "Common"), ("5", "Common"), ("𑄌", "Chakma"), ("𐎀", "Other"), ("々", "Han")],
    ],
)
def test_a_character_has_unicodes_own_script(character: str, script: str) -> None:
    assert script_of(character) == script


def test_ethiopic_has_523_characters_and_each_is_of_that_script() -> None:
    found = script_characters("Ethiopic")
    assert len(found) == 523
    assert {script_of(character) for character in found} == {"Ethiopic"}
    assert list(found) == sorted(found)


@pytest.mark.parametrize("script", ["Han", "Other", "Common"])
def test_a_script_that_is_too_large_or_none_at_all_is_never_taken_whole(script: str) -> None:
    assert script_characters(script) == ()


@pytest.mark.parametrize("character", [*"aሰកệш한", "\u0301", "\u17d2", "ʻ"])
def test_letters_and_their_marks_are_letters(character: str) -> None:
    assert is_letter(character)


@pytest.mark.parametrize("character", ["&", "5", ".", "★", "\ufe0f", "\u20e3", "\U000e0100", "\u200d", " "])
def test_signs_and_the_marks_that_dress_them_are_no_letters(character: str) -> None:
    assert not is_letter(character)


@pytest.mark.parametrize("character", list(".,;:!?«»“”‘’'\"()[]-–—…¡¿።፡៕។،؟।、。"))
def test_punctuation_of_sentences_is_punctuation(character: str) -> None:
    assert is_punctuation(character)


@pytest.mark.parametrize("character", list("&@#*/%\\§¶†‡•′″_+=<>|~^$€→★°×"))
def test_general_symbols_are_no_punctuation_though_unicode_counts_some_among_it(character: str) -> None:
    assert not is_punctuation(character)


def test_a_language_of_a_region_falls_back_to_the_language() -> None:
    assert find_exemplar("am-ET") == find_exemplar("am")
    assert find_exemplar("sr-Latn") != find_exemplar("sr")
    assert find_exemplar("qqq") is None


@pytest.mark.parametrize("code", ["am", "ti", "km", "vi", "yo", "sw"])
def test_cldr_has_letters_for_the_language(code: str) -> None:
    entry = find_exemplar(code)
    assert entry is not None
    assert any(map(is_letter, entry.letters))


def test_persian_has_its_joiner_and_its_digits() -> None:
    entry = find_exemplar("fa")
    assert entry is not None
    assert JOINERS & set(entry.auxiliary)
    assert set("۰۱۲۳۴۵۶۷۸۹") <= set(entry.numbers)


def test_the_scripts_of_a_language_are_cldrs_and_those_that_much_of_its_text_is_in() -> None:
    letters = find_exemplar("sr").letters  # type: ignore[union-attr]
    assert find_language_scripts(letters, {}, 0.1) == ("Cyrillic",)
    assert find_language_scripts(letters, {"ж": 50, "ž": 50}, 0.1) == ("Cyrillic", "Latin")
    assert find_language_scripts(letters, {"ж": 99, "ž": 1}, 0.1) == ("Cyrillic",)
    assert find_language_scripts("", {"ሰ": 90, "a": 10, "β": 1}, 0.05) == ("Ethiopic", "Latin")
    assert find_language_scripts("", {"5": 90, "&": 9}, 0.1) == ()


def test_marks_belong_to_every_script_and_letters_to_one() -> None:
    assert is_script_letter("\u0301", ["Latin"])
    assert is_script_letter("ʼ", ["Latin"])
    assert is_script_letter("é", ["Latin"])
    assert not is_script_letter("ж", ["Latin"])
    assert not is_script_letter("5", ["Latin"])


def test_scripts_are_counted_by_their_letters() -> None:
    assert count_scripts("abcሰላ 12&") == {"Latin": 3, "Ethiopic": 2}


@pytest.mark.parametrize("character", ["ሰ", "\u0301", "\x98", "\uf025"])
def test_every_character_can_be_named(character: str) -> None:
    assert f"U+{ord(character):04X}" in describe_character(character)
    assert unicodedata.name(character, "without a name") in describe_character(character)
