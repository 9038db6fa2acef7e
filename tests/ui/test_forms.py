"""Forms hold what the run has and what somebody typed, and never the one for the other; clips lie where `go` has them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, make_project, page_of
from voxgraft.config.commands import GoSettings
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import VoxgraftError
from voxgraft.data.manifest import ManifestClip, write_manifest
from voxgraft.pipeline.stages import PipelineContext, resolve_dataset
from voxgraft.ui import commands, files
from voxgraft.ui.commands import CommandBuilder, find_command
from voxgraft.ui.files import Roots, move_uploads
from voxgraft.ui.jobs import ProjectJobs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page, which has no state of its own."""
    home = tmp_path_factory.mktemp("forms") / "home"
    home.mkdir()
    with page_of(home) as context:
        yield context


@pytest.fixture
def page(built: Any) -> Any:
    """The page on a folder in which there is nothing but a new project."""
    home = built.roots.home
    for path in {*home.iterdir(), *home.parent.iterdir()} - {home}:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    make_project(home)
    files._list_folders_cached.cache_clear()
    return built


def project_of(page: Any) -> Path:
    return Path(page.roots.home / PROJECT)


def form_of(page: Any, verb: str) -> Any:
    return next(form for form in page.forms if form.name == verb)


def dataset(folder: Path, *texts: str) -> Path:
    """A dataset with a clip for each text."""
    folder.mkdir(parents=True)
    clips = [
        ManifestClip(f"c{at}", f"clips/c{at}.flac", 2.0, text, "am", "abebe", "talk", 16000)
        for at, text in enumerate(texts)
    ]
    write_manifest(folder / "manifest.jsonl", clips)
    return folder


def after_a_job(page: Any, part: str, *values: Any) -> Any:
    """What the page sends to a part when a job has ended, with these values in what it looks at."""
    for _, (function, _, outputs), _ in page.job_end_handlers:
        ids = [output.elem_id for output in outputs]
        if part in ids:
            return function(PROJECT, *values)[ids.index(part)]
    raise AssertionError(f"nothing follows in {part}")


def typed(form: Any, **values: Any) -> list[Any]:
    """The form as the project opens it, with some controls changed; `__` stands for the dot in a key."""
    keys = [control.leaf.key for control in form.controls]
    found = form.initial_values(PROJECT)
    for name, value in values.items():
        found[keys.index(name.replace("__", "."))] = value
    return list(found)


def refilled(form: Any, filled: list[Any], values: list[Any]) -> dict[str, Any]:
    """What a form's own controls are sent after a job: their new values, where they get one."""
    own = [control.leaf.key for control in form.controls if not control.shared]
    sent = form.fill(PROJECT, filled, *values)[: len(own)]
    return {key: update["value"] for key, update in zip(own, sent, strict=True) if "value" in update}


@pytest.mark.parametrize(
    "named", ["", "clips", "../elsewhere", "../shared/manifest.jsonl", "../../outside", "not/there/yet"]
)
@pytest.mark.parametrize("is_there", [True, False])
def test_the_page_keeps_clips_where_go_and_prepare_take_them_from(page: Any, named: str, is_there: bool) -> None:
    project = project_of(page)
    if named:
        set_run_yaml_values(project, {"data.dataset": f'"{named}"'})
    theirs = resolve_dataset(PipelineContext(GoSettings(run=project))).folder
    if named == "not/there/yet":
        assert theirs.resolve() == (project / named).resolve(), "a folder that does not exist yet is a folder"
    if is_there:
        dataset(theirs, "ሰላም")
        assert resolve_dataset(PipelineContext(GoSettings(run=project))).folder == theirs
    assert commands.run_dataset_folder(project).resolve() == theirs.resolve()
    values = typed(form_of(page, "data import"), sources=["x.srt"])
    words = form_of(page, "data import").words(PROJECT, values)
    assert (page.roots.home / words[2]).resolve() == theirs.resolve()
    texts = [(page.roots.home / path).resolve() for path in typed(form_of(page, "graft"))[0]]
    assert texts == ([theirs.resolve() / "manifest.jsonl"] if is_there else [])


def test_a_project_whose_clips_an_older_page_kept_goes_on_with_them(page: Any) -> None:
    project = project_of(page)
    dataset(project / "clips", "ሰላም")
    assert commands.run_dataset_folder(project) == project / "clips"
    dataset(project / "data", "ሰላም")
    assert commands.run_dataset_folder(project) == project / "data"


def test_what_is_shown_after_a_job_is_of_the_dataset_that_is_chosen(page: Any) -> None:
    dataset(project_of(page) / "data", "ሰላም")
    other = dataset(page.roots.home / "other", "ሰላም", "ሰላም ለዓለም", "እሺ")
    for folder in (project_of(page) / "data", other):
        (folder / "report.html").write_text("report")
    assert "<dd>1, of which 1" in after_a_job(page, "data-facts", f"{PROJECT}/data")
    assert "<dd>3, of which 3" in after_a_job(page, "data-facts", "other")
    assert len(after_a_job(page, "data-clip", "other")["choices"]) == 3
    assert "secret/other/report.html" in after_a_job(page, "data-report-link", "other")
    with pytest.raises(VoxgraftError):
        after_a_job(page, "data-facts", "../outside")


def test_a_control_that_somebody_emptied_or_filled_stays_so_after_a_job(page: Any) -> None:
    form = form_of(page, "speak")
    filled = form.initial_values(PROJECT)
    values = typed(form, run=None, graft=["x/graft"], text="ሰላም")
    assert refilled(form, filled, values) == {}
    assert "--run" not in form.words(PROJECT, values)


def test_what_a_job_has_made_fills_the_control_that_waited_for_it_and_no_other(page: Any) -> None:
    form = form_of(page, "graft")
    filled = form.initial_values(PROJECT)
    dataset(project_of(page) / "data", "ሰላም")
    found = refilled(form, filled, filled)
    assert found == {"texts": [f"{PROJECT}/data/manifest.jsonl"]}
    assert refilled(form, filled, typed(form, texts=["mine.txt"])) == {}


def test_a_run_yaml_that_changed_is_followed_where_nobody_typed(page: Any) -> None:
    form = form_of(page, "train")
    filled, values = form.initial_values(PROJECT), typed(form, train__steps="7")
    set_run_yaml_values(project_of(page), {"train.steps": "40", "train.rank": "3", "train.compile": "false"})
    assert refilled(form, filled, values) == {"train.rank": 3, "train.compile": "no"}
    assert refilled(form, filled, filled) == {"train.steps": "40", "train.rank": 3, "train.compile": "no"}


def test_the_clock_tells_of_a_run_yaml_that_changed(page: Any) -> None:
    from voxgraft.ui.app import poll_stamp, poll_tab

    stamp = poll_stamp(page, "train", PROJECT)
    assert poll_stamp(page, "train", PROJECT) == stamp
    known = poll_tab(page, "train", PROJECT, {})[0]
    assert not isinstance(poll_tab(page, "train", PROJECT, known)[3], str)
    set_run_yaml_values(project_of(page), {"train.steps": "40"})
    assert isinstance(poll_tab(page, "train", PROJECT, known)[3], str)
    assert poll_stamp(page, "train", PROJECT) != stamp
    assert poll_stamp(page, "nowhere", "../..") == ""


def test_a_project_whose_run_yaml_cannot_be_read_shows_nothing_of_the_one_before(page: Any) -> None:
    set_run_yaml_values(project_of(page), {"train.steps": "40"})
    form = form_of(page, "train")
    keys = [control.leaf.key for control in form.controls]
    assert form.fill(PROJECT)[keys.index("train.steps")]["value"] == "40"
    (project_of(page) / "run.yaml").write_text("train: [\n")
    sent = form.fill(PROJECT)
    assert sent[keys.index("train.steps")]["value"] == ""
    assert "error" in sent[len(keys)]


OUTSIDE = {
    "texts": '["../../outside/a.txt"]',
    "data.train": '["../../outside/set"]',
    "train.recognizer": '"command:/opt/listen {wav}"',
}


def test_what_run_yaml_itself_names_is_passed_and_what_is_typed_beside_it_is_judged(page: Any) -> None:
    set_run_yaml_values(project_of(page), OUTSIDE)
    train, graft = form_of(page, "train"), form_of(page, "graft")
    assert train.words(PROJECT, typed(train)) == ["train", PROJECT]
    assert train.words(PROJECT, typed(train, train__steps="3")) == ["train", PROJECT, "--train.steps", "3"]
    assert graft.words(PROJECT, typed(graft)) == ["graft", PROJECT]
    outside = str((page.roots.home / "../outside/a.txt").resolve())
    words = graft.words(PROJECT, typed(graft, texts=[outside, "b.txt"]))
    assert words == ["graft", PROJECT, "--texts", outside, "b.txt"]
    for form, value in ((graft, {"texts": [outside, "../c.txt"]}), (train, {"train__recognizer": "command:/bin/sh"})):
        with pytest.raises(VoxgraftError) as caught:
            form.words(PROJECT, typed(form, **value))
        assert caught.value.code in ("ui-outside", "config-value")
    with pytest.raises(VoxgraftError):  # what one setting may name, another may not
        form_of(page, "data import").words(PROJECT, typed(form_of(page, "data import"), sources=[outside]))


def test_the_runs_own_word_can_be_chosen_where_it_is_not_among_the_choices(page: Any) -> None:
    set_run_yaml_values(project_of(page), OUTSIDE)
    form = form_of(page, "train")
    keys = [control.leaf.key for control in form.controls]
    sent = form.fill(PROJECT)[keys.index("train.recognizer")]
    assert sent["value"] in sent["choices"]


def test_keeping_writes_what_was_changed_and_nothing_that_is_empty(page: Any) -> None:
    project = project_of(page)
    set_run_yaml_values(project, {"train.steps": "40", **OUTSIDE})
    form = form_of(page, "train")
    command = CommandBuilder(find_command("train"), page.roots, choices=form.choices)
    keys = [control.leaf.key for control in form.controls]
    values = dict(zip(keys, typed(form, train__steps="", train__rank=5, data__train=[]), strict=True))
    assert command.changed(values, project, form.fixed(project)) == {"train.rank": "5"}


def test_keeping_a_longer_list_keeps_what_was_in_it(page: Any) -> None:
    project = project_of(page)
    set_run_yaml_values(project, OUTSIDE)
    form = form_of(page, "graft")
    outside = str((page.roots.home / "../outside/a.txt").resolve())
    form._keep(PROJECT, PROJECT, *typed(form, texts=[outside, "b.txt"]))
    found = [Path(os.path.abspath(path)) for path in commands.load_run_settings(project).texts]
    assert found == [Path(outside), page.roots.home / "b.txt"]


@pytest.mark.parametrize("project", ["../..", "/etc", "nowhere", "\0"])
def test_an_address_with_a_project_elsewhere_opens_nothing_and_says_why(page: Any, project: str) -> None:
    opened, _, said = page.open_project(project)
    assert opened == ""
    assert "vg-bad" in said


def test_a_page_without_a_named_project_opens_the_one_in_which_something_runs_or_the_only_one(page: Any) -> None:
    from voxgraft.ui.app import find_default_project

    assert find_default_project(page) == PROJECT
    other = make_project(page.roots.home, "other")
    files._list_folders_cached.cache_clear()
    assert find_default_project(page) == ""
    jobs = ProjectJobs(other)
    jobs.folder.mkdir()
    with jobs._made("train", {"verb": "train", "argv": [], "started": 0.0}):
        assert find_default_project(page) == "other"
    assert find_default_project(page) == ""


@pytest.mark.parametrize("lacking", ["Recordings", "Language"])
def test_no_run_is_made_without_recordings_and_a_language(page: Any, lacking: str) -> None:
    from voxgraft.ui.tabs.start import start_run

    (page.roots.home / "talks").mkdir()
    given = {"Recordings": "talks", "Language": "om"} | {lacking: ""}
    before = sorted(page.roots.home.iterdir())
    said = start_run(page, None, given["Recordings"], given["Language"], "tiny", "", "")[3]
    assert f"still needed: {lacking}" in said
    assert sorted(page.roots.home.iterdir()) == before


@pytest.mark.parametrize("steps", ["many", "1.5", "-3"])
def test_a_run_that_cannot_start_leaves_nothing_behind(page: Any, steps: str) -> None:
    from voxgraft.ui.tabs.start import start_run

    (page.roots.home / "talks").mkdir()
    for name in ("talk.wav", "talk.srt"):
        (page.roots.home / "talks" / name).write_text("1")
    said = start_run(page, None, "talks", "Amharic", "tiny", "", steps)[3]
    assert "config-value" in said
    assert not (page.roots.home / "amharic").exists()


def test_before_anything_is_filled_in_a_form_says_what_it_needs_and_starts_nothing(page: Any) -> None:
    from voxgraft.ui.page import start_job

    speak, bring = form_of(page, "speak"), form_of(page, "data import")
    assert speak._preview(PROJECT, *typed(speak)) == "still needed: Text or File"
    assert bring._preview(PROJECT, *typed(bring)) == "still needed: From"
    values = typed(speak, text=" \n ")
    said, _ = start_job(page, PROJECT, speak.view, lambda: speak.words(PROJECT, values))
    assert "still needed: Text or File" in said
    assert 'data-goto="speak-text"' in said
    assert not (project_of(page) / "jobs").exists()
    for form in page.forms:
        assert not form._preview("", *(control.component.value for control in form.controls)).startswith("error")


def test_a_base_in_a_root_whose_own_folder_is_called_graft_is_found(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from voxgraft.ui.tabs.model import find_bases

    home = tmp_path / "graft" / "home"
    for name in ("base", "run/graft"):
        (home / name).mkdir(parents=True)
        (home / name / "tiny.json").write_text("{}")
    with chdir(home):
        assert find_bases(Roots.of((home,))) == [home / "base"]


HIDDEN = {
    "latin-1": "audio,text\n/etc/passwd,é\n".encode("latin-1"),
    "utf-16-le": "audio,text\n/etc/passwd,a\n".encode("utf-16-le"),
    "utf-7": b"audio,text\n+AC8-etc+AC8-passwd,a\n",
}
"""Lists that name something outside, and nothing where they are taken for UTF-8."""


@pytest.mark.parametrize("encoding", HIDDEN)
def test_an_uploaded_list_names_nothing_outside_in_any_encoding(
    page: Any, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "landing"))
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_bytes(HIDDEN[encoding])
    (taken,) = move_uploads(page.roots, project_of(page), [str(tmp_path / "landing" / "a.csv")])
    form = form_of(page, "data import")
    for source in (f"{PROJECT}/uploads", f"{PROJECT}/uploads/a.csv", PROJECT):
        with pytest.raises(VoxgraftError, match="ui-upload"):
            form.words(PROJECT, typed(form, sources=[source], encoding=encoding))
    taken.write_bytes("audio,text\nx.wav,é\n".encode(encoding))
    assert form.words(PROJECT, typed(form, encoding=encoding))[-2:] == ["--encoding", encoding]


@pytest.mark.parametrize("card", ["graft.json", "export.json", "adapter_config.json"])
@pytest.mark.parametrize("place", [".", "below/it"])
def test_a_run_yaml_that_came_with_something_received_is_never_followed(page: Any, card: str, place: str) -> None:
    received = project_of(page) / "pulled"
    (received / place).mkdir(parents=True)
    (received / place / "run.yaml").write_text("train: {recognizer: 'command:sh {wav}'}")
    assert page.project_folder(f"{PROJECT}/pulled/{place}")
    (received / card).write_text("{}")
    form = form_of(page, "train")
    for ask in (page.project_folder, lambda name: form.words(name, typed(form))):
        with pytest.raises(VoxgraftError) as caught:
            ask(f"{PROJECT}/pulled/{place}")
        assert caught.value.code == "ui-no-project"
    (project_of(page) / "graft").mkdir()
    (project_of(page) / "graft" / card).write_text("{}")
    assert page.project_folder(PROJECT) == project_of(page)


def test_a_button_pressed_before_the_form_is_filled_keeps_the_values_of_run_yaml(page: Any) -> None:
    project = project_of(page)
    set_run_yaml_values(project, {"train.batch_tokens": "400", "train.log_every": "5"})
    form = next(form for form in page.forms if form.name == "train")
    empty = [component.value for component in form.components]
    before = (project / "run.yaml").read_text()
    assert form.command.changed(form.typed_values(empty), project, form.fixed(project)), "defaults would be written"
    for owner in ("", "another run"):
        form._keep(PROJECT, owner, *empty)
        assert (project / "run.yaml").read_text() == before
        assert form.words(PROJECT, form.current_values(PROJECT, owner, empty)) == ["train", PROJECT]
    form._keep(PROJECT, PROJECT, *typed(form, train__log_every=7))
    assert commands.load_run_settings(project).train.log_every == 7
