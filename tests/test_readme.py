"""The commands that the README shows are run here, in its order, on random bases in the published formats."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.made_once import MadeOnce
from tests.whole_runs import WholeRun

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"^    \.venv/bin/voxgraft ((?:.*\\\n)*.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """All but those of a section that has a test of its own, tests/test_prepare_from_recordings.py."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^### From your recordings$.*?(?=^#)", "", text, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(match.replace("\\\n", " "), comments=True) for match in COMMAND.findall(text)]


def test_every_command_of_the_readme_runs_as_shown(
    commands: list[list[str]], made_once: MadeOnce, tmp_path: Path
) -> None:
    assert len(commands) >= 6
    for name in ("chatterbox", "indextts2"):
        shutil.copytree(made_once.base(name).folder, tmp_path / "models" / name)
    sentences = resources.files("voxgraft").joinpath("data/demo/am.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "amharic.txt").write_text("\n".join(sentences[:200]) + "\n", encoding="utf-8")
    shutil.copy(made_once.base("indextts2").tokenizer, tmp_path / "their_bpe.model")
    for words in commands:
        more: list[str] = []
        if words[0] == "train":  # the sets are there by then, and a few steps will do
            run = WholeRun("chatterbox", tmp_path / "runs/amharic", tmp_path / "models/chatterbox")
            run.write_sets()
            more = run.words()[2:]
        elif words[0] == "evaluate":
            more = ["--most", "2"]
        command = [sys.executable, "-m", "voxgraft", *words, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        # Their tokenizer is the base's own here: it moves nothing, and knows no Amharic letter.
        expected = 1 if words[:2] == ["tokenizer", "prove"] else 0
        assert done.returncode == expected, f"voxgraft {shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/amharic/graft/rows.safetensors").is_file()
    assert (tmp_path / "t3_amharic.safetensors").is_file()
    assert (tmp_path / "runs/amharic/curves.png").is_file()


def test_the_readme_shows_the_two_commands_that_do_the_set_up() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in text
        assert re.search(rf"^{command}:", targets, re.MULTILINE)


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
