"""The web UI's page and single tabs without a browser, and a project that was trained and evaluated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.run_folders import WholeRun, make_run
from voxgraft.cli.app import run_cli as run_line
from voxgraft.config.commands import NewSettings
from voxgraft.config.run import set_run_yaml_values
from voxgraft.core.files import write_json
from voxgraft.pipeline.command import create_run
from voxgraft.ui.files import Roots
from voxgraft.ui.jobs import ProjectJobs, UiJob

if TYPE_CHECKING:
    from tests.support.fixtures import Fixtures


PROJECT = "am"


@contextlib.contextmanager
def page_of(folder: Path) -> Iterator[Any]:
    """The context of a page that is built for a folder, as the server would build it."""
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from voxgraft.ui.app import build_page
    from voxgraft.ui.page import PageContext

    built: list[PageContext] = []
    with contextlib.chdir(folder):
        build_page(Roots.of((folder,)), "/pages/secret", built.append)
        yield built[0]


def make_project(folder: Path, name: str = PROJECT) -> Path:
    """A project on the built-in base."""
    with contextlib.chdir(folder):
        return create_run(NewSettings(run=folder / name, base=Path("tiny"), language="am")).run


SMALL = {
    "train.batch_tokens": "400",
    "train.warmup_steps": "1",
    "train.log_every": "1",
    "train.rank": "4",
    "train.tensorboard": "false",
    "data.min_prompt_seconds": "0.1",
}
"""What makes a step short; in run.yaml, so that the page trains so too."""


def make_home(folder: Path) -> None:
    """A folder with a base and a project on it: four steps, with samples that can be heard, and an evaluation."""
    made = make_run("tiny", folder / "made")
    made.path.rename(folder / PROJECT)
    set_run_yaml_values(folder / PROJECT, SMALL)
    run = WholeRun(made.family_name, folder / PROJECT, made.base)
    run.train(train_sample_every=2, train_sample_texts=None)
    with contextlib.chdir(folder):
        job = done(
            folder, "evaluate", ["evaluate", PROJECT, "--max-sentences", "2", "--players", "2", "--languages", "en"]
        )
        assert job.exit_code == 0, job.tail()


def home_of(fixtures: Fixtures) -> Path:
    """The folder above, made once. Nobody writes to it."""
    return fixtures.folder("ui-home", make_home)


@contextlib.contextmanager
def tab_of(home: Path, name: str) -> Iterator[Any]:
    """The context of a page with one tab, as the server would build it in that folder."""
    gradio = pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from voxgraft.ui.app import TABS
    from voxgraft.ui.page import PageContext

    with contextlib.chdir(home), gradio.Blocks():
        context = PageContext(Roots.of((home,)), gradio.Textbox(), "/pages/secret")
        TABS[name][1](context)
        yield context


def form_of(context: Any, verb: str) -> Any:
    """The form of a command."""
    return next(form for form in context.forms if form.name == verb)


def words_of(context: Any, verb: str, **typed: Any) -> list[str]:
    """The command of a form as the project opens it, with some controls changed; `__` stands for the dot in a key."""
    form = form_of(context, verb)
    keys = [control.leaf.key for control in form.controls]
    values = form.initial_values(PROJECT)
    for name, value in typed.items():
        values[keys.index(name.replace("__", "."))] = value
    return [str(word) for word in form.words(PROJECT, values)]


def done(home: Path, verb: str, words: Sequence[str]) -> UiJob:
    """A job of the project that has run to its end, in this process; the server would start one of its own."""
    jobs = ProjectJobs(home / PROJECT)
    jobs.folder.mkdir(exist_ok=True)
    with (
        jobs._made(verb, {"verb": verb, "argv": list(words), "started": time.time()}) as (job, _),
        contextlib.chdir(home),
        (job.folder / "out.txt").open("w", encoding="utf-8") as out,
        (job.folder / "log.txt").open("w", encoding="utf-8") as log,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(log),
    ):
        code = run_line(list(words))
    write_json(job.folder / "exit.json", {"exit_code": code, "ended": time.time()})
    return job
