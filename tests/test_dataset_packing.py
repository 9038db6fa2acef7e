"""Packs and how they are dealt: every item once, nothing too full, every process as many."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.core.errors import ConfigError
from voxgraft.dataset.sampler import Microbatch, assign_to_ranks, pack_microbatches, require_clip_fits

LENGTHS = st.lists(st.integers(1, 500), max_size=120)


@given(LENGTHS, st.integers(500, 2000))
def test_each_item_is_in_exactly_one_pack_that_holds_it(lengths: list[int], microbatch_tokens: int) -> None:
    packs = pack_microbatches(lengths, microbatch_tokens)
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    for pack in packs:
        assert pack, "no pack is empty"
        assert pack.tokens == sum(lengths[place] for place in pack) <= microbatch_tokens


@given(LENGTHS)
def test_no_two_packs_are_half_empty(lengths: list[int]) -> None:
    packs = pack_microbatches(lengths, 500)
    assert sum(pack.tokens <= 250 for pack in packs) <= 1


@given(LENGTHS.filter(bool), st.integers(500, 2000))
def test_packs_depend_on_the_lengths_alone(lengths: list[int], microbatch_tokens: int) -> None:
    assert pack_microbatches(lengths, microbatch_tokens) == pack_microbatches(tuple(lengths), microbatch_tokens)


@given(LENGTHS, st.integers(1, 9))
def test_every_pack_is_dealt_once_and_every_process_gets_as_many(lengths: list[int], world_size: int) -> None:
    packs = pack_microbatches(lengths, 600)
    hands = assign_to_ranks(packs, world_size)
    assert len(hands) == world_size
    assert len({len(hand) for hand in hands}) == 1
    dealt = [pack for hand in hands for pack in hand if pack is not None]
    assert sorted(map(list, dealt)) == sorted(map(list, packs))
    assert sum(pack is None for hand in hands for pack in hand) < world_size


@given(LENGTHS.filter(bool), st.integers(2, 6))
def test_processes_differ_by_no_more_than_a_pack(lengths: list[int], world_size: int) -> None:
    hands = assign_to_ranks(pack_microbatches(lengths, 600), world_size)
    tokens = [sum(pack.tokens for pack in hand if pack is not None) for hand in hands]
    assert max(tokens) - min(tokens) <= 600


def test_a_pack_for_nothing_comes_last() -> None:
    hands = assign_to_ranks(pack_microbatches([500, 400, 300], 500), 2)
    assert [[pack and list(pack) for pack in hand] for hand in hands] == [[[0], None], [[1], [2]]]


def test_no_items_are_no_packs() -> None:
    assert pack_microbatches([], 100) == []
    assert assign_to_ranks([], 3) == [[], [], []]


def test_a_clip_longer_than_a_pack_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"microbatch_tokens is 1,000, but clip7 has 1,234"):
        require_clip_fits(1234, 1000, "clip7")
    with pytest.raises(ConfigError) as caught:
        pack_microbatches([10, 1234, 5], 1000)
    assert caught.value.code == "pack-too-small"
    assert "item 1" in caught.value.finding.found


def test_no_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 processes"):
        assign_to_ranks([], 0)


def test_an_item_may_fill_a_pack_exactly() -> None:
    require_clip_fits(1000, 1000, "clip7")
    packs = pack_microbatches([600, 400, 1000], 1000)
    assert [(list(pack), pack.tokens) for pack in packs] == [([2], 1000), ([0, 1], 1000)]


def test_the_longest_items_come_first_each_where_there_is_most_room_and_ties_go_by_place() -> None:
    packs = pack_microbatches([100, 300, 200, 300], 500)
    assert [(list(pack), pack.tokens) for pack in packs] == [([1, 2], 500), ([3, 0], 400)]
    assert [list(pack) for pack in pack_microbatches([5, 5, 5], 10)] == [[0, 2], [1]]


def test_one_process_gets_every_pack_and_several_get_the_largest_first() -> None:
    packs = pack_microbatches([100, 300, 200, 300], 300)
    assert [[pack and pack.tokens for pack in hand] for hand in assign_to_ranks(packs, 1)] == [[300, 300, 300]]
    assert [[pack and pack.tokens for pack in hand] for hand in assign_to_ranks(packs, 2)] == [[300, 300], [300, None]]


def test_a_microbatch_is_its_places_and_knows_its_positions() -> None:
    pack = Microbatch([3, 1], 7)
    assert (list(pack), pack.tokens) == ([3, 1], 7)
