"""Lists of recordings with texts, as other programs have them: each line gives a clip, or is reported."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.importer import read_row_audio
from voxgraft.data.lists import TranscriptRow, infer_recordings, parse_transcript_jsonl, parse_transcript_table
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest
from voxgraft.data.sources import ImportSource

RATE = 16_000


def _sound(path: Path, seconds: float = 2.0, rate: int = 22_050, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 0.1, round(seconds * rate))
    soundfile.write(path, noise.astype(np.float32), rate)


def _import(tmp_path: Path, *sources: Path, **more: Any) -> tuple[DataImportResult, list[ManifestClip]]:
    settings = DataImportSettings(
        dataset=tmp_path / "set", sources=sources, language="am", rate=RATE, workers=1, **more
    )
    done = data_import(settings)
    return done, list(read_manifest(tmp_path / "set" / "manifest.jsonl"))


def _rows(text: str) -> list[TranscriptRow]:
    return [row for row in parse_transcript_table(text, "x") if isinstance(row, TranscriptRow)]


@pytest.mark.parametrize(
    "text",
    [
        "a1|ሰላም ነው\na2|በቃ በል\n",
        "a1|ሰላም 1|ሰላም ነው\na2|በቃ|በቃ በል\n",
        "a1\tሰላም ነው\na2\tበቃ በል\n",
        'a1,"ሰላም ነው"\na2,በቃ በል\n',
        "audio|text\na1|ሰላም ነው\na2|በቃ በል\n",
        "file_name,transcription\na1,ሰላም ነው\na2,በቃ በል\n",
        "id;sentence\na1;ሰላም ነው\na2;በቃ በል\n",
    ],
)
def test_tables_with_any_mark_and_with_or_without_a_head(text: str) -> None:
    assert [(row.audio, row.text) for row in _rows(text)] == [("a1", "ሰላም ነው"), ("a2", "በቃ በል")]


def test_a_third_column_of_few_names_is_the_speaker() -> None:
    rows = _rows("".join(f"a{at}|ሰላም ነው {at}|spk{at % 2}\n" for at in range(8)))
    assert {row.speaker for row in rows} == {"spk0", "spk1"}
    assert rows[1].text == "ሰላም ነው 1"


def test_lines_of_a_table_that_are_none_are_reported() -> None:
    found = list(parse_transcript_table("a1|ሰላም ነው\njust words\n|no audio\na4|አራት\na5|\n", "x"))
    assert [item.line for item in found if isinstance(item, TranscriptRow)] == [1, 4]
    assert [(item.code, item.line) for item in found if isinstance(item, SourceProblem)] == [
        ("table-line", 2),
        ("table-line", 3),
        ("transcript-empty", 5),
    ]


@pytest.mark.parametrize(
    "table",
    [
        "Nr.,Dateiname,Satz,Bemerkung\n1,a.ogg,ሰላም ነው,x\n2,b.ogg,በቃ በል,y\n",
        "Nr.;Name;Satz;Bemerkung\n1;a;ሰላም ነው;x\n2;b;በቃ በል;y\n",
        "Satz,Dateiname\nሰላም ነው,a.ogg\nበቃ በል,b.ogg\n",
        "ሰላም ነው|a.ogg\nበቃ በል|b.ogg\nሀ|b.ogg\n",
        "Dateiname\tSatz\tBemerkung\na.ogg\tሰላም ነው\tx\nb.ogg\tበቃ በል\ty\n",
    ],
)
def test_a_table_whose_columns_are_not_known_is_refused_with_the_names_that_are(table: str) -> None:
    with pytest.raises(VoxgraftError) as caught:
        _rows(table)
    finding = caught.value.finding
    assert finding.code == "table-columns"
    assert all(name in str(finding.expected) for name in ("audio", "file_name", "sentence", "client_id"))
    at = next((at for at, cell in enumerate(re.split(r"[,;|\t]", table.splitlines()[1]), 1) if ".ogg" in cell), None)
    assert (f"column {at} has the names of recordings" in finding.found) == (at is not None)


def test_a_foreign_header_over_two_columns_is_no_recording(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        _sound(tmp_path / "in" / name, seed=ord(name[0]))
    path = tmp_path / "in" / "liste.csv"
    path.write_text("Dateiname;Satz\na.wav;ሰላም ነው\nb.wav;በቃ በል\n", encoding="utf-8")
    done, clips = _import(tmp_path, tmp_path / "in")
    assert [clip.text for clip in clips] == ["ሰላም ነው", "በቃ በል"]
    assert [(problem.code, problem.line) for problem in done.problems] == [("table-header", 1)]
    assert done.left_out[0] == 0
    assert any("'Dateiname', 'Satz'" in str(line) for line in done.lines()), "import prints the note"
    # Without endings nothing tells a header from a row: the fix names both cases.
    path.write_text("Dateiname;Satz\na;ሰላም ነው\nb;በቃ በል\n", encoding="utf-8")
    done, clips = _import(tmp_path / "bare", tmp_path / "in")
    assert len(clips) == 2
    (problem,) = done.problems
    assert (problem.code, problem.line) == ("media-missing", 1)
    assert "audio and text" in problem.cure


@pytest.mark.parametrize("first", ["/etc/passwd", "../x", "a/../../x", "..\\x", "C:\\x", "\\\\server\\x"])
def test_a_first_line_with_a_path_is_no_header(first: str) -> None:
    rows = [*parse_transcript_table(f"{first}|ሰላም\nx.wav|እሺ\n", "a.csv")]
    assert [row.audio for row in rows if isinstance(row, TranscriptRow)] == [first, "x.wav"]


@pytest.mark.parametrize("head", ["audio,text\n", ""])
def test_a_text_with_an_unquoted_comma_is_reported_with_the_quotes_that_it_needs(head: str) -> None:
    lines = ["a.wav,ሰላም ነው", "b.wav,በቃ በል, ሰላም", 'c.wav,"በቃ በል, ሰላም"', "d.wav,ሀ"]
    found = list(parse_transcript_table(head + "\n".join(lines), "x"))
    (problem,) = (item for item in found if isinstance(item, SourceProblem))
    assert (problem.code, problem.line) == ("table-line", 2 + bool(head))
    assert "double quotes" in problem.cure
    assert [item.text for item in found if isinstance(item, TranscriptRow)] == ["ሰላም ነው", "በቃ በል, ሰላም", "ሀ"]
    # The fix as it is written.
    repaired = list(parse_transcript_table(head + "\n".join(lines).replace(lines[1], 'b.wav,"በቃ በል, ሰላም"'), "x"))
    assert [item.text for item in repaired if isinstance(item, TranscriptRow)][1] == "በቃ በል, ሰላም"


def test_a_line_with_too_few_columns_is_not_told_to_use_quotes() -> None:
    found = list(parse_transcript_table("audio|text|speaker\na|ሀ|s\nb|ለ\nc|ሐ|s\n", "x"))
    assert [(item.line, item.cure) for item in found if isinstance(item, SourceProblem)] == [(3, "")]


def test_json_lines_of_several_programs() -> None:
    lines = [
        {"audio": "a.wav", "text": "ሀ", "speaker": "s1", "language": "am"},
        {"audio_filepath": "b.wav", "text": "ለ", "duration": 2.0},
        {"audio_filepath": "c.wav", "text": "ሐ", "offset": 1.5, "duration": 2.0},
        {"path": "d.mp3", "sentence": "መ", "client_id": "z"},
        {"audio": "e.wav"},
        ["no", "object"],
        {"audio": "f.wav", "text": "ሠ", "start": 3, "end": 2},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n{broken\n"
    found = list(parse_transcript_jsonl(text, "x"))
    rows = [item for item in found if isinstance(item, TranscriptRow)]
    assert [(row.audio, row.text, row.start, row.end) for row in rows] == [
        ("a.wav", "ሀ", 0.0, None),
        ("b.wav", "ለ", 0.0, None),
        ("c.wav", "ሐ", 1.5, 3.5),
        ("d.mp3", "መ", 0.0, None),
    ]
    assert [item.line for item in found if isinstance(item, SourceProblem)] == [5, 6, 7, 8]


def test_clips_that_were_cut_from_one_recording_belong_together() -> None:
    rows = [TranscriptRow(at, f"LJ{at // 4:03d}-{at % 4:04d}", "x") for at in range(16)]
    assert sorted(set(infer_recordings(rows).values())) == ["LJ000", "LJ001", "LJ002", "LJ003"]
    loose = [TranscriptRow(at, f"clip_{at:04d}", "x") for at in range(16)]
    assert len(set(infer_recordings(loose).values())) == 16


def test_a_name_of_very_many_digits_is_taken() -> None:
    """Twice as many take twice as long, and not four times: half a million would take hours."""
    names = ["1" * 500_000 + "x", "- " * 250_000 + "x", "ሀ-١٢٣", "take_01", "take_02", "other"]
    found = infer_recordings([TranscriptRow(at, name, "x") for at, name in enumerate(names)])
    assert [found[at] for at in range(2, 6)] == ["ሀ", "take", "take", "other"]


def test_ljspeech_is_imported_and_what_is_missing_is_reported(tmp_path: Path) -> None:
    for at in range(4):
        _sound(tmp_path / "lj" / "wavs" / f"LJ00{at}-0001.wav", seed=at)
    lines = [f"LJ00{at}-0001|ሰላም {at}|ሰላም ቁጥር {at}" for at in range(5)] + ["LJ000-0001|ሰላም 0|ሰላም ቁጥር 0", "broken"]
    (tmp_path / "lj" / "metadata.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    done, clips = _import(tmp_path, tmp_path / "lj")
    assert [clip.recording for clip in clips] == ["LJ000", "LJ001", "LJ002", "LJ003"]
    assert clips[1].text_as_found == "ሰላም 1"
    assert clips[1].text == "ሰላም ቁጥር አንድ"
    assert all(clip.seconds == pytest.approx(2.0, abs=0.01) and clip.sample_rate == RATE for clip in clips)
    reported = {(problem.code, problem.line) for problem in done.problems}
    assert reported == {("media-missing", 5), ("table-duplicate", 6), ("table-line", 7)}


def test_parts_of_a_long_file_are_cut_where_the_list_says(tmp_path: Path) -> None:
    _sound(tmp_path / "in" / "long.wav", 12.0)
    lines = [
        {"audio": "long.wav", "text": "ሁለት", "start": 5.0, "end": 7.5},
        {"audio": "long.wav", "text": "አንድ", "start": 1.0, "end": 3.0},
        {"audio": "long.wav", "text": "ሦስት", "start": 20.0, "end": 22.0},
    ]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done, clips = _import(tmp_path, tmp_path / "in" / "a.jsonl")
    assert [(clip.text, clip.start, clip.end) for clip in clips] == [("አንድ", 1.0, 3.0), ("ሁለት", 5.0, 7.5)]
    assert [(problem.code, problem.line) for problem in done.problems] == [("media-short", 3)]


def test_a_part_that_the_file_does_not_hold_to_its_end_is_rejected(tmp_path: Path) -> None:
    _sound(tmp_path / "long.wav", 6.0)
    rows = [
        {"audio": "long.wav", "text": "ሰላም ነው", "start": 0.0, "end": 2.0},
        {"audio": "long.wav", "text": "በቃ በል", "start": 4.0, "end": 6.1},
        {"audio": "long.wav", "text": "ደህና ነኝ ወንድሜ", "start": 4.5, "end": 8.0},
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    _, clips = _import(tmp_path, tmp_path / "list.jsonl")
    assert [clip.rejected for clip in clips] == [(), (), ("cut-in-speech",)]


def test_speakers_and_recordings_that_are_numbers_keep_their_names() -> None:
    lines = [{"audio": f"{at}.wav", "text": "ሰላም", "speaker_id": at, "recording": at} for at in (0, 1)]
    found = [
        row for row in parse_transcript_jsonl("\n".join(map(json.dumps, lines)), "x") if isinstance(row, TranscriptRow)
    ]
    assert [(row.speaker, row.recording) for row in found] == [("0", "0"), ("1", "1")]


def test_sounds_with_texts_beside_them(tmp_path: Path) -> None:
    for at in range(3):
        _sound(tmp_path / "in" / f"c{at}.wav", seed=at)
    (tmp_path / "in" / "c0.txt").write_text("ሰላም\nነው", encoding="utf-8")
    (tmp_path / "in" / "c1.lab").write_text("በቃ", encoding="utf-8")
    done, clips = _import(tmp_path, tmp_path / "in")
    assert [clip.text for clip in clips] == ["ሰላም ነው", "በቃ"]
    assert [problem.code for problem in done.problems if "c2.wav" in problem.found] == ["text-missing"]
    assert [clip.source for clip in clips] == ["c0.wav:1", "c1.wav:1"]


def test_a_dataset_in_parquet_with_its_sounds_inside(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="NOT TESTED: pyarrow is absent")
    arrow = pytest.importorskip("pyarrow")
    rows = []
    for at in range(3):
        stream = io.BytesIO()
        soundfile.write(stream, np.random.default_rng(at).normal(0, 0.1, 32_000), 16_000, format="WAV")
        rows.append({"audio": {"bytes": stream.getvalue(), "path": f"r{at}.wav"}, "sentence": f"ሰላም {'ሀለሐ'[at]}"})
    rows.append({"audio": {"bytes": b"broken", "path": "bad.wav"}, "sentence": "በቃ"})
    table = arrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "train.parquet")
    done, clips = _import(tmp_path, tmp_path / "train.parquet")
    assert [clip.text for clip in clips] == ["ሰላም ሀ", "ሰላም ለ", "ሰላም ሐ"]
    assert [(problem.code, problem.line) for problem in done.problems] == [("media-unreadable", 4)]
    (tmp_path / "disk").mkdir()
    with (
        arrow.OSFile(str(tmp_path / "disk" / "data.arrow"), "wb") as file,
        arrow.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    _, more = _import(tmp_path, tmp_path / "disk")
    assert len(more) == 6
    assert len({clip.id for clip in more}) == 6


def test_a_sound_file_without_a_byte_is_reported_and_the_rest_of_the_list_comes_in(tmp_path: Path) -> None:
    _sound(tmp_path / "a.wav", 4.0)
    (tmp_path / "bad.wav").write_bytes(b"")
    rows: list[dict[str, Any]] = [
        {"audio": "bad.wav", "text": "ክፉ ቃል", "start": 0, "end": 2},
        {"audio": "bad.wav", "text": "ክፉ ቃል ሁለት"},
        {"audio": "a.wav", "text": "ደግ ቃል", "start": 0, "end": 2},
        {"audio": "a.wav", "text": "ደግ ቃል ሁለት", "start": 2, "end": 4},
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done, clips = _import(tmp_path, path)
    assert [clip.text for clip in clips] == ["ደግ ቃል", "ደግ ቃል ሁለት"]
    assert sorted((problem.code, problem.line) for problem in done.problems) == [("file-empty", 1), ("file-empty", 2)]


def test_bytes_of_a_sound_that_are_none_are_reported() -> None:
    lines = [{"audio": {"bytes": wrong, "path": "x.wav"}, "text": "ሰላም ነው"} for wrong in ("abc", 5, [1])]
    found = list(parse_transcript_jsonl("\n".join(map(json.dumps, lines)), "x"))
    assert [item.code for item in found if isinstance(item, SourceProblem)] == ["table-line"] * 3


def test_parts_of_sounds_inside_a_list_come_from_their_own_row(tmp_path: Path) -> None:
    rows = [TranscriptRow(at, "one-name.wav", "x", start=0.0, end=0.5, data=_wave(0.1 * at)) for at in (1, 2)]
    cuts = list(read_row_audio(rows, ImportSource("list", tmp_path / "x"), RATE, []))
    assert [float(np.abs(samples).max()) for _, samples, _ in cuts] == pytest.approx([0.1, 0.2], abs=0.01)


def _wave(loud: float) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.full(RATE, loud, np.float32), RATE, format="WAV")
    return stream.getvalue()


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("one word\nanother word\n", encoding="utf-8")
    done, clips = _import(tmp_path, tmp_path / "metadata.csv")
    assert not clips
    assert done.exit_code == 1
    assert [problem.code for problem in done.problems] == ["table-unknown"]


def test_a_folder_without_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(VoxgraftError) as caught:
        _import(tmp_path, tmp_path / "empty")
    assert caught.value.code == "source-none"
