"""Folders as other programs leave them, imported with default settings, and what is wrong in them named by file and line.

The number of speakers and recordings of every sample is in the table of docs/data.md, which is compared here.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxgraft.config.data import DataImportSettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.import_command import DataImportResult, data_import
from voxgraft.data.lists import find_audio_file, parse_sovits_list, parse_transcript_table
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest
from voxgraft.data.sources import find_sources
from voxgraft.data.subtitles import parse_labels, parse_textgrid

ROOT = Path(__file__).resolve().parent.parent
RATE = 16_000
TEXTS = ("ሰላም ነው", "በቃ በል", "እንዴት ነህ", "ደህና ነኝ", "መልካም ቀን", "ቡና ጠጣ", "ውሃ አለ", "ነገ ና")


def _sound(path: Path, seconds: float = 1.5) -> None:
    """Noise in bursts with pauses, so that pauses can be found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = (
        np.random.default_rng(zlib.crc32("/".join(path.parts[-4:]).encode()))
        .normal(0, 0.1, round(seconds * RATE))
        .astype(np.float32)
    )
    for second in range(round(seconds) + 1):
        samples[max(0, round((second - 0.2) * RATE)) : round((second + 0.2) * RATE)] *= 1e-3
    soundfile.write(path, samples, RATE)


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _import(folder: Path, *sources: Path, language: str = "am") -> tuple[DataImportResult, list[ManifestClip]]:
    done = data_import(
        DataImportSettings(dataset=folder / "set", sources=sources, language=language, rate=RATE, workers=1)
    )
    return done, list(read_manifest(folder / "set" / "manifest.jsonl"))


def _ljspeech(folder: Path) -> None:
    for at in range(6):
        _sound(folder / "wavs" / f"LJ00{at // 2}-000{at}.wav")
    _write(folder / "metadata.csv", *(f"LJ00{at // 2}-000{at}|{TEXTS[at]}|{TEXTS[at]}" for at in range(6)))


def _sidecars(folder: Path) -> None:
    for at in range(4):
        _sound(folder / f"take{at}.wav")
        _write(folder / f"take{at}.txt", TEXTS[at])


def _libritts(folder: Path) -> None:
    for at, (speaker, chapter) in enumerate((("84", "121"), ("84", "121"), ("84", "122"), ("174", "50"))):
        name = folder / "dev-clean" / speaker / chapter / f"{speaker}_{chapter}_00000{at}_000000"
        _sound(name.with_suffix(".wav"))
        _write(name.with_suffix(".normalized.txt"), TEXTS[at])
        _write(name.with_suffix(".original.txt"), TEXTS[at])


def _vctk(folder: Path) -> None:
    for at, speaker in enumerate(("p225", "p225", "p226", "p226")):
        _sound(folder / "wav48_silence_trimmed" / speaker / f"{speaker}_00{at}_mic1.flac")
        _sound(folder / "wav48_silence_trimmed" / speaker / f"{speaker}_00{at}_mic2.flac")
        _write(folder / "txt" / speaker / f"{speaker}_00{at}.txt", TEXTS[at])


def _common_voice(folder: Path) -> None:
    rows = []
    for at in range(4):
        _sound(folder / "clips" / f"common_voice_am_{at}.wav")
        rows.append(f"hash{at % 2}\tcommon_voice_am_{at}.wav\t{TEXTS[at]}\t2\t0\t\t\t\tam")
    _write(
        folder / "validated.tsv", "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale", *rows
    )


def _kaldi(folder: Path) -> None:
    """Two recordings of two speakers, with segments, absolute paths of this machine, and files that are not needed."""
    for name in ("talk1", "talk2"):
        _sound(folder / "audio" / f"{name}.wav", 6)
    data = folder / "data" / "train"
    _write(data / "wav.scp", *(f"{name} {folder.resolve()}/audio/{name}.wav" for name in ("talk1", "talk2")))
    names = [f"spk{at % 2}-{at}" for at in range(4)]
    _write(data / "text", *(f"{name} {TEXTS[at]}" for at, name in enumerate(names)))
    _write(data / "utt2spk", *(f"{name} {name[:4]}" for name in names))
    _write(
        data / "segments",
        *(f"{name} talk{at // 2 + 1} {at % 2 * 3}.0 {at % 2 * 3 + 2}.5" for at, name in enumerate(names)),
    )
    _write(data / "spk2utt", "spk0 spk0-0 spk0-2", "spk1 spk1-1 spk1-3")


def _sovits(folder: Path) -> None:
    """As the program writes it: paths relative to where it was started."""
    for at in range(4):
        _sound(folder / "slicer_opt" / f"vocal_{at}.wav")
    rows = [f"output/slicer_opt/vocal_{at}.wav|abebe|ZH|{TEXTS[at]}" for at in range(4)]
    _write(folder / "asr_opt" / "slicer_opt.list", *rows)


def _festival(folder: Path) -> None:
    for at in range(4):
        _sound(folder / "wav" / f"am_{at}a.wav")
    _write(folder / "etc" / "txt.done.data", *(f'( am_{at}a "{TEXTS[at]} \\"!\\"" )' for at in range(4)))


def _f5_tts(folder: Path) -> None:
    for at in range(4):
        _sound(folder / "wavs" / f"audio_{at}a.wav")
    _write(folder / "metadata.csv", "audio_file|text", *(f"wavs/audio_{at}a.wav|{TEXTS[at]}" for at in range(4)))


def _piper(folder: Path) -> None:
    for at in range(8):
        _sound(folder / "wav" / f"u{at}x.wav")
    _write(folder / "metadata.csv", *(f"u{at}x|voice{at % 2}|{TEXTS[at]}" for at in range(8)))


def _coqui(folder: Path) -> None:
    for at in range(4):
        _sound(folder / "wavs" / f"c{at}x.wav")
    rows = [f"wavs/c{at}x.wav|{TEXTS[at]}|anna" for at in range(4)]
    _write(folder / "metadata_train.csv", "audio_file|text|speaker_name", *rows[:3])
    _write(folder / "metadata_eval.csv", "audio_file|text|speaker_name", *rows[3:])


def _mailabs(folder: Path) -> None:
    for name, books in (("anna", ("one", "two")), ("berta", ("three", "four"))):
        for book in books:
            place = folder / "am_ET" / "by_book" / "female" / name / book
            _sound(place / "wavs" / f"{book}_01_f000001.wav")
            _write(place / "metadata.csv", f"{book}_01_f000001|{TEXTS[0]}|{TEXTS[1]}")


def _css10(folder: Path) -> None:
    for at in range(6):
        _sound(folder / "book" / f"book_{at // 2}_000{at}.wav")
    rows = [f"book/book_{at // 2}_000{at}.wav|{TEXTS[at]}|{TEXTS[at]}|1.5" for at in range(6)]
    _write(folder / "transcript.txt", *rows)


def _mls(folder: Path) -> None:
    names = ("10_20_000000", "10_20_000001", "10_21_000000", "11_30_000000")
    for name in names:
        speaker, book, _ = name.split("_")
        _sound(folder / "train" / "audio" / speaker / book / f"{name}.flac")
    _write(folder / "train" / "transcripts.txt", *(f"{name}\t{TEXTS[at]}" for at, name in enumerate(names)))


def _textgrid(folder: Path) -> None:
    """An aligner's file with words and phones of two speakers, and one by hand in the short form and UTF-16."""
    _sound(folder / "talk.wav", 6)
    tiers = []
    for number, (who, times) in enumerate((("anna", (0.1, 0.9)), ("berta", (3.1, 3.9))), 1):
        for at, (kind, marks) in enumerate((("words", ("ሰላም", "ነው")), ("phones", ("s", "n")))):
            rows = [(0, times[0], ""), (times[0], times[1], marks[0]), (times[1], times[1] + 1, marks[1])]
            parts = [
                f'        intervals [{n}]:\n            xmin = {a}\n            xmax = {b}\n            text = "{t}"'
                for n, (a, b, t) in enumerate(rows, 1)
            ]
            head = f'    item [{2 * number + at}]:\n        class = "IntervalTier"\n        name = "{who} - {kind}"'
            tiers.append(
                f"{head}\n        xmin = 0\n        xmax = 6\n        intervals: size = 3\n" + "\n".join(parts)
            )
    head = (
        'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 6\ntiers? <exists>\nsize = 4\nitem []:'
    )
    _write(folder / "talk.TextGrid", head, *tiers)
    _sound(folder / "hand.wav", 6)
    short = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n6\n<exists>\n1\n"IntervalTier"\n"utterances"\n0\n6\n2\n0.1\n1.9\n"{TEXTS[2]}"\n3.1\n4.9\n"{TEXTS[3]} ""x"""\n'
    (folder / "hand.TextGrid").write_bytes(short.encode("utf-16"))


def _audacity(folder: Path) -> None:
    for name in ("one", "two"):
        _sound(folder / name / f"{name}.wav", 6)
    labels = [f"0.100000\t1.900000\t{TEXTS[0]}", "\\\t100.0\t2000.0", f"3.100000\t4.900000\t{TEXTS[1]}"]
    _write(folder / "one" / "one.txt", *labels)
    _write(folder / "two" / "Label Track.txt", *labels)


def _hugging_face(folder: Path) -> None:
    for part, count in (("train", 3), ("test", 1)):
        for at in range(count):
            _sound(folder / part / "data" / f"{part}{at}x.wav")
        rows = [{"file_name": f"data/{part}{at}x.wav", "transcription": TEXTS[at]} for at in range(count)]
        if part == "train":
            _write(folder / part / "metadata.jsonl", *(json.dumps(row) for row in rows))
        else:
            _write(folder / part / "metadata.csv", "file_name,transcription", *(",".join(row.values()) for row in rows))


LAYOUTS: Mapping[str, Callable[[Path], None]] = {
    "LJSpeech": _ljspeech,
    "audio and text files": _sidecars,
    "LibriTTS": _libritts,
    "VCTK": _vctk,
    "Common Voice": _common_voice,
    "Kaldi": _kaldi,
    "GPT-SoVITS": _sovits,
    "festival": _festival,
    "F5-TTS": _f5_tts,
    "Piper": _piper,
    "Coqui": _coqui,
    "M-AILABS": _mailabs,
    "CSS10, KSS": _css10,
    "Multilingual LibriSpeech": _mls,
    "TextGrid": _textgrid,
    "Audacity": _audacity,
    "Hugging Face audio folder": _hugging_face,
}


def _table_of_the_docs() -> dict[str, tuple[int, int, int]]:
    """Clips, speakers and recordings by layout, as docs/data.md has them."""
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| .* \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    return {name: (int(clips), int(speakers), int(recordings)) for name, clips, speakers, recordings in rows}


def test_the_docs_list_every_layout() -> None:
    assert list(_table_of_the_docs()) == list(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_imported_with_default_settings(name: str, tmp_path: Path) -> None:
    LAYOUTS[name](tmp_path / "in")
    done, clips = _import(tmp_path, tmp_path / "in")
    assert {problem.code for problem in done.problems} <= {"second-microphone", "subtitle-tier"}
    assert done.exit_code == 0
    assert not any(clip.rejected for clip in clips)
    speakers, recordings = ({getattr(clip, key) for clip in clips} for key in ("speaker", "recording"))
    assert (len(clips), len(speakers), len(recordings)) == _table_of_the_docs()[name]
    assert {clip.language for clip in clips} == {"am"}


def test_two_people_who_read_the_same_list_are_two(tmp_path: Path) -> None:
    """Lists with the same texts and file names were one source, so that the second person's audio was lost."""
    for who in ("anna", "berta"):
        for at in range(3):
            _sound(tmp_path / "in" / who / "wavs" / f"{at}x.wav")
        _write(tmp_path / "in" / who / "metadata.csv", *(f"{at}x|{TEXTS[at]}" for at in range(3)))
    done, clips = _import(tmp_path, tmp_path / "in" / "anna")
    assert len(clips) == 3
    for _ in range(2):
        done, clips = _import(tmp_path, tmp_path / "in")
        assert (len(clips), len({clip.speaker for clip in clips})) == (6, 2)
        assert (done.exit_code, done.problems) == (0, ())


def test_texts_and_speakers_of_the_new_layouts_are_those_of_the_files(tmp_path: Path) -> None:
    """Not only their number: a text under the wrong audio file would not show in it."""
    found = {}
    for name in ("Kaldi", "GPT-SoVITS", "festival", "Piper", "Multilingual LibriSpeech", "TextGrid"):
        folder = tmp_path / name
        LAYOUTS[name](folder / "in")
        _, clips = _import(folder, folder / "in")
        found[name] = [(clip.recording, clip.start, clip.speaker, clip.text_as_found) for clip in clips]
    assert found["Kaldi"][:2] == [("talk1", 0.0, "spk0", TEXTS[0]), ("talk1", 3.0, "spk1", TEXTS[1])]
    assert found["GPT-SoVITS"][1] == ("vocal_1", 0.0, "abebe", TEXTS[1])
    assert found["festival"][2][3] == f'{TEXTS[2]} "!"'
    assert found["Piper"][3] == ("u3x", 0.0, "voice1", TEXTS[3])
    assert found["Multilingual LibriSpeech"][3] == ("11_30", 0.0, "11", TEXTS[3])
    who = {(recording, speaker, said) for recording, _, speaker, said in found["TextGrid"]}
    assert {
        ("talk", "talk:anna", "ሰላም ነው"),
        ("talk", "talk:berta", "ሰላም ነው"),
        ("hand", "hand", f'{TEXTS[3]} "x"'),
    } <= who


def _codes(done: DataImportResult) -> set[tuple[str, str, int]]:
    return {(problem.code, Path(problem.file).name, problem.line) for problem in done.problems}


def test_faults_of_a_kaldi_folder_are_reported_by_file_and_line(tmp_path: Path) -> None:
    _kaldi(tmp_path / "in")
    data = tmp_path / "in" / "data" / "train"
    _sound(tmp_path / "elsewhere.wav")
    with (data / "wav.scp").open("a", encoding="utf-8") as stream:
        stream.write(f"piped sph2pipe -f wav x.sph |\ntalk1 again.wav\nlonely\nout {tmp_path}/elsewhere.wav\n")
    with (data / "text").open("ab") as stream:
        stream.write("spk0-0 ሌላ\nu6 ሀ\nu7 ለ\nu8 ሐ\nu9 መ\nu10\nu11 ሠ\nu12 ".encode() + b"\xff\n")
    with (data / "segments").open("a", encoding="utf-8") as stream:
        stream.write("u6 piped 0 1.5\nu7 talk1 4 3\nu8 nowhere 0 1\nu9 talk1\nu11 out 0 1.2\n")
    done, clips = _import(tmp_path, tmp_path / "in")
    assert len(clips) == 4
    assert _codes(done) == {
        ("kaldi-pipe", "wav.scp", 3),
        ("table-double-id", "wav.scp", 4),
        ("table-line", "wav.scp", 5),
        ("table-double-id", "text", 5),
        ("media-missing", "text", 6),
        ("table-line", "text", 7),
        ("media-missing", "text", 8),
        ("table-line", "segments", 8),
        ("table-line", "text", 9),
        ("transcript-empty", "text", 10),
        ("path-outside", "text", 11),
        ("text-encoding", "text", 12),
    }
    (data / "text").write_text("")
    assert ("file-empty", "text", 0) in _codes(_import(tmp_path / "again", tmp_path / "in")[0])
    (data / "text").unlink()
    with pytest.raises(VoxgraftError) as caught:
        find_sources([data], "am")
    assert caught.value.code == "source-none"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.list", "in.wav|me|ZH|ሰላም\nin.wav|me\nin.wav|me|ZH|ሌላ\n|me|ZH|x\nb.wav|me|ZH|\n", {2, 3, 4, 5}),
        ("a.list", "in.wav|me|ZH|ሰላም\n{out}|me|ZH|ሰላም\n../out.wav|me|ZH|ሰላም\n", {2, 3}),
        ("txt.done.data", '( in "ሰላም" )\n( in ሰላም )\n(in "")\nwords\n( in "ሌላ" )\n', {2, 3, 4, 5}),
        ("metadata.csv", "audio_file|text\nin.wav|ሰላም\n{out}|ሰላም\nin.wav|ሌላ\nin.wav\n", {3, 4, 5}),
        ("metadata.jsonl", '{{"file_name": "in.wav", "text": "ሰላም"}}\n{{"file_name": "in.wav"}}\n{{"text": "ሀ"}}\n[]\n', {2, 3, 4}),
    ],
)  # fmt: skip
def test_faulty_lines_of_a_list_are_reported_and_the_others_imported(
    name: str, content: str, expected: set[int], tmp_path: Path
) -> None:
    _sound(tmp_path / "in" / "in.wav")
    _sound(tmp_path / "out.wav")
    text = content.format(out=tmp_path / "out.wav") if "{" in content else content
    _write(tmp_path / "in" / name, text.rstrip("\n"))
    done, clips = _import(tmp_path, tmp_path / "in")
    assert [clip.text for clip in clips] == ["ሰላም"]
    assert {problem.line for problem in done.problems} == expected
    assert {Path(problem.file).name for problem in done.problems} == {name}
    if "out.wav" in text:
        assert "path-outside" in {problem.code for problem in done.problems}
        (tmp_path / "in" / name).write_text(text.replace("in.wav|me|ZH|ሰላም\n", ""), encoding="utf-8")
        done, clips = _import(tmp_path / "both", tmp_path / "in", tmp_path / "out.wav")
        assert "path-outside" not in {problem.code for problem in done.problems}, "a folder that was given is open"


@pytest.mark.parametrize("name", ["a.list", "txt.done.data", "metadata.csv", "a.TextGrid", "a.txt", "metadata.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xff\xff\x00\xd8", b"\x00\x01\x02"])
def test_an_empty_or_binary_file_is_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    _sound(tmp_path / "in" / "a.wav")
    (tmp_path / "in" / name).write_bytes(content)
    done, clips = _import(tmp_path, tmp_path / "in")
    assert clips == []
    assert done.exit_code == 1
    assert any(Path(problem.file).name == name for problem in done.problems)


def test_a_header_without_a_text_or_a_recording_is_refused() -> None:
    for head in ("file_name,label", "text,emotion", "audio_file|speaker_name"):
        with pytest.raises(VoxgraftError) as caught:
            list(parse_transcript_table(f"{head}\na.wav{',' if ',' in head else '|'}b\n", "metadata.csv"))
        assert caught.value.code == "table-columns"


def test_quotes_and_bars_that_pandas_wrote_around_are_read_as_they_were_meant() -> None:
    table = (
        "audio_file|text|speaker_name\n"
        'wavs/a.wav|"He said ""wait"" twice"|anna\n'
        'wavs/b.wav|"left|right"|anna\n'
        'wavs/c.wav|"wait" he said|anna\n'
        'wavs/d.wav|"Wait!"|anna\n'
        "wavs/e.wav|left | right|anna\n"
    )
    rows = list(parse_transcript_table(table, "metadata_train.csv"))
    assert [row.text for row in rows if not isinstance(row, SourceProblem)] == [
        'He said "wait" twice',
        "left|right",
        '"wait" he said',
        '"Wait!"',
    ]
    assert [row.line for row in rows if isinstance(row, SourceProblem)] == [6]


def test_a_table_with_every_cell_in_quotes_is_read_without_them(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    _coqui(folder)
    wanted = _import(tmp_path, folder)[1]
    for name in ("metadata_train.csv", "metadata_eval.csv"):
        rows = [line.split("|") for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        rows[-1][1] = f'{rows[-1][1]} | "{rows[-1][1]}"'
        with (folder / name).open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream, delimiter="|", quoting=csv.QUOTE_ALL).writerows(rows)
    done, clips = _import(tmp_path / "again", folder)
    assert not _codes(done)
    assert [(clip.speaker, clip.recording) for clip in clips] == [(clip.speaker, clip.recording) for clip in wanted]
    assert sum('"' in clip.text_as_found and "|" in clip.text_as_found for clip in clips) == 2


def test_faults_of_a_coqui_folder_are_reported_by_file_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    _coqui(folder)
    with (folder / "metadata_train.csv").open("a", encoding="utf-8") as stream:
        stream.write("wavs/c0x.wav||anna\nwavs/gone.wav|ሌላ|anna\nwavs/c1x.wav|ሌላ\n../out.wav|ሌላ|anna\n")
    _write(folder / "lang.txt", "am")
    _sound(tmp_path / "out.wav")
    done, clips = _import(tmp_path, folder)
    assert len(clips) == 4
    assert _codes(done) == {
        ("transcript-empty", "metadata_train.csv", 5),
        ("media-missing", "metadata_train.csv", 6),
        ("table-line", "metadata_train.csv", 7),
        ("path-outside", "metadata_train.csv", 8),
    }


def test_the_language_of_a_sovits_list_counts_where_there_are_several() -> None:
    """The program knows five languages; a list in any other names one of them throughout."""
    one = list(parse_sovits_list("a|s|ZH|x\nb|s|ZH|y | z\n", "x"))
    two = list(parse_sovits_list("a|s|JP|x\nb|s|en|y\n", "x"))
    assert [(row.language, row.text) for row in one if not isinstance(row, SourceProblem)] == [("", "x"), ("", "y | z")]
    assert [row.language for row in two if not isinstance(row, SourceProblem)] == ["ja", "en"]


def test_a_path_of_another_machine_is_found_by_its_last_parts(tmp_path: Path) -> None:
    _sound(tmp_path / "in" / "wavs" / "a.wav")
    _sound(tmp_path / "in" / "001.wav")
    folder, roots = tmp_path / "in", (tmp_path,)
    assert find_audio_file(folder, "/home/other/in/wavs/a.wav", roots) == folder / "wavs" / "a.wav"
    assert find_audio_file(folder / "lists", "in/wavs/a.wav", roots) == tmp_path / "in" / "wavs" / "a.wav"
    assert find_audio_file(folder, "p225/001.wav", roots) is None, "another speaker's file has the same name"
    assert find_audio_file(folder, "../../etc/a.wav", roots) is None


def test_a_broken_textgrid_is_refused_by_its_line() -> None:
    head = 'File type = "ooTextFile"\nObject class = "TextGrid"\n0\n6\n<exists>\n1\n'
    for body in ('"IntervalTier"\n"a"\n0\n6\n2\n0.1\n1.7\n"x"\n', '"IntervalTier"\n"a"\n0\n6\n1\n0.1\n"x"\n1.7\n'):
        with pytest.raises(VoxgraftError) as caught:
            parse_textgrid(head + body, "a.TextGrid")
        assert caught.value.code == "subtitle-broken"
        assert "line 7" in caught.value.finding.found


def test_lines_of_labels_that_are_none_are_reported() -> None:
    cues, problems = parse_labels("0,5\t1,5\tሀ\nx\ty\tz\n2.0\t2.5\t\n3.0\t3.0\tpoint\n", "a.txt")
    assert [(cue.start, cue.end) for cue in cues] == [(0.5, 1.5), (3.0, 3.0)]
    assert [(problem.code, problem.line) for problem in problems] == [("subtitle-time", 2), ("subtitle-empty", 3)]
