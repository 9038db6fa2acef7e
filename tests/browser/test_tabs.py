"""Train, Diagnose, Evaluate, Export and Speak in a real browser, on a project that was trained for a moment."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.browsing import Server, Window, loudness, serving, wait_for_players
from tests.browser.test_journey import step_of, until
from tests.support.ui import PROJECT, home_of
from voxgraft.checkpoints.steps import list_complete_steps
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.run import RunFolder
from voxgraft.ui.jobs import ProjectJobs

if TYPE_CHECKING:
    from tests.support.fixtures import Fixtures

# Gives the page the end of each stream of answers late, as a busy machine may: what it sends until then gets no answer there.
LATE_END = """() => {
  const ask = window.fetch, end = 'data: {"msg":"close_stream"', pause = 3000;
  window.ends = 0;
  window.fetch = async (...given) => {
    const answer = await ask(...given);
    if (!String(given[0].url ?? given[0]).includes("queue/data")) { return answer; }
    const reader = new TextDecoder(), writer = new TextEncoder();
    const late = new TransformStream({ async transform(part, stream) {
      const text = reader.decode(part, { stream: true }), at = text.indexOf(end);
      stream.enqueue(writer.encode(at < 0 ? text : text.slice(0, at)));
      if (at < 0) { return; }
      window.ends += 1;
      await new Promise(done => setTimeout(done, pause));
      stream.enqueue(writer.encode(text.slice(at)));
    } });
    return new Response(answer.body.pipeThrough(late), { status: answer.status, headers: answer.headers });
  };
}"""
ENDLESS = {"train.steps": "1000000", "train.save_every": "1000000", "train.valid_every": "1000000",
           "train.sample_every": "1000000", "train.log_every": "10"}  # fmt: skip


@pytest.fixture(scope="module")
def server(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tabs") / "home"
    shutil.copytree(home_of(fixtures), folder)
    try:
        with serving(folder) as started:
            yield started
    finally:
        for job in ProjectJobs(folder / PROJECT).all():  # a test that fails leaves no endless training behind
            while job.alive:
                job.stop()
                time.sleep(1)


def opened(browser: Any, server: Server, tab: str, command: str) -> Window:
    """A page with one tab in view, once its form shows the command."""
    window = Window(browser, server)
    window.open(PROJECT, tab)
    window.command(tab, command)
    return window


def choose(window: Window, control: str, words: str) -> None:
    """Take an entry of a list by the words that it begins with."""
    window.page.locator(f"#{control} input").click()
    window.page.locator("[role=option]", has_text=words).first.click()


@pytest.mark.long
def test_training_is_started_from_a_step_watched_and_stopped(browser: Any, server: Server) -> None:
    project = server.folder / PROJECT
    set_run_yaml_values(project, ENDLESS)
    window = opened(browser, server, "train", f"voxgraft train {PROJECT}")
    window.open_part("train-listen")
    wait_for_players(window, "train-samples", 6)
    assert loudness(window, "#train-samples audio")[1] > 0.001
    choose(window, "train-from", "step 2")
    assert window.command("train", "--from-step").endswith("--from-step 2")
    window.page.locator("#train-start").click()
    until(lambda: step_of(project) > 6)
    job = ProjectJobs(project).latest("train")
    assert job is not None
    assert job.read("job.json")["argv"] == ["train", PROJECT, "--from-step", "2"]
    seen = _step_shown(window)
    folds = window.page.locator("summary:visible", has_text=re.compile("^Log$"))
    folds.first.click()
    until(lambda: _step_shown(window) > seen)
    time.sleep(3)  # the page has asked for news at least once since
    assert folds.first.evaluate("summary => summary.parentElement.open"), "a fold that was opened stays open"
    window.open_part("train-details")
    assert "resumes from step 2" in window.value("train-opening")
    window.page.locator("#train-stop").click()
    window.page.wait_for_selector("#train-figures >> text=ended: stopped on request")
    until(lambda: not job.alive)
    last = list_complete_steps(RunFolder(project))[-1]
    assert last >= seen
    window.command("train", f"voxgraft train {PROJECT}")
    assert "--from-step" not in window.value("train-command"), "the next start resumes from the newest step"
    assert not window.console
    assert not window.foreign


@pytest.mark.long
def test_the_page_follows_a_job_although_answers_come_after_the_end_of_their_stream(
    browser: Any, server: Server
) -> None:
    set_run_yaml_values(server.folder / PROJECT, ENDLESS)
    window = Window(browser, server)
    window.page.add_init_script(f"({LATE_END})()")
    window.open(PROJECT, "train")
    window.command("train", f"voxgraft train {PROJECT}")
    window.page.locator("#train-start").click()
    window.page.wait_for_selector("#train-figures .vg-fact >> text=of 1,000,000")
    seen = _step_shown(window)
    until(lambda: _step_shown(window) > seen)
    window.page.locator("#jobs [data-act=stop]").click()
    window.page.wait_for_selector("#jobs .vg-job", state="detached")
    window.page.wait_for_selector("#train-figures >> text=ended: stopped on request")
    assert window.page.evaluate("window.ends") > 3
    assert not window.console


def _step_shown(window: Window) -> int:
    fact = window.page.locator("#train-figures .vg-fact", has_text="step").filter(has_text=" of 1,000,000").first
    return int(str(fact.inner_text()).split(" of ")[0].split()[-1].replace(",", ""))


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "key", "name"),
    [
        ("speak-manner", "emotion", "emotion.npy"),
        ("speak-many", "file", "texts.tsv"),
    ],
)
def test_a_broken_file_for_speaking_is_named_with_a_fix(
    browser: Any, server: Server, tmp_path: Path, part: str, key: str, name: str
) -> None:
    window = opened(browser, server, "speak", "still needed: Text")
    if key != "file":
        window.fill("speak-text", "hello")
    window.fill("speak-language", "en")
    window.open_part("speak-advanced")
    window.open_part(part)
    _upload_broken(window, "speak", key, tmp_path / name)
    jobs = ProjectJobs(server.folder / PROJECT)
    before = jobs.latest("speak")
    window.page.locator("#speak-start").click()
    job = until(lambda: (found := jobs.latest("speak")) != before and found)
    until(lambda: not job.alive)
    error = job.read("out.txt")["error"]
    assert key in error["found"] or name in error["found"] + error["where"]
    window.page.wait_for_selector(f"#speak-heard .vg-bad >> text={error['code']}")
    assert "fix: " in window.text("speak-heard") or window.page.locator("#speak-heard [data-goto]").count()


@pytest.mark.long
def test_a_broken_file_in_the_other_uploads_is_named_with_a_fix(browser: Any, server: Server, tmp_path: Path) -> None:
    window = opened(browser, server, "diagnose", f"voxgraft diagnose {PROJECT}")
    _upload_broken(window, "diagnose", "checkpoint", tmp_path / "model.safetensors")
    window.run("diagnose", "bad")
    window.page.wait_for_selector("#diagnose-verdict .vg-word >> text=START FRESH")
    _upload_broken(window, "diagnose", "tokenizer", tmp_path / "tokenizer.json")
    window.page.locator("#diagnose-start").click()
    window.page.wait_for_selector("#diagnose-verdict >> text=tokenizer.json")
    window.tab("Export")
    window.command("export", "voxgraft export")
    window.open_part("export-pull")
    _upload_broken(window, "pull", "source", tmp_path / "given.zip")
    window.run("pull", "bad")
    window.page.wait_for_selector("#pull-shown >> text=given.zip")
    assert not window.console


def _upload_broken(window: Window, verb: str, key: str, path: Path) -> None:
    path.write_bytes(b"\xff\xfe this is none of it \x00\x01")
    window.upload(f"{verb}-{key}-upload", path)
    window.command(verb, f"{PROJECT}/uploads/{path.stem}")


@pytest.mark.long
def test_an_evaluation_is_read_and_listened_to_and_its_report_opens_in_a_sandbox(browser: Any, server: Server) -> None:
    window = opened(browser, server, "evaluate", "voxgraft evaluate")
    window.page.wait_for_selector("#evaluate-scores table")
    assert loudness(window, "#evaluate-players audio")[1] > 0.001
    assert "before (am)" in window.text("evaluate-players")
    with window.page.expect_popup() as popup:
        window.page.locator("#evaluate-scores a", has_text="blind listening test").click()
    report = popup.value
    report.wait_for_selector("#blind button")
    report.locator("#blind button", has_text="A or B").click()
    report.wait_for_selector("#stage audio")
    assert report.evaluate("() => window.origin") == "null", "a report from elsewhere cannot use the interface"
    assert not window.console


@pytest.mark.long
def test_an_export_needs_its_terms_and_is_packed_into_a_zip_to_save(browser: Any, server: Server) -> None:
    window = opened(browser, server, "export", "voxgraft export")
    start = window.page.locator("#export-start")
    assert start.is_disabled()
    window.fill("export-data-licence", "CC BY 4.0")
    window.fill("export-consent", "all have agreed")
    assert start.is_disabled()
    window.check("export-accept-terms")
    window.command("export", "--accept-terms")
    window.run("export")
    window.open_part("export-push")
    window.command("push", f"{PROJECT}/export/graft")
    window.run("push")
    with window.page.expect_download() as download:
        window.page.locator("#push-shown a").click()
    assert Path(download.value.path()).read_bytes()[:2] == b"PK"
    assert not window.console
