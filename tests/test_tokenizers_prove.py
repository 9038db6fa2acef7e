"""`prove` judges merges that others made: named, with the verdict, the first differing sentence and the way out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.tokenizers import KINDS, base, community_merge, demo_texts, flat_map, grown
from voxgraft.config.commands import TokenizerProveSettings
from voxgraft.core.errors import ConfigError, TextError, TokenizerError
from voxgraft.core.results import plain_text
from voxgraft.graft.command import tokenizer_prove
from voxgraft.tokenizers import TokenizerAdditions, load_proof_corpus, open_tokenizer
from voxgraft.tokenizers.prove import NewLanguageText, TokenizerProof, prove_tokenizer

SENTENCEPIECE = KINDS[1:]


def judge(folder: Path, kind: str, made: bytes, sentences: Sequence[str], language: str = "am") -> TokenizerProof:
    (folder / "base").write_bytes(base(kind).base.data)
    (folder / "made").write_bytes(made)
    (folder / "texts").write_text("\n".join(sentences), encoding="utf-8")
    return tokenizer_prove(
        TokenizerProveSettings(
            base=folder / "base",
            extended=folder / "made",
            family=base(kind).family.name,
            language=language,
            texts=(folder / "texts",),
        )
    )


def codes(result: TokenizerProof) -> set[str]:
    return {finding.code for finding in result.findings if finding.level == "error"}


def shown(result: TokenizerProof) -> str:
    return "\n".join(plain_text(line) if not hasattr(line, "rows") else "" for line in result.lines())


@pytest.mark.long
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_a_community_merge_of_new_text_alone_leaves_letters_unknown(kind: str, tmp_path: Path) -> None:
    """The first N of 2N pieces: the single characters stand last in a BPE candidate, and are lost."""
    sentences = demo_texts("am").sentences
    result = judge(tmp_path, kind, community_merge(base(kind).base, sentences, base(kind).base.size + 400), sentences)
    assert result.exit_code == 1
    assert "proof-unknown-letters" in codes(result)
    assert result.after is not None
    assert result.after.unknown_share > 0.05


@pytest.mark.long(fast="sentencepiece-bpe")
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_a_community_merge_of_mixed_text_moves_old_text_and_the_first_sentence_is_shown(
    kind: str, tmp_path: Path
) -> None:
    english = [text.upper() for code, text in load_proof_corpus() if code == "en"][:200]
    sentences = demo_texts("am").sentences
    made = community_merge(base(kind).base, [*sentences, *english], base(kind).base.size + 600, "unigram")
    result = judge(tmp_path, kind, made, sentences)
    change = result.first_change
    assert result.exit_code == 1
    assert "proof-changed" in codes(result)
    assert result.counts.changed > 0
    assert change is not None
    assert repr(change["text"]) in shown(result)
    assert " became " in shown(result)
    assert "old text is encoded as before: NO" in shown(result)


@pytest.mark.long
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_a_community_merge_of_raw_latin_text_has_pieces_that_can_never_occur(kind: str, tmp_path: Path) -> None:
    """The front writes capitals, the candidate learned small letters."""
    sentences = demo_texts("vi").sentences
    made = community_merge(base(kind).base, sentences, base(kind).base.size + 300)
    result = judge(tmp_path, kind, made, sentences, "vi")
    assert result.exit_code == 1
    assert {"proof-unreachable", "proof-unknown-letters"} <= codes(result)
    assert len(result.unreachable) > 150


def test_a_flat_map_is_named_with_the_command_that_rebuilds_it(tmp_path: Path) -> None:
    sentences = demo_texts("am").sentences
    result = judge(tmp_path, "bpe-json", flat_map(base("bpe-json").base, sentences), sentences)
    assert result.exit_code == 1
    assert {"tokenizer-flat-map", "proof-changed", "tag-splits"} <= codes(result)
    assert result.first_change is not None
    named = next(finding for finding in result.findings if finding.code == "tokenizer-flat-map")
    assert "flat map" in named.found
    assert "voxgraft tokenizer train --base BASE --language CODE" in named.cure
    assert "voxgraft tokenizer merge --base BASE" in named.cure
    assert named.cure in shown(result)


def test_a_flat_map_with_a_hole_in_its_ids_is_reported_so(tmp_path: Path) -> None:
    """Counting its entries gives fewer rows than its highest id needs."""
    made = flat_map(base("bpe-json").base, ("ሰላም",), first=base("bpe-json").base.size + 80)
    result = judge(tmp_path, "bpe-json", made, ("ሰላም",))
    assert "tokenizer-gaps" in codes(result)
    gaps = next(finding for finding in result.findings if finding.code == "tokenizer-gaps")
    assert gaps.found.startswith("80 ids have no token")


def test_a_moved_special_id_is_an_error(tmp_path: Path) -> None:
    document = json.loads(base("bpe-json").base.data)
    vocabulary = document["model"]["vocab"]
    vocabulary["[START]"], other = len(vocabulary), vocabulary["[START]"]
    vocabulary["ሰ"] = other
    for token in document["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    result = judge(tmp_path, "bpe-json", json.dumps(document).encode(), ("ሰ ሰ",))
    assert "tokenizer-not-grown" in codes(result)
    moved = next(finding for finding in result.findings if finding.code == "tokenizer-not-grown")
    assert "id 255 was '[START]' and is now 'ሰ'" in moved.found


def test_a_tag_that_is_only_a_piece_is_reported_to_split(tmp_path: Path) -> None:
    document = json.loads(base("bpe-json").base.data)
    document["model"]["vocab"]["[am]"] = len(document["model"]["vocab"])
    result = judge(tmp_path, "bpe-json", json.dumps(document).encode(), ("hello.",))
    assert "tag-splits" in codes(result)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_changed_scores_of_base_pieces_are_an_error_even_where_no_sentence_shows_it(kind: str, tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2 as schema

    model = schema.ModelProto.FromString(base(kind).base.data)
    model.pieces[-1].score -= 0.5
    result = judge(tmp_path, kind, model.SerializeToString(), ("HELLO.",))
    assert "tokenizer-not-grown" in codes(result)


def test_a_tokenizer_of_another_kind_is_reported_so(tmp_path: Path) -> None:
    made = grown("sentencepiece-unigram", "am")
    result = judge(tmp_path, "sentencepiece-bpe", made.tokenizer.data, ("ሰላም",))
    assert "tokenizer-kind" in codes(result)
    assert not result.old_text_same


@pytest.mark.long(fast="bpe-json")
@pytest.mark.parametrize("kind", KINDS)
def test_our_own_merge_has_no_finding_at_all(kind: str, tmp_path: Path) -> None:
    made = grown(kind, "am")
    result = judge(tmp_path, kind, made.tokenizer.data, made.texts.sentences)
    assert result.exit_code == 0
    assert result.findings == ()


def test_the_command_line_says_so_too_and_ends_with_status_1(tmp_path: Path) -> None:
    sentences = demo_texts("am").sentences
    (tmp_path / "base.json").write_bytes(base("bpe-json").base.data)
    (tmp_path / "Am_tokenizer_merged.json").write_bytes(flat_map(base("bpe-json").base, sentences))
    command = [sys.executable, "-m", "voxgraft", "tokenizer", "prove", "--family", "chatterbox", "--language", "am"]
    command += ["--base", "base.json", "--extended", "Am_tokenizer_merged.json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=120)
    assert ended.returncode == 1, ended.stderr
    assert "tokenizer-flat-map" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_additions_whose_merge_spells_another_piece_are_refused(tmp_path: Path) -> None:
    """Such a merge would join base pieces, and old text would move."""
    made = grown("bpe-json", "am")
    path = tmp_path / "additions.json"
    made.learned.additions.save(path)
    assert TokenizerAdditions.load(path) == made.learned.additions
    document = json.loads(path.read_text(encoding="utf-8"))
    document["pieces"][-1]["parts"] = ["t", "h"]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(TokenizerError) as refused:
        TokenizerAdditions.load(path)
    assert refused.value.code == "additions-broken"


def test_sentences_that_the_original_program_refuses_are_named_and_not_counted(tmp_path: Path) -> None:
    own = base(KINDS[0]).base
    (tmp_path / "made").write_bytes(own.data)
    made = open_tokenizer(tmp_path / "made")

    def front(text: str, language: str | None) -> str:
        if language == "hi":
            raise TextError("text-unread", f"the number in {text}")
        if language == "ja":
            raise ConfigError("package-missing", "a package is not installed")
        return text

    corpus = [("en", "hello"), ("hi", "5"), ("hi", "6"), ("ja", "x")]
    proof = prove_tokenizer(own, made, corpus, front, NewLanguageText((), str, None))
    assert (proof.counts.total, proof.counts.unread) == (1, 3)
    assert {code: counts.unread for code, counts in proof.by_language.items()} == {"en": 0, "hi": 2, "ja": 1}
    assert [item.found for item in proof.findings if item.code == "proof-unread"] == [
        "hi: the number in 5",
        "ja: a package is not installed",
    ]
    assert proof.old_text_same

    def broken(_text: str, _language: str | None) -> str:
        raise TextError("text-span", "an error of another kind")

    with pytest.raises(TextError):
        prove_tokenizer(own, made, corpus, broken, NewLanguageText((), str, None))
