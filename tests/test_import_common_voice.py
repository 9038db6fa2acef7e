"""Folders of Common Voice as published, and lists with numbers in place of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings, DataRemoveSettings
from voxgraft.core.errors import FileError
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.manage import data_remove
from voxgraft.data.manifest import ManifestClip, read_manifest
from voxgraft.data.sources import find_sources

RATE = 16_000
TEXTS = ("ሰላም ነው", "በቃ በል", "እንዴት ነህ", "ደህና ነኝ", "መልካም ቀን", "ቡና ጠጣ", "ውሃ አለ", "ነገ ና")
HEAD = "client_id\tpath\tsentence_id\tsentence\tup_votes\tdown_votes\tlocale"
# Name of the list, and which clips are in it; nobody accepted the last three.
PARTS = {"train": (0, 1, 2), "dev": (3,), "test": (4,), "invalidated": (5,), "other": (6, 7)}


def _sound(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.default_rng(seed).normal(0, 0.1, RATE).astype(np.float32), RATE)


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(clips: Sequence[int]) -> list[str]:
    return [f"person{at % 2}\tcv_{at}.wav\t{at}\t{TEXTS[at]}\t2\t0\tam" for at in clips]


def _common_voice(folder: Path, *, validated: bool = True, reported: bool = True) -> Path:
    for at in range(len(TEXTS)):
        _sound(folder / "clips" / f"cv_{at}.wav", at)
    for name, clips in PARTS.items():
        _write(folder / f"{name}.tsv", HEAD, *_rows(clips))
    if validated:
        _write(folder / "validated.tsv", HEAD, *_rows(range(5)))
    if reported:
        _write(folder / "reported.tsv", "sentence_id\tsentence\tlocale\treason", "1\tበቃ በል\tam\tgrammar-or-spelling")
    _write(folder / "clip_durations.tsv", "clip\tduration[ms]", *(f"cv_{at}.wav\t{1000 + at}" for at in range(8)))
    _write(folder / "validated_sentences.tsv", "sentence_id\tsentence\tsource", f"1\t{TEXTS[1]}\tsomeone")
    _write(folder / "unvalidated_sentences.tsv", "sentence_id\tsentence\tsource", f"9\t{TEXTS[0]}\tsomeone")
    return folder


def _import(folder: Path, *sources: Path) -> tuple[DataImportResult, list[ManifestClip]]:
    done = data_import(DataImportSettings(dataset=folder, sources=sources, language="am", rate=RATE, workers=1))
    return done, list(read_manifest(folder / "manifest.jsonl"))


def _codes(done: DataImportResult) -> list[str]:
    return [problem.code for problem in done.problems]


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("validated", [True, False])
def test_a_folder_of_common_voice_gives_the_accepted_clips_with_their_sentences_and_speakers(
    tmp_path: Path, *, validated: bool, reported: bool
) -> None:
    done, clips = _import(tmp_path / "set", _common_voice(tmp_path / "am", validated=validated, reported=reported))
    assert {clip.text: clip.speaker for clip in clips} == {TEXTS[at]: f"person{at % 2}" for at in range(5)}
    assert {clip.source.partition(".")[0] for clip in clips} == (
        {"validated"} if validated else {"train", "dev", "test"}
    )
    assert _codes(done) == ["list-unaccepted"]
    assert done.exit_code == 0


def test_the_note_counts_the_clips_that_nobody_accepted_and_its_fix_imports_them(tmp_path: Path) -> None:
    folder = _common_voice(tmp_path / "common voice")
    done, _ = _import(tmp_path / "set", folder)
    (note,) = (problem.finding() for problem in done.problems)
    assert note.level == "note"
    assert "invalidated.tsv (1 clip), other.tsv (2 clips)" in note.found
    assert f"'{folder / 'other.tsv'}'" in note.cure
    assert any(note.found in str(line) for line in done.lines()), "import prints it"
    done, clips = _import(tmp_path / "set", folder, folder / "other.tsv")
    assert {clip.text for clip in clips} == {TEXTS[at] for at in (0, 1, 2, 3, 4, 6, 7)}
    assert "other.tsv (2 clips)" not in done.problems[0].found
    _, clips = _import(tmp_path / "alone", folder / "invalidated.tsv")
    assert [clip.text for clip in clips] == [TEXTS[5]]


def test_lists_with_the_names_of_common_voice_but_other_columns_are_imported(tmp_path: Path) -> None:
    for at in range(4):
        _sound(tmp_path / "am" / f"{at}.wav", at)
    _write(tmp_path / "am" / "train.tsv", "audio\ttext", f"0.wav\t{TEXTS[0]}", f"1.wav\t{TEXTS[1]}")
    _write(tmp_path / "am" / "other.tsv", "audio\ttext", f"2.wav\t{TEXTS[2]}", f"3.wav\t{TEXTS[3]}")
    done, clips = _import(tmp_path / "set", tmp_path / "am")
    assert len(clips) == 4
    assert _codes(done) == []


@pytest.mark.parametrize(
    "lines",
    [
        ("clip\tduration[ms]", "a.wav\t3000", "b.wav\t2871"),
        ("a.wav|3.25", "b.wav|-1,5e3"),
        ("a.wav,12,3", "b.wav,13,4"),
        ("a\t٣٠",),
    ],
)
def test_a_list_with_only_numbers_as_texts_is_left_out_and_its_recordings_keep_their_texts(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    for at, name in enumerate("ab"):
        _sound(tmp_path / "own" / f"{name}.wav", at)
    _write(tmp_path / "own" / "lengths.csv", *lines)
    with pytest.raises(FileError) as caught:
        find_sources([tmp_path / "own"], "am")
    assert caught.value.finding.code == "source-none"
    assert "lengths.csv has only numbers" in caught.value.finding.found
    assert "write them as words" in caught.value.finding.cure
    for at, name in enumerate("ab"):
        _write(tmp_path / "own" / f"{name}.txt", TEXTS[at])
    done, clips = _import(tmp_path / "set", tmp_path / "own")
    assert [clip.text for clip in clips] == list(TEXTS[:2])
    assert _codes(done) == ["list-numbers"]
    assert done.exit_code == 0


def test_a_list_with_one_text_that_is_no_number_is_imported(tmp_path: Path) -> None:
    for at, name in enumerate("ab"):
        _sound(tmp_path / "own" / f"{name}.wav", at)
    _write(tmp_path / "own" / "list.csv", f"a.wav|{TEXTS[0]}", "b.wav|12")
    sources, problems = find_sources([tmp_path / "own"], "am")
    assert [source.text.name for source in sources] == ["list.csv"]
    assert problems == []


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("metadata.csv", ("audio|text", "a.wav|1", "b.wav|2")),
        ("metadata.csv", ('"file_name","sentence"', "a.wav,1", "b.wav,2")),
        ("list.tsv", ("\ufeffid\tnormalized_text\tduration", "a\t1\t2.0", "b\t٢\t2.0")),
        ("list.jsonl", ('{"audio": "a.wav", "text": "1"}', '{"audio": "b.wav", "text": "2"}')),
    ],
)
def test_numbers_in_a_column_that_is_called_text_are_texts(tmp_path: Path, name: str, lines: tuple[str, ...]) -> None:
    for at, stem in enumerate("ab"):
        _sound(tmp_path / "own" / f"{stem}.wav", at)
    _write(tmp_path / "own" / name, *lines)
    done, clips = _import(tmp_path / "set", tmp_path / "own")
    assert len(clips) == 2
    assert _codes(done) == []


def test_the_note_names_clips_that_an_older_version_imported_from_a_list_that_is_left_out(tmp_path: Path) -> None:
    folder = _common_voice(tmp_path / "am")
    _import(tmp_path / "set", folder, folder / "invalidated.tsv", folder / "other.tsv")
    done, clips = _import(tmp_path / "set", folder)
    assert len(clips) == 8, "nothing is removed without being asked"
    (note,) = (problem.finding() for problem in done.problems)
    assert note.level == "note"
    assert "still in the dataset: invalidated (1 clip), other (2 clips)" in note.found
    assert f"`voxgraft data remove {tmp_path / 'set'} --recording invalidated --recording other`" in note.cure
    settings = DataRemoveSettings(dataset=tmp_path / "set", recording=("invalidated", "other"), yes=True)
    data_remove(settings)
    done, clips = _import(tmp_path / "set", folder)
    assert {clip.text for clip in clips} == set(TEXTS[:5])
    assert "still in the dataset" not in done.problems[0].found
