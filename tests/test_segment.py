"""Clips are cut in pauses: no word is clipped, none is in two clips, and what cannot be cut well is said."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from benchmarks.cutting import Outcome, cuts_of, measure
from benchmarks.film import RATE_HZ, amharic_sentences, make_talk, pairing, speak
from tests.support.audio import film
from voxgraft.audio.files import AudioSamples
from voxgraft.audio.metrics import (
    RollingAudioBuffer,
    SileroVad,
    compute_frame_levels,
    compute_speech_thresholds,
    detect_speech_frames,
    find_pauses,
)
from voxgraft.data.segment import (
    NO_PAUSE,
    NO_SPEECH,
    OVERLAPPING,
    TOO_LONG,
    CutOptions,
    _weigh_letters,
    cut_segments,
)
from voxgraft.data.subtitles import Cue

RATE = 16_000


@pytest.mark.parametrize("rolling", [False, True], ids=["timed captions", "rolling captions"])
def test_no_word_of_a_film_is_clipped_and_no_sentence_is_in_two_clips(rolling: bool) -> None:
    made = film(rolling=rolling)
    ours, plain = Outcome(), Outcome()
    measure(made, list(cuts_of(made, CutOptions())), ours)
    measure(made, list(cuts_of(made, CutOptions(), by_cues_alone=True)), plain)
    assert (ours.clipped, ours.bled, ours.said_twice, ours.lost) == (0, 0, 0, 0)
    assert np.percentile(np.abs([*ours.starts, *ours.ends]), 95) <= 0.16
    assert plain.clipped > 5, "the film is too easy to show anything"


def _speech(*parts: float, seed: int = 1) -> AudioSamples:
    """Noise that is loud and soft in turn, beginning with soft, for so many seconds each."""
    chance = np.random.default_rng(seed)
    pieces = [
        chance.normal(0, 0.2 if place % 2 else 0.001, round(seconds * RATE)) for place, seconds in enumerate(parts)
    ]
    return np.concatenate(pieces).astype(np.float32)


def _cut_with_sound(
    samples: AudioSamples, cues: list[Cue], options: CutOptions | None = None
) -> list[tuple[Cue, AudioSamples]]:
    blocks = (samples[at : at + RATE] for at in range(0, len(samples), RATE))
    return list(cut_segments(RollingAudioBuffer(blocks, RATE), cues, options or CutOptions()))


def _cut(samples: AudioSamples, cues: list[Cue], options: CutOptions | None = None) -> list[Cue]:
    return [cut for cut, _ in _cut_with_sound(samples, cues, options)]


def test_pauses_are_found_to_the_frame() -> None:
    levels = compute_frame_levels(_speech(0.5, 1.0, 0.4, 1.0, 0.5), RATE)
    found = find_pauses(detect_speech_frames(levels, compute_speech_thresholds(levels)), 0.0)
    edges = [edge for pause in found for edge in (pause.start, pause.end)]
    assert edges == pytest.approx([0, 0.5, 1.5, 1.9, 2.9, 3.4], abs=0.011)


def test_silence_alone_holds_no_speech() -> None:
    levels = compute_frame_levels(np.zeros(RATE, np.float32), RATE)
    assert not detect_speech_frames(levels, compute_speech_thresholds(levels)).any()


def test_edges_move_to_the_pause_and_keep_margins() -> None:
    (cut,) = _cut(_speech(1.0, 2.0, 1.0), [Cue(1.3, 2.7, "words.")])
    assert (cut.start, cut.end) == pytest.approx((0.9, 3.15), abs=0.02)


def test_neighbours_share_a_short_pause_at_its_middle() -> None:
    one, two = _cut(_speech(1.0, 2.0, 0.14, 2.0, 1.0), [Cue(1, 3.3, "one."), Cue(3.3, 5.2, "two.")])
    assert one.end == pytest.approx(3.07, abs=0.02)
    assert two.start == pytest.approx(3.07, abs=0.02)


def test_short_subtitles_are_joined_and_speakers_are_kept_apart() -> None:
    sound = _speech(1.0, 0.6, 0.3, 2.0, 0.3, 2.0, 1.0)
    cues = [Cue(1, 1.6, "no."), Cue(1.9, 3.9, "come here."), Cue(4.2, 6.2, "why.", speaker="B")]
    assert [cut.text for cut in _cut(sound, cues)] == ["no. come here.", "why."]


def test_a_sentence_over_two_subtitles_becomes_one_clip() -> None:
    sound = _speech(1.0, 2.0, 0.3, 2.0, 0.3, 2.0, 1.0)
    cues = [Cue(1, 3, "when it rains"), Cue(3.3, 5.3, "we stay."), Cue(5.6, 7.6, "Go.")]
    assert [cut.text for cut in _cut(sound, cues)] == ["when it rains we stay.", "Go."]


def test_a_long_subtitle_is_parted_where_sentences_and_pauses_agree() -> None:
    sound = _speech(1.0, 4.0, 0.4, 4.0, 0.4, 4.0, 1.0)
    text = "One sentence here. Two sentence here. Six sentence here."
    cuts = _cut_with_sound(sound, [Cue(1, 13.8, text)], CutOptions(longest=9.0))
    assert [cut.text for cut, _ in cuts] == ["One sentence here. Two sentence here.", "Six sentence here."]
    assert [len(samples) / RATE for _, samples in cuts] == pytest.approx([8.65, 4.25], abs=0.1)


@pytest.mark.parametrize("full_lines", [False, True], ids=["several sentences each", "ends of lines in sentences"])
def test_no_text_gets_the_sound_of_another_where_captions_do_not_go_by_sentences(full_lines: bool) -> None:
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    talk = make_talk(40, 1, full_lines=full_lines)
    found = pairing(talk, cuts_of(talk, CutOptions(language="am")))
    assert found.wrong == 0, [cut.text for cut in found.wrong_cuts]
    assert found.right > sum(found.rejected.values()), found


def test_a_pause_inside_a_sentence_is_not_taken_for_its_end() -> None:
    """Three sentences of six seconds; the longest pause lies in the second, the true ones are short."""
    sound = _speech(1.0, 6.0, 0.2, 1.5, 0.6, 4.5, 0.2, 6.0, 1.0)
    cues = [Cue(1, 20, "Aaaa bbbb cccc dddd. Eeee ffff gggg hhhh. Iiii jjjj kkkk llll.")]
    starts = [cut.start for cut in _cut(sound, cues, CutOptions(longest=9.0))]
    assert starts == pytest.approx([0.9, 7.1, 13.9], abs=0.03)


def test_a_long_subtitle_whose_pauses_leave_a_doubt_is_kept_whole() -> None:
    """Two pauses near the end of the sentence, each of which could be it."""
    sound = _speech(1.0, 5.8, 0.3, 0.6, 0.3, 5.8, 1.0)
    (cut,) = _cut(sound, [Cue(1, 13.8, "One sentence is here. Two sentence is here.")], CutOptions(longest=9.0))
    assert cut.marks == (TOO_LONG,)


def test_clips_that_begin_or_end_in_speech_are_marked() -> None:
    cues = [Cue(1, 5, "first one.", speaker="A"), Cue(5, 9, "second one.", speaker="B")]
    assert [cut.marks for cut in _cut(_speech(1.0, 8.0, 1.0), cues)] == [(NO_PAUSE,), (NO_PAUSE,)]


def test_a_clip_in_which_the_recording_breaks_off_is_marked() -> None:
    cues = [Cue(1, 3, "first one."), Cue(3.4, 6.9, "words that were not recorded to their end.")]
    assert [cut.marks for cut in _cut(_speech(1.0, 2.0, 0.4, 2.0), cues)] == [(), (NO_PAUSE,)]
    ended = _cut(_speech(1.0, 2.0, 0.4, 2.0, 0.2), [Cue(1, 3, "first one."), Cue(3.4, 6.9, "words.")])
    assert [cut.marks for cut in ended] == [(), ()], "a subtitle that only is on after the voice"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("በ1987 ወደ አዲስ አበባ መጣ።", "ከዚያ በኋላ በአንድ ትልቅ ትምህርት ቤት ውስጥ ለብዙ ጊዜ አስተማረ።"),
        ("ይህን የምትከፍተው በChromium Browser ነው።", "ከዚያ በኋላ ገጹን ታነባለህ።"),
    ],
    ids=["a number", "a Latin name"],
)
def test_how_long_a_text_takes_is_reported_by_its_words_and_not_by_its_characters(first: str, second: str) -> None:
    """Sound as long as the texts are said: by their characters alone their paces would not agree."""
    letters = [_weigh_letters(text, "am") for text in (first, second)]
    sound = _speech(1.0, letters[0] / 3.5, 0.4, letters[1] / 3.5, 1.0)
    end = 1.4 + sum(letters) / 3.5
    one, two = _cut(sound, [Cue(1, end, f"{first} {second}")], CutOptions(longest=end - 2, language="am"))
    assert (one.text, two.text) == (first, second)
    assert two.start == pytest.approx(1.3 + letters[0] / 3.5, abs=0.05)


def test_of_a_parted_subtitle_only_the_parts_at_edges_in_speech_are_marked() -> None:
    sound = _speech(1.0, 3.0, 0.4, 5.0, 0.4, 5.0, 0.4, 7.0, 1.0)
    cues = [
        Cue(1, 4.0, "Before it.", speaker="B"),
        Cue(4.4, 18.2, "Aaa bbb ccc ddd. Eee fff ggg hhh. Iii jjj.", speaker="A"),
        Cue(18.2, 22.0, "other words.", speaker="B"),
    ]
    before, one, two, after = _cut(sound, cues, CutOptions(longest=11.0))
    assert (before.marks, one.marks, two.marks, after.marks) == ((), (), (NO_PAUSE,), (NO_PAUSE,))


def test_a_long_subtitle_that_cannot_be_parted_is_kept_whole_and_rejected() -> None:
    cues = [Cue(1, 13, "no mark and no pause")]
    ((cut, samples),) = _cut_with_sound(_speech(1.0, 12.0, 1.0), cues, CutOptions(longest=9.0))
    assert TOO_LONG in cut.marks
    assert len(samples) > 11 * RATE


def test_voices_at_once_and_silence_are_rejected() -> None:
    sound = _speech(1.0, 3.0, 4.0)
    cuts = _cut(sound, [Cue(1, 4, "one voice."), Cue(1.2, 3.8, "another."), Cue(6.0, 7.4, "nobody.")])
    assert all(OVERLAPPING in cut.marks for cut in cuts[:2])
    assert NO_SPEECH in cuts[-1].marks


def test_memory_is_bounded_however_long_the_recording_is() -> None:
    """An hour with a subtitle every minute: never more than half a minute of it is kept."""
    minute = _speech(2.0, 3.0, 55.0)
    most = 0
    buffer = RollingAudioBuffer((minute[at : at + RATE] for _ in range(60) for at in range(0, len(minute), RATE)), RATE)
    cues = [Cue(60 * at + 2.0, 60 * at + 5.0, "x.") for at in range(60)]
    for count, (_, samples) in enumerate(cut_segments(buffer, cues, CutOptions()), 1):
        most = max(most, buffer.num_kept)
        assert len(samples) == pytest.approx(3.25 * RATE, abs=0.03 * RATE), count
    assert most < 30 * RATE


def test_a_voice_is_reported_from_music_where_the_model_is_there() -> None:
    """Music as loud as speech on both sides of a sentence: energy alone hears no pause, the model does."""
    for name in ("onnxruntime", "silero_vad"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"NOT TESTED: {name} is absent (pip install 'voxgraft[vad]')")
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    voice = speak(amharic_sentences()[3], "m1")
    start, end = 4.0, 4.0 + len(voice) / RATE_HZ
    sound = np.random.default_rng(0).normal(0, 1e-3, len(voice) + 8 * RATE_HZ).astype(np.float32)
    sound[4 * RATE_HZ : 4 * RATE_HZ + len(voice)] += voice
    time = np.arange(len(sound)) / RATE_HZ
    tones = [0.05 * np.sin(2 * np.pi * hertz * time) for hertz in (220.0, 277.0, 330.0, 1000.0)]
    music = np.sum(tones, axis=0).astype(np.float32)
    music[round((start - 0.05) * RATE_HZ) : round((end + 0.05) * RATE_HZ)] = 0
    sound += music
    cue = Cue(start - 0.6, end + 0.7, "words.")
    blocks = [sound[at : at + RATE_HZ] for at in range(0, len(sound), RATE_HZ)]
    ((asked, _),) = cut_segments(RollingAudioBuffer(iter(blocks), RATE_HZ, SileroVad(RATE_HZ)), [cue], CutOptions())
    ((alone, _),) = cut_segments(RollingAudioBuffer(iter(blocks), RATE_HZ), [cue], CutOptions())
    assert 0.0 <= start - asked.start <= 0.35
    assert 0.0 <= asked.end - end <= 0.45
    assert alone.end - alone.start > asked.end - asked.start, "the case is too easy to show anything"


def test_times_alone_are_kept_where_that_is_asked_for() -> None:
    options = CutOptions(lead=0, tail=0, refine=False)
    (cut,) = _cut(_speech(1.0, 2.0, 1.0), [Cue(1.3, 2.7, "words.")], options)
    assert (cut.start, cut.end) == (1.3, 2.7)
