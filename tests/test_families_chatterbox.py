"""Chatterbox: its text front gives what the stock wrappers give, and its files are found by release."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.shared import shared
from voxgraft.core.errors import FileError
from voxgraft.models import get_family
from voxgraft.models.chatterbox.family import (
    CANGJIE_NAME,
    RELEASES,
    Chatterbox,
    ChatterboxEnglishFrontend,
    ChatterboxTextFrontend,
    read_cangjie,
)

DATA = Path(__file__).parent / "data" / "families"
FORMULA_CANGJIE = DATA / "formula_cangjie.json"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_japanese(sentences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in sentences if row["language"] != "ja"]


def only_japanese(sentences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if find_spec("pykakasi") is None:
        pytest.skip("NOT TESTED: Japanese needs pykakasi (pip install 'voxgraft[languages]')")
    return [row for row in sentences if row["language"] == "ja"]


def front() -> ChatterboxTextFrontend:
    return ChatterboxTextFrontend(read_cangjie(FORMULA_CANGJIE))


# ---- the text front against the stock wrapper ---------------------------------------------------------------


@pytest.mark.parametrize("select", [without_japanese, only_japanese])
def test_own_sentences_are_cleaned_and_prepared_as_the_stock_wrapper_does(select: Any) -> None:
    tokenizer = Tokenizer.from_file(str(DATA / "chatterbox_tokenizer.json"))
    for row in select(rows(DATA / "chatterbox_sentences.jsonl")):
        prepared = front().prepare(row["text"], row["language"])
        assert prepared == row["prepared"]
        assert tokenizer.encode(prepared).ids == row["ids"]
        assert front().clean(row["text"]) == row["cleaned"]
        assert front().prepare(row["cleaned"], row["language"]) == row["prepared_after_cleaning"]


def assert_ids_match(sentences: list[dict[str, Any]], tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    for row in sentences:
        text, language = row["text"], row["language"]
        assert tokenizer.encode(front().prepare(text, language)).ids == row["ids"], text
        if language is None and text.startswith("[am]"):  # there the tag was put in front of cleaned text by hand
            text, language = text.removeprefix("[am]"), "am"
        assert front().clean(text) == row["punc_norm"], text
        cleaned = tokenizer.encode(front().prepare(front().clean(text), language)).ids
        assert cleaned == row["ids_after_punc_norm"], text


@pytest.mark.parametrize("select", [without_japanese, only_japanese])
def test_all_golden_sentences_get_the_ids_of_the_stock_wrapper(select: Any) -> None:
    sentences = rows(shared("golden/tokenizers/mtl_like_sentences.jsonl"))
    assert len(sentences) == 200
    assert_ids_match(select(sentences), shared("golden/tokenizers/mtl_like_tokenizer.json"))


def test_all_sentences_get_the_published_tokenizers_ids() -> None:
    sentences = rows(shared("real/chatterbox/sentences.jsonl"))
    assert len(sentences) == 185
    assert_ids_match(sentences, shared("real/chatterbox/grapheme_mtl_merged_expanded_v1.json"))


# ---- the clean-up, rule by rule -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", "You need to add some text for me to talk."),
        ("élan vital", "Élan vital."),
        ("  two   spaces\u3000here ", "two spaces here."),
        ("wait… no", "Wait,  no."),
        ("a – b — c", "A - b - c."),
        ("“quoted” ‘words’", "\"quoted\" 'words'."),
        ("好的！", "好的！"),
        ("trailing comma,", "Trailing comma,"),
        ("ሰላም።", "ሰላም።."),
    ],
)
def test_punctuation_is_cleaned_up_by_the_stock_rules(text: str, cleaned: str) -> None:
    assert front().clean(text) == cleaned


def test_english_wrapper_adds_a_full_stop_after_chinese_marks_and_keeps_case() -> None:
    english = ChatterboxEnglishFrontend()
    assert english.clean("好的！") == "好的！."
    assert english.prepare("Hello Wörld", "en") == "Hello[SPACE]Wörld"
    assert english.prepare("Hello", "am") == "[am]Hello"


@given(st.text())
def test_a_tag_is_put_in_front_and_no_space_is_left(text: str) -> None:
    prepared = front().prepare(text, "Am")
    assert prepared.startswith("[am]")
    assert " " not in prepared
    assert front().prepare(text, None) == front().prepare(text, "")


def test_japanese_stays_as_written_where_its_reader_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['pykakasi'] = None\n"
        "from voxgraft.models.chatterbox.family import ChatterboxTextFrontend\n"
        "print(ascii(ChatterboxTextFrontend().prepare('私は', 'ja')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii("[ja]私は")


# ---- Cangjie ------------------------------------------------------------------------------------------------


def test_characters_that_share_a_cangjie_code_get_a_digit_from_the_second_on() -> None:
    codes = read_cangjie(FORMULA_CANGJIE)
    assert codes["你"] == "[cj_c][cj_a][cj_.]"
    assert codes["俄"] == "[cj_c][cj_a][cj_1][cj_.]"


def test_han_passes_unchanged_where_the_folder_has_no_cangjie_table(tmp_path: Path) -> None:
    assert Chatterbox().front(tmp_path / "tokenizer.json").prepare("你好", "zh") == "[zh]你好"
    (tmp_path / CANGJIE_NAME).write_bytes(FORMULA_CANGJIE.read_bytes())
    assert Chatterbox().front(tmp_path / "tokenizer.json").prepare("你好", "zh") == "[zh][cj_c][cj_a][cj_.]好"


@pytest.mark.parametrize("content", ['{"你": "ca"}', '["你"]', "[1]", "[null]"])
def test_a_cangjie_table_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / CANGJIE_NAME).write_text(content, encoding="utf-8")
    with pytest.raises(FileError) as caught:
        Chatterbox().front(tmp_path / "tokenizer.json")
    assert caught.value.code == "json-shape"


# ---- the family's facts and files ---------------------------------------------------------------------------


def test_every_release_is_found_by_its_own_pair_of_files(tmp_path: Path) -> None:
    for number, release in enumerate(RELEASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / release.checkpoint).write_bytes(b"x")
        (folder / release.tokenizer).write_bytes(b"x")
        found = Chatterbox().files(folder)
        assert (found.checkpoint.name, found.tokenizer.name) == (release.checkpoint, release.tokenizer)
        assert found.config is None
        assert isinstance(Chatterbox().front(found.tokenizer), ChatterboxEnglishFrontend) == (
            release.title == "English"
        )


def test_files_of_two_releases_are_never_paired(tmp_path: Path) -> None:
    (tmp_path / "t3_mtl23ls_v2.safetensors").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_bytes(b"x")
    with pytest.raises(
        FileError, match=r"t3_mtl23ls_v2\.safetensors exists without its tokenizer grapheme_mtl"
    ) as caught:
        Chatterbox().files(tmp_path)
    assert caught.value.code == "base-file-missing"


def test_the_multilingual_release_wins_where_all_are_in_one_folder(tmp_path: Path) -> None:
    for release in RELEASES:
        (tmp_path / release.checkpoint).write_bytes(b"x")
        (tmp_path / release.tokenizer).write_bytes(b"x")
    assert Chatterbox().files(tmp_path).checkpoint.name == "t3_mtl23ls_v2.safetensors"


def test_each_checkpoint_has_its_own_tokenizer_and_front_where_all_releases_are_in_one_folder(tmp_path: Path) -> None:
    for release in RELEASES:
        (tmp_path / release.checkpoint).write_bytes(b"x")
        (tmp_path / release.tokenizer).write_bytes(b"x")
    for release in RELEASES:
        tokenizer = Chatterbox().find_tokenizer(tmp_path / release.checkpoint)
        assert tokenizer.name == release.tokenizer
        assert isinstance(Chatterbox().front(tokenizer), ChatterboxEnglishFrontend) == (release.title == "English")
    (tmp_path / "mtl_tokenizer.json").unlink()
    with pytest.raises(FileError, match=r"t3_23lang\.safetensors exists without its tokenizer"):
        Chatterbox().find_tokenizer(tmp_path / "t3_23lang.safetensors")


def test_an_empty_folder_is_refused_with_every_name_that_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        Chatterbox().files(tmp_path)
    for name in Chatterbox.checkpoint_names:
        assert name in str(caught.value)


def test_the_published_tokenizer_has_the_familys_special_ids_and_a_tag_for_each_of_its_languages() -> None:
    tokenizer = Tokenizer.from_file(str(shared("real/chatterbox/grapheme_mtl_merged_expanded_v1.json")))
    chatterbox = get_family("chatterbox")
    assert {piece: tokenizer.token_to_id(piece) for piece in chatterbox.special_ids} == chatterbox.special_ids
    assert len(chatterbox.languages) == 23
    for code in chatterbox.languages:
        tag = chatterbox.tag(code)
        assert tag is not None
        assert tokenizer.encode(tag).tokens == [tag]
