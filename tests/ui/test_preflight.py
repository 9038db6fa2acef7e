"""The tab Preflight says in few lines what was looked at, and keeps the job of a cure in view until the next check."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, tab_of, words_of

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
from voxgraft.ui.tabs import inspect


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "preflight") as found:
        yield found


def test_what_needs_files_of_other_trainers_is_one_line_that_says_so(context: Any, home: Path) -> None:
    job = done(home, "check", words_of(context, "check"))
    result = job.read("out.txt")
    shown = inspect._coverage_html(context, PROJECT)
    assert f"{len(result['checked'])} checks were made" in shown
    lines = re.findall(r"<summary>([^<]+)</summary>", shown)
    assert len(lines) == 2
    assert f"{len(result['not_checked'])} checks of files of other trainers" in lines[1]
    for name in (*result["checked"], *result["not_checked"]):
        assert name in shown


def test_a_finding_that_one_command_cures_has_one_button_for_it(context: Any, home: Path) -> None:
    for name in ("train", "valid"):
        shutil.rmtree(home / PROJECT / "data" / name)
    done(home, "check", words_of(context, "check"))
    shown = inspect._check_verdict(context, PROJECT)[1]
    assert shown.count('data-act="cure" data-verb="prepare"') == 1
    assert 'id="cure-set-missing"' in shown


def test_the_job_of_a_cure_is_in_view_until_the_next_check(context: Any, home: Path) -> None:
    (view,) = [view for view in context.views if view.verb == "data split"]
    before = done(home, "data split", ["data", "split", "nowhere"])
    assert view.html(before) == ""
    done(home, "check", words_of(context, "check"))
    assert view.html(before) == "", "it is older than what was found"
    cure = done(home, "data split", ["data", "split", "nowhere"])
    assert "failed" in view.html(cure)
    done(home, "check", words_of(context, "check"))
    assert view.html(cure) == ""
    assert view.html(None) == ""
