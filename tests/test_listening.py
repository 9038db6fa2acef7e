"""Blind listening tests: what the page reveals, and what the statistics make of answers whose truth is known."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.support.evaluation import settings_of, tones
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of
from voxgraft.config.commands import PreferenceSettings
from voxgraft.data.manifest import MANIFEST_NAME, ManifestClip, write_manifest
from voxgraft.evaluation.command import evaluate
from voxgraft.evaluation.listening import (
    ANSWERS_FORMAT,
    FAULTS,
    KEY_NAME,
    PAGE_NAME,
    TARGET_RMS,
    ListeningPair,
    ListeningTestResult,
    binomial_interval,
    level_speech,
    measure_preference,
    preference,
    sign_test,
    write_pairs,
)
from voxgraft.evaluation.sentences import EvalSentence

SYSTEMS = ("graft", "base")


def made_pairs(count: int, language: str = "en") -> list[ListeningPair]:
    """The first system is a low tone, the second a high one."""
    sentences = [EvalSentence(language, f"{language} {number}") for number in range(count)]
    return [ListeningPair(sentence, (tones([1] * 9), tones([20] * 9)), 16_000) for sentence in sentences]


def page_data(folder: Path) -> dict[str, Any]:
    """What the page's script reads."""
    page = (folder / PAGE_NAME).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(
        page.partition('<script type="application/json" id="test">')[2].partition("</script>")[0]
    )
    return found


def key_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / KEY_NAME).read_text(encoding="utf-8"))
    return found


def is_low(url: str) -> bool:
    """Whether a sound is the first system's tone."""
    wave, _ = soundfile.read(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return bool(np.abs(np.fft.rfft(wave)).argmax() < len(wave) // 8)


def write_answers(path: Path, key: dict[str, Any], prefer: Any, **changed: Any) -> Path:
    """A file as the page saves it: `prefer` gives the preferred system of the pair with a number, or same."""
    answers = []
    for number, pair in enumerate(key["pairs"]):
        system = prefer(number)
        choice = next((side for side in ("a", "b") if pair[side] == system), "same")
        answers.append({"pair": pair["id"], "choice": choice, "faults": {"a": [], "b": []}, "note": ""})
    document = {"format": ANSWERS_FORMAT, "test": key["test"], "rater": path.stem, "started": path.stem}
    path.write_text(json.dumps({**document, "answers": answers, **changed}), encoding="utf-8")
    return path


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_key_says_which_sound_is_whose_and_each_system_is_a_in_half_of_the_pairs_of_a_language(
    tmp_path: Path,
) -> None:
    write_pairs(tmp_path / "made", [*made_pairs(6, "en"), *made_pairs(4, "am")], SYSTEMS)
    key, shown = key_of(tmp_path / "made"), page_data(tmp_path / "made")["pairs"]
    for keyed, pair in zip(key["pairs"], shown, strict=True):
        assert (keyed["id"], keyed["text"]) == (pair["id"], pair["text"])
        assert is_low(pair["a"]) == (keyed["a"] == "graft")
        assert is_low(pair["b"]) == (keyed["b"] == "graft")
    for language, count in (("en", 3), ("am", 2)):
        assert sum(pair["a"] == "graft" for pair in key["pairs"] if pair["language"] == language) == count


def test_the_page_names_no_system_and_no_seed_and_no_two_tests_have_one_order(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        write_pairs(tmp_path / name, made_pairs(20), ("zebra-system", "okapi-system"))
        keys.append(key := key_of(tmp_path / name))
        page = (tmp_path / name / PAGE_NAME).read_text(encoding="utf-8")
        for word in ("zebra", "okapi", key["seed"]):
            assert word not in page
        assert "http" not in page.replace("http-equiv", "")
    assert [pair["text"] for pair in keys[0]["pairs"]] != [pair["text"] for pair in keys[1]["pairs"]]
    assert keys[0]["test"] != keys[1]["test"]


def test_sounds_are_equally_loud_and_silence_at_the_ends_is_gone() -> None:
    speech = tones([3] * 40)
    loud = level_speech(np.concatenate([np.zeros(16_000, np.float32), speech, np.zeros(8_000, np.float32)]), 16_000)
    quiet = level_speech(0.01 * speech, 16_000)
    assert abs(len(loud) - len(speech)) <= 2 * 1600 + 640
    clicking = 0.1 * speech
    clicking[4_000:4_002] = 0.9, -0.9
    for wave in (loud, quiet, level_speech(clicking, 16_000)):
        active = wave[np.abs(wave) > 1e-4]
        assert math.sqrt(float((active**2).mean())) == pytest.approx(TARGET_RMS, rel=0.03)
    assert not len(level_speech(np.zeros(0, np.float32), 16_000))


@pytest.fixture(scope="module")
def run(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return fixtures.trained_run("tiny").copied(tmp_path_factory.mktemp("run") / "run")


def test_a_run_is_compared_with_recordings_and_the_key_of_a_test_is_never_replaced(
    run: WholeRun, tmp_path: Path
) -> None:
    sounds = tmp_path / "others"
    sounds.mkdir()
    for number, text in enumerate(("ሰላ", "ቤት", "ውሃ")):
        soundfile.write(sounds / f"{number}.wav", tones([5] * 20), 16_000)
        (sounds / f"{number}.txt").write_text(text, encoding="utf-8")
    words = (str(run.path), "--recognizer=none", "--languages=en", "--listening-test", f"--listening-against={sounds}")
    result = evaluate(settings_of(*words))
    assert isinstance(result, ListeningTestResult)
    assert result.systems == ("graft", "recordings")
    assert result.pairs == {"am": 3}
    assert result.folder == run.folder.eval / "default-listening"
    assert result.to_json()["pairs"] == {"am": 3}
    assert {pair["text"] for pair in key_of(result.folder)["pairs"]} == {"ሰላ", "ቤት", "ውሃ"}
    before = (result.folder / KEY_NAME).read_bytes()
    assert error_of(lambda: evaluate(settings_of(*words))).code == "file-exists"
    assert (result.folder / KEY_NAME).read_bytes() == before


def test_sentences_that_sound_the_same_are_left_out_and_a_test_without_pairs_is_refused(
    run: WholeRun, tmp_path: Path
) -> None:
    (tmp_path / "en.txt").write_text("ha\nno\n", encoding="utf-8")
    (tmp_path / "am.txt").write_text("ሰላ\nቤት\n", encoding="utf-8")
    sentences = [f"--sentences={tmp_path / name}" for name in ("en.txt", "am.txt")]
    words = (str(run.path), "--recognizer=none", "--languages=en", "--listening-test", *sentences)
    result = evaluate(settings_of(*words, "--name=x"))
    assert isinstance(result, ListeningTestResult)
    assert result.systems == ("graft", "base")
    assert result.pairs == {"am": 2}
    assert list(result.left_out.values()) == [2]  # English of a gated graft is the base's
    error = error_of(lambda: evaluate(settings_of(*words, "--name=y", "--listening-against=recordings")))
    assert error.code == "listening-pairs"
    assert not (run.folder.eval / "y-listening").exists()


def test_a_run_whose_language_has_built_in_sentences_is_compared_with_its_own_held_out_recordings(
    run: WholeRun,
) -> None:
    clips = []
    for number, text in enumerate(("ሰላ", "ቤት", "ውሃ")):
        path = run.folder.data / "clips" / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, tones([5] * 20) if number else np.zeros(8_000, np.float32), 16_000)
        row = (f"{number}", f"clips/{number}.wav", 0.5, text, "am", "one", f"{number}", 16_000)
        clips.append(ManifestClip(*row, split="test"))
    write_manifest(run.folder.data / MANIFEST_NAME, clips)
    words = (str(run.path), "--listening-test", "--listening-against=recordings", "--name=own", "--languages=en")
    # A recognizer is not needed, so one that cannot be opened is no obstacle.
    result = evaluate(settings_of(*words, "--recognizer=command:no-such-program {wav}"))
    assert isinstance(result, ListeningTestResult)
    assert result.pairs == {"am": 2}
    assert list(result.left_out.values()) == [1]  # the silent one
    assert {pair["text"] for pair in key_of(result.folder)["pairs"]} == {"ቤት", "ውሃ"}


@pytest.mark.parametrize("flags", [["--listening-against=recordings"], ["--listening-test", "--recordings=sounds"]])
def test_flags_that_would_be_ignored_are_refused(run: WholeRun, flags: list[str]) -> None:
    assert error_of(lambda: evaluate(settings_of(str(run.path), "--name=z", *flags))).code == "config-value"
    assert not list(run.folder.eval.glob("z*"))


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_binomial_interval_and_sign_test_have_the_values_of_published_tables() -> None:
    assert binomial_interval(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert binomial_interval(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert binomial_interval(20, 20) == pytest.approx((0.8316, 1.0), abs=1e-4)
    assert sign_test(15, 5) == pytest.approx(0.04139, abs=1e-5)
    assert sign_test(5, 15) == sign_test(15, 5)
    assert sign_test(10, 10) == 1.0
    assert sign_test(6, 0) == pytest.approx(2 / 64)


@pytest.mark.parametrize("truth", [0.5, 0.6, 0.75, 0.9, 0.97])
def test_the_interval_of_one_rater_contains_the_truth_in_95_of_100_tests(truth: float) -> None:
    # Exact: over every possible number of wins, by its probability.
    covered = 0.0
    for wins in range(21):
        low, high = binomial_interval(wins, 20)
        covered += math.comb(20, wins) * truth**wins * (1 - truth) ** (20 - wins) * (low <= truth <= high)
    assert 0.95 <= covered <= 1.0


def test_the_interval_of_several_raters_contains_the_truth_although_raters_and_sentences_differ() -> None:
    generator = np.random.default_rng(5)

    def draw(raters: int, pairs: int) -> np.ndarray[Any, Any]:
        liking = 0.8 + generator.normal(0, 0.5, (raters, 1)) + generator.normal(0, 0.7, (1, pairs))
        return np.where(generator.random((raters, pairs)) < 1 / (1 + np.exp(-liking)), 1.0, -1.0)

    truth = float((draw(2000, 2000) > 0).mean())
    shares = [measure_preference(draw(8, 20), number).share for number in range(200)]
    covered = [share.low <= truth <= share.high for share in shares if share.low is not None and share.high is not None]
    assert len(covered) == 200
    assert np.mean(covered) >= 0.9
    # Answers as if they were independent would be surer than they may be.
    values = np.array([share.value for share in shares], dtype=float)
    naive = np.abs(values - truth) <= 1.96 * np.sqrt(values * (1 - values) / 160)
    assert naive.mean() < np.mean(covered)


def test_a_known_preference_is_found_and_its_absence_too() -> None:
    votes = np.array([[1.0] * 15 + [-1.0] * 5])
    found = measure_preference(votes)
    assert (found.wins, found.losses, found.ties, found.raters, found.pairs) == (15, 5, 0, 1, 20)
    assert found.share.value == 0.75
    assert found.p_value == pytest.approx(0.0414, abs=1e-4)
    assert found.method == "exact binomial"
    turned = measure_preference(-votes)
    assert turned.share.value == 0.25
    assert turned.p_value == found.p_value
    assert measure_preference(np.array([[1.0, -1.0] * 10])).p_value == 1.0


def test_ties_are_counted_and_left_out_of_shares() -> None:
    found = measure_preference(np.array([[1.0, 1.0, -1.0, 0.0, 0.0, np.nan]]))
    assert (found.wins, found.losses, found.ties, found.pairs) == (2, 1, 2, 5)
    assert found.share.value == pytest.approx(2 / 3)
    assert found.to_json()["share_ties_half"] == pytest.approx(0.6)
    only_ties = measure_preference(np.zeros((3, 20)))
    assert only_ties.share.value is None
    assert only_ties.share.why
    assert only_ties.p_value is None
    assert only_ties.to_json()["share_ties_half"] == 0.5
    assert measure_preference(np.full((2, 4), np.nan)).share.value is None


def test_unanimous_raters_have_an_interval_with_a_width_and_do_not_multiply_the_sentences() -> None:
    found = measure_preference(np.ones((5, 6)))
    assert found.share.value == 1.0
    assert found.share.low == pytest.approx(binomial_interval(6, 6)[0])
    assert found.p_value == pytest.approx(2 / 64)
    assert measure_preference(-np.ones((5, 6))).share.high == pytest.approx(binomial_interval(0, 6)[1])


def test_the_same_answers_give_the_same_interval() -> None:
    votes = np.sign(np.random.default_rng(1).normal(0.4, 1, (4, 20)))
    assert measure_preference(votes, 3) == measure_preference(votes, 3)
    assert measure_preference(votes, 3).method.startswith("bootstrap")


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_answers_of_several_raters_are_read_with_the_key_by_language_and_with_faults(tmp_path: Path) -> None:
    write_pairs(tmp_path / "made", [*made_pairs(6, "en"), *made_pairs(4, "am")], SYSTEMS)
    key = key_of(tmp_path / "made")
    is_english = [pair["language"] == "en" for pair in key["pairs"]]
    anna = write_answers(tmp_path / "anna.json", key, lambda number: "graft")
    ben = write_answers(tmp_path / "ben.json", key, lambda number: "graft" if is_english[number] else "same")
    document = json.loads(ben.read_text(encoding="utf-8"))
    side = next(side for side in ("a", "b") if key["pairs"][0][side] == "base")
    document["answers"][0]["faults"][side] = ["noise", "words"]
    ben.write_text(json.dumps(document), encoding="utf-8")
    result = preference(PreferenceSettings(test=tmp_path / "made", answers=(anna, ben)))
    found = result.to_json()
    assert found["systems"] == ["graft", "base"]
    assert (found["overall"]["wins"], found["overall"]["ties"], found["overall"]["raters"]) == (16, 4, 2)
    assert found["languages"]["en"]["wins"] == 12
    assert found["languages"]["am"]["ties"] == 4
    assert found["faults"]["base"] == {**dict.fromkeys(FAULTS, 0), "noise": 1, "words": 1}
    assert found["raters"][1]["preferred"] == {"graft": 6, "base": 0}
    assert found["raters"][0]["chose_a"] == found["raters"][0]["chose_b"] == 5
    assert result.lines()
    assert json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"test": "another"},
        {"format": "voxgraft-blind-1"},
        {"answers": [{"pair": "999", "choice": "a", "faults": {}}]},
        {"answers": [{"pair": "001", "choice": "graft", "faults": {}}]},
        {"answers": [{"pair": "001", "choice": "a", "faults": {"a": ["ugly"]}}]},
        {"answers": [{"pair": "001", "choice": "a", "faults": {}}] * 2},
        {"answers": 3},
    ],
)
def test_answers_that_do_not_belong_to_the_test_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_pairs(tmp_path / "made", made_pairs(2), SYSTEMS)
    file = write_answers(tmp_path / "anna.json", key_of(tmp_path / "made"), lambda number: "graft", **changed)
    error = error_of(lambda: preference(PreferenceSettings(test=tmp_path / "made", answers=(file,))))
    assert error.code == "listening-answers"
    assert "anna.json" in error.finding.found


def test_one_rater_counts_once_and_a_damaged_key_is_refused(tmp_path: Path) -> None:
    write_pairs(tmp_path / "made", made_pairs(2), SYSTEMS)
    key = key_of(tmp_path / "made")
    files = [
        # Saved twice, the second time with a name.
        write_answers(tmp_path / f"{name or 'none'}.json", key, lambda number: "graft", started="now", rater=name)
        for name in ("", "anna")
    ]
    assert (
        error_of(lambda: preference(PreferenceSettings(test=tmp_path / "made", answers=tuple(files)))).code
        == "listening-answers"
    )
    for broken in ({**key, "systems": ["graft", "graft"]}, {**key, "pairs": []}, {**key, "format": "x"}, ["a"]):
        (tmp_path / "made" / KEY_NAME).write_text(json.dumps(broken), encoding="utf-8")
        error = error_of(lambda: preference(PreferenceSettings(test=tmp_path / "made", answers=(files[0],))))
        assert error.code == "listening-answers"


def test_orders_of_raters_and_pairs_do_not_change_the_counts(tmp_path: Path) -> None:
    votes = np.array([[1.0, -1.0, 0.0, 1.0], [1.0, 1.0, -1.0, np.nan]])
    for order in itertools.permutations(range(4)):
        found = measure_preference(votes[::-1, list(order)])
        assert (found.wins, found.losses, found.ties) == (4, 2, 1)
