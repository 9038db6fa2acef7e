"""A recording is cut by its text where that is certain, and recordings without text are written down by a machine."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.film import RATE_HZ
from benchmarks.transcripts import judge_alignment, make_reading
from voxgraft.asr.align import (
    GAP_COST,
    SUBSTITUTION_COST,
    AlignedSentence,
    TimedTranscript,
    align_sentences,
    align_symbols,
    data_align,
    data_transcribe,
)
from voxgraft.audio.metrics import Pause
from voxgraft.config.data import DataAlignSettings, DataTranscribeSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import read_manifest
from voxgraft.data.segment import split_sentences

RATE = 16_000
SUBSTITUTION = SUBSTITUTION_COST + 0.5
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


def _alignment_cost(places: list[int], columns: int) -> float:
    """What an alignment costs: between two matches as many substitutions as fit, and gaps for the rest."""
    cost, row, column = 0.0, 0, 0
    for at, place in [(at, place) for at, place in enumerate(places) if place >= 0] + [(len(places), columns)]:
        missing, surplus = at - row, place - column
        assert missing >= 0
        assert surplus >= 0, "the alignment runs backwards"
        cost += SUBSTITUTION * min(missing, surplus) + GAP_COST * abs(missing - surplus)
        row, column = at + 1, place + 1
    return cost


def _least_cost(meant: str, heard: str) -> float:
    """The same by a plain table, without a band."""
    row = [GAP_COST * float(at) for at in range(len(heard) + 1)]
    for at, one in enumerate(meant, 1):
        before, row[0] = row[0], GAP_COST * float(at)
        for place, other in enumerate(heard, 1):
            change = before + (SUBSTITUTION if one != other else 0)
            before, row[place] = row[place], min(row[place] + GAP_COST, row[place - 1] + GAP_COST, change)
    return row[-1]


@settings(max_examples=150, deadline=None)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
@example("baaab", "b")
def test_the_alignment_of_symbols_costs_as_little_as_any(meant: str, heard: str) -> None:
    places = align_symbols(meant, heard).tolist()
    assert all(meant[at] == heard[place] for at, place in enumerate(places) if place >= 0)
    assert _alignment_cost(places, len(heard)) == _least_cost(meant, heard)


@pytest.mark.parametrize(("rows", "columns"), [(3, 9_000), (1, 4_000), (40, 4_000), (130, 1_900), (4_000, 40), (0, 5)])
def test_the_alignment_is_the_cheapest_beyond_its_band(rows: int, columns: int) -> None:
    chance = random.Random(rows)
    meant = "".join(chance.choices("abcd", k=rows))
    # The text, evenly spread between other sounds; some of its symbols are recognized as something else.
    said = chance.choices("xyz", k=columns)
    for at in range(0, rows, max(1, rows // columns)):
        if chance.random() > 0.1:
            said[min(columns - 1, at * columns // rows)] = meant[at]
    heard = "".join(said)
    assert _alignment_cost(align_symbols(meant, heard).tolist(), columns) == _least_cost(meant, heard)


@pytest.mark.parametrize(
    ("said", "reason"),
    [("we drink cold waterxxxx", "edges"), ("we drink coxxxxxer", ""), ("xxxxwe drink cold water", "edges")],
)
def test_sounds_beyond_either_edge_are_counted_and_sounds_inside_are_not(said: str, reason: str) -> None:
    heard = _heard((SENTENCES[0], 0.5), (said, 3.0), (SENTENCES[2], 6.0))
    assert [one.reason for one in align_sentences(SENTENCES[:3], heard, "en", 0.5)] == ["", reason, ""]


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
    listed = Path(values["report"])
    assert {clip.speaker for clip in clips} == {clip.recording for clip in clips} == {listed.stem}
    assert listed.name.startswith("book-")
    assert all(clip.other["confidence"] == 1 and clip.is_used for clip in clips)
    report = json.loads(listed.read_text(encoding="utf-8"))
    assert len(report["sentences"]) == 4


def test_chapters_of_one_name_stay_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(". ".join(SENTENCES[:2]) + ".", encoding="utf-8")
    recognizer = _sequence(tmp_path, SENTENCES[:2] * 3)
    for chapter in ("ch1", "ch2", "ch1"):  # the first one twice: its clips are replaced, not doubled
        (tmp_path / chapter).mkdir(exist_ok=True)
        _bursts(tmp_path / chapter / "audio.wav", 2)
        assert _align(tmp_path, recording=tmp_path / chapter / "audio.wav", recognizer=recognizer)["accepted"] == 2
    clips = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    assert len(clips) == 4
    assert len({clip.recording for clip in clips}) == 2
    assert len(list((tmp_path / "set" / "transcripts").glob("audio-*.json"))) == 2


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
    assert [(clip.recording[:4], clip.text) for clip in clips] == [
        *(("one-", "hello there"), ("one-", "good morning"), ("two-", "last words"))
    ]
    assert values["without_words"] == 1
    assert all(clip.other["machine_made"] == recognizer for clip in clips)
    assert [round(clip.start) for clip in clips] == [0, 2, 2]
    again = data_transcribe(DataTranscribeSettings(recordings=recordings, **options)).to_json()
    assert again["transcribed"] == 0, "what was heard is kept"
    assert list(read_manifest(tmp_path / "set" / "manifest.jsonl")) == clips


def _transcribe(folder: Path, *names: str, **more: Any) -> tuple[dict[str, Any], int]:
    options = {"dataset": folder / "set", "language": "en", "workers": 1, **more}
    done = data_transcribe(DataTranscribeSettings(recordings=tuple(folder / name for name in names), **options))
    return done.to_json(), done.exit_code


def test_a_transcript_is_reused_only_for_the_same_file_recognizer_and_options(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        _bursts(tmp_path / folder / "01.wav", 1)
    words = {"recognizer": "command:echo some words {wav}"}
    assert _transcribe(tmp_path, "a/01.wav", "b/01.wav", **words)[0]["transcribed"] == 2
    assert len(list(read_manifest(tmp_path / "set" / "manifest.jsonl"))) == 2
    assert _transcribe(tmp_path, "a/01.wav", "b/01.wav", **words)[0]["transcribed"] == 0
    assert _transcribe(tmp_path, "a/01.wav", recognizer="command:echo other words {wav}")[0]["transcribed"] == 1
    assert _transcribe(tmp_path, "b/01.wav", **words, longest=5)[0]["transcribed"] == 1
    assert _transcribe(tmp_path, "b/01.wav", **words, longest=5)[0]["transcribed"] == 0
    os.utime(tmp_path / "b" / "01.wav", ns=(0, 0))
    assert _transcribe(tmp_path, "b/01.wav", **words, longest=5)[0]["transcribed"] == 1
    texts = [clip.text.split()[0] for clip in read_manifest(tmp_path / "set" / "manifest.jsonl")]
    assert sorted(texts) == ["other", "some"]


def test_a_transcript_does_not_replace_the_text_of_a_recording(tmp_path: Path) -> None:
    _bursts(tmp_path / "book.wav", 2)
    (tmp_path / "book.txt").write_text(". ".join(SENTENCES[:2]) + ".", encoding="utf-8")
    _align(tmp_path, recognizer=_sequence(tmp_path, SENTENCES[:2]))
    clips = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    with pytest.raises(VoxgraftError) as caught:
        _transcribe(tmp_path, "book.wav", recognizer="command:echo words {wav}")
    assert caught.value.code == "import-settings"
    assert list(read_manifest(tmp_path / "set" / "manifest.jsonl")) == clips


def test_recordings_without_words_are_counted_and_change_the_exit_code(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _bursts(tmp_path / f"{name}.wav", 1)
    values, exit_code = _transcribe(tmp_path, "one.wav", "two.wav", recognizer=_sequence(tmp_path, ("hello", "")))
    assert (values["transcribed"], values["empty"], exit_code) == (1, [str(tmp_path / "two.wav")], 1)


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
    report = json.loads(Path(_align(tmp_path, language=language)["report"]).read_text(encoding="utf-8"))
    found = [AlignedSentence(**one) for one in report["sentences"]]
    reported = judge_alignment(reading, found)
    assert reported["wrong"] == 0
    assert reported["near_accepted"] >= 0.95 * 2 * reported["accepted"]
    assert reported["accepted"] >= (0.5 if language == "sw" else 0.8) * reported["read"]
