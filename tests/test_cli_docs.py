"""The generated pages of the manual say what the code says."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from voxgraft.cli import COMMANDS, CliCommand, run_cli
from voxgraft.cli.app import CommandLine, parse_command_line
from voxgraft.cli.commands import HELP_PANELS, RARE_SETTINGS
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


def test_every_command_is_in_one_panel_of_the_help_and_has_an_example_that_parses() -> None:
    shown = [name for names in HELP_PANELS.values() for name in names]
    assert sorted(shown) == sorted({verb.name.split()[0] for verb in COMMANDS})
    for verb in COMMANDS:
        words = shlex.split(verb.example)
        assert words[0] == "voxgraft"
        line = parse_command_line(words[1:], COMMANDS)
        assert isinstance(line, CommandLine)
        assert line.verb is verb


def test_help_leaves_rare_settings_out_and_all_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert run_cli(["train", "--help", "--all"]) == 0
    everything = capsys.readouterr().out
    assert "--train.min-delta" not in short
    assert "--train.min-delta" in everything
    assert "voxgraft train --help --all" in short
    known = {leaf.key for verb in COMMANDS for leaf in verb.leaves()}
    assert known >= RARE_SETTINGS
