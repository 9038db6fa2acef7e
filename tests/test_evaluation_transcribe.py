"""From codes to sound to what a real program hears in it, and the scores of that."""

from __future__ import annotations

import shlex
import shutil
import struct
import sys
import wave
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.evaluation import RATE, Tones, codes_of, parrot, tone_listener, tones
from voxgraft.asr import CommandRecognizer, Transcript
from voxgraft.audio.features import Waveform
from voxgraft.audio.files import encode_audio, read_audio, resample
from voxgraft.core.errors import VoxgraftError
from voxgraft.demo.data import RECORDINGS_FOLDER
from voxgraft.evaluation.judge import score_recordings, score_voices
from voxgraft.evaluation.scores import (
    EMPTY_TRANSCRIPT,
    SpeechRenderer,
    SpokenSentence,
    Transcriber,
    compute_error_rates,
    compute_sentence_errors,
    compute_stop_scores,
    compute_voice_similarity,
    has_code_loop,
    measure_spoken_pace,
    open_transcriber,
    read_reference_recordings,
)
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.models.base import Clip, ClipEncoder, Latents
from voxgraft.synthesis.inputs import ReferenceVoice

VOICE = ReferenceVoice("somebody", Clip(voice={"speaker": np.array([0], dtype=np.int32)}))
CODE_HZ = 25.0


def said(text: str, spoken: str | None, *, stopped: bool = True, why: str = "") -> SpokenSentence:
    """A sentence that was said as the tones of `spoken`."""
    codes = None if spoken is None else tuple(codes_of(spoken))
    return SpokenSentence(EvalSentence("en", text), VOICE, codes, stopped, len(codes or ()) / CODE_HZ, why)


def heard_in(utterances: Sequence[SpokenSentence], listener: str) -> list[Transcript]:
    sound = SpeechRenderer(Tones())
    return open_transcriber(listener).transcribe(sound.waves(utterances, "tests"), sound.rate, "en", "tests")


def test_what_a_program_hears_in_the_sound_is_scored_against_what_was_meant(tmp_path: Path) -> None:
    utterances = [said("hello world", "hello world"), said("good day", "good dax"), said("yes", "")]
    heard = heard_in(utterances, tone_listener(tmp_path))
    assert [one.text for one in heard] == ["hello world", "good dax", ""]
    scores = compute_error_rates([one.sentence for one in utterances], heard, seed=0)
    assert scores["cer"].value == pytest.approx((0 + 1 + 3) / (11 + 8 + 3))
    assert scores["wer"].value == pytest.approx((0 + 1 + 1) / 5)
    assert scores["phone_error"].value is None
    assert "phones" in scores["phone_error"].why
    assert compute_sentence_errors(utterances[1].sentence, heard[1]) == {"cer": 1 / 8, "phone_error": None}


@pytest.mark.parametrize(
    ("language", "meant", "heard"),
    [
        ("nl", "In tweeduizendzesentwintig, vijf procent.", "in 2026 5%"),
        ("uk", "Їх пʼять.", "їх п'ять"),
        ("am", "በሁለት ሺህ ስድስት", "በ2006"),
    ],
)
def test_a_recogniser_that_writes_digits_or_another_apostrophe_has_heard_no_error(
    language: str, meant: str, heard: str
) -> None:
    scores = compute_error_rates([EvalSentence(language, meant)], [Transcript(heard, None)], seed=0)
    assert (scores["wer"].value, scores["cer"].value) == (0.0, 0.0)


def test_a_wave_too_short_for_a_listener_is_filled_with_silence_and_none_at_all_is_not_listened_to(
    tmp_path: Path,
) -> None:
    assert [one.text for one in heard_in([said("a", "a"), said("a", "")], tone_listener(tmp_path))] == ["a", ""]
    assert [one.text for one in heard_in([said("a", "")], parrot(tmp_path, "always this"))] == [""]


def test_phone_error_needs_phones_on_both_sides_and_common_and_rare_words_are_reported_apart() -> None:
    sentences = [
        EvalSentence("am", "ሰላም", (), ("s", "ə", "l", "a")),
        EvalSentence("am", "ቤት", ("ቤት",), ("b", "e", "t")),
    ]
    heard = [Transcript("ሰላም", ("s", "ə", "l", "a")), Transcript("ቤቱ", ("b", "e", "d"))]
    scores = compute_error_rates(sentences, heard, seed=0)
    assert scores["phone_error"].value == pytest.approx(1 / 7)
    assert scores["phone_error_common"].value == 0
    assert scores["phone_error_rare"].value == pytest.approx(1 / 3)
    assert scores["cer_rare"].value == pytest.approx(1 / 2)
    deaf = compute_error_rates(sentences, [Transcript(one.text, None) for one in heard], seed=0)
    assert deaf["phone_error"].value is None
    half_silent = compute_error_rates(
        sentences, [Transcript("ሰላም", None), EMPTY_TRANSCRIPT], seed=0
    )  # silence is no phones of anybody
    assert half_silent["phone_error"].value is None
    assert half_silent["cer_rare"].value == 1


def test_word_error_is_not_measured_where_words_are_not_written_apart() -> None:
    scores = compute_error_rates([EvalSentence("zh", "你好世界")], [Transcript("你好世界", None)], seed=0)
    assert scores["wer"].value is None
    assert scores["cer"].value == 0


def test_who_does_not_understand_a_language_does_not_listen_to_it(tmp_path: Path) -> None:
    everything = open_transcriber(parrot(tmp_path, "x"))
    assert everything.why_unsupported("am") == ""
    nobody = open_transcriber("none")
    assert nobody.recognizer is None
    assert nobody.why_unsupported("am")


class OnlyFrench(CommandRecognizer):
    """A program that says of itself that it understands French."""

    languages: frozenset[str] | None = frozenset({"fr"})


def test_a_listener_is_never_given_a_language_that_it_says_it_does_not_know(tmp_path: Path) -> None:
    script = tmp_path / "sign.py"
    script.write_text(f"open({str(tmp_path / 'asked')!r}, 'w')\n")
    transcriber = Transcriber(OnlyFrench(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{wav}}"))
    assert "only fr" in transcriber.why_unsupported("am")
    assert transcriber.why_unsupported("fr") == ""
    recording = (EvalSentence("am", "ሰላም"), tones([1, 2]), RATE)
    assert score_recordings([recording], transcriber, 0) is None
    assert not (tmp_path / "asked").exists()
    assert score_recordings([(EvalSentence("fr", "oui"), *recording[1:])], transcriber, 0) is not None
    assert (tmp_path / "asked").exists()


class At16(CommandRecognizer):
    """A program that takes nothing but 16 kHz."""

    sample_rate: int | None = RATE


class HigherTones(Tones):
    """The same tones at 24 kHz, as S3Gen has it."""

    sample_rate = 24_000

    def sound(
        self, codes: Sequence[Sequence[int]], voices: Sequence[Clip], latents: Sequence[Latents] | None = None
    ) -> list[NDArray[np.float32]]:
        return [resample(wave, RATE, self.sample_rate) for wave in super().sound(codes, voices)]


def test_sound_of_any_sample_rate_is_heard_at_the_one_that_the_listener_takes(tmp_path: Path) -> None:
    sound, listener = SpeechRenderer(HigherTones()), tone_listener(tmp_path).removeprefix("command:")
    waves = sound.waves([said("hello world", "hello world"), said("a", "a"), said("a", "")], "tests")
    heard = Transcriber(At16(listener)).transcribe(waves, sound.rate, "en", "tests")
    assert [one.text for one in heard] == ["hello world", "a", ""]
    assert (
        Transcriber(CommandRecognizer(listener)).transcribe(waves, sound.rate, "en", "tests")[0].text != "hello world"
    )  # takes any rate


def test_recordings_at_44_khz_are_heard_by_the_built_in_listener_as_those_at_16_khz_are(tmp_path: Path) -> None:
    for path in sorted(RECORDINGS_FOLDER.glob("*.wav"))[:2]:
        wave, rate = read_audio(path)
        (tmp_path / path.name).write_bytes(encode_audio(resample(wave, rate, 44_100), 44_100))
        shutil.copy(path.with_suffix(".txt"), tmp_path)
    higher = read_reference_recordings(tmp_path, "am")
    assert {rate for _, _, rate in higher} == {44_100}
    texts = {sentence.text for sentence, _, _ in higher}
    usual = [one for one in read_reference_recordings(RECORDINGS_FOLDER, "am") if one[0].text in texts]
    marks = [score_recordings(some, open_transcriber("built-in"), 0) for some in (higher, usual)]
    first, second = (mark.score("cer").value if mark else None for mark in marks)
    assert first is not None
    assert second is not None
    assert first == pytest.approx(second, abs=0.05)


def test_a_listener_that_was_named_and_fails_is_an_error_and_one_that_nobody_named_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(VoxgraftError) as caught:
        open_transcriber("parrots")
    assert caught.value.code == "recognizer-unknown"
    failing = tmp_path / "fail.py"
    failing.write_text("raise SystemExit('no model')\n")
    with pytest.raises(VoxgraftError) as failed:
        heard_in([said("a", "aaaa")], f"command:python3 {failing} {{wav}}")
    assert failed.value.code == "recognizer-failed"
    assert "no model" in failed.value.finding.found


def test_runaways_and_cut_off_speech_are_counted_and_what_could_not_be_said_is_not() -> None:
    pace = 0.04  # one code a letter
    utterances = [
        said("abcdefghij", "abcdefghij"),
        said("abcdefghij", "abc"),
        said("abcdefghij", "abcdefghij", stopped=False),
        said("abcdefghij", None, stopped=False, why="no letters"),
    ]
    scores = compute_stop_scores(utterances, pace, None, seed=0)
    assert scores["runaway"].value == pytest.approx(1 / 3)
    assert scores["cut"].value == pytest.approx(1 / 3)
    assert scores["duration"].value == pytest.approx(1.0)
    assert scores["runaway"].count == 3
    assert scores["unsaid"].value == pytest.approx(1 / 4)


def test_lengths_are_held_against_the_base_where_it_said_the_same_sentence() -> None:
    before = [said("abcd", "abcd"), said("ef", "ef"), said("gh", "ghghgh", stopped=False)]
    after = [said("abcd", "abcdabcd"), said("ef", "efe"), said("gh", "gh")]
    assert compute_stop_scores(after, None, before, seed=0)["duration"].value == pytest.approx(1.75)
    own = measure_spoken_pace(before)
    assert own is not None
    assert own == pytest.approx(0.04)


def test_without_anything_to_know_the_usual_length_from_nothing_is_said_about_it() -> None:
    scores = compute_stop_scores([said("abcd", "abcd")], None, None, seed=0)
    assert scores["cut"].value is None
    assert scores["duration"].value is None
    silent = compute_stop_scores([said("abcd", None, why="no letters")], None, None, seed=0)
    assert silent["runaway"].value is None
    assert "no letters" in silent["runaway"].why


def test_voices_are_like_each_other_by_their_angle() -> None:
    one, two = np.array([1.0, 0.0]), np.array([0.0, 2.0])
    assert compute_voice_similarity([one, two], [one * 3, one], 0).value == pytest.approx(0.5)


class Pitch(ClipEncoder):
    """Whose voice it is, by how high it is at 16 kHz: a direction from 0 to a right angle at 1,000 Hz."""

    def encode(self, waves: Sequence[Waveform]) -> list[Clip]:
        found = []
        for one in waves:
            hz = float(np.abs(np.fft.rfft(np.asarray(one))).argmax()) * self.sample_rate / len(one)
            angle = np.pi / 2 * hz / 1_000
            found.append(Clip(voice={"speaker": np.array([np.cos(angle), np.sin(angle)], np.float32)}))
        return found


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
def test_a_voice_encoder_is_asked_only_in_its_own_sample_rate(rate: int) -> None:
    wave = np.sin(2 * np.pi * 500 * np.arange(rate) / rate).astype(np.float32)
    clip = Clip(voice={"speaker": np.array([1.0, 1.0], np.float32)})
    utterances = [replace(said("a", "a"), voice=ReferenceVoice("somebody", clip))] * 2
    found = score_voices(Pitch(), utterances, [wave, wave[: rate // 4]], rate, 0)
    assert found.value == pytest.approx(1.0, abs=1e-3)
    assert found.count == 1  # what is too short has no voice
    nobody = score_voices("no ear for voices", [], [], RATE, 0)
    assert nobody.value is None
    assert nobody.why == "no ear for voices"


def test_recordings_with_texts_give_the_error_that_the_listener_makes_itself(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name, text, spoken in (("a", "good day", "good day"), ("b", "yes", "yep")):
        (folder / f"{name}.wav").write_bytes(encode_audio(tones(codes_of(spoken)), RATE))
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    row = score_recordings(read_reference_recordings(folder, "en"), open_transcriber(tone_listener(tmp_path)), 0)
    assert row is not None
    assert row.who == "recordings"
    assert row.score("cer").value == pytest.approx(1 / 11)
    (folder / "c.wav").write_bytes(encode_audio(tones([1]), RATE))
    with pytest.raises(VoxgraftError) as caught:
        read_reference_recordings(folder, "en")
    assert caught.value.code == "recordings-missing"
    assert "c.wav" in caught.value.finding.found


def test_recordings_may_have_every_format_that_a_voice_may_have(tmp_path: Path) -> None:
    tone = tones(codes_of("good day"))
    for name, form in (("a.wav", "WAV"), ("b.flac", "FLAC"), ("c.OGG", "OGG"), ("d.mp3", "MP3")):
        (tmp_path / name).write_bytes(encode_audio(tone, RATE, form))
        (tmp_path / name).with_suffix(".txt").write_text(f"said in {name}", encoding="utf-8")
    found = read_reference_recordings(tmp_path, "en")
    assert [sentence.text for sentence, _, _ in found] == [
        f"said in {name}" for name in ("a.wav", "b.flac", "c.OGG", "d.mp3")
    ]
    assert all(rate == RATE and abs(len(wave) - len(tone)) < RATE // 10 for _, wave, rate in found)


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)])
def test_wav_files_of_every_width_are_read_as_they_were_written(tmp_path: Path, width: int, channels: int) -> None:
    values = [0.0, 0.5, -0.5, 0.25]
    path = tmp_path / "x.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(22_050)
        whole = [round(value * 2 ** (8 * width - 1)) for value in values for _ in range(channels)]
        packed = b"".join(
            bytes([number + 128]) if width == 1 else struct.pack("<i", number << (32 - 8 * width))[4 - width :]
            for number in whole
        )
        file.writeframes(packed)
    samples, rate = read_audio(path)
    assert rate == 22_050
    assert samples.tolist() == pytest.approx(values, abs=1e-6)


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_bytes(b"ID3 this is something else")
    (tmp_path / "x.txt").write_text("ሰላም", encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        read_reference_recordings(tmp_path, "am")
    assert caught.value.code == "wav-form"


@pytest.mark.parametrize(("bits", "rate"), [(40, 16_000), (48, 16_000), (56, 16_000), (64, 16_000), (16, 0)])
def test_a_wav_file_of_an_impossible_form_is_refused(tmp_path: Path, bits: int, rate: int) -> None:
    path, width = tmp_path / "x.wav", bits // 8
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * width, width, bits)
    data = bytes(10 * width)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    with pytest.raises(VoxgraftError) as caught:
        read_audio(path, code="wav-form")
    assert caught.value.code == "wav-form"


def test_sound_that_was_written_is_the_sound_that_is_read(tmp_path: Path) -> None:
    samples = tones([1, 5, 2])
    (tmp_path / "x.wav").write_bytes(encode_audio(samples, RATE))
    read, rate = read_audio(tmp_path / "x.wav")
    assert rate == RATE
    assert np.abs(read - samples).max() < 1e-4


def test_speech_that_goes_round_in_a_loop_is_found_wherever_the_loop_is() -> None:
    noise = [int(code) for code in np.random.default_rng(0).integers(0, 500, 200)]
    hz = 25.0
    assert not has_code_loop(noise, hz)
    assert not has_code_loop([], hz)
    assert not has_code_loop([7] * round(1.9 * hz), hz), "a long vowel"
    assert has_code_loop([*noise[:40], *[7] * round(2.1 * hz), *noise[:40]], hz)
    assert has_code_loop([*noise, *noise[:20] * 3], hz)
    assert not has_code_loop([*noise, *noise[:20] * 2], hz)


def test_lengths_that_follow_the_text_are_reported_from_lengths_that_do_not() -> None:
    texts = ["abcdefghijklmnopqrstuvwxyz"[:count] for count in (2, 4, 7, 11, 15, 20)]
    following = compute_stop_scores([said(text, text) for text in texts], None, None, seed=0)
    assert following["length_fit"].value == pytest.approx(1.0)
    assert following["distinct"].value == 1.0
    deaf = compute_stop_scores([said(text, "abcd") for text in texts], None, None, seed=0)
    assert (deaf["length_fit"].value, deaf["distinct"].value) == (0.0, 0.0)
    assert compute_stop_scores([said(text, text) for text in texts[:3]], None, None, seed=0)["length_fit"].value is None
