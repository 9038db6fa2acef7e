"""Home in a real browser: from the first click to a sound, what is out of date, errors that lead to their control."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.browsing import WAIT_MS, Server, Window, loudness, serving, wait_for_players
from tests.browser.test_journey import until
from tests.support.ui import PROJECT, done, home_of, make_project
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.errors import ConfigError
from voxgraft.demo.data import write_talks
from voxgraft.ui.app import TABS
from voxgraft.ui.commands import load_run_settings
from voxgraft.ui.jobs import ProjectJobs

if TYPE_CHECKING:
    from tests.support.fixtures import Fixtures

STAGE = "#home-stages .vg-stage:nth-child({})"
STEPS = "1000000"


def stop_all(folder: Path) -> None:
    """A test that fails leaves no endless training behind."""
    for project in folder.iterdir():
        for job in ProjectJobs(project).all():
            while job.alive:
                job.stop()
                time.sleep(1)


@pytest.fixture(scope="module")
def server(fixtures: Fixtures, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a project that was trained for four steps and evaluated."""
    folder = tmp_path_factory.mktemp("home") / "home"
    shutil.copytree(home_of(fixtures), folder)
    set_run_yaml_values(folder / PROJECT, {"tokenizer.pieces": "20", "train.steps": "4"})  # as it was trained
    try:
        with serving(folder) as started:
            yield started
    finally:
        stop_all(folder)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Server]:
    """A server on a folder without any run."""
    folder = tmp_path / "home"
    folder.mkdir()
    try:
        with serving(folder) as started:
            yield started
    finally:
        stop_all(folder)


def uploaded(window: Window, count: int) -> None:
    """Wait until the first form has so many files."""
    rows = "document.querySelectorAll('#new-upload tr.file').length"
    window.page.wait_for_function(f"{rows} === {count}")


@pytest.mark.long
def test_from_the_first_page_to_the_first_sound_with_uploads_and_clicks_only(browser: Any, empty: Server) -> None:
    write_talks(empty.folder.parent / "talks", 4, 3)
    window = Window(browser, empty, 1440, 900)
    window.page.goto(empty.address)
    window.page.locator("#new-start").click()
    window.page.wait_for_selector("#new-state .vg-bad >> text=Recordings")
    window.upload("new-upload", *sorted((empty.folder.parent / "talks").iterdir()))
    uploaded(window, 8)
    window.page.wait_for_selector("#new-preview .vg-good >> text=4 recordings with text, from 4 text files")
    window.page.wait_for_function("!document.querySelector('#new-state').innerText.includes('Recordings')")
    window.fill("new-language", "Amharic")
    window.page.locator("#new-start").click()
    window.page.wait_for_selector(STAGE.format(1))
    window.page.wait_for_selector("#jobs .vg-job")
    assert window.page.locator("#go-start").is_disabled()
    window.page.wait_for_selector("#home-listen audio", timeout=2 * WAIT_MS)  # six stages come before it
    seconds, level = loudness(window, "#home-listen audio")
    assert seconds > 0.2
    assert level > 0.0005
    assert "train" in window.page.locator("#home-stages .vg-running").inner_text()
    warning = window.page.locator("#go-state .vg-warn", has=window.page.locator("[data-goto=graft-texts]"))
    assert warning.is_visible(), "five sentences are few, and the check says so where the user is"
    for tab in ("Data", "Speak"):  # a running job is in view on every tab, and can be stopped there
        window.tab(tab)
        assert window.page.locator("#jobs .vg-job").is_visible()
    window.page.locator("#jobs [data-act=stop]").click()
    window.page.wait_for_selector("#jobs .vg-job", state="detached")
    job = ProjectJobs(empty.folder / "amharic").latest("go")
    assert job is not None
    assert job.state == "stopped"
    window.tab("Home")
    window.page.wait_for_selector("#go-start:not([disabled])")
    window.page.wait_for_selector("#home-stages .vg-stopped >> text=train")
    window.page.wait_for_selector("#home-stages .vg-note >> text=/Stopped: train, step .* Press Continue/")
    window.page.wait_for_selector("#home-runs .vg-card >> text=stopped: train, step")
    window.tab("Train")
    window.page.wait_for_selector("#train-figures >> text=stopped on request; Start training resumes it")
    (step,) = re.findall(r"(\d+) of 300", window.text("train-figures"))
    window.tab("Home")
    for part in ("home-stages", "home-runs"):
        assert f"step {step} of 300" in window.text(part), "the page says one step everywhere"
    assert not window.page.get_by_text("voxgraft go").locator("visible=true").count(), "no command line in view"
    assert not window.console
    assert not window.foreign


@pytest.mark.long
def test_with_half_of_the_recordings_missing_the_summary_comes_first(browser: Any, empty: Server) -> None:
    talks = empty.folder.parent / "talks"
    talks.mkdir()
    (talks / "list.csv").write_text("audio,text\n" + "".join(f"clip{at}.wav,ሰላም ለዓለም\n" for at in range(54)))
    write_talks(empty.folder.parent / "made", 2, 2)
    for name in ("talk0.srt", "talk1.flac", "talk1.srt"):
        shutil.copy(empty.folder.parent / "made" / name, talks / name)
    window = Window(browser, empty, 1440, 900)
    window.page.goto(empty.address)
    window.upload("new-upload", *sorted(talks.iterdir()))
    uploaded(window, 4)
    window.page.wait_for_selector("#new-preview .vg-warn")
    assert "1 recording with text" in window.text("new-preview")
    assert "texts without a recording (1): talk0.srt" in window.text("new-preview")
    assert "missing (54): clip0.wav" in window.text("new-preview")
    window.fill("new-language", "am")
    window.page.locator("#new-start").click()
    window.page.wait_for_selector("#home-stages .vg-failed, #home-stages .vg-blocked")
    until(lambda: window.page.locator("#go-state .vg-bad").count())
    lines = window.text("go-state").splitlines()
    summary = next(at for at, line in enumerate(lines) if "×" in line or "left out" in line or "54" in line)
    assert summary < 12, lines[:20]
    assert not window.page.locator("#go-state details[open]").all_inner_texts(), "the whole log is in a fold"


@pytest.mark.long
def test_reload_and_restart_during_training_keep_the_form_right_and_nothing_starts_twice(
    browser: Any, server: Server
) -> None:
    project = server.folder / PROJECT
    set_run_yaml_values(project, {"train.save_every": STEPS, "train.valid_every": STEPS, "train.sample_every": STEPS})
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "train")
    window.command("train", f"voxgraft train {PROJECT}")
    window.fill("train-train-steps", STEPS)
    window.command("train", f"--train.steps {STEPS}")
    window.page.locator("#train-start").click()
    window.page.wait_for_selector("#train-start[disabled]")
    window.page.wait_for_selector("#train-newest audio")
    assert str(load_run_settings(project).train.steps) == STEPS, "the form, run.yaml and the job are the same"
    with pytest.raises(ConfigError, match="ui-job-running"):
        ProjectJobs(project).start("go", ["go", PROJECT], server.folder)
    for part in ("#train-figures .vg-fact", "#train-curves svg", "#train-newest audio"):
        box = window.page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, f"{part} is not in view while it trains"

    window.page.reload()
    window.ready(PROJECT)
    _form_is_right(window)
    server.kill()
    server.start()
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "train")
    _form_is_right(window)
    assert len([job for job in ProjectJobs(project).all() if job.verb == "train"]) == 1
    window.page.locator("#train-stop").click()
    window.page.wait_for_selector("#train-start:not([disabled])")
    set_run_yaml_values(project, {"train.steps": "4"})


def _form_is_right(window: Window) -> None:
    window.page.wait_for_selector("#train-start[disabled]")
    window.page.wait_for_selector("#train-state .vg-busy")
    # The settings fold away once the page knows that it trains.
    window.page.wait_for_selector("#train-settings [data-testid=accordion-content]", state="hidden")
    window.open_part("train-settings")
    window.page.wait_for_selector("#train-train-steps textarea, #train-train-steps input")
    until(lambda: window.value("train-train-steps") == STEPS)
    assert not window.page.locator("#train-elsewhere .vg-warn").count()


CHANGED_CODE = """
from voxgraft.cli.app import main
from voxgraft.ui import app

app.TABS.pop("diagnose")
main()
"""


@pytest.mark.long
def test_a_page_that_was_left_open_loads_itself_again_when_the_server_has_changed_code(
    browser: Any, empty: Server
) -> None:
    make_project(empty.folder)
    window = Window(browser, empty, 1440, 900)
    window.open(PROJECT, "train")
    window.command("train", f"voxgraft train {PROJECT}")
    window.page.evaluate("window.isSamePage = true")
    stamp = f"{empty.address}voxgraft/stamp?tab=train&project={PROJECT}"
    layout = window.page.request.get(stamp).text().split()[0]
    empty.stop()
    empty.start()
    assert window.page.request.get(stamp).text().split()[0] == layout, "the same code, the same layout"
    empty.stop()
    empty.program = ("-c", CHANGED_CODE)
    window.page.wait_for_timeout(2000)
    window.console.clear()  # events that ran when the server went away
    empty.start()
    assert window.page.request.get(stamp).text().split()[0] != layout
    window.page.wait_for_function("!window.isSamePage")
    window.ready(PROJECT)
    assert not window.page.get_by_role("tab", name="Diagnose", exact=True).count(), "this is the page of the new server"
    window.page.wait_for_selector("[role=tab][aria-selected=true] >> text=Train")
    window.command("train", f"voxgraft train {PROJECT}")
    window.fill("train-train-steps", "7")
    window.command("train", "--train.steps 7")
    window.page.evaluate("window.isSamePage = true")
    for _ in range(3):
        with window.page.expect_response(lambda answer: "/voxgraft/stamp" in answer.url and answer.ok):
            pass
    assert window.page.evaluate("window.isSamePage"), "it loads itself again once"
    assert not [line for line in window.console if "net::ERR_" not in line]
    assert "Traceback" not in empty.log.read_text()


@pytest.mark.long
def test_nothing_of_another_state_is_shown_while_a_run_opens(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    for tab in ("train", "home"):
        window.page.goto(f"{server.address}?project={PROJECT}&tab={tab}", wait_until="commit")
        window.page.wait_for_selector(f"#voxgraft-first >> text=Opening {PROJECT}")
        window.page.wait_for_selector("#voxgraft-first", state="detached")
        selected = window.page.locator("[role=tab][aria-selected=true]")
        assert selected.inner_text() == TABS[tab][0]
        assert window.value("project-chooser") == PROJECT
    assert window.page.locator("#home-stages li").count() == 8
    window.page.goto(f"{server.address}?project=nowhere&tab=train")
    window.page.wait_for_selector("#voxgraft-first", state="detached")
    assert window.page.locator("#project-state .vg-bad").is_visible()


@pytest.mark.long
def test_back_leads_to_the_tab_and_to_the_run_before(browser: Any, empty: Server) -> None:
    for name in ("first", "second"):
        make_project(empty.folder, name)
    window = Window(browser, empty, 1440, 900)
    window.open("first")
    window.page.wait_for_selector("#voxgraft-first", state="detached")
    window.tab("Speak")
    window.tab("Train")
    window.page.wait_for_function("window.location.search.includes('tab=train')")
    window.page.go_back()
    window.page.wait_for_selector("[role=tab][aria-selected=true] >> text=Speak")
    window.page.go_back()
    window.page.wait_for_selector("[role=tab][aria-selected=true] >> text=Home")
    window.page.locator("#home-runs [data-project=second]").click()
    window.ready("second")
    window.page.go_back()
    window.ready("first")
    assert not window.console


def tab_to(window: Window, part: str, presses: int = 40) -> None:
    """Move the focus with the Tab key until it is in a part of the page."""
    for _ in range(presses):
        window.page.keyboard.press("Tab")
        if window.page.evaluate("part => Boolean(document.activeElement?.closest(part))", part):
            return
    raise AssertionError(f"{part} cannot be reached with {presses} presses of Tab")


@pytest.mark.long
def test_a_run_is_started_and_stopped_with_the_keyboard_alone(browser: Any, empty: Server) -> None:
    write_talks(empty.folder.parent / "talks", 4, 3)
    window = Window(browser, empty, 1440, 900)
    keyboard = window.page.keyboard
    window.page.goto(empty.address)
    window.page.wait_for_selector("#new-start")
    window.page.wait_for_timeout(3000)  # what the page fills in when it opens must not come between the keys
    choosers: list[Any] = []
    window.page.on("filechooser", lambda chooser: choosers.append(chooser))
    for _ in range(6):  # on a busy machine that may take longer, and take the focus away
        tab_to(window, "#new-upload")
        keyboard.press("Enter")
        window.page.wait_for_timeout(5000)
        if choosers:
            break
    choosers[0].set_files([str(path) for path in sorted((empty.folder.parent / "talks").iterdir())])
    uploaded(window, 8)
    window.page.wait_for_function("document.activeElement?.closest('#new-language') !== null")
    keyboard.type("Amharic")
    tab_to(window, "#new-start")
    keyboard.press("Enter")
    window.page.wait_for_selector("#jobs [data-act=stop]")
    tab_to(window, "#jobs [data-act=stop]")
    window.page.wait_for_selector("#jobs >> text=train:")  # the bar was replaced several times since
    assert window.page.evaluate("document.activeElement?.getAttribute('aria-label')") == "Stop amharic"
    keyboard.press("Enter")
    window.page.wait_for_selector("#jobs .vg-job", state="detached")
    tab_to(window, "#go-start")
    assert not window.console


@pytest.mark.long
def test_two_windows_on_one_run_show_the_same_and_three_jobs_have_a_line_each(browser: Any, empty: Server) -> None:
    write_talks(empty.folder / "talks", 2, 2)
    for name in ("first", "second", "third"):
        set_run_yaml_values(make_project(empty.folder, name), {"data.sources": '["../talks"]'})
    one = Window(browser, empty, 1440, 900)
    one.open("first")
    with contextlib.ExitStack() as running:
        for name in ("first", "second", "third"):
            project = empty.folder / name
            (project / "jobs").mkdir()
            made = ProjectJobs(project)._made("go", {"verb": "go", "argv": ["go", name], "started": time.time()})
            running.enter_context(made)
        wait = "document.querySelectorAll('#jobs .vg-job').length === 3"
        one.page.wait_for_function(wait)
        one.page.wait_for_selector("#go-start[disabled] >> text=running")
        other = Window(browser, empty, 1440, 900)
        other.open("first", "train")
        other.page.wait_for_function(wait)
        other.page.wait_for_selector("#train-start[disabled]")
        names = other.page.locator("#jobs .vg-job strong").all_inner_texts()
        assert sorted(names) == ["first", "second", "third"]
    for window in (one, other):
        window.page.bring_to_front()
        window.page.wait_for_selector("#jobs .vg-job", state="detached")
    other.page.wait_for_selector("#train-start:not([disabled])")
    one.page.bring_to_front()
    one.page.wait_for_selector("#go-start:not([disabled])")
    assert not one.console
    assert not other.console


@pytest.mark.long
def test_scores_of_an_earlier_step_are_marked_everywhere(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "evaluate")
    window.page.wait_for_selector("#evaluate-scores table")
    assert not window.page.locator("#evaluate-scores .vg-old").count()
    flags = ["--fresh", "--train.steps", "6", "--train.sample-texts", "am:ሰ", "--train.sample-every", STEPS]
    job = done(server.folder, "train", ["train", PROJECT, *flags])
    assert job.exit_code == 0, job.tail()
    window.page.wait_for_selector("#evaluate-scores .vg-old >> text=step 4")
    window.tab("Home")
    window.page.wait_for_selector("#home-stages .vg-stale >> text=evaluate")
    window.page.wait_for_selector("#home-runs >> text=out of date")
    window.tab("Evaluate")
    window.page.locator("#evaluate-scores [data-goto]").click()
    window.page.wait_for_function("document.activeElement?.id === 'evaluate-start'")


@pytest.mark.long
def test_an_error_leads_to_its_control_through_closed_folds(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "speak")
    window.command("speak", "still needed")
    window.page.locator("#speak-start").click()
    window.page.locator("#speak-state [data-goto=speak-text]").click()
    window.page.wait_for_function("document.activeElement?.closest('#speak-text') !== null")
    window.page.locator("#speak-state [data-goto=speak-file]").click()
    window.page.wait_for_function("document.activeElement?.closest('#speak-file') !== null")
    assert window.page.locator("#speak-file").is_visible()


def is_in_view(window: Window, part: str) -> bool:
    """Whether the beginning of a part can be seen without scrolling."""
    box = window.page.locator(part).first.bounding_box()
    return box is not None and box["y"] >= 0 and box["y"] + min(box["height"], 120) <= 900


@pytest.mark.long
def test_an_error_goes_once_it_is_solved_and_the_result_of_speak_is_in_view(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "speak")
    window.command("speak", "still needed")
    window.page.locator("#speak-start").click()
    window.page.wait_for_selector("#speak-state .vg-bad")
    window.page.wait_for_selector(
        "#speak-base-note >> text=To compare with the base alone, choose a language that it speaks: en, fr"
    )
    assert not window.page.locator("#speak-base-start").is_visible(), "it cannot work in this language"
    window.fill("speak-text", "ሰላም")
    window.page.wait_for_selector("#speak-state .vg-bad", state="detached")
    window.page.locator("#speak-start").click()
    window.page.wait_for_selector("#speak-heard audio", timeout=2 * WAIT_MS)
    until(lambda: is_in_view(window, "#speak-heard audio"))
    assert window.page.evaluate("window.scrollY") == 0
    window.page.locator("#speak-base-note [data-goto=speak-language]").click()
    window.page.wait_for_function("document.activeElement?.closest('#speak-language') !== null")
    window.fill("speak-language", "en")
    window.page.locator("#speak-base-start").wait_for(state="visible")
    window.fill("speak-text", "hello")
    window.page.locator("#speak-base-start").click()
    wait_for_players(window, "speak-heard", 2)
    assert not window.console


@pytest.mark.long
def test_the_scores_are_in_view_when_an_evaluation_ends(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "evaluate")
    window.page.wait_for_selector("#evaluate-scores table")
    before = window.text("evaluate-scores")
    window.fill("evaluate-max-sentences", "3")
    window.command("evaluate", "--max-sentences 3")
    window.page.locator("#evaluate-start").scroll_into_view_if_needed()
    window.page.locator("#evaluate-start").click()
    window.page.wait_for_selector("#evaluate-state .vg-busy")
    window.page.wait_for_selector("#evaluate-state .vg-good", timeout=2 * WAIT_MS)
    until(lambda: window.text("evaluate-scores") != before)
    until(lambda: is_in_view(window, "#evaluate-scores table"))


@pytest.mark.long
@pytest.mark.parametrize("is_result_first", [True, False])
def test_a_result_comes_into_view_though_the_end_of_its_job_changes_only_a_class(
    browser: Any, server: Server, is_result_first: bool
) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "evaluate")
    window.page.wait_for_selector("#evaluate-scores table")
    window.page.wait_for_selector("#evaluate-state .vg-good")
    window.page.locator("#evaluate-start").scroll_into_view_if_needed()
    window.page.evaluate("document.querySelector('#evaluate-state .vg-note').className = 'vg-note vg-busy'")
    window.page.wait_for_function("voxgraftBusy.has('evaluate-state')")
    assert not is_in_view(window, "#evaluate-scores table")
    changes = [  # as gradio makes them: in place, without a new element
        "document.querySelector('#evaluate-scores td').firstChild.data = 'xx'",
        "document.querySelector('#evaluate-state .vg-note').className = 'vg-note vg-good'",
    ]
    for change in changes if is_result_first else changes[::-1]:
        window.page.evaluate(change)
    until(lambda: is_in_view(window, "#evaluate-scores table"))


@pytest.mark.long
def test_a_failure_that_was_solved_is_no_longer_red(browser: Any, empty: Server) -> None:
    project = make_project(empty.folder)
    with contextlib.chdir(empty.folder):
        job = done(empty.folder, "go", ["go", PROJECT])
    assert job.exit_code == 2, job.tail()
    window = Window(browser, empty, 1440, 900)
    window.open(PROJECT)
    window.page.wait_for_selector("#go-state .vg-bad")
    write_talks(project / "uploads", 2, 2)
    set_run_yaml_values(project, {"data.sources": '["uploads"]', "texts": '["data/manifest.jsonl"]'})
    window.page.wait_for_selector("#go-state .vg-bad", state="hidden")
    window.page.wait_for_selector("#home-stages .vg-note:not(.vg-bad) >> text=/Next: import.*Press Continue/")


@pytest.mark.long
def test_only_voices_that_the_base_has_are_offered_and_each_can_be_heard(browser: Any, server: Server) -> None:
    window = Window(browser, server, 1440, 900)
    window.open(PROJECT, "speak")
    window.command("speak", "still needed")
    window.page.locator("#speak-voice input").click()
    offered = window.page.get_by_role("option").all_inner_texts()
    assert len(offered) > 2
    assert all("automatic" in words or "voice of the base" in words for words in offered)
    window.page.get_by_role("option").nth(2).click()
    window.page.locator("#speak-voice-start").click()
    window.page.wait_for_selector("#speak-voice-player audio")
    assert loudness(window, "#speak-voice-player audio")[1] > 0.0005
    assert not window.page.locator("#speak-voice-own").is_visible(), "a base with fixed voices imitates nobody"


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core; a loud skip where npm cannot give it."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NOT TESTED: npm is absent")
    done = subprocess.run([npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, timeout=120, check=False)
    packed = next(folder.glob("*.tgz"), None)
    if done.returncode or packed is None:
        pytest.skip("NOT TESTED: npm has not given axe-core")
    shutil.unpack_archive(packed, folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation_on_any_tab(browser: Any, server: Server, axe: str, scheme: str) -> None:
    window = Window(browser, server, 1440, 900)
    window.page.emulate_media(color_scheme=scheme)
    found = []
    for tab in TABS:
        window.open(PROJECT, tab)
        window.page.wait_for_selector(f"#tab-{tab} .block")
        window.page.wait_for_timeout(1500)
        window.page.evaluate(axe)
        result = window.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            (tab, one["id"], [node["html"][:120] for node in one["nodes"][:3]])
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert found == []


@pytest.mark.long
def test_in_a_narrow_window_all_tabs_can_be_reached_with_the_keyboard(browser: Any, server: Server) -> None:
    window = Window(browser, server, 390, 844)
    window.open(PROJECT)
    for title, _ in TABS.values():
        tab = window.page.get_by_role("tab", name=title, exact=True)
        assert tab.is_visible(), title
        tab.focus()
        window.page.keyboard.press("Enter")
        window.page.wait_for_selector(f"[role=tab][aria-selected=true] >> text={title}")
        assert window.page.evaluate("document.documentElement.scrollWidth") <= 390, title


@pytest.mark.long
def test_home_with_fifty_runs_is_there_at_once_and_asks_for_no_frame_when_idle(browser: Any, empty: Server) -> None:
    made = make_project(empty.folder, "run0")
    for at in range(1, 50):
        shutil.copytree(made, empty.folder / f"run{at}")
    frames = """window.frames_asked = 0;
      const request = window.requestAnimationFrame.bind(window);
      window.requestAnimationFrame = call => { window.frames_asked += 1; return request(call); };"""
    window = Window(browser, empty, 1440, 900)
    window.page.add_init_script(frames)
    # In the page itself, before any script. The list of folders is at most a second old.
    until(lambda: window.page.request.get(empty.address).text().count("<article") == 50)
    window.page.goto(empty.address, wait_until="commit")
    window.page.wait_for_selector("#home-runs article >> nth=49")
    window.page.wait_for_selector("#voxgraft-first", state="detached")
    window.page.wait_for_timeout(5000)
    window.page.evaluate("window.frames_asked = 0")
    window.page.wait_for_timeout(3000)
    assert window.page.evaluate("window.frames_asked") < 10
    assert not window.console


@pytest.mark.long
def test_an_old_run_is_updated_with_its_button(browser: Any, empty: Server) -> None:
    project = make_project(empty.folder)
    settings = (project / "run.yaml").read_text()
    (project / "run.yaml").write_text(settings.replace("\n  full_backbone:", "\n  full_body:", 1))
    window = Window(browser, empty, 1440, 900)
    window.open(PROJECT)
    window.page.locator("#home-update").click()
    window.page.wait_for_selector("#home-update", state="detached")
    window.page.wait_for_selector("#home-stages >> text=no data.sources")
    assert "full_backbone:" in (project / "run.yaml").read_text()


def test_a_card_opens_its_run_and_markup_in_a_name_is_text(browser: Any, empty: Server) -> None:
    make_project(empty.folder, "first")
    make_project(empty.folder, "<b>second")
    window = Window(browser, empty, 1440, 900)
    window.page.goto(empty.address)
    window.page.locator("#home-runs [data-project='<b>second']").click()
    window.ready("<b>second")
    window.page.wait_for_selector("#home-stages >> text=no data.sources")
    assert window.page.locator("#home-stages .vg-blocked, #home-stages .vg-next").count()
