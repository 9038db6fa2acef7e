"""Planted faults are found, sound clips are not rejected, nothing is deleted, and clips can be taken back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from benchmarks.film import RATE_HZ, amharic_sentences, speak
from tests.support.shared import shared
from voxgraft.audio.files import AudioSamples, MediaReader, read_clip_audio, write_clip_audio
from voxgraft.audio.metrics import (
    AudioFingerprint,
    ClipMetrics,
    compute_audio_fingerprint,
    compute_clip_metrics,
    compute_frame_levels,
    compute_script_share,
    compute_speech_thresholds,
    detect_speech_frames,
    find_duplicate_audio,
    find_pauses,
)
from voxgraft.config.data import DataImportSettings, DataReportSettings, QualitySettings
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.results import SimpleResult
from voxgraft.data.import_command import data_import
from voxgraft.data.manifest import DatasetSummary, ManifestClip, read_manifest, write_manifest
from voxgraft.data.report import (
    apply_quality_checks,
    compute_pace_limits,
    data_report,
    describe_measured_results,
    estimate_training,
)
from voxgraft.data.segment import TOO_LONG, TOO_SHORT

VOICES = ("m1", "m3", "f2", "f4")
NUM_CLIPS = 48


def _noise(samples: AudioSamples, loud: float, seed: int) -> AudioSamples:
    made: AudioSamples = samples + np.random.default_rng(seed).normal(0, loud, len(samples)).astype(np.float32)
    return made


def _sentences() -> list[str]:
    """Without one that says almost what another does, which a program says to the very sample."""
    return [text for text in amharic_sentences() if text != "ማንም ሰው ያለፍርድ ንብረቱ አይወሰድበትም።"]


def _clip(at: int) -> tuple[AudioSamples, str, str]:
    """An ordinary clip: a sentence with pauses around it and a little noise."""
    pad = np.zeros(RATE_HZ // 6, np.float32)
    text, voice = _sentences()[at], VOICES[at % 4]
    return _noise(np.concatenate([pad, speak(text, voice), pad]), 0.001, at), text, voice


def _with_fault(at: int, samples: AudioSamples, text: str) -> tuple[AudioSamples, str, str]:
    """The clip with the fault of its place, and the reason that must be found."""
    if at == 5:
        return samples * 3, text, "clipping"
    if at == 9:
        return _noise(samples, 0.08, 99), text, "noise"
    if at == 13:
        return soxr.resample(soxr.resample(samples, RATE_HZ, 8_000), 8_000, RATE_HZ), text, "narrow-band"
    if at == 17:
        return samples, "This is not Amharic at all", "other-script"
    if at == 21:
        return samples, " ".join(_sentences()[at : at + 3]), "too-fast"
    if at == 25:
        return np.concatenate([samples, np.zeros(5 * RATE_HZ, np.float32)]), text, "long-pause"
    if at == 29:
        return samples[: RATE_HZ // 2], text, "too-short"
    return samples, text, ""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """A dataset with one clip for each fault, and the reason by the clip's line; tests that change it copy it."""
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    folder = tmp_path_factory.mktemp("faulty")
    lines, faults = ["audio|text|speaker"], {}
    for at in range(NUM_CLIPS):
        samples, text, voice = _clip(at)
        samples, text, fault = _with_fault(at, samples, text)
        soundfile.write(folder / f"r{at // 6}-{at:03d}.wav", np.clip(samples, -1, 1), RATE_HZ)
        lines.append(f"r{at // 6}-{at:03d}.wav|{text}|{voice}")
        faults[f"metadata.csv:{at + 2}"] = fault
    copy, _, _ = _clip(3)
    soundfile.write(folder / "z-900.mp3", 0.6 * copy[RATE_HZ // 8 :], RATE_HZ)
    lines.append(f"z-900.mp3|{_sentences()[3]}|f4")
    faults[f"metadata.csv:{len(lines)}"] = "same-sound"
    (folder / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    settings = DataImportSettings(dataset=folder / "set", sources=(folder / "metadata.csv",), language="am", workers=1)
    data_import(settings)
    return folder / "set", faults


def _report(dataset: Path, **more: object) -> tuple[SimpleResult, list[ManifestClip]]:
    done = data_report(DataReportSettings(**{"dataset": dataset, "workers": 1, **more}))
    return done, list(read_manifest(dataset / "manifest.jsonl"))


def test_every_planted_fault_is_found_and_nothing_else(faulty: tuple[Path, Mapping[str, str]]) -> None:
    dataset, faults = faulty
    _, clips = _report(dataset)
    found = {clip.source: set(clip.rejected) for clip in clips}
    for source, fault in faults.items():
        if fault:
            assert fault in found[source], (source, found[source])
        else:
            assert not found[source], (source, found[source])
    assert len(list(dataset.glob("clips/*/*.flac"))) == len(clips), "nothing is deleted"


@pytest.mark.long
def test_clips_are_taken_back_and_rejected_by_hand(faulty: tuple[Path, Mapping[str, str]]) -> None:
    dataset, _ = faulty
    _, before = _report(dataset)
    noisy = next(clip for clip in before if "noise" in clip.rejected)
    good = next(clip for clip in before if not clip.rejected)
    _report(dataset, take_back=(noisy.id,), reject=(good.id,))
    _, after = _report(dataset)
    by_id = {clip.id: clip for clip in after}
    assert by_id[noisy.id].is_used, "what was taken back stays so when it is measured again"
    assert "noise" in by_id[noisy.id].rejected
    assert by_id[good.id].rejected == ("by-hand",)
    _report(dataset, take_back=(good.id,))
    _, last = _report(dataset)
    assert next(clip for clip in last if clip.id == good.id).is_used
    with pytest.raises(VoxgraftError) as caught:
        _report(dataset, take_back=("no such clip",))
    assert caught.value.code == "clips-unknown"


@pytest.mark.long
def test_thresholds_move_what_is_rejected(faulty: tuple[Path, Mapping[str, str]]) -> None:
    dataset, _ = faulty
    strict, _ = _report(dataset, quality=QualitySettings(snr=60.0))
    assert strict.to_json()["reasons"]["noise"] > NUM_CLIPS // 2
    usual, clips = _report(dataset)
    is_back = any(clip.taken_back and "noise" in clip.rejected for clip in clips)
    assert usual.to_json()["reasons"].get("noise", 0) == 1 - is_back


def _judged(prints: Mapping[str, AudioFingerprint], clips: list[ManifestClip]) -> list[tuple[str, ...]]:
    own = compute_clip_metrics(
        np.random.default_rng(1).normal(0, 0.1, 48_000).astype(np.float32), 24_000, "ሰላም ነው", "am"
    )
    lenient = QualitySettings(longest=600, silence=1, pause=99, snr=-99, slowest=0, bandwidth=0, same_text=1)
    return [clip.rejected for clip in apply_quality_checks(clips, {clip.id: own for clip in clips}, prints, lenient)]


def test_what_cutting_has_rejected_stays_rejected_whatever_the_thresholds_of_the_report_are() -> None:
    clips = [_manifest_clip("a", rejected=(TOO_LONG,)), _manifest_clip("b", rejected=(TOO_SHORT,))]
    assert _judged({}, clips) == [(TOO_LONG,), (TOO_SHORT,)]


def test_of_the_same_sound_or_text_one_copy_that_is_used_stays() -> None:
    prints = dict.fromkeys("abc", np.random.default_rng(0).integers(0, 1 << 24, 80).astype(np.uint32))
    bad = [_manifest_clip("a", rejected=("by-hand",)), _manifest_clip("b"), _manifest_clip("c")]
    assert _judged(prints, bad) == [("by-hand",), (), ("same-sound",)]
    assert _judged({}, bad) == [("by-hand",), (), ("same-text",)]
    taken_back = [replace(bad[0], taken_back=True), *bad[1:]]
    assert _judged(prints, taken_back) == [("by-hand",), ("same-sound",), ("same-sound",)]


def _manifest_clip(name: str, rejected: tuple[str, ...] = ()) -> ManifestClip:
    return ManifestClip(name, f"{name}.wav", 2.0, "ሰላም ነው", "am", "s", "r", 24_000, rejected=rejected)


def test_a_clip_at_a_rate_that_nobody_records_at_counts_as_broken(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(3_000, np.float32), 50)
    write_manifest(tmp_path / "manifest.jsonl", [replace(_manifest_clip("a"), sample_rate=50)])
    done, (clip,) = _report(tmp_path)
    assert done.to_json()["missing_audio"] == ["a"]
    assert clip.rejected == ("sound-missing",)


@pytest.mark.long
def test_only_what_is_new_is_measured_again(faulty: tuple[Path, Mapping[str, str]]) -> None:
    dataset, _ = faulty
    _report(dataset)
    again, _ = _report(dataset)
    assert again.to_json()["measured"] == 0
    (dataset / "measures.jsonl").write_text('{"id": 1}\n', encoding="utf-8")
    damaged, _ = _report(dataset)
    assert damaged.to_json()["measured"] == NUM_CLIPS + 1


def _spoken(minutes: float) -> str:
    clip = replace(_manifest_clip("a"), seconds=60 * minutes)
    return describe_measured_results(DatasetSummary.of([clip]))[0]


def test_the_report_says_what_so_much_data_gave_where_it_was_measured_and_that_more_was_not() -> None:
    assert "less than the smallest measured amount: 10 minutes gave 38.4 %" in _spoken(5)
    assert "10 minutes gave 38.4 % phone error, 30 minutes 12.0 %" in _spoken(21)
    assert "60 minutes gave 4.8 % phone error; larger amounts were not measured" in _spoken(300)


def test_the_page_needs_nothing_from_elsewhere_and_text_stays_text(faulty: tuple[Path, Mapping[str, str]]) -> None:
    dataset, _ = faulty
    done, clips = _report(dataset)
    page = Path(done.to_json()["page"]).read_text(encoding="utf-8")
    assert page.count("<audio") >= 10
    assert "://" not in page.replace("http://www.w3.org", "")
    assert json.loads((dataset / "report.json").read_text(encoding="utf-8"))["clips"] == len(clips)
    for reason in ("clipping", "narrow-band", "same-sound"):
        assert reason in page


def test_markup_in_a_text_is_shown_and_not_run(faulty: tuple[Path, Mapping[str, str]]) -> None:
    from voxgraft.data.report import render_data_report

    dataset, _ = faulty
    clips = [replace(clip, text="<script>alert(1)</script>", rejected=("x",)) for clip in _report(dataset)[1][:2]]
    page = render_data_report("<b>", dataset, clips, {}, estimate_training(clips), {})
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<h1>&lt;b&gt;</h1>" in page


@pytest.mark.long
def test_a_clip_without_sound_is_reported(faulty: tuple[Path, Mapping[str, str]], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(faulty[0], tmp_path / "set")
    _, clips = _report(tmp_path / "set")
    clips[0].resolve_audio(tmp_path / "set").unlink()
    clips[1].resolve_audio(tmp_path / "set").write_bytes(b"fLaC broken")
    done, after = _report(tmp_path / "set")
    assert done.exit_code == 1
    assert done.to_json()["missing_audio"] == [clips[0].id, clips[1].id]
    assert "sound-missing" in after[0].rejected


def test_a_fingerprint_knows_a_sound_again_and_not_another_reading() -> None:
    pytest.importorskip("espeakng_loader", reason="NOT TESTED: espeak-ng is absent (pip install espeakng-loader)")
    text = amharic_sentences()[7]
    one = _noise(speak(text, "m1"), 0.001, 1)
    prints = {
        "one": compute_audio_fingerprint(one, RATE_HZ),
        "later, softer, at 16 kHz": compute_audio_fingerprint(soxr.resample(0.3 * one[777:], RATE_HZ, 16_000), 16_000),
        "another voice": compute_audio_fingerprint(_noise(speak(text, "f2"), 0.001, 2), RATE_HZ),
        "another text": compute_audio_fingerprint(_noise(speak(amharic_sentences()[8], "m1"), 0.001, 3), RATE_HZ),
        "nothing": compute_audio_fingerprint(np.zeros(100, np.float32), RATE_HZ),
    }
    assert list(find_duplicate_audio(prints)) == [("one", "later, softer, at 16 kHz")]


def test_the_share_of_a_script() -> None:
    assert compute_script_share("ሰላም ለዓለም", "am") == 1.0
    assert compute_script_share("hello", "am") == 0.0
    assert compute_script_share("ሰላም abc", "am") == pytest.approx(0.5)
    assert compute_script_share("hello", "xx") == 1.0


HUMAN_SPEECH = {
    "13_d513033.wav": (0.0, 9.42),
    "tr_1_tr01001.wav": (0.5, 4.04),
    "tr_4_tr01004.wav": (1.02, 4.15),
    "untranscribed_1.wav": (1.10, 1.63),
    "untranscribed_11.wav": (1.23, 2.02),
    "untranscribed_3.wav": (1.28, 2.07),
    "untranscribed_7.wav": (1.49, 2.37),
    "untranscribed_speaker1_3.wav": (1.14, 3.01),
    "untranscribed_speaker2_2.wav": (1.04, 2.40),
}
"""Where somebody speaks in the human clips, read from their waveforms and levels by eye."""


CUT_OFF = ("tr_1_tr01001.wav", "tr_4_tr01004.wav")
"""Recorded too loud: 2 and 3 % of their samples stand at full scale."""


@pytest.mark.parametrize("name", HUMAN_SPEECH)
def test_speech_of_people_is_found_where_it_is_and_judged_as_it_is(name: str, tmp_path: Path) -> None:
    path = shared(f"real/amharic/{name}")
    write_clip_audio(tmp_path / "clip.flac", np.concatenate(list(MediaReader(path, 24_000).blocks())), 24_000)
    samples, _ = read_clip_audio(tmp_path / "clip.flac")
    levels = compute_frame_levels(samples, 24_000)
    active = detect_speech_frames(levels, compute_speech_thresholds(levels))
    start, end = HUMAN_SPEECH[name]
    middle = (start + end) / 2
    pauses = [pause for pause in find_pauses(active, 0.0) if pause.seconds >= 0.3]
    before = max((pause.end for pause in pauses if pause.end <= middle), default=0.0)
    after = min((pause.start for pause in pauses if pause.start >= middle or pause.start > end - 0.1), default=99.0)
    assert before == pytest.approx(start, abs=0.15)
    assert after == pytest.approx(end, abs=0.15)
    own = compute_clip_metrics(samples, 24_000, "ሰላም ነው", "am")
    assert own.snr_db is not None
    assert own.snr_db > 12
    clip = ManifestClip(name, name, own.seconds, "ሰላም ነው", "am", "x", "x", 24_000)
    (judged,) = apply_quality_checks([clip], {name: own}, {}, QualitySettings(slowest=0.1, silence=0.9, pause=2.0))
    assert judged.rejected == (("clipping",) if name in CUT_OFF else ())
    if name not in CUT_OFF:
        assert 7_500 < own.bandwidth_hz <= 8_000, "recorded at 16 kHz, whatever the clip's rate says"


def _paced(language: str, pace: float, count: int, seed: int) -> tuple[list[ManifestClip], dict[str, ClipMetrics]]:
    """Clips of one language around a pace, each with a speaker of its own, so that only the language is compared."""
    chance = np.random.default_rng(seed)
    clips = [
        ManifestClip(f"{language}{at}", "x.wav", 4.0, "x", language, f"{language}{at}", "r", 16_000)
        for at in range(count)
    ]
    own = compute_clip_metrics(np.zeros(16_000, np.float32), 16_000, "x", language)
    sound = replace(own, seconds=4.0, silence=0.1, longest_pause=0.1, snr_db=40.0, bandwidth_hz=8_000.0, script=1.0)
    return clips, {
        clip.id: replace(sound, letters_per_second=float(pace * np.exp(chance.normal(0, 0.2)))) for clip in clips
    }


@pytest.mark.parametrize(("language", "pace"), [("zh", 4.5), ("am", 8.0), ("en", 14.0), ("fi", 17.0), ("dz", 24.0)])
def test_limits_of_the_pace_come_from_the_clips_of_the_language(language: str, pace: float) -> None:
    """Clips at a usual pace of any script stay; a quarter of the text, or four times as much, is found in all of them."""
    clips, measures = _paced(language, pace, 400, seed=len(language))
    others, more = _paced("xx", 45 / pace, 60, seed=7)
    for at, factor in ((3, 0.25), (50, 4.0), (99, 4.0)):
        name = clips[at].id
        measures[name] = replace(measures[name], letters_per_second=pace * factor)
    judged = apply_quality_checks([*clips, *others], measures | more, {}, QualitySettings(same_text=1_000))
    found = {clip.id: clip.rejected for clip in judged if clip.rejected}
    assert found == {clips[3].id: ("too-slow",), clips[50].id: ("too-fast",), clips[99].id: ("too-fast",)}


def test_limits_of_the_pace_need_clips_and_can_be_set() -> None:
    clips, measures = _paced("am", 8.0, 8, seed=1)
    measures[clips[0].id] = replace(measures[clips[0].id], letters_per_second=30.0)
    limits = compute_pace_limits(clips, measures, QualitySettings())["am"]
    assert limits[0] < 4 < 12 < limits[1] < 30
    assert compute_pace_limits(clips[:4], measures, QualitySettings())["am"] == (0.5, 50.0)
    assert compute_pace_limits(clips, measures, QualitySettings(slowest=1.0, fastest=2.0))["am"] == (1.0, 2.0)
