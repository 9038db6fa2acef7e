"""Printing: results and settings on standard output, errors on standard error, as text or as JSON.

On a terminal with rich; elsewhere plain aligned text. Text is data: it is never read as markup or control codes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from voxgraft.errors import Finding
from voxgraft.results import Cell, Line, Result, Styled, Table, plain

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable
    from rich.text import Text

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0)] if code not in (0x09, 0x0A)}


@dataclass(frozen=True, slots=True)
class Console:
    """Where a verb's result goes, and in which form."""

    json: bool = False
    quiet: bool = False

    def show(self, result: Result) -> None:
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

            text = yaml.safe_dump(_for_files(values), sort_keys=False, allow_unicode=True)
            _write(text, sys.stdout)

    def show_error(self, finding: Finding) -> None:
        """Print an error for people, and with `json` for machines too."""
        if self.json:
            _print_json({"error": finding.to_json()})
        first, *rest = finding.lines()
        print_lines([Styled(((first, "bold red"),)), *rest], sys.stderr)


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print with rich on a terminal, as plain text elsewhere."""
    if stream.isatty():
        console = _rich_console(stream)
        for line in lines:
            console.print(_rich_table(line) if isinstance(line, Table) else _rich_text(line), soft_wrap=_is_text(line))
        return
    texts = [text for line in lines for text in (line.lines() if isinstance(line, Table) else [plain(line)])]
    _write("".join(f"{printable(text)}\n" for text in texts), stream)


def printable(text: str) -> str:
    """The text with control characters spelled out, so that no file can steer the terminal."""
    return text.translate(_CONTROLS)


def _print_json(value: Mapping[str, Any]) -> None:
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(_for_files(value), ensure_ascii=ascii_only, allow_nan=False, indent=2)
    _write(text + "\n", sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # The reader (head, a pager) has had enough. Without this Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _for_files(value: Any) -> Any:
    """Plain values for JSON and YAML; paths become absolute, so that they mean the same from any folder."""
    if isinstance(value, Mapping):
        return {str(key): _for_files(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_for_files(item) for item in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def _rich_console(stream: TextIO) -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=stream, markup=False, highlight=False, emoji=False)


def _rich_text(line: Cell) -> Text:
    from rich.text import Text

    parts = line.parts if isinstance(line, Styled) else ((line, ""),)
    return Text.assemble(*((printable(text), style) for text, style in parts))


def _rich_table(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    made = RichTable(title=table.title or None, title_justify="left")
    for number, column in enumerate(table.columns):
        made.add_column(column, justify="right" if table.numeric(number) else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*map(_rich_text, row))
    return made


def _is_text(line: Line) -> bool:
    """Texts are left to the terminal to wrap, so that they can be copied whole; tables fold their cells."""
    return not isinstance(line, Table)
