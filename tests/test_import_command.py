"""`data import` from folders of films, killed and resumed, and the commands that look at and change datasets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.audio import film
from tests.support.families import ALL
from voxgraft.audio.files import read_clip_audio
from voxgraft.config.data import (
    DataImportSettings,
    DataInfoSettings,
    DataListSettings,
    DataMergeSettings,
    DataRemoveSettings,
    DataSpeakersSettings,
)
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.import_command import DataImportResult, build_import_options, data_import
from voxgraft.data.manage import data_info, data_list, data_merge, data_remove, data_speakers
from voxgraft.data.manifest import ManifestClip, read_manifest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two films with captions, one of them in two languages, and a file that is nothing."""
    folder = tmp_path_factory.mktemp("films")
    film().write(folder / "one", "film.am")
    (folder / "one" / "film.am.wav").rename(folder / "one" / "film.wav")
    (folder / "one" / "film.en.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nHello\n", encoding="utf-8")
    film(rolling=True).write(folder / "two", "film", ".flac")
    (folder / "two" / "notes.pdf").write_bytes(b"%PDF")
    return folder


def _settings(dataset: Path, *sources: Path, **more: Any) -> DataImportSettings:
    return DataImportSettings(**{"dataset": dataset, "sources": sources, "language": "am", "workers": 1, **more})


def _import(dataset: Path, *sources: Path, **more: Any) -> tuple[DataImportResult, list[ManifestClip]]:
    done = data_import(_settings(dataset, *sources, **more))
    return done, list(read_manifest(dataset / "manifest.jsonl"))


def _contents(dataset: Path) -> dict[str, bytes]:
    """Every clip's bytes and the manifest's."""
    return {
        str(path.relative_to(dataset)): path.read_bytes()
        for path in sorted(dataset.rglob("*"))
        if path.is_file() and (path.suffix == ".flac" or path.name == "manifest.jsonl")
    }


@pytest.fixture(scope="module")
def whole(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both films imported without any disturbance; tests leave it as it is."""
    dataset = tmp_path_factory.mktemp("sets") / "whole"
    _import(dataset, films)
    return dataset


def test_a_folder_of_films_becomes_clips_with_a_manifest(whole: Path) -> None:
    clips = list(read_manifest(whole / "manifest.jsonl"))
    texts = [sentence.text for sentence in film().said]
    for recording in ("film", "film-2"):
        own = [clip for clip in clips if clip.recording == recording]
        assert [clip.text_as_found.split("\n")[-1] for clip in own] == texts
        assert not any(clip.rejected for clip in own)
    for clip in clips:
        samples, rate = read_clip_audio(clip.resolve_audio(whole))
        assert rate == clip.sample_rate == 24_000
        assert len(samples) / rate == pytest.approx(clip.seconds, abs=1e-3)
        assert clip.end - clip.start == pytest.approx(clip.seconds, abs=1e-3)


def test_nothing_is_left_out_in_silence(films: Path, tmp_path: Path) -> None:
    done, _ = _import(tmp_path / "set", films)
    reported = {(problem.code, Path(problem.file).name) for problem in done.problems}
    assert ("source-unknown", "film.en.srt") in reported
    assert ("source-unknown", "notes.pdf") in reported
    assert ("subtitle-repeats", "film.srt") in reported
    written = [json.loads(line) for line in (tmp_path / "set" / "problems.jsonl").read_text().splitlines()]
    assert len(written) == len(set(done.problems))
    assert all(Path(one["file"]).is_absolute() and Path(one["file"]).exists() and one["cure"] for one in written)
    assert done.exit_code == 0


def test_importing_again_adds_nothing_and_other_films_add_to_it(films: Path, tmp_path: Path) -> None:
    _, first = _import(tmp_path / "set", films / "one")
    done, again = _import(tmp_path / "set", films / "one")
    assert again == first
    assert done.plan.known == ["film"]
    _, both = _import(tmp_path / "set", films)
    assert both[: len(first)] == first
    assert len({clip.id for clip in both}) == len(both) == 2 * len(first)


def test_two_processes_give_the_same_bytes_as_one(films: Path, whole: Path, tmp_path: Path) -> None:
    _import(tmp_path / "set", films, workers=2)
    assert _contents(tmp_path / "set") == _contents(whole)


@pytest.mark.long(fast="1")
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_again_and_again_nothing_is_lost_or_doubled(
    films: Path, whole: Path, tmp_path: Path, workers: int
) -> None:
    dataset = tmp_path / "set"
    words = [sys.executable, "-m", "voxgraft", "data", "import", str(dataset), str(films), "--language", "am"]
    words += ["--workers", str(workers), "--quiet"]
    kills = 0
    for least in (3, 20):
        process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "VOXGRAFT_TEST": str(dataset)})
        while process.poll() is None and len(list(dataset.rglob("*.flac"))) < least:
            time.sleep(0.002)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    subprocess.run(words, cwd=ROOT, check=True)
    assert kills == 2
    assert not _workers(dataset), "processes of a command that was killed end too"
    assert _contents(dataset) == _contents(whole)
    assert not list(dataset.rglob("*.part"))


def _workers(dataset: Path) -> list[int]:
    """Processes that imported into the dataset and have lost their parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            own = (folder / "environ").read_bytes().decode(errors="replace")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if f"VOXGRAFT_TEST={dataset}" in own and parent == "1":
            found.append(int(folder.name))
    return found


def test_a_half_written_line_of_a_journal_is_made_again(films: Path, whole: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "set"
    _import(dataset, films)
    (dataset / "manifest.jsonl").unlink()
    for journal in (dataset / "imports").glob("*.jsonl"):
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:6]) + lines[6][:20])
    _import(dataset, films)
    assert _contents(dataset) == _contents(whole)


def test_a_source_that_changed_is_reported_and_not_mixed_with_the_old(films: Path, tmp_path: Path) -> None:
    media, subtitles = film().write(tmp_path / "in", "film")
    _, before = _import(tmp_path / "set", tmp_path / "in")
    subtitles.write_text(subtitles.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    done, after = _import(tmp_path / "set", tmp_path / "in")
    assert after == before
    assert [problem.code for problem in done.problems] == ["source-changed"]
    data_remove(DataRemoveSettings(dataset=tmp_path / "set", recording=("film",), yes=True))
    _, fresh = _import(tmp_path / "set", tmp_path / "in")
    assert fresh == before
    assert media.exists()


def test_a_film_that_fails_does_not_stop_the_others(films: Path, tmp_path: Path) -> None:
    film().write(tmp_path / "in", "good")
    (tmp_path / "in" / "bad.mp4").write_bytes(b"no film at all")
    (tmp_path / "in" / "bad.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nሰላም\n", encoding="utf-8")
    (tmp_path / "in" / "alone.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nሰላም\n", encoding="utf-8")
    done, clips = _import(tmp_path / "set", tmp_path / "in")
    assert {clip.recording for clip in clips} == {"good"}
    assert done.exit_code == 1
    codes = {problem.code for problem in done.problems}
    assert {"media-unreadable", "media-missing"} <= codes


def test_captions_after_the_end_of_the_film_are_reported(tmp_path: Path) -> None:
    _, subtitles = film().write(tmp_path / "in", "film")
    text = subtitles.read_text(encoding="utf-8") + "\n999\n01:00:00,000 --> 01:00:02,000\nበቃ በቃ\n"
    subtitles.write_text(text, encoding="utf-8")
    done, clips = _import(tmp_path / "set", tmp_path / "in")
    assert len(clips) == len(film().said)
    (problem,) = [problem for problem in done.problems if problem.code == "media-short"]
    assert problem.line == text.split("\n").index("01:00:00,000 --> 01:00:02,000") + 1


def test_two_imports_at_once_are_refused(films: Path, tmp_path: Path) -> None:
    dataset = DatasetFolder(tmp_path / "set")
    with dataset.locked(), pytest.raises(VoxgraftError) as caught:
        _import(dataset.folder, films)
    assert caught.value.code == "dataset-busy"


def test_the_longest_clip_is_what_the_family_hears(tmp_path: Path) -> None:
    assert build_import_options(_settings(tmp_path, tmp_path)).cut.longest == 15.0
    for name in ALL:
        assert 5 <= build_import_options(_settings(tmp_path, tmp_path, family=name)).cut.longest <= 15
    with pytest.raises(VoxgraftError):
        data_import(_settings(tmp_path, tmp_path, shortest=20.0))


def test_datasets_are_listed_and_looked_into(whole: Path) -> None:
    listed = data_list(DataListSettings(folder=whole.parent)).to_json()
    assert [one["dataset"] for one in listed["datasets"]] == ["whole"]
    recordings = data_list(DataListSettings(folder=whole)).to_json()["recordings"]
    assert set(recordings) == {"film", "film-2"}
    info = data_info(DataInfoSettings(dataset=whole, problems=True, clips=True))
    assert info.exit_code == 0
    assert info.to_json()["used"] == 2 * len(film().said)
    assert info.to_json()["every_problem"]


def test_merged_sets_keep_every_clip_of_both(whole: Path, films: Path, tmp_path: Path) -> None:
    """Both have clips of the same names: none overwrites another."""
    _import(tmp_path / "other", films / "two")
    settings = DataMergeSettings(dataset=tmp_path / "all", sets=(whole, tmp_path / "other"))
    done = data_merge(settings).to_json()
    clips = list(read_manifest(tmp_path / "all" / "manifest.jsonl"))
    assert done["added"] == len(clips) == 3 * len(film().said)
    assert done["renamed"] == len(film().said)
    assert len({clip.audio for clip in clips}) == len(clips)
    sources = {"whole": whole, "other": tmp_path / "other"}
    for clip in clips:
        folder, _, old = str(clip.other["merged_from"]).partition("#")
        name = "whole" if Path(folder).name == "whole" else "other"
        (same,) = [one for one in read_manifest(sources[name] / "manifest.jsonl") if one.id == old]
        assert clip.resolve_audio(tmp_path / "all").read_bytes() == same.resolve_audio(sources[name]).read_bytes()
        assert clip.text == same.text
    assert data_merge(settings).to_json()["added"] == 0


@pytest.mark.parametrize(("language", "codes"), [("am", []), ("xx", ["language-unlisted"])])
def test_a_code_that_names_no_known_language_is_imported_with_a_warning(
    films: Path, tmp_path: Path, language: str, codes: list[str]
) -> None:
    talks = tmp_path / "talks"
    talks.mkdir()
    for old, new in (("film.wav", "talk.wav"), ("film.am.srt", "talk.srt")):
        shutil.copy(films / "one" / old, talks / new)
    done, clips = _import(tmp_path / "set", talks, language=language)
    assert clips
    assert done.exit_code == 0
    assert [item.code for item in done.findings()] == codes


def test_a_dataset_under_another_code_of_its_language_can_be_extended(films: Path, tmp_path: Path) -> None:
    done, clips = _import(tmp_path / "set", films / "one", language="amh")
    assert clips
    assert [(item.code, item.expected) for item in done.findings()] == [("language-unlisted", "am")]


def test_nothing_is_removed_without_a_word(films: Path, tmp_path: Path) -> None:
    _, clips = _import(tmp_path / "set", films / "one")
    ask = DataRemoveSettings(dataset=tmp_path / "set", clip=(clips[0].id,))
    assert data_remove(ask).exit_code == 1
    assert len(list(read_manifest(tmp_path / "set" / "manifest.jsonl"))) == len(clips)
    data_remove(ask.model_copy(update={"yes": True}))
    left = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    assert left == clips[1:]
    assert not clips[0].resolve_audio(tmp_path / "set").exists()
    _, again = _import(tmp_path / "set", films / "one")
    assert again == left, "what was removed does not come back by itself"
    with pytest.raises(VoxgraftError, match="did you mean") as caught:
        data_remove(DataRemoveSettings(dataset=tmp_path / "set", clip=(clips[1].id + "x",)))
    assert caught.value.code == "clips-unknown"


def test_clips_whose_sound_is_gone_are_found_and_taken_out(films: Path, tmp_path: Path) -> None:
    _, clips = _import(tmp_path / "set", films / "one")
    clips[3].resolve_audio(tmp_path / "set").unlink()
    info = data_info(DataInfoSettings(dataset=tmp_path / "set"))
    assert info.exit_code == 1
    assert info.to_json()["missing_audio"] == [clips[3].id]
    data_remove(DataRemoveSettings(dataset=tmp_path / "set", missing=True, yes=True))
    assert data_info(DataInfoSettings(dataset=tmp_path / "set")).exit_code == 0


def test_speakers_get_other_names(films: Path, tmp_path: Path) -> None:
    _import(tmp_path / "set", films)
    done = data_speakers(DataSpeakersSettings(dataset=tmp_path / "set", rename=("film=Abebe", "film-2=Abebe")))
    assert list(done.to_json()["speakers"]) == ["Abebe"]
    assert {clip.speaker for clip in read_manifest(tmp_path / "set" / "manifest.jsonl")} == {"Abebe"}
