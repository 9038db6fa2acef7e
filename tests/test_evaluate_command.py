"""The command `evaluate`: runs, grafts, steps and checkpoints judged against their base, with and without sound."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.evaluation import evaluated, in_order, parrot, settings_of
from tests.support.fixtures import Fixtures
from tests.support.run_folders import WholeRun, error_of
from tools.random_bases import make_random_base
from voxgraft.dataset.sets import open_clip_dataset
from voxgraft.evaluation.command import EVALUATION_REPORT_NAME, score_model
from voxgraft.evaluation.judge import Evaluation, compare_base_values, measure_retention
from voxgraft.evaluation.report import SCORES_FORMAT, build_checklist, read_scores, summarize_retention
from voxgraft.evaluation.scores import synthesize_sentences
from voxgraft.evaluation.sentences import EvalSentence
from voxgraft.graft.folder import load_graft
from voxgraft.models import get_family
from voxgraft.synthesis.engine import (
    ModelContext,
    SpeakingModel,
    detect_trained_output,
    open_base_model,
    open_checkpoint_model,
    open_grafted_model,
    open_merged_model,
)
from voxgraft.synthesis.inputs import ReferenceVoice

TOLD = ("", "", "", "ሰላ", "ቤት", "ውሃ")
"""What is heard before, and after."""
MEASURED_WITHOUT_SOUND = ("runaway", "speech_loss", "text_use")


@pytest.fixture(scope="module")
def tiny(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return fixtures.trained_run("tiny").copied(tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture(scope="module")
def silent(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """Of a family that has no vocoder."""
    return fixtures.trained_run("chatterbox").copied(tmp_path_factory.mktemp("chatterbox") / "run")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, tiny: WholeRun) -> WholeRun:
    """Trained as the masked-finetune baseline, which changes everything."""
    run = tiny.copied(tmp_path_factory.mktemp("seeds") / "run")
    run.train("--baseline", "masked-finetune", "--fresh", train_lr_backbone=1e-3)
    return run


def place_of(run: WholeRun) -> ModelContext:
    return ModelContext(get_family(run.family_name), run.files, "cpu", torch.float32)


def scores(document: dict[str, Any], language: str, who: str) -> dict[str, Any]:
    (row,) = [row for row in document["rows"] if (row["language"], row["who"]) == (language, who)]
    found: dict[str, Any] = row["scores"]
    return found


def pretending(place: ModelContext, folder: Path) -> SpeakingModel:
    return replace(open_merged_model(place, folder), mode="gated")


def every_number(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in every_number(item)]
    if isinstance(value, list):
        return [number for item in value for number in every_number(item)]
    return [value] if isinstance(value, float) else []


@pytest.mark.long
def test_a_family_without_sound_is_scored_by_what_needs_none_and_the_report_says_that_nothing_was_heard(
    silent: WholeRun, tmp_path: Path
) -> None:
    run = silent.copied(tmp_path / "run")
    result = evaluated(run.path, tmp_path, recognizer=parrot(tmp_path, "ሰላም"))
    assert result.exit_code == 0
    document = json.loads((run.folder.eval / "default" / "scores.json").read_text(encoding="utf-8"))
    assert document["format"] == SCORES_FORMAT
    assert document["listener"]["name"] is None
    assert "chatterbox" in document["listener"]["why"]
    after = scores(document, "am", "after")
    for name in MEASURED_WITHOUT_SOUND:
        assert isinstance(after[name]["value"], float), name
    for name in ("cer", "wer", "phone_error", "likeness"):
        assert after[name]["value"] is None
        assert "chatterbox" in after[name]["why"]
    page = (run.folder.eval / "default" / EVALUATION_REPORT_NAME).read_text(encoding="utf-8")
    assert "No audio to play" in page
    assert "<audio" not in page.partition("<script>")[0]
    assert any("not transcribed" in str(getattr(line, "plain", line)) for line in result.lines())


def test_a_run_with_sound_is_listened_to_before_and_after_with_its_controls_and_its_mark(
    tiny: WholeRun, tmp_path: Path
) -> None:
    run = tiny.copied(tmp_path / "run")
    result = evaluated(run.path, tmp_path, recognizer=in_order(tmp_path, TOLD), name="heard")
    document = json.loads((run.folder.eval / "heard" / "scores.json").read_text(encoding="utf-8"))
    assert document["listener"]["name"].startswith("command:")
    assert [(row["language"], row["who"]) for row in document["rows"]] == [
        ("am", "before"),
        ("am", "after"),
        ("am", "shuffled"),
        ("am", "codec"),
        ("en", "before"),
        ("en", "after"),
    ]
    # Heard as meant after training, and as nothing at all before: against other texts every letter is wrong.
    assert scores(document, "am", "before")["cer"]["value"] == 1.0
    assert scores(document, "am", "after")["cer"]["value"] == 0.0
    assert scores(document, "am", "shuffled")["cer"]["value"] == 1.0
    assert scores(document, "am", "codec")["cer"]["value"] > 0.5
    assert scores(document, "am", "after")["likeness"]["value"] is None
    assert document["subject"]["step"] == 4
    assert result.to_json()["folder"] == str(run.folder.eval / "heard")
    assert "utterances" not in result.to_json()
    heard = [one for one in document["utterances"] if one["who"] == "after" and one["language"] == "am"]
    assert [one["text"] for one in heard] == ["ሰላ", "ቤት", "ውሃ"]
    assert [one["heard"] for one in heard] == ["ሰላ", "ቤት", "ውሃ"]


def test_old_languages_of_a_gated_graft_are_equal_by_torch_equal_and_no_value_of_the_base_has_changed(
    tiny: WholeRun, tmp_path: Path
) -> None:
    result = evaluated(tiny.copied(tmp_path / "run").path, tmp_path)
    retention = result.document["retention"]
    assert retention["word"] == "equal"
    assert retention["base_values"]["changed"] == 0
    english = retention["languages"]["en"]
    assert english["equal"] is True
    assert english["largest_difference"] == 0
    assert english["same_codes"] == english["spoken"] == 3
    assert english["positions"] > 100
    assert scores(dict(result.document), "en", "after")["kl"]["value"] == pytest.approx(0, abs=1e-6)
    answers = {point.name: point.answer for point in result.points}
    assert answers["base-values"] == answers["old-languages"] == "yes"


@pytest.mark.long
def test_the_masked_baseline_is_seen_to_have_changed_the_base_and_is_labelled(seeds: WholeRun, tmp_path: Path) -> None:
    result = evaluated(seeds.copied(tmp_path / "run").path, tmp_path)
    document = result.document
    assert document["subject"]["mode"] == "masked-finetune"
    assert "loses the old languages" in document["subject"]["label"]
    assert document["retention"]["word"] == "not equal"
    assert document["retention"]["base_values"]["changed"] > 0
    assert document["retention"]["languages"]["en"]["largest_difference"] > 0
    assert scores(dict(document), "en", "after")["kl"]["value"] > 0
    assert result.exit_code == 0  # nothing was promised
    page = (result.folder / EVALUATION_REPORT_NAME).read_text(encoding="utf-8")
    assert "loses the old languages" in page


def test_a_graft_that_breaks_its_promise_ends_with_exit_code_1_and_a_cross(
    seeds: WholeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that was trained, put behind the name of a gated graft."""
    monkeypatch.setattr("voxgraft.synthesis.engine.open_merged_model", pretending)
    result = evaluated(seeds.copied(tmp_path / "run").path, tmp_path, name="pretending")
    assert result.document["retention"]["word"] == "not equal"
    assert result.exit_code == 1
    assert {point.name: point.answer for point in result.points}["old-languages"] == "no"
    place = place_of(seeds)
    base, moved = open_base_model(place), open_merged_model(place, seeds.path / "masked-finetune")
    pretender = SpeakingModel("graft", moved.family, moved.model, moved.text_encoder, None, "gated")
    voices = [ReferenceVoice(name, clip) for name, clip in place.family.voices(place.files).items()]
    sentences = [EvalSentence("en", "ha"), EvalSentence("en", "no")]
    before, now = (synthesize_sentences(one, sentences, voices, 0, "x") for one in (base, pretender))
    kept = measure_retention(base, pretender, before, now)
    assert kept.equal is False
    found = Evaluation("am", [], [kept], compare_base_values(base, pretender))
    assert summarize_retention(found) == "not equal"
    assert {point.name: point.answer for point in build_checklist(found, pretender)} == {
        "base-values": "no",
        "old-languages": "no",
    }


def test_a_change_that_half_precision_cannot_show_is_found_in_the_files(tiny: WholeRun, tmp_path: Path) -> None:
    shutil.copytree(tiny.base, tmp_path / "other")
    path = get_family("tiny").files(tmp_path / "other").checkpoint
    state = load_file(path)
    name = "speech_head.weight" if "speech_head.weight" in state else next(iter(state))
    state[name].view(-1)[7] *= 1 + 1e-6
    save_file(state, path)
    place = ModelContext(get_family("tiny"), tiny.files, "cpu", torch.bfloat16)
    base, other = open_base_model(place), open_checkpoint_model(place, tmp_path / "other", None)
    assert all(map(torch.equal, base.model.state_dict().values(), other.model.state_dict().values()))
    change = compare_base_values(base, other)
    assert (change["changed"], change["tensors"]) == (1, [name])
    assert "as stored" in change["compared"]
    graft = compare_base_values(base, open_grafted_model(place, load_graft(tiny.folder.graft)))
    assert graft["changed"] == 0
    assert "in memory, in bfloat16" in graft["compared"]


def test_every_score_that_is_missing_has_its_reason_and_no_number_is_infinite_or_nan(
    tiny: WholeRun, tmp_path: Path
) -> None:
    result = evaluated(tiny.copied(tmp_path / "run").path, tmp_path)
    text = (result.folder / "scores.json").read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in scores.json"))
    for row in document["rows"]:
        for name, score in row["scores"].items():
            assert score["value"] is not None or score["why"], (row["language"], row["who"], name)
    assert all(map(math.isfinite, every_number(document)))
    assert document["not_measured"]


@pytest.mark.long
def test_the_same_evaluation_gives_the_same_scores(tiny: WholeRun, tmp_path: Path) -> None:
    run = tiny.copied(tmp_path / "run")
    first, second = (evaluated(run.path, tmp_path, name=name).document for name in ("one", "two"))
    assert {**first, "name": ""} == {**second, "name": ""}


def test_a_graft_alone_is_judged_with_its_base_and_held_out_losses_are_left_out_with_the_reason(
    tiny: WholeRun, tmp_path: Path
) -> None:
    result = evaluated(tiny.folder.graft, tmp_path, base=tiny.base, output=tmp_path / "out")
    assert result.folder == tmp_path / "out"
    assert result.document["subject"]["kind"] == "graft"
    assert result.document["retention"]["word"] == "equal"
    loss = scores(dict(result.document), "am", "after")["speech_loss"]
    assert loss["value"] is None
    assert "no run" in loss["why"]
    error = error_of(lambda: evaluated(tiny.folder.graft, tmp_path, base=tiny.base, output=tmp_path / "out"))
    assert error.code == "file-exists"


@pytest.mark.long
def test_a_saved_step_is_judged_as_it_was(tiny: WholeRun, tmp_path: Path) -> None:
    run = tiny.copied(tmp_path / "run")
    result = evaluated(run.path, tmp_path, step=0)
    assert result.document["subject"]["system"] == "step 0"
    last = evaluated(run.path, tmp_path, step=4, name="last")
    done = evaluated(run.path, tmp_path, name="done")
    codes = [[one["codes"] for one in found.document["utterances"]] for found in (last, done)]
    assert codes[0] == codes[1]
    losses = [scores(dict(found.document), "am", "after")["speech_loss"]["value"] for found in (result, last, done)]
    assert losses[1] == pytest.approx(losses[2], abs=1e-6)
    assert losses[0] != pytest.approx(losses[1], abs=1e-6)


def test_two_checkpoints_of_a_family_are_judged_against_each_other(tiny: WholeRun, tmp_path: Path) -> None:
    other = make_random_base("tiny", tmp_path / "other", size="tiny", seed=9).folder
    result = evaluated_without_new(other, tiny.base, tmp_path)
    assert result.document["language"] is None
    assert result.document["subject"]["mode"] == "checkpoint"
    judged = get_family("tiny").files(other).checkpoint
    assert result.document["subject"]["checkpoint_sha256"] == hashlib.sha256(judged.read_bytes()).hexdigest()
    assert result.document["retention"]["word"] == "not equal"
    same = tmp_path / "same"
    shutil.copytree(tiny.base, same)
    equal = evaluated_without_new(same, tiny.base, tmp_path)
    assert equal.document["retention"]["word"] == "equal"
    assert equal.document["retention"]["base_values"]["changed"] == 0


def evaluated_without_new(subject: Path, base: Path, folder: Path) -> Any:
    (folder / "en.txt").write_text("ha\nno\n", encoding="utf-8")
    words = [f"--base={base}", f"--output={folder / (subject.name + '-eval')}", f"--sentences={folder / 'en.txt'}"]
    return score_model(settings_of(str(subject), *words, "--languages=en", "--recognizer=none"))


def test_what_cannot_be_judged_is_refused_with_a_cure(tiny: WholeRun, tmp_path: Path) -> None:
    run = tiny.copied(tmp_path / "run")
    other = make_random_base("tiny", tmp_path / "other", size="tiny", seed=9).folder
    refusals = {
        "base-other": lambda: evaluated(run.path, tmp_path, base=other),
        "config-missing": lambda: evaluated(run.folder.graft, tmp_path),
        "step-missing": lambda: evaluated(run.path, tmp_path, step=3),
        "evaluate-language": lambda: evaluated(run.path, tmp_path, languages="zz"),
        "file-missing": lambda: evaluated(run.path, tmp_path, recordings=tmp_path / "nowhere"),
        "voice-unknown": lambda: evaluated(run.path, tmp_path, voices="nobody"),
        "recognizer-unknown": lambda: evaluated(run.path, tmp_path, recognizer="parrots"),
    }
    other_language = error_of(lambda: evaluated(run.path, tmp_path, language="zz"))
    assert (other_language.code, "--language is zz" in other_language.finding.found) == ("evaluate-language", True)
    for code, call in refusals.items():
        error = error_of(call)
        assert error.code == code
        assert error.finding.found
        assert error.finding.cure
    assert not run.folder.eval.exists()


def test_a_training_that_was_interrupted_before_its_checkpoint_is_not_guessed_at(
    seeds: WholeRun, tmp_path: Path
) -> None:
    run = seeds.copied(tmp_path / "run")
    shutil.rmtree(run.path / "masked-finetune")
    error = error_of(lambda: evaluated(run.path, tmp_path))
    assert error.code == "merged-missing"
    assert "--variant graft" in error.finding.expected
    assert detect_trained_output(run.folder, []) == "graft"
    assert evaluated(run.path, tmp_path, variant="graft").document["subject"]["mode"] != "masked-finetune"


def test_sentences_that_training_has_had_are_named(tiny: WholeRun, tmp_path: Path) -> None:
    run = tiny.copied(tmp_path / "run")
    seen = open_clip_dataset(run.folder.data_set("train")).infos[0].text
    (tmp_path / "am.tsv").write_text(f"text\trare\n{seen}\t{seen.split()[0]}\nጅብ\tጅብ\n", encoding="utf-8")
    words = [f"--sentences={tmp_path / 'am.tsv'}", "--languages=en", "--max-sentences=2", "--recognizer=none"]
    document = score_model(settings_of(str(run.path), *words)).document
    assert document["sentences"]["am"]["seen_in_training"] == [seen]
    assert document["sentences"]["am"]["rare_words_in_training"] == [seen.split()[0]]
    assert "not known" in document["sentences"]["en"]["training"]


@pytest.mark.long
def test_the_report_is_one_file_that_loads_nothing_and_shows_texts_as_texts(tiny: WholeRun, tmp_path: Path) -> None:
    run = tiny.copied(tmp_path / "run")
    (tmp_path / "en.txt").write_text("<img src=x onerror=alert(1)> ha\n", encoding="utf-8")
    (tmp_path / "am.txt").write_text("ሰላ\n", encoding="utf-8")
    words = [f"--sentences={tmp_path / name}" for name in ("en.txt", "am.txt")]
    listener = parrot(tmp_path, "<b>&")
    result = score_model(settings_of(str(run.path), *words, "--languages=en", f"--recognizer={listener}"))
    assert sorted(path.name for path in result.folder.iterdir()) == [EVALUATION_REPORT_NAME, "scores.json"]
    page = (result.folder / EVALUATION_REPORT_NAME).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert "&lt;b&gt;&amp;" in page
    assert not re.search(r"""(src|href)=["'](?!data:audio/wav;base64,|#)""", page)
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count('src="data:audio/wav;base64,') >= 2
    assert 'id="stage"' in page
    assert "<svg" in page  # the curves of the journal
    for point in result.points:
        assert point.question in page


def test_scores_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text('{"format": "voxgraft-scores-99"}')
    error = error_of(lambda: read_scores(tmp_path / "scores.json"))
    assert error.code == "scores-format"
    assert "voxgraft-scores-99" in error.finding.found


def test_a_graft_that_was_never_trained_is_judged_by_its_rows_and_says_so(tiny: WholeRun) -> None:
    system = open_grafted_model(place_of(tiny), load_graft(tiny.path / "graft.previous"))
    assert system.mode == "rows-only"
    assert system.keeps_base
    assert system.label == "not trained yet"
    assert system.step is None
