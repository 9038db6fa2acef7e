"""IndexTTS-2: its text front gives what the stock wrapper gives, new scripts' marks are read, its config is heeded."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from tests.support.shared import shared
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.models import detect_family
from voxgraft.models.indextts2.family import IndexTTS2, IndexTTS2TextFrontend
from voxgraft.models.indextts2.marks import IN_WORD_PUNCTUATION, SCRIPT_PUNCTUATION, STOCK_PUNCTUATION

DATA = Path(__file__).parent / "data" / "families"
SPELLED_BY_THE_BASE = set(",.?!'-… ")
READ_OUT_BY_THE_NUMBER_READER = ("well~ok", "漢字と仮名", "¿Dónde")
"""Sentences without digits that the original program's number reader changes all the same."""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


front = IndexTTS2TextFrontend()


# ---- the text front against the stock wrapper ---------------------------------------------------------------


def test_own_sentences_are_cleaned_and_prepared_as_the_stock_wrapper_does() -> None:
    for row in rows(DATA / "indextts2_sentences.jsonl"):
        assert front.prepare(row["normalized"], None) == row["pretokenized"]
        assert front.clean(row["text"]) == row["cleaned"]


def assert_ids_match(sentences: list[dict[str, Any]], model_file: Path) -> None:
    model = SentencePieceProcessor(model_file=str(model_file))
    for row in sentences:
        prepared = front.prepare(row["normalized"], row["language"])
        assert prepared == row["pretokenized"], row["text"]
        assert model.encode(prepared) == row["ids"], row["text"]
        assert model.encode(front.prepare(row["text"], None)) == row["ids_without_normalizer"], row["text"]


def assert_cleaned_as_normalised(sentences: list[dict[str, Any]], at_least: int) -> None:
    compared = 0
    for row in sentences:
        text = row["text"]
        needs_reader = any(character.isdigit() for character in text)
        if needs_reader or any(part in text for part in READ_OUT_BY_THE_NUMBER_READER) or "።" in text:
            continue
        assert front.clean(text) == row["normalized"]
        compared += 1
    assert compared >= at_least


def test_all_golden_sentences_get_the_ids_of_the_stock_wrapper() -> None:
    sentences = rows(shared("golden/tokenizers/index_like_sentences.jsonl"))
    assert len(sentences) == 200
    assert_ids_match(sentences, shared("golden/tokenizers/index_like_bpe.model"))
    assert_cleaned_as_normalised(sentences, at_least=60)


def test_all_sentences_get_the_published_tokenizers_ids() -> None:
    sentences = rows(shared("real/indextts2/sentences.jsonl"))
    assert len(sentences) == 203
    assert_ids_match(sentences, shared("real/indextts2/bpe.model"))
    assert_cleaned_as_normalised(sentences, at_least=60)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("გამარჯობა", "ᲒᲐᲛᲐᲠᲯᲝᲑᲐ"),  # Georgian has capitals since Unicode 11
        ("ΰς և ŉ", "\u03a5\u0308\u0301Σ ԵՒ ʼN"),
        ("straße", "STRASSE"),
        ("ꬁꬂ ሀለ", "ꬁ ꬂ ሀለ"),  # only the extended Ethiopic block lies in a range that is split
        ("a", "a"),
        (" a ", " a "),
        ("", ""),
        (" two words ", "TWO WORDS"),
    ],
)
def test_letters_become_capitals_as_python_makes_them_and_one_character_is_left_alone(text: str, prepared: str) -> None:
    assert front.prepare(text, None) == prepared


@given(st.text())
def test_prepared_text_is_the_text_in_capitals_but_for_spaces(text: str) -> None:
    if len(text.strip()) != 1:
        assert "".join(front.prepare(text, None).split()) == "".join(text.upper().split())


# ---- punctuation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("ሰላም፡ለዓለም፡፡", "ሰላም ለዓለም."),
        ("ሰላም፣ ደህና ነህ፧", "ሰላም, ደህና ነህ?"),
        ("ሰላም:: ለዓለም", "ሰላም. ለዓለም"),
        ("a::b cd", "a,,b cd"),
        ("«ሰላም» አለ፤ ሄደ።", "'ሰላም' አለ, ሄደ."),
        ("សួស្តី។ អរគុណ៕", "សួស្តី. អរគុណ."),
        ("यह है। वह है॥", "यह है. वह है."),
        ("مرحبا، كيف حالك؟", "مرحبا, كيف حالك?"),
        ("یہ ٹھیک ہے۔", "یہ ٹھیک ہے."),
        ("Ինչպե՞ս ես։", "Ինչպես? ես."),
        ("Ո՜վ, ա՛յո", "Ով!, այո"),
        ("ကောင်းပါတယ်၊ ကျေးဇူး။", "ကောင်းပါတယ်, ကျေးဇူး."),
        ("Τι κάνεις\u037e", "Τι κάνεις?"),
        ("1990–2000 год", "1990-2000 год"),
        ("xu4 jue2 qu", "XV4 JVE2 qu"),
        ("what's that's", "what is that is"),
        ("多少$。", "多少.."),
        ("costs $ now", "costs $ now"),
    ],
)
def test_marks_of_new_scripts_become_marks_that_the_base_can_spell(text: str, cleaned: str) -> None:
    assert front.clean(text) == cleaned


def test_every_mark_is_written_with_what_the_base_can_spell() -> None:
    for table in (STOCK_PUNCTUATION, SCRIPT_PUNCTUATION, IN_WORD_PUNCTUATION):
        for mark, written in table.items():
            assert set(written) <= SPELLED_BY_THE_BASE, mark


def test_our_own_table_holds_punctuation_only_and_nothing_that_the_stock_program_maps() -> None:
    assert not set(SCRIPT_PUNCTUATION) & set(STOCK_PUNCTUATION)
    for character in "".join(SCRIPT_PUNCTUATION) + "".join(IN_WORD_PUNCTUATION):
        assert unicodedata.category(character)[0] in "PS", f"U+{ord(character):04X}"


def test_the_published_tokenizer_spells_none_of_the_marks_that_our_own_table_replaces() -> None:
    model = SentencePieceProcessor(model_file=str(shared("real/indextts2/bpe.model")))
    for mark in SCRIPT_PUNCTUATION:
        assert model.unk_id() in model.encode(f"A{mark}B") or mark == "\u0387", f"{mark!r}"


@given(
    st.lists(st.sampled_from([*"aB 中ሀ'.?!$", *STOCK_PUNCTUATION, *SCRIPT_PUNCTUATION, *IN_WORD_PUNCTUATION])).map(
        "".join
    )
)
def test_cleaned_text_holds_no_mark_that_the_base_cannot_spell(text: str) -> None:
    if len(text.strip()) > 1:
        assert set(front.clean(text)) <= SPELLED_BY_THE_BASE | set("aB中ሀ$")


# ---- the family's files and config --------------------------------------------------------------------------


def base_folder(folder: Path, config: str, *names: str) -> Path:
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def test_the_names_in_the_config_win_over_the_usual_ones(tmp_path: Path) -> None:
    config = "gpt_checkpoint: mine.pth\ndataset: {bpe_model: mine.model}\n"
    found = IndexTTS2().files(base_folder(tmp_path, config, "gpt.pth", "bpe.model", "mine.pth", "mine.model"))
    assert (found.checkpoint.name, found.tokenizer.name) == ("mine.pth", "mine.model")
    assert found.config == tmp_path / "config.yaml"
    assert detect_family(tmp_path).name == "indextts2"


def test_the_usual_names_serve_where_the_config_gives_none(tmp_path: Path) -> None:
    found = IndexTTS2().files(base_folder(tmp_path, "version: 2.0\n", "gpt.safetensors", "bpe.model"))
    assert (found.checkpoint.name, found.tokenizer.name) == ("gpt.safetensors", "bpe.model")


@pytest.mark.parametrize(
    ("config", "names", "missing"),
    [
        ("gpt_checkpoint: mine.pth\n", ("gpt.pth", "bpe.model"), "mine.pth"),
        ("version: 2.0\n", ("bpe.model",), "gpt.pth and gpt.safetensors"),
        ("version: 2.0\n", ("gpt.pth",), "bpe.model"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, config: str, names: tuple[str, ...], missing: str) -> None:
    with pytest.raises(FileError, match=missing) as caught:
        IndexTTS2().files(base_folder(tmp_path, config, *names))
    assert caught.value.code == "base-file-missing"


def test_a_folder_without_a_config_is_no_base(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"config\.yaml"):
        IndexTTS2().files(tmp_path)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ("- a list\n", "base-config"),
        ("dataset: bpe.model\n", "base-config"),
        ("gpt_checkpoint: 3\n", "base-config"),
        ("gpt_checkpoint: ''\n", "base-config"),
        ("gpt_checkpoint: ../gpt.pth\n", "base-config"),
        ("gpt_checkpoint: /etc/passwd\n", "base-config"),
        ("version: 1.5\n", "base-version"),
        ("version: 2.5\n", "base-version"),
        ("gpt: [\n", "yaml-broken"),
        ("gpt: &a {}\nb: *a\n", "yaml-alias"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(tmp_path: Path, config: str, code: str) -> None:
    with pytest.raises(VoxgraftError) as caught:
        IndexTTS2().files(base_folder(tmp_path, config, "gpt.pth", "bpe.model"))
    assert caught.value.code == code


def test_the_config_states_how_many_pieces_there_are(tmp_path: Path) -> None:
    config = base_folder(tmp_path, "gpt: {number_text_tokens: 24000}\n") / "config.yaml"
    assert IndexTTS2().read_config_pieces(config) == 24000
    assert IndexTTS2().read_config_pieces(base_folder(tmp_path, "gpt: {}\n") / "config.yaml") is None


@pytest.mark.parametrize("value", ["'24000'", "true", "0", "-1", "24000.0", "[1]"])
def test_a_number_of_pieces_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    config = base_folder(tmp_path, f"gpt: {{number_text_tokens: {value}}}\n") / "config.yaml"
    with pytest.raises(ConfigError, match="number_text_tokens"):
        IndexTTS2().read_config_pieces(config)


def test_the_published_config_and_tokenizer_agree_with_the_familys_facts() -> None:
    config = shared("real/indextts2/config.yaml")
    model = SentencePieceProcessor(model_file=str(shared("real/indextts2/bpe.model")))
    assert IndexTTS2().read_config_pieces(config) == model.get_piece_size() == 12000
    for piece, at in IndexTTS2.special_ids.items():
        assert model.id_to_piece(at) == piece
