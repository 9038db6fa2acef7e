"""A recording is cut by its text where that is certain, and recordings without text are written down by a machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.film import RATE_HZ
from benchmarks.transcripts import judge_alignment, make_reading
from voxgraft.asr.align import (
    AlignedSentence,
    TimedTranscript,
    align_sentences,
    align_symbols,
    data_align,
    data_transcribe,
)
from voxgraft.asr.transcripts import edit_distance
from voxgraft.audio.metrics import Pause
from voxgraft.config.data import DataAlignSettings, DataTranscribeSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import read_manifest
from voxgraft.data.segment import split_sentences

RATE = 16_000
SENTENCES = ("the little house is old", "we drink cold water", "nobody knows his name", "rain falls on the road")


def _heard(*spoken: tuple[str, float]) -> TimedTranscript:
    """What is heard where texts are said from some second on, ten letters a second, with pauses between them."""
    symbols, times, pauses, at = "", [], [], 0.0
    for text, start in spoken:
        letters = text.replace(" ", "")
        pauses.append(Pause(at, start))
        times += [start + 0.05 + 0.1 * number for number in range(len(letters))]
        symbols += letters
        at = start + 0.1 * len(letters)
    pauses.append(Pause(at, at + 1))
    return TimedTranscript(symbols, np.array(times), pauses, at + 1, False, [])


@settings(max_examples=150, deadline=None)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_alignment_of_symbols_is_monotonic_and_as_good_as_any(meant: str, heard: str) -> None:
    places = align_symbols(meant, heard)
    matched = [(at, place) for at, place in enumerate(places.tolist()) if place >= 0]
    assert all(meant[at] == heard[place] for at, place in matched)
    assert [place for _, place in matched] == sorted({place for _, place in matched})
    # Substitutions cost a little more than half of two gaps, so the edits are close to the fewest possible.
    assert max(len(meant), len(heard)) - len(matched) <= edit_distance(meant, heard) + min(len(meant), len(heard))
    if meant == heard:
        assert places.tolist() == list(range(len(meant)))


def test_sentences_are_found_at_their_pauses() -> None:
    heard = _heard((SENTENCES[0], 0.5), (SENTENCES[1], 3.0), (SENTENCES[2], 5.5))
    found = align_sentences(SENTENCES[:3], heard, "en", 0.5)
    assert [(one.start, one.end, one.reason) for one in found] == [(0.5, 2.4, ""), (3.0, 4.6, ""), (5.5, 7.3, "")]
    assert {one.confidence for one in found} == {1.0}


def test_what_is_not_read_and_what_is_read_in_addition_is_not_guessed() -> None:
    heard = _heard((SENTENCES[0], 0.5), ("quick brown foxes jump", 3.0), (SENTENCES[2], 6.0), (SENTENCES[3], 9.0))
    found = align_sentences(SENTENCES, heard, "en", 0.5)
    assert [bool(one.reason) for one in found] == [False, True, False, False]
    assert [one.start for one in found if not one.reason] == [0.5, 6.0, 9.0]


def test_a_sentence_without_a_pause_at_its_edge_is_rejected() -> None:
    heard = _heard((SENTENCES[0] + SENTENCES[1], 0.5), (SENTENCES[2], 6.0))
    found = align_sentences(SENTENCES[:3], heard, "en", 0.5)
    assert [one.reason for one in found] == ["no-pause", "no-pause", ""]


def test_sentences_end_at_marks_and_empty_lines() -> None:
    assert split_sentences("One. Two\nlines!\n\nTitle\n\nሰላም ነው። በቃ፡፡ ...\n") == [
        *("One.", "Two lines!", "Title", "ሰላም ነው።", "በቃ፡፡")
    ]


def _bursts(path: Path, count: int) -> None:
    """Noise of one second and a pause of one, so many times."""
    chance = np.random.default_rng(0)
    pieces = [part for _ in range(count) for part in (chance.normal(0, 0.1, RATE), chance.normal(0, 1e-4, RATE))]
    soundfile.write(path, np.concatenate(pieces).astype(np.float32), RATE)


def _sequence(folder: Path, texts: tuple[str, ...]) -> str:
    """A program that gives the next text each time it is called."""
    (folder / "said").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (folder / "hear.sh").write_text(f"echo x >> {folder}/calls; sed -n $(wc -l < {folder}/calls)p {folder}/said\n")
    return f"command:sh {folder / 'hear.sh'} {{wav}}"


def _align(folder: Path, **more: Any) -> dict[str, Any]:
    options = {
        "recording": folder / "book.wav",
        "text": folder / "book.txt",
        "dataset": folder / "set",
        "language": "en",
    }
    return data_align(DataAlignSettings(**{**options, "workers": 1, "shortest": 0.5, **more})).to_json()


def test_a_recording_is_cut_by_its_text_and_imported(tmp_path: Path) -> None:
    _bursts(tmp_path / "book.wav", 4)
    (tmp_path / "book.txt").write_text(". ".join(SENTENCES) + ".", encoding="utf-8")
    wrong = (*SENTENCES[:2], "quite another thing is said", SENTENCES[3])
    values = _align(tmp_path, recognizer=_sequence(tmp_path, wrong))
    assert values["accepted"] == 3
    assert [one["text"] for one in values["rejected"]] == [f"{SENTENCES[2]}."]
    clips = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    assert [clip.text for clip in clips] == [f"{SENTENCES[at]}." for at in (0, 1, 3)]
    assert [round(clip.start) for clip in clips] == [0, 2, 6]
    assert {clip.speaker for clip in clips} == {clip.recording for clip in clips} == {"book"}
    assert all(clip.other["confidence"] == 1 and clip.is_used for clip in clips)
    report = json.loads((tmp_path / "set" / "transcripts" / "book.json").read_text(encoding="utf-8"))
    assert len(report["sentences"]) == 4


def test_an_empty_text_or_a_silent_recording_is_refused(tmp_path: Path) -> None:
    _bursts(tmp_path / "book.wav", 1)
    (tmp_path / "book.txt").write_text("...\n", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        _align(tmp_path)
    assert caught.value.code == "text-few"
    (tmp_path / "book.txt").write_text("One. Two.", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        _align(tmp_path, recognizer="command:true {wav}")
    assert caught.value.code == "audio-silent"


def test_recordings_without_text_are_transcribed_and_marked(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _bursts(tmp_path / f"{name}.wav", 2)
    recognizer = _sequence(tmp_path, ("hello there", "good morning", "", "last words"))
    options: dict[str, Any] = {"dataset": tmp_path / "set", "language": "en", "recognizer": recognizer, "workers": 1}
    recordings = (tmp_path / "one.wav", tmp_path / "two.wav")
    values = data_transcribe(DataTranscribeSettings(recordings=recordings, **options)).to_json()
    assert values["transcribed"] == 3
    clips = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    assert [(clip.recording, clip.text) for clip in clips] == [
        *(("one", "hello there"), ("one", "good morning"), ("two", "last words"))
    ]
    assert all(clip.other["machine_made"] == recognizer for clip in clips)
    assert [round(clip.start) for clip in clips] == [0, 2, 2]
    again = data_transcribe(DataTranscribeSettings(recordings=recordings, **options)).to_json()
    assert again["transcribed"] == 0, "what was heard is kept"
    assert list(read_manifest(tmp_path / "set" / "manifest.jsonl")) == clips


def test_a_recognizer_that_does_not_know_the_language_transcribes_nothing(tmp_path: Path) -> None:
    _bursts(tmp_path / "one.wav", 1)
    with pytest.raises(VoxgraftError) as caught:
        data_transcribe(
            DataTranscribeSettings(recordings=(tmp_path / "one.wav",), dataset=tmp_path / "set", language="ti")
        )
    assert caught.value.code == "recognizer-language"


@pytest.mark.long
@pytest.mark.parametrize(("language", "faulty"), [("en", False), ("am", True), ("sw", True)])
def test_boundaries_of_a_reading_are_found_and_no_wrong_sentence_is_accepted(
    language: str, faulty: bool, tmp_path: Path
) -> None:
    """Known places, hidden; a tenth of the text is not read and a tenth of the reading is not in the text."""
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    reading = make_reading(language, 24, seed=3, faulty=faulty)
    soundfile.write(tmp_path / "book.wav", reading.wave, RATE_HZ)
    (tmp_path / "book.txt").write_text("\n".join(reading.text), encoding="utf-8")
    _align(tmp_path, language=language)
    report = json.loads((tmp_path / "set" / "transcripts" / "book.json").read_text(encoding="utf-8"))
    found = [AlignedSentence(**one) for one in report["sentences"]]
    told = judge_alignment(reading, found)
    assert told["wrong"] == 0
    assert told["near_accepted"] >= 0.95 * 2 * told["accepted"]
    assert told["accepted"] >= (0.5 if language == "sw" else 0.8) * told["read"]
