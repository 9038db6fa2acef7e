"""What can be wrong with the clips of a set: every fault is found, counted and named, and nothing in healthy ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.datasets import CODE_HZ, MADE_FROM, made_clips, make_set
from tests.support.families import PUBLISHED
from voxgraft.dataset.sets import check_clip_dataset, count_trailing_run, open_clip_dataset, write_clip_dataset
from voxgraft.dataset.shards import AnyArray, DatasetHeader
from voxgraft.models import get_family
from voxgraft.models.base import Clip, SequenceSpec


def spec_of(name: str) -> SequenceSpec:
    return get_family(name).sequence_spec(300)


def header_of(name: str = "chatterbox") -> DatasetHeader:
    return DatasetHeader(name, "am", "train", CODE_HZ[name], MADE_FROM)


def clips_of(name: str = "chatterbox", count: int = 7) -> list[Clip]:
    return list(made_clips(name, spec_of(name), clips=count, speakers=2, seed=5, seconds=(1.0, 2.0)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_is_found_in_healthy_clips(name: str, tmp_path: Path) -> None:
    clips = make_set(tmp_path / "new", name, spec_of(name), clips=20)
    assert check_clip_dataset(clips, spec_of(name), CODE_HZ[name]) == []


def faulty() -> dict[str, tuple[str, Callable[[Clip], Clip]]]:
    nan = np.full(256, np.nan, np.float32)

    def voice(clip: Clip, **changes: AnyArray) -> Clip:
        return replace(clip, voice={**clip.voice, **changes})

    def codes(clip: Clip, more: list[int]) -> Clip:
        longer = [*map(int, clip.codes), *more]
        return replace(clip, codes=np.array(longer), seconds=len(longer) / 25)

    return {
        "an id without a row": ("clips-text-outside", lambda clip: replace(clip, text_ids=[5, 300])),
        "a negative id": ("clips-text-outside", lambda clip: replace(clip, text_ids=[-1])),
        "a code that means stop": ("clips-codes-outside", lambda clip: codes(clip, [6562])),
        "a negative code": ("clips-codes-outside", lambda clip: codes(clip, [-1])),
        "too much text": ("clips-too-long", lambda clip: replace(clip, text_ids=[5] * 2049)),
        "too many codes": ("clips-too-long", lambda clip: codes(clip, list(range(4100)))),
        "no text": ("clips-no-content", lambda clip: replace(clip, text_ids=[])),
        "no codes": ("clips-no-content", lambda clip: replace(clip, codes=np.array([]), seconds=0.01)),
        "not a number": ("clips-voice-broken", lambda clip: voice(clip, speaker=nan)),
        "a voice of zeros": ("clips-voice-broken", lambda clip: voice(clip, speaker=0 * clip.voice["speaker"])),
        "an empty prompt": ("clips-voice-broken", lambda clip: voice(clip, prompt=clip.voice["prompt"][:0])),
        "a prompt of no codes": ("clips-voice-broken", lambda clip: voice(clip, prompt=clip.voice["prompt"] + 7000)),
        "padding": ("clips-trailing-run", lambda clip: codes(clip, [4] * 30)),
        "another length": ("clips-seconds", lambda clip: replace(clip, seconds=9.0)),
    }


@pytest.mark.parametrize("fault", faulty())
def test_every_fault_of_a_clip_is_found_with_a_count_and_its_name(fault: str, tmp_path: Path) -> None:
    code, spoil = faulty()[fault]
    written = clips_of(count=12)
    write_clip_dataset(tmp_path / "new", header_of(), [*written[:4], spoil(written[4]), *written[5:]])
    found = check_clip_dataset(open_clip_dataset(tmp_path / "new"), spec_of("chatterbox"), 25.0)
    assert [item.code for item in found] == [code]
    assert found[0].found.startswith("1 of 12 clips")
    assert "clip000004" in found[0].found
    assert found[0].where == "new"


def test_ids_that_the_stock_program_takes_out_are_found(tmp_path: Path) -> None:
    written = clips_of("indextts2")
    write_clip_dataset(
        tmp_path / "new", header_of("indextts2"), [replace(written[0], text_ids=[5, 1, 0]), *written[1:]]
    )
    found = check_clip_dataset(open_clip_dataset(tmp_path / "new"), spec_of("indextts2"), 50.0)
    assert [item.code for item in found] == ["clips-text-barred"]
    assert "removes (2 in all)" in found[0].found


def test_padding_in_a_few_clips_warns_and_in_many_is_an_error(tmp_path: Path) -> None:
    written = clips_of(count=20)
    levels = []
    for padded in (1, 10):
        spoiled = [
            replace(clip, codes=np.append(clip.codes, [9] * 40), seconds=(len(clip.codes) + 40) / 25)
            for clip in written[:padded]
        ]
        write_clip_dataset(tmp_path / str(padded), header_of(), [*spoiled, *written[padded:]])
        (found,) = check_clip_dataset(open_clip_dataset(tmp_path / str(padded)), spec_of("chatterbox"), 25.0)
        assert found.code == "clips-trailing-run"
        levels.append(found.level)
    assert levels == ["warning", "error"]


def test_unknown_tokens_are_counted_where_the_unknown_id_is_known(tmp_path: Path) -> None:
    written = clips_of(count=10)
    spoiled = [replace(written[0], text_ids=[1, 1, 7]), *written[1:]]
    write_clip_dataset(tmp_path / "new", header_of(), spoiled)
    clips = open_clip_dataset(tmp_path / "new")
    others = sum(int(np.count_nonzero(clips.text_ids(at) == 1)) for at in range(1, 10))
    (found,) = check_clip_dataset(clips, spec_of("chatterbox"), 25.0, unknown_id=1)
    assert found.code == "clips-text-unknown"
    assert f"{2 + others} unknown tokens" in found.found


def test_voices_can_be_looked_at_in_part(tmp_path: Path) -> None:
    written = clips_of(count=10)
    nan = {**written[0].voice, "speaker": np.full(256, np.nan, np.float32)}
    spoiled = [replace(clip, voice=nan) if at in (0, 1) else clip for at, clip in enumerate(written)]
    write_clip_dataset(tmp_path / "new", header_of(), spoiled)
    clips = open_clip_dataset(tmp_path / "new")
    (all_of_them,) = check_clip_dataset(clips, spec_of("chatterbox"), 25.0)
    (some,) = check_clip_dataset(clips, spec_of("chatterbox"), 25.0, max_voices=5)
    assert all_of_them.found.startswith("2 of 10")
    assert some.found.startswith("1 of 10")


def test_a_trailing_run_is_counted_from_the_end() -> None:
    assert [count_trailing_run(np.array(codes)) for codes in ([], [4], [4, 4], [4, 5, 4], [5, 4, 4, 4])] == [
        0,
        1,
        2,
        1,
        3,
    ]
