"""What a verb gives back: something to print, something for machines, and an exit code.

Verbs build these; only the faces print them. Text is never read as markup, since tags such as [am] are our trade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StyledLine:
    """One line of which parts carry a style (of rich: "green", "bold red"); without a terminal it is plain text."""

    parts: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)


def style_line(*parts: str | tuple[str, str]) -> StyledLine:
    """A line of plain texts and (text, style) pairs."""
    return StyledLine(tuple((part, "") if isinstance(part, str) else part for part in parts))


TableCell = str | StyledLine


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names. Columns of which every cell is a number stand on the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{len(row)} cells under {len(self.columns)} columns: {row}"

    def to_json(self) -> list[dict[str, str]]:
        return [dict(zip(self.columns, map(plain_text, row), strict=True)) for row in self.rows]

    def numeric(self, column: int) -> bool:
        """Whether every cell of the column is a number, a percentage or empty."""
        cells = [plain_text(row[column]).strip() for row in self.rows]
        return any(cells) and all(_is_numeric_text(cell) for cell in cells if cell)

    def lines(self) -> list[str]:
        """The table as aligned plain text; wide and combining characters count as the cells that they fill."""
        from rich.cells import cell_len

        texts = [self.columns, *(tuple(map(plain_text, row)) for row in self.rows)]
        widths = [max(cell_len(row[column]) for row in texts) for column in range(len(self.columns))]
        right = [self.numeric(column) for column in range(len(self.columns))]

        def aligned(row: tuple[str, ...]) -> str:
            cells = []
            for text, width, to_right in zip(row, widths, right, strict=True):
                gap = " " * (width - cell_len(text))
                cells.append(gap + text if to_right else text + gap)
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return [*([self.title] if self.title else []), aligned(texts[0]), rule, *map(aligned, texts[1:])]


Line = str | StyledLine | Table


class CommandResult(Protocol):
    """What every verb returns."""

    @property
    def exit_code(self) -> int:
        """0 when all is well, 1 when the verdict is no."""

    def to_json(self) -> dict[str, Any]:
        """Everything that was found, for machines."""

    def lines(self) -> Sequence[Line]:
        """The same for people: texts, styled lines and tables, in order."""


@dataclass(frozen=True, slots=True)
class SimpleResult:
    """A result that is ready to be shown, for verbs that need no form of their own."""

    values: dict[str, Any]
    shown: tuple[Line, ...]
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return self.values

    def lines(self) -> Sequence[Line]:
        return self.shown


def plain_text(line: TableCell) -> str:
    """The text of a line without its style."""
    return line.plain if isinstance(line, StyledLine) else line


def _is_numeric_text(text: str) -> bool:
    try:
        float(text.removesuffix("%").strip().replace(",", ""))
    except ValueError:
        return False
    return True
