"""Home says where a run is: by its files, by the log of the job that runs; messages lead to the controls of the page."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, make_project, page_of, tab_of
from voxgraft.config.commands import GoSettings
from voxgraft.config.run import set_run_yaml_values
from voxgraft.config.train_options import RENAMED_SETTINGS
from voxgraft.core.errors import ConfigError
from voxgraft.core.files import HashCache, compute_sha256, reuse_hashes, write_json
from voxgraft.core.results import EXIT_INTERRUPTED
from voxgraft.core.run import RunFolder
from voxgraft.data.manifest import ManifestClip, write_manifest
from voxgraft.models import resolve_base_family
from voxgraft.pipeline.stages import PIPELINE_STAGES, survey_stages
from voxgraft.ui.jobs import ProjectJobs, UiJob

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.app import first_paint_html, poll_stamp
from voxgraft.ui.commands import load_run_settings, run_base_folder, run_command_in_process
from voxgraft.ui.html import finding_html, job_html
from voxgraft.ui.live import RunningJobs, job_progress, journal_ends
from voxgraft.ui.page import call_until_read
from voxgraft.ui.tabs import home as tab
from voxgraft.ui.tabs.speak import voice_choices
from voxgraft.ui.tabs.start import _shorten_error, demo_recordings, preview_sources, start_run
from voxgraft.ui.tabs.train import differences_html

LOG = "import: skipped: 22 clips in am/data\nsplit: starting: 22 of 22 clips have no split yet\ngraft: starting: no graft yet\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page on a folder with one new run."""
    folder = tmp_path_factory.mktemp("home-page")
    make_project(folder)
    with page_of(folder) as context:
        yield context


def at_work(project: Path, verb: str, log: str = "", argv: tuple[str, ...] = ()) -> Any:
    """A job that runs for the length of a block: its lock is held."""
    jobs = ProjectJobs(project)
    jobs.folder.mkdir(exist_ok=True)
    made = jobs._made(verb, {"verb": verb, "argv": list(argv), "started": 0.0})

    class Held:
        def __enter__(self) -> UiJob:
            job, _ = made.__enter__()
            (job.folder / "log.txt").write_text(log, encoding="utf-8")
            return job

        def __exit__(self, *error: Any) -> None:
            made.__exit__(*error)

    return Held()


def states(folder: Path) -> dict[str, str]:
    return {row.name: row.state for row in tab.stage_rows(folder)[0]}


def test_a_finished_evaluation_of_another_model_is_stale_and_nothing_else_is(home: Path) -> None:
    set_run_yaml_values(home / PROJECT, {"tokenizer.pieces": "20", "train.steps": "4"})  # as it was trained
    with chdir(home):
        before = {one.name: one.state for one in survey_stages(GoSettings(run=Path(PROJECT)))}
        assert before["evaluate"] == "done"
        card = home / PROJECT / "graft" / "graft.json"
        card.write_text(card.read_text() + " ")
        after = {one.name: one for one in survey_stages(GoSettings(run=Path(PROJECT)))}
    assert after["evaluate"].state == "stale"
    assert after["evaluate"].runs
    assert {name for name in before if before[name] != after[name].state} <= {"evaluate", "export"}


def test_a_new_run_without_recordings_says_what_blocks_it(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with chdir(tmp_path):
        found = survey_stages(GoSettings(run=project))
    assert [one.name for one in found] == list(PIPELINE_STAGES)
    assert [one.state for one in found[:2]] == ["skipped", "skipped"]
    waiting = [one for one in found if one.state in ("next", "blocked")]
    assert waiting[0].name == "graft"
    assert all(one.state in ("later", "blocked") for one in found[found.index(waiting[0]) + 1 :])


def test_while_go_runs_its_log_says_which_stage_is_done_and_which_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with at_work(project, "go", LOG) as job:
        found = states(project)
        assert job_progress(project, job).words == "graft (stage 3 of 8)"
        assert RunningJobs(tab_roots(tmp_path)).find() == [(PROJECT, job)]
    assert [found[name] for name in PIPELINE_STAGES] == ["done", "done", "running", *["later"] * 5]
    write_json(job.folder / "exit.json", {"exit_code": 1, "ended": time.time()})
    assert states(project)["graft"] == "failed"


def ended(job: UiJob, code: int, **files: Any) -> None:
    """A job's end, as the process above it records it."""
    for name, values in {"exit": {"exit_code": code, "ended": time.time()}, **files}.items():
        write_json(job.folder / f"{name}.json", values)


def test_a_stopped_training_is_called_so_in_the_stages_the_line_below_and_the_card(page: Any, home: Path) -> None:
    project = home / PROJECT
    set_run_yaml_values(project, {"tokenizer.pieces": "20", "train.steps": "9"})
    with chdir(home):
        with at_work(project, "go", "check: starting: training comes next\ntrain: starting: resumes\n") as job:
            (job.folder / "out.txt").write_text(
                "train  ended here\n`train` was interrupted. Run `voxgraft go am` to continue.\n"
            )
        ended(job, EXIT_INTERRUPTED, stop={"times": 1})
        shown, found = head(page, project), states(project)
        assert [found[name] for name in ("check", "train", "evaluate")] == ["done", "stopped", "later"]
        assert shown.count("vg-stage vg-stopped") == 1
        assert "Stopped: train, step 4 of" in shown
        assert "Press Continue" in shown
        assert "Next:" not in shown
        with page_of(home) as context:
            assert "stopped: train, step 4 of" in tab._card_html(context, PROJECT, None, is_open=True)
    result = job_html(job, title="Stages")
    open_part = re.sub(r"<details>.*?</details>", "", result, flags=re.DOTALL)
    assert "voxgraft" not in open_part
    assert "ended here" not in open_part, "the stages are shown once"
    assert "voxgraft go am" in result
    (project / "journal.jsonl").touch()
    os.utime(project / "journal.jsonl", (time.time() + 60,) * 2)
    assert tab.find_early_end(project) == ("", ""), "it was trained further in a terminal"


@pytest.mark.parametrize("solved_by", ["run.yaml", "uploads", "a later job"])
def test_an_error_that_was_solved_since_is_no_longer_shown_as_one(tmp_path: Path, solved_by: str) -> None:
    project = make_project(tmp_path)
    log = "graft: starting: no graft yet\nerror texts-none: no texts\n  fix: add texts\n"
    with at_work(project, "go", log) as job:
        pass
    ended(job, 2)
    assert "vg-bad" in job_html(job)
    assert tab.find_early_end(project) == ("failed", "graft")
    if solved_by == "a later job":
        with at_work(project, "graft") as other:
            pass
        ended(other, 0)
    else:
        (project / "uploads").mkdir(exist_ok=True)
        os.utime(project / solved_by, (time.time() + 60,) * 2)
    shown = job_html(job)
    assert "vg-bad" not in shown.partition("<details>")[0]
    assert "no texts" in shown, "it can still be read"
    assert tab.find_early_end(project) == ("", "")


def test_warnings_of_the_check_are_shown_with_the_control_they_are_about(page: Any, tmp_path: Path) -> None:
    assert page.forms
    project = make_project(tmp_path)
    log = "warning text-few: the texts contain 5 sentences\n  fix: use a few thousand.\n" * 2
    log += "warning warmup-too-long: 20 of 30 steps\n  fix: use a smaller train.warmup_steps.\n"
    with at_work(project, "go", log + "step 1\n" * 9000) as job:
        shown = job_html(job)
    assert shown.count("vg-warn") == 2, "each kind once, however long the log"
    assert 'data-goto="graft-texts"' in shown
    assert 'data-goto="train-train-warmup-steps" data-tab="train"' in shown


def test_no_help_text_of_the_page_speaks_of_a_command_line(page: Any) -> None:
    part = page.project
    while part.parent is not None:
        part = part.parent
    shown = {
        (str(one.elem_id), name): text
        for one in part.blocks.values()
        if not str(one.elem_id).endswith("-command")
        for name in ("label", "info", "placeholder", "value")
        if isinstance(text := getattr(one, name, None), str) and "data-fold" not in text
    }
    assert len(shown) > 300
    typed = re.compile(r"(?<![\w-])--[a-z]|voxgraft [a-z]+ |`[a-z ]+`|command line|in a terminal")
    assert {key: text for key, text in shown.items() if typed.search(text)} == {}


def test_uploads_are_counted_and_paired_before_the_import(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "landing"))
    texts = {"a.srt": "1\n00:00:00,000 --> 00:00:01,000\nሰላም\n", "c.srt": "1\n00:00:00,000 --> 00:00:01,000\nሰላም\n"}
    texts |= {"list.csv": "audio,text\nx.wav,ሰላም\ny.wav,ሰላም\n"}
    given = []
    for number, name in enumerate(("a.wav", "a.srt", "b.wav", "c.srt", "list.csv", "x.wav")):
        # As gradio keeps them: each in a folder of its own.
        path = tmp_path / "landing" / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_text(texts.get(name, ""))
        given.append(str(path))
    make_project(tmp_path)
    with page_of(tmp_path) as context:
        shown = preview_sources(context, given, None, "")
        assert "2 recordings with text, from 2 text files" in shown
        assert "recordings without a text (1): b.wav" in shown
        assert "texts without a recording (1): c.srt" in shown
        assert "missing (1): y.wav (list.csv)" in shown
        assert "<td>a.wav</td><td>a.srt</td>" in shown
        (tmp_path / "landing" / "4" / "list.csv").write_text("audio,text\n/etc/passwd,ሰላም\n")
        refused = preview_sources(context, given, None, "")
        assert "ui-upload" in refused, "a list cannot be used to ask which files exist"
        assert "ui-upload" in preview_sources(context, ["/etc/passwd"], None, "")
        assert "ui-outside" in preview_sources(context, None, "/etc", "")


def test_the_message_of_what_is_missing_loses_what_was_given_since(page: Any) -> None:
    shown = start_run(page, None, None, "", "tiny", "", "")[-2]
    assert "Recordings, Language" in shown
    fewer = _shorten_error(shown, ["a.wav"], None, "", "tiny")
    assert "Recordings" not in fewer
    assert "Language" in fewer
    assert _shorten_error(shown, ["a.wav"], None, "am", "tiny") == ""


def head(page: Any, folder: Path) -> str:
    return tab._run_head_html(page, folder, *tab.stage_rows(folder))


def test_before_its_first_stage_line_a_job_runs_and_nothing_is_called_done(page: Any, home: Path) -> None:
    set_run_yaml_values(home / PROJECT, {"tokenizer.pieces": "20", "train.steps": "4"})  # as it was trained
    for project in (page.roots.home / PROJECT, home / PROJECT):
        with at_work(project, "go") as job:
            shown = head(page, project) + job_html(job)
        assert shown.count("vg-busy") == 1, "said once"
        assert "You can close this page" in shown
        assert "vg-note vg-good" not in shown, "all done is said of a run that is at rest"


def test_a_run_of_an_older_version_offers_its_update_and_no_other_does(page: Any, tmp_path: Path) -> None:
    project = make_project(tmp_path)
    settings = (project / "run.yaml").read_text()
    old, new = next((old, new) for old, new in RENAMED_SETTINGS.items() if f"\n  {new.rpartition('.')[2]}:" in settings)
    key = new.rpartition(".")[2]
    (project / "run.yaml").write_text(settings.replace(f"\n  {key}:", f"\n  {old.rpartition('.')[2]}:", 1))
    with chdir(tmp_path):
        shown = head(page, project)
        assert 'id="home-update" data-act="update"' in shown
        run_command_in_process(["update", PROJECT, "--json"])
        assert "home-update" not in head(page, project)
    assert load_run_settings(project)
    (project / "run.yaml").write_text(settings.replace(f"\n  {key}:", "\n  unheard_of:", 1))
    assert "home-update" not in head(page, project)


def tab_roots(folder: Path) -> Any:
    from voxgraft.ui.files import Roots

    return Roots.of((folder,))


@pytest.mark.parametrize(("running", "asked"), [("go", "train"), ("train", "go"), ("train", "train"), ("go", "go")])
def test_go_and_its_stages_exclude_each_other(tmp_path: Path, running: str, asked: str) -> None:
    project = make_project(tmp_path)
    with at_work(project, running), pytest.raises(ConfigError) as caught:
        ProjectJobs(project).start(asked, [asked, PROJECT], tmp_path)
    assert caught.value.code == "ui-job-running"
    assert [job.verb for job in ProjectJobs(project).all()] == [running]


def test_a_button_says_what_runs_and_cannot_be_pressed_meanwhile(page: Any) -> None:
    project = page.roots.home / PROJECT
    view = next(form for form in page.forms if form.name == "train").view
    assert view.button_update(project)["interactive"] is True
    with at_work(project, "go"):
        update = view.button_update(project)
    assert update["interactive"] is False
    assert update["value"].endswith("(“Continue” is running)")


def test_an_error_names_the_controls_and_keeps_the_terminal_in_a_fold(page: Any) -> None:
    assert page.forms
    finding = {
        "level": "error", "code": "sentences-missing", "found": "no sentences of am", "where": "",
        "expected": "held-out texts, or --sentences am.txt",
        "cure": "add test clips. Then run `voxgraft prepare RUN` again.",
    }  # fmt: skip
    shown = finding_html(finding, "evaluate")
    assert "--sentences" not in shown
    assert "“Sentences”" in shown
    assert 'data-goto="evaluate-sentences"' in shown
    assert 'data-goto="prepare-start" data-tab="preflight"' in shown
    plain, _, fold = shown.partition("<details>")
    assert "fix: add test clips." in plain
    assert "voxgraft prepare" not in plain
    assert "voxgraft prepare RUN" in fold
    folds = re.search(r'data-goto="evaluate-sentences"[^>]*data-folds="([^"]*)"', shown)
    assert folds is not None
    assert len(folds[1].split()) == 2, "both folds around the control are opened"


def test_a_setting_of_run_yaml_that_is_missing_leads_to_where_it_is_set(page: Any) -> None:
    assert page.forms
    finding = {"level": "error", "code": "config-missing", "found": "`base` is not given", "cure": ""}
    assert 'data-goto="model-choice" data-tab="model"' in finding_html(finding, "go")


def test_of_many_problems_the_counts_come_first_and_the_log_is_folded(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    lines = [
        f"error media-missing: no recording for clip{at}.wav\n  in: clip{at}.wav\n  fix: add it\n" for at in range(54)
    ]
    with at_work(project, "data import", "".join(lines)) as job:
        pass
    write_json(job.folder / "exit.json", {"exit_code": 1, "ended": time.time()})
    shown = job_html(job)
    assert shown.index("54 × error media-missing") < shown.index("clip0.wav")
    assert "<details open" not in shown
    assert shown.partition("<details>")[0].count("no recording for") == 1


def test_a_training_with_other_values_than_the_form_says_so(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    set_run_yaml_values(project, {"train.steps": "300"})
    with at_work(project, "train", argv=("train", str(project), "--train.steps", "120")) as job:
        assert "train.steps is 120 (run.yaml: 300)" in differences_html(project, job, 0)
        set_run_yaml_values(project, {"train.steps": "120"})
        assert differences_html(project, job, 120) == ""
        assert "train.steps is 90 (run.yaml: 120)" in differences_html(project, None, 90), "one in a terminal"


def test_the_ends_of_a_long_journal_are_enough_for_its_progress(tmp_path: Path) -> None:
    run = RunFolder(make_project(tmp_path))
    line = '{"kind": "step", "step": %d, "positions": 400, "positions_per_second": 200.0, "text_loss": 1.0}\n'
    with run.journal.open("w") as journal:
        journal.write('{"kind": "start", "step": 0, "steps": 9000, "language": "am"}\n')
        journal.writelines(line % step for step in range(1, 5001))
        journal.write('{"kind": "step", "step": 5001')  # a line that is being written
    found = journal_ends(run)
    assert (found.last_step, found.num_steps, found.seconds_per_step()) == (5000, 9000, 2.0)
    assert len(found.steps) < 2000


def test_a_base_with_fixed_voices_offers_those_and_no_recording(home: Path) -> None:
    (home / "me.wav").write_bytes(b"RIFF")
    with tab_of(home, "speak") as context:
        values = [value for _, value in voice_choices(context, home / PROJECT)]
    assert len(values) > 2
    assert "" in values
    assert not [value for value in values if value.endswith((".wav", ".flac"))]


def test_while_a_job_runs_nothing_is_surveyed_and_the_hash_of_the_base_is_kept(home: Path) -> None:
    project = home / PROJECT
    base = run_base_folder(project)
    assert base is not None
    journal = RunFolder(project).journal
    set_run_yaml_values(project, {"tokenizer.pieces": "20", "train.steps": "4"})  # as it was trained
    with chdir(home):
        with at_work(project, "train") as job:
            assert states(project)["graft"] == "done", "by its files, before the first survey"
            assert states(project)["train"] == "running"
            assert project not in tab._last_surveys
        write_json(job.folder / "exit.json", {"exit_code": 0, "ended": 1.0})
        before = states(project)
        assert compute_sha256(resolve_base_family(base, None).files(base).checkpoint) in tab._known_hashes.values()
        surveys = tab._survey.cache_info().misses
        with at_work(project, "train") as job:
            journal.write_bytes(journal.read_bytes() + b"\n")
            assert {**states(project), "train": ""} == {**before, "train": ""}
            assert tab._survey.cache_info().misses == surveys
        write_json(job.folder / "exit.json", {"exit_code": 0, "ended": 1.0})
        states(project)
        assert tab._survey.cache_info().misses == surveys + 1


def test_a_hash_is_reused_until_the_file_changes_and_only_where_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    known: HashCache = {}
    file.write_bytes(b"a")
    os.utime(file, (1, 1))
    with reuse_hashes(known):
        first = compute_sha256(file)
    with file.open("r+b") as stream:
        stream.write(b"b")
    os.utime(file, (1, 1))  # as damage to a disk: neither size nor time nor inode say so
    with reuse_hashes(known):
        assert compute_sha256(file) == first
    assert compute_sha256(file) != first
    os.utime(file, (2, 2))
    with reuse_hashes(known):
        assert compute_sha256(file) != first


def talk(folder: Path) -> list[str]:
    """A recording with subtitles, as far as their names say so."""
    for name in ("talk.wav", "talk.srt"):
        (folder / name).write_text("1")
    return [str(folder / name) for name in ("talk.wav", "talk.srt")]


def test_recordings_without_any_text_are_refused_before_there_is_a_run(
    page: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    sound, _ = talk(tmp_path)
    shown = start_run(page, [sound], None, "am", "tiny", "refused", "")[-2]
    assert "source-none" in shown
    assert 'data-goto="new-upload"' in shown
    assert not (page.roots.home / "refused").exists()
    assert (tmp_path / "talk.wav").exists(), "it can be sent again, with its text"


def test_an_unknown_language_is_refused_by_its_control_and_a_known_one_is_warned_of(page: Any, tmp_path: Path) -> None:
    (page.roots.home / "talks").mkdir()
    talk(page.roots.home / "talks")
    shown = start_run(page, None, "talks", "Klingonsk", "tiny", "", "")[-2]
    assert "“Language” is" in shown
    assert 'data-goto="new-language"' in shown
    assert "--language" not in shown
    assert "This base speaks English already" in preview_sources(page, None, "talks", "English", "tiny")
    assert "already" not in preview_sources(page, None, "talks", "Amharic", "tiny")
    assert "already" not in preview_sources(page, None, "talks", "English", "../../etc")


def test_a_run_whose_uploads_fail_midway_leaves_nothing(page: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    given = talk(tmp_path)
    shown = start_run(page, [*given, given[-1]], None, "am", "tiny", "broken", "")  # the second time it is gone
    assert "ui-upload" in shown[-2]
    assert not (page.roots.home / "broken").exists()
    assert (tmp_path / "talk.srt").read_text() == "1", "what was moved is back, so that a second try can take it"


def test_a_run_whose_first_job_is_refused_leaves_nothing_and_keeps_the_uploads(
    page: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))  # no process can be started
    shown = start_run(page, talk(tmp_path), None, "am", "tiny", "refused", "")
    assert "ui-job-unstarted" in shown[-2]
    assert not (page.roots.home / "refused").exists()
    assert (tmp_path / "talk.srt").read_text() == "1"


def test_home_is_painted_before_gradio_with_every_run_by_its_name_as_text(tmp_path: Path) -> None:
    for name in ("first", "<b>second"):
        make_project(tmp_path, name)
    with page_of(tmp_path) as context:
        shown = first_paint_html(context, "project=first")
        assert shown.count("<article") == 2
        assert "<b>second" not in shown
        assert "&lt;b&gt;second" in shown
        assert "{{" not in shown
        assert "<article" not in first_paint_html(context, "tab=train&project=first")
        assert "<article" in first_paint_html(context, "tab=home&project=..%2F..%2Fetc")
        quiet = poll_stamp(context, "home", "first")
        with at_work(tmp_path / "first", "go"):
            busy = poll_stamp(context, "home", "")
    assert not quiet.endswith(" busy")
    assert busy.endswith(" busy"), "so that the page asks often"


def test_a_clip_outside_the_roots_hides_no_other_speaker(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    set_run_yaml_values(project, {"base": '"absent"'})
    (project / "data").mkdir()
    places = {"a": "../../../out.flac", "b": "clips/b.flac", "c": "clips/c.flac"}
    clips = [ManifestClip(name, path, 3.0, "ሰላም", "am", name, "talk", 16000) for name, path in places.items()]
    write_manifest(
        project / "data" / "manifest.jsonl", [*clips, replace(clips[1], id="d", audio="clips/d.flac", speaker="a")]
    )
    with tab_of(tmp_path, "speak") as context:
        found = {value: label for label, value in voice_choices(context, project)}
    assert {Path(value).name: label[0] for value, label in found.items() if "of the run" in label} == {
        "b.flac": "b", "c.flac": "c", "d.flac": "a"
    }  # fmt: skip


def test_an_update_that_met_a_file_in_motion_is_made_again(tmp_path: Path) -> None:
    file, tries = tmp_path / "step", []

    def read(name: str) -> str:
        tries.append(name)
        if len(tries) == 2:
            file.write_text(name)
        return file.read_text()

    assert call_until_read(read, "x") == "x"
    file.unlink()
    with pytest.raises(FileNotFoundError):
        call_until_read(read, "y")
    assert tries == ["x", "x", "y", "y", "y"]


def test_the_demo_writes_its_recordings_first_and_only_where_they_are_missing(tmp_path: Path) -> None:
    run = make_project(tmp_path, "demo")
    set_run_yaml_values(run, {"data.sources": '["recordings"]'})
    assert demo_recordings(run) == ["voxgraft.demo.data", str(run / "recordings")]
    (run / "recordings").mkdir()
    assert demo_recordings(run) == []
    assert demo_recordings(make_project(tmp_path, "mine")) == []
