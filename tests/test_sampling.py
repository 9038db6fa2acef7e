"""Drawing codes: each cut against its plain definition, one code at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from voxgraft.core.errors import ConfigError
from voxgraft.nn.decode import SamplingParams, apply_guidance, apply_repetition_penalty, filter_logits, sample_codes

NUM_CODES = 12
logits = arrays(np.float32, NUM_CODES, elements=st.floats(-20, 20, width=16))
Row = np.ndarray[Any, Any]


def kept(row: Row, **cuts: Any) -> set[int]:
    """Which codes are left after the cuts, at temperature 1."""
    left = filter_logits(torch.from_numpy(row)[None], SamplingParams(temperature=1.0, **cuts))[0]
    return set(torch.isfinite(left).nonzero()[:, 0].tolist())


def shares(row: Row) -> Row:
    weights = np.exp(row.astype(np.float64) - row.max())
    found: Row = weights / weights.sum()
    return found


@given(logits, st.integers(1, NUM_CODES + 3))
def test_top_k_keeps_the_best_and_whatever_ties_with_the_last_of_them(row: Row, top_k: int) -> None:
    last = np.sort(row)[::-1][min(top_k, NUM_CODES) - 1]
    assert kept(row, top_k=top_k) == set(np.flatnonzero(row >= last).tolist())


@given(logits, st.floats(0.01, 0.99))
def test_min_p_keeps_what_is_not_far_less_likely_than_the_best(row: Row, min_p: float) -> None:
    ratio = shares(row) / shares(row).max()
    unclear = np.abs(ratio - min_p) < 1e-5
    left = kept(row, min_p=min_p)
    assert all((code in left) == (ratio[code] >= min_p) for code in range(NUM_CODES) if not unclear[code])


@given(logits, st.floats(0.05, 0.99))
def test_top_p_keeps_the_fewest_codes_that_reach_the_share(row: Row, top_p: float) -> None:
    left = kept(row, top_p=top_p)
    share = shares(row)
    total = sum(share[code] for code in left)
    assert total >= top_p - 1e-5
    worst = min(left, key=lambda code: float(share[code]))
    assert total - share[worst] < top_p + 1e-5
    assert all(share[code] <= share[worst] + 1e-9 for code in range(NUM_CODES) if code not in left)


@given(logits, st.sets(st.integers(0, NUM_CODES - 1)), st.floats(0.5, 10))
def test_the_penalty_moves_each_code_heard_down_once_and_no_other(row: Row, heard: set[int], penalty: float) -> None:
    marks = torch.zeros(1, NUM_CODES, dtype=torch.bool)
    marks[0, list(heard)] = True
    found = apply_repetition_penalty(torch.from_numpy(row)[None], marks, penalty)[0].tolist()
    for code, value in enumerate(row.tolist()):
        want = value if code not in heard else value / penalty if value > 0 else value * penalty
        assert found[code] == pytest.approx(want, rel=1e-6)


def test_guidance_goes_on_from_the_reading_without_text_through_the_one_with_it() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.0, -4.0], [0.5, 3.0], [2.0, -4.0]])  # two streams with text, then without
    assert apply_guidance(rows, 0.5).tolist() == [[1.25, 1.5], [-1.0, -4.0]]


def test_temperature_divides_before_the_cuts() -> None:
    row = torch.tensor([[2.0, 1.0, 0.0]])
    assert filter_logits(row, SamplingParams(temperature=0.5)).tolist() == [[4.0, 2.0, 0.0]]
    apart = math.exp(-2)  # how much less likely the second is at temperature 0.5
    assert torch.isfinite(filter_logits(row, SamplingParams(temperature=0.5, min_p=apart - 0.01))).tolist() == [
        [True, True, False]
    ]
    assert torch.isfinite(filter_logits(row, SamplingParams(temperature=0.5, min_p=apart + 0.01))).tolist() == [
        [True, False, False]
    ]


def test_without_noise_the_best_code_is_taken() -> None:
    row = torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])
    assert sample_codes(filter_logits(row, SamplingParams(temperature=0)), None).tolist() == [1, 0]


def test_codes_are_drawn_as_often_as_they_are_likely() -> None:
    row = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    noise = torch.empty(20_000, 4).exponential_(generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(sample_codes(row.expand(20_000, -1), noise), minlength=4) / 20_000
    assert torch.allclose(counts, row.softmax(-1)[0], atol=0.015)
    assert counts[3] == 0


@settings(max_examples=30)
@given(logits, st.integers(0, 5), st.floats(0.3, 1.0), st.floats(0.0, 0.5), st.integers(0, 1000))
def test_what_is_cut_is_never_drawn(row: Row, top_k: int, top_p: float, min_p: float, seed: int) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    left = filter_logits(torch.from_numpy(row)[None], sampling)
    noise = torch.empty(1, NUM_CODES).exponential_(generator=torch.Generator().manual_seed(seed))
    assert torch.isfinite(left[0, sample_codes(left, noise)])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-44),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("guidance", -1.0),
        ("guidance", float("nan")),
        ("max_codes", 0),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_its_value(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is {value}") as caught:
        SamplingParams(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.code == "sampling"
