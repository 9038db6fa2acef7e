"""The command `new`: the run folder that it makes, what it refuses, and that nothing is left behind when it does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.fixtures import Fixtures
from voxgraft.cli import run_cli as run_line
from voxgraft.config.base import iter_setting_fields, parse_settings, read_settings_values
from voxgraft.config.run import RunSettings
from voxgraft.core.languages import language_findings
from voxgraft.models import family_names, get_family

ODD_NAMES = [
    "with space",
    'it\'s "quoted"',
    "ሰላም ለዓለም",
    "key: value",
    "a #hash",
    "~",
    "{curly} [square], %percent & *star !bang | > @at `tick`",
    "back\\slash",
    "null",
    "1e-5",
    "zero\u200bwidth",
]


@pytest.fixture(scope="session")
def bases(fixtures: Fixtures) -> Path:
    """A folder with a tiny base of each family."""
    folders = [fixtures.base(name).folder for name in family_names()]
    return folders[0].parent


@pytest.fixture
def project(tmp_path: Path, bases: Path) -> Path:
    """A project folder with a base and a text, as a user has it."""
    shutil.copytree(bases / "chatterbox", tmp_path / "base")
    (tmp_path / "am.txt").write_text("ሰላም ለዓለም።\n", encoding="utf-8")
    return tmp_path


def program(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own."""
    command = [sys.executable, "-m", "voxgraft", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, encoding="utf-8")


def voxgraft(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The same command line without a new process, which would cost more than all the rest."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = run_line(list(map(str, words)))
    return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())


def settings_of(run: Path) -> RunSettings:
    path = run / "run.yaml"
    return parse_settings(RunSettings, read_settings_values(RunSettings, path), path)


def error_code(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    code = json.loads(done.stdout)["error"]["code"]
    assert isinstance(code, str)
    return code


def test_a_new_run_says_what_was_given_and_nothing_else(project: Path) -> None:
    done = program(project, "new", "runs/am", "--base", "base", "--language", "am", "--texts", "am.txt")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (project / "runs" / "am").iterdir()] == ["run.yaml"]
    made = settings_of(project / "runs" / "am")
    assert made.base is not None
    assert made.base.samefile(project / "base")
    assert [text.samefile(project / "am.txt") for text in made.texts] == [True]
    given = {"base": made.base, "language": "am", "texts": made.texts}
    assert made == RunSettings.model_validate(given)


def test_recordings_are_the_sources_of_the_run_and_have_its_texts(project: Path) -> None:
    (project / "talks").mkdir()
    done = voxgraft(project, "new", "runs/am", "--base", "base", "--language", "am", "--sources", "talks", "--json")
    assert json.loads(done.stdout)["next"] == "voxgraft go runs/am"
    values = yaml.safe_load((project / "runs/am/run.yaml").read_text(encoding="utf-8"))
    assert (values["data"]["sources"], values["texts"]) == (["../../talks"], ["data/manifest.jsonl"])
    done = voxgraft(project, "new", "two", "--sources", "talks", "--texts", "am.txt")
    assert yaml.safe_load((project / "two/run.yaml").read_text(encoding="utf-8"))["texts"] == ["../am.txt"]
    assert error_code(voxgraft(project, "new", "three", "--sources", "nowhere", "--json")) == "file-missing"


@pytest.mark.long
def test_the_built_in_base_is_named_by_word_wherever_the_run_lies(project: Path) -> None:
    shipped = get_family("tiny").shipped_folder()
    assert shipped is not None
    for name, given in (("one", "tiny"), ("two", str(shipped))):
        assert voxgraft(project, "new", f"runs/{name}", "--base", given, "--language", "am").returncode == 0
        text = (project / "runs" / name / "run.yaml").read_text(encoding="utf-8")
        assert yaml.safe_load(text)["base"] == "tiny"
        assert str(shipped) not in text
    (project / "runs" / "one").rename(project / "moved")
    base = settings_of(project / "moved").base
    assert base is not None
    assert base.samefile(shipped)
    (project / "moved" / "tiny").mkdir()
    assert settings_of(project / "moved").base == project / "moved" / "tiny", "a folder that is there is meant"


@pytest.mark.long
def test_the_name_of_a_published_base_is_answered_with_its_download(project: Path) -> None:
    done = voxgraft(project, "new", "run", "--base", "chatterbox-multilingual", "--language", "am", "--json")
    assert error_code(done) == "file-missing"
    assert "voxgraft download chatterbox-multilingual" in json.loads(done.stdout)["error"]["cure"]
    (project / "models" / "chatterbox-multilingual").mkdir(parents=True)
    done = voxgraft(project, "new", "run", "--base", "chatterbox-multilingual", "--language", "am", "--json")
    assert "--base models/chatterbox-multilingual" in json.loads(done.stdout)["error"]["cure"]


@pytest.mark.parametrize(("typed", "name"), [("tinny", "tiny"), ("chaterbox-multilingual", "chatterbox-multilingual")])
def test_a_mistyped_name_of_a_base_is_answered_with_the_right_one(project: Path, typed: str, name: str) -> None:
    done = voxgraft(project, "new", "run", "--base", typed, "--language", "am", "--json")
    assert error_code(done) == "file-missing"
    assert f"did you mean `{name}`?" in json.loads(done.stdout)["error"]["cure"]
    assert not (project / "run").exists()


def test_every_key_of_run_yaml_stands_there_with_its_help(project: Path) -> None:
    assert voxgraft(project, "new", "run").returncode == 0
    lines = (project / "run" / "run.yaml").read_text(encoding="utf-8").splitlines()
    for leaf in iter_setting_fields(RunSettings):
        name = leaf.key.rpartition(".")[2]
        places = [at for at, line in enumerate(lines) if line.strip().startswith(f"{name}:")]
        assert any(f"# {leaf.field.description}" in lines[at - 1] for at in places), leaf.key


@pytest.mark.long
def test_the_command_that_new_names_next_reads_the_run(project: Path) -> None:
    done = voxgraft(project, "new", "my run", "--base", "base", "--language", "am", "--texts", "am.txt", "--json")
    assert json.loads(done.stdout)["next"] == "voxgraft graft 'my run'"
    shown = voxgraft(project, "graft", "my run", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    values = yaml.safe_load(shown.stdout)
    assert Path(values["base"]).samefile(project / "base")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_paths_survive_the_way_through_run_yaml(project: Path, name: str) -> None:
    odd = project / name
    (project / "base").rename(odd)
    text = project / f"{name}.txt"
    (project / "am.txt").rename(text)
    done = voxgraft(project, "new", f"runs/{name}", f"--base={name}", f"--texts={text.name}", "--language=am")
    assert done.returncode == 0, done.stderr
    made = settings_of(project / "runs" / name)
    assert made.base is not None
    assert made.base.samefile(odd)
    assert made.texts[0].samefile(text)


@pytest.mark.parametrize("sign", ["\n", "\x7f", "\u2028", "\x85", "\udcff"], ids=ascii)
def test_a_path_that_yaml_cannot_hold_is_refused_and_nothing_is_written(project: Path, sign: str) -> None:
    odd = project / f"ba{sign}se"
    try:
        (project / "base").rename(odd)
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system has no such names")
    done = voxgraft(project, "new", "run", "--base", odd, "--json")
    if done.returncode == 0:  # it can hold it after all: then it must come back the same
        made = settings_of(project / "run")
        assert made.base is not None
        assert made.base.samefile(odd)
    else:
        assert error_code(done) == "run-path"
        assert not (project / "run").exists()


def test_relative_paths_survive_moving_the_project_and_absolute_ones_moving_the_run(project: Path) -> None:
    home = project / "home"
    home.mkdir()
    shutil.copytree(project / "base", home / "base")
    assert voxgraft(home, "new", "runs/near", "--base", "base").returncode == 0
    assert voxgraft(home, "new", "runs/far", "--base", project / "base").returncode == 0
    home.rename(project / "elsewhere")
    near, far = (settings_of(project / "elsewhere" / "runs" / name).base for name in ("near", "far"))
    assert near is not None
    assert near.samefile(project / "elsewhere" / "base")
    shutil.move(project / "elsewhere" / "runs" / "far", project / "far")
    assert far == settings_of(project / "far").base == project / "base"


def test_paths_are_right_where_the_runs_folder_is_a_link_to_another_place(project: Path) -> None:
    (project / "disk" / "deep" / "runs").mkdir(parents=True)
    (project / "runs").symlink_to(project / "disk" / "deep" / "runs")
    assert voxgraft(project, "new", "runs/am", "--base", "base").returncode == 0
    made = settings_of(project / "disk" / "deep" / "runs" / "am")
    assert made.base is not None
    assert made.base.samefile(project / "base")


@pytest.mark.long(fast="empty folder")
@pytest.mark.parametrize("there", ["folder", "empty folder", "file", "broken link"])
def test_what_is_there_is_never_replaced(project: Path, there: str) -> None:
    run = project / "run"
    if there.endswith("folder"):
        run.mkdir()
        if there == "folder":
            (run / "run.yaml").write_text("language: ti\n")
    elif there == "file":
        run.write_text("mine")
    else:
        run.symlink_to(project / "nowhere")
    before = sorted(project.rglob("*"))
    assert error_code(voxgraft(project, "new", "run", "--base", "base", "--json")) == "file-exists"
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--base", "nowhere"], "file-missing"),
        (["--base", "am.txt"], "not-a-file"),
        (["--base", "."], "base-unknown"),
        (["--base", "base", "--family", "indextts2"], "base-other-family"),
        (["--base", "base", "--texts", "cut.jsonl"], "text-manifest"),
        (["--base", "base", "--texts", "nowhere.txt"], "file-missing"),
        (["--language", "Amharic"], "config-value"),
        (["--language", ""], "config-value"),
        (["--family", "chatterbocks"], "config-value"),
        (["--from", "nowhere.yaml"], "file-missing"),
        (["--from", "."], "not-a-file"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(project: Path, words: list[str], code: str) -> None:
    (project / "cut.jsonl").write_text('{"a":\n', encoding="utf-8")
    before = sorted(project.rglob("*"))
    assert error_code(voxgraft(project, "new", "run", *words, "--json")) == code
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("run", ["am.txt/run", "x" * 300, "."])
def test_a_run_folder_that_cannot_be_made_is_our_error(project: Path, run: str) -> None:
    before = sorted(project.rglob("*"))
    assert error_code(voxgraft(project, "new", run, "--json")) in ("not-a-file", "file-exists", "file-name")
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("run", ["a\\0b", "gone/.."])
def test_a_run_folder_that_no_file_system_has_is_our_error(project: Path, run: str) -> None:
    (project / "new.yaml").write_text(f'run: "{run}"\n')
    assert error_code(voxgraft(project, "new", "--config", "new.yaml", "--json")) == "run-path"
    assert not (project / "gone").exists()


@pytest.mark.parametrize(
    ("family", "language", "codes"),
    [
        ("chatterbox", "am", []),
        ("chatterbox", "am-ET", []),
        ("chatterbox", "sw", ["language-spoken"]),
        ("chatterbox", "en-GB", ["language-spoken"]),
        ("indextts2", "sw", []),
        ("indextts2", "zh", ["language-spoken"]),
        ("indextts2", "qqq", ["language-unlisted"]),
    ],
)
def test_an_unknown_language_is_not_refused_but_doubts_are_said(
    project: Path, bases: Path, family: str, language: str, codes: list[str]
) -> None:
    words = ["--base", str(bases / family), "--language", language, "--texts", "am.txt"]
    done = voxgraft(project, "new", "run", *words, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [item["code"] for item in answer["findings"]] == codes
    assert (answer["family"], answer["language"]) == (family, language)
    assert settings_of(project / "run").language == language


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("ge", "`ge` is the code of a country. The code of Georgian is `ka`"),
        ("UA", "`UA` is the code of a country. The code of Ukrainian is `uk`"),
        ("kr", "If you mean Korean, its code is `ko`"),  # also the code of Kanuri
        ("qqq", ""),
    ],
)
def test_the_code_of_a_country_gets_the_code_of_its_language(given: str, fix: str) -> None:
    (found,) = language_findings(given)
    assert (found.code, found.level) == ("language-unlisted", "warning")
    assert fix in found.cure
    assert ("If you mean" in found.cure or "country" in found.cure) == bool(fix)
    assert ("check the code" in found.cure) == (given in ("kr", "qqq"))


@pytest.mark.parametrize(("other", "usual"), [("amh", "am"), ("ger", "de"), ("amh-ET", "am-ET")])
def test_another_code_of_a_language_is_refused_with_the_usual_one(project: Path, other: str, usual: str) -> None:
    done = voxgraft(project, "new", "run", "--base", "base", "--language", other, "--texts", "am.txt", "--json")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["cure"]) == ("config-value", f"use the code {usual}.")
    assert not (project / "run").exists()


@pytest.mark.long
def test_a_run_without_a_base_is_made_and_says_what_is_missing(project: Path) -> None:
    done = voxgraft(project, "new", "run", "--language", "am")
    assert done.returncode == 0
    assert "note run-incomplete: not set yet: base, texts" in done.stdout
    assert settings_of(project / "run") == RunSettings(language="am")


def test_a_run_is_whole_or_absent_when_the_disk_says_no(project: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (project / "locked").mkdir(mode=0o500)
    assert error_code(voxgraft(project, "new", "locked/run", "--json")) == "file-unwritable"
    assert not list((project / "locked").iterdir())
