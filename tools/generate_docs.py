"""Write docs/cli.md from the help of every command, and docs/errors.md from the catalogue of codes.

`--check` writes nothing and exits with 1 if a page is not what it would write.
"""

from __future__ import annotations

import io
import sys
from itertools import groupby
from pathlib import Path

from cyclopts import App
from rich.console import Console

from voxgraft.cli.app import build_cli_app
from voxgraft.cli.commands import COMMANDS
from voxgraft.core.errors import CATALOGUE

DOCS = Path(__file__).resolve().parent.parent / "docs"
HELP_COLUMNS = 100
GENERATED = "<!-- Written by tools/generate_docs.py (make docs); changes made here are lost. -->"


def cli_page() -> str:
    """The manual: what `--help` prints, command by command."""
    app, _ = build_cli_app(COMMANDS)
    lines = [
        "# The command line",
        "",
        GENERATED,
        "",
        "Every setting below is also a key of a YAML file: `--rows.init mean` is `rows: {init: mean}`, and `--proof-texts` is",
        "`proof_texts`. Flags override a `--config` file, which overrides the run's `run.yaml`. Relative paths in a file are",
        "relative to the folder of that file.",
        "",
        *_help_section(app, []),
    ]
    for verb in COMMANDS:
        lines += _help_section(app, verb.name.split(" "))
    return "\n".join(lines)


def errors_page() -> str:
    """The catalogue: every code by area, with its meaning and its fix."""
    lines = [
        "# Errors and findings",
        "",
        GENERATED,
        "",
        "Every error and every finding has one of these codes. An *error* stops the command (exit code 2) or makes `check` fail",
        "(exit code 1). A *warning* or a *note* does not.",
        "",
    ]
    order = list(dict.fromkeys(entry.area for entry in CATALOGUE.values()))
    entries = sorted(CATALOGUE.items(), key=lambda item: order.index(item[1].area))
    for area, group in groupby(entries, key=lambda item: item[1].area):
        lines += [f"## {area[0].upper()}{area[1:]}", ""]
        for code, entry in group:
            lines += [f"### `{code}`", "", f"*{entry.level}* · {entry.why}", "", f"Fix: {entry.cure}", ""]
    return "\n".join(lines)


def _help_section(app: App, words: list[str]) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=HELP_COLUMNS, force_terminal=False, color_system=None, legacy_windows=False)
    app.help_print(words, console=console)
    text = "\n".join(line.rstrip() for line in stream.getvalue().strip().splitlines())
    return [f"## {' '.join(['voxgraft', *words])}", "", "```text", text, "```", ""]


def main(arguments: list[str]) -> int:
    pages = {"cli.md": cli_page(), "errors.md": errors_page()}
    if arguments == ["--check"]:
        stale = [name for name, text in pages.items() if not _is(DOCS / name, text)]
        for name in stale:
            print(f"docs/{name} is stale: run `make docs`.", file=sys.stderr)
        return 1 if stale else 0
    DOCS.mkdir(exist_ok=True)
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
