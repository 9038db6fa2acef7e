"""What brings voxgraft to a machine: the Dockerfile names only what is there, the notebook is whole, make refuses kindly."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

from voxgraft.cli.app import CommandLine, parse_command_line
from voxgraft.cli.commands import COMMANDS
from voxgraft.config.commands import UiSettings

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOTEBOOK = json.loads((ROOT / "notebooks" / "demo.ipynb").read_text(encoding="utf-8"))
PYTHONS = ("3.11", "3.12", "3.13")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's lines: instruction and what follows."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8")).replace("\\\n", " ")
    return [
        (word, rest.strip()) for line in text.splitlines() if line.strip() for word, _, rest in [line.partition(" ")]
    ]


def of(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_the_image_is_made_of_a_python_that_is_tested() -> None:
    (image,) = of("FROM")
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", image)
    assert version is not None
    assert version[1] in PYTHONS


def test_every_file_that_is_copied_is_there_and_not_kept_from_the_builder() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = {word.removeprefix("./") for rest in of("COPY") for word in rest.split()[:-1]}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    assert not any(fnmatch.fnmatch(name, line) for name in copied for line in ignored[1:] if not line.startswith("!"))


def test_everything_that_the_build_needs_is_copied() -> None:
    copied = {word for rest in of("COPY") for word in rest.split()[:-1]}
    needed = {PROJECT["readme"], *(name.split("/")[0] for name in PROJECT["license-files"]), "pyproject.toml"}
    assert needed <= copied


def test_extras_and_versions_that_it_installs_are_those_of_the_project() -> None:
    (command,) = of("RUN")
    words = shlex.split(command)
    install = words[: words.index("&&")]
    assert install[:2] == ["pip", "install"]
    (target,) = [word for word in install if word.startswith(".")]
    extras = re.fullmatch(r"\.\[([a-z,]+)\]", target)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert install[install.index("-c") + 1] == "constraints.txt"
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    arguments = {rest.partition("=")[0] for rest in of("ARG")}
    assert set(re.findall(r"\$\{(\w+)\}", command)) == arguments == {"PIP_FLAGS", "USER_ID"}


def test_the_container_starts_our_program_as_nobody_special() -> None:
    assert json.loads(of("ENTRYPOINT")[0])[0] in PROJECT["scripts"]
    assert of("USER") == ["voxgraft"]
    assert of("WORKDIR")[-1] == "/work"
    assert of("EXPOSE") == [str(UiSettings().port)]


def test_the_docker_commands_of_the_page_fit_the_dockerfile() -> None:
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^docker .+$", page, re.MULTILINE)]
    arguments = {rest.partition("=")[0] for rest in of("ARG")}
    built = {words[words.index("-t") + 1] for words in lines if words[1] == "build"}
    for words in lines:
        named = [word.partition("=")[0] for before, word in pairwise(words) if before == "--build-arg"]
        assert set(named) <= arguments
        if words[1] == "run":
            (at,) = [place for place, word in enumerate(words) if word in built]
            assert isinstance(parse_command_line(words[at + 1 :], COMMANDS), CommandLine)
            assert words[words.index("-v") + 1].endswith(":/work")


def test_the_notebook_is_one_that_every_program_opens() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert NOTEBOOK["metadata"]["kernelspec"]["name"] == "python3"
    keys = {"markdown": {"cell_type", "id", "metadata", "source"}}
    keys["code"] = keys["markdown"] | {"execution_count", "outputs"}
    assert all(set(cell) == keys[cell["cell_type"]] for cell in NOTEBOOK["cells"])
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert all(cell["outputs"] == [] for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")


def test_make_refuses_a_python_that_is_not_tested_and_says_which_are(tmp_path: Path) -> None:
    strange = tmp_path / "python3.99"
    strange.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.99.0\nexit 1\n')
    strange.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    command = ["make", "-f", str(ROOT / "Makefile"), "test", f"PYTHON={strange}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Python 3.11, 3.12 and 3.13" in done.stdout
    assert "3.99.0" in done.stdout
    assert "make PYTHON=python3.12" in done.stdout
    assert not (tmp_path / ".venv").exists()
