"""Subtitle files of every kind and state: each line is used, or told."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxgraft.audio import metrics
from voxgraft.audio.metrics import FrameLevels, RollingAudioBuffer
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.segment import CutOptions, cut_segments
from voxgraft.data.subtitles import (
    SUNG,
    TWO_VOICES,
    Cue,
    clean_cues,
    decode_text,
    dedupe_rolling_captions,
    parse_subtitles,
    read_encoded_text,
    read_subtitles,
)

SRT = """1
00:00:01,000 --> 00:00:02,500
ሰላም ለዓለም።

2
00:00:03,000 --> 00:00:04,000
<i>ቡና</i>
እፈልጋለሁ።
"""


def test_srt_gives_times_texts_and_lines() -> None:
    cues, problems = parse_subtitles(SRT, ".srt", "a.srt")
    assert [(cue.start, cue.end, cue.text, cue.line) for cue in cues] == [
        (1.0, 2.5, "ሰላም ለዓለም።", 2),
        (3.0, 4.0, "<i>ቡና</i>\nእፈልጋለሁ።", 6),
    ]
    assert not problems


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_line_ends_and_marked_encodings_change_nothing(tmp_path: Path, ends: str, encoding: str) -> None:
    path = tmp_path / "a.srt"
    path.write_bytes(SRT.replace("\n", ends).encode(encoding))
    assert len(read_subtitles(path)[0]) == 2
    assert read_subtitles(path)[0][0].text == "ሰላም ለዓለም።"


def test_an_encoding_is_never_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    path.write_bytes("1\n00:00:01,000 --> 00:00:02,500\ncafé\n".encode("cp1252"))
    with pytest.raises(VoxgraftError, match="line 3 contains byte 0xe9") as caught:
        read_subtitles(path)
    assert caught.value.code == "text-encoding"
    assert read_subtitles(path, "windows-1252")[0][0].text == "café"
    with pytest.raises(VoxgraftError) as unknown:
        read_encoded_text(path, "klingon-8")
    assert unknown.value.code == "text-encoding-unknown"


BROKEN = """1
00:00:01,000 --> 00:00:02,000
one

2
00:00:99 -> 00:0x:04
lost text

stray text without a time

3
00:00:05,000 --> 00:00:04,000
ends before it begins

4
00:00:06,000 --> 00:00:07,000

5
00:00:08,000 --> 00:00:09,000
five
6
00:00:10,000 --> 00:00:11,000
six
"""


def test_broken_blocks_are_reported_by_line_and_the_rest_is_used() -> None:
    cues, problems = parse_subtitles(BROKEN, ".srt", "b.srt")
    assert [cue.text for cue in cues] == ["one", "five", "six"]
    reported = {(problem.code, problem.line) for problem in problems}
    assert reported == {("subtitle-time", 6), ("subtitle-stray", 9), ("subtitle-time", 12), ("subtitle-empty", 16)}
    assert any("lost text" in problem.found for problem in problems)


VTT = """WEBVTT - made by hand
Kind: captions

STYLE
::cue { color: red }

NOTE a note
over two lines

intro
00:01.000 --> 00:02.500 align:start position:0%
<v አበበ>ሰላም <00:00:01.500><c>ለዓለም</c>

01:00:03.000 --> 01:00:04.000
በቃ
"""


def test_vtt_with_notes_styles_names_and_word_times() -> None:
    cues, problems = parse_subtitles(VTT, ".vtt", "a.vtt")
    assert not problems
    cleaned, _ = clean_cues(cues, "am", "a.vtt")
    assert [(cue.start, cue.text, cue.speaker) for cue in cleaned] == [(1.0, "ሰላም ለዓለም", "አበበ"), (3603.0, "በቃ", "")]


ASS = """[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:01.00,0:00:02.50,Default,አበበ,0,0,0,,{\\i1}ሰላም{\\i0}\\Nለዓለም
Comment: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,a note
Dialogue: 0,what,0:00:06.00,Default,,0,0,0,,broken
Dialogue: 0,0:00:07.00,0:00:08.00,Default,,0,0,0,,{\\p1}m 0 0 l 100 0{\\p0}
Dialogue: 0,0:00:09.00,0:00:10.00,Default,,0,0,0,,በቃ, አለ
"""


def test_ass_gives_names_and_texts_and_tells_the_line_that_pysubs2_cannot_read() -> None:
    cues, problems = parse_subtitles(ASS, ".ass", "a.ass")
    cleaned, _ = clean_cues(cues, "am", "a.ass")
    assert [(cue.start, cue.end, cue.text, cue.speaker) for cue in cleaned] == [
        (1.0, 2.5, "ሰላም ለዓለም", "አበበ"),
        (9.0, 10.0, "በቃ, አለ", ""),
    ]
    assert {(problem.code, problem.line) for problem in problems} == {
        ("subtitle-nothing-said", 11),
        ("subtitle-time", 12),
        ("subtitle-nothing-said", 13),
    }


LINES = st.one_of(
    st.sampled_from(
        [
            "",
            "1",
            "27",
            "00:00:01,000 --> 00:00:02,000",
            "00:00:05,000 --> 00:00:02,000",
            "00:00:01.000 --> 00:00:02.000 align:left",
            "0:0 -> 1:1",
            "WEBVTT",
            "NOTE",
            "ሰላም",
            "--> x",
            "[music]",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
)


@pytest.mark.long
@settings(max_examples=300)
@given(lines=st.lists(LINES, max_size=24), ending=st.sampled_from([".srt", ".vtt"]))
def test_every_line_with_text_is_in_a_cue_or_in_a_problem(lines: list[str], ending: str) -> None:
    cues, problems = parse_subtitles("\n".join(lines), ending, "x")
    used = {line for cue in cues for line in range(cue.line, cue.last_line + 1)}
    used |= {line for problem in problems for line in problem.lines}
    notes = _vtt_notes(lines) if ending == ".vtt" else set()
    for number, line in enumerate(lines, 1):
        index = re.fullmatch(r"\s*\d+\s*", line) or (ending == ".vtt" and number + 1 in used)
        assert not line.strip() or number in used or number in notes or index, (number, line)


def _vtt_notes(lines: list[str]) -> set[int]:
    """Lines of a VTT file's head and notes, which are not said; a time ends them, with an empty line or without."""
    found, inside = set(), False
    for number, line in enumerate(lines, 1):
        fresh = number == 1 or not lines[number - 2].strip()
        starts = re.match(r"(NOTE|STYLE|REGION)(\s|$)", line) or (number == 1 and re.match(r"WEBVTT(\s|$)", line))
        inside = bool(starts) if fresh else inside and not re.search(r"\d\s*:\s*\d.*-\s*>|-\s*>.*\d\s*:\s*\d", line)
        if inside and line.strip():
            found.add(number)
    return found


@pytest.mark.parametrize("head", ["NOTE a note", "STYLE", "WEBVTT"])
def test_a_cue_after_a_note_without_an_empty_line_is_said(head: str) -> None:
    text = f"{head}\nmore of it\n00:01.000 --> 00:02.000\nሰላም\n\nNOTE\n00:0x --> 00:03\nበቃ\n"
    cues, problems = parse_subtitles(text, ".vtt", "a.vtt")
    assert [(cue.start, cue.text) for cue in cues] == [(1.0, "ሰላም")]
    assert [(problem.code, problem.line) for problem in problems] == [("subtitle-time", 7)]


def test_nul_bytes_are_no_text() -> None:
    with pytest.raises(VoxgraftError) as caught:
        decode_text(b"1\x00\n", "x")
    assert caught.value.code == "text-binary"


def _cleaned(*texts: str, language: str = "en") -> list[Cue]:
    cues = [Cue(float(at), at + 0.9, text, at) for at, text in enumerate(texts, 1)]
    return clean_cues(cues, language, "x")[0]


@pytest.mark.parametrize(
    ("shown", "said", "language"),
    [
        ("<b>Hello</b> &amp; welcome", "Hello & welcome", "en"),
        ("[door slams] Come in (laughs) now", "Come in now", "en"),
        ("Come in (if you like) now", "Come in (if you like) now", "en"),
        ("*sighs* Well", "Well", "en"),
        ("(ሙዚቃ) ሰላም ነው", "ሰላም ነው", "am"),
        ("[ጭብጨባ] ሰላም ነው", "ሰላም ነው", "am"),
        ("{\\an8}Up there", "Up there", "en"),
        ("It is 12:30 now", "It is 12:30 now", "en"),
        ("እንዲህ አለ፡ ና", "እንዲህ አለ፡ ና", "am"),
    ],
)
def test_only_what_is_said_stays(shown: str, said: str, language: str) -> None:
    assert [cue.text for cue in _cleaned(shown, language=language)] == [said]


def test_capitals_and_names_that_come_again_are_speakers() -> None:
    cues = _cleaned("JOHN: Hello there", "አበበ፡ ሰላም ነው", "አበበ፡ በቃ", "አበበ፡ ና", "Once: upon a time", language="am")
    assert [(cue.speaker, cue.text) for cue in cues] == [
        ("JOHN", "Hello there"),
        ("አበበ", "ሰላም ነው"),
        ("አበበ", "በቃ"),
        ("አበበ", "ና"),
        ("", "Once: upon a time"),
    ]


def test_songs_and_two_voices_in_one_caption_are_marked() -> None:
    sung, both = _cleaned("♪ la la la ♪", "- Come!\n- No.")
    assert sung.text == "la la la"
    assert SUNG in sung.marks
    assert TWO_VOICES in both.marks


def test_sounds_alone_are_reported() -> None:
    kept, problems = clean_cues([Cue(1, 2, "[music]", 7, 7)], "en", "x")
    assert not kept
    assert [(problem.code, problem.line) for problem in problems] == [("subtitle-nothing-said", 7)]


def _rolled(*shown: tuple[float, float, str]) -> list[str]:
    cues = [Cue(start, end, text, at) for at, (start, end, text) in enumerate(shown, 1)]
    return [cue.text for cue in dedupe_rolling_captions(cues, "x")[0]]


def test_captions_that_roll_line_by_line_are_said_once() -> None:
    shown = [(0, 2, "a b c"), (2, 2.01, "a b c"), (2, 4, "a b c d e f"), (4, 6, "d e f g h"), (6, 8, "g h i j")]
    assert _rolled(*shown) == ["a b c", "d e f", "g h", "i j"]


def test_a_caption_that_holds_more_than_half_of_the_one_before_gives_only_what_is_new() -> None:
    """Captions painted on word by word: each holds all of the one before."""
    shown = [(0, 1, "one"), (1, 2, "one two"), (2, 3, "one two three"), (3, 4, "one two three four")]
    assert _rolled(*shown) == ["one", "two", "three", "four"]


def test_what_is_really_said_twice_stays_twice() -> None:
    assert _rolled((0, 1, "አዎ"), (1.1, 2, "አዎ"), (5, 6, "ና ና"), (7, 8, "ና ና")) == ["አዎ", "አዎ", "ና ና", "ና ና"]
    assert _rolled((0, 2.2, "ና ወደ እኔ"), (2.0, 4, "ና ወደ እኔ"), (9, 10, "x")) == ["ና ወደ እኔ", "ና ወደ እኔ", "x"]
    assert _rolled((0, 2.2, "ና ወደ እኔ"), (0.1, 2.2, "ና ወደ እኔ"), (9, 10, "x")) == ["ና ወደ እኔ", "x"]
    rolling = [(0, 2, "a b"), (2, 4, "a b c d"), (4, 6, "c d c d"), (6, 8, "c d e f")]
    assert _rolled(*rolling) == ["a b", "c d", "c d", "e f"]


def test_ordinary_subtitles_that_share_a_word_are_not_taken_for_rolling() -> None:
    shown = ["so I said", "said what", "and then", "we went", "home again", "to sleep", "at last", "go", "go", "on"]
    assert _rolled(*((at, at + 0.9, text) for at, text in enumerate(shown))) == shown


def test_repetitions_in_a_short_file_are_not_taken_for_rolling() -> None:
    shown = ["I went home", "home is good", "good people live there", "they are kind"]
    assert _rolled(*((2.1 * at, 2.1 * at + 2, text) for at, text in enumerate(shown))) == shown
    shown = ["No", "no way", "Stop", "stop it"]
    assert _rolled(*((2.1 * at, 2.1 * at + 2, text) for at, text in enumerate(shown))) == shown


def test_the_old_space_between_words_names_nobody() -> None:
    texts = ["እና፡ወደ፡ቤት፡ሄደ።", "እና፡መጣ።", "እና፡በላ።", "እና ፡ ወደ ፡ ቤት ፡ መጣ።", "ሴት፡ልጅ፡መጣች።", "[ሳቅ]፡ሰላም"]
    cleaned, _ = clean_cues([Cue(at, at + 1, text) for at, text in enumerate(texts)], "am", "x")
    assert [(cue.text, cue.speaker) for cue in cleaned] == [*((text, "") for text in texts[:5]), ("፡ሰላም", "")]
    cleaned, _ = clean_cues([Cue(0, 1, "ሴት፡ ና ወደ እኔ፡፡")], "am-ET", "x")
    assert [(cue.text, cue.speaker) for cue in cleaned] == [("ና ወደ እኔ፡፡", "ሴት")]


def test_a_file_without_subtitles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.srt"
    path.write_text("only words\n", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        read_subtitles(path)
    assert caught.value.code == "subtitle-none"
    assert parse_subtitles("", ".srt", "x") == ([], [])


@pytest.mark.parametrize("line", ["-", " ", "1 ", "0:", "- ", "(", "<", "[", "{", ". "])
def test_a_line_of_one_thing_again_and_again_is_read_in_one_go(line: str) -> None:
    text = f"1\n00:00:01,000 --> 00:00:02,000\n{line * 100_000}x\n{line * 100_000}\n"
    cues, problems = parse_subtitles(text, ".srt", "x")
    cleaned, silent = clean_cues(cues, "am", "x")
    assert len(cleaned) + len(silent) + len(problems) >= 1


def _counted_cuts(monkeypatch: pytest.MonkeyPatch, times: Iterable[tuple[float, float]]) -> tuple[int, int]:
    """Cues, and how often stretches of a recording of ten seconds are judged while they are cut."""
    judged = 0

    def counted(levels: FrameLevels) -> tuple[float, float]:
        nonlocal judged
        judged += 1
        return real(levels)

    real = metrics.compute_speech_thresholds
    monkeypatch.setattr(metrics, "compute_speech_thresholds", counted)
    sound = np.random.default_rng(0).normal(0, 0.1, 160_000).astype(np.float32)
    sound *= np.repeat(np.tile(np.array([1, 0.001], np.float32), 10), 8_000)
    cues = [Cue(start, end, "a b", at, at) for at, (start, end) in enumerate(times)]
    cuts = cut_segments(RollingAudioBuffer(iter([sound]), 16_000), cues, CutOptions())
    number = sum(1 + cut.last_line - cut.line for cut, _ in cuts)
    monkeypatch.setattr(metrics, "compute_speech_thresholds", real)
    return number, judged


def test_cues_after_the_end_of_a_recording_cost_no_search_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    few = _counted_cuts(monkeypatch, ((2.0 * at, 2.0 * at + 1) for at in range(10)))
    many = _counted_cuts(monkeypatch, ((2.0 * at, 2.0 * at + 1) for at in range(5_000)))
    assert (few[0], many[0]) == (10, 5_000)
    assert many[1] <= few[1]


def test_cues_that_crowd_together_share_the_search_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    number, judged = _counted_cuts(monkeypatch, ((at / 500, at / 500 + 0.4) for at in range(4_000)))
    assert number == 4_000
    assert judged <= 3 * 100 * 10  # of each kind one for each frame of the recording, however many cues
