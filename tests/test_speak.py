"""The command `speak` on the built-in base: what is said, how it ends, what every option does, and into which files."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.support.run_folders import error_of
from tests.support.synthesis import codes_of, settings_of, spoken
from voxgraft.asr import open_recognizer
from voxgraft.audio.files import read_audio
from voxgraft.evaluation.scores import compute_error_rates
from voxgraft.evaluation.sentences import EvalSentence, load_built_in_sentences
from voxgraft.models import get_family
from voxgraft.synthesis.command import CODES_FORMAT, SpokenUtterance, synthesize
from voxgraft.synthesis.engine import SynthesisModels, open_synthesis_models
from voxgraft.synthesis.inputs import UtteranceRequest, VoiceLoader

TEXT = "bring me the blue cup"


@pytest.fixture(scope="module")
def speakers() -> SynthesisModels:
    """The built-in base, opened once."""
    return open_synthesis_models(settings_of(TEXT, "--device=cpu"))


def sentences(language: str, count: int) -> list[EvalSentence]:
    found = load_built_in_sentences(language)
    assert found is not None
    return [one for one in found.sentences if not one.rare][:count]


def said_with(speakers: SynthesisModels, *flags: str, text: str = TEXT, language: str = "en") -> SpokenUtterance:
    settings = settings_of(text, f"--language={language}", "--device=cpu", *flags)
    return synthesize(speakers, VoiceLoader(speakers, settings), [UtteranceRequest("001", text)], settings)[0]


def codes_with(speakers: SynthesisModels, *flags: str, **more: Any) -> list[tuple[int, ...]]:
    return [piece.codes for piece in said_with(speakers, *flags, **more).pieces]


@pytest.mark.long
def test_twenty_sentences_in_two_languages_all_end_by_themselves_and_are_understood(tmp_path: Path) -> None:
    meant = [*sentences("en", 10), *sentences("fr", 10)]
    lines = ["text\tlanguage", *(f"{one.text}\t{one.language}" for one in meant)]
    (tmp_path / "all.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = spoken("--file", tmp_path / "all.tsv", "--output", tmp_path / "out", "--voice=f2")
    assert [one.stop for one in result.said] == ["ended"] * 20
    assert result.exit_code == 0
    assert not result.findings
    recognizer = open_recognizer("built-in")
    waves = [read_audio(path) for path in result.sound]
    assert {rate for _, rate in waves} == {16_000}
    for language, first in (("en", 0), ("fr", 10)):
        heard = recognizer.transcribe([samples for samples, _ in waves[first : first + 10]], 16_000, language)
        error = compute_error_rates(meant[first : first + 10], heard, 0)["phone_error"].value
        assert error is not None
        assert error < 0.1, language


@pytest.mark.long
def test_a_text_of_five_minutes_is_said_in_pieces_that_all_end_by_themselves(tmp_path: Path) -> None:
    text = " ".join(f"{one.text.capitalize()}." for one in sentences("en", 50) * 4)
    result = spoken(text, "--language=en", "--output", tmp_path / "long.wav", "--batch=200")
    (said,) = result.said
    samples, rate = read_audio(tmp_path / "long.wav")
    assert len(said.pieces) >= 190
    assert len(samples) / rate >= 300
    assert said.stop == "ended"
    assert len(samples) / rate == pytest.approx(said.seconds(result.family.code_hz), abs=1)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    def bytes_of(name: str, *flags: str) -> bytes:
        spoken(TEXT, "--language=en", "--output", tmp_path / name, *flags)
        return (tmp_path / name).read_bytes()

    first = bytes_of("one.wav", "--seed=7")
    assert bytes_of("two.wav", "--seed=7") == first
    assert bytes_of("three.wav", "--seed=8") != first
    with wave.open(str(tmp_path / "one.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)


@pytest.mark.long
def test_without_chance_the_seed_changes_nothing_and_every_cut_to_the_best_code_is_that(
    speakers: SynthesisModels,
) -> None:
    best = codes_with(speakers, "--temperature=0")
    assert codes_with(speakers, "--temperature=0", "--seed=5") == best
    for flag in ("--top-k=1", "--top-p=0.000001", "--min-p=0.9999"):
        assert codes_with(speakers, flag) == best, flag
    assert codes_with(speakers, "--temperature=1", "--top-p=1") != best


def test_a_penalty_for_repetition_makes_codes_differ_more(speakers: SynthesisModels) -> None:
    def shares(flag: str) -> float:
        said = codes_with(speakers, "--temperature=0", flag, text="no no no no no no no no")  # the same again and again
        codes = [code for piece in said for code in piece]
        return len(set(codes)) / len(codes)

    assert shares("--repetition-penalty=3") > shares("--repetition-penalty=1")


@pytest.mark.long
def test_voices_languages_seeds_and_temperatures_are_heard(speakers: SynthesisModels) -> None:
    usual = codes_with(speakers)
    assert codes_with(speakers, "--voice=m1") == usual  # the first of the table
    for flag in ("--voice=slt", "--seed=1", "--temperature=1.2"):
        assert codes_with(speakers, flag) != usual, flag
    assert codes_with(speakers, language="fr") != usual


def test_a_limit_cuts_speech_and_that_is_reported(speakers: SynthesisModels) -> None:
    said = said_with(speakers, "--max-seconds=0.4")
    assert [len(piece.codes) for piece in said.pieces] == [10]
    assert said.stop == "limit"
    assert [item.code for item in said.findings] == ["speak-cut"]


@pytest.mark.long
def test_pieces_are_said_one_by_one_with_pauses_or_at_once_if_asked(speakers: SynthesisModels) -> None:
    text = "the kettle is warm. rain fell all night"
    parts = said_with(speakers, text=text).pieces
    assert [piece.text for piece in parts] == ["the kettle is warm.", "rain fell all night"]
    assert [piece.pause_seconds for piece in parts] == [0.3, 0]
    assert len(said_with(speakers, "--no-split", text=text).pieces) == 1
    assert said_with(speakers, "--pause=1", text=text).pieces[0].pause_seconds == 1


def test_text_in_another_script_than_its_language_is_a_warning_and_is_said_all_the_same(
    speakers: SynthesisModels,
) -> None:
    said = said_with(speakers, text="ሰላም ለዓለም", language="en")
    assert [item.code for item in said.findings[:2]] == ["speak-other-script", "speak-unknown-letters"]
    assert said.findings[0].level == "warning"
    assert "Ethiopic" in said.findings[0].found
    assert said.pieces[0].codes
    assert not said_with(speakers, text="the word café").findings


@pytest.mark.long
def test_many_utterances_go_into_a_folder_or_into_one_file_and_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("she walks home slowly\n\nrain fell all night\n", encoding="utf-8")
    words = ("--file", tmp_path / "lines.txt", "--language=en")
    result = spoken(*words, "--output", tmp_path / "many")
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["001.wav", "002.wav"]
    assert [str(line.plain)[:9] for line in result.lines()[:2]] == ["001  en  ", "002  en  "]  # type: ignore[union-attr]
    spoken(*words, "--output", tmp_path / "one.wav")
    parts = [read_audio(path)[0] for path in result.sound]
    together = read_audio(tmp_path / "one.wav")[0]
    assert len(together) == sum(map(len, parts)) + round(0.6 * 16_000)
    assert np.array_equal(together[: len(parts[0])], parts[0])
    before = (tmp_path / "one.wav").read_bytes()
    error = error_of(lambda: spoken(*words, "--output", tmp_path / "one.wav", "--seed=3"))
    assert error.code == "file-exists"
    assert (tmp_path / "one.wav").read_bytes() == before
    spoken(*words, "--output", tmp_path / "one.wav", "--seed=3", "--overwrite")
    assert (tmp_path / "one.wav").read_bytes() != before


@pytest.mark.parametrize("suffix", [".mp3", ".flac", ".ogg", ".MP3"])
def test_the_suffix_of_the_output_is_its_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    result = spoken(TEXT, "--language=en", "--output", path)
    assert result.sound == (path,)
    with soundfile.SoundFile(path) as file:
        assert file.format == suffix[1:].upper()
        assert file.frames / file.samplerate == pytest.approx(result.to_json()["utterances"][0]["seconds"], abs=0.4)


def test_an_output_of_no_known_format_is_refused_and_makes_no_folder(tmp_path: Path) -> None:
    error = error_of(lambda: spoken(TEXT, "--language=en", "--output", tmp_path / "x.m4b"))
    assert error.code == "speak-output"
    assert ".mp3" in error.finding.expected
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_cannot_be_imitated_is_reported_as_that(tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_bytes(b"")
    error = error_of(lambda: spoken(TEXT, "--language=en", "--voice", tmp_path / "me.wav", "--output", tmp_path / "x"))
    assert error.code == "voice-unknown"
    assert "cannot clone" in error.finding.found
    assert "chatterbox" in error.finding.cure


def test_a_table_says_language_voice_and_name_of_each_utterance(tmp_path: Path) -> None:
    rows = ["text\tlanguage\tvoice\tname", f"{TEXT}\ten\tslt\tcup", "le pain est chaud\tfr\t\t"]
    (tmp_path / "table.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    result = spoken("--file", tmp_path / "table.tsv", "--codes", tmp_path / "codes.json", "--voice=f4")
    document = json.loads((tmp_path / "codes.json").read_text(encoding="utf-8"))
    assert document["format"] == CODES_FORMAT
    assert document["code_hz"] == 25
    assert [(one["name"], one["language"], one["voice"]) for one in document["utterances"]] == [
        ("cup", "en", "slt"),
        ("002", "fr", "f4"),
    ]
    kept = [tuple(one["pieces"][0]["codes"]) for one in document["utterances"]]
    assert kept == [own[0] for own in codes_of(result).values()]
    assert not result.sound
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes.json", "table.tsv"]


def test_codes_of_one_utterance_are_kept_as_an_array(tmp_path: Path) -> None:
    result = spoken(TEXT, "--language=en", "--codes", tmp_path / "codes.npy")
    codes = np.load(tmp_path / "codes.npy")
    assert codes.dtype == np.int32
    assert tuple(codes.tolist()) == codes_of(result)["001"][0]


@pytest.mark.long
def test_the_program_reads_standard_input_and_prints_a_line_for_each_utterance(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "voxgraft", "speak", "--file", "-", "--language", "en", "--device", "cpu"]
    given = "she walks home slowly\nrain fell all night\n"
    done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("001  en  ")
    assert lines[0].endswith("ended normally: speech/001.wav")
    assert lines[-1].startswith("2 utterances, ")
    assert "cut" not in lines[-1]
    assert (tmp_path / "speech" / "002.wav").is_file()


def test_what_cannot_be_said_is_refused_with_a_cure_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.tsv").write_text("words\tlanguage\nhello\ten\n", encoding="utf-8")
    out = f"--output={tmp_path / 'x.wav'}"
    refusals: dict[str, list[object]] = {
        "speak-language": [TEXT, out],
        "speak-nothing": ["...", "--language=en", out],
        "speak-table": ["--file", tmp_path / "bad.tsv", out],
        "voice-unknown": [TEXT, "--language=en", "--voice=nobody", out],
        "manner-unknown": [TEXT, "--language=en", "--exaggeration=1", out],
        "sampling": [TEXT, "--language=en", "--top-p=2", out],
        "speak-output": [TEXT, "--language=en", f"--codes={tmp_path / 'codes.txt'}"],
        "config-value": [TEXT, "--step=3", out],
        "file-missing": ["--file", tmp_path / "nowhere.txt", out],
    }
    for code, words in refusals.items():
        error = error_of(lambda words=words: spoken(*words))
        assert error.code == code
        assert error.finding.cure
    assert error_of(lambda: spoken(TEXT, "--language=am", out)).finding.expected == "one of en, fr"
    assert error_of(lambda: spoken(TEXT, "--language=en", "--guidance=1", out)).code == "sampling"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert error_of(lambda: spoken("--file=-", "--language=en", out)).code == "speak-nothing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tsv"]


def test_a_language_that_nobody_speaks_is_refused_before_any_weights_are_read(tmp_path: Path) -> None:
    shipped = get_family("tiny").shipped_folder()
    assert shipped is not None
    shutil.copytree(shipped, tmp_path / "base")
    weights = tmp_path / "base" / get_family("tiny").files(shipped).checkpoint.name
    weights.write_bytes(weights.read_bytes()[:-1000])
    words = (f"--base={tmp_path / 'base'}", f"--output={tmp_path / 'x.wav'}")
    assert error_of(lambda: spoken(TEXT, "--language=am", *words)).code == "speak-language"
    (tmp_path / "two.tsv").write_text("text\tlanguage\nhello\ten\nhallo\tde\n", encoding="utf-8")
    assert error_of(lambda: spoken("--file", tmp_path / "two.tsv", *words)).code == "speak-language"
    assert error_of(lambda: spoken(TEXT, "--language=en", *words)).code == "checkpoint-truncated"


@pytest.mark.parametrize(
    ("typed", "meant"), [("amharic", "am is the code for Amharic"), ("Frensh", "fr is the code for French")]
)
def test_whoever_types_the_name_of_a_language_is_reported_its_code(typed: str, meant: str, tmp_path: Path) -> None:
    error = error_of(lambda: settings_of(TEXT, f"--language={typed}"))
    assert meant in error.finding.cure
    assert "did you mean --language" in error.finding.cure
    assert "[a-z]" not in str(error)
    (tmp_path / "a.tsv").write_text(f"text\tlanguage\nhello\t{typed}\n", encoding="utf-8")
    assert meant in error_of(lambda: spoken("--file", tmp_path / "a.tsv", "--codes=x.json")).finding.cure


def test_a_word_that_names_no_language_is_not_guessed_at() -> None:
    assert "did you mean" not in error_of(lambda: settings_of(TEXT, "--language=klingonese")).finding.cure


def test_an_empty_table_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "none.tsv").write_text("\n", encoding="utf-8")
    assert error_of(lambda: spoken("--file", tmp_path / "none.tsv", "--codes=x.json")).code == "speak-table"
