"""Tokenizer files are read as they are written, refused by name where they are not sound, and grown at their end only."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2 as schema

from voxgraft.core.errors import TokenizerError, VoxgraftError
from voxgraft.tokenizers import NewPiece, TokenizerAdditions, TokenizerKind, parse_tokenizer
from voxgraft.tokenizers.formats import SentencePieceTokenizer

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
DOCUMENT: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": 4, "content": "[en]", **FLAGS}, {"id": 5, "content": "[en-gb]", **FLAGS}],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": "[UNK]",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {"[UNK]": 0, "a": 1, "b": 2, "ab": 3},
        "merges": ["a b"],
    },
}
PIECES = (NewPiece("ሀ"), NewPiece("ለ"), NewPiece("ሀለ", ("ሀ", "ለ"), 5))


def additions(kind: TokenizerKind, pieces: tuple[NewPiece, ...] = PIECES, tag: str | None = None) -> TokenizerAdditions:
    return TokenizerAdditions(family="-", language="am", kind=kind, base_sha256="", tag=tag, pieces=pieces)


def parsed(document: Any) -> Any:
    return parse_tokenizer(json.dumps(document).encode(), Path("tokenizer.json"))


def error_of(data: bytes) -> TokenizerError:
    with pytest.raises(TokenizerError) as refused:
        parse_tokenizer(data, Path("tokenizer.json"))
    return refused.value


# ---- tokenizers JSON -------------------------------------------------------------------------------------------------


def test_a_json_tokenizer_spells_by_its_merges_its_added_tokens_and_its_unknown_piece() -> None:
    tokenizer = parsed(DOCUMENT)
    assert tokenizer.pieces == ("[UNK]", "a", "b", "ab", "[en]", "[en-gb]")
    assert (tokenizer.unknown_id, tokenizer.control_ids) == (0, {4, 5})
    assert tokenizer.encode("ab a [en]b x") == [3, 1, 4, 2, 0]
    assert tokenizer.unknown_text("ab x a") == "x"
    assert tokenizer.unknown_text("ab a") == ""
    assert tokenizer.normalise("a[en]b[en-gb]") == "a b "
    assert tokenizer.units("aab[en]a x b") == [("a", "ab"), ("a",), ("b",)]
    assert tokenizer.units("") == tokenizer.units("x") == []


def test_a_lost_unknown_piece_is_put_back_only_in_a_file_that_is_judged() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["model"]["unk_token"] = None

    def judged(**vocab: int) -> Any:
        document["model"]["vocab"] = {**vocab, "a": 1, "b": 2, "ab": 3}
        return parse_tokenizer(json.dumps(document).encode(), Path("tokenizer.json"), judged=True)

    found = judged(**{"[UNK]": 0, "<unk>": 9})
    assert (found.lost_unknown, found.unknown_id, found.encode("x")) == ("[UNK]", 0, [0])
    assert judged(**{"<unk>": 9}).lost_unknown == "<unk>"
    assert parse_tokenizer(json.dumps(DOCUMENT).encode(), Path("t.json"), judged=True).lost_unknown is None  # type: ignore[attr-defined]
    with pytest.raises(TokenizerError, match="unk_token null is not in the vocabulary"):
        judged(unknown=0)
    document["model"]["vocab"] = DOCUMENT["model"]["vocab"]
    assert error_of(json.dumps(document).encode()).code == "tokenizer-broken"
    document["model"]["vocab"] = None
    with pytest.raises(TokenizerError, match=r"model\.vocab is not a map"):
        parse_tokenizer(json.dumps(document).encode(), Path("tokenizer.json"), judged=True)


def test_a_vocabulary_with_gaps_is_read_with_its_gaps() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["model"]["vocab"] |= {"[en]": 4, "[en-gb]": 7}
    document["added_tokens"][1]["id"] = 7
    assert parsed(document).pieces == ("[UNK]", "a", "b", "ab", "[en]", None, None, "[en-gb]")


@pytest.mark.parametrize("merges", [["a b"], [["a", "b"]], []], ids=["texts", "pairs", "none"])
def test_growing_appends_the_tag_and_the_pieces_and_writes_merges_in_the_files_own_style(merges: list[Any]) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["model"]["merges"] = merges
    before = parsed(document)
    grown = json.loads(before.grown(additions("bpe-json", tag="[am]")))
    wanted = {"[UNK]": 0, "a": 1, "b": 2, "ab": 3, "[en]": 4, "[en-gb]": 5, "[am]": 6, "ሀ": 7, "ለ": 8, "ሀለ": 9}
    assert grown["model"]["vocab"] == wanted
    assert grown["added_tokens"][:2] == document["added_tokens"]
    assert grown["added_tokens"][2] == {"id": 6, "content": "[am]", **dict.fromkeys(FLAGS, False)}
    assert grown["model"]["merges"] == [*merges, ["ሀ", "ለ"] if merges and merges != ["a b"] else "ሀ ለ"]
    after = parsed(grown)
    assert after.encode("ሀለ[am] ab ሀ[en][en-gb]") == [9, 6, *before.encode("ab"), 7, 4, 5]
    untagged = json.loads(before.grown(additions("bpe-json")))
    assert untagged["model"]["vocab"]["ሀ"] == 6
    assert untagged["added_tokens"] == document["added_tokens"]


def test_a_token_is_shown_by_its_piece_or_else_by_its_number() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["model"]["vocab"] |= {"[en]": 4, "[en-gb]": 7}
    document["added_tokens"][1]["id"] = 7
    tokenizer = parsed(document)
    assert [tokenizer.shown(at) for at in (-1, 0, 3, 5, 7, 8)] == ["<-1>", "[UNK]", "ab", "<5>", "[en-gb]", "<8>"]
    assert (tokenizer.size, tokenizer.gaps, tokenizer.ids["[en-gb]"]) == (8, (5, 6), 7)
    assert tokenizer.characters == set("[UNK]ab")
    found = [tokenizer.has_control_token(tag) for tag in ("[en]", "[am]", "ab", "[UNK]")]
    assert found == [True, False, False, False]
    document["added_tokens"][0]["id"], document["model"]["vocab"]["c"] = 1, 4
    del document["model"]["vocab"]["a"]
    document["model"].update(merges=[], vocab={"[UNK]": 0, "[en]": 1, "b": 2, "[en-gb]": 7})
    assert not parsed(document).has_control_token("[am]"), "no tag has the id of another"


def test_additions_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "additions.json"
    scored = NewPiece("ሐመ", ("ሐ", "መ"), 7, -3.25)
    for tag, count in (("[am]", 5), (None, 4)):
        made = TokenizerAdditions("tiny", "am", "bpe-json", "0" * 64, tag, (*PIECES, scored))
        assert len(made) == count
        assert (made.characters, made.merges) == (PIECES[:2], (PIECES[2], scored))
        made.save(path, overwrite=tag is None)
        assert TokenizerAdditions.load(path) == made
    with pytest.raises(VoxgraftError) as refused:
        made.save(path)
    assert refused.value.code == "file-exists"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "voxgraft-additions-2"},
        {"pieces": [{"text": "ሀለ", "parts": ["ሀ", "ሐ"], "count": 1, "score": None}]},
        {"pieces": [{"text": "ሀለመ", "parts": ["ሀ", "ለ", "መ"], "count": 1, "score": None}]},
        {"pieces": [{"text": "", "parts": None, "count": 1, "score": None}]},
        {"pieces": [{"text": 3, "parts": None, "count": 1, "score": None}]},
        {"pieces": [{"text": "ሀ", "parts": None, "count": "many", "score": None}]},
        {"pieces": [{"text": "ሀ", "count": 1, "score": None}]},
        {"pieces": None},
        {"tag": ""},
        {"tag": 4},
        {"base_sha256": ""},
        {"language": None},
    ],
    ids=lambda change: json.dumps(change)[:50],
)
def test_additions_that_voxgraft_did_not_write_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    made = TokenizerAdditions("tiny", "am", "bpe-json", "0" * 64, "[am]", PIECES)
    path = tmp_path / "additions.json"
    path.write_text(json.dumps(made.to_json()))
    assert TokenizerAdditions.load(path) == made
    for value in ({**made.to_json(), **change}, [made.to_json()]):
        path.write_text(json.dumps(value))
        with pytest.raises(TokenizerError) as refused:
            TokenizerAdditions.load(path)
        assert refused.value.code == "additions-broken"


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        inner: Any = document
        for name in folders:
            inner = inner[int(name)] if isinstance(inner, list) else inner[name]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "code", "found"),
    [
        (changed("normalizer", {"type": "NFC"}), "tokenizer-unsupported", "normalizer is"),
        (changed("pre_tokenizer", None), "tokenizer-unsupported", "pre_tokenizer is null"),
        (changed("post_processor", {"type": "X"}), "tokenizer-unsupported", "post_processor is"),
        (changed("truncation", {}), "tokenizer-unsupported", "truncation is"),
        (changed("padding", {}), "tokenizer-unsupported", "padding is"),
        (changed("model/type", "WordPiece"), "tokenizer-unsupported", "model.type is"),
        (changed("model/dropout", 0.1), "tokenizer-unsupported", "model.dropout is 0.1"),
        (changed("model/dropout", 1), "tokenizer-unsupported", "model.dropout is 1"),
        (changed("model/continuing_subword_prefix", "##"), "tokenizer-unsupported", "continuing_subword_prefix"),
        (changed("model/end_of_word_suffix", "</w>"), "tokenizer-unsupported", "end_of_word_suffix"),
        (changed("model/byte_fallback", True), "tokenizer-unsupported", "byte_fallback is true"),
        (changed("model/ignore_merges", True), "tokenizer-unsupported", "ignore_merges is true"),
        (changed("model/vocab", {}), "tokenizer-broken", "model.vocab is not a map"),
        (changed("model/vocab", ["a"]), "tokenizer-broken", "model.vocab is not a map"),
        (changed("model/vocab/a", -1), "tokenizer-broken", "token 'a' has id -1"),
        (changed("model/vocab/a", True), "tokenizer-broken", "token 'a' has id true"),
        (changed("model/vocab/a", 1_000_000), "tokenizer-broken", "token 'a' has id 1000000"),
        (changed("model/vocab/a", 2), "tokenizer-duplicate-id", "'a' and 'b' both have id 2"),
        (changed("model/unk_token", None), "tokenizer-broken", "unk_token null"),
        (changed("model/unk_token", "?"), "tokenizer-broken", 'unk_token "?"'),
        (changed("added_tokens", None), "tokenizer-broken", "added_tokens is not a list"),
        (changed("added_tokens/0/content", ""), "tokenizer-broken", "has no content"),
        (changed("added_tokens/0/content", ...), "tokenizer-broken", "has no content"),
        (changed("added_tokens/0/id", -4), "tokenizer-broken", "added token '[en]' has id -4"),
        (changed("added_tokens/0/lstrip", ...), "tokenizer-broken", "added token '[en]' lacks one of"),
        (changed("added_tokens/0/special", 1), "tokenizer-broken", "added token '[en]' lacks one of"),
        (changed("added_tokens/0/id", 5), "tokenizer-duplicate-id", "clashes"),
        (changed("added_tokens/0/id", 1), "tokenizer-duplicate-id", "clashes"),
        (changed("added_tokens/1/content", "[en]"), "tokenizer-duplicate-id", "clashes"),
        (changed("added_tokens/0/content", "a"), "tokenizer-duplicate-id", "added token 'a' with id 4 clashes"),
        (changed("model/merges", None), "tokenizer-broken", "model.merges is not a list"),
        (changed("model/merges", ["ab"]), "tokenizer-broken", "merge 0 is"),
        (changed("model/merges", ["a b", "a b c"]), "tokenizer-broken", "merge 1 is"),
        (changed("model/merges", [["a"]]), "tokenizer-broken", "merge 0 is"),
        (changed("model/merges", [["a", 2]]), "tokenizer-broken", "merge 0 is"),
        (changed("model/merges", ["b a"]), "tokenizer-broken", "merge 0 needs 'ba'"),
        (changed("model/merges", ["a b", ["a", "b"]]), "tokenizer-broken", "merges are written in two styles"),
    ],
)
def test_a_json_file_that_is_not_sound_is_refused_by_what_is_wrong(
    change: Callable[[dict[str, Any]], None], code: str, found: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    error = error_of(json.dumps(document).encode())
    assert (error.code, found in error.finding.found) == (code, True), error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("dropout", 0), ("dropout", 0.0), ("dropout", ...)],
        *[("continuing_subword_prefix", ""), ("end_of_word_suffix", "")],
        *[("byte_fallback", ...), ("ignore_merges", False), ("ignore_merges", None)],
    ],
)
def test_settings_that_change_no_spelling_are_taken(name: str, value: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    changed(f"model/{name}", value)(document)
    assert parsed(document).encode("ab a") == [3, 1]


def test_the_highest_id_and_a_token_that_is_also_in_the_vocabulary_are_taken() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["added_tokens"][1] = {"id": 999_999, "content": "[en-gb]", **FLAGS}
    document["model"]["vocab"] |= {"[en]": 4, "[en-gb]": 999_999}
    document["model"] |= {"dropout": 0.0, "end_of_word_suffix": "", "ignore_merges": False}
    tokenizer = parsed(document)
    assert tokenizer.size == 1_000_000
    assert tokenizer.encode("[en]ab") == [4, 3]


# ---- flat maps -------------------------------------------------------------------------------------------------------


def test_a_flat_map_is_spelled_character_by_character_and_cannot_grow() -> None:
    tokenizer = parsed({"<unk>": 2, "a": 0, "b": 3, "[en]": 4, "[]": 5})
    assert tokenizer.pieces == ("a", None, "<unk>", "b", "[en]", "[]")
    assert tokenizer.encode("abx") == [0, 3, 2]
    assert tokenizer.unknown_text("abx y") == "x y"
    assert tokenizer.control_ids == {2, 4}
    assert tokenizer.units("ab  a") == [("a", "b"), ("a",)]
    assert tokenizer.normalise("a b") == "a b"
    with pytest.raises(TokenizerError, match="tokenizer-flat-map"):
        tokenizer.grown(additions("flat-map"))
    assert parsed({"a": 0, "b": 1}).encode("x") == [1]


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"a": 0, "b": 0}, "tokenizer-duplicate-id"),
        ({"a": 0, "b": -1}, "tokenizer-broken"),
        ({"a": 0, "b": 1_000_000}, "tokenizer-broken"),
        ({"a": 0, "b": True}, "tokenizer-broken"),
    ],
)
def test_a_flat_map_with_impossible_ids_is_refused(document: dict[str, Any], code: str) -> None:
    assert error_of(json.dumps(document).encode()).code == code


# ---- SentencePiece ---------------------------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def model(kind: int = 1) -> Any:
    made: Any = schema.ModelProto()
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [
        ("▁", -3.5, NORMAL),
        ("a", -3.0, NORMAL),
        ("b", -3.0, NORMAL),
        ("▁a", -1.0, NORMAL),
        ("ab", -2.0, NORMAL),
    ]
    pieces += [("@", 0.0, USER_DEFINED)]
    for text, score, type_ in pieces:
        made.pieces.add(piece=text, score=score, type=type_)
    made.trainer_spec.model_type = kind
    made.trainer_spec.vocab_size = len(pieces)
    made.normalizer_spec.name = "identity"
    return made


def read(made: Any) -> SentencePieceTokenizer:
    tokenizer = parse_tokenizer(made.SerializeToString(), Path("bpe.model"))
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer


def test_a_sentencepiece_model_knows_its_ids_scores_and_which_pieces_stand_apart() -> None:
    tokenizer = read(model())
    assert (tokenizer.kind, read(model(2)).kind) == ("sentencepiece-unigram", "sentencepiece-bpe")
    assert (tokenizer.unknown_id, set(tokenizer.control_ids)) == (0, {0, 1, 2})
    assert (tokenizer.lowest_score, tokenizer.highest_score) == (-3.5, -1.0)
    assert tokenizer.encode("a b") == [6, 3, 5]
    assert tokenizer.encode_exact("ab") == [7]
    assert tokenizer.encode_exact("▁a") == [6]
    assert tokenizer.unknown_text("a x") == "x"
    assert tokenizer.unknown_text("a b") == ""
    assert tokenizer.normalise(" a  b ").strip() == "a b"
    assert tokenizer.units("a@b ab") == [("▁a",), ("b",), *tokenizer.units("ab")]


def test_words_are_spelled_one_by_one_unless_a_piece_or_the_prefix_says_otherwise() -> None:
    assert not read(model()).crosses_spaces
    across = model()
    across.pieces.add(piece="a▁b", score=-2.0, type=NORMAL)
    assert read(across).crosses_spaces
    bare = model()
    bare.normalizer_spec.add_dummy_prefix = False
    assert read(bare).crosses_spaces


def test_added_pieces_come_last_with_scores_that_move_nothing() -> None:
    pieces = tuple(NewPiece(text, score=score) for text, score in (("ሀ", None), ("ለ", -2.0), ("ሐ", 0.0), ("መ", -99.0)))
    for kind, scores in ((1, (-3.5, -2.0, -1.0, -3.5)), (2, (-5.0, -6.0, -7.0, -8.0))):
        before = read(model(kind))
        data = before.grown(additions(before.kind, pieces))
        after = parse_tokenizer(data, Path("bpe.model"))
        assert isinstance(after, SentencePieceTokenizer)
        assert after.pieces == (*before.pieces, "ሀ", "ለ", "ሐ", "መ")
        assert after.scores == (*before.scores, *scores)
        made: Any = schema.ModelProto.FromString(data)
        assert made.trainer_spec.vocab_size == len(after.pieces)
        assert {piece.type for piece in made.pieces[-4:]} == {NORMAL}


def charsmap(root: int, value: int, texts: bytes, num_units: int = 256) -> bytes:
    """A normalizer's table whose root has one value: unit 1, or by bit 9 of the root unit 256."""
    units = [0x8000_0000] * num_units  # a unit with the highest bit is a value
    units[0] = root
    units[root >> 10 << (8 if root & 1 << 9 else 0)] |= value
    table = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(table).to_bytes(4, "little") + table + texts


NEAR, FAR = 1 << 10 | 1 << 8, 1 << 10 | 1 << 9 | 1 << 8


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (charsmap(NEAR, 0, b"a\0"), ""),
        (charsmap(NEAR, 1, b"a\0"), ""),
        (charsmap(NEAR, 2, b"a\0"), "points outside its texts"),
        (charsmap(NEAR, 0, "é\0".encode()), ""),
        (charsmap(NEAR, 1, "é\0".encode()), "points outside its texts"),  # inside of a character
        (charsmap(NEAR, 2, "é\0".encode()), ""),
        (charsmap(FAR, 1, b"a\0", num_units=512), ""),
        (charsmap(FAR, 2, b"a\0", num_units=512), "points outside its texts"),
        (charsmap(FAR ^ 1 << 8, 2, b"a\0", num_units=512), ""),  # the root leads to no value
        (charsmap(FAR, 0, b"a\0", num_units=512)[: 4 + 2048] + b"a", "table is damaged"),
        (charsmap(NEAR, 0, b"a\0", num_units=512)[: 4 + 2048], "table is damaged"),
        ((1024).to_bytes(4, "little") + charsmap(FAR, 0, b"a\0", num_units=512)[4:], "points outside itself"),
        (charsmap(255 << 10 | 1 << 8, 0, b"a\0"), ""),
        (charsmap(NEAR, 0, b"a\xff\0"), "neither JSON nor a SentencePiece model"),  # a text that is not UTF-8
    ],
)
def test_a_normalizers_table_reaches_the_library_only_if_no_jump_leaves_it(table: bytes, found: str) -> None:
    made = model()
    made.normalizer_spec.precompiled_charsmap = table
    error = error_of(made.SerializeToString())  # the library has tests of its own, which none of these passes
    assert error.code == "tokenizer-broken"
    assert (found or "charsmap is invalid") in error.finding.found


def put(at: int, **values: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for name, value in values.items():
            setattr(made.pieces[at], name, value)

    return change


def spec(part: str, **values: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        for name, value in values.items():
            setattr(getattr(made, part), name, value)

    return change


def cut(count: int) -> Callable[[Any], None]:
    return lambda made: made.pieces.__delitem__(slice(count, None))


@pytest.mark.parametrize(
    ("change", "code", "found"),
    [
        (cut(2), "tokenizer-broken", "it has 2 pieces"),
        (spec("trainer_spec", model_type=3), "tokenizer-unsupported", "model type 3"),
        (spec("trainer_spec", byte_fallback=True), "tokenizer-unsupported", "byte fallback"),
        (put(8, type=BYTE), "tokenizer-unsupported", "byte fallback"),
        (spec("trainer_spec", treat_whitespace_as_suffix=True), "tokenizer-unsupported", "spaces are marked after"),
        (spec("normalizer_spec", escape_whitespaces=False), "tokenizer-unsupported", "spaces are marked after"),
        (put(5, piece=""), "tokenizer-broken", "piece 5"),
        (put(5, piece="b\x00"), "tokenizer-broken", "piece 5"),
        (put(5, piece="a"), "tokenizer-duplicate-id", "piece 'a'"),
        (put(5, score=float("nan")), "tokenizer-broken", "piece 5 has score nan"),
        (put(5, score=float("-inf")), "tokenizer-broken", "piece 5 has score"),
        (put(5, score=2e9), "tokenizer-broken", "piece 5 has score"),
        (put(0, type=NORMAL), "tokenizer-broken", "it has 0 unknown pieces"),
        (put(5, type=UNKNOWN), "tokenizer-broken", "it has 2 unknown pieces"),
        (spec("trainer_spec", bos_id=9), "tokenizer-broken", "bos has id 9"),
        (spec("trainer_spec", eos_id=4), "tokenizer-broken", "eos has id 4"),
        (spec("normalizer_spec", precompiled_charsmap=b"\x01\x02\x03"), "tokenizer-broken", "table is damaged"),
        (spec("normalizer_spec", precompiled_charsmap=bytes(4) + bytes(1024)), "tokenizer-broken", "table is damaged"),
        (
            spec("normalizer_spec", precompiled_charsmap=(1024).to_bytes(4, "little") + bytes(1024)),
            "tokenizer-broken",
            "table is damaged",
        ),
        (
            spec(
                "normalizer_spec",
                precompiled_charsmap=(1024).to_bytes(4, "little") + b"\xff\xff\xff\x7f" * 256 + b"a\0",
            ),
            "tokenizer-broken",
            "points outside itself",
        ),
    ],
)
def test_a_sentencepiece_model_that_is_not_sound_is_refused_by_what_is_wrong(
    change: Callable[[Any], None], code: str, found: str
) -> None:
    made = model()
    change(made)
    error = error_of(made.SerializeToString())
    assert (error.code, found in error.finding.found) == (code, True), error


def test_what_is_allowed_at_the_edge_is_read() -> None:
    made = model()
    made.trainer_spec.bos_id, made.trainer_spec.eos_id = -1, 2
    made.pieces[5].score = -1e9
    made.pieces[7].type = UNUSED
    assert read(made).pieces[5] == "b"


def test_tests_that_a_model_brings_along_are_not_run() -> None:
    made = model()
    made.self_test_data.samples.add(input="a", expected="would fail")
    assert read(made).encode("a") == read(model()).encode("a")


def test_bytes_that_are_no_tokenizer_are_refused() -> None:
    for data in (b"\xff\xff\xff", b"[1, 2]", b""):
        assert error_of(data).code in {"tokenizer-broken", "tokenizer-unsupported"}
