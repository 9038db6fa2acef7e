"""The text rules of a graft: read back as they were stated, refused where they cannot be followed, one for each language."""

from __future__ import annotations

from typing import Any

import pytest

from voxgraft.text.normalize import LANGUAGE_VERSIONS, NO_RULES, TextRules, TextRulesError, build_text_rules
from voxgraft.text.normalize.generic import GENERIC_VERSION, NUM2WORDS_LANGUAGES


@pytest.mark.parametrize("language", ["am", "am-ET", "ti", "en", "sw", "uk", "uz", "qqq"])
def test_rules_are_read_back_as_they_were_stated(language: str) -> None:
    rules = build_text_rules(language)
    assert TextRules.from_json(rules.to_json()) == rules
    assert rules.is_stated
    assert not rules.is_raw
    rules.require_edition()


def test_a_language_of_our_own_has_its_version_and_only_amharic_folds_homophones() -> None:
    assert build_text_rules("am").version == build_text_rules("am-ET").version == LANGUAGE_VERSIONS["am"]
    assert build_text_rules("ti").version == LANGUAGE_VERSIONS["ti"]
    assert build_text_rules("sw").version == GENERIC_VERSION
    assert [build_text_rules(name, fold_homophones=True).fold_homophones for name in ("am", "ti", "sw")] == [
        True,
        False,
        False,
    ]
    assert not build_text_rules("am").fold_homophones
    assert build_text_rules("am").identity != build_text_rules("am", fold_homophones=True).identity


def test_without_rules_text_is_taken_as_it_is_and_it_is_known_whether_that_was_stated() -> None:
    before, asked = TextRules.from_json(None), build_text_rules("am", normalize=False)
    assert (before.version, before.is_raw, before.is_stated) == (NO_RULES, True, False)
    assert (asked.version, asked.language, asked.is_raw, asked.is_stated) == (NO_RULES, "am", True, True)
    assert TextRules(GENERIC_VERSION).is_stated
    assert before.apply("“12”  x") == "“12”  x"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([], "no version"),
        ({}, "no version"),
        ({"version": 3}, "no version"),
        ({"version": "am-99"}, "this voxgraft knows"),
        ({"version": NO_RULES, "colour": "red"}, "unknown text rules: colour"),
        ({"version": NO_RULES, "language": 3}, "wrong kind"),
        ({"version": NO_RULES, "fold_homophones": "yes"}, "wrong kind"),
        ({"version": NO_RULES, "kept_marks": None}, "wrong kind"),
        ({"version": NO_RULES, "edition": ["1"]}, "wrong kind"),
        ({"version": NO_RULES, "edition": {"num2words": 1}}, "wrong kind"),
        ({"version": GENERIC_VERSION, "numbers": "xx"}, "numbers are read as in 'xx'"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused_with_a_fix(value: Any, found: str) -> None:
    with pytest.raises(TextRulesError) as refused:
        TextRules.from_json(value)
    assert found in refused.value.found
    assert refused.value.fix


def test_numbers_in_other_words_than_in_training_are_refused() -> None:
    language = next(iter(NUM2WORDS_LANGUAGES))
    rules = build_text_rules(language)
    assert rules.numbers == language
    changed = TextRules(rules.version, language, numbers=rules.numbers, edition={**rules.edition, "sha256": "other"})
    with pytest.raises(TextRulesError, match="reads numbers otherwise"):
        changed.require_edition()
    TextRules(rules.version, language, numbers=rules.numbers).require_edition()  # from before editions were stated
    TextRules(rules.version, language, edition={"sha256": "other"}).require_edition()  # reads no numbers


@pytest.mark.parametrize(
    ("text", "said"), [("a", "a."), (" a ", "a."), ("ሀ", "ሀ."), ("ab", "ab"), ("1", "1"), ("?", "?"), ("", "")]
)
def test_a_single_letter_gets_a_full_stop_and_nothing_else_does(text: str, said: str) -> None:
    assert TextRules(NO_RULES).apply(text) == said


def test_text_is_composed() -> None:
    assert TextRules(NO_RULES).apply("e\u0301a") == "éa"


def test_all_that_may_change_an_output_is_in_the_identity() -> None:
    def identity(**values: Any) -> str:
        return TextRules(GENERIC_VERSION, "uk", **values).identity

    assert identity() == identity(edition={"num2words": "0.5.14"}) == GENERIC_VERSION
    assert identity(numbers="uk", edition={"num2words": "0.5.14"}) == f"{GENERIC_VERSION}+num2words-0.5.14"
    assert identity(numbers="uk") == f"{GENERIC_VERSION}+num2words-"
    assert identity(kept_marks="«—") == f"{GENERIC_VERSION}+00AB+2014"
    assert identity(kept_marks="«", apostrophe="ʼ") == f"{GENERIC_VERSION}+00AB+'02BC"


def test_a_text_is_normalised_alike_however_often_and_however_long_it_is() -> None:
    rules, plain = build_text_rules("am"), TextRules(NO_RULES)
    for text in ("በ1999 ዓ.ም.", "በ1999 ዓ.ም. " * 200):
        once = rules.apply(text)
        assert once == rules.apply(text) == rules.normalizer.normalise(text).text
        assert not any(map(str.isdecimal, once))
        assert plain.apply(text) == text, "other rules have results of their own"
    assert [rules.apply(text) for text in ("ሀ", "a", "ሀለ", "!")] == ["ሀ.", "a.", "ሀለ", "!"]
