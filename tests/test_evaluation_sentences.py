"""Sentence sets: the built-in ones, a user's own, and what of them is compared."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from voxgraft.core.errors import VoxgraftError
from voxgraft.evaluation.sentences import (
    find_training_overlap,
    list_built_in_languages,
    load_built_in_sentences,
    load_sentence_sets,
    normalize_letters,
    normalize_phones,
    read_sentence_file,
)
from voxgraft.tokenizers import load_proof_corpus

DATA = Path(str(resources.files("voxgraft") / "assets"))


def bundled_texts(language: str) -> list[str]:
    """Everything in the language that ships and that something may be trained on."""
    demo = DATA / "demo" / f"{language}.txt"
    own = demo.read_text(encoding="utf-8").splitlines() if demo.is_file() else []
    return [*own, *(text for code, text in load_proof_corpus() if code == language)]


@pytest.mark.parametrize("language", ["am", "en", "fr"])
def test_every_built_in_set_has_a_hundred_sentences_half_of_them_with_rare_words_and_all_with_phones(
    language: str,
) -> None:
    found = load_built_in_sentences(language)
    assert found is not None
    assert len(found.sentences) == 100
    assert sum(bool(one.rare) for one in found.sentences) == 50
    assert all(one.phones for one in found.sentences)
    for one in found.sentences:
        assert set(one.rare) <= set(one.text.replace("'", " ").split()), one


@pytest.mark.parametrize("language", ["am", "en", "fr"])
def test_no_text_that_ships_holds_a_built_in_sentence_or_one_of_its_rare_words(language: str) -> None:
    found = load_built_in_sentences(language)
    assert found is not None
    overlap = find_training_overlap(found, bundled_texts(language))
    assert overlap == {"seen_in_training": [], "rare_words_in_training": []}
    common = {word for one in found.sentences if not one.rare for word in normalize_letters(one.text, language).split()}
    assert not common & {word for one in found.sentences for word in one.rare}


def test_built_in_languages_are_those_that_have_a_file() -> None:
    assert list_built_in_languages() == ["am", "en", "fr"]
    assert load_built_in_sentences("ti") is None


def test_a_part_of_a_set_keeps_the_share_of_rare_words() -> None:
    found = load_built_in_sentences("am")
    assert found is not None
    some = found.spread(10).sentences
    assert len(some) == 10
    assert sum(bool(one.rare) for one in some) == 5
    assert found.spread(100) == found


def test_a_set_by_file_may_be_plain_lines_or_a_table(tmp_path: Path) -> None:
    (tmp_path / "km.txt").write_text("ក ខ\n\nគ\nគ\n", encoding="utf-8")
    assert [one.text for one in read_sentence_file(tmp_path / "km.txt").sentences] == ["ក ខ", "គ"]
    (tmp_path / "am.tsv").write_text("phones\ttext\ns ə\tሰ\n\tለ\n", encoding="utf-8")
    made = read_sentence_file(tmp_path / "am.tsv").sentences
    assert [(one.text, one.phones) for one in made] == [("ሰ", ("s", "ə")), ("ለ", None)]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("sentences.txt", "ሰላም\n", "sentences-name"),
        ("am.csv", "ሰላም\n", "sentences-name"),
        ("am.tsv", "ሰላም\tx\n", "sentences-columns"),
        ("am.tsv", "text\nሰላም\tx\n", "sentences-columns"),
        ("am.txt", "123\n", "text-empty"),
    ],
)
def test_what_is_no_set_is_refused_with_what_was_found_and_a_cure(
    tmp_path: Path, name: str, content: str, code: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        read_sentence_file(tmp_path / name)
    assert caught.value.code == code
    assert caught.value.finding.found
    assert caught.value.finding.where
    assert caught.value.finding.cure


def test_own_sentences_come_before_built_in_ones_and_others_languages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    found = load_sentence_sets(["am", "en", "ti"], [tmp_path / "en.txt"], 2)
    assert {language: len(one.sentences) for language, one in found.items()} == {"am": 2, "en": 2}
    assert found["en"].source == "en.txt"
    with pytest.raises(VoxgraftError) as caught:
        load_sentence_sets(["am"], [tmp_path / "en.txt"], 2)
    assert caught.value.code == "sentences-language"


def test_letters_are_compared_without_case_punctuation_and_amharic_letters_of_one_sound() -> None:
    assert normalize_letters("  Hello,  WORLD! ", "en") == "hello world"
    assert normalize_letters("donne-moi n'a", "fr") == "donne moi n a"
    assert normalize_letters("ፀሐይ", "am") == normalize_letters("ጸሀይ", "am")
    assert normalize_letters("ሠዓት", "am") == normalize_letters("ሰኣት", "am") == normalize_letters("ሰአት", "am")
    assert normalize_letters("ፀሐይ", "ti") != normalize_letters("ጸሀይ", "ti")
    assert normalize_letters("e\u0301", "fr") == "é"


def test_phones_are_compared_without_stress_and_length() -> None:
    assert normalize_phones(["ˈa", "tː", "ˌ", "k`"]) == ["a", "t", "k`"]
