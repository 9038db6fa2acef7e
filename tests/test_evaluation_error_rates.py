"""Edit distances, error rates and their intervals; scores that were not measured."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.asr.transcripts import edit_distance
from voxgraft.evaluation.scores import (
    Score,
    compute_average,
    compute_error_rate,
    score_without_interval,
    unmeasured_score,
)

texts = st.text("abc", max_size=12)


def by_definition(one: str, two: str) -> int:
    """Levenshtein's recursion, word for word."""
    if not one or not two:
        return len(one) + len(two)
    return min(
        by_definition(one[1:], two) + 1,
        by_definition(one, two[1:]) + 1,
        by_definition(one[1:], two[1:]) + (one[0] != two[0]),
    )


@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_edits_are_levenshteins_distance(one: str, two: str) -> None:
    assert edit_distance(one, two) == by_definition(one, two)


@given(texts, texts, texts)
def test_edits_are_a_distance(one: str, two: str, three: str) -> None:
    assert edit_distance(one, one) == 0
    assert edit_distance(one, two) == edit_distance(two, one)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)
    assert abs(len(one) - len(two)) <= edit_distance(one, two) <= max(len(one), len(two))


def test_the_error_rate_is_all_edits_over_all_that_was_meant_and_not_a_mean_of_rates() -> None:
    score = compute_error_rate([(1, 1), (0, 9)], seed=0)
    assert score.value == 0.1
    assert score.count == 2


def test_more_heard_than_meant_is_an_error_above_one() -> None:
    assert compute_error_rate([(edit_distance("a", "abcd"), 1)], seed=0).value == 3.0


def test_intervals_hold_the_value_depend_on_the_seed_alone_and_shrink_with_more_sentences() -> None:
    few = [(at % 5, 3 + at % 7) for at in range(12)]
    many = few * 20
    score = compute_error_rate(few, seed=1)
    assert score == compute_error_rate(few, seed=1)
    assert score != compute_error_rate(few, seed=2)
    assert score.value is not None
    assert score.low is not None
    assert score.high is not None
    assert score.low <= score.value <= score.high
    wide = compute_error_rate(many, seed=1)
    assert wide.high is not None
    assert wide.low is not None
    assert wide.high - wide.low < (score.high - score.low) / 3


def test_intervals_hold_the_truth_in_about_95_of_100_samples() -> None:
    draw = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        score = compute_average([float(value) for value in draw.random(60) < 0.3], seed=trial)
        assert score.low is not None
        assert score.high is not None
        held += score.low <= 0.3 <= score.high
    assert 0.88 <= held / 200 <= 0.99


def test_a_score_without_a_number_says_why_and_never_has_one() -> None:
    nothing = [
        unmeasured_score("nobody listened"),
        compute_error_rate([], 0),
        compute_error_rate([(3, 0)], 0),
        compute_average([], 0),
        compute_average([math.nan], 0, np.median),
        score_without_interval(math.inf, 3),
    ]
    for score in nothing:
        assert score.value is None
        assert score.why
        assert score.to_json() == {"value": None, "why": score.why}


def test_scores_come_back_from_json_as_they_were() -> None:
    for score in (Score(0.1, 0.05, 0.2, 7), Score(1.5, None, None, 3), unmeasured_score("no")):
        assert Score.from_json(json.loads(json.dumps(score.to_json()))) == score
    assert Score.from_json({"value": "many"}).value is None
    assert Score.from_json(None).value is None


def test_the_median_is_the_median() -> None:
    assert compute_average([1.0, 2.0, 100.0], 0, np.median).value == 2.0
