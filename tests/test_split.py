"""Splits keep recordings, speakers and equal sounds on one side, are the same for the same seed, and leaks are reported."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxgraft.audio.files import write_clip_audio
from voxgraft.audio.metrics import AudioFingerprint
from voxgraft.config.data import DataSplitSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import ManifestClip, SplitName, read_manifest, write_manifest
from voxgraft.data.split import DataSplitResult, data_split, find_split_leaks, split_clips

SHARES: dict[SplitName, float] = {"validation": 0.1, "test": 0.1}
NO_PRINTS: dict[str, AudioFingerprint] = {}


def _clips(num_recordings: int, each: int = 10, num_speakers: int = 3) -> list[ManifestClip]:
    return [
        ManifestClip(
            id=f"r{recording}-{at}",
            audio=f"clips/r{recording}/{at}.flac",
            seconds=4.0,
            text=f"sentence number {at} of recording {recording}",
            language="am",
            speaker=f"s{recording % num_speakers}",
            recording=f"r{recording}",
            sample_rate=16_000,
            start=at * 5.0,
            end=at * 5.0 + 4,
        )
        for recording in range(num_recordings)
        for at in range(each)
    ]


def _sides(clips: list[ManifestClip], key: str) -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = defaultdict(set)
    for clip in clips:
        found[getattr(clip, key)].add(clip.split)
    return found


@settings(max_examples=60)
@given(
    num=st.integers(6, 40),
    speakers=st.integers(4, 12),
    seed=st.integers(0, 1000),
    by=st.sampled_from(["recording", "speaker"]),
)
def test_no_recording_or_speaker_is_on_two_sides_and_nothing_is_lost(
    num: int, speakers: int, seed: int, by: str
) -> None:
    clips = _clips(num, num_speakers=speakers)
    made = split_clips(clips, SHARES, by, seed, NO_PRINTS)
    assert [replace(clip, split=None) for clip in made] == clips
    assert all(len(sides) == 1 for sides in _sides(made, "recording").values())
    if by == "speaker":
        assert all(len(sides) == 1 for sides in _sides(made, "speaker").values())
    assert {clip.split for clip in made} == {"train", "validation", "test"}
    assert split_clips(clips, SHARES, by, seed, NO_PRINTS) == made
    assert split_clips(list(reversed(clips)), SHARES, by, seed, NO_PRINTS) == list(reversed(made))


def test_shares_are_about_what_was_asked_for() -> None:
    made = split_clips(_clips(200), SHARES, "recording", 1, NO_PRINTS)
    for side, share in SHARES.items():
        assert sum(clip.split == side for clip in made) / len(made) == pytest.approx(share, abs=0.03)


def test_another_seed_gives_another_split() -> None:
    clips = _clips(30)
    assert split_clips(clips, SHARES, "recording", 1, NO_PRINTS) != split_clips(
        clips, SHARES, "recording", 2, NO_PRINTS
    )


def test_too_few_recordings_are_refused_and_stretches_of_one_are_not() -> None:
    one = _clips(1, each=400)
    with pytest.raises(VoxgraftError) as caught:
        split_clips(one, SHARES, "recording", 1, NO_PRINTS)
    assert caught.value.code == "split-impossible"
    made = split_clips(one, SHARES, "part", 1, NO_PRINTS)
    assert {clip.split for clip in made} == {"train", "validation", "test"}
    changes = sum(a.split != b.split for a, b in pairwise(made))
    assert changes < 20, "stretches stay whole"


@pytest.mark.parametrize("by", ["auto", "part", "recording", "speaker"])
def test_without_usable_clips_the_split_asks_for_clips_not_for_recordings(by: str) -> None:
    rejected = [replace(clip, rejected=("noise",)) for clip in _clips(4)]
    for clips, found in ((rejected, "all of 40 clips are rejected"), ([], "the dataset has no clips")):
        with pytest.raises(VoxgraftError) as caught:
            split_clips(clips, SHARES, by, 1, NO_PRINTS)
        item = caught.value.finding
        assert (item.code, item.found, item.expected) == ("split-impossible", found, "usable clips")
        assert "data info" in item.cure


def _sounds(clips: list[ManifestClip]) -> dict[str, AudioFingerprint]:
    chance = np.random.default_rng(0)
    return {clip.id: chance.integers(0, 1 << 24, 80).astype(np.uint32) for clip in clips}


def test_recordings_that_hold_the_same_sound_stay_together() -> None:
    clips = _clips(20)
    prints = _sounds(clips)
    for at in range(1, 20):
        prints[f"r{at}-3"] = prints["r0-3"] if at in (7, 13) else prints[f"r{at}-3"]
    for seed in range(8):
        made = split_clips(clips, SHARES, "recording", seed, prints)
        sides = _sides(made, "recording")
        assert sides["r0"] == sides["r7"] == sides["r13"]
        assert not [leak for leak in find_split_leaks(made, prints) if leak[0] == "audio"]


def test_leaks_in_sound_and_text_are_found() -> None:
    clips = _clips(4)
    sides: dict[str, SplitName] = {"r0": "train", "r1": "train", "r2": "validation", "r3": "test"}
    made = [replace(clip, split=sides[clip.recording]) for clip in clips]
    prints = _sounds(made)
    assert find_split_leaks(made, prints) == []
    prints["r2-5"] = prints["r0-1"][5:]
    made = [replace(clip, text="Sentence number 1 of recording 0!") if clip.id == "r3-2" else clip for clip in made]
    assert set(find_split_leaks(made, prints)) == {
        ("audio", "r0-1", "r2-5"),
        ("text", "r0-1", "r3-2"),
    }
    unused = [replace(clip, rejected=("noise",)) if clip.id in ("r2-5", "r3-2") else clip for clip in made]
    assert find_split_leaks(unused, prints) == []


def test_the_same_sentence_is_known_whatever_marks_its_script_has() -> None:
    one, two = _clips(2, each=1)
    texts = ("ሰላም ለዓለም ሁሉ።", "“ሰላም፣ ለዓለም—ሁሉ፧”")
    made = [replace(one, split="train", text=texts[0]), replace(two, split="test", text=texts[1])]
    assert [kind for kind, _, _ in find_split_leaks(made, NO_PRINTS)] == ["text"]


def test_the_verb_writes_the_sides_and_tells_leaks(tmp_path: Path) -> None:
    clips = _clips(8, each=3)
    chance = np.random.default_rng(1)
    for clip in clips:
        write_clip_audio(tmp_path / clip.audio, chance.normal(0, 0.1, 32_000).astype(np.float32), 16_000)
    clips = [replace(clip, text="the same sentence everywhere") if clip.id.endswith("-0") else clip for clip in clips]
    write_manifest(tmp_path / "manifest.jsonl", clips)
    done = data_split(DataSplitSettings(dataset=tmp_path, validation=0.2, test=0.2))
    assert isinstance(done, DataSplitResult)
    assert done.exit_code == 0
    assert [item.code for item in done.findings()] == ["split-leak-text"]
    assert list(read_manifest(tmp_path / "manifest.jsonl")) == list(done.clips)
    again = data_split(DataSplitSettings(dataset=tmp_path, validation=0.2, test=0.2))
    assert again.clips == done.clips
    assert again.unheard == ()
    (tmp_path / clips[5].audio).unlink()
    third = data_split(DataSplitSettings(dataset=tmp_path, validation=0.2, test=0.2))
    assert third.unheard == (clips[5].id,), "nobody can say whether its sound is on the other side too"
    assert clips[5].id in str(third.lines()[-1])
    with pytest.raises(VoxgraftError):
        data_split(DataSplitSettings(dataset=tmp_path, validation=0.5, test=0.5))


def test_the_fix_of_an_impossible_split_names_only_a_unit_that_works() -> None:
    for num_recordings, fits in ((1, "--by part"), (8, "--by recording")):
        clips = [replace(clip, speaker="anna") for clip in _clips(num_recordings, each=400 // num_recordings)]
        with pytest.raises(VoxgraftError) as caught:
            split_clips(clips, SHARES, "speaker", 1, NO_PRINTS)
        assert fits in caught.value.finding.cure
        assert split_clips(clips, SHARES, fits.removeprefix("--by "), 1, NO_PRINTS)
    with pytest.raises(VoxgraftError) as caught:
        split_clips(_clips(1, each=1), SHARES, "speaker", 1, NO_PRINTS)
    assert "--by" not in caught.value.finding.cure


def test_a_split_does_not_judge_the_quality_of_clips() -> None:
    clips = [replace(clip, seconds=90.0) for clip in _clips(30)]
    assert not any(clip.rejected for clip in split_clips(clips, SHARES, "recording", 1, NO_PRINTS))
