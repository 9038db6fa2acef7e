"""Every command and code block of README and docs/ is run, or checked as far as it can be; every link leads somewhere.

Shell blocks are run in the order of their page, in a folder that holds what the page names, small (docs_scenes.py). What
cannot be run is in a table below with its reason, and its command line is still read by the program's own parser.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import yaml

from tests.support.docs import (
    GENERATED,
    HOOKS,
    PAGES,
    ROOT,
    SHORT,
    Block,
    Scene,
    anchors,
    blocks,
    commands,
    inline_commands,
    links,
    scene_of,
)
from tests.support.fixtures import Fixtures
from voxgraft.cli import run_cli
from voxgraft.cli.app import CommandLine, nest_dotted_keys, parse_command_line
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.base import parse_settings
from voxgraft.config.run import RunSettings, rewrite_run_yaml

LANGUAGES = ("sh", "console", "yaml", "python", "json", "text", "dockerfile")
WHISPER = "needs a model of Whisper; tests/test_asr.py has a stand-in"
NETWORK, FOREVER, ELSEWHERE = "needs a network", "runs until it is stopped", "is run by a test of its own"
NOT_RUN = {
    "voxgraft companion chatterbox": NETWORK,
    "voxgraft companion chatterbox --pip-flags=--find-links=/wheels": NETWORK,
    "voxgraft companion chatterbox --environment VENV": "needs the original program",
    "voxgraft companion xtts": NETWORK,
    "voxgraft companion indextts2 --checkout '~/index-tts'": "needs the original program's source",
    "voxgraft download chatterbox-multilingual": NETWORK,
    "voxgraft download chatterbox-multilingual models/chatterbox": NETWORK,
    "voxgraft download chatterbox-english '~/models/english'": NETWORK,
    "voxgraft download indextts2 --optional": NETWORK,
    "voxgraft download xtts": NETWORK,
    "voxgraft push RUN/export/graft OWNER/NAME": NETWORK,
    "voxgraft pull OWNER/NAME": NETWORK,
    "voxgraft go runs/amharic-real --to chatterbox": "needs the published front end of Chatterbox",
    "voxgraft speak hello --base BASE --language en --voice me.wav --codes hello.json": "needs a base that clones voices",
    "voxgraft speak 'ሰላም' --graft amharic --base BASE": "needs the weights of a real base",
    "voxgraft check models/chatterbox --speak --voice me.wav": ELSEWHERE,
    "voxgraft evaluate RUN --listening-test --listening-against RUN2/merged --name models": "needs a merged run; test_listening",
    "voxgraft data transcribe sets/talks talk1.mp3 talk2.mp3 --language fr --recognizer whisper:small": WHISPER,
    "voxgraft data verify sets/films --recognizer whisper:small": WHISPER,
    "voxgraft data verify sets/films --recognizer 'command:my-asr --language {language} {wav}'": "needs that program",
    "voxgraft serve RUN --language en": FOREVER,
    "voxgraft serve am/graft ti/graft --host 0.0.0.0 --key-file key.txt --voices recordings": FOREVER,
    "voxgraft ui": FOREVER,
    "voxgraft ui --host 0.0.0.0 --port 7860": FOREVER,
}
"""Commands of ours that are only read by the parser, flags and values and all, and why."""
FOREIGN = {
    "make": "whose targets are looked up in the Makefile",
    "torchrun": "whose command of ours is read by the parser; tests/test_training_processes.py trains so",
    "curl": "whose server tests/test_serve.py starts",
    "pip": "whose extra is looked up in pyproject.toml",
    "pytest": "whose files are looked up",
    "tensorboard": "reads what tests/test_tensorboard.py reads",
    "docker": "cannot be run where the tests run; tests/test_packaging.py reads the Dockerfile",
    "ssh": "needs another machine",
    "python -m voxgraft.demo.data talks": "writes more talks by what has made those of the test",
    "tmux": "holds a terminal open",
    "git": NETWORK,
    "source": "is for the terminal of a person",
    "cd": "is followed by what needs it",
    "sudo": "changes the machine",
}
"""Programs of others that are not started, and what is done instead."""
SHORTER = {
    "--train.steps": "2",
    "--train.batch-tokens": "256",
    "--train.warmup-steps": "1",
    "--step": "4",
}
"""Values that are others when the test runs a command. What the page says is read by the parser before."""
MORE = {
    "evaluate": ["--max-sentences", "2"],
    "go": ["--max-sentences", "2"],
    "data remove": ["--yes"],
}
"""What the test adds to a command that would take minutes, or ask."""
EXITS = {
    "voxgraft diagnose model_step38000.pth --base checkpoints --tokenizer amharic.model --language am": 1,
    "voxgraft export RUN --to chatterbox --drop-in": 2,
    "voxgraft check --base models/chatterbox --training-config config/training_config.yaml --tokenizer Am_tokenizer_merged.json --checkpoint chatterbox_extended.pt": 1,
}
"""Commands whose verdict on the stand-ins is no: letters without a piece, too few ids for a drop-in, old sizes."""
WALKED = {
    "hardware.md": "what it runs is what the tutorial runs, on other machines",
    "CONTRIBUTING.md": "runs the tests themselves",
}
"""Pages whose commands are only read by the parser here, and why."""
WRITTEN = [name for name in PAGES if name not in GENERATED]


def parsed(words: list[str]) -> CommandLine:
    """A command line of ours as the program reads it, every value judged; the run itself need not be there."""
    line = cast(CommandLine, parse_command_line(words, COMMANDS))
    assert isinstance(line, CommandLine)
    parse_settings(line.verb.settings, nest_dotted_keys(line.values), "command line")
    return line


def ours(command: str) -> list[str] | None:
    """The words after our program's name, where the command is one of ours."""
    words = shlex.split(command)
    return words[1:] if words[0] in ("voxgraft", ".venv/bin/voxgraft") else None


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    unknown = [str(block) for block in blocks(page) if block.language not in LANGUAGES]
    assert unknown == [], f"blocks are fenced, with one of {', '.join(LANGUAGES)}"


@pytest.mark.long(
    fast=("text.md", "hardware.md", "ui.md", "training.md", "families.md", "faq.md", "glossary.md", "design.md")
)
@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if any(b.language in ("sh", "console") for b in blocks(page))]
)
def test_the_commands_of_a_page_run_in_its_order(
    page: str,
    fixtures: Fixtures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = scene_of(page, tmp_path, fixtures)
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        for command in commands(block) if block.language in ("sh", "console") else ():
            said = walked(command, scene, capsys)
            if block.language == "console":
                shown = [line.strip() for line in block.text.splitlines() if not line.startswith("$ ")]
                assert [line for line in shown if line not in said] == [], f"{block}: {said}"


def walked(command: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command, or look at it as far as it can be; what it said."""
    words = None if re.search(r"[|>]", command) else ours(command)
    if words is None:
        return foreign(command)
    line = parsed(words)
    if command in NOT_RUN or scene.page in WALKED:
        return ""
    if command in HOOKS:
        HOOKS[command](scene)
    code = run_cli([*shortened(words), *MORE.get(line.verb.name, [])])
    said = capsys.readouterr()
    assert code == EXITS.get(command, 0), f"{command}\n{said.out}\n{said.err}"
    if line.verb.name == "new":
        rewrite_run_yaml(scene.folder / words[1] / "run.yaml", SHORT)
    return said.out


def shortened(words: list[str]) -> list[str]:
    return [SHORTER.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def foreign(command: str) -> str:
    """A program that is not ours."""
    words = shlex.split(command, comments=True)
    name = words[0]
    if command in FOREIGN:
        return ""
    if name not in FOREIGN:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", command], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout
    looked_at: dict[str, Callable[[list[str]], None]] = {"make": look_at_make, "torchrun": look_at_torchrun}
    looked_at |= {"pip": look_at_pip, "pytest": look_at_pytest}
    if name in looked_at:
        looked_at[name](words)
    return ""


def look_at_make(words: list[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        name, equals, _ = word.partition("=")
        assert re.search(rf"^{name} \?=" if equals else rf"^{name}:", text, re.MULTILINE), word


def look_at_torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args(words[1:])
    assert (options.module, options.training_script) == (True, "voxgraft")
    parsed(options.training_script_args)


def look_at_pytest(words: list[str]) -> None:
    assert (ROOT / words[1]).exists(), words


def look_at_pip(words: list[str]) -> None:
    for extra in re.findall(r"voxgraft\[([a-z0-9,]+)\]", " ".join(words)):
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(extra.split(",")) <= known.keys()


def blocks_of(*languages: str) -> list[Block]:
    return [block for page in WRITTEN for block in blocks(page) if block.language in languages]


@pytest.mark.parametrize("block", blocks_of("yaml"), ids=str)
def test_every_yaml_block_is_a_run_yaml_that_is_accepted(block: Block) -> None:
    parse_settings(RunSettings, yaml.safe_load(block.text), str(block))


@pytest.mark.parametrize("block", blocks_of("json"), ids=str)
def test_every_json_block_is_json(block: Block) -> None:
    for line in block.text.splitlines() if block.text.startswith('{"') else [block.text]:
        json.loads(line)


@pytest.mark.parametrize("block", blocks_of("python"), ids=str)
def test_every_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(block.text)
    if "ChatterboxMultilingualTTS" in block.text:  # the stock package; tests/interop runs it
        return
    if block.page == "synthesis.md":  # runs and a server: tests/test_api.py and tests/test_serve.py run these
        return
    monkeypatch.chdir(tmp_path)
    exec(compile(tree, str(block), "exec"), {})


@pytest.mark.parametrize("page", WRITTEN)
def test_commands_in_the_text_are_commands_that_there_are(page: str) -> None:
    for command in inline_commands(page):
        words = shlex.split(command.replace("...", ""))
        if words[0] == "make":
            look_at_make(words)
        elif words[0] == "python":
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), command
        else:
            known_command(words[1:], f"{page}: {command}")


def known_command(words: list[str], where: str) -> None:
    """Command and flags are there; in the text values may be left out."""
    if words[0] in ("--help", "--version", "VERB"):
        return
    verbs = [verb for verb in COMMANDS if words[: len(verb.name.split())] == verb.name.split()]
    groups = {verb.name.split()[0] for verb in COMMANDS if " " in verb.name}
    assert verbs or words in ([name] for name in groups), where
    if verbs:
        flags = {name for leaf in verbs[0].leaves() for name in verbs[0].flag_names(leaf)}
        flags |= {"--json", "--dry-run", "--quiet", "--config", "--help"}
        flags |= {flag.replace("--", "--no-", 1) for flag in flags}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= flags, where


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    path = PAGES[page]
    for target, anchor in links(path):
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), f"{page}: {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{page}: {target}#{anchor}"


def test_the_tables_of_what_is_not_run_name_only_what_the_pages_show() -> None:
    shown = {command for block in blocks_of("sh", "console") for command in commands(block)}
    assert sorted(set(NOT_RUN) - shown) == []
    assert sorted(set(EXITS) - shown) == []
    assert sorted(set(HOOKS) - shown) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [PAGES["README.md"]]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        near = ((page.parent / target).resolve() for target, _ in links(page) if target.endswith(".md"))
        waiting += [place for place in near if place not in reached]
    assert sorted(name for name, path in PAGES.items() if path.resolve() not in {p.resolve() for p in reached}) == []
