"""File names that are written in another Unicode form, another case, or for another machine, and names of people."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.lists import TranscriptRow, find_audio_file, infer_recordings, match_audio_files, match_sidecar
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest
from voxgraft.data.names import fold_name, normalize_name
from voxgraft.data.sources import ImportSource, find_sources, sanitize_name

RATE = 16_000
CUE = "1\n00:00:00,000 --> 00:00:01,500\nMerhaba\n"
COMPOSED = unicodedata.normalize("NFC", "Şule ğ")
DECOMPOSED = unicodedata.normalize("NFD", "Şule ğ")
# Two marks in the order that neither form has.
MIXED = "s\u0307\u0323"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which names of both forms and cases are different files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (COMPOSED, DECOMPOSED, "a", "A"):
        (tmp_path / name).touch()
    if len(os.listdir(tmp_path)) < 5:
        pytest.skip("NOT TESTED: this file system takes names of other case or Unicode form for the same")
    return folder


def _files(folder: Path, *names: str) -> None:
    for at, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in (".wav", ".mp4", ".ogg"):
            noise = np.random.default_rng([at, *name.encode()]).normal(0, 0.1, 2 * RATE)
            soundfile.write(path, noise.astype(np.float32), RATE, format="WAV")
        else:
            path.write_text(CUE if path.suffix == ".srt" else f"Merhaba dünya {at}", encoding="utf-8")


def _import(folder: Path, **more: Any) -> tuple[DataImportResult, list[ManifestClip]]:
    options = {"language": "tr", "rate": RATE, "workers": 1, "cut": "times", **more}
    place = folder.parent / "set"
    done = data_import(DataImportSettings(dataset=place, sources=(folder,), **options))
    return done, list(read_manifest(place / "manifest.jsonl"))


def _reported(found: tuple[list[ImportSource], list[SourceProblem]]) -> list[tuple[str, str]]:
    return sorted((problem.code, Path(problem.file).name) for problem in found[1])


def test_names_in_another_unicode_form_are_the_same_names(folder: Path) -> None:
    _files(folder, f"{DECOMPOSED} 1.wav", f"{COMPOSED} 2.wav", f"{DECOMPOSED} 3.wav", f"{COMPOSED} 3.txt")
    _files(folder, f"{DECOMPOSED} 4.mp4", f"{COMPOSED} 4.srt", f"{COMPOSED}/5.wav")
    rows = (f"{COMPOSED} 1.wav|Bir", f"{DECOMPOSED} 2.wav|İki", f"{DECOMPOSED}/5|Beş")
    (folder / "metadata.csv").write_text("\n".join(rows), encoding="utf-8")
    done, clips = _import(folder)
    assert done.problems == ()
    assert sorted(clip.text_as_found for clip in clips) == sorted(["Bir", "İki", "Beş", "Merhaba", "Merhaba dünya 3"])
    again, same = _import(folder)
    assert (again.problems, again.new_clips, same) == ((), 0, clips)


def test_an_exact_name_wins_and_two_forms_are_not_guessed(folder: Path) -> None:
    one, two = (unicodedata.normalize(form, MIXED) for form in ("NFC", "NFD"))
    _files(folder, f"{one}.wav", f"{two}.wav")
    assert find_audio_file(folder, f"{one}.wav", (folder,)) == folder / f"{one}.wav"
    match = match_audio_files(folder, [f"{MIXED}.wav"], (folder,))[f"{MIXED}.wav"]
    assert (match.path, len(match.alike)) == (None, 2)
    _files(folder, f"{MIXED}.txt", f"{MIXED}.srt")
    assert match_sidecar(folder / f"{one}.wav").alike == (folder / f"{MIXED}.txt",)
    (folder / f"{one}.txt").write_text("Merhaba", encoding="utf-8")
    done = find_sources([folder], "tr")
    assert [source.kind for source in done[0]] == ["folder"]
    assert _reported(done) == sorted([("name-ambiguous", f"{MIXED}.srt"), ("name-ambiguous", f"{two}.wav")])
    assert all("Unicode form" in problem.found for problem in done[1] if problem.file.endswith(".srt"))


def test_names_in_another_case_are_used_with_a_note_if_only_one_file_fits(folder: Path) -> None:
    _files(folder, "ses 5.ogg", "B.WAV", "b.txt", "film.mp4", "Film.srt", "c.wav", "c.TXT", "d.WAV")
    (folder / "metadata.csv").write_text("ses 5.OGG|Beş\nd|Dört", encoding="utf-8")
    done, clips = _import(folder)
    assert len(clips) == 5
    assert [problem.code for problem in done.problems] == ["name-case"] * 3
    notes = " ".join(problem.found for problem in done.problems)
    assert all(name in notes for name in ("ses 5.ogg", "ses 5.OGG", "film.mp4", "b.txt", "1 other file"))
    assert all(problem.finding().level == "note" for problem in done.problems)


def test_names_in_another_case_are_refused_if_they_could_be_of_another_file(folder: Path) -> None:
    _files(folder, "a.wav", "A.WAV", "A.txt", "Film.mp4", "FILM.mp4", "film.srt", "ses.wav")
    (folder / "metadata.csv").write_text("ses.wav|Bir\nSes.wav|İki\n", encoding="utf-8")
    done, clips = _import(folder)
    assert sorted(clip.text_as_found for clip in clips) == ["Bir", "Merhaba dünya 2"]
    ambiguous = sorted(Path(problem.file).name for problem in done.problems if problem.code == "name-ambiguous")
    assert ambiguous == ["a.wav", "film.srt", "metadata.csv"]
    assert {problem.code for problem in done.problems} == {"name-ambiguous", "text-missing"}
    assert "ses.wav" in next(problem.found for problem in done.problems if problem.file.endswith("metadata.csv"))


def test_an_exact_subtitle_is_preferred_to_one_in_another_case(folder: Path) -> None:
    _files(folder, "film.mp4", "Film.srt", "film.srt")
    found = find_sources([folder], "tr")
    assert [source.text.name for source in found[0]] == ["film.srt"]
    assert _reported(found) == [("source-unknown", "Film.srt")]


def test_a_file_that_is_added_a_moment_later_is_found(folder: Path) -> None:
    """The listing of a folder is kept in memory, but not if the folder may have changed."""
    for at in range(5):
        assert match_sidecar(folder / f"a{at}.wav").path is None
        (folder / f"A{at}.txt").touch()
        assert match_sidecar(folder / f"a{at}.wav").path == folder / f"A{at}.txt"


def test_names_are_folded_to_one_form() -> None:
    assert normalize_name(DECOMPOSED) == normalize_name(COMPOSED) == COMPOSED
    assert fold_name(DECOMPOSED.upper()) == fold_name(COMPOSED)
    assert normalize_name("a") != normalize_name("A")


@pytest.mark.parametrize("root", ["C:\\Users\\Ali\\", "C:/Users/Ali/", "\\\\server\\share\\", "D:\\Users/Ali/"])
def test_a_path_of_a_windows_machine_is_found_by_its_last_parts(root: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    _files(folder, "Ses/ses 1.wav", "ses 2.wav")
    mark = "\\" if "\\" in root else "/"
    names = [root + "Ses" + mark + "ses 1.wav", root + "Ses" + mark + "ses 2.wav", root + "ses 3.wav"]
    assert find_audio_file(folder, names[0], (folder,)) == folder / "Ses" / "ses 1.wav"
    assert find_audio_file(folder, names[1], (folder,)) == folder / "ses 2.wav"
    (folder / "metadata.csv").write_text("".join(f"{name}|Merhaba\n" for name in names), encoding="utf-8")
    done, clips = _import(folder)
    assert len(clips) == 2
    assert [problem.line for problem in done.problems] == [3]


def test_folders_of_the_same_name_that_become_one_speaker_are_named(tmp_path: Path) -> None:
    for name in ("Ramesh/set1", "Sunita/set1", "train/anna", "test/anna"):
        _files(tmp_path / "in", *(f"{name}/{at:02}{ending}" for at in (1, 2) for ending in (".wav", ".txt")))
    done, clips = _import(tmp_path / "in", speaker_from="folder")
    assert {clip.speaker for clip in clips} == {"set1", "anna"}
    (warning,) = [item for item in done.findings() if item.code == "speakers-same-name"]
    assert warning.found == "set1 is in 2 folders, such as Ramesh/set1 and Sunita/set1"
    done, _ = _import(tmp_path / "in", speaker_from="auto", reimport=True)
    assert "speakers-same-name" not in [item.code for item in done.findings()]


def test_names_of_people_keep_their_combining_signs() -> None:
    assert sanitize_name("Sunita जी") == "Sunita_जी"
    assert sanitize_name(DECOMPOSED) == DECOMPOSED.replace(" ", "_")
    assert sanitize_name(" ./a:  b / c*") == "a_b_c"
    assert sanitize_name("../..") == "recording"


def test_digits_of_a_format_are_no_number_of_a_part() -> None:
    names = ["f_mp4.mp4", "f_mp3.mp3", "talk-1.wav", "talk-2.wav", "walk-1.wav"]
    found = infer_recordings([TranscriptRow(line, name, "x") for line, name in enumerate(names)])
    assert list(found.values()) == ["f_mp4", "f_mp3", "talk", "talk", "walk"]
