"""Texts are compared with the scores of a recognizer: sentences are found, skipped and judged by them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from voxgraft.asr import open_recognizer, resolve_recognizer_language
from voxgraft.asr.align import MAX_MISFIT, data_transcribe
from voxgraft.asr.matching import StepScores, TextMatcher, align_steps, best_path_scores
from voxgraft.config.data import DataTranscribeSettings
from voxgraft.core.errors import ConfigError


def _speak(symbols: list[int], kinds: int = 9, sure: float = 0.5) -> StepScores:
    """Scores of speech: every symbol has two steps, and a blank follows."""
    rows = []
    for symbol in (number for one in symbols for number in (one, one, 0)):
        row = np.full(kinds, (1 - sure) / (kinds - 1))
        row[symbol] = sure
        rows.append(np.log(row))
    return np.array(rows, np.float32)


def _sentences(count: int, seed: int = 0) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randint(1, 8) for _ in range(25)] for _ in range(count)]


def _align(read: list[list[int]], text: list[list[int]]) -> list[tuple[int, int] | None]:
    scores = _speak([symbol for one in read for symbol in one])
    at = np.linspace(0, sum(map(len, text)), len(scores))
    edges = np.arange(len(scores)) % 75
    return align_steps(scores, text, at, edges < 3, edges > 71)


def test_the_best_path_is_the_best_of_all_paths() -> None:
    chance = np.random.default_rng(0)
    scores = np.log(chance.dirichlet(np.ones(3), 6)).astype(np.float32)

    def collapse(path: Any) -> list[int]:
        return [int(one) for at, one in enumerate(path) if one and (not at or path[at - 1] != one)]

    paths = np.stack(np.meshgrid(*[range(3)] * 6, indexing="ij"), -1).reshape(-1, 6)
    for wanted in ([1, 2], [1, 1], [2, 2, 1]):
        best = max(scores[range(6), path].sum() for path in paths if collapse(path) == wanted)
        assert best_path_scores(scores, [wanted])[0] == pytest.approx(best, abs=1e-5)


def test_sentences_are_found_where_they_are_read() -> None:
    text = _sentences(6)
    assert _align(text, text) == [(75 * at, 75 * at + 73) for at in range(6)]


def test_a_sentence_that_is_not_read_is_skipped_and_one_that_is_not_in_the_text_is_passed() -> None:
    text = _sentences(8)
    found = _align(text[:3] + text[4:], text)
    assert found[3] is None
    assert [one for one in found if one] == [(75 * at, 75 * at + 73) for at in range(7)]
    found = _align(text, text[:3] + text[4:])
    assert found == [(75 * at, 75 * at + 73) for at in range(8) if at != 3]


def test_a_long_text_is_aligned_in_a_band() -> None:
    text = _sentences(100)  # 5,001 states
    assert _align(text, text) == [(75 * at, 75 * at + 73) for at in range(100)]


def test_a_misfit_is_low_for_what_is_spoken_and_one_for_another_text() -> None:
    matcher = TextMatcher.build(open_recognizer("built-in"), "ru")
    assert matcher is not None
    assert matcher.by_sound
    own, other = _sentences(2)
    scores = _speak(own, kinds=len(matcher.symbols) + 1)
    assert matcher.misfit(scores, own) < 0.05
    assert matcher.misfit(scores, other) > MAX_MISFIT + 0.05
    assert matcher.misfit(scores[:10], own) == 1.0
    assert matcher.misfit(scores, []) == 1.0


class _Known:
    name, sample_rate = "known", None

    def __init__(self, *languages: str) -> None:
        self.languages = frozenset(languages) if languages else None


@pytest.mark.parametrize(
    ("known", "language", "expected"),
    [
        (("pt",), "pt-BR", ("pt", False)),
        (("pt",), "pt_BR", ("pt", False)),
        (("es",), "es-419", ("es", False)),
        (("pt", "pt-BR"), "pt-BR", ("pt-BR", False)),
        (("sr",), "sr-Latn", ("sr-Latn", True)),
        (("sr-Latn",), "sr-Latn-RS", ("sr-Latn", False)),
        (("en",), "am", ("am", True)),
        ((), "am-ET", ("am-ET", False)),
    ],
)
def test_a_recognizer_knows_a_language_without_its_region_but_not_without_its_script(
    known: tuple[str, ...], language: str, expected: tuple[str, bool]
) -> None:
    recognizer: Any = _Known(*known)
    assert resolve_recognizer_language(recognizer, language) == expected


def test_transcribe_refuses_an_unknown_language_before_it_opens_a_recording(tmp_path: Any) -> None:
    (tmp_path / "talk.wav").write_bytes(b"no audio at all")
    settings = DataTranscribeSettings(dataset=tmp_path / "set", recordings=(tmp_path / "talk.wav",), language="ru")
    with pytest.raises(ConfigError) as refused:
        data_transcribe(settings)
    assert refused.value.finding.code == "recognizer-language"
    assert not (tmp_path / "set").exists()
