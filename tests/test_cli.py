"""The command line as a whole: exit codes, what is printed where, and what help may cost."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from voxgraft.cli import COMMANDS, CliCommand, run_cli
from voxgraft.config.base import Settings, iter_setting_fields, rebuild_settings_models
from voxgraft.core.errors import CATALOGUE, FileError
from voxgraft.core.results import Line, Table, style_line

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "numpy", "tokenizers", "sentencepiece", "safetensors", "uroman")
ETHIOPIC = "ሰላም"


class OutcomeSettings(Settings):
    """What the command of these tests should do."""

    outcome: Literal["fine", "no", "refuse", "break", "stop"] = "fine"
    """How it ends."""


@dataclass(frozen=True)
class OutcomeResult:
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.exit_code == 0, "text": ETHIOPIC}

    def lines(self) -> list[Line]:
        table = Table(("piece", "rows"), ((ETHIOPIC, "2,454"), ("[am]", "1")), title="Pieces")
        return [
            "[bold]tags[/bold] [am] stay",
            style_line("sits near ", ("s", "bold green")),
            "bell\x07 and \x1b[2J",
            table,
        ]


def outcome(settings: OutcomeSettings) -> OutcomeResult:
    match settings.outcome:
        case "refuse":
            raise FileError("file-empty", "base.pt is empty", where="bases/base.pt")
        case "break":
            raise ZeroDivisionError("the answer is not a number")
        case "stop":
            raise KeyboardInterrupt
    return OutcomeResult(0 if settings.outcome == "fine" else 1)


OUTCOME = CliCommand("outcome", OutcomeSettings, f"{__name__}:outcome", "End as asked.", positional=("outcome",))
PROGRAM = "import sys; from voxgraft.cli import run_cli; from tests.test_cli import OUTCOME; sys.exit(run_cli(sys.argv[1:], [OUTCOME]))"


def start(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=stdout, stderr=subprocess.PIPE, env=environment
    )


@pytest.mark.parametrize(
    ("ending", "code"), [("fine", 0), ("no", 1), ("refuse", 2), ("nonsense", 2), ("stop", 130), ("break", 70)]
)
def test_every_ending_has_its_exit_code(ending: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["outcome", ending], [OUTCOME]) == code
    printed = capsys.readouterr()
    assert bool(printed.out) == (code <= 1)
    assert bool(printed.err) == (code > 1)


def test_an_error_is_reported_with_what_where_and_cure_and_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_cli(["outcome", "refuse"], [OUTCOME])
    assert capsys.readouterr().err.splitlines() == [
        "error file-empty: base.pt is empty",
        "  in: bases/base.pt",
        f"  fix: {CATALOGUE['file-empty'].cure}",
    ]


def test_a_bug_shows_its_traceback_and_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(["outcome", "break"], [OUTCOME])
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "ZeroDivisionError: the answer is not a number" in printed
    assert "please report it" in printed


@pytest.mark.parametrize("ending", ["fine", "no"])
def test_json_is_the_result_and_nothing_else(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(["outcome", ending, "--json"], [OUTCOME])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"verdict": ending == "fine", "text": ETHIOPIC}
    assert printed.err == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["outcome", "refuse", "--json"], "file-empty"),
        (["outcome", "break", "--json"], "bug"),
        (["outcome", "stop", "--json"], "interrupted"),
        (["outcome", "--json", "--no-such-flag"], "usage-unknown-flag"),
        (["outcomes", "--json"], "usage-unknown-verb"),
    ],
)
def test_with_json_errors_are_json_too(words: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(words, [OUTCOME])
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["code"] == code
    assert error["found"] in printed.err


def test_a_json_flag_after_the_end_of_flags_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["outcome", "--", "--json"], [OUTCOME]) == 2
    assert capsys.readouterr().out == ""


def test_quiet_leaves_only_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["outcome", "no", "--quiet"], [OUTCOME]) == 1
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_text_is_printed_as_it_is_but_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(["outcome"], [OUTCOME])
    assert capsys.readouterr().out.splitlines() == [
        "[bold]tags[/bold] [am] stay",
        "sits near s",
        "bell\\x07 and \\x1b[2J",
        "Pieces",
        "piece   rows",
        "-----  -----",
        f"{ETHIOPIC}    2,454",
        "[am]       1",
    ]


def test_a_terminal_gets_colours_and_a_drawn_table_with_the_same_text() -> None:
    reader, writer = pty.openpty()
    process = start("outcome", stdout=writer)
    os.close(writer)
    printed = b""
    try:
        while part := os.read(reader, 65536):
            printed += part
    except OSError:  # Linux's way to say that the terminal is closed
        pass
    _, complaints = process.communicate()
    os.close(reader)
    text = printed.decode()
    assert (process.returncode, complaints) == (0, b"")
    assert "[bold]tags[/bold] [am] stay" in text
    assert "\x1b[1;32ms" in text
    assert "\\x1b[2J" in text
    assert "│ [am]  │     1 │" in text


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    process = start("outcome", "no", stdout=writer)
    os.close(writer)
    os.close(reader)
    _, complaints = process.communicate()
    assert (process.returncode, complaints) == (1, b"")


def test_help_of_every_verb_imports_nothing_heavy() -> None:
    pages = [[], *(verb.name.split(" ") for verb in COMMANDS)]
    program = (
        "import sys; from voxgraft.cli import run_cli\n"
        f"codes = [run_cli([*words, '--help']) for words in {pages!r}]\n"
        f"print('outcome', set(codes), [name for name in {HEAVY!r} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "outcome {0} []"
    assert all(f"Usage: voxgraft {verb.name}" in printed for verb in COMMANDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["help"], "Usage: voxgraft COMMAND"),
        (["-h"], "Usage: voxgraft COMMAND"),
        (["help", "speak"], "Usage: voxgraft speak "),
        (["help", "data", "import"], "Usage: voxgraft data import "),
        (["speak", "-h"], "Usage: voxgraft speak "),
        (["-V"], importlib.metadata.version("voxgraft")),
        (["version"], importlib.metadata.version("voxgraft")),
        (["--version"], importlib.metadata.version("voxgraft")),
    ],
)
def test_help_and_version_are_given_however_they_are_asked_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(words) == 0
    assert capsys.readouterr().out.startswith(said)


def test_python_m_voxgraft_is_voxgraft() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "voxgraft", "--version"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == importlib.metadata.version("voxgraft")


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_the_table_of_verbs_names_real_settings_and_every_setting_has_help(verb: CliCommand) -> None:
    keys = {leaf.key: leaf for leaf in iter_setting_fields(verb.settings)}
    assert {*verb.positional, *verb.flags} <= keys.keys()
    assert all(leaf.field.description for leaf in keys.values())


@pytest.mark.parametrize("verb", COMMANDS, ids=lambda verb: verb.name)
def test_the_function_of_every_verb_is_there(verb: CliCommand) -> None:
    assert callable(verb.load())


@pytest.mark.parametrize(
    ("words", "code", "cure"),
    [
        ("exten", "usage-unknown-verb", "did you mean `voxgraft extend`?"),
        ("import", "usage-unknown-verb", "did you mean `voxgraft data import`?"),
        ("train run --stepz 3", "usage-unknown-flag", "did you mean `--train.steps`?"),
        ("tokenizer sho", "usage-unknown-verb", "did you mean `voxgraft tokenizer show`?"),
        ("tokenizer qqqq", "usage-unknown-verb", "use one of: train, merge, prove, show."),
        ("train run --train.freeze 1", "usage-unknown-flag", "see `voxgraft train --help`."),  # not train.recognizer
        ("extend --row.noise 1", "usage-unknown-flag", "did you mean `--rows.noise`?"),
        ("extend --rows_init=mean", "usage-unknown-flag", "did you mean `--rows.init`?"),
        ("graft run --texst a.txt", "usage-unknown-flag", "did you mean `--texts`?"),
        ("extend a b", "usage", "see `voxgraft extend --help`."),
        ("extend a --output", "usage", "see `voxgraft extend --help`."),
        ("extend a --output b --output c", "usage", "see `voxgraft extend --help`."),
        ("extend a --verify=perhaps", "config-value", "--help"),
    ],
)
def test_a_mistyped_line_is_answered_with_the_nearest_right_one(
    words: str, code: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*words.split(" "), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code
    assert cure in error["cure"]
    assert error["where"] == "command line"


def test_a_switch_that_is_off_is_reported_by_the_flag_that_turns_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["train", "--help"]) == 0
    reported = set(re.findall(r"--[a-z.-]*no-[a-z-]+", re.sub(r"[│\s]+", " ", capsys.readouterr().out)))
    assert "--train.no-full-backbone" in reported
    assert not [flag for flag in reported if flag.startswith("--no-train.")]


def test_all_settings_can_be_built_before_they_are_used() -> None:
    rebuild_settings_models()
    assert all(verb.settings.__pydantic_complete__ for verb in COMMANDS)


@pytest.mark.parametrize("width", [30, 50, 64, 80, 120])
def test_a_table_that_is_too_wide_is_folded_and_loses_no_letter(width: int) -> None:
    from rich.console import Console as RichConsole

    from voxgraft.cli.console import _build_rich_table

    rows = (("2024-01-02-news-000123", "1,234,567", "98.5%", "ሰላም ለዓለም"), ("b", "12", "1%", "two words"))
    stream = io.StringIO()
    RichConsole(file=stream, width=width).print(_build_rich_table(Table(("clip", "codes", "share", "text"), rows)))
    shown = Counter(stream.getvalue())
    wanted = Counter("".join(("clip", "codes", "share", "text", *rows[0], *rows[1])).replace(" ", ""))
    assert not [letter for letter, count in wanted.items() if letter.isalnum() and shown[letter] < count]
