"""Six languages on three kinds of tokenizer: old text reads the same, new text is spelled in full."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from tests.support.tokenizers import KINDS, LANGUAGES, Grown, base, demo_texts, grown, learn
from voxgraft.config.commands import TokenizerMergeSettings, TokenizerProveSettings, TokenizerTrainSettings
from voxgraft.config.run import VocabularySettings
from voxgraft.core.languages import is_letter, script_characters
from voxgraft.core.results import plain_text
from voxgraft.graft.command import format_additions, tokenizer_merge, tokenizer_prove, tokenizer_train
from voxgraft.models import get_family
from voxgraft.tokenizers import load_proof_corpus, open_tokenizer, prove

SENTENCEPIECE = KINDS[1:]
SYMBOLS = "&→★€@#*/†•°×"
every_kind = pytest.mark.parametrize("kind", KINDS)
every_language = pytest.mark.parametrize("language", LANGUAGES)


def prove_quickly(made: Grown, sentences: tuple[str, ...]) -> prove.TokenizerProof:
    """Over every fifth sentence of the built-in corpus; the benchmark goes over many more than all."""
    corpus = islice(load_proof_corpus(), 0, None, 5)
    text_encoder = made.text_encoder
    new = text_encoder.new_text(sentences)
    return prove.prove_tokenizer(text_encoder.base, made.tokenizer, corpus, text_encoder.prepare_base, new)


@pytest.mark.long(fast=("am-bpe-json", "am-sentencepiece-unigram"))
@every_kind
@every_language
def test_old_text_reads_the_same_and_every_letter_of_the_new_language_has_a_piece(kind: str, language: str) -> None:
    made = grown(kind, language)
    proof = prove_quickly(made, made.texts.sentences)
    assert proof.counts.changed == 0
    assert proof.counts.same > 300
    assert not [character for character in proof.unknown_characters if is_letter(character)]
    assert proof.unreachable == ()
    assert proof.holds


@every_kind
@every_language
def test_the_base_is_the_beginning_of_the_grown_tokenizer_and_ids_have_no_gap(kind: str, language: str) -> None:
    made = grown(kind, language)
    assert made.tokenizer.pieces[: made.base.size] == made.base.pieces
    assert made.tokenizer.gaps == ()
    assert made.tokenizer.size == made.base.size + len(made.learned.additions)
    assert made.tokenizer.unknown_id == made.base.unknown_id
    for piece, at in get_family(made.text_encoder.family.name).special_ids.items():
        assert made.tokenizer.ids[piece] == at


@every_kind
@every_language
def test_every_new_piece_holds_a_character_that_no_base_piece_has(kind: str, language: str) -> None:
    made = grown(kind, language)
    for piece in made.learned.additions.pieces:
        assert set(piece.text) - made.base.characters, piece


@every_language
def test_the_tag_is_one_token_and_is_added_only_where_the_base_lacks_it(language: str) -> None:
    made = grown("bpe-json", language)
    tag = f"[{language}]"
    assert len(made.tokenizer.encode(tag)) == 1
    assert made.tokenizer.has_control_token(tag)
    assert made.learned.additions.tag == (None if made.base.has_control_token(tag) else tag)
    assert len(set(made.tokenizer.pieces)) == made.tokenizer.size


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_a_family_without_tags_gets_none(kind: str) -> None:
    assert grown(kind, "am").learned.additions.tag is None


@every_kind
def test_a_language_whose_letters_the_base_has_gets_its_tag_and_nothing_else_and_is_reported_so(kind: str) -> None:
    made = learn(kind, "zu" if kind == "bpe-json" else "sw", demo_texts("sw").sentences)
    assert made.learned.additions.pieces == ()
    lines = format_additions(made.learned.additions, made.learned.plan, made.texts)
    added = "the tag [zu]" if kind == "bpe-json" else "nothing"
    assert f"; added: {added}" in "\n".join(map(str, lines))
    assert "this is fine: its text is encoded with the base's own tokens" in "\n".join(map(str, lines))
    assert made.tokenizer.size == made.base.size + (kind == "bpe-json")


@every_kind
def test_why_a_language_in_latin_script_adds_few_pieces_is_said_and_of_a_new_script_nothing_is(kind: str) -> None:
    made = learn(
        kind, "cs", ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "Nechť již hříšné saxofony ďáblů rozezvučí síň.")
    )
    (line,) = [
        str(line)
        for line in format_additions(made.learned.additions, made.learned.plan, made.texts)
        if "this is fine" in str(line)
    ]
    letters = {sign for text in made.texts.sentences for sign in text.lower() if sign.isalpha()}
    known = len(letters - {sign.lower() for sign in made.new_characters})
    assert len(made.learned.additions.pieces) > 0
    assert f"already covers {known} of the {len(letters)} letters" in line
    assert line.endswith(f"only tokens with a letter that it lacks are added ({len(made.learned.additions.pieces)})")
    other = grown(kind, "am")
    assert "this is fine" not in str(format_additions(other.learned.additions, other.learned.plan, other.texts))


@pytest.mark.long(fast="am-bpe-json")
@every_kind
@pytest.mark.parametrize("language", ["am", "vi"])
def test_general_symbols_never_become_characters_and_are_reported(kind: str, language: str) -> None:
    sentences = (*demo_texts(language).sentences, *(f"{SYMBOLS} {SYMBOLS}" for _ in range(9)))
    made = learn(kind, language, sentences)
    assert made.new_characters.isdisjoint(SYMBOLS)
    if language == "am":  # whose own rules take them out
        assert not {"→", "★"} & set(made.learned.plan.left_unknown)
        return
    assert {"→", "★"} <= set(made.learned.plan.left_unknown)
    lines = "\n".join(map(str, format_additions(made.learned.additions, made.learned.plan, made.texts)))
    assert "left unknown" in lines
    proof = prove_quickly(made, sentences)
    assert [finding.code for finding in proof.findings] == ["proof-unknown-symbols"]
    assert proof.holds


def test_a_script_that_the_base_lacks_gets_all_its_characters() -> None:
    made = learn("bpe-json", "gez", ("ሰላም ለዓለም።",))
    assert set(script_characters("Ethiopic")) == made.new_characters
    assert len(made.new_characters) == 523


def test_characters_that_the_text_rules_write_otherwise_get_no_row() -> None:
    made = learn("bpe-json", "am", ("ሰላም ለዓለም።",))
    left_out = set(script_characters("Ethiopic")) - made.new_characters
    assert left_out >= set("፡።፣፤፥፦፧፨፩፪፫፻፼")
    assert not any(character.isalpha() for character in left_out)


@every_kind
def test_a_letter_that_no_text_showed_is_never_unknown(kind: str) -> None:
    made = learn(kind, "am", ("ሰላም ለዓለም።",))
    letters = [character for character in script_characters("Ethiopic") if is_letter(character)]
    assert len(letters) > 450
    for letter in letters:
        ids = made.tokenizer.encode(made.text_encoder.prepare(f"ሰ{letter}ም"))
        assert made.tokenizer.unknown_id not in ids, letter


@pytest.mark.long(fast="am-bpe-json")
@every_kind
@pytest.mark.parametrize("language", ["am", "vi"])
def test_the_same_texts_give_the_same_bytes(kind: str, language: str) -> None:
    once, again = (learn(kind, language, demo_texts(language).sentences) for _ in range(2))
    assert once.learned.additions == again.learned.additions
    assert once.base.grown(once.learned.additions) == again.base.grown(again.learned.additions)


def test_every_vietnamese_piece_on_the_unigram_model_occurs_in_the_text_that_it_was_learnt_from() -> None:
    made = grown("sentencepiece-unigram", "vi")
    spelled = {
        token for text in made.texts.sentences for token in made.tokenizer.encode(made.text_encoder.prepare(text))
    }
    merges = made.learned.additions.merges
    assert len(merges) > 200
    assert {made.tokenizer.ids[piece.text] for piece in merges} <= spelled


@pytest.mark.long(fast="bpe-json")
@every_kind
def test_new_pieces_make_the_new_language_shorter(kind: str) -> None:
    made = grown(kind, "am")
    letters_only = learn(kind, "am", made.texts.sentences, VocabularySettings(pieces=0))
    assert letters_only.learned.additions.merges == ()
    assert letters_only.new_characters == made.new_characters
    long, short = (
        sum(len(item.tokenizer.encode(item.text_encoder.prepare(text))) for text in made.texts.sentences)
        for item in (letters_only, made)
    )
    assert short < 0.8 * long


@every_kind
@every_language
def test_stock_libraries_read_the_written_file_and_give_the_same_ids(kind: str, language: str, tmp_path: Path) -> None:
    made = grown(kind, language)
    path = tmp_path / "tokenizer"
    path.write_bytes(made.base.grown(made.learned.additions))
    reopened = open_tokenizer(path)
    if kind == "bpe-json":
        stock: Any = tokenizers.Tokenizer.from_file(str(path))
    else:
        stock = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in made.texts.sentences[:100]:
        prepared = made.text_encoder.prepare(text)
        ids = stock.encode(prepared).ids if kind == "bpe-json" else stock.encode(prepared)
        assert ids == made.tokenizer.encode(prepared) == reopened.encode(prepared)


@pytest.mark.long(fast="bpe-json")
@every_kind
def test_train_merge_and_prove_meet_in_files(kind: str, tmp_path: Path) -> None:
    path, text = tmp_path / "base.tokenizer", tmp_path / "am.txt"
    path.write_bytes(base(kind).base.data)
    text.write_text("\n".join(demo_texts("am").sentences), encoding="utf-8")
    additions, output = tmp_path / "additions.json", tmp_path / "grown.tokenizer"
    name = base(kind).family.name
    trained = tokenizer_train(
        TokenizerTrainSettings(base=path, family=name, language="am", texts=(text,), output=additions)
    )
    merged = tokenizer_merge(TokenizerMergeSettings(base=path, family=name, additions=additions, output=output))
    sizes = merged.to_json()
    assert sizes["pieces"] == sizes["base_pieces"] + trained.to_json()["new_rows"]
    assert open_tokenizer(output).sha256 == sizes["sha256"]
    proven = tokenizer_prove(
        TokenizerProveSettings(base=path, extended=output, family=name, language="am", texts=(text,))
    )
    assert proven.exit_code == 0
    assert proven.counts.total > 5000
    assert json.loads(json.dumps(proven.to_json()))["sentences"]["changed"] == 0
    assert plain_text(proven.lines()[0]) == "old text is encoded as before: yes"  # type: ignore[arg-type]


@pytest.mark.long
@every_kind
def test_a_text_with_a_stray_letter_of_another_script_still_holds_and_the_letter_is_reported(kind: str) -> None:
    stray = "Ꮳ"  # Cherokee; its own case is the upper one in one family and the lower one in the other
    sentences = (*demo_texts("am").sentences, f"ሰላም {stray} ነው።")
    made = learn(kind, "am", sentences)
    proof = prove_quickly(made, sentences)
    assert [finding.code for finding in proof.findings] == ["proof-unknown-symbols"]
    assert proof.holds
    assert made.learned.plan.left_unknown == proof.unknown_characters
    assert len(made.learned.plan.left_unknown) == 1


@every_kind
def test_sentences_that_hold_the_new_tag_are_counted_apart(kind: str) -> None:
    made = grown(kind, "am")
    corpus = [("en", "Say [am] now."), ("en", "Say it now.")]
    counts = prove.prove_tokenizer(
        made.base, made.tokenizer, corpus, made.text_encoder.prepare_base, made.text_encoder.new_text(())
    ).counts
    assert (counts.holds_tag, counts.same, counts.changed) == ((1, 1, 0) if kind == "bpe-json" else (0, 2, 0))


@pytest.mark.parametrize("kind", SENTENCEPIECE)
@pytest.mark.parametrize("letter", ["ă", "Ă", "ơ"])
def test_a_text_of_a_single_letter_is_spelled_like_any_other(kind: str, letter: str) -> None:
    made = grown(kind, "vi")
    ids = made.text_encoder.encode(letter, "vi")
    assert made.tokenizer.unknown_id not in ids
