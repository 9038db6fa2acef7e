"""The tab Diagnose shows the verdict of a real diagnosis, repairs what it looked at, and gives a bundle to save."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ui import PROJECT, done, form_of, tab_of, words_of
from voxgraft.models import get_family
from voxgraft.ui import commands

pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")


@pytest.fixture
def context(home: Path) -> Iterator[Any]:
    with tab_of(home, "diagnose") as found:
        yield found


def checkpoint_of(home: Path) -> Path:
    """A copy of the base's own checkpoint, inside the roots."""
    base = commands.run_base_folder(home / PROJECT)
    assert base is not None
    return Path(shutil.copy(get_family("tiny").files(base).checkpoint, home / "theirs.safetensors"))


@pytest.mark.long
def test_a_diagnosis_begins_with_the_project_and_what_it_knows(context: Any) -> None:
    words = words_of(context, "diagnose")
    assert words[:2] == ["diagnose", PROJECT]
    assert words[words.index("--tokenizer") + 1] == f"{PROJECT}/graft/tokenizer.json"
    assert words[words.index("--output") + 1] == f"{PROJECT}/diagnosis"


def test_a_run_of_ours_gets_its_word_its_reason_and_a_link_to_the_report(context: Any, home: Path) -> None:
    assert form_of(context, "diagnose").result_html(PROJECT) == ""
    done(home, "diagnose", words_of(context, "diagnose"))
    shown = form_of(context, "diagnose").result_html(PROJECT)
    assert 'vg-good"><span class="vg-word">RESUME</span>' in shown
    assert f'href="/pages/secret/{PROJECT}/diagnosis/report.html"' in shown
    assert (home / PROJECT / "diagnosis" / "report.html").is_file()


def test_a_file_that_is_cut_off_is_diagnosed_with_picture_and_findings(context: Any, home: Path) -> None:
    path = checkpoint_of(home)
    sound = words_of(context, "diagnose", checkpoint=path.name, tokenizer=None, language="")
    done(home, "diagnose", sound)
    assert f'src="/pages/secret/{PROJECT}/diagnosis/diagnosis.png' in form_of(context, "diagnose").result_html(PROJECT)
    path.write_bytes(path.read_bytes()[:4000])
    words = words_of(context, "diagnose", checkpoint=path.name, tokenizer=None, language="")
    assert words[words.index("--output") + 1] == f"{PROJECT}/diagnosis-2", "nothing is written over"
    done(home, "diagnose", words)
    shown = form_of(context, "diagnose").result_html(PROJECT)
    assert 'vg-bad"><span class="vg-word">START FRESH</span>' in shown
    assert "checkpoint-truncated" in shown


def test_a_repair_takes_the_checkpoint_and_the_base_from_above_and_writes_a_new_file(context: Any, home: Path) -> None:
    path = checkpoint_of(home)
    words = words_of(context, "repair", checkpoint=path.name, only=["rows"], tokenizer=None, language="")
    assert words[:2] == ["repair", path.name]
    assert words[words.index("--only") + 1] == "rows"
    assert words[words.index("--output") + 1] == f"{PROJECT}/repaired.safetensors"
    before = path.read_bytes()
    job = done(home, "repair", words)
    assert job.exit_code == 0, job.tail()
    assert "written to" in job.tail("out.txt")
    assert path.read_bytes() == before


def test_an_error_of_the_verb_is_shown_with_its_cure(context: Any, home: Path) -> None:
    done(home, "diagnose", words_of(context, "diagnose", checkpoint="nowhere.pth"))
    shown = form_of(context, "diagnose").result_html(PROJECT)
    assert "file-missing" in shown
    assert "fix:" in shown
