"""Data as people have it: who speaks, faults in single files and lines, and sources that are fixed afterwards."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import wave
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxgraft.asr.align import data_align
from voxgraft.audio.files import encode_audio, find_missing_audio
from voxgraft.cli import run_cli
from voxgraft.config.data import DataAlignSettings, DataImportSettings, DataSplitSettings
from voxgraft.core.errors import ConfigError, TextError
from voxgraft.core.languages import suggest_encoding
from voxgraft.core.results import plain_text
from voxgraft.data.folder import read_import_journal
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.manifest import ManifestClip, read_manifest, write_manifest
from voxgraft.data.sources import find_sources
from voxgraft.data.split import data_split
from voxgraft.data.subtitles import decode_text

RATE = 16_000
WORDS = "сад лес дом река гора поле снег море свет ночь день утро вода небо земля ветер зима весна лето осень".split()


def sentence(number: int) -> str:
    return f"Это {WORDS[number % 20]} и {WORDS[number * 7 % 20]} номер {WORDS[number // 20 % 20]}"


def sound(path: Path, seed: int = 0, seconds: float = 1.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE))
    soundfile.write(path, noise.astype(np.float32), RATE)


def lj_list(folder: Path, count: int) -> Path:
    """`metadata.csv` with an id and a text on each line, and a sound for each."""
    for at in range(count):
        sound(folder / "wavs" / f"ru_{at:04d}.wav", at)
    lines = [f"ru_{at:04d}|{sentence(at)}" for at in range(count)]
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def bring(dataset: Path, *sources: Path, **more: Any) -> tuple[DataImportResult, list[ManifestClip]]:
    options = {"language": "ru", "rate": RATE, "workers": 1, **more}
    done = data_import(DataImportSettings(dataset=dataset, sources=sources, **options))
    return done, list(read_manifest(dataset / "manifest.jsonl"))


def shown(result: Any) -> str:
    return "\n".join(
        line if isinstance(line, str) else plain_text(line) for line in result.lines() if not hasattr(line, "rows")
    )


# ---- who speaks -----------------------------------------------------------------------------------------------------


def test_a_list_without_a_speaker_column_is_one_speaker_and_import_says_so(tmp_path: Path) -> None:
    done, clips = bring(tmp_path / "set", lj_list(tmp_path / "mine", 12))
    assert {clip.speaker for clip in clips} == {"mine-metadata"}
    assert len({clip.recording for clip in clips}) == 12, "every file is a recording of its own"
    assert "1 speaker for 12 clips" in shown(done)
    assert "--speaker NAME" in shown(done)


def test_a_folder_of_sounds_with_texts_is_one_speaker(tmp_path: Path) -> None:
    for at in range(4):
        sound(tmp_path / "anna" / f"a{at}.wav", at)
        (tmp_path / "anna" / f"a{at}.txt").write_text(sentence(at), encoding="utf-8")
    _, clips = bring(tmp_path / "set", tmp_path / "anna")
    assert {clip.speaker for clip in clips} == {"anna"}


def test_libritts_takes_speaker_and_chapter_from_its_folders(tmp_path: Path) -> None:
    for at, (who, chapter) in enumerate([("84", "121123"), ("84", "121550"), ("174", "50561")]):
        for part in range(2):
            path = tmp_path / "train-clean" / who / chapter / f"{who}_{chapter}_000007_00000{part}.wav"
            sound(path, 10 * at + part)
            path.with_suffix(".normalized.txt").write_text(sentence(10 * at + part), encoding="utf-8")
            path.with_suffix(".original.txt").write_text("ignored", encoding="utf-8")
            with (path.parent / f"{who}_{chapter}.trans.tsv").open("a", encoding="utf-8") as stream:
                stream.write(f"{path.stem}\tignored\tignored\n")
            with (path.parent / f"{who}_{chapter}.book.tsv").open("a", encoding="utf-8") as stream:
                stream.write(f"ignored\tignored\t{path.stem}\t0.4\t0.3\n")
    (tmp_path / "train-clean" / "speakers.tsv").write_text("READER\tGENDER\tSUBSET\tNAME\n84\tF\tx\tA\n")
    done, clips = bring(tmp_path / "set", tmp_path / "train-clean")
    assert done.problems == ()
    found = {(clip.speaker, clip.recording) for clip in clips}
    assert found == {("84", "84-121123"), ("84", "84-121550"), ("174", "174-50561")}


def test_lists_beside_a_longer_one_that_has_all_their_lines_are_left_out(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 10)
    lines = (mine / "metadata.csv").read_text(encoding="utf-8").splitlines()
    (mine / "metadata_train.csv").write_text("\n".join(lines[:8]) + "\n", encoding="utf-8")
    (mine / "metadata_val.csv").write_text("\n".join(lines[8:]) + "\n", encoding="utf-8")
    done, clips = bring(tmp_path / "set", mine)
    assert len(clips) == 10
    assert {clip.speaker for clip in clips} == {"mine-metadata"}
    assert [problem.code for problem in done.problems] == ["list-repeated"] * 2
    assert done.exit_code == 0
    (mine / "metadata.csv").unlink()
    _, clips = bring(tmp_path / "other", mine)
    assert len(clips) == 10, "two lists that share nothing are both imported"


@pytest.mark.parametrize(("sounds", "ending"), [("wav48", ".wav"), ("wav48_silence_trimmed", "_mic1.flac")])
def test_vctk_takes_texts_from_its_other_tree_and_speakers_from_its_folders(
    tmp_path: Path, sounds: str, ending: str
) -> None:
    root = tmp_path / "VCTK"
    for at, who in enumerate(("p225", "p226")):
        for part in range(2):
            sound(root / sounds / who / f"{who}_00{part}{ending}", 10 * at + part)
            if "mic1" in ending:
                sound(root / sounds / who / f"{who}_00{part}_mic2.flac", 90 + 10 * at + part)
            text = root / "txt" / who / f"{who}_00{part}.txt"
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(sentence(10 * at + part), encoding="utf-8")
    done, clips = bring(tmp_path / "set", root)
    assert Counter(clip.speaker for clip in clips) == {"p225": 2, "p226": 2}
    assert {problem.code for problem in done.problems} <= {"second-microphone"}
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("options", "speakers"),
    [
        ({"speaker": "Ivan"}, {"Ivan"}),
        ({"speaker_from": "folder"}, {"s1", "s2"}),
        ({"speaker_from": "file"}, {"a0", "a1", "a2", "a3"}),
        ({"speaker_from": "recording"}, {"r0", "r1"}),
    ],
)
def test_who_speaks_can_be_said(tmp_path: Path, options: dict[str, str], speakers: set[str]) -> None:
    lines = ["audio|text|recording"]
    for at in range(4):
        sound(tmp_path / "in" / f"s{1 + at // 2}" / f"a{at}.wav", at)
        lines.append(f"s{1 + at // 2}/a{at}.wav|{sentence(at)}|r{at % 2}")
    (tmp_path / "in" / "list.csv").write_text("\n".join(lines), encoding="utf-8")
    _, clips = bring(tmp_path / "set", tmp_path / "in", **options)
    assert {clip.speaker for clip in clips} == speakers


def test_another_speaker_is_not_ignored_and_comes_with_reimport(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 6)
    bring(tmp_path / "set", mine)
    done, clips = bring(tmp_path / "set", mine, speaker="Ivan")
    assert done.exit_code == 1
    assert [problem.code for problem in done.problems] == ["import-settings"]
    assert "--reimport" in shown(done)
    assert "speaker not given (now Ivan)" in done.problems[0].found
    assert {clip.speaker for clip in clips} == {"mine-metadata"}
    done, again = bring(tmp_path / "set", mine, speaker="Ivan", reimport=True)
    assert done.exit_code == 0
    assert [replace(clip, speaker="Ivan") for clip in clips] == again
    assert bring(tmp_path / "set", mine)[0].exit_code == 0, "a flag that is not given says nothing"


# ---- splits ---------------------------------------------------------------------------------------------------------


def test_split_says_that_all_sides_are_one_person(tmp_path: Path) -> None:
    bring(tmp_path / "set", lj_list(tmp_path / "mine", 24))
    done = data_split(DataSplitSettings(dataset=tmp_path / "set"))
    assert "no leak was found" not in shown(done)
    assert "all splits have the same speaker, mine-metadata" in shown(done)
    assert done.findings() == []


def test_split_names_the_speaker_setting_where_every_clip_is_another_speaker(tmp_path: Path) -> None:
    bring(tmp_path / "set", lj_list(tmp_path / "mine", 24), speaker_from="file")
    found = data_split(DataSplitSettings(dataset=tmp_path / "set")).findings()
    assert [item.code for item in found] == ["speakers-one-clip"]
    assert "data.speaker" in found[0].cure
    assert "single_clip_speakers" not in found[0].cure


@pytest.mark.parametrize("seconds", [90.0, 1200.0])
def test_one_long_recording_is_split_by_stretches_with_a_gap(tmp_path: Path, seconds: float) -> None:
    count = round(seconds / 3)
    clips = [
        ManifestClip(f"t-{at}", f"clips/t/{at}.wav", 2.5, sentence(at) + f" {at}", "ru", "t", "t", RATE, start=at * 3.0)
        for at in range(count)
    ]
    write_manifest(tmp_path / "manifest.jsonl", clips)
    done = data_split(DataSplitSettings(dataset=tmp_path))
    used = [clip for clip in done.clips if clip.is_used]
    assert {clip.split for clip in used} == {"train", "validation", "test"}
    for one in used:
        for two in used:
            if one.split != two.split and one.start < two.start:
                assert two.start - (one.start + one.seconds) >= 5.0
    assert sum(clip.split == "train" for clip in used) > 0.6 * count
    assert "parts of recordings are held out" in shown(done)
    assert data_split(DataSplitSettings(dataset=tmp_path)).clips == done.clips


def test_whole_recordings_are_held_out_where_stretches_would_gain_little(tmp_path: Path) -> None:
    short = [
        ManifestClip(
            f"{who}-{at}", f"{who}/{at}.wav", 2.5, f"{sentence(at)} {who}", "ru", who, who, RATE, start=at * 3.0
        )
        for who in "abcdef"
        for at in range(4)
    ]
    write_manifest(tmp_path / "manifest.jsonl", short)
    assert not data_split(DataSplitSettings(dataset=tmp_path)).splits_recordings
    long = [replace(clip, seconds=8 * clip.seconds, start=60 * clip.start) for clip in short]
    write_manifest(tmp_path / "manifest.jsonl", long)
    assert data_split(DataSplitSettings(dataset=tmp_path)).splits_recordings


# ---- faults ---------------------------------------------------------------------------------------------------------


def test_five_planted_faults_are_listed_with_file_line_and_cure_and_the_rest_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = lj_list(tmp_path / "mine", 30)
    lines = (mine / "metadata.csv").read_bytes().splitlines()
    (mine / "wavs" / "ru_0003.wav").write_bytes(b"RIFF no sound at all")
    (mine / "wavs" / "ru_0007.wav").unlink()
    lines[11] = b"ru_0011|"
    lines[15] = lines[15].decode().encode("cp1251")
    lines[19] = lines[18].split(b"|")[0] + b"|" + lines[19].split(b"|")[1]
    (mine / "metadata.csv").write_bytes(b"\n".join(lines) + b"\n")
    (mine / "wavs" / "ru_0019.wav").unlink()
    command = ["data", "import", str(tmp_path / "set"), str(mine), "--language", "ru"]
    assert run_cli(command) == 0
    printed = capsys.readouterr().out
    expected = {
        "media-unreadable": (4, "convert it"),
        "media-missing": (8, "add the recording"),
        "transcript-empty": (12, "write the transcript"),
        "text-encoding": (16, "UTF-8"),
        "table-double-id": (20, "remove the wrong line"),
    }
    blocks = printed.split("warning ")[1:]
    assert len(blocks) == 5, printed
    for code, (line, cure) in expected.items():
        block = next(block for block in blocks if block.startswith(code))
        assert f"metadata.csv, line {line}\n" in block
        assert "fix: " in block
        assert cure in block
    clips = list(read_manifest(tmp_path / "set" / "manifest.jsonl"))
    assert len(clips) == 25
    assert run_cli([*command, "--max-left-out", "0.1", "--quiet"]) == 1


@pytest.mark.parametrize(
    "line",
    ["a0.wav|too|many|columns|here", '{"audio": "a0.wav", "text": ""}', '{"audio": "a0.wav", "text": "broken', "a0|"],
)
def test_a_faulty_line_is_one_problem_and_its_sound_is_no_second_one(tmp_path: Path, line: str) -> None:
    mine, is_json = tmp_path / "mine", line.startswith("{")
    for at in range(8):
        sound(mine / f"a{at}.wav", at)
    form = '{{"audio": "a{0}.wav", "text": "{1}"}}' if is_json else "a{0}|{1}"
    rest = [form.format(at, sentence(at)) for at in range(1, 8)]
    name = "list.jsonl" if is_json else "metadata.csv"
    (mine / name).write_text("\n".join([*rest, line]) + "\n", encoding="utf-8")
    done, clips = bring(tmp_path / "set", mine)
    assert [(problem.file.rpartition("/")[2], problem.line) for problem in done.problems] == [(name, 8)]
    assert (done.left_out[0], len(clips)) == (1 / 8, 7)


def test_import_warns_of_digits_that_stay_in_the_texts(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 3)
    with (mine / "metadata.csv").open("a", encoding="utf-8") as stream:
        stream.write("ru_0003|mwaka 2026\n")
    sound(mine / "wavs" / "ru_0003.wav")
    done, _ = bring(tmp_path / "set", mine, language="sw")
    assert "1 of 4 texts keep digits, the first '2026'" in shown(done)
    assert done.exit_code == 0
    done, _ = bring(tmp_path / "other", mine)
    assert "keep digits" not in shown(done)


def test_faults_of_sounds_with_texts_beside_them_are_listed_by_their_own_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for at in range(8):
        sound(mine / f"a{at}.wav", at)
        (mine / f"a{at}.txt").write_text(sentence(at), encoding="utf-8")
    (mine / "a1.wav").write_bytes(b"RIFF no sound at all")
    (mine / "a2.wav").unlink()
    (mine / "a3.wav").write_bytes(b"")
    (mine / "README.txt").write_text("about it", encoding="utf-8")
    done, clips = bring(tmp_path / "set", mine)
    expected = {
        *[("media-unreadable", "a1.wav", 0), ("media-missing", "a2.txt", 0), ("file-empty", "a3.wav", 0)],
        ("source-unknown", "README.txt", 0),
    }
    assert {(one.code, Path(one.file).name, one.line) for one in done.problems} == expected
    assert (len(clips), done.left_out[0]) == (5, 3 / 8)
    for name in ("a1.wav", "a2.txt", "a3.wav"):
        assert f"in: {mine / name}\n" in shown(done)


def test_a_subtitle_in_another_encoding_is_listed_and_the_others_are_cut(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    sound(mine / "talk.wav", seconds=20)
    cues = [f"{at}\n00:00:{2 * at:02d},000 --> 00:00:{2 * at + 1:02d},500\n{sentence(at)}\n" for at in range(8)]
    data = [cue.encode("cp1251" if at == 3 else "utf-8") for at, cue in enumerate(cues)]
    (mine / "talk.srt").write_bytes(b"\n".join(data))
    done, clips = bring(tmp_path / "set", mine, cut="times")
    assert [(one.line, one.file) for one in done.problems if one.code == "text-encoding"] == [(15, "talk.srt")]
    assert not any(sentence(3) in clip.text for clip in clips)
    assert sum(clip.text.count("номер") for clip in clips) == 7


def test_a_text_file_in_another_encoding_is_listed_and_read_where_its_encoding_is_said(tmp_path: Path) -> None:
    for at in range(6):
        sound(tmp_path / "mine" / f"a{at}.wav", at)
        (tmp_path / "mine" / f"a{at}.txt").write_text(sentence(at), encoding="cp1251" if at == 2 else "utf-8")
    done, clips = bring(tmp_path / "set", tmp_path / "mine")
    assert [(problem.code, problem.file, problem.line) for problem in done.problems] == [("text-encoding", "a2.txt", 1)]
    assert (done.exit_code, len(clips)) == (0, 5)
    _, clips = bring(tmp_path / "other", tmp_path / "mine", encoding="cp1251")
    assert [clip.text_as_found for clip in clips] == [sentence(at) for at in range(6)]


def test_the_encoding_that_is_said_wins_where_bytes_alone_cannot_tell() -> None:
    assert decode_text("ab".encode("utf-16-le"), "x", "utf-16-le") == "ab"
    assert decode_text("联通".encode("gbk"), "x", "gbk") == "联通"


def test_an_empty_text_beside_a_sound_is_listed_by_its_own_file(tmp_path: Path) -> None:
    for at in range(6):
        sound(tmp_path / "mine" / f"a{at}.wav", at)
        (tmp_path / "mine" / f"a{at}.txt").write_text("" if at == 2 else sentence(at), encoding="utf-8")
    (problem,) = bring(tmp_path / "set", tmp_path / "mine")[0].problems
    assert (problem.code, problem.file, problem.line) == ("transcript-empty", "a2.txt", 1)


def test_an_import_without_a_usable_clip_is_an_error_each_time(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 4)
    shutil.rmtree(mine / "wavs")
    for _ in range(2):
        done, clips = bring(tmp_path / "set", mine)
        assert (done.exit_code, clips) == (1, [])
        assert "import-empty" in [item.code for item in done.findings()]
    lj_list(mine, 4)
    assert bring(tmp_path / "set", mine)[0].exit_code == 0


def test_too_much_that_was_left_out_is_an_error_until_it_is_allowed(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 8)
    for at in range(4):
        (mine / "wavs" / f"ru_000{at}.wav").write_bytes(b"")
    done, clips = bring(tmp_path / "set", mine)
    assert (done.exit_code, len(clips)) == (1, 4)
    assert [item.code for item in done.findings()] == ["import-left-out"]
    assert bring(tmp_path / "set", mine)[0].exit_code == 1, "also when all of it is there already"
    assert bring(tmp_path / "set", mine, max_left_out=0.5)[0].exit_code == 0


# ---- changes --------------------------------------------------------------------------------------------------------


def _sided(dataset: Path) -> dict[str, tuple[str, str | None]]:
    return {clip.text_as_found: (clip.id, clip.split) for clip in read_manifest(dataset / "manifest.jsonl")}


def test_a_line_that_was_removed_goes_with_reimport_and_all_others_keep_id_and_side(tmp_path: Path) -> None:
    mine, dataset = lj_list(tmp_path / "mine", 24), tmp_path / "set"
    bring(dataset, mine)
    data_split(DataSplitSettings(dataset=dataset))
    before = _sided(dataset)
    lines = (mine / "metadata.csv").read_text(encoding="utf-8").splitlines()
    sound(mine / "wavs" / "new.wav", 99)
    (mine / "metadata.csv").write_text("\n".join([*lines[:3], f"new|{sentence(50)}", *lines[4:]]), encoding="utf-8")
    done, _ = bring(dataset, mine)
    assert done.exit_code == 1
    assert "--reimport" in shown(done)
    assert _sided(dataset) == before
    done, clips = bring(dataset, mine, reimport=True)
    assert done.exit_code == 0
    assert done.new_clips == 1
    gone = before.pop(sentence(3))
    after = _sided(dataset)
    assert after.pop(sentence(50)) == ("mine-metadata-00025", None)
    assert after == before
    assert not list(dataset.rglob(f"{gone[0]}.*")), "its sound goes with it"
    assert all(clip.resolve_audio(dataset).is_file() for clip in clips)
    assert bring(dataset, mine)[0].exit_code == 0


def test_a_sound_that_was_replaced_is_noticed_by_its_content(tmp_path: Path) -> None:
    mine, dataset = lj_list(tmp_path / "mine", 8), tmp_path / "set"
    broken = mine / "wavs" / "ru_0002.wav"
    whole = broken.read_bytes()
    broken.write_bytes(b"no sound at all")
    bring(dataset, mine)
    before = _sided(dataset)
    for path in mine.rglob("*.wav"):
        os.utime(path, (1, 1))
    done, _ = bring(dataset, mine)
    assert (done.exit_code, done.problems) == (0, ()), "another time alone is no change"
    broken.write_bytes(whole)
    done, _ = bring(dataset, mine)
    assert [problem.code for problem in done.problems] == ["source-changed"]
    assert "ru_0002" in done.problems[0].found
    assert [item.code for item in done.findings()] == ["source-changed"]
    bring(dataset, mine, reimport=True)
    assert {**before, sentence(2): ("mine-metadata-00008", None)} == _sided(dataset)


def test_a_reimport_that_was_killed_leaves_every_clip_of_the_manifest_with_its_sound(tmp_path: Path) -> None:
    """The manifest has the old clips until it has all new ones."""
    mine, dataset = lj_list(tmp_path / "mine", 12), tmp_path / "set"
    bring(dataset, mine)
    before = _sided(dataset)
    lines = (mine / "metadata.csv").read_text(encoding="utf-8").splitlines()
    (mine / "metadata.csv").write_text("\n".join(lines[2:]), encoding="utf-8")
    child = os.fork()
    if child == 0:
        renames = 0

        def count(name: str, _: object) -> None:
            nonlocal renames
            renames += name == "os.rename"
            if renames == 7:
                os._exit(9)

        sys.addaudithook(count)
        bring(dataset, mine, reimport=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not read_import_journal(dataset / "imports" / "mine-metadata.jsonl").is_done
    assert _sided(dataset) == before
    assert all(clip.resolve_audio(dataset).is_file() for clip in read_manifest(dataset / "manifest.jsonl"))
    assert bring(dataset, mine)[0].exit_code == 0, "what was begun is finished without the flag"
    assert _sided(dataset) == {text: own for text, own in before.items() if text not in (sentence(0), sentence(1))}


def test_a_list_that_was_moved_and_then_changed_is_not_imported_twice(tmp_path: Path) -> None:
    mine, dataset = lj_list(tmp_path / "old" / "mine", 6), tmp_path / "set"
    bring(dataset, mine)
    (tmp_path / "old").rename(tmp_path / "new")
    path = tmp_path / "new" / "mine" / "metadata.csv"
    assert bring(dataset, path.parent)[0].plan.known == ["mine-metadata"]
    path.write_text(path.read_text(encoding="utf-8").replace(WORDS[5], "город"), encoding="utf-8")
    done, clips = bring(dataset, path.parent)
    assert [problem.code for problem in done.problems] == ["source-changed"]
    assert len(clips) == 6
    assert len(bring(dataset, path.parent, reimport=True)[1]) == 6


def test_sounds_of_a_list_that_are_gone_after_the_import_are_no_change(tmp_path: Path) -> None:
    mine, dataset = lj_list(tmp_path / "mine", 6), tmp_path / "set"
    bring(dataset, mine)
    shutil.rmtree(mine / "wavs")
    done, clips = bring(dataset, mine)
    assert (done.exit_code, len(clips)) == (0, 6)
    assert all(path is None for _, path in find_sources([mine], "ru")[0][0].sounds)


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.long(fast="import-0.1")
@pytest.mark.parametrize(("stage", "seconds"), [("import", 0.1), ("split", 0.0), ("split", 0.3)])
def test_ctrl_c_while_processes_work_gives_one_error_and_exit_code_130(
    tmp_path: Path, stage: str, seconds: float
) -> None:
    """The terminal sends it to the whole group: to the program, to its workers, and to those that are just starting."""
    for part in range(4):
        list_of = lj_list(tmp_path / "mine" / f"list{part}", 40) / "metadata.csv"
        list_of.write_text(list_of.read_text(encoding="utf-8") + "\n" * part, encoding="utf-8")  # no two are the same
    dataset = tmp_path / "set"
    command = [sys.executable, "-m", "voxgraft", "data", "import", str(dataset), str(tmp_path / "mine")]
    command += ["--language", "ru", "--workers", "2"]
    if stage == "split":
        subprocess.run(command, check=True, capture_output=True)
        command = [sys.executable, "-m", "voxgraft", "data", "split", str(dataset)]
    # Behind everything else, so that on a busy machine it is not done before this process has its turn.
    child = subprocess.Popen(
        ["nice", "-n", "15", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not _children(child.pid):
        assert child.poll() is None
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(child.pid, signal.SIGINT)
    output = child.communicate(timeout=60)[0]
    assert child.returncode == 130, output
    assert "Traceback" not in output
    assert [line for line in output.splitlines() if "error" in line] == [
        "error interrupted: interrupted from the keyboard"
    ]


def _children(pid: int) -> list[str]:
    """Processes that multiprocessing has started for another, its tracker of resources apart."""
    found = []
    for entry in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{entry}/cmdline").read_bytes() if Path(f"/proc/{entry}").exists() else b""
        found += [entry] if b"spawn_main" in words else []
    return found


# ---- what is said of problems ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["pauses", "times"])
def test_a_subtitle_in_a_silent_recording_is_rejected_as_no_speech_at_its_own_time(tmp_path: Path, cut: str) -> None:
    (tmp_path / "mine").mkdir()
    with wave.open(str(tmp_path / "mine" / "talk.wav"), "wb") as stream:
        stream.setparams((1, 2, 24_000, 0, "NONE", ""))
        stream.writeframes(bytes(2 * 24_000 * 6))
    (tmp_path / "mine" / "talk.srt").write_text(f"1\n00:00:00,500 --> 00:00:02,500\n{sentence(1)}\n", encoding="utf-8")
    done, (clip,) = bring(tmp_path / "set", tmp_path / "mine", cut=cut)
    assert [problem.code for problem in done.problems] == []
    assert clip.rejected == ("no-speech",)
    assert [clip.start, clip.end] == pytest.approx([0.5, 2.5], abs=0.2)


def test_a_missing_recording_of_a_list_is_named_as_a_file(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 6)
    with (mine / "metadata.csv").open("a", encoding="utf-8") as stream:
        stream.write("77|слово и дело\n")
    done, _ = bring(tmp_path / "set", mine)
    (problem,) = done.problems
    assert (problem.code, "77.wav" in problem.found) == ("media-missing", True)


def test_no_clip_is_called_unusable_and_imported_at_once(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 2)
    done, _ = bring(tmp_path / "set", mine, shortest=20.0, longest=30.0)
    assert done.exit_code == 1
    assert "every line" not in shown(done)


def test_fixes_of_settings_that_exclude_each_other_name_the_settings(tmp_path: Path) -> None:
    mine = [lj_list(tmp_path / "mine", 2), tmp_path / "other"]
    for change, flag in (({"shortest": 20.0, "longest": 2.0}, "--longest"), ({"media": tmp_path / "a.wav"}, "--media")):
        with pytest.raises(ConfigError) as caught:
            bring(tmp_path / "set", *(mine if "media" in change else mine[:1]), **change)
        assert flag in caught.value.finding.cure
        assert "--help" not in caught.value.finding.cure
    with pytest.raises(ConfigError) as caught:
        data_split(DataSplitSettings(dataset=tmp_path / "set", validation=0.5, test=0.5))
    assert "--validation" in caught.value.finding.cure


@pytest.mark.parametrize(("language", "encoding"), [("tr", "windows-1254"), ("uk", "windows-1251"), ("am", "")])
def test_the_fix_of_an_unknown_encoding_names_one_that_is_likely_for_the_language(
    tmp_path: Path, language: str, encoding: str
) -> None:
    text, mine = "Annem çarşıya gitti.", tmp_path / "mine"
    for at in range(2):
        sound(mine / f"a{at}.wav", at)
        (mine / f"a{at}.txt").write_text(text, encoding="cp1254" if at else "utf-8")
    for name in "bcd":
        sound(mine / "lists" / f"{name}.wav", ord(name))
    lines = [f"{name}.wav|{text} {name}" for name in "bcd"]
    (mine / "lists" / "list.csv").write_text("\n".join(lines), encoding="cp1254")
    done, _ = bring(tmp_path / "set", mine, language=language)
    assert [problem.code for problem in done.problems] == ["text-encoding"] * 2
    for problem in done.problems:
        fix = problem.finding().cure
        assert re.findall(r"--encoding(?: ([\w-]+))?", fix) == [encoding]
        assert "Read the imported texts afterwards" in fix
    if encoding == "windows-1254":
        _, clips = bring(tmp_path / "other", mine, language=language, encoding=encoding)
        assert {clip.text_as_found for clip in clips} == {text, *(f"{text} {name}" for name in "bcd")}


def test_a_text_that_is_aligned_has_the_same_fix_of_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Annem çarşıya gitti.", encoding="cp1254")
    sound(tmp_path / "book.wav")
    places = {"recording": tmp_path / "book.wav", "text": tmp_path / "book.txt", "dataset": tmp_path / "set"}
    with pytest.raises(TextError) as caught:
        data_align(DataAlignSettings(**places, language="tr"))
    assert caught.value.code == "text-encoding"
    assert "--encoding windows-1254 " in caught.value.finding.cure


def test_likely_encodings_have_the_letters_of_their_languages() -> None:
    expected = {
        **{"windows-1250": ("pl", "cs", "hu", "hr", "sr-Latn", "ro"), "windows-1251": ("ru", "uk", "kk", "az-Cyrl")},
        **{"windows-1252": ("en", "pt-BR", "ha", "xx"), "windows-1253": ("el",), "windows-1254": ("tr", "az", "ku")},
        **{"windows-1255": ("he",), "windows-1256": ("ar", "fa"), "windows-1257": ("lt", "lv", "et")},
        **{"windows-1258": ("vi",), "cp874": ("th",), "gb18030": ("zh",), "big5": ("zh-Hant",)},
        **{"shift_jis": ("ja",), "cp949": ("ko",), "": ("am", "ka", "hi")},
    }
    for encoding, languages in expected.items():
        assert {language: suggest_encoding(language) for language in languages} == dict.fromkeys(languages, encoding)
        assert not encoding or codecs.lookup(encoding)


def test_a_wav_that_ends_before_its_header_says_is_reported_and_its_clip_rejected(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 4)
    for name, start in (("whole", 0), ("cut", 20)):
        sound(mine / f"{name}.wav", start, 3.0)
        (mine / f"{name}.txt").write_text(sentence(start), encoding="utf-8")
    for path in (mine / "cut.wav", mine / "wavs" / "ru_0002.wav"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    done, clips = bring(tmp_path / "set", mine)
    assert {clip.recording: clip.rejected for clip in clips if clip.rejected} == {
        "cut": ("cut-in-speech",),
        "ru_0002": ("under-shortest", "cut-in-speech"),
    }
    assert [(one.code, one.found) for one in done.problems] == [
        ("media-cut-off", "cut.wav holds 1.50 s of audio, but its header promises 3.00 s"),
        ("media-cut-off", "ru_0002.wav holds 0.75 s of audio, but its header promises 1.50 s"),
    ]
    assert "--reimport" in done.problems[0].finding().cure
    assert done.exit_code == 0


def test_a_recording_that_was_cut_off_is_reported_once_for_all_its_clips(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    sound(tmp_path / "mine" / "a.wav", 1, 6.0)
    sound(tmp_path / "mine" / "talk.wav", 2, 6.0)
    for name in ("a.wav", "talk.wav"):
        data = (tmp_path / "mine" / name).read_bytes()
        (tmp_path / "mine" / name).write_bytes(data[: len(data) * 3 // 4])
    rows = ["audio,text,start,end", *(f"a.wav,{sentence(at)},{1.5 * at},{1.5 * at + 1.4}" for at in range(3))]
    (tmp_path / "mine" / "list.csv").write_text("\n".join(rows), encoding="utf-8")
    cue = f"1\n00:00:00,500 --> 00:00:02,500\n{sentence(5)}\n"
    (tmp_path / "mine" / "talk.srt").write_text(cue, encoding="utf-8")
    done, clips = bring(tmp_path / "set", tmp_path / "mine", cut="times")
    assert [problem.code for problem in done.problems] == ["media-cut-off"] * 2
    assert [clip.rejected for clip in clips] == [()] * 4, "what is there can be used"


def test_only_a_wav_header_that_states_a_length_can_promise_more_than_the_file_holds() -> None:
    data = encode_audio(np.full(16_000, 0.5, np.float32), 16_000)
    assert find_missing_audio(data) is None
    assert find_missing_audio(data[:-16_000]) == (0.5, 1.0)
    assert find_missing_audio(data[:-2000]) is None, "not even a tenth of a second"
    at = data.index(b"data") + 4
    for unknown in (0, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF - 36):  # written into a pipe
        assert find_missing_audio(data[:at] + unknown.to_bytes(4, "little") + data[at + 4 : -16_000]) is None
    longer = data[:12] + b"LIST" + (7).to_bytes(4, "little") + bytes(8) + data[12:-16_000]
    assert find_missing_audio(longer) == (0.5, 1.0), "chunks of odd length are padded"
    assert find_missing_audio(data[: at + 4]) == (0.0, 1.0)
    for size in range(at + 4):
        assert find_missing_audio(data[:size]) is None, size
    assert find_missing_audio(b"RIFX" + data[4:-16_000]) is None
    assert find_missing_audio(b"ID3" + data) is None


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_a_clip_of_a_list_without_a_sound_is_rejected_as_no_speech(tmp_path: Path, level: float) -> None:
    mine = lj_list(tmp_path / "mine", 4)
    noise = np.random.default_rng(0).normal(0, level, 3 * RATE).astype(np.float32)
    for name in ("wavs/ru_0002.wav", "quiet.wav"):
        soundfile.write(mine / name, noise, RATE)
    (mine / "quiet.txt").write_text(sentence(20), encoding="utf-8")
    done, clips = bring(tmp_path / "set", mine)
    assert done.problems == ()
    assert {clip.recording: clip.rejected for clip in clips if clip.rejected} == {
        "quiet": ("no-speech",),
        "ru_0002": ("no-speech",),
    }
