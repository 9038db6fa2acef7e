"""Printing: results and settings on standard output, errors on standard error, as text or as JSON.

On a terminal with rich; elsewhere plain aligned text. Text is data: it is never read as markup or control codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from voxgraft.core import progress
from voxgraft.core.errors import Finding
from voxgraft.core.results import CommandResult, Line, StyledLine, Table, TableCell, plain_text

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable
    from rich.text import Text


_CONTROL_ESCAPES = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0)] if code not in (0x09, 0x0A)}


@dataclass(frozen=True, slots=True)
class ResultPrinter:
    """Where a verb's result goes, and in which form."""

    json: bool = False
    quiet: bool = False

    def show(self, result: CommandResult) -> None:
        """Print a result; with `quiet` and without `json` nothing."""
        if self.json:
            _print_json(result.to_json())
        elif not self.quiet:
            print_lines(result.lines(), sys.stdout)

    def show_settings(self, values: Mapping[str, Any]) -> None:
        """Print resolved settings as YAML or JSON that --config reads again."""
        if self.json:
            _print_json(values)
        else:
            import yaml

            text = yaml.safe_dump(_to_plain_values(values), sort_keys=False, allow_unicode=True)
            _write_stream(text, sys.stdout)

    def show_error(self, finding: Finding) -> None:
        """Print an error for people, and with `json` for machines too."""
        if self.json:
            _print_json({"error": finding.to_json()})
        first, *rest = finding.lines()
        print_lines([StyledLine(((first, "bold red"),)), *rest], sys.stderr)


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print with rich on a terminal, as plain text elsewhere."""
    if stream.isatty():
        console = _build_rich_console(stream)
        for line in lines:
            console.print(
                _build_rich_table(line) if isinstance(line, Table) else _build_rich_text(line),
                soft_wrap=_is_text_line(line),
            )
        return
    texts = [text for line in lines for text in (line.lines() if isinstance(line, Table) else [plain_text(line)])]
    _write_stream("".join(f"{escape_control_characters(text)}\n" for text in texts), stream)


def escape_control_characters(text: str) -> str:
    """The text with control characters spelled out, so that no file can steer the terminal."""
    return text.translate(_CONTROL_ESCAPES)


def _print_json(value: Mapping[str, Any]) -> None:
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(_to_plain_values(value), ensure_ascii=ascii_only, allow_nan=False, indent=2)
    _write_stream(text + "\n", sys.stdout)


def _write_stream(text: str, stream: TextIO) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has had enough. Without this Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _to_plain_values(value: Any) -> Any:
    """Plain values for JSON and YAML; paths become absolute, so that they mean the same from any folder."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_values(item) for item in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def _build_rich_console(stream: TextIO) -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=stream, markup=False, highlight=False, emoji=False)


def _build_rich_text(line: TableCell) -> Text:
    from rich.text import Text

    parts = line.parts if isinstance(line, StyledLine) else ((line, ""),)
    return Text.assemble(*((escape_control_characters(text), style) for text, style in parts))


def _build_rich_table(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    made = RichTable(title=table.title or None, title_justify="left")
    for number, column in enumerate(table.columns):
        made.add_column(column, justify="right" if table.numeric(number) else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*map(_build_rich_text, row))
    return made


def _is_text_line(line: Line) -> bool:
    """Texts are left to the terminal to wrap, so that they can be copied whole; tables fold their cells."""
    return not isinstance(line, Table)


YES_ANSWERS = ("y", "yes")


@contextlib.contextmanager
def enable_terminal_prompts(before_prompt: Callable[[], None], *, silent: bool) -> Iterator[None]:
    """Let the person at the terminal answer what a verb asks; nobody does where there is no terminal.

    `apply_until_stable` is called before a question, so that no bar is drawn over it.
    """
    if silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        yield
        return

    def ask(lines: Sequence[Line], question: str) -> bool:
        before_prompt()
        return _ask_yes_no(lines, question)

    def tell(lines: Sequence[Line], question: str) -> str:
        before_prompt()
        return _read_answer(lines, f"{question} ")

    with progress.use_prompt_callbacks(ask, tell):
        yield


def _ask_yes_no(lines: Sequence[Line], question: str) -> bool:
    return _read_answer(lines, f"{question} [y/N] ").lower() in YES_ANSWERS


def _read_answer(lines: Sequence[Line], prompt: str) -> str:
    print_lines(lines, sys.stderr)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
