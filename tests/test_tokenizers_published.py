"""The published tokenizers and the golden ones: opened, grown by six languages, and proven. Skipped where absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.shared import shared
from tests.support.tokenizers import LANGUAGES, demo_texts
from tests.test_tokenizers_promise import COMPOSED, DIGITS, INVISIBLE, MARKS, SCRIPTS, SPACES, SYMBOLS, TAGS
from tests.test_tokenizers_promise import check_old_text_reads_the_same as check
from voxgraft.config.run import VocabularySettings
from voxgraft.core.languages import is_letter
from voxgraft.graft.folder import load_base_tokenizer
from voxgraft.models import get_family
from voxgraft.text.encoder import TextEncoder, learn_language_pieces
from voxgraft.tokenizers import load_proof_corpus, prove


@dataclass(frozen=True, slots=True)
class Published:
    """A tokenizer file, its facts, and sentences with the ids that the stock wrapper gives them."""

    file: str
    sentences: str
    family: str
    kind: str
    size: int


PUBLISHED = {
    "chatterbox": Published(
        "real/chatterbox/grapheme_mtl_merged_expanded_v1.json",
        "real/chatterbox/sentences.jsonl",
        "chatterbox",
        "bpe-json",
        2454,
    ),
    "indextts2": Published(
        "real/indextts2/bpe.model", "real/indextts2/sentences.jsonl", "indextts2", "sentencepiece-unigram", 12000
    ),
    "golden bpe": Published(
        "golden/tokenizers/index_like_bpe.model",
        "golden/tokenizers/index_like_sentences.jsonl",
        "indextts2",
        "sentencepiece-bpe",
        12000,
    ),
    "golden json": Published(
        "golden/tokenizers/mtl_like_tokenizer.json",
        "golden/tokenizers/mtl_like_sentences.jsonl",
        "chatterbox",
        "bpe-json",
        2454,
    ),
}
every_file = pytest.mark.parametrize("name", PUBLISHED)
every_language = pytest.mark.parametrize("language", LANGUAGES)


@cache
def opened(name: str) -> TextEncoder:
    family, tokenizer = load_base_tokenizer(shared(PUBLISHED[name].file), PUBLISHED[name].family)
    return TextEncoder.of(family, tokenizer, None, None)


@cache
def grown(name: str, language: str) -> TextEncoder:
    base = opened(name)
    before = TextEncoder.of(base.family, base.base, None, language)
    learnt = learn_language_pieces(before, demo_texts(language), VocabularySettings(pieces=300, min_count=2))
    return TextEncoder.of(base.family, base.base, learnt.grown, language)


def stock_ids(name: str) -> Iterator[tuple[str, list[int]]]:
    """What the stock wrapper hands to the tokenizer file, as far as it is recorded, and the ids that come out."""
    for line in shared(PUBLISHED[name].sentences).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if PUBLISHED[name].family == "indextts2":
            yield entry["pretokenized"], entry["ids"]
        else:
            yield opened(name).front.prepare(entry["text"], entry["language"]), entry["ids"]


@every_file
def test_a_published_tokenizer_is_opened_as_what_it_is(name: str) -> None:
    tokenizer = opened(name).base
    assert (tokenizer.kind, tokenizer.size, tokenizer.gaps) == (PUBLISHED[name].kind, PUBLISHED[name].size, ())
    for piece, at in get_family(PUBLISHED[name].family).special_ids.items():
        assert tokenizer.ids[piece] == at


@pytest.mark.long(fast="am-indextts2")
@every_file
@every_language
def test_the_stock_wrappers_ids_are_the_same_after_growth(name: str, language: str) -> None:
    text_encoder = grown(name, language)
    assert text_encoder.grown is not None
    compared = 0
    for prepared, ids in stock_ids(name):
        if text_encoder.base.encode(prepared) != ids:
            continue  # Chinese and Japanese need tables that are not recorded
        compared += 1
        if text_encoder.base.unknown_id not in ids:
            assert text_encoder.grown.encode(prepared) == ids
    assert compared > 150


@pytest.mark.long(fast=("am-chatterbox", "am-indextts2"))
@every_file
@every_language
def test_promise_1_holds_and_the_new_language_is_spelled_in_full(name: str, language: str) -> None:
    text_encoder = grown(name, language)
    assert text_encoder.grown is not None
    new = text_encoder.new_text(demo_texts(language).sentences)
    corpus = islice(load_proof_corpus(), 0, None, 3)
    proof = prove.prove_tokenizer(text_encoder.base, text_encoder.grown, corpus, text_encoder.prepare_base, new)
    assert proof.counts.changed == 0
    assert proof.counts.same > 600
    assert not [character for character in proof.unknown_characters if is_letter(character)]
    assert proof.unreachable == ()
    assert proof.holds


@every_language
def test_on_the_published_chatterbox_only_new_scripts_need_pieces(language: str) -> None:
    """Swahili and Vietnamese have their tags already, Yoruba needs its tag alone."""
    text_encoder = grown("chatterbox", language)
    assert text_encoder.grown is not None
    rows = text_encoder.grown.size - text_encoder.base.size
    expected = {"sw": 0, "vi": 0, "yo": 1}
    assert rows == expected.get(language, rows)
    assert rows > 400 or language in expected


def test_swahili_adds_nothing_to_the_published_indextts2() -> None:
    text_encoder = grown("indextts2", "sw")
    assert text_encoder.grown is not None
    assert text_encoder.grown.size == text_encoder.base.size


@pytest.mark.long(fast="chatterbox")
@every_file
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(data=st.data())
def test_no_string_moves_an_id_of_a_published_tokenizer(name: str, data: st.DataObject) -> None:
    text_encoder = grown(name, data.draw(st.sampled_from(["am", "vi", "yo"])))
    assert text_encoder.grown is not None
    pieces = sorted(piece for piece in text_encoder.base.pieces if piece is not None)
    new = [piece for piece in text_encoder.grown.pieces[text_encoder.base.size :] if piece is not None] or SCRIPTS
    pools = (pieces, new, MARKS, SPACES, INVISIBLE, TAGS, SYMBOLS, DIGITS, COMPOSED, SCRIPTS)
    piece = st.one_of(*map(st.sampled_from, pools), st.text(max_size=3))
    text = data.draw(st.lists(piece, max_size=14).map("".join))
    check(text_encoder.base, text_encoder.grown, text, text_encoder.tag)
    check(text_encoder.base, text_encoder.grown, text.replace("▁", " ").upper(), text_encoder.tag)
    check(text_encoder.base, text_encoder.grown, text_encoder.prepare_base(text, "en"), text_encoder.tag)
