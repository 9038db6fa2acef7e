"""Languages without rules of their own: numbers in num2words' words where that is safe, plain marks, nothing else."""

from __future__ import annotations

import pytest

from voxgraft.text.normalize import build_normalizer
from voxgraft.text.normalize.generic import (
    FINGERPRINT_NUMBERS,
    NUM2WORDS_LANGUAGES,
    Normalizer,
    TextEditor,
    find_num2words_config,
    num2words_cardinal,
)

pytest.importorskip("num2words", reason="NOT TESTED: num2words is not installed")


def normalizer(language: str) -> Normalizer:
    return build_normalizer(language)


def said(language: str, text: str) -> str:
    done = normalizer(language).normalise(text)
    assert normalizer(language).normalise(done.text).text == done.text
    return done.text


def words(language: str, *parts: int | str) -> str:
    code = NUM2WORDS_LANGUAGES[language].code
    return " ".join(num2words_cardinal(code, part) if isinstance(part, int) else part for part in parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("12 boeken", (12, "boeken")),
        ("0", (0,)),
        ("1.500", (1500,)),
        ("1.500.000", (1_500_000,)),
        ("1,5", (1, "komma", 5)),
        ("1.500,25", (1500, "komma", 2, 5)),
        ("-3 graden", ("min", 3, "graden")),
        ("5% of 6 %", (5, "procent", "of", 6, "procent")),
        ("-5%", ("min", 5, "procent")),
        ("007", (0, 0, 7)),
        ("999999999", (999_999_999,)),
        ("12:30", (12, 30)),
        ("12:05:09", (12, 5, 9)),
        ("3-4-2026", (3, 4, 2026)),
        ("2026-04-03", (2026, 4, 3)),
        ("3-5", (3, 5)),
        ("٣", (3,)),
        ("1 500", (1, 500)),
    ],
)
def test_numbers_are_said_in_words(text: str, parts: tuple[int | str, ...]) -> None:
    assert said("nl", text) == words("nl", *parts)


@pytest.mark.parametrize(
    "text",
    [
        "1000000000",
        "1.000.000.000",
        "1" * 5000,
        "0" + "1" * 20,
        "MP3",
        "3D",
        "1'500",
        "3. mei",
        "1.50",
        "1/2/3/4",
        "3-x",
    ],
)
def test_what_cannot_be_said_safely_stays_in_digits_and_is_noted(text: str) -> None:
    done = normalizer("nl").normalise(text)
    assert done.text == text
    assert "".join(note.text for note in done.notes) == "".join(filter(str.isdecimal, text))
    assert {note.rule for note in done.notes} == {"digits-left"}


def test_twenty_digits_are_spelled_one_by_one_and_no_more() -> None:
    assert said("nl", "0" + "1" * 19) == words("nl", 0, *[1] * 19)


def test_a_language_without_a_word_for_a_sign_leaves_such_numbers_alone() -> None:
    assert (said("cs", "5%"), said("cs", "1,5"), said("cs", "-5")) == ("5%", "1,5", words("cs", "minus", 5))
    assert (said("ce", "-5"), said("ce", "5")) == ("-5", words("ce", 5))
    assert said("bn", "-৩") == "-3", "digits that stay are those that every base has"
    assert said("da", "1000000") == "1000000"
    assert said("da", "999999") == words("da", 999_999)


def test_groups_and_decimals_are_read_as_the_language_writes_them() -> None:
    assert said("cs", "1 500 korun") == words("cs", 1500, "korun")
    assert said("es-MX", "1,500.5") == words("es-419", 1500, "punto", 5)
    assert said("es", "1.500,5") == words("es", 1500, "coma", 5)
    assert said("fa", "۱٫۵") == words("fa", 1, "ممیز", 5)
    assert said("fa", "۱٬۵۰۰") == words("fa", 1500)
    assert said("uk", "5") == words("uk", 5).replace("'", "ʼ")
    assert "'" in words("uk", 5)


GROUPED_BY_SPACES = "be cs eo fi fr hu kk lt lv nb no pl pt ru sk sv tg uk".split()
"""Of the languages whose numbers are read, those whose thousands CLDR groups by spaces."""


@pytest.mark.parametrize("language", NUM2WORDS_LANGUAGES)
def test_a_space_between_digits_groups_thousands_only_where_the_language_writes_so(language: str) -> None:
    apart = (1500,) if language in GROUPED_BY_SPACES else (1, 500)
    mark = NUM2WORDS_LANGUAGES[language].apostrophe
    assert said(language, "1 500") == words(language, *apart).replace("'", mark)


@pytest.mark.parametrize("language", NUM2WORDS_LANGUAGES)
def test_a_number_with_a_full_stop_before_a_capital_is_a_date_in_german_alone(language: str) -> None:
    assert ("12" in said(language, "x 12. May")) == (language in ("de", "de-CH"))


@pytest.mark.parametrize("language", NUM2WORDS_LANGUAGES)
def test_numbers_are_read_up_to_a_billion_and_in_danish_up_to_a_million(language: str) -> None:
    largest = 10**6 - 1 if language == "da" else 10**9 - 1
    mark = NUM2WORDS_LANGUAGES[language].apostrophe
    assert said(language, str(largest)) == words(language, largest).replace("'", mark)
    assert said(language, str(largest + 1)) == str(largest + 1)


def test_the_numbers_that_tell_one_edition_of_num2words_from_another_are_the_same_in_all_releases() -> None:
    """Grafts have recorded a hash of their words."""
    tens, large = [40, 50, 60, 70, 80, 90, 100], [101, 110, 199, 200, 345, 999, 1000, 1001, 2026, 12345, 100000, 987654]
    assert list(FINGERPRINT_NUMBERS) == [*range(31), *tens, *large]


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("am 25. Mai", False),
        ("wurde 25. Mai", False),
        ("am 25. Danach", False),
        ("25. Danach", False),
        ("wurde 25. Danach", True),
        ("wurde 100. Mai", True),
        ("wurde 25", True),
    ],
)
def test_a_number_that_may_be_a_german_ordinal_stays(text: str, is_read: bool) -> None:
    number = "100" if "100" in text else "25"
    assert said("de", text) == (text.replace(number, words("de", int(number))) if is_read else text)


@pytest.mark.parametrize(
    ("language", "entry"),
    [
        ("nl", "nl"),
        ("nl-BE", "nl"),
        ("nl_BE", "nl"),
        ("de-CH", "de-CH"),
        ("de-LI", "de-CH"),
        ("de-AT", "de"),
        ("es-MX", "es-419"),
        ("es-AR", "es"),
        ("sr-Latn-RS", "sr-Latn"),
        ("sr", None),
        ("sr-Cyrl", None),
        ("nl-Arab", None),
        ("xx", None),
        ("", None),
    ],
)
def test_a_region_is_read_as_its_language_and_another_script_is_not(language: str, entry: str | None) -> None:
    assert find_num2words_config(language) is (NUM2WORDS_LANGUAGES[entry] if entry else None)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  a  b ", "a b"),
        ("a\u00a0b\tc\nd", "a b c d"),
        ("a\u200bb\ufeff", "ab"),
        ("a\u200cb a\u200c", "a\u200cb a"),
        ("“a” ‘b’ – … ‼", "\"a\" 'b' - ... !!"),
        ("a⹁ b⸮", "a, b?"),
        ("e\u0301", "é"),
        ("a" + "\u0316" * 40, "a" + "\u0316" * 16),
    ],
)
def test_marks_and_spaces_become_plain(text: str, plain: str) -> None:
    assert said("qqq", text) == plain


def test_an_apostrophe_in_a_word_is_the_letter_that_it_stands_for() -> None:
    assert said("uk", "м'який 'слово'") == "мʼякий 'слово'"
    assert said("nl", "foto's") == "foto's"


def test_changes_are_recorded_with_their_places_in_the_text_as_it_was_then() -> None:
    done = normalizer("nl").normalise("“3”  en 4")
    made = TextEditor("“3”  en 4")
    for change in done.changes:
        assert made.text[change.place : change.place + len(change.before)] == change.before
        made.text = made.text[: change.place] + change.after + made.text[change.place + len(change.before) :]
    assert made.text == done.text == words("nl", '"drie"', "en", 4)
