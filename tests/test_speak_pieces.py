"""Long text in pieces: at the sentence ends of the language, then at clause marks, then at spaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.synthesis.inputs import (
    estimate_speech_seconds,
    has_speakable_text,
    max_chunk_seconds,
    max_speech_seconds,
    split_into_chunks,
)

LONGEST, PAUSE = 4.0, 0.3


def texts_of(text: str, language: str = "en", longest: float = LONGEST) -> list[str]:
    return [piece for piece, _ in split_into_chunks(text, language, longest, PAUSE)]


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("am", "ሰላም ነው። እንዴት ነህ፧ ጥሩ፨ እሺ! አዎ፡፡ ደህና", ["ሰላም ነው።", "እንዴት ነህ፧", "ጥሩ፨", "እሺ!", "አዎ፡፡", "ደህና"]),
        ("am", "ሰላም።እሺ", ["ሰላም።", "እሺ"]),
        ("en", 'He said "No!" Then he left. Why?', ['He said "No!"', "Then he left.", "Why?"]),
        ("en", "the kettle is warm. bring the cup", ["the kettle is warm.", "bring the cup"]),
        ("en", "Dr. Smith paid 3.14 to J. K. Rowling. Good.", ["Dr. Smith paid 3.14 to J. K. Rowling.", "Good."]),
        ("en", "See example.com or approx. five.", ["See example.com or approx. five."]),
        ("el", "Τι κάνεις; Καλά.", ["Τι κάνεις;", "Καλά."]),
        ("en", "Wait; no", ["Wait; no"]),
        ("zh", "你好，世界。我很好！", ["你好，世界。", "我很好！"]),
        ("hi", "नमस्ते। आप कैसे हैं?", ["नमस्ते।", "आप कैसे हैं?"]),
        ("ar", "كيف حالك؟ بخير.", ["كيف حالك؟", "بخير."]),
    ],
)
def test_text_is_split_at_the_sentence_ends_of_its_language(language: str, text: str, sentences: list[str]) -> None:
    assert texts_of(text, language) == sentences


def test_a_sentence_that_is_too_long_is_split_at_clause_marks_then_at_spaces_then_anywhere() -> None:
    clauses = texts_of("one two three four five six, seven eight nine ten eleven, twelve thirteen fourteen fifteen")
    assert all(part.endswith(",") for part in clauses[:-1])
    assert len(clauses) > 1
    words = texts_of("the quick brown fox jumps " * 8)
    assert len(words) > 1
    assert " ".join(words).split() == ("the quick brown fox jumps " * 8).split()
    assert len(texts_of("a" * 300)) > 5
    ethiopic = texts_of("ኢትዮጵያ፡ሀገሬ፡ነች፡" * 8, "am")
    assert all(part.endswith("፡") for part in ethiopic)
    assert len(ethiopic) > 1


def test_pauses_are_longer_after_paragraphs_and_shorter_inside_sentences_and_there_is_none_at_the_end() -> None:
    text = "First one. Second one.\nThird, " + "one two three four five, " * 4 + "six"
    pauses = [pause for _, pause in split_into_chunks(text, "en", LONGEST, PAUSE)]
    assert pauses[:2] == [PAUSE, 2 * PAUSE]
    assert PAUSE / 2 in pauses[2:]
    assert pauses[-1] == 0


@given(st.text(alphabet="ab Cሰላ.,!?።፣ 1-\n", max_size=200), st.sampled_from(["en", "am", "el"]))
def test_nothing_but_spaces_is_lost_and_every_piece_fits_and_has_words(text: str, language: str) -> None:
    pieces = [piece for piece, _ in split_into_chunks(text, language, LONGEST, PAUSE)]
    kept = "".join(pieces)
    lines = [line for line in text.splitlines() if line.strip()]
    assert "".join(kept.split()) == "".join("".join(lines).split())
    if all(map(has_speakable_text, lines)):
        assert all(has_speakable_text(piece) for piece in pieces)
    signs = sum(estimate_speech_seconds(character) for character in text if not has_speakable_text(character))
    assert all(estimate_speech_seconds(piece) <= LONGEST + signs for piece in pieces)


def test_the_limit_grows_with_the_text_and_a_longest_piece_keeps_within_what_a_model_can_speak() -> None:
    assert max_speech_seconds("ha") < max_speech_seconds("hahaha") < max_speech_seconds("ሰላሰላሰላ")
    for most in (5.0, 12.0, 40.0):
        longest = max_chunk_seconds(most)
        text = "a" * int(longest / estimate_speech_seconds("a"))
        assert max_speech_seconds(text) <= most + 1e-9
