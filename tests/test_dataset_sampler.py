"""The order of the data: pure in seed, step and clips; each clip once an epoch, each set its share, no copied voices."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.datasets import ListedSet, make_set
from voxgraft.core import rng
from voxgraft.core.errors import ConfigError, GraftError
from voxgraft.dataset.sampler import (
    DataSamplerOptions,
    DeterministicSampler,
    PromptSelector,
    Sample,
    assign_to_ranks,
    list_samples,
    pack_microbatches,
)
from voxgraft.dataset.shards import ClipDataset
from voxgraft.models import get_family

FRAMING = 34 + 4
TOKENS = 700
"""More than the longest clip of the sets below, so that no step is empty."""
OWN = DataSamplerOptions(single_clip_speakers="own")
PINNED_NUMBER = 14226034396539767342
PINNED_ORDER = [1, 0, 4, 8, 7, 5, 6, 9, 3, 2]
PINNED_ITEMS = [(0, 1, False), (1, 0, False), (4, 0, True), (3, 2, False)]


@st.composite
def listed_sets(draw: st.DrawFn, name: str = "new", longest: float = 20.0) -> ListedSet:
    count = draw(st.integers(1, 25))
    speakers = draw(st.lists(st.sampled_from("abcd"), min_size=count, max_size=count))
    seconds = draw(st.lists(st.floats(0.2, longest), min_size=count, max_size=count))
    return ListedSet(name, speakers, seconds)


def tokens_of(clips: ClipDataset, clip: int) -> int:
    return FRAMING + int(clips.num_text[clip]) + int(clips.num_codes[clip])


# First, since a wrong share can make every other test endless.
def test_a_share_that_is_left_for_sets_to_come_is_taken_from_all() -> None:
    sets = [ListedSet("new", ["a"] * 4, [4.0] * 4), ListedSet("replay", ["a"] * 4, [4.0] * 4)]
    reports = DeterministicSampler(sets, [3.0, 1.0], 1000, 0, left_for_others=0.2).streams
    assert [report.budget for report in reports] == [pytest.approx(600), pytest.approx(200)]
    assert [report.budget for report in DeterministicSampler(sets, [3.0, 1.0], 1000, 0).streams] == [750, 250]


@given(listed_sets(), st.integers(0, 99), st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_a_step_is_the_same_whatever_was_asked_before(clips: ListedSet, seed: int, asked: list[int]) -> None:
    stream = DeterministicSampler([clips], [1.0], TOKENS, seed, OWN)
    for number in asked:
        assert stream.step(number) == DeterministicSampler([clips], [1.0], TOKENS, seed, OWN).step(number)


@given(listed_sets(), st.integers(0, 99), st.integers(700, 2500))
def test_every_clip_is_met_once_in_every_epoch(clips: ListedSet, seed: int, tokens: int) -> None:
    stream = DeterministicSampler([clips], [1.0], tokens, seed, OWN)
    met: list[int] = []
    for number in range(1, stream.steps_for_epochs(3) + 1):
        met += [item.clip for item in stream.step(number)]
    epochs = [met[start : start + len(clips)] for start in range(0, 3 * len(clips), len(clips))]
    for epoch in epochs:
        assert sorted(epoch) == list(range(len(clips)))


@given(
    listed_sets("new"),
    listed_sets("replay", 8.0),
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.integers(1, 500),
    st.integers(1, 12),
)
@settings(max_examples=60)
def test_each_set_has_its_share_of_any_window_of_steps_to_within_one_clip(
    new: ListedSet, replay: ListedSet, one: float, other: float, first: int, steps: int
) -> None:
    stream = DeterministicSampler([new, replay], [one, other], 4000, 3, OWN)
    tokens = [0, 0]
    for number in range(first, first + steps):
        for item in stream.step(number):
            tokens[item.set] += tokens_of([new, replay][item.set], item.clip)
    for at, (clips, weight) in enumerate([(new, one), (replay, other)]):
        due = Fraction(weight) / (Fraction(one) + Fraction(other)) * 4000 * steps
        longest = max(tokens_of(clips, clip) for clip in range(len(clips)))
        assert abs(tokens[at] - due) <= longest


@given(listed_sets(), st.integers(0, 9), st.integers(1, 50), st.randoms(use_true_random=False))
def test_the_order_of_the_clips_in_the_files_does_not_matter(
    clips: ListedSet, seed: int, number: int, random: Any
) -> None:
    places = list(range(len(clips)))
    random.shuffle(places)
    infos = [clips.infos[place] for place in places]
    mixed = ListedSet("new", [one.speaker for one in infos], [one.seconds for one in infos], [one.id for one in infos])
    assert named(DeterministicSampler([clips], [1.0], TOKENS, seed, OWN), number, [clips]) == named(
        DeterministicSampler([mixed], [1.0], TOKENS, seed, OWN), number, [mixed]
    )


def named(stream: DeterministicSampler, number: int, sets: Sequence[ClipDataset]) -> list[tuple[str, str, bool]]:
    return [
        (sets[item.set].infos[item.clip].id, sets[item.prompt[0]].infos[item.prompt[1]].id, item.silent)
        for item in stream.step(number)
    ]


@given(listed_sets(), st.integers(0, 99), st.integers(1, 60))
def test_the_voice_is_another_clip_of_the_same_speaker_and_long_enough_if_one_is(
    clips: ListedSet, seed: int, number: int
) -> None:
    infos = clips.infos
    for item in DeterministicSampler([clips], [1.0], TOKENS, seed, OWN).step(number):
        others = [one for one in infos if one.speaker == infos[item.clip].speaker and one.id != infos[item.clip].id]
        assert item.prompt[0] == item.set
        prompt = infos[item.prompt[1]]
        assert prompt.speaker == infos[item.clip].speaker
        assert (prompt.id == infos[item.clip].id) == (not others)
        if any(one.seconds >= 3 for one in others):
            assert prompt.seconds >= 3
        elif others:
            assert prompt.seconds == max(one.seconds for one in others)


def test_over_many_steps_every_other_long_clip_of_a_speaker_lends_its_voice_about_as_often() -> None:
    clips = ListedSet("new", ["a"] * 6, [4.0, 5.0, 6.0, 7.0, 1.0, 8.0])
    stream = DeterministicSampler([clips], [1.0], TOKENS, 0)
    lent = Counter(item.prompt[1] for number in range(1, 1501) for item in stream.step(number) if item.clip == 0)
    assert set(lent) == {1, 2, 3, 5}
    assert max(lent.values()) < 1.3 * min(lent.values())


@given(listed_sets(), st.integers(1, 300), st.integers(1, 7))
def test_the_items_of_a_step_are_the_same_however_many_processes_share_them(
    clips: ListedSet, number: int, world_size: int
) -> None:
    items = DeterministicSampler([clips], [1.0], TOKENS, 1, OWN).step(number)
    packs = pack_microbatches([tokens_of(clips, item.clip) for item in items], TOKENS)
    dealt = [
        items[place]
        for hand in assign_to_ranks(packs, world_size)
        for pack in hand
        if pack is not None
        for place in pack
    ]
    assert sorted(dealt, key=repr) == sorted(items, key=repr)


@given(listed_sets(), st.integers(0, 99), st.integers(1, 10**12))
def test_no_step_is_empty_however_far(clips: ListedSet, seed: int, number: int) -> None:
    assert DeterministicSampler([clips], [1.0], TOKENS, seed, OWN).step(number)


def test_epochs_seeds_and_sets_each_have_an_order_of_their_own() -> None:
    def order(name: str, seed: int, epoch: int) -> list[int]:
        clips = ListedSet(name, ["a"] * 40, [5.0] * 40)
        stream = DeterministicSampler([clips], [1.0], 40 * tokens_of(clips, 0), seed)
        return [item.clip for item in stream.step(epoch)]

    orders = [order("new", 0, 1), order("new", 0, 2), order("new", 1, 1), order("other", 0, 1)]
    assert all(sorted(one) == list(range(40)) for one in orders)
    assert len({tuple(one) for one in orders}) == 4


def test_the_order_is_pinned_for_all_releases() -> None:
    """A run that is resumed with a newer version must meet the same clips."""
    assert rng.hash_int("prompt", 7, 1, "clip") == PINNED_NUMBER
    assert rng.hash_permutation(10, "order", 7, "new", 0).tolist() == PINNED_ORDER
    clips = ListedSet("new", list("aabbab"), [4.0, 5.0, 6.0, 7.0, 1.0, 8.0])
    items = DeterministicSampler([clips], [1.0], TOKENS, 7, DataSamplerOptions(text_dropout=0.5)).step(5)
    assert [(item.clip, item.prompt[1], item.silent) for item in items] == PINNED_ITEMS


def test_parts_of_a_draw_are_kept_apart() -> None:
    draws = [("ab", "c"), ("a", "bc"), ("abc",), (1, 2), (12,), ("1", "2"), (-1, 2)]
    assert len({rng.hash_int(*parts) for parts in draws}) == len(draws)
    assert all(0 <= rng.hash_uniform("x", number) < 1 for number in range(1000))


def test_another_process_with_another_hash_seed_meets_the_same_clips() -> None:
    program = (
        "from tests.support.datasets import ListedSet\n"
        "from voxgraft.dataset.sampler import DeterministicSampler\n"
        "clips = ListedSet('new', list('abcabcaabc'), [3.5] * 10)\n"
        "print([DeterministicSampler([clips], [1.0], 700, 3).step(n) for n in (1, 2, 77)])"
    )
    root = Path(__file__).resolve().parent.parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "Sample(" in outputs.pop()


def test_a_share_of_items_is_silent_and_which_ones_changes_from_step_to_step() -> None:
    clips = ListedSet("new", ["a"] * 30, [5.0] * 30)
    stream = DeterministicSampler([clips], [1.0], 30 * tokens_of(clips, 0), 0, DataSamplerOptions(text_dropout=0.2))
    steps = [stream.step(number) for number in range(1, 101)]
    silent = [item.silent for step in steps for item in step]
    assert len(silent) == 3000
    assert 500 < sum(silent) < 700
    assert len({frozenset(item.clip for item in step if item.silent) for step in steps}) > 90
    assert not any(item.silent for item in DeterministicSampler([clips], [1.0], TOKENS, 0).step(1))


def test_speakers_with_one_clip_are_left_out_and_counted() -> None:
    clips = ListedSet("new", ["a", "b", "a", "c", "a"], [4.0] * 5)
    stream = DeterministicSampler([clips], [1.0], TOKENS, 0)
    (report,) = stream.streams
    assert report.left_out["lone speaker"] == report.lone == ("new-0001", "new-0003")
    assert (report.clips, report.used, report.total) == (5, 3, 3 * tokens_of(clips, 0))
    assert {item.clip for number in range(1, 20) for item in stream.step(number)} == {0, 2, 4}
    (found,) = report.findings()
    assert (found.code, found.level) == ("lone-speakers", "warning")
    assert "2 of 5 clips" in found.found
    assert "left out: new-0001, new-0003" in found.found


def test_speakers_with_one_clip_may_lend_it_their_own_voice_and_are_counted() -> None:
    clips = ListedSet("new", ["a", "b", "a"], [4.0] * 3)
    stream = DeterministicSampler([clips], [1.0], TOKENS, 0, OWN)
    met = {item.clip: item.prompt for number in range(1, 20) for item in stream.step(number)}
    assert met[1] == (0, 1)
    (report,) = stream.streams
    assert (report.used, report.lone, report.left_out["lone speaker"]) == (3, ("new-0001",), ())
    assert "their own voice" in report.findings()[0].found


def test_prompts_under_three_seconds_are_counted() -> None:
    clips = ListedSet("new", ["a", "a", "b", "b", "b"], [4.0, 2.0, 2.5, 1.0, 2.0])
    (report,) = DeterministicSampler([clips], [1.0], TOKENS, 0).streams
    names = "new-0000, new-0002, new-0003, new-0004"
    assert report.findings()[0].found.startswith("4 of 5 clips ")
    assert report.findings()[0].found.endswith(names)
    assert [found.code for found in report.findings()] == ["short-prompts"]


def test_clips_over_the_longest_length_are_left_out_and_still_lend_their_voice() -> None:
    clips = ListedSet("new", ["a", "a"], [20.0, 4.0])
    options = DataSamplerOptions(max_tokens_per_clip=300)
    stream = DeterministicSampler([clips], [1.0], TOKENS, 0, options)
    assert stream.step(1) == (Sample(0, 1, (0, 0)),) * len(stream.step(1))
    (report,) = stream.streams
    assert report.left_out["too long"] == ("new-0000",)
    assert [found.code for found in report.findings()] == ["clips-left-out"]
    assert stream.longest == (tokens_of(clips, 1), "new-0001")


def test_a_set_that_loses_all_its_clips_is_refused_with_the_reasons() -> None:
    with pytest.raises(GraftError) as caught:
        DeterministicSampler([ListedSet("new", ["a", "b"], [4.0, 5.0])], [1.0], TOKENS, 0)
    assert caught.value.code == "stream-empty"
    assert "lone speaker: 2" in caught.value.finding.found
    assert "data.speaker: NAME" in caught.value.finding.cure
    assert "single_clip_speakers" not in caught.value.finding.cure, "it teaches copying"


def test_where_nearly_every_clip_is_another_speaker_the_cure_is_the_speaker_setting() -> None:
    clips = ListedSet("new", [*"abcdefghij", "j", "j"], [4.0] * 12)
    (report,) = DeterministicSampler([clips], [1.0], TOKENS, 0).streams
    assert report.findings()[0].code == "lone-speakers"
    (report,) = DeterministicSampler([ListedSet("new", [*"abcdefghij", "j"], [4.0] * 11)], [1.0], TOKENS, 0).streams
    (found,) = report.findings()
    assert (found.code, found.level) == ("speakers-one-clip", "warning")
    assert "data.speaker: NAME" in found.cure
    assert "single_clip_speakers" not in found.cure


def test_a_step_smaller_than_a_clip_is_refused_with_the_size_it_needs() -> None:
    clips = ListedSet("new", ["a", "a"], [20.0, 4.0])
    needed = tokens_of(clips, 0)
    assert DeterministicSampler([clips], [1.0], needed, 0).step(1)
    with pytest.raises(ConfigError) as caught:
        DeterministicSampler([clips], [1.0], needed - 1, 0)
    assert caught.value.code == "step-too-small"
    assert f"at least {needed:,}" in caught.value.finding.expected


def test_a_set_whose_share_is_less_than_a_clip_is_pointed_out() -> None:
    sets = [ListedSet("new", ["a"] * 4, [4.0] * 4), ListedSet("replay", ["a"] * 4, [4.0] * 4)]
    reports = DeterministicSampler(sets, [0.95, 0.05], TOKENS, 0).streams
    assert [[found.code for found in report.findings()] for report in reports] == [[], ["share-too-small"]]


@pytest.mark.parametrize(
    ("names", "weights", "tokens"),
    [
        ([], [], 700),
        (["new"], [1.0, 2.0], 700),
        (["new", "new"], [1.0, 1.0], 700),
        (["new"], [0.0], 700),
        (["new"], [float("nan")], 700),
        (["new"], [float("inf")], 700),
        (["new"], [-1.0], 700),
        (["new"], [1.0], 0),
    ],
)
def test_settings_that_make_no_order_are_refused(names: list[str], weights: list[float], tokens: int) -> None:
    sets = [ListedSet(name, ["a", "a"], [4.0, 5.0]) for name in names]
    with pytest.raises(ConfigError) as caught:
        DeterministicSampler(sets, weights, tokens, 0)
    assert caught.value.code == "stream-settings"


def test_one_token_per_step_is_a_valid_setting_that_no_clip_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        DeterministicSampler([ListedSet("new", ["a", "a"], [4.0, 5.0])], [1.0], 1, 0)
    assert caught.value.code == "step-too-small"


def test_options_out_of_range_and_steps_before_the_first_are_refused() -> None:
    clips = ListedSet("new", ["a", "a"], [4.0, 5.0])
    for wrong in ({"text_dropout": 1.5}, {"single_clip_speakers": "keep"}):
        with pytest.raises(ConfigError):
            DataSamplerOptions(**wrong)
    with pytest.raises(ConfigError, match="step 0"):
        DeterministicSampler([clips], [1.0], TOKENS, 0).step(0)


def test_epochs_are_counted_on_the_first_set() -> None:
    clips = ListedSet("new", ["a"] * 10, [4.0] * 10)
    replay = ListedSet("replay", ["a"] * 50, [4.0] * 50)
    per_clip = tokens_of(clips, 0)
    stream = DeterministicSampler([clips, replay], [3.0, 1.0], 4 * per_clip, 0)
    assert stream.steps_per_epoch == pytest.approx(10 / 3)
    assert stream.steps_for_epochs(3) == 10
    assert stream.epoch_at(10) == pytest.approx(3.0)


def test_validation_meets_every_clip_once_with_the_same_voice_every_time() -> None:
    clips = ListedSet("valid", ["a", "b", "a", "a"], [4.0, 5.0, 6.0, 20.0])
    items = list_samples([clips], 5, DataSamplerOptions(max_tokens_per_clip=400, text_dropout=1.0))
    assert [item.clip for item in items] == [0, 1, 2]
    assert items == list_samples([clips], 5, DataSamplerOptions(max_tokens_per_clip=400))
    assert items[1].prompt == (0, 1)
    assert all(item.prompt[1] != item.clip for item in items if item.clip != 1)


def test_a_set_on_disk_is_streamed_with_the_lengths_that_its_layout_has(tmp_path: Path) -> None:
    from voxgraft.models.base import build_sequence

    spec = get_family("chatterbox").sequence_spec(2454)
    clips = make_set(tmp_path / "new", "chatterbox", spec, clips=30, speakers=4)
    stream = DeterministicSampler([clips], [1.0], 2000, 0, DataSamplerOptions(num_conditioning=spec.num_conditioning))
    lengths = [
        build_sequence(spec, clips.text_ids(item.clip), clips.codes(item.clip)).length
        for number in range(1, 9)
        for item in stream.step(number)
    ]
    assert lengths == [tokens_of(clips, item.clip) for number in range(1, 9) for item in stream.step(number)]
    assert abs(sum(lengths) - 8 * 2000) <= stream.longest[0]


class GivenPrompts(ListedSet):
    """A set that says itself whose voice each clip has, as the community's manifests of pairs do."""

    def prompt_of(self, clip: int) -> int | None:
        own = self.infos.index(self.infos[clip])  # an error for a clip that the set does not have
        return (own + 1) % len(self.infos)


def test_a_set_that_names_its_prompts_is_taken_at_its_word() -> None:
    clips = GivenPrompts("pairs", ["a", "b", "b"], [4.0, 1.0, 1.0])
    stream = DeterministicSampler([clips], [1.0], TOKENS, 0)
    met = {item.clip: item.prompt for number in range(1, 9) for item in stream.step(number)}
    assert met == {0: (0, 1), 1: (0, 2), 2: (0, 0)}
    (report,) = stream.streams
    assert (report.used, report.lone, report.findings()) == (3, (), [])
    (report,) = DeterministicSampler([GivenPrompts("pairs", ["a"], [4.0])], [1.0], TOKENS, 0).streams
    assert (report.used, report.lone, report.findings()) == (1, (), [])


def test_limits_of_length_hold_at_their_edge() -> None:
    clips = ListedSet("new", ["a", "a", "a"], [3.0, 2.9, 2.8])
    steps = [item for number in range(1, 40) for item in DeterministicSampler([clips], [1.0], TOKENS, 0).step(number)]
    assert {item.prompt[1] for item in steps if item.clip != 0} == {0}, "three seconds are long enough"
    assert {item.prompt[1] for item in steps if item.clip == 0} == {1}, "else the longest of the others"
    exact = DataSamplerOptions(max_tokens_per_clip=tokens_of(clips, 0))
    assert DeterministicSampler([clips], [1.0], TOKENS, 0, exact).streams[0].left_out["too long"] == ()
    assert [item.clip for item in list_samples([clips], 0, exact)] == [0, 1, 2]
    shorter = DataSamplerOptions(max_tokens_per_clip=tokens_of(clips, 0) - 1)
    assert DeterministicSampler([clips], [1.0], TOKENS, 0, shorter).streams[0].left_out["too long"] == ("new-0000",)
    assert [item.clip for item in list_samples([clips], 0, shorter)] == [1, 2]


def test_no_text_and_all_texts_may_be_silent() -> None:
    clips = ListedSet("new", ["a"] * 8, [4.0] * 8)
    for share, wanted in ((0.0, {False}), (1.0, {True})):
        stream = DeterministicSampler([clips], [1.0], TOKENS, 0, DataSamplerOptions(text_dropout=share))
        assert {item.silent for number in range(1, 9) for item in stream.step(number)} == wanted
    for wrong in (-0.1, 1.1):
        with pytest.raises(ConfigError):
            DataSamplerOptions(text_dropout=wrong)


def test_a_share_of_exactly_the_longest_clip_is_enough() -> None:
    clips = ListedSet("new", ["a"] * 4, [4.0] * 4)
    (report,) = DeterministicSampler([clips], [1.0], tokens_of(clips, 0), 0).streams
    assert (report.longest[0], int(report.budget), report.findings()) == (tokens_of(clips, 0), tokens_of(clips, 0), [])


def test_one_or_two_clips_alone_are_no_sign_of_wrong_speaker_names() -> None:
    def code(speakers: str) -> str:
        clips = ListedSet("new", list(speakers), [4.0] * len(speakers))
        return DeterministicSampler([clips], [1.0], TOKENS, 0, OWN).streams[0].findings()[0].code

    assert [code(speakers) for speakers in ("a", "ab", "abc", "abcdd", "abcdefghii")] == [
        *["lone-speakers"] * 2,
        "speakers-one-clip",
        "lone-speakers",
        "speakers-one-clip",
    ]


def test_only_the_orders_of_the_newest_epochs_are_kept() -> None:
    clips = ListedSet("new", ["a"] * 4, [4.0] * 4)
    sampler = DeterministicSampler([clips], [1.0], 4 * tokens_of(clips, 0), 0)
    for number in range(1, 8):
        sampler.step(number)
    assert list(sampler.streams[0]._epochs) == [4, 5, 6]


def test_of_several_sets_that_are_all_too_small_the_one_that_needs_least_says_how_much() -> None:
    """The largest share is the set to look at; a step is not empty as soon as any share holds its longest clip."""
    sets = [ListedSet("new", ["a"] * 3, [20.0, 4.0, 4.0]), ListedSet("replay", ["a"] * 3, [4.0] * 3)]
    for weights in ([3.0, 1.0], [1.0, 3.0]):
        needed = [math.ceil(tokens_of(clips, 0) * 4 / weight) for clips, weight in zip(sets, weights, strict=True)]
        with pytest.raises(ConfigError) as caught:
            DeterministicSampler(sets, weights, 100, 0)
        assert f"at least {min(needed):,}," in caught.value.finding.expected
        largest = sets[weights.index(3.0)]
        assert f"{largest.infos[0].id!r} has {tokens_of(largest, 0):,}" in caught.value.finding.found
        stream = DeterministicSampler(sets, weights, min(needed), 0)
        assert stream.longest == (tokens_of(sets[0], 0), "new-0000")


def test_validation_takes_the_voices_of_step_0_and_every_clip_where_nothing_is_said() -> None:
    clips = ListedSet("valid", ["a"] * 9, [4.0] * 8 + [60.0])
    prompts = PromptSelector(clips, 3.0, range(9))
    items = list_samples([clips], 5)
    assert [item.prompt for item in items] == [(0, prompts.prompt(clip, 5, 0)) for clip in range(9)]
    assert [prompts.prompt(clip, 5, 0) for clip in range(9)] != [prompts.prompt(clip, 5, 1) for clip in range(9)]


def test_a_set_without_clips_is_refused_as_one_of_which_none_can_be_used() -> None:
    with pytest.raises(GraftError) as caught:
        DeterministicSampler([GivenPrompts("new", [], [])], [1.0], TOKENS, 0)
    assert caught.value.code == "stream-empty"
