"""Promise 1 under attack: strings made to move old ids, and texts made to teach a piece that cannot occur."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as schema

from tests.support.tokenizers import KINDS, base, community_merge, demo_texts, grown
from voxgraft.config.run import VocabularySettings
from voxgraft.tokenizers import Tokenizer, TokenizerAdditions, load_proof_corpus, parse_tokenizer, prove
from voxgraft.tokenizers.train import learn_additions

MARKS = [chr(code) for code in (0x300, 0x301, 0x302, 0x303, 0x304, 0x306, 0x309, 0x31B, 0x323, 0x328, 0x345, 0x17D2)]
SPACES = [" ", "  ", "\t", "\n", "\u00a0", "\u2003", "\u202f", "\u3000", "\u1680", "\u2028", "▁", "[SPACE]"]
INVISIBLE = [
    chr(code) for code in (0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202B, 0x2066, 0x2069, 0xFEFF, 0xFE0F)
]
TAGS = [
    "[en]",
    "[am]",
    "[AM]",
    "[",
    "]",
    "[[am]]",
    "[a",
    "m]",
    "[vi]",
    "[UNK]",
    "<unk>",
    "<s>",
    "</s>",
    "[ZH]",
    "▁[EN]",
]
SYMBOLS = list("&→★€@#*/%+=<>|~^_\\°×😅①½™ﬁ")
DIGITS = list("0123456789٣۴፩៣५")
COMPOSED = [
    "é",
    "e\u0301",
    "ệ",
    "e\u0323\u0302",
    "e\u0302\u0323",
    "ẹ́",
    "Ẹ\u0301",
    "한",
    "\u1112\u1161\u11ab",
    "İ",
    "ß",
    "ﷺ",
]
SCRIPTS = list("aZéñßабΩωשﭏعمहิ你好かカ한ሰላምកាខơƯŋɓẹṣ")
every_kind = pytest.mark.parametrize("kind", KINDS)
unhurried = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class OldTextMovedError(AssertionError):
    """The extended tokenizer broke promise 1."""


def check_old_text_reads_the_same(before: Tokenizer, after: Tokenizer, prepared: str, tag: str | None) -> None:
    """What the base spells without unknowns keeps its ids; text without any new character keeps them in any case."""
    if tag is not None and tag in prepared:
        return
    old, new = before.encode(prepared), after.encode(prepared)
    if before.unknown_id not in old and old != new:
        raise OldTextMovedError(f"{prepared!r}: {old} became {new}")
    added = (piece for piece in after.pieces[before.size :] if piece is not None and piece != tag)
    if (frozenset("".join(added)) - before.characters).isdisjoint(before.normalise(prepared)) and old != new:
        raise OldTextMovedError(f"{prepared!r} holds nothing new: {old} became {new}")


@cache
def attacks(kind: str, language: str) -> st.SearchStrategy[str]:
    """Strings over everything that a base and a new language have, and over what neither has."""
    made = grown(kind, language)
    old_words = sorted({piece for piece in made.base.pieces if piece is not None})
    words = [word for _, text in islice(load_proof_corpus(), 0, None, 200) for word in text.split()]
    new_words = [word for text in made.texts.sentences[:40] for word in text.split()]
    pools = [sorted(made.base.characters), old_words, words, [*map(str.upper, words)], new_words]
    pools += [
        sorted(made.new_characters) or SCRIPTS,
        MARKS,
        SPACES,
        INVISIBLE,
        TAGS,
        SYMBOLS,
        DIGITS,
        COMPOSED,
        SCRIPTS,
    ]
    piece = st.one_of(*map(st.sampled_from, pools), st.text(max_size=3))
    return st.lists(piece, max_size=14).map("".join)


@pytest.mark.long(fast=("am-*", "yo-bpe-json"))
@every_kind
@pytest.mark.parametrize("language", ["am", "km", "vi", "yo"])
@unhurried
@given(data=st.data())
def test_no_string_moves_an_old_id(kind: str, language: str, data: st.DataObject) -> None:
    made = grown(kind, language)
    text = data.draw(attacks(kind, language))
    tag = made.text_encoder.tag
    check_old_text_reads_the_same(made.base, made.tokenizer, text, tag)
    for form in ("NFC", "NFD", "NFKD"):
        check_old_text_reads_the_same(made.base, made.tokenizer, unicodedata.normalize(form, text), tag)
    check_old_text_reads_the_same(made.base, made.tokenizer, made.text_encoder.prepare_base(text, "en"), tag)


@every_kind
@unhurried
@given(data=st.data())
def test_text_of_a_base_language_never_meets_a_new_id(kind: str, data: st.DataObject) -> None:
    made = grown(kind, "vi")
    text = data.draw(attacks(kind, "vi"))
    ids = made.text_encoder.encode(text, "en")
    assert ids == made.base.encode(made.text_encoder.prepare_base(text, "en"))
    assert all(token < made.base.size for token in ids)


@unhurried
@given(data=st.data())
def test_the_new_tag_stands_once_at_the_front_whatever_a_user_types(data: st.DataObject) -> None:
    made = grown("bpe-json", "am")
    ids = made.text_encoder.encode(data.draw(attacks("bpe-json", "am")), "am")
    tag = made.tokenizer.ids["[am]"]
    assert ids[0] == tag
    assert ids.count(tag) == 1


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("candidate", ["bpe", "unigram"])
def test_a_merge_made_the_community_way_fails_the_same_check(kind: str, candidate: Any) -> None:
    text_encoder = base(kind)
    english = [text_encoder.prepare_base(text, "en") for code, text in load_proof_corpus() if code == "en"]
    mixed = [*map(text_encoder.prepare, demo_texts("am").sentences), *english[:200]]
    data = community_merge(text_encoder.base, mixed, text_encoder.base.size + 500, candidate)
    after = parse_tokenizer(data, Path("community.model"))

    def check_all() -> None:
        for text in english:
            check_old_text_reads_the_same(text_encoder.base, after, text, None)

    with pytest.raises(OldTextMovedError):
        check_all()


# ---- small bases and small corpora, made at random -------------------------------------------------------------

OLD = "ABCDEFGHIJK"
"""Letters of every random base; as many as make a script count as known."""
COMMON = "ABC"
NEW_LETTERS = {"qqq": "ÉŊØ", "am": "ሀለሐ"}
"""By language: one that CLDR does not know, in the base's own script, and one in a script that the base lacks."""


@st.composite
def sentencepiece_bases(draw: st.DrawFn, model_type: int) -> Tokenizer:
    """Pieces and scores that no training would give: parts may be missing, orders are any."""
    texts = st.text("▁" + COMMON, min_size=2, max_size=4).filter(lambda text: "▁" not in text[1:])
    model = schema.ModelProto()
    for name, piece_type in (("<s>", 3), ("</s>", 3), ("<unk>", 2)):
        model.pieces.add(piece=name, score=0.0, type=piece_type)
    lost = draw(st.sampled_from(["", "", "A", "B"]))  # a letter that has no piece of its own, only inside others
    learnt = [*draw(st.lists(texts, max_size=12, unique=True)), *([f"C{lost}D"] if lost else [])]
    scores = draw(st.lists(st.integers(-40, -1), min_size=len(learnt), max_size=len(learnt), unique=model_type == 2))
    defined = set(draw(st.lists(st.sampled_from(learnt), max_size=2))) if learnt else set()
    for text, score in zip(learnt, scores, strict=True):
        model.pieces.add(piece=text, score=score / 4, type=4 if text in defined else 1)
    for character in ("▁" + OLD).replace(lost or "-", ""):
        model.pieces.add(piece=character, score=-11 - draw(st.integers(0, 3)), type=1)
    model.trainer_spec.model_type = model_type
    model.trainer_spec.vocab_size = len(model.pieces)
    model.trainer_spec.bos_id, model.trainer_spec.eos_id, model.trainer_spec.unk_id = 0, 1, 2
    model.trainer_spec.pad_id = -1
    model.normalizer_spec.name = "identity"
    return parse_tokenizer(model.SerializeToString(), Path("random.model"))


@st.composite
def bpe_json_bases(draw: st.DrawFn) -> Tokenizer:
    pieces, merges = list(OLD), []
    for _ in range(draw(st.integers(0, 10))):
        left, right = (draw(st.sampled_from([piece for piece in pieces if set(piece) <= set(COMMON)])) for _ in "lr")
        if len(left + right) <= 5 and [left, right] not in merges:
            merges.append([left, right])
            pieces += [left + right] if left + right not in pieces else []
    vocabulary = {piece: at for at, piece in enumerate(["[STOP]", "[UNK]", "[SPACE]", *pieces])}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    document = {
        "added_tokens": [{"id": at, "content": piece, **flags} for piece, at in islice(vocabulary.items(), 3)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "model": {"type": "BPE", "unk_token": "[UNK]", "fuse_unk": False, "vocab": vocabulary, "merges": merges},
    }
    return parse_tokenizer(json.dumps(document).encode(), Path("random.json"))


BASES = {
    "bpe-json": bpe_json_bases(),
    "sentencepiece-unigram": sentencepiece_bases(1),
    "sentencepiece-bpe": sentencepiece_bases(2),
}


@pytest.mark.long(fast=("am-bpe-json", "qqq-sentencepiece-unigram"))
@every_kind
@pytest.mark.parametrize("language", NEW_LETTERS)
@settings(unhurried, max_examples=60)
@given(data=st.data())
def test_no_corpus_teaches_a_piece_that_is_dead_or_old(kind: str, language: str, data: st.DataObject) -> None:
    before = data.draw(BASES[kind])
    new = NEW_LETTERS[language]
    words = st.text(COMMON + new + "&", min_size=1, max_size=7)
    distinct = data.draw(st.lists(words, min_size=1, max_size=12))
    sentences = data.draw(st.lists(st.lists(st.sampled_from(distinct), max_size=8).map(" ".join), max_size=12))
    header = TokenizerAdditions("any", language, before.kind, before.sha256, None, ())
    learnt = learn_additions(before, str, sentences, header, VocabularySettings(pieces=30, min_count=2))
    after, additions = learnt.grown, learnt.additions
    assert after.gaps == ()
    assert len(set(after.pieces)) == after.size
    assert all(set(piece.text) - before.characters for piece in additions.pieces)
    nothing = prove.NewLanguageText((), str, None)
    assert prove.find_unreachable_pieces(before, after, nothing) == ()
    spelled = {token for text in sentences for token in after.encode(text)}
    if kind == "sentencepiece-unigram":
        assert {after.ids[piece.text] for piece in additions.merges} <= spelled
    unknown = set("".join(map(after.unknown_text, sentences)))
    assert unknown.isdisjoint(new)
    assert unknown == set(learnt.plan.left_unknown) or kind == "sentencepiece-unigram"
    for text in data.draw(st.lists(st.text(OLD + COMMON * 9 + " &" + new, max_size=12), max_size=8)):
        check_old_text_reads_the_same(before, after, text, None)
