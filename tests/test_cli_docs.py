"""The generated pages of the manual say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from voxgraft.cli import COMMANDS, CliCommand
from voxgraft.core.errors import CATALOGUE

ROOT = Path(__file__).parent.parent


def test_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_every_verb_is_in_the_manual(verb: CliCommand) -> None:
    assert f"## voxgraft {verb.name}\n" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_code_says_what_it_means_and_how_to_cure_it() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for code, entry in CATALOGUE.items():
        assert f"### `{code}`\n" in page
        assert entry.why.endswith((".", "?"))
        assert entry.cure.endswith((".", "?"))
