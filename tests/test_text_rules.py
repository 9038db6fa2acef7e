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


# What is the last of its kind and what is the first beyond it, with the rules that read them.
EDGES = {
    "cardinal": ["123456789012345", "1,234", "12,345,678", "1234567890123456ኛ", "በ3", "+251911", "+2519112233445566"],
    "ordinal": ["123456789012345ኛ", "1ኛ"],
    "time": ["0:00", "24:00", "12:59", "12:30:59"],
    "cardinal digit-by-digit": ["25:00"],
    "cardinal cardinal": ["12:60", "1/11", "2/2", "3/2", "0/2", "ቁጥር 1/2", "1,23", "ከ3 እስከ 5"],
    "cardinal cardinal cardinal": ["12:30:60", "32/12/2010", "1/14/2010", "0/1/2010", "1/0/2010"],
    "date": ["31/12/2010", "1/13/2010", "1/1/2010", "2018-12-31", "2018-01-01"],
    "cardinal two-numbers": ["2018-13-01"],
    "cardinal interval": ["2018-01-32", "5-7-9"],
    "phone": ["0911223", "+251911223344556"],
    "digit-by-digit": ["091122", "007"],
    "fraction": ["1/2", "1/10", "9/10", "3 1/2", "1½"],
    "cardinal fraction": ["1234567890123456 1/2"],
    "interval": ["5-7", "ከ3-5", "5-7%"],
    "two-numbers": ["7-5", "5-5"],
    "negative": ["-5", "-5.5"],
    "percent": ["5%", "5‰"],
}
SPOKEN_AT_THE_EDGE = {
    "1234567890123456": "አንድ ሁለት ሶስት አራት አምስት ስድስት ሰባት ስምንት ዘጠኝ ዜሮ አንድ ሁለት ሶስት አራት አምስት ስድስት",
    "$3.5": "ሶስት ነጥብ አምስት ዶላር",
    "$3.50": "ሶስት ዶላር ከሃምሳ ሳንቲም",
    "$3.505": "ሶስት ነጥብ አምስት ዜሮ አምስት ዶላር",
    "½ ⅓ ⅔ ¼ ¾ ⅕ ⅛": "ግማሽ አንድ ሶስተኛ ሁለት ሶስተኛ ሩብ ሶስት አራተኛ አንድ አምስተኛ አንድ ስምንተኛ",
    "፲፱፻፺፱ ፻ ፼ ፪፼ ፱፱": "አንድ ሺህ ዘጠኝ መቶ ዘጠና ዘጠኝ አንድ መቶ አስር ሺህ ሃያ ሺህ ዘጠኝ ዘጠኝ",
}


def test_every_kind_of_number_ends_where_it_should() -> None:
    normalizer = build_text_rules("am").normalizer
    marks = {"spaces", "symbol-removed", "space-after-mark"}
    for rules, texts in EDGES.items():
        for text in texts:
            found = [change.rule for change in normalizer.normalise(text).changes if change.rule not in marks]
            assert " ".join(found) == rules, text
    for text, spoken in SPOKEN_AT_THE_EDGE.items():
        assert normalizer.normalise(text).text == spoken
