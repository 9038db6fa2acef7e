"""The recipe's ground: texts are split as promised, batches lose nothing, error rates are right. Nothing is trained."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.tiny_base.corpus import Utterance
from recipes.tiny_base.gather import prezip_words
from recipes.tiny_base.scoring import distance, errors
from recipes.tiny_base.speech import RATE_HZ, levelled, resampled, trimmed
from recipes.tiny_base.texts import Amounts, Line, clauses_of, kept_out, normalize_letters, plan_lines
from recipes.tiny_base.utterance_buffer import UtteranceBuffer, collect_symbols, iter_batches

ENGLISH = "One could see that {0} were there, but nobody knew why {1} had come; the {2} said nothing. They left {3}."
SPEAKERS = [("m1", 1.0), ("f2", 2.0)]


def spelled(word: str, _language: str) -> tuple[str, ...]:
    """As in a language whose doubled letters are silent, so that some spellings sound alike."""
    return tuple(dict.fromkeys(word))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abdeiklmnorstu"), draw.integers(3, 8))) for _ in range(600)]
    lines = [ENGLISH.format(*draw.choice(words, 4)) for _ in range(400)]
    (tmp_path / "en.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def planned(texts: Path, seed: int = 0) -> list[Line]:
    return plan_lines(texts, "en", Amounts(300, 20, 20, 200, 30), SPEAKERS, spelled, seed)


def sounds(lines: list[Line]) -> set[tuple[str, ...]]:
    return {spelled(word, "en") for line in lines for word in normalize_letters(line.text, "en").split()}


def test_unheard_words_and_their_homophones_are_in_no_line_that_is_learnt_from(texts: Path) -> None:
    lines = planned(texts)
    unheard = sounds([line for line in lines if line.split == "test-unheard"])
    learnt = sounds([line for line in lines if line.split in ("train", "valid")])
    assert len(unheard) > 10
    assert not unheard & learnt


def test_test_lines_are_new_but_their_words_are_heard(texts: Path) -> None:
    lines = planned(texts)
    test = [line for line in lines if line.split == "test"]
    assert len(test) == 20
    assert not {line.text for line in test} & {line.text for line in lines if line.split in ("train", "valid")}
    assert sounds(test) <= sounds([line for line in lines if line.split in ("train", "valid")])


def test_sentences_of_the_evaluation_and_their_rare_words_are_learnt_from_by_nobody(texts: Path) -> None:
    held_back = [(text, words) for text, words in kept_out("en") if words]
    spoken = "".join(f"{text}.\n" for text, _ in held_back)
    (texts / "en.txt").write_text((texts / "en.txt").read_text(encoding="utf-8") + spoken * 9, encoding="utf-8")
    learnt = [line for line in planned(texts) if line.split in ("train", "valid")]
    rare = {spelled(word, "en") for _, words in held_back for word in words.split()}
    assert rare
    assert not rare & sounds(learnt)
    assert not {text for text, _ in kept_out("en")} & {normalize_letters(line.text, "en") for line in learnt}


def test_a_plan_is_a_function_of_its_seed(texts: Path) -> None:
    assert planned(texts) == planned(texts)
    assert planned(texts) != planned(texts, seed=1)
    assert [line.split for line in planned(texts)].count("train") == 300


def test_clauses_are_short_and_hold_letters_and_simple_marks_only() -> None:
    assert clauses_of("Il ne se hâta point.", "fr") == ["Il ne se hâta point."]
    long = "“Well,” said the captain, who had seen it all before; but the 3 men (both young) continued and on for ever"
    assert clauses_of(long, "en") == [
        "said the captain",
        "who had seen it all before",
        "both young",
        "continued and on for ever",
    ]
    assert clauses_of("እያንዳንዱ ሰው የመኖር፣ መብት አለው።", "am") == ["እያንዳንዱ ሰው የመኖር፣ መብት አለው።"]


def test_letters_that_sound_alike_in_amharic_are_written_one_way() -> None:
    assert normalize_letters("ሐሳብ፣ ሠላም ዓለም ፀሐይ!", "am") == "ሀሳብ ሰላም ኣለም ጸሀይ"
    assert normalize_letters("Don’t  go—École, L'Été!", "en") == "don't go cole l t"


def test_words_of_an_aspell_list_are_taken_apart() -> None:
    assert prezip_words(b"\x02abc\x02d\x03ef\x00x\x00\x1f\xff") == ["abc", "abd", "abdef", "x"]


symbols = st.text("abc", max_size=7)


def edits(true: str, heard: str) -> int:
    @functools.cache
    def least(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(least(i - 1, j) + 1, least(i, j - 1) + 1, least(i - 1, j - 1) + (true[i - 1] != heard[j - 1]))

    return least(len(true), len(heard))


@given(symbols, symbols)
def test_the_distance_is_the_fewest_edits(true: str, heard: str) -> None:
    assert distance(true, heard) == edits(true, heard)


def test_error_rates_weigh_every_symbol_alike() -> None:
    assert errors([("abcd", "abcd"), ("ab", "")]) == pytest.approx(2 / 6)
    assert errors([("ab", "abcdef")]) == 2.0


def utterances(*lengths: int) -> list[Utterance]:
    draw = np.random.default_rng(1)
    return [
        Utterance(
            "fr", "m1", "été là", ("e", "t", "e", "l", "a"), draw.integers(-9_999, 9_999, n).astype(np.int16), "train"
        )
        for n in lengths
    ]


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=60), st.integers(1, 90_000))
def test_every_utterance_is_in_one_batch_that_is_long_enough(lengths: list[int], budget: int) -> None:
    table = np.array(lengths)
    found = list(iter_batches(table, budget, None))
    assert sorted(place for places, _ in found for place in places) == list(range(len(lengths)))
    assert all(int(table[places].max()) <= samples < int(table[places].max()) + 6_400 for places, samples in found)
    shuffled = list(iter_batches(table, budget, np.random.default_rng(0)))
    assert {place for places, _ in shuffled for place in places} == set(range(len(lengths)))
    assert len({(len(places), samples) for places, samples in shuffled}) == len({samples for _, samples in shuffled})


def test_a_batch_holds_the_waves_with_zeros_behind_them() -> None:
    corpus = utterances(500, 6_400, 3_000)
    utterance_buffer = UtteranceBuffer(corpus, collect_symbols(corpus), torch.device("cpu"))
    batch = utterance_buffer.batch(np.array([2, 0]), 6_400)
    assert batch.lengths.tolist() == batch.num_samples.tolist() == [3_000, 500]
    for row, place in enumerate([2, 0]):
        own = corpus[place].wave
        np.testing.assert_array_equal((batch.waves[row, : len(own)] * 32768).short().numpy(), own)
        assert not batch.waves[row, len(own) :].any()
    assert batch.num_letters.tolist() == [6, 6]
    assert batch.num_phones.tolist() == [5, 5]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100])
def test_resampling_keeps_a_tone_and_its_length(rate_hz: int) -> None:
    seconds, hz = 0.5, 440.0
    tone = np.sin(2 * math.pi * hz * np.arange(int(seconds * rate_hz)) / rate_hz) * np.hanning(int(seconds * rate_hz))
    made = resampled(tone, rate_hz)
    assert abs(len(made) - seconds * RATE_HZ) <= 1
    expected = np.sin(2 * math.pi * hz * np.arange(len(made)) / RATE_HZ) * np.hanning(len(made))
    assert np.abs(made - expected).max() < 0.01


def test_silence_at_the_ends_is_cut_and_the_peak_is_one_for_all() -> None:
    wave = np.concatenate([np.zeros(8_000), np.full(1_000, 99.0), np.zeros(8_000)])
    cut = trimmed(wave)
    assert len(cut) == 1_000 + 2 * 640
    assert int(np.abs(levelled(cut)).max()) == round(0.6 * 32767)
    assert int(np.abs(levelled(np.zeros(50))).max()) == 0
