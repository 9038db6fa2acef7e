"""Lists of recordings with texts, of whatever program: tables with `|`, tab or comma, JSON lines, texts beside sounds.

Every line gives a row or a problem. Opens no sound.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import is_file, parse_json
from voxgraft.importing.encodings import read_any_text
from voxgraft.importing.media import AUDIO_ENDINGS
from voxgraft.importing.problems import Problem
from voxgraft.importing.rows import COLUMNS, Row, row_of

__all__ = ["SIDE_CARS", "parse_json_lines", "parse_table", "read_list", "side_car", "side_car_rows"]

SIDE_CARS = (".normalized.txt", ".txt", ".lab")
DELIMITERS = ("|", "\t", ";", ",")
MAX_FIELD = 1 << 20
_SPEAKER_SHARE = 0.34
Found = Iterator[Row | Problem]


def read_list(path: Path, encoding: str | None = None) -> Found:
    """Rows of a list in its order, and a problem for each line that is none."""
    text = read_any_text(path, encoding)
    if path.suffix.lower() in (".jsonl", ".json"):
        return parse_json_lines(text, path.name)
    return parse_table(text, path.name)


def parse_json_lines(text: str, name: str) -> Found:
    """JSON lines as voice programs write them; the header of a manifest of ours is no row."""
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line, name)
        except VoxgraftError as error:
            yield Problem("table-line", error.finding.found, name, number)
            continue
        if isinstance(values, dict) and "voxgraft_manifest" in values:
            continue
        made = row_of(values, number) if isinstance(values, dict) else "no JSON object"
        yield Problem("table-line", made, name, number) if isinstance(made, str) else made


def parse_table(text: str, name: str) -> Found:
    """A table with or without a head: audio and text, and perhaps the text normalised or the speaker."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    delimiter = _delimiter(lines)
    if delimiter is None:
        raise FileError("table-unknown", f"{name} has no columns: {lines[0]!r:.80}" if lines else f"{name} is empty")
    cells = list(_cells(text, delimiter, name))
    head = next((cell for cell in cells if not isinstance(cell, Problem)), None)
    if head is not None and _is_head(head[1]):
        yield from _with_head(cells, head[1], name)
    else:
        yield from _without_head(cells, name)


def _delimiter(lines: Sequence[str]) -> str | None:
    """The mark that most lines have; of several the one that texts have least."""
    seen = lines[:200]
    return next((mark for mark in DELIMITERS if sum(mark in line for line in seen) * 2 > len(seen)), None)


def _cells(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]] | Problem]:
    """Cells of every line that is not empty. Only commas and semicolons come with quotes."""
    stream = io.StringIO(text, newline="")
    if delimiter in ",;":
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    csv.field_size_limit(MAX_FIELD)
    behind = 0
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Problem("table-line", f"broken: {error}", name, behind + 1, reader.line_num)
            behind = reader.line_num
            continue
        if cells is None:
            return
        first, behind = behind + 1, reader.line_num
        if any(cell.strip() for cell in cells):
            yield first, [cell.strip() for cell in cells]


def _is_head(cells: Sequence[str]) -> bool:
    names = {cell.lower() for cell in cells}
    return bool(names & set(COLUMNS["text"])) and bool(names & (set(COLUMNS["audio"]) | set(COLUMNS["id"])))


def _with_head(cells: Sequence[tuple[int, list[str]] | Problem], head: list[str], name: str) -> Found:
    for item in cells:
        if isinstance(item, Problem):
            yield item
            continue
        line, values = item
        if values == head:
            continue
        if len(values) != len(head):
            yield Problem("table-line", f"{len(values)} columns under a head of {len(head)}", name, line)
            continue
        made = row_of(dict(zip(head, values, strict=True)), line)
        yield Problem("table-line", made, name, line) if isinstance(made, str) else made


def _without_head(cells: Sequence[tuple[int, list[str]] | Problem], name: str) -> Found:
    third = [item[1][2] for item in cells if not isinstance(item, Problem) and len(item[1]) == 3]
    speakers = _are_speakers(third)
    for item in cells:
        if isinstance(item, Problem):
            yield item
            continue
        line, values = item
        if len(values) not in (2, 3) or not values[0] or not values[1]:
            told = f"{len(values)} columns" if len(values) not in (2, 3) else "an empty column"
            yield Problem("table-line", f"{told}, expected audio and text: {values!r:.80}", name, line)
            continue
        audio, text, more = (*values, "")[:3]
        said = text if speakers or not more else more
        yield Row(line, audio, said, text, speaker=more if speakers else "")


def _are_speakers(third: Sequence[str]) -> bool:
    """Whether a third column names speakers: few names, each of them often, none a sentence."""
    names = {name for name in third if name}
    few = len(third) >= 4 and len(names) <= max(1, _SPEAKER_SHARE * len(third))
    return few and not any(" " in name for name in names)


def side_car_rows(folder: Path, sounds: Sequence[Path], encoding: str | None = None) -> Found:
    """A row for each sound that has a text of the same name beside it."""
    for number, sound in enumerate(sounds, 1):
        text = side_car(sound)
        name = str(sound.relative_to(folder))
        if text is None:
            yield Problem("text-missing", f"no text beside {name}", name)
            continue
        try:
            said = " ".join(read_any_text(text, encoding).split())
        except VoxgraftError as error:
            yield Problem.of(error, str(text.relative_to(folder)))
            continue
        if not said:
            yield Problem("text-missing", f"the text beside {name} is empty", name)
            continue
        yield Row(number, name, said, said)


def side_car(sound: Path) -> Path | None:
    """The text of the same name beside a sound."""
    return next((path for ending in SIDE_CARS if is_file(path := sound.with_suffix(ending))), None)


def is_sound(path: Path) -> bool:
    """Whether a file's name is that of a sound file."""
    return path.suffix.lower() in AUDIO_ENDINGS
