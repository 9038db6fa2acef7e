"""How merges are learned: what may join, in which order, and that every one can occur."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest

from tests.support.tokenizers import LANGUAGES, grown
from voxgraft.tokenizers.formats import SentencePieceUnigramTokenizer
from voxgraft.tokenizers.train import MergeRules, learn_merges

NEW = frozenset("ሀለሐመ")
Units = Mapping[tuple[str, ...], int]


def rules(num_pieces: int = 100, min_count: int = 2, max_characters: int = 12) -> MergeRules:
    return MergeRules(NEW, num_pieces, min_count, max_characters)


def learnt(units: Units, limits: MergeRules | None = None) -> list[str]:
    return [piece.text for piece in learn_merges(units, limits or rules())]


def test_the_most_frequent_pair_comes_first_and_ties_go_by_code_point() -> None:
    units: Units = {("ሀ", "ለ"): 3, ("ሐ", "መ"): 9, ("ሀ", "መ"): 3}
    assert learnt(units) == ["ሐመ", "ሀለ", "ሀመ"]


def test_counts_follow_the_merges_before_them() -> None:
    """After ሀለ is taken, ለሐ is only where no ሀ is before it: twice, and not seven times."""
    units = {("ሀ", "ለ", "ሐ"): 5, ("ለ", "ሐ"): 2, ("ሀ", "ለ"): 3}
    pieces = {piece.text: piece.count for piece in learn_merges(units, rules())}
    assert pieces == {"ሀለ": 8, "ሀለሐ": 5, "ለሐ": 2}


def test_a_run_of_one_letter_is_joined_from_the_left() -> None:
    pieces = learn_merges({("ሀ",) * 5: 4}, rules())
    assert [(piece.text, piece.parts, piece.count) for piece in pieces] == [
        ("ሀሀ", ("ሀ", "ሀ"), 16),
        ("ሀሀሀ", ("ሀሀ", "ሀ"), 4),
        ("ሀሀሀሀሀ", ("ሀሀ", "ሀሀሀ"), 4),
    ]


def test_a_text_that_was_spelled_in_two_ways_becomes_one_piece() -> None:
    """A unigram model may spell AB whole in one word and in parts in another."""
    units = {("ሀ", "ለሐ"): 5, ("ሀ", "ለ", "ሐ"): 4}
    pieces = learnt(units)
    assert sorted(pieces) == sorted(set(pieces))
    assert "ሀለሐ" in pieces


@pytest.mark.parametrize(
    "unit",
    [("a", "b"), ("ሀ", "."), ("ሀ", "1"), ("ሀ", "b"), ("▁", "a"), ("ሀ", "&")],
    ids=["no new character", "punctuation", "digit", "two scripts", "only a space", "symbol"],
)
def test_what_is_no_part_of_one_word_in_one_script_is_never_joined(unit: tuple[str, ...]) -> None:
    assert learnt({unit: 100}) == []


@pytest.mark.parametrize("unit", [("▁", "ሀ"), ("ሀ", "\u200d"), ("ሀ", "\u0301")], ids=["space", "joiner", "mark"])
def test_a_space_before_a_word_joiners_and_marks_may_be_part_of_a_piece(unit: tuple[str, ...]) -> None:
    assert learnt({unit: 100}) == ["".join(unit)]


def test_limits_are_kept() -> None:
    units = {tuple("ሀለሐመሀለሐመ"): 9}
    assert len(learnt(units, rules(num_pieces=2))) == 2
    assert max(map(len, learnt(units, rules(max_characters=3)))) <= 3
    assert learnt(units, rules(min_count=100)) == []
    assert learnt(units, rules(num_pieces=0)) == []


def test_a_piece_is_joined_from_pieces_that_came_before_it() -> None:
    made = grown("bpe-json", "am")
    known = {piece for piece in made.base.pieces if piece is not None}
    for piece in made.learned.additions.pieces:
        assert piece.parts is None or set(piece.parts) <= known
        known.add(piece.text)


# Characters, merges, and a hash of the merges with their parts and counts. Last, for unigram models, the sum of scores.
PINNED = {
    "bpe-json-am": (481, 300, "122bb8ad", 0),
    "bpe-json-vi": (4, 300, "dcde2024", 0),
    "bpe-json-km": (146, 300, "8d67587c", 0),
    "sentencepiece-unigram-am": (481, 300, "93f36005", -2021.18),
    "sentencepiece-unigram-vi": (67, 250, "cc1c441e", -1697.96),
    "sentencepiece-unigram-km": (142, 300, "9f12fca7", -1917.79),
    "sentencepiece-bpe-am": (481, 300, "2328eb7d", 0),
    "sentencepiece-bpe-vi": (67, 300, "9251e2e5", 0),
    "sentencepiece-bpe-km": (142, 300, "b4493881", 0),
}


@pytest.mark.parametrize("case", PINNED)
def test_the_same_texts_give_the_same_pieces_in_all_releases(case: str) -> None:
    """A graft that is made again must have the rows of the one before. A change here is a change for every user."""
    pieces = grown(*case.rsplit("-", 1)).learned.additions.pieces
    merges = [piece for piece in pieces if piece.parts is not None]
    lines = "\n".join(f"{piece.text} {piece.parts} {piece.count}" for piece in merges)
    digest = hashlib.sha256(lines.encode()).hexdigest()[:8]
    num_characters, num_merges, pinned_digest, scores = PINNED[case]
    assert (len(pieces) - len(merges), len(merges), digest) == (num_characters, num_merges, pinned_digest)
    assert sum(piece.score or 0 for piece in merges) == pytest.approx(scores, abs=0.01)


@pytest.mark.parametrize("language", LANGUAGES)
def test_new_scores_on_a_unigram_model_stay_between_the_lowest_and_the_highest_of_the_base(language: str) -> None:
    """The costs of an unknown character and of a user-defined piece hang on these two, for base text too."""
    made = grown("sentencepiece-unigram", language)
    base, after = made.base, made.tokenizer
    assert isinstance(base, SentencePieceUnigramTokenizer)
    assert isinstance(after, SentencePieceUnigramTokenizer)
    assert after.scores[: base.size] == base.scores
    assert (after.lowest_score, after.highest_score) == (base.lowest_score, base.highest_score)
