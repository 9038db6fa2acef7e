"""What is found in folders: every file is a source, part of one, or told; and each source is known by what it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.languages import canonical_language_code
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest
from voxgraft.data.sources import ImportSource, compute_source_fingerprint, find_sources

RATE = 16_000
CUE = "1\n00:00:00,000 --> 00:00:01,500\nሰላም\n"


def _files(folder: Path, *names: str) -> Path:
    """Files with a sound, a subtitle or a text in them, by their endings."""
    for at, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".wav", ".mp4"):
            noise = np.random.default_rng(at).normal(0, 0.1, 2 * RATE)
            soundfile.write(path, noise.astype(np.float32), RATE, format="WAV")
        else:
            path.write_text(CUE if path.suffix == ".srt" else "ሰላም ነው", encoding="utf-8")
    return folder


def _import(tmp_path: Path, *sources: Path, **more: Any) -> tuple[DataImportResult, list[ManifestClip]]:
    options = {"language": "am", "rate": RATE, "workers": 1, "cut": "times", **more}
    done = data_import(DataImportSettings(dataset=tmp_path / "set", sources=sources, **options))
    return done, list(read_manifest(tmp_path / "set" / "manifest.jsonl"))


def _reported(found: tuple[list[ImportSource], list[SourceProblem]]) -> list[tuple[str, str]]:
    return sorted((problem.code, Path(problem.file).name) for problem in found[1])


def test_a_manifest_of_ours_is_not_cut_a_second_time(tmp_path: Path) -> None:
    """Its times are places in the recording, not in the clip."""
    lines = [{"audio": "long.wav", "text": f"ሰላም {name}", "start": at, "end": at + 0.9} for at, name in enumerate("ሀለ")]
    _files(tmp_path / "in", "long.wav")
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    _import(tmp_path, tmp_path / "in")
    with pytest.raises(VoxgraftError, match="voxgraft dataset") as caught:
        find_sources([tmp_path / "set" / "manifest.jsonl"], "am")
    assert caught.value.code == "source-none"
    found = find_sources([tmp_path], "am")
    assert [source.text.name for source in found[0]] == ["a.jsonl"]
    assert _reported(found) == [("source-own", "manifest.jsonl")]


def test_texts_without_a_sound_are_reported(tmp_path: Path) -> None:
    _files(tmp_path, "a.wav", "a.txt", "alone.txt", "alone.lab", "list.json", "film.srt", "film.mp4", "film.txt")
    _files(tmp_path, "b.wav", "b.normalized.txt", "b.txt")
    found = find_sources([tmp_path], "am")
    alone = [("media-missing", name) for name in ("alone.lab", "alone.txt")]
    assert sorted(_reported(found)) == [*alone, ("source-unknown", "film.txt"), ("source-unknown", "list.json")]


def test_a_link_to_a_folder_is_reported(tmp_path: Path) -> None:
    _files(tmp_path / "in", "a.wav", "a.txt")
    _files(tmp_path / "elsewhere", "b.wav", "b.txt")
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    assert _reported(find_sources([tmp_path / "in"], "am")) == [("source-unknown", "more")]


def test_sounds_that_a_list_does_not_name_are_reported(tmp_path: Path) -> None:
    _files(tmp_path, "beside.wav", "wavs/a.wav", "wavs/b.wav", "wavs/deep/c.wav", "speaker/d.wav", "speaker/e.wav")
    _files(tmp_path, "wavs/own.wav", "wavs/own.txt", "wavs/a.txt")
    (tmp_path / "train.csv").write_text("a|ሰላም\nspeaker/d.wav|ሰላም ነው\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text("beside|ሰላም\nmissing|ሰላም\n", encoding="utf-8")
    found = find_sources([tmp_path], "am")
    assert _reported(found) == [("text-missing", name) for name in ("b.wav", "c.wav", "e.wav")]
    assert [(source.kind, [path.name for path in source.files]) for source in found[0]] == [
        ("list", []),
        ("list", []),
        ("folder", ["own.wav"]),
    ]


def test_a_video_with_a_text_beside_it_is_a_clip_like_a_recording(tmp_path: Path) -> None:
    names = ("a.mp4", "b.3gp", "c.webm", "d.mkv", "e.mov", "f.caf", "transcript.mp4")
    for name in names:
        _files(tmp_path / "in", "sound.wav", str(Path(name).with_suffix(".txt")))
        (tmp_path / "in" / "sound.wav").rename(tmp_path / "in" / name)
    (source,), problems = find_sources([tmp_path / "in"], "am")
    assert (problems, [path.name for path in source.files]) == ([], list(names))
    done, clips = _import(tmp_path, tmp_path / "in")
    assert (done.problems, [clip.text for clip in clips]) == ((), ["ሰላም ነው"] * len(names))


def test_a_video_whose_text_a_recording_of_the_same_name_has_is_not_a_second_clip(tmp_path: Path) -> None:
    _files(tmp_path, "a.wav", "a.mp4", "a.txt", "b.mp4", "b.txt", "c.mp4", "c.srt", "d.mp4")
    sources, problems = find_sources([tmp_path], "am")
    folder = next(source for source in sources if source.kind == "folder")
    assert [path.name for path in folder.files] == ["a.wav", "b.mp4"]
    assert _reported((sources, problems)) == [("source-unknown", "a.mp4"), ("text-missing", "d.mp4")]


def test_files_of_any_type_that_a_list_names_are_not_reported_as_skipped(tmp_path: Path) -> None:
    names = ("a.wv", "clips/b.ape", "later/c.tta", "s/d.spx", "e.wav")
    for name in (*names, "other.ape", "s/f.wav"):
        _files(tmp_path, "sound.wav")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / "sound.wav").rename(tmp_path / name)
    _files(tmp_path, "e.txt", "a.txt", "s/f.txt", "s/d.txt")
    lines = [f"{name}|ሰላም {at}\n" for at, name in enumerate(names) if name != "later/c.tta"]
    (tmp_path / "list.csv").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "list.csv").write_text("later/c.tta|ሰላም\n", encoding="utf-8")
    assert _reported(find_sources([tmp_path], "am")) == [("source-unknown", "other.ape")]
    done, clips = _import(tmp_path, tmp_path)
    assert len(clips) == 6
    assert [problem.found for problem in done.problems] == ["other.ape was skipped"]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_sounds_beside_a_dataset_in_columns_are_reported_only_if_it_does_not_name_them(
    ending: str, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="NOT TESTED: pyarrow is absent")
    arrow = pytest.importorskip("pyarrow")
    _files(tmp_path, "a.wav", "audio/b.wav", "c.wav")
    names = ["a.wav", "b.wav", "inside.wav"]
    forms: dict[str, list[Any]] = {
        "audio": [{"bytes": b"x" if name == "inside.wav" else None, "path": name} for name in names],
        "path": list(names),
    }
    for column, values in forms.items():
        table = arrow.table({column: values, "sentence": ["ሰላም"] * 3})
        if ending == "parquet":
            parquet.write_table(table, tmp_path / "train.parquet")
        else:
            with (
                arrow.OSFile(str(tmp_path / "data.arrow"), "wb") as file,
                arrow.ipc.new_stream(file, table.schema) as out,
            ):
                out.write_table(table)
        found = find_sources([tmp_path], "am")
        assert _reported(found) == [("text-missing", "c.wav")], column
        assert [source.kind for source in found[0]] == ["columns"]


def test_a_list_in_an_encoding_that_was_named_is_looked_into(tmp_path: Path) -> None:
    _files(tmp_path, "wavs/a.wav", "wavs/b.wav")
    (tmp_path / "metadata.csv").write_bytes("a|café\n".encode("cp1252"))
    assert _reported(find_sources([tmp_path], "fr", encoding="cp1252")) == [("text-missing", "b.wav")]
    assert _reported(find_sources([tmp_path], "fr")) == [], "the import tells that the list cannot be read"


def test_a_folder_of_sounds_is_known_by_its_own_pairs(tmp_path: Path) -> None:
    _files(tmp_path, "a.wav", "a.txt", "b.wav", "b.txt")

    def mark() -> str:
        (source,) = [one for one in find_sources([tmp_path], "am")[0] if one.text == tmp_path]
        return compute_source_fingerprint(source)

    first = mark()
    _files(tmp_path, "below/c.wav", "below/c.txt", "notes.pdf")
    assert mark() == first, "what lies below is a source of its own"
    (tmp_path / "a.txt").write_text("ሰላም ነሽ", encoding="utf-8")
    second = mark()
    assert second != first, "a text was corrected at the same length"
    data = bytearray((tmp_path / "b.wav").read_bytes())
    data[-2] ^= 0x55
    (tmp_path / "b.wav").write_bytes(data)
    assert mark() != second, "a sound is another of the same length"


def test_only_the_sounds_that_were_named_are_imported(tmp_path: Path) -> None:
    _files(tmp_path / "o", "a.wav", "a.txt", "b.wav", "b.txt")
    _, clips = _import(tmp_path, tmp_path / "o" / "a.wav")
    assert [clip.recording for clip in clips] == ["a"]
    done, clips = _import(tmp_path, tmp_path / "o" / "b.wav")
    assert done.exit_code == 0
    assert [clip.recording for clip in clips] == ["a", "b"]
    done, again = _import(tmp_path, tmp_path / "o" / "b.wav")
    assert again == clips
    (tmp_path / "o" / "b.txt").write_text("በቃ በል", encoding="utf-8")
    done, again = _import(tmp_path, tmp_path / "o" / "b.wav")
    assert [problem.code for problem in done.problems] == ["source-changed"]


def test_an_empty_sound_does_not_stop_the_other_sounds_of_its_folder(tmp_path: Path) -> None:
    _files(tmp_path / "o", "a.wav", "a.txt", "b.txt")
    (tmp_path / "o" / "b.wav").write_bytes(b"")
    done, clips = _import(tmp_path, tmp_path / "o")
    assert [clip.recording for clip in clips] == ["a"]
    assert len(done.problems) == 1


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("part_one.srt", "part_one.mp4", "part.srt", "part.mp4"), {"part_one.srt", "part.srt"}),
        (("news-jan.srt", "news-jan.mp4", "news-may.srt", "news-may.mp4"), {"news-jan.srt", "news-may.srt"}),
        (("news.srt", "news.mp4", "news-en.srt", "news-en.mp4"), {"news.srt", "news-en.srt"}),
        (("film.mp4", "film.am.srt", "film.en.srt", "film.pt-BR.srt", "film.zho.srt"), {"film.am.srt"}),
        (("film.mp4", "film.amh.srt", "film.srt"), {"film.amh.srt"}),
        (("film.mp4", "film.am-orig.srt"), {"film.am-orig.srt"}),
        (("film.mp4", "film.srt", "film.en.srt"), {"film.srt"}),
        (("film.mp4", "film.en.srt", "other.mp4", "other.srt"), {"other.srt"}),
    ],
)
def test_subtitles_of_another_language_are_those_that_name_a_film_and_a_language(
    tmp_path: Path, names: tuple[str, ...], taken: set[str]
) -> None:
    found = find_sources([_files(tmp_path, *names)], "am")
    assert {source.text.name for source in found[0]} == taken
    assert all(source.media is not None for source in found[0])
    reported = {name for _, name in _reported(found)}
    assert {name for name in names if name.endswith(".srt")} - taken <= reported


def test_a_lone_file_of_another_language_is_reported_unless_its_media_are_named(tmp_path: Path) -> None:
    _files(tmp_path, "film.mp4", "film.en.srt")
    with pytest.raises(VoxgraftError, match="another language") as caught:
        find_sources([tmp_path / "film.en.srt"], "am")
    assert caught.value.code == "source-none"
    (source,) = find_sources([tmp_path / "film.en.srt"], "am", media=tmp_path / "film.mp4")[0]
    assert source.media == tmp_path / "film.mp4"
    assert len(find_sources([tmp_path / "film.en.srt"], "eng")[0]) == 1


def test_codes_of_one_language_are_one() -> None:
    assert {canonical_language_code(code) for code in ("de", "deu", "GER", "de-AT", "de_CH")} == {"de"}
    assert [canonical_language_code(code) for code in ("one", "jan", "orig", "")] == [None] * 4
