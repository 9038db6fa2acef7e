"""The command `go`: every stage of a run by its own command, finished ones skipped, each with the reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.support.fixtures import Fixtures
from voxgraft.checkpoints.steps import list_complete_steps
from voxgraft.cli import run_cli
from voxgraft.config.commands import ExportSettings, GoSettings
from voxgraft.config.run import rewrite_run_yaml
from voxgraft.core.errors import VoxgraftError
from voxgraft.core.files import compute_sha256
from voxgraft.core.run import RunFolder
from voxgraft.data.folder import DatasetFolder
from voxgraft.data.manifest import read_manifest, write_manifest
from voxgraft.demo.data import write_talks
from voxgraft.export.command import export
from voxgraft.graft.folder import load_graft
from voxgraft.pipeline.command import GoResult, StageResult, run_pipeline
from voxgraft.pipeline.stages import PIPELINE_STAGES, PipelineContext, survey_stages

ALL = list(PIPELINE_STAGES)
DATA = ["import", "split"]
SHORT: dict[str, dict[str, Any]] = {
    "tokenizer": {"pieces": 20},
    "data": {"min_prompt_seconds": 0.5},
    "train": {
        **{"steps": 2, "warmup_steps": 1, "batch_tokens": 256, "rank": 4, "sample_every": 1000},
        **{"sample_texts": ["am:ሰ"], "tensorboard": False, "valid_every": 2, "save_every": 1},
    },
}
"""A training of a second."""
ETHIOPIC_LETTER, ETHIOPIC_LINE = re.compile(r"[\u1200-\u1360]"), re.compile(r"[^\n]*[\u1200-\u137f][^\n]*")


def new_run(folder: Path) -> Path:
    """A run with a folder of talks beside it, as `voxgraft new` makes it, and nothing else."""
    write_talks(folder / "talks", 4, 3)
    run = folder / "run"
    words = ["new", str(run), "--base", "tiny", "--language", "am", "--sources", str(folder / "talks"), "--quiet"]
    assert run_cli(words) == 0
    rewrite_run_yaml(run / "run.yaml", SHORT)
    return run


def gone(run: Path, **reported: Any) -> GoResult:
    return run_pipeline(GoSettings.model_validate({"run": run, "max_sentences": 2, **reported}))


def words(result: GoResult) -> dict[str, str]:
    return {stage.name: stage.word for stage in result.stages}


def ran(result: GoResult) -> list[str]:
    return [stage.name for stage in result.stages if stage.word != "skipped"]


def why(result: GoResult, name: str) -> str:
    return next(stage.why for stage in result.stages if stage.name == name)


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def edit(run: Path, section: str, **values: Any) -> None:
    rewrite_run_yaml(run / "run.yaml", {section: values})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GoResult]:
    """A run that has gone all the way."""
    run = new_run(tmp_path_factory.mktemp("go"))
    return run, gone(run)


@pytest.fixture
def run(made: tuple[Path, GoResult], tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def prepared(run: Path) -> Path:
    """The same as it was before it was trained."""
    for name in ("steps", "samples", "eval", "export", "graft"):
        shutil.rmtree(run / name)
    (run / "graft.previous").rename(run / "graft")
    (run / "journal.jsonl").unlink()
    assert ran(gone(run, until="prepare")) == []
    return run


def test_a_fresh_run_goes_from_recordings_to_an_export(made: tuple[Path, GoResult]) -> None:
    run, result = made
    assert words(result) == dict.fromkeys(ALL, "done")
    assert result.exit_code == 0
    assert load_graft(run / "export" / "graft").card.method["trained"]["step"] == 2
    assert (run / "eval" / "default" / "report.html").is_file()
    assert json.loads(json.dumps(result.to_json()))["stages"][0]["result"]["new_clips"] > 0


def test_the_second_call_skips_every_stage_and_changes_nothing(run: Path) -> None:
    before = listing(run)
    result = gone(run)
    assert words(result) == dict.fromkeys(ALL, "skipped")
    assert all(stage.why for stage in result.stages)
    assert listing(run) == before


def test_a_dry_run_says_what_would_run_and_changes_nothing(tmp_path: Path, run: Path) -> None:
    assert words(gone(run, dry_run=True)) == dict.fromkeys(ALL, "skipped")
    fresh = new_run(tmp_path / "fresh")
    before = listing(fresh)
    planned = gone(fresh, dry_run=True)
    assert words(planned) == {**dict.fromkeys(ALL, "would run"), "split": "not known yet"}
    assert why(planned, "split") == "depends on the result of `import`"
    assert why(planned, "graft") == "no graft yet"
    more = gone(run, dry_run=True, max_sentences=3)
    assert words(more) == {**dict.fromkeys(ALL, "skipped"), "evaluate": "would run"}
    assert listing(fresh) == before
    assert run_cli(["go", str(fresh), "--dry-run", "--until", "graft", "--quiet"]) == 0
    assert listing(fresh) == before


@pytest.mark.long
def test_until_ends_after_the_stage_that_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert words(gone(run, until="split")) == dict.fromkeys(DATA, "done")
    assert not (run / "graft").exists()
    assert ran(gone(run, until="graft")) == ["graft"]


@pytest.mark.long
def test_ctrl_c_in_a_stage_before_training_shows_the_stages_and_the_command_that_continues(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    command = [sys.executable, "-u", "-m", "voxgraft", "go", str(run), "--until", "split"]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background has them ignore SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("import: starting"):
            break
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
    output = child.communicate(timeout=60)[0]
    assert child.returncode == 130, output
    assert f"`import` was interrupted. Run `voxgraft go {run}` to continue." in output
    assert "Traceback" not in output
    assert words(gone(run, until="split")) == dict.fromkeys(DATA, "done")


@pytest.mark.long
def test_a_go_that_was_killed_while_it_trained_goes_on_where_it_was(run: Path) -> None:
    edit(run, "train", steps=400)
    command = [sys.executable, "-m", "voxgraft", "go", str(run), "--until", "train"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while max(list_complete_steps(RunFolder(run)), default=0) < 4:
        assert child.poll() is None, child.communicate()[1].decode()
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    reached = max(list_complete_steps(RunFolder(run)))
    edit(run, "train", steps=reached + 1)
    result = gone(run)
    assert ran(result) == ["check", "train", "evaluate", "export"]
    assert why(result, "train") == f"resumed from step {reached:,}"
    assert words(gone(run)) == dict.fromkeys(ALL, "skipped")


@pytest.mark.long
def test_other_text_settings_make_graft_and_sets_anew_and_leave_the_clips_alone(prepared: Path) -> None:
    run = prepared
    clips = listing(run / "data" / "clips")
    edit(run, "tokenizer", min_count=2)
    result = gone(run, until="prepare")
    assert ran(result) == ["graft", "prepare"]
    assert "settings have changed since the graft was created" in why(result, "graft")
    assert why(result, "prepare") == "train was encoded with another tokenizer"
    assert listing(run / "data" / "clips") == clips
    assert ran(gone(run, until="prepare")) == []


@pytest.mark.long
def test_what_was_trained_is_thrown_away_only_if_that_is_asked_for(run: Path) -> None:
    edit(run, "tokenizer", min_count=2)
    before = listing(run)
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "trained-otherwise"
    assert '"min_count": 2' in caught.value.finding.found
    assert listing(run) == before
    kept = gone(run, when_changed="keep")
    assert ran(kept) == []
    assert "kept as it is" in why(kept, "graft")
    tokenizer = load_graft(run / "graft").card.tokenizer_sha256
    fresh = gone(run, when_changed="fresh")
    assert ran(fresh) == [name for name in ALL if name not in DATA]
    assert load_graft(run / "graft").card.tokenizer_sha256 != tokenizer
    assert (run / "steps" / "aside-1" / "step-000002").is_dir()
    assert ran(gone(run, when_changed="fresh")) == []


@pytest.mark.long
def test_other_rates_after_training_are_reported_and_begin_again_only_if_asked(run: Path) -> None:
    edit(run, "train", lr_rows=0.002)
    with pytest.raises(VoxgraftError, match=r"train.lr_rows is 0.002 \(was 0.001\)"):
        gone(run)
    result = gone(run, when_changed="fresh", until="train")
    assert ran(result) == ["check", "train"]
    assert ran(gone(run, until="train")) == []


@pytest.mark.long
def test_a_training_that_cannot_go_on_with_other_settings_says_so_before_anything_runs(run: Path) -> None:
    edit(run, "train", rank=8, steps=3)
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "trained-otherwise"
    assert "train.rank is 8 (was 4)" in caught.value.finding.found
    assert ran(gone(run, when_changed="fresh", until="train")) == ["check", "train"]
    assert load_graft(run / "graft").card.method["trained"]["rank"] == 8


@pytest.mark.long
def test_more_steps_go_on_and_what_follows_is_made_anew(run: Path) -> None:
    old = compute_sha256(run / "export" / "graft" / "graft.json")
    edit(run, "train", steps=3)
    result = gone(run)
    assert ran(result) == ["check", "train", "evaluate", "export"]
    assert why(result, "train") == "resumed from step 2"
    assert why(result, "evaluate") == "the scores were those of another model"
    assert compute_sha256(run / "export" / "graft" / "graft.json") != old
    assert compute_sha256(run / "export" / "graft.previous" / "graft.json") == old


def test_a_clip_with_another_text_is_prepared_again(prepared: Path) -> None:
    run = prepared
    path = run / "data" / "manifest.jsonl"
    clips = list(read_manifest(path))
    at = next(at for at, clip in enumerate(clips) if clip.split == "train")
    clips[at] = replace(clips[at], text="ሰላም ለዓለም")
    write_manifest(path, clips)
    result = gone(run, until="prepare")
    assert ran(result) == ["graft", "prepare"]
    assert why(result, "graft").startswith("texts of manifest.jsonl were")
    assert ran(gone(run, until="prepare")) == []


@pytest.mark.long
def test_clips_that_came_later_get_a_side_and_no_other_clip_changes_its_own(prepared: Path) -> None:
    path = prepared / "data" / "manifest.jsonl"
    clips = list(read_manifest(path))
    before = {clip.id: clip.split for clip in clips}
    late = [clip.id for clip in clips if clip.split][::3]
    write_manifest(path, [replace(clip, split=None) if clip.id in late else clip for clip in clips])
    assert "split" in ran(gone(prepared, until="split"))
    after = {clip.id: clip.split for clip in read_manifest(path)}
    assert {name: side for name, side in after.items() if name not in late} == {
        name: side for name, side in before.items() if name not in late
    }
    assert all(after[name] for name in late)


@pytest.mark.long
def test_another_recording_is_imported_and_a_broken_one_ends_it_with_the_exit_code_of_import(
    run: Path, tmp_path: Path
) -> None:
    talks = tmp_path / "talks"
    shutil.copytree(Path(str(_sources(run)[0])), talks)
    edit(run, "data", sources=[str(talks)])
    assert ran(gone(run, until="import")) == []
    for name in ("broken", "other"):
        (talks / f"{name}.mp3").write_bytes(f"no sound at all in {name}".encode())
        (talks / f"{name}.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\nሰላም ለዓለም\n", encoding="utf-8")
    result = gone(run)
    assert (result.exit_code, words(result)) == (1, {"import": "ended here"})
    assert "broken" in why(result, "import")
    assert run_cli(["go", str(run), "--quiet"]) == 1
    edit(run, "data", max_left_out=0.5)
    assert ran(gone(run)) == [], "so much may be left out now"


@pytest.mark.long
def test_one_broken_recording_of_many_is_reported_and_does_not_end_it(run: Path, tmp_path: Path) -> None:
    talks = tmp_path / "talks"
    shutil.copytree(Path(str(_sources(run)[0])), talks)
    edit(run, "data", sources=[str(talks)])
    (talks / "broken.mp3").write_bytes(b"no sound at all")
    (talks / "broken.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\nሰላም ለዓለም\n", encoding="utf-8")
    result = gone(run)
    assert (result.exit_code, ran(result)) == (0, ["import"])
    again = gone(run)
    assert ran(again) == []
    assert "could not be imported" in why(again, "import")


def test_a_run_without_its_sources_uses_the_clips_that_it_has(run: Path, tmp_path: Path) -> None:
    edit(run, "data", sources=[str(tmp_path / "gone")])
    for reported in ({"dry_run": True}, {}):
        result = gone(run, **reported)
        assert words(result) == dict.fromkeys(ALL, "skipped")
        assert "sources are missing" in why(result, "import")


def test_a_copy_of_a_run_with_other_times_has_nothing_to_do(run: Path) -> None:
    for path in run.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert words(gone(run)) == dict.fromkeys(ALL, "skipped")


def test_a_project_that_was_moved_as_a_whole_has_nothing_to_do(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    shutil.copytree(Path(str(_sources(run)[0])), project / "talks")
    edit(run, "data", sources=["../talks"])
    shutil.move(run, project / "run")
    assert ran(gone(project / "run")) == []
    moved = tmp_path / "moved"
    project.rename(moved)
    for path in moved.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    monkeypatch.chdir(moved)
    assert words(gone(Path("run"))) == dict.fromkeys(ALL, "skipped")


@pytest.mark.long
def test_a_changed_source_ends_it_with_the_flag_that_imports_it_again(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talks = tmp_path / "talks"
    shutil.copytree(Path(str(_sources(prepared)[0])), talks)
    edit(prepared, "data", sources=[str(talks)])
    path = prepared / "data" / "manifest.jsonl"
    before = {clip.id: clip.split for clip in read_manifest(path)}
    subtitles = sorted(talks.glob("*.srt"))[0]
    text = subtitles.read_text(encoding="utf-8")
    # The run knows the talks by their content, wherever they lie; a change is seen where they lay.
    journal = next(one for one in DatasetFolder(prepared / "data").journals() if one.recording == subtitles.stem)
    old = journal.source["text"]
    journal.path.write_text(
        journal.path.read_text(encoding="utf-8").replace(json.dumps(old), json.dumps(str(subtitles.resolve()))),
        encoding="utf-8",
    )
    subtitles.write_text(text + "\n\n", encoding="utf-8")
    assert run_cli(["go", str(prepared), "--until", "split"]) == 1
    printed = "".join(capsys.readouterr())
    assert "source-changed" in printed
    assert f"voxgraft go {prepared} --reimport" in printed
    assert ran(gone(prepared, until="split", when_changed="keep")) == []
    assert ran(gone(prepared, until="split", reimport=True)) == ["import"]
    assert {clip.id: clip.split for clip in read_manifest(path)} == before
    assert ran(gone(prepared, until="split")) == []


@pytest.mark.long
def test_the_speaker_of_a_new_run_is_that_of_its_clips(tmp_path: Path) -> None:
    write_talks(tmp_path / "talks", 3, 3)
    run = tmp_path / "run"
    flags = ["--base", "tiny", "--language", "am", "--sources", str(tmp_path / "talks"), "--speaker", "Abebe"]
    assert run_cli(["new", str(run), *flags, "--quiet"]) == 0
    gone(run, until="import")
    assert {clip.speaker for clip in read_manifest(run / "data" / "manifest.jsonl")} == {"Abebe"}
    edit(run, "data", speaker="Almaz")
    assert gone(run, until="import").exit_code == 1
    gone(run, until="import", reimport=True)
    assert {clip.speaker for clip in read_manifest(run / "data" / "manifest.jsonl")} == {"Almaz"}


@pytest.mark.long
def test_recordings_without_a_usable_clip_end_it_before_anything_else_runs(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for path in (tmp_path / "talks").iterdir():
        if path.suffix != ".srt":
            path.write_bytes(b"no sound at all")
    for _ in range(2):
        result = gone(run)
        assert (result.exit_code, words(result)) == (1, {"import": "ended here"})


ENDS = [
    *[("train", "ended here", 1, "failed (see above)"), ("train", "ended here", 130, "was interrupted")],
    *[("train", "done", 0, "continues with `evaluate`"), ("export", "done", 0, "")],
    *[("train", "would run", 0, ""), ("train", "skipped", 0, "")],
]


@pytest.mark.parametrize(("stage", "word", "code", "said"), ENDS)
def test_the_last_line_says_how_to_go_on_if_it_did_not_come_to_its_end(
    tmp_path: Path, stage: str, word: Any, code: int, said: str
) -> None:
    lines = GoResult(tmp_path, (StageResult(stage, word, "no step is saved yet"),), code).lines()
    assert len(lines) == (2 if said else 1)
    assert said in str(lines[-1])
    assert not said or f"voxgraft go {tmp_path}" in str(lines[-1])


@pytest.mark.long
def test_what_is_done_has_its_reason_in_the_past_and_no_stage_points_at_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    assert run_cli(["go", str(run), "--until", "check"]) == 0
    printed = "".join(capsys.readouterr())
    assert "next: voxgraft" not in printed
    assert f"next: `voxgraft go {run}` continues with `train`." in printed.replace("\n", "")
    for reason in (
        "there were no clips yet",
        "there was no graft yet",
        "there were no encoded clips for",
        "needed before training",
    ):
        assert reason in printed, reason


@pytest.mark.long
def test_other_sentences_or_another_number_of_them_are_scored_anew(run: Path, tmp_path: Path) -> None:
    assert ran(run_pipeline(GoSettings(run=run))) == [], "nothing is reported for sentences: the scores stay"
    more = gone(run, max_sentences=3)
    assert ran(more) == ["evaluate"]
    assert why(more, "evaluate") == "the scores were of 2 sentences of am, not of 3"
    own = tmp_path / "am.txt"
    own.write_text("ሰላም ለዓለም።\nደህና ነኝ።\n", encoding="utf-8")
    others = gone(run, max_sentences=3, sentences=(own,))
    assert ran(others) == ["evaluate"]
    assert "(am.txt)" in why(others, "evaluate")
    assert ran(gone(run, max_sentences=3, sentences=(own,))) == []
    assert ran(run_pipeline(GoSettings(run=run))) == []


def test_a_stage_that_cannot_begin_ends_it_with_its_own_error(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    edit(run, "data", sources=[str(tmp_path / "gone")])
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "file-missing"
    assert run_cli(["go", str(run), "--quiet"]) == 2
    with pytest.raises(VoxgraftError) as caught:
        gone(tmp_path / "nowhere")
    assert "voxgraft new" in caught.value.finding.cure


def test_terms_that_are_reported_later_are_written_into_the_export(run: Path) -> None:
    result = gone(run, data_licence="CC0", consent="asked", accept_terms=True)
    assert ran(result) == ["export"]
    assert json.loads((run / "export" / "graft" / "terms.json").read_text(encoding="utf-8"))["data_licence"] == "CC0"
    assert ran(gone(run, data_licence="CC0", consent="asked", accept_terms=True)) == []


def test_a_base_for_non_commercial_use_is_exported_once_its_licence_is_accepted(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    made = fixtures.trained_run("xtts")
    run = tmp_path / "run"
    shutil.copytree(made.path, run)
    (run / "run.yaml").write_text(f"base: {made.base}\nfamily: xtts\nlanguage: am\n", encoding="utf-8")

    def runs_export(**flags: bool) -> bool:
        settings = GoSettings.model_validate({"run": run, **flags})
        decide, _ = PIPELINE_STAGES["export"]
        return decide(PipelineContext(settings)).runs

    assert not runs_export()
    assert runs_export(accept_terms=True)
    export(ExportSettings(model=run, to="graft", accept_terms=True))
    assert not runs_export(accept_terms=True)
    (run / "export" / "graft" / "graft.json").write_text("{}", encoding="utf-8")  # another model's
    assert runs_export()  # it was accepted for this run before


def test_another_list_of_pronunciations_is_evaluated_and_exported(run: Path) -> None:
    def stale() -> list[str]:
        stages = survey_stages(GoSettings.model_validate({"run": run, "max_sentences": 2}), ("evaluate", "export"))
        return [stage.name for stage in stages if stage.state in ("stale", "next")]

    # Scores and exports from before: no name of the rules, and a graft.json that was written otherwise.
    path = run / "eval" / "default" / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    assert scores["subject"].pop("text_rules") == load_graft(run / "graft").card.rules.identity
    assert stale() == []
    path.write_text(json.dumps(scores), encoding="utf-8")
    assert stale() == []
    (run / "pronunciations.tsv").write_text("ሰላም\tሰላማ\n", encoding="utf-8")
    assert stale() == ["evaluate", "export"]
    export(ExportSettings(model=run, to="graft", overwrite=True))
    assert stale() == ["evaluate"]
    (run / "pronunciations.tsv").unlink()
    assert stale() == ["export"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["peft", "tiny"])
def test_an_export_of_another_kind_is_made_once(run: Path, kind: str) -> None:
    assert ran(gone(run, to=kind)) == ["export"]
    assert ran(gone(run, to=kind)) == []


def _sources(run: Path) -> list[str]:
    import yaml

    return list(yaml.safe_load((run / "run.yaml").read_text(encoding="utf-8"))["data"]["sources"])


def test_digits_without_a_token_end_it_before_the_clips_are_encoded_and_the_fix_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No rule writes numbers of Georgian as words, and the tiny base has no token for digits.
    listed = tmp_path / "talks"
    write_talks(listed, 4, 3)
    texts = [path for path in listed.iterdir() if path.suffix in (".srt", ".vtt")]
    for path in texts:
        text = ETHIOPIC_LINE.sub(lambda line: f"2 {line[0]}", path.read_text("utf-8"), count=1)
        path.write_text(ETHIOPIC_LETTER.sub(lambda one: "აბგდევზთიკ"[ord(one[0]) % 10], text), "utf-8")
    run = tmp_path / "run"
    made = ["new", str(run), "--base", "tiny", "--language", "ka", "--sources", str(listed), "--quiet"]
    assert run_cli(made) == 0
    rewrite_run_yaml(run / "run.yaml", SHORT | {"train": {**SHORT["train"], "sample_texts": ["ka:და"]}})
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "clips-text-unknown"
    assert "symbols without a token: 2 (" in caught.value.finding.found
    cure = caught.value.finding.cure
    assert f"voxgraft go {run} --reimport" in cure
    assert "voxgraft graft /" not in cure, "a new graft cannot help"
    assert not (run / "data" / "train").exists()
    # A run that was prepared before says the same in `check`.
    assert run_cli(["prepare", str(run), "--quiet"]) == 0
    capsys.readouterr()
    assert run_cli(["check", str(run), "--json"]) == 1
    checked = json.loads(capsys.readouterr().out)
    cures = {item["cure"] for item in checked["findings"] if item["code"] == "clips-text-unknown"}
    assert cures == {cure}
    for path in texts:
        path.write_text(re.sub(r"^2 (?=\D)", "ორი ", path.read_text("utf-8"), flags=re.MULTILINE), "utf-8")
    assert gone(run, until="check", reimport=True).exit_code == 0


def test_an_error_in_a_later_stage_is_shown_below_the_stages_with_the_command_that_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    edit(run, "data", sources=[str(tmp_path / "talks")], max_left_out=1.0)
    for path in (tmp_path / "talks").iterdir():
        if path.suffix in (".srt", ".vtt"):
            path.write_text(re.sub(r"[\u1200-\u137f]", "b", path.read_text("utf-8")), "utf-8")
    assert run_cli(["go", str(run)]) == 2
    printed = capsys.readouterr()
    shown = (printed.out + printed.err).replace("\n", " ")
    assert f"`graft` failed (see below). Fix the problem, then run `voxgraft go {run}` to continue." in shown
    assert re.search(r"graft +ended here .*error: text-other-script", shown)
    assert shown.count("error text-other-script") == 1
    assert (run / "data" / "manifest.jsonl").is_file()
    # Before the first stage there is nothing to show.
    edit(run, "data", sources=[str(tmp_path / "gone")])
    shutil.rmtree(run / "data")
    assert run_cli(["go", str(run)]) == 2
    assert "ended here" not in "".join(capsys.readouterr())


def test_clip_files_that_are_missing_or_broken_are_written_again(run: Path) -> None:
    folder = DatasetFolder(run / "data")
    paths = [clip.resolve_audio(folder.folder) for clip in folder.clips()]
    before = {path: path.read_bytes() for path in paths}
    paths[0].unlink()
    paths[-1].write_bytes(b"no sound")
    result = gone(run)
    assert ran(result) == ["import"]
    assert why(result, "import").startswith("2 clip files missing or damaged: ")
    assert {path: path.read_bytes() for path in paths} == before
    # Damage that leaves the size is looked for with --reimport.
    paths[1].write_bytes(bytes(len(before[paths[1]])))
    assert ran(gone(run, until="import", reimport=True)) == ["import"]
    assert {path: path.read_bytes() for path in paths} == before
    # A clip that was edited is sound, and stays.
    samples, rate = soundfile.read(paths[2])
    soundfile.write(paths[2], samples[: len(samples) // 2], rate)
    assert ran(gone(run, until="import")) == []


def test_an_edited_clip_stays_where_another_one_is_made_again(run: Path) -> None:
    folder = DatasetFolder(run / "data")
    edited, gone_path = [clip.resolve_audio(folder.folder) for clip in folder.clips()][:2]
    before = gone_path.read_bytes()
    samples, rate = soundfile.read(edited)
    soundfile.write(edited, samples / 2, rate)
    kept = edited.read_bytes()
    gone_path.unlink()
    assert ran(gone(run, until="import")) == ["import"]
    assert (edited.read_bytes(), gone_path.read_bytes()) == (kept, before)
    # With --reimport it is made again, too.
    assert ran(gone(run, until="import", reimport=True)) == ["import"]
    assert edited.read_bytes() != kept


def test_a_clip_that_cannot_be_cut_again_is_tried_once(run: Path) -> None:
    folder = DatasetFolder(run / "data")
    clip = next(iter(folder.clips()))
    path, journal = clip.resolve_audio(folder.folder), next(one for one in folder.journals() if clip.id in one.ids)
    before, whole = path.read_bytes(), journal.path.read_text(encoding="utf-8")
    # As another version of the cutting rules would have cut it.
    moved = replace(clip, start=clip.start + 0.01)
    lines = [
        json.dumps({"clip": moved.to_json()}) if f'"id": "{clip.id}"' in one else one for one in whole.splitlines()
    ]
    journal.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.unlink()
    assert ran(gone(run, until="import")) == ["import"]
    assert not path.exists()
    assert ran(gone(run, until="import")) == []
    # --reimport tries again, and what it makes is looked after again.
    later = journal.path.read_text(encoding="utf-8").replace(json.dumps(moved.to_json()), json.dumps(clip.to_json()))
    journal.path.write_text(later, encoding="utf-8")
    for asked in (True, False):
        assert ran(gone(run, until="import", reimport=asked)) == ["import"]
        assert path.read_bytes() == before
        path.unlink()


def test_sources_that_cannot_be_read_are_not_called_missing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    edit(run, "data", sources=[str(tmp_path / "empty")])
    result = gone(run)
    assert ran(result) == []
    assert "missing" not in why(result, "import")
    assert "contains no recording with a text; " in why(result, "import")


def test_the_fix_for_clips_without_a_file_names_the_command_that_writes_them(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = list(read_manifest(prepared / "data" / "manifest.jsonl"))
    for clip in clips:
        if clip.split == "validation":
            clip.resolve_audio(prepared / "data").write_bytes(b"no sound")
    for name in ("train", "valid"):
        shutil.rmtree(prepared / "data" / name)
    assert run_cli(["prepare", str(prepared), "--json"]) == 2
    command = f"voxgraft go {prepared} --reimport"
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "set-empty"
    assert f"`{command}`" in error["cure"]
    assert gone(prepared, until="prepare", reimport=True).exit_code == 0
    train = next(clip for clip in clips if clip.split == "train")
    train.resolve_audio(prepared / "data").unlink()
    (prepared / "data" / "train" / "set.json").unlink()
    assert run_cli(["prepare", str(prepared)]) == 0
    assert command in "".join(capsys.readouterr()).replace("\n", "")


@pytest.mark.parametrize("name", ["tokenizer.json", "rows.safetensors"])
def test_a_trained_graft_with_a_broken_file_gets_its_trained_rows_again(run: Path, name: str) -> None:
    trained = load_graft(run / "graft")
    (run / "graft" / name).unlink()
    result = gone(run, until="train")
    assert ran(result) == ["graft", "check", "train"]
    assert why(result, "graft").startswith(f"{name} is missing from the graft; `train` restores")
    card = load_graft(run / "graft").card
    assert (card.method, card.rows_sha256, card.adapter) == (
        trained.card.method,
        trained.card.rows_sha256,
        trained.card.adapter,
    )
    # The same by hand, as the fix of `speak` says.
    (run / "graft" / name).unlink()
    with pytest.raises(VoxgraftError) as caught:
        load_graft(run / "graft")
    assert "`voxgraft train RUN`" in caught.value.finding.cure
    for command in ("graft", "train"):
        assert run_cli([command, str(run), "--quiet"]) == 0
    assert load_graft(run / "graft").card.rows_sha256 == trained.card.rows_sha256
    # Also without the card.
    (run / "graft" / "graft.json").unlink()
    result = gone(run, until="train")
    assert ran(result) == ["graft", "check", "train"]
    assert "graft.json is missing; `train` restores" in why(result, "graft")
    assert load_graft(run / "graft").card.rows_sha256 == trained.card.rows_sha256
    # Without the steps its rows would be lost, so nothing takes its place.
    shutil.rmtree(run / "steps")
    (run / "graft" / name).write_bytes(b"no graft")
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "graft-broken"
    assert "--fresh to train again" in caught.value.finding.cure
    assert (run / "graft" / name).read_bytes() == b"no graft"
    (run / "graft" / "graft.json").unlink()
    with pytest.raises(VoxgraftError) as caught:
        gone(run)
    assert caught.value.code == "graft-broken"


def test_a_trained_graft_without_its_card_is_replaced_by_the_same_one_or_not_at_all(run: Path) -> None:
    (run / "graft" / "graft.json").unlink()
    tokenizer = (run / "graft" / "tokenizer.json").read_bytes()
    previous = listing(run / "graft.previous")

    def refused() -> VoxgraftError:
        before = listing(run / "graft")
        with pytest.raises(VoxgraftError) as caught:
            gone(run)
        assert (listing(run / "graft"), listing(run / "graft.previous")) == (before, previous)
        return caught.value

    # Settings that give another tokenizer; without the card that shows once it is made.
    edit(run, "tokenizer", min_count=2)
    assert refused().code == "trained-otherwise"
    (run / "graft" / "tokenizer.json").unlink()
    error = refused()
    assert (error.code, "nothing was replaced" in error.finding.expected) == ("trained-otherwise", True)
    assert "--when-changed fresh" in error.finding.cure
    # The rows on disk belong to another tokenizer than the saved steps.
    edit(run, "tokenizer", min_count=5)
    (run / "graft" / "tokenizer.json").write_bytes(tokenizer + b" ")
    assert refused().code == "trained-otherwise"
    assert survey_stages(GoSettings(run=run), ["graft"])[0].state == "blocked"
    (run / "graft" / "tokenizer.json").write_bytes(tokenizer)
    assert ran(gone(run, until="train")) == ["graft", "check", "train"]
    # The fix in the message works.
    (run / "graft" / "graft.json").unlink()
    edit(run, "tokenizer", min_count=2)
    assert ran(gone(run, until="train", when_changed="fresh")) == ["graft", "prepare", "check", "train"]
    assert "trained" in load_graft(run / "graft").card.method


def test_an_untrained_graft_with_a_broken_file_is_created_again(prepared: Path) -> None:
    (prepared / "graft" / "rows.safetensors").unlink()
    result = gone(prepared, until="graft")
    assert ran(result) == ["graft"]
    assert why(result, "graft") == "rows.safetensors is missing from the graft"
    load_graft(prepared / "graft")
    (prepared / "graft" / "rows.safetensors").unlink()
    edit(prepared, "tokenizer", pieces=10)
    assert ran(gone(prepared, until="graft")) == ["graft"], "also with other settings"
