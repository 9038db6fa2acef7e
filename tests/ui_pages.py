"""The web interface's page and a project for tests, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest

from voxgraft.config.commands import NewSettings
from voxgraft.pipeline.command import create_run
from voxgraft.ui.files import Roots

PROJECT = "am"


@contextmanager
def page_of(folder: Path) -> Iterator[Any]:
    """The context of a page that is built for a folder, as the server would build it."""
    pytest.importorskip("gradio", reason="NOT TESTED: gradio is absent (pip install 'voxgraft[ui]')")
    from voxgraft.ui.app import build_page
    from voxgraft.ui.forms import PageContext

    built: list[PageContext] = []
    with chdir(folder):
        build_page(Roots.of((folder,)), "/pages/secret", built.append)
        yield built[0]


def make_project(folder: Path, name: str = PROJECT) -> Path:
    """A project on the built-in base."""
    with chdir(folder):
        return create_run(NewSettings(run=folder / name, base=Path("tiny"), language="am")).run
