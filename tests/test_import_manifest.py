"""The manifest says what it is, reads back as it was written, and names the line of what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import SPLITS, ManifestClip, parse_manifest_line, read_manifest, write_manifest

CLIP = ManifestClip(
    id="film-00001",
    audio="clips/film/film-00001.flac",
    seconds=2.5,
    text="ሰላም ለዓለም.",
    language="am",
    speaker="film:አበበ",
    recording="film",
    sample_rate=24_000,
    text_as_found="አበበ፡ ሰላም ለዓለም።",
    start=1.25,
    end=3.75,
    source="film.srt:2",
)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=30)


@given(
    text=WORDS,
    speaker=WORDS,
    seconds=st.floats(0, 1e6),
    split=st.sampled_from([None, *SPLITS]),
    rejected=st.lists(WORDS, max_size=3),
)
def test_a_clip_reads_back_as_it_was_written(
    text: str, speaker: str, seconds: float, split: Any, rejected: list[str]
) -> None:
    clip = replace(CLIP, text=text, speaker=speaker, seconds=seconds, split=split, rejected=tuple(rejected))
    assert parse_manifest_line(json.dumps(clip.to_json(), ensure_ascii=False), Path("m"), 2) == clip


def test_keys_that_are_not_known_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [replace(CLIP, other={"mood": "glad"})])
    (clip,) = read_manifest(path)
    write_manifest(path, [clip])
    assert [clip.other for clip in read_manifest(path)] == [{"mood": "glad"}]


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"seconds": "2.5"}, "seconds"),
        ({"seconds": -1}, "seconds"),
        ({"split": "valid"}, "split"),
        ({"sample_rate": 24000.0}, "sample_rate"),
        ({"rejected": "noise"}, "rejected"),
        ({"taken_back": 1}, "taken_back"),
        ({"speaker": ""}, "speaker"),
    ],
)
def test_a_field_of_another_kind_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, Any], reported: str
) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [CLIP])
    broken = json.dumps({**CLIP.to_json(), "id": "other", **change}, ensure_ascii=False)
    path.write_text(path.read_text(encoding="utf-8") + broken + "\n", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        list(read_manifest(path))
    assert caught.value.code == "manifest-line"
    assert "line 3" in caught.value.finding.found
    assert reported in caught.value.finding.found


def test_two_clips_of_one_id_are_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [CLIP, CLIP])
    with pytest.raises(VoxgraftError, match="line 2 and on line 3") as caught:
        list(read_manifest(path))
    assert caught.value.code == "manifest-double-id"


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ('{"audio": "a.wav", "text": "x"}', "manifest-unknown"),
        ('{"voxgraft_manifest": 2}', "manifest-version"),
        ("not JSON", "manifest-unknown"),
    ],
)
def test_a_manifest_of_another_program_or_version_is_reported_apart(tmp_path: Path, first: str, code: str) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text(first + "\n", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        list(read_manifest(path))
    assert caught.value.code == code


def test_a_damaged_first_line_of_a_manifest_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text("{bad\n", encoding="utf-8")
    with pytest.raises(VoxgraftError, match="not valid JSON") as caught:
        list(read_manifest(path))
    assert caught.value.code == "manifest-unknown"
    assert '{"voxgraft_manifest": 1}' in caught.value.finding.cure


def test_a_clip_that_was_taken_back_is_used() -> None:
    assert not replace(CLIP, rejected=("noise",)).is_used
    assert replace(CLIP, rejected=("noise",), taken_back=True).is_used
