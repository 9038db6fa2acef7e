"""Stops that work: loops of codes and speech past its limit are cut, and what was cut is reported."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.models.generate import StoppingCriteria, find_loop_cut

HZ, STOP = 25.0, 99


@given(st.lists(st.integers(0, 50), max_size=60, unique=True), st.integers(1, 40))
def test_a_loop_is_cut_behind_its_first_round(head: list[int], period: int) -> None:
    round_trip = [1000 + at for at in range(period)]
    codes = head + round_trip * max(3, 60 // period + 1)
    assert find_loop_cut(codes, HZ) == len(head) + period


@given(st.lists(st.integers(0, 3), max_size=49))
def test_what_repeats_for_less_than_two_seconds_is_no_loop(codes: list[int]) -> None:
    assert find_loop_cut(codes, HZ) is None


def test_codes_that_differ_somewhere_are_no_loop() -> None:
    assert find_loop_cut(list(range(500)), HZ) is None
    assert find_loop_cut([5] * 60 + [6] * 10, HZ) is None
    assert find_loop_cut([*[1, 2, 3] * 20, 7], HZ) is None


def test_each_utterance_stops_at_its_own_limit_or_loop_and_the_others_go_on() -> None:
    watch = StoppingCriteria([72, 16, 72, 72], STOP, HZ)
    free = list(range(16))
    assert watch(torch.tensor([free, free, free, [*free[:10], *[STOP] * 6]])).tolist() == [False, True, False, False]
    looping = free + [7] * 60
    assert watch(torch.tensor([looping[:72], looping[:72], list(range(200, 272)), [STOP] * 72])).tolist()[:2] == [
        True,
        True,
    ]
    assert watch.stopped == {0: "loop", 1: "limit", 2: "limit"}
    assert watch.outcome(0, looping[:72], by_itself=True) == ([*free, 7], "loop")
    assert watch.outcome(1, free, by_itself=True) == (free, "limit")
    assert watch.outcome(3, free[:10], by_itself=True) == (free[:10], "ended")
