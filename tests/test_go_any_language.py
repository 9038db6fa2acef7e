"""`go` for a language that has no built-in sentences and no recogniser: what a new user has, from `new` to a report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml

from tests.support.evaluation import parrot
from tests.support.run_folders import error_of
from tests.test_import_own_data import lj_list
from voxgraft.cli import run_cli
from voxgraft.config.commands import GoSettings
from voxgraft.config.run import rewrite_run_yaml
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import read_manifest, write_manifest
from voxgraft.demo.data import TALK_RATE_HZ, format_subtitles, load_bundled_clips, render_talk
from voxgraft.evaluation.sentences import list_built_in_languages
from voxgraft.pipeline.command import GoResult, run_pipeline

LANGUAGE = "nl"
pytestmark = pytest.mark.long  # test_go.py has the same stages on a language with sentences
SHORT: dict[str, Any] = {
    "data": {"min_prompt_seconds": 0.5},
    "train": {
        **{"steps": 2, "warmup_steps": 1, "batch_tokens": 256, "rank": 4, "sample_every": 1000},
        **{"sample_texts": ["nl:ha"], "tensorboard": False, "valid_every": 2, "save_every": 1},
    },
}
"""A training of a second."""
TEXTS = (
    *("De zon schijnt op het water.", "Wij lopen samen naar de markt.", "Zij leest een boek in de tuin."),
    *("Morgen gaat de trein vroeg weg.", "Het regent al de hele dag.", "De kinderen spelen op straat."),
    *("Ik drink graag een kop koffie.", "Onze buurman heeft een hond.", "Het huis staat naast de kerk."),
    *("Hij schrijft een lange brief.", "De winkel is vandaag gesloten.", "Wij eten brood met oude kaas."),
    *("De boer melkt elke dag zijn koeien.", "Er ligt sneeuw op de daken.", "Mijn zus woont in de stad."),
)


def write_recordings(folder: Path) -> None:
    """Five talks of three sentences each. That the voices say something else does not matter here."""
    folder.mkdir(parents=True)
    clips = load_bundled_clips("train", "am")
    for number in range(5):
        own = [replace(clips[at], text=TEXTS[at]) for at in range(3 * number, 3 * number + 3)]
        samples, times = render_talk(own)
        soundfile.write(folder / f"talk{number}.flac", samples, TALK_RATE_HZ)
        (folder / f"talk{number}.srt").write_text(format_subtitles(own, times), encoding="utf-8")


def voxgraft(*words: object) -> subprocess.CompletedProcess[str]:
    """The program, without a terminal."""
    command = [sys.executable, "-m", "voxgraft", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, env=environment
    )


def gone(run: Path, **reported: Any) -> GoResult:
    return run_pipeline(GoSettings.model_validate({"run": run, "max_sentences": 3, **reported}))


def ran(result: GoResult) -> list[str]:
    return [stage.name for stage in result.stages if stage.word != "skipped"]


def stated(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))
    return values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has gone all the way."""
    folder = tmp_path_factory.mktemp("any")
    write_recordings(folder / "recordings")
    run = folder / "run"
    words = ("new", run, "--base", "tiny", "--language", LANGUAGE, "--sources", folder / "recordings")
    done = voxgraft(*words)
    assert done.returncode == 0, done.stderr
    rewrite_run_yaml(run / "run.yaml", SHORT)
    done = voxgraft("go", run, "--max-sentences", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    rewrite_run_yaml(tmp_path / "run" / "run.yaml", {"data": {"sources": [str(made.parent / "recordings")]}})
    return tmp_path / "run"


@pytest.fixture
def untrained(run: Path) -> Path:
    for name in ("steps", "samples", "eval", "export", "graft"):
        shutil.rmtree(run / name)
    (run / "graft.previous").rename(run / "graft")
    (run / "journal.jsonl").unlink()
    return run


def test_a_language_without_sentences_or_a_recogniser_reaches_an_export_and_a_report_with_sound(made: Path) -> None:
    assert LANGUAGE not in list_built_in_languages()
    assert (made / "export" / "graft" / "graft.json").is_file()
    scores = json.loads((made / "eval" / "default" / "scores.json").read_text(encoding="utf-8"))
    texts = {clip.text for clip in read_manifest(made / "data" / "manifest.jsonl") if clip.split == "test"}
    spoken_texts = {one["text"] for one in scores["utterances"] if one["language"] == LANGUAGE}
    assert spoken_texts <= texts
    assert len(spoken_texts) == 3
    assert scores["sentences"][LANGUAGE]["source"] == "test texts of the dataset"
    assert {one["who"] for one in scores["utterances"] if one["language"] == LANGUAGE} == {
        "before",
        "after",
        "original",
    }
    report = (made / "eval" / "default" / "report.html").read_text(encoding="utf-8")
    assert f'data-clip="{LANGUAGE}-0-after"' in report
    assert f'data-clip="{LANGUAGE}-0-original"' in report


def test_without_a_recogniser_what_needs_none_is_measured_and_it_is_said_how_to_add_one(made: Path) -> None:
    document = json.loads((made / "eval" / "default" / "scores.json").read_text(encoding="utf-8"))
    (row,) = [row for row in document["rows"] if (row["language"], row["who"]) == (LANGUAGE, "after")]
    assert row["scores"]["cer"]["value"] is None
    assert "does not know nl" in row["scores"]["cer"]["why"]
    for name in ("runaway", "cut", "duration", "repeats", "distinct", "text_use", "speech_loss"):
        assert row["scores"][name]["value"] is not None, name
    said = (made.parent / "said.txt").read_text(encoding="utf-8")
    report = (made / "eval" / "default" / "report.html").read_text(encoding="utf-8")
    for page in (said, report):
        assert "pip install faster-whisper" in page
        assert "--recognizer" in page


def test_flags_of_run_yaml_reach_every_stage_and_are_written_into_it(run: Path) -> None:
    before = (run / "run.yaml").read_text(encoding="utf-8")
    planned = gone(run, train={"steps": 3}, dry_run=True)
    assert {stage.name: stage.word for stage in planned.stages}["train"] == "would run"
    assert planned.changes == {"train.steps": "3"}
    assert (run / "run.yaml").read_text(encoding="utf-8") == before
    assert run_cli(["go", str(run), "--train.steps", "3", "--until", "train", "--quiet"]) == 0
    after = (run / "run.yaml").read_text(encoding="utf-8")
    assert (stated(run)["train"]["steps"], after.replace("steps: 3\n", "steps: 2\n")) == (3, before)
    assert (run / "steps" / "step-000003").is_dir()
    assert ran(gone(run, until="train")) == [], "a second go asks for the same"


def test_the_flags_that_import_prints_are_flags_of_go(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--speaker", "ana", "--speaker-from", "file", "--encoding", "utf-8", "--max-left-out", "0.5")
    assert run_cli(["go", str(run), *flags, "--until", "import", "--dry-run", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert {"data.speaker", "data.speaker_from", "data.encoding", "data.max_left_out"} <= changes.keys()


def test_flags_that_a_trained_run_refuses_are_not_written_down(run: Path) -> None:
    before = (run / "run.yaml").read_text(encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        gone(run, train={"rank": 8})
    assert caught.value.code == "trained-otherwise"
    assert (run / "run.yaml").read_text(encoding="utf-8") == before


def test_fewer_steps_than_are_trained_are_refused_and_not_written_down(run: Path) -> None:
    before = (run / "run.yaml").read_text(encoding="utf-8")
    for dry in (True, False):
        with pytest.raises(VoxgraftError, match="2 are trained") as caught:
            gone(run, train={"steps": 1}, dry_run=dry)
        assert caught.value.code == "config-value"
        assert "--fresh" in caught.value.finding.cure
    assert (run / "run.yaml").read_text(encoding="utf-8") == before
    rewrite_run_yaml(run / "run.yaml", {"train": {"steps": 1}})
    decided = {stage.name: stage for stage in gone(run, until="train").stages}["train"]
    assert (decided.word, decided.why) == ("skipped", "2 steps are done, and run.yaml sets 1")


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        ({"evaluate": {"recognizer": "command:/nowhere/ears {wav}"}}, "recognizer-failed"),
        ({"evaluate": {"recognizer": "built-in"}}, "recognizer-language"),
        ({"sentences": ("missing/nl.txt",)}, "file-missing"),
        ({"to": "chatterbox"}, "export-kind"),
        ({"to": "peft", "train": {"mode": "rows-only"}}, "export-kind"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_a_later_stage_lacks_is_said_before_anything_is_trained(
    untrained: Path, reported: dict[str, Any], code: str, dry: bool
) -> None:
    before = (untrained / "run.yaml").read_text(encoding="utf-8")
    with pytest.raises(VoxgraftError) as caught:
        gone(untrained, dry_run=dry, **reported)
    assert caught.value.code == code
    assert not (untrained / "steps").exists()
    assert (untrained / "run.yaml").read_text(encoding="utf-8") == before


def test_a_data_set_without_held_out_texts_is_reported_by_go_and_by_check_before_training(
    untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = untrained / "data" / "manifest.jsonl"
    clips = [replace(clip, text=clip.text if clip.split == "train" else "123") for clip in read_manifest(manifest)]
    write_manifest(manifest, clips)
    with pytest.raises(VoxgraftError) as caught:
        gone(untrained)
    assert caught.value.code == "sentences-missing"
    assert not (untrained / "steps").exists()
    run_cli(["check", str(untrained)])
    assert "warning sentences-missing" in capsys.readouterr().out


def test_validation_texts_stand_in_where_there_is_no_test_side_and_the_report_says_so(run: Path) -> None:
    manifest = run / "data" / "manifest.jsonl"
    clips = [replace(clip, split="validation") if clip.split == "test" else clip for clip in read_manifest(manifest)]
    write_manifest(manifest, clips)
    assert run_cli(["evaluate", str(run), "--max-sentences", "2", "--languages", "en", "--quiet"]) == 0
    scores = json.loads((run / "eval" / "default" / "scores.json").read_text(encoding="utf-8"))
    assert scores["sentences"][LANGUAGE]["source"].startswith("validation texts of the dataset, which has no test")


def test_a_recogniser_of_run_yaml_is_used_by_evaluate_and_another_one_evaluates_again(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    result = gone(run, evaluate={"recognizer": parrot(tmp_path / "first", "ja")})
    assert ran(result) == ["evaluate"]
    scores = json.loads((run / "eval" / "default" / "scores.json").read_text(encoding="utf-8"))
    values = {row["who"]: row["scores"]["cer"]["value"] for row in scores["rows"] if row["language"] == LANGUAGE}
    assert values["after"] is not None
    assert values["recordings"] is not None, "the original recordings are the mark"
    assert ran(gone(run)) == []
    assert ran(gone(run, evaluate={"recognizer": parrot(tmp_path / "second", "nee")})) == ["evaluate"]


def test_where_no_texts_are_given_the_manifest_is_the_text_in_graft_and_check(
    untrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_run_yaml(untrained / "run.yaml", {"texts": ()})  # type: ignore[dict-item]
    assert stated(untrained)["texts"] == []
    assert run_cli(["check", str(untrained)]) == 0
    said = capsys.readouterr().out
    assert "; text;" in said.partition("checked: ")[2].partition("not checked")[0]
    assert "--texts" not in said
    shutil.rmtree(untrained / "graft")
    assert run_cli(["graft", str(untrained), "--quiet"]) == 0
    assert "data/manifest.jsonl" in json.loads((untrained / "card.json").read_text(encoding="utf-8"))["texts"]


def test_a_run_with_the_built_in_base_names_it_by_word(made: Path) -> None:
    assert stated(made)["base"] == "tiny"


def test_a_list_in_another_encoding_is_refused_by_its_path_and_read_once_run_yaml_says_which(tmp_path: Path) -> None:
    mine = lj_list(tmp_path / "mine", 12)
    text = (mine / "metadata.csv").read_text(encoding="utf-8")
    (mine / "metadata.csv").write_bytes(text.encode("cp1251"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text("base: tiny\nlanguage: ru\ndata: {sources: [../mine]}\n", encoding="utf-8")
    refused = gone(run, until="import")
    assert refused.exit_code == 1
    problem = json.loads((run / "data" / "problems.jsonl").read_text(encoding="utf-8"))
    assert os.path.samefile(problem["file"], mine / "metadata.csv")
    assert os.path.isabs(problem["file"])
    error = error_of(lambda: gone(run, until="import", data={"encoding": "cp1251"}))
    assert error.code == "ui-keep", "a section in braces cannot take a line, and the file itself is not broken"
    (run / "run.yaml").write_text("base: tiny\nlanguage: ru\ndata:\n  sources: [../mine]\n", encoding="utf-8")
    assert gone(run, until="import", data={"encoding": "cp1251"}).exit_code == 0
    assert stated(run)["data"] == {"sources": ["../mine"], "encoding": "cp1251"}
    assert len(list(read_manifest(run / "data" / "manifest.jsonl"))) == 12
    assert ran(gone(run, until="import")) == []
