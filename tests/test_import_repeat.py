"""Datasets that are imported into, merged and removed from again and again: nothing is mixed, lost or forgotten."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings, DataInfoSettings, DataMergeSettings, DataRemoveSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.manage import data_info, data_merge, data_remove
from voxgraft.data.manifest import ManifestClip, read_manifest, write_manifest

RATE = 16_000
ROOT = Path(__file__).resolve().parent.parent


def _sound(path: Path, seconds: float = 6.0, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE))
    soundfile.write(path, noise.astype(np.float32), RATE)


def _film(folder: Path, name: str, *texts: str, seed: int = 0) -> Path:
    """A recording with a caption every two seconds."""
    _sound(folder / f"{name}.wav", seed=seed)
    blocks = [f"{at}\n00:00:0{2 * at},000 --> 00:00:0{2 * at + 1},500\n{text}\n" for at, text in enumerate(texts)]
    (folder / f"{name}.srt").write_text("\n".join(blocks), encoding="utf-8")
    return folder / f"{name}.srt"


def _import(dataset: Path, *sources: Path) -> tuple[DataImportResult, list[ManifestClip]]:
    options: dict[str, Any] = {"language": "am", "rate": RATE, "workers": 1, "cut": "times"}
    done = data_import(DataImportSettings(dataset=dataset, sources=sources, **options))
    return done, _clips(dataset)


def _clips(dataset: Path) -> list[ManifestClip]:
    return list(read_manifest(dataset / "manifest.jsonl"))


def _merge(dataset: Path, *sets: Path, **more: Any) -> list[ManifestClip]:
    data_merge(DataMergeSettings(dataset=dataset, sets=sets, **more))
    return _clips(dataset)


def _remove(dataset: Path, **more: Any) -> dict[str, Any]:
    return data_remove(DataRemoveSettings(dataset=dataset, yes=True, **more)).to_json()


def _sounds(dataset: Path) -> dict[str, bytes]:
    return {clip.id: clip.resolve_audio(dataset).read_bytes() for clip in _clips(dataset)}


def test_an_import_into_a_merged_dataset_leaves_old_sounds_and_brings_every_new_clip(tmp_path: Path) -> None:
    _import(tmp_path / "first", _film(tmp_path / "a", "film", "አንድ", "ሁለት"))
    _merge(tmp_path / "all", tmp_path / "first")
    before = _sounds(tmp_path / "all")
    _, clips = _import(tmp_path / "all", _film(tmp_path / "b", "film", "ሦስት", "አራት", seed=1))
    assert [clip.text for clip in clips] == ["አንድ", "ሁለት", "ሦስት", "አራት"]
    assert before.items() <= _sounds(tmp_path / "all").items()
    assert len({clip.recording for clip in clips}) == len({clip.speaker for clip in clips}) == 2


def test_a_clip_under_the_id_of_another_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    _import(tmp_path / "set", _film(tmp_path / "a", "film", "አንድ", "ሁለት"))
    journal = tmp_path / "set" / "imports" / "film.jsonl"
    journal.write_text(journal.read_text(encoding="utf-8").replace('{"published": true}\n', ""), encoding="utf-8")
    other = [replace(clip, source="other.srt:1") for clip in _clips(tmp_path / "set")]
    write_manifest(tmp_path / "set" / "manifest.jsonl", other)
    with pytest.raises(VoxgraftError, match=r"other\.srt") as caught:
        _import(tmp_path / "set", tmp_path / "a")
    assert caught.value.code == "manifest-double-id"


def test_merged_recordings_stay_whole_and_people_stay_apart(tmp_path: Path) -> None:
    """The second set has more clips under the same name: none of them may fall to the other's recording or speaker."""
    _import(tmp_path / "one", _film(tmp_path / "a", "film", "አንድ", "NARRATOR: ሁለት"))
    _import(tmp_path / "two", _film(tmp_path / "b", "film", "ሀ", "NARRATOR: ለ", "ሐ", seed=1))
    clips = _merge(tmp_path / "all", tmp_path / "one", tmp_path / "two")
    places = [(clip.recording, clip.speaker, clip.id) for clip in clips]
    assert places == [
        ("film", "film", "film-00001"),
        ("film", "film:NARRATOR", "film-00002"),
        ("two.film", "two.film", "two.film-00001"),
        ("two.film", "two.film:NARRATOR", "two.film-00002"),
        ("two.film", "two.film", "two.film-00003"),
    ]


def test_what_is_merged_later_of_a_recording_joins_the_rest_of_it(tmp_path: Path) -> None:
    _import(tmp_path / "one", _film(tmp_path / "a", "film", "አንድ"))
    _import(tmp_path / "two", _film(tmp_path / "b", "film", "ሀ", "ለ", "ሐ", seed=1))
    made = _clips(tmp_path / "two")
    write_manifest(tmp_path / "two" / "manifest.jsonl", [made[0], replace(made[1], rejected=("noise",)), made[2]])
    _merge(tmp_path / "all", tmp_path / "one", tmp_path / "two", used_only=True)
    clips = _merge(tmp_path / "all", tmp_path / "one", tmp_path / "two")
    assert [clip.recording for clip in clips] == ["film", "two.film", "two.film", "two.film"]
    assert len({clip.audio for clip in clips}) == 4


def test_a_dataset_is_not_put_into_itself_nor_a_clip_in_twice_by_a_way_round(tmp_path: Path) -> None:
    _import(tmp_path / "one", _film(tmp_path / "a", "film", "አንድ", "ሁለት"))
    with pytest.raises(VoxgraftError, match="into itself") as caught:
        _merge(tmp_path / "one", tmp_path / "a" / ".." / "one")
    assert caught.value.code == "config-value"
    for name in ("two", "three"):
        _merge(tmp_path / name, tmp_path / "one")
    before = _clips(tmp_path / "one")
    assert _merge(tmp_path / "one", tmp_path / "two") == before, "the clips came from there"
    _import(tmp_path / "three", _film(tmp_path / "b", "more", "ሦስት", seed=1))
    clips = _merge(tmp_path / "four", tmp_path / "two", tmp_path / "three")
    assert [clip.text for clip in clips] == ["አንድ", "ሁለት", "ሦስት"]
    assert [clip.text for clip in _merge(tmp_path / "one", tmp_path / "four")] == ["አንድ", "ሁለት", "ሦስት"]


def test_sounds_that_come_after_their_list_make_it_another_source_which_goes_by_its_name(tmp_path: Path) -> None:
    _sound(tmp_path / "a" / "r0.wav", 2.0)
    (tmp_path / "a" / "list.csv").write_text("r0|አንድ\nr1|ሁለት\n", encoding="utf-8")
    done, _ = _import(tmp_path / "set", tmp_path / "a")
    assert [problem.code for problem in done.problems] == ["media-missing"]
    _sound(tmp_path / "a" / "r1.wav", 2.0, 1)
    done, clips = _import(tmp_path / "set", tmp_path / "a")
    assert [problem.code for problem in done.problems] == ["source-changed"]
    assert len(clips) == 1
    assert _remove(tmp_path / "set", recording=("list",))["removed"] == 1
    _, clips = _import(tmp_path / "set", tmp_path / "a")
    assert [clip.text for clip in clips] == ["አንድ", "ሁለት"]


def _list(folder: Path, texts: dict[int, str], seed: int = 0) -> Path:
    """Sounds r0.wav, r1.wav ... of different lengths, with a list."""
    for at in texts:
        _sound(folder / f"r{at}.wav", 1.5 + at / 3, at + seed)
    lines = "".join(f"r{at}|{text}\n" for at, text in texts.items())
    (folder / f"{folder.name}.csv").write_text(lines, encoding="utf-8")
    return folder


def test_a_source_that_was_renamed_and_mended_warns_of_its_old_clips_and_names_the_command_that_removes_them(
    tmp_path: Path,
) -> None:
    texts = dict(enumerate(("አንድ", "ሁለት", "ሦስት", "አራት", "አምስት")))
    done, _ = _import(tmp_path / "set", _list(tmp_path / "raw", texts))
    assert not done.doubled
    (tmp_path / "raw").rename(tmp_path / "gone")
    mended = _list(tmp_path / "mended", texts | {1: "ሁለት ናቸው"})
    sound, rate = soundfile.read(mended / "r2.wav", dtype="float32")
    soundfile.write(mended / "r2.wav", 0.5 * sound, rate)  # another sound, with the same text and length
    done, clips = _import(tmp_path / "set", mended)
    assert len(clips) == 10
    (item,) = [item for item in done.findings() if item.code == "source-doubled"]
    assert (item.level, done.exit_code, item.found) == ("warning", 0, "5 of 5 clips of mended are in raw too")
    assert f"voxgraft data remove {tmp_path / 'set'} --recording raw`" in item.cure
    assert _remove(tmp_path / "set", recording=("raw",))["removed"] == 5
    assert {clip.speaker for clip in _clips(tmp_path / "set")} == {"mended"}


def test_two_people_who_read_the_same_sentences_are_not_taken_for_one_source(tmp_path: Path) -> None:
    texts = dict(enumerate(("አንድ", "ሁለት", "ሦስት", "አራት", "አምስት")))
    _import(tmp_path / "set", _list(tmp_path / "ana", texts))
    other = {at + 1: text for at, text in texts.items()}  # each sentence takes a third of a second longer
    done, clips = _import(tmp_path / "set", _list(tmp_path / "ben", other, seed=10))
    assert (len(clips), [item.code for item in done.findings()]) == (10, [])


def test_a_list_without_any_sound_is_imported_once_the_sounds_are_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "list.csv").write_text("r0|አንድ\nr1|ሁለት\n", encoding="utf-8")
    assert _import(tmp_path / "set", tmp_path / "a")[1] == []
    _sound(tmp_path / "a" / "r0.wav", 2.0)
    assert [clip.text for clip in _import(tmp_path / "set", tmp_path / "a")[1]] == ["አንድ"]


def test_who_only_looks_at_a_dataset_leaves_a_journal_as_it_is_while_it_is_written(tmp_path: Path) -> None:
    _import(tmp_path / "set", _film(tmp_path / "a", "film", "አንድ", "ሁለት"))
    journal = tmp_path / "set" / "imports" / "film.jsonl"
    half = journal.read_bytes().removesuffix(b'{"published": true}\n') + b'{"publ'
    journal.write_bytes(half)
    data_info(DataInfoSettings(dataset=tmp_path / "set", problems=True))
    assert journal.read_bytes() == half
    _import(tmp_path / "set", tmp_path / "a")
    assert journal.read_bytes() == half.removesuffix(b'{"publ') + b'{"published": true}\n'


def test_names_that_lead_out_of_the_folder_do_not(tmp_path: Path) -> None:
    _import(tmp_path / "deep" / "one", _film(tmp_path / "a", "film", "አንድ", "ሁለት"))
    first, second = _clips(tmp_path / "deep" / "one")
    odd = [replace(first, recording="..", id="../../x"), replace(second, recording="..", id="/y")]
    write_manifest(tmp_path / "deep" / "one" / "manifest.jsonl", odd)
    clips = _merge(tmp_path / "deep" / "all", tmp_path / "deep" / "one")
    for clip in clips:
        assert (tmp_path / "deep" / "all" / "clips") in clip.resolve_audio(tmp_path / "deep" / "all").resolve().parents
    assert [clip.recording for clip in clips] == ["..", ".."]


def test_a_source_that_is_named_twice_comes_once(tmp_path: Path) -> None:
    path = _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    _film(tmp_path / "copy", "same", "አንድ", "ሁለት")
    done, clips = _import(tmp_path / "set", path, tmp_path / "a", path, tmp_path / "copy")
    assert [clip.text for clip in clips] == ["አንድ", "ሁለት"]
    assert done.plan.known == ["film"]


def test_a_source_that_failed_is_imported_once_it_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    whole = path.with_suffix(".wav").read_bytes()
    path.with_suffix(".wav").write_bytes(b"no sound at all")
    done, clips = _import(tmp_path / "set", path)
    assert (done.exit_code, clips) == (1, [])
    path.with_suffix(".wav").write_bytes(whole)
    monkeypatch.chdir(tmp_path / "a")  # the same place under another name
    done, clips = _import(tmp_path / "set", Path("film.srt"))
    assert done.exit_code == 0
    assert [clip.id for clip in clips] == ["film-00001", "film-00002"]
    assert not data_info(DataInfoSettings(dataset=tmp_path / "set")).to_json()["problems"]


def test_a_source_that_changed_is_an_error_however_its_place_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    _import(tmp_path / "set", path)
    _film(tmp_path / "a", "film", "አንድ", "ሦስት")
    monkeypatch.chdir(tmp_path / "a")
    done, clips = _import(tmp_path / "set", Path("film.srt"))
    assert done.exit_code == 1
    assert [problem.code for problem in done.problems] == ["source-changed"]
    assert [clip.text for clip in clips] == ["አንድ", "ሁለት"]


def _reported(dataset: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Problems as the file has them, and as `data info` shows them."""
    written = [json.loads(line) for line in (dataset / "problems.jsonl").read_text(encoding="utf-8").splitlines()]
    shown = data_info(DataInfoSettings(dataset=dataset, problems=True)).to_json()["every_problem"]
    sides = [{(one["code"], Path(one["file"]).name) for one in side} for side in (written, shown)]
    return sides[0], sides[1]


def test_problems_are_kept_until_their_place_is_looked_at_again(tmp_path: Path) -> None:
    bad = _film(tmp_path / "a", "bad", "አንድ")
    bad.with_suffix(".wav").write_bytes(b"no sound at all")
    _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    (tmp_path / "a" / "notes.pdf").write_bytes(b"%PDF")
    _import(tmp_path / "set", tmp_path / "a")
    expected = {("media-unreadable", "bad.srt"), ("source-unknown", "notes.pdf")}
    assert _reported(tmp_path / "set") == (expected, expected)
    _import(tmp_path / "set", _film(tmp_path / "b", "other", "ሦስት"))
    assert _reported(tmp_path / "set") == (expected, expected)
    (tmp_path / "a" / "notes.pdf").unlink()
    _import(tmp_path / "set", tmp_path / "a")
    assert _reported(tmp_path / "set") == ({("media-unreadable", "bad.srt")},) * 2


def _killed_at(event: int, work: Callable[[], object]) -> bool:
    """Do some work in another process, which ends without a word at its n-th change of a file's name."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(name: str, _: object) -> None:
            nonlocal seen
            if name in ("os.rename", "os.remove", "os.rmdir"):
                seen += 1
                if seen == event:
                    os._exit(9)

        sys.addaudithook(count)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.long
def test_a_removal_that_was_killed_is_whole_or_was_never_begun(tmp_path: Path) -> None:
    path = _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    other = _film(tmp_path / "b", "other", "ሦስት", seed=1)
    event, killed = 0, True
    while killed:
        event += 1
        dataset = tmp_path / f"set-{event}"
        _, before = _import(dataset, path, other)
        killed = _killed_at(event, partial(_remove, dataset, recording=("film",)))
        gone = len(_clips(dataset)) < len(before)
        done, after = _import(dataset, path, other)
        assert sorted(clip.id for clip in after) == sorted(clip.id for clip in before)
        assert done.new_clips == (2 if gone else 0)
        assert data_info(DataInfoSettings(dataset=dataset)).exit_code == 0
    assert event > 4


def test_what_is_removed_after_a_killed_import_does_not_come_back_without_its_sound(tmp_path: Path) -> None:
    path = _film(tmp_path / "a", "film", "አንድ", "ሁለት")
    _import(tmp_path / "set", path)
    journal = tmp_path / "set" / "imports" / "film.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    assert lines[-1] == '{"published": true}\n'
    journal.write_text("".join(lines[:-1]), encoding="utf-8")
    _remove(tmp_path / "set", clip=("film-00001",))
    _, clips = _import(tmp_path / "set", path)
    assert [clip.id for clip in clips] == ["film-00002"]
    assert data_info(DataInfoSettings(dataset=tmp_path / "set")).exit_code == 0


def test_sounds_that_are_not_the_datasets_own_are_never_deleted(tmp_path: Path) -> None:
    _import(tmp_path / "set", _film(tmp_path / "a", "film", "አንድ", "ሁለት", "ሦስት"))
    mine = tmp_path / "mine.wav"
    _sound(mine)
    one, two, three = _clips(tmp_path / "set")
    odd = [replace(one, audio=str(mine)), replace(two, audio="clips/../../mine.wav"), three]
    write_manifest(tmp_path / "set" / "manifest.jsonl", odd)
    done = _remove(tmp_path / "set", recording=("film",))
    assert mine.exists()
    assert done["left"] == [str(mine), "clips/../../mine.wav"]
    assert not three.resolve_audio(tmp_path / "set").exists()


def test_a_list_of_which_every_recording_was_removed_can_be_imported_again(tmp_path: Path) -> None:
    for at in range(3):
        _sound(tmp_path / "a" / f"r{at}.wav", 2.0, at)
    (tmp_path / "a" / "list.csv").write_text("r0|አንድ\nr1|ሁለት\nr2|ሦስት\n", encoding="utf-8")
    _, clips = _import(tmp_path / "set", tmp_path / "a")
    for clip in clips:
        _remove(tmp_path / "set", recording=(clip.recording,))
    assert not list((tmp_path / "set" / "clips").glob("*"))
    assert _import(tmp_path / "set", tmp_path / "a")[1] == clips


def test_a_dataset_that_is_a_file_and_a_journal_that_is_none_are_errors_of_ours(tmp_path: Path) -> None:
    path = _film(tmp_path / "a", "film", "አንድ")
    (tmp_path / "file").write_text("x")
    with pytest.raises(VoxgraftError):
        _import(tmp_path / "file", path)
    _import(tmp_path / "set", path)
    (tmp_path / "set" / "imports" / "film.jsonl").write_text('{"source": 5}\n')
    with pytest.raises(VoxgraftError) as caught:
        DatasetFolder(tmp_path / "set").journals()
    assert caught.value.code == "manifest-line"
