"""Lists of recordings with texts, of whatever program: tables with `|`, tab or comma, JSON lines, texts beside sounds.

Every line gives a row or a problem. Opens no sound.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxgraft.errors import FileError, VoxgraftError
from voxgraft.files import is_file, parse_json
from voxgraft.importing.encodings import parse_error_line, read_encoded_text, read_text_skipping_bad_lines
from voxgraft.importing.media import AUDIO_SUFFIXES
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.rows import COLUMN_ALIASES, TranscriptRow, parse_transcript_row

__all__ = [
    "SIDECAR_SUFFIXES",
    "find_sidecar",
    "parse_transcript_jsonl",
    "parse_transcript_table",
    "read_sidecar_rows",
    "read_transcript_list",
]

SIDECAR_SUFFIXES = (".normalized.txt", ".txt", ".lab")
VCTK_AUDIO_FOLDERS = ("wav48_silence_trimmed", "wav48", "wav24", "wav22", "wav16")
"""What VCTK and its copies at other rates call the folder of sounds, beside the folder `txt`."""
_MICROPHONE_SUFFIX = re.compile(r"_mic[12]$")
TABLE_DELIMITERS = ("|", "\t", ";", ",")
MAX_CSV_FIELD_CHARACTERS = 1 << 20
_MAX_SPEAKER_SHARE = 0.34
RowsOrProblems = Iterator[TranscriptRow | SourceProblem]


def read_transcript_list(path: Path, encoding: str | None = None) -> RowsOrProblems:
    """Rows of a list in its order, and a problem for each line that is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    parsed = parse_transcript_jsonl if path.suffix.lower() in (".jsonl", ".json") else parse_transcript_table
    yield from (SourceProblem("text-encoding", found, path.name, line) for line, found in broken.items())
    yield from parsed(text, path.name)


def parse_transcript_jsonl(text: str, name: str) -> RowsOrProblems:
    """JSON lines as voice programs write them; the header of a manifest of ours is no row."""
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line, name)
        except VoxgraftError as error:
            yield SourceProblem("table-line", error.finding.found, name, number)
            continue
        if isinstance(values, dict) and "voxgraft_manifest" in values:
            continue
        made = parse_transcript_row(values, number) if isinstance(values, dict) else "no JSON object"
        yield _row_problem(made, values, name, number) if isinstance(made, str) else made


def parse_transcript_table(text: str, name: str) -> RowsOrProblems:
    """A table with or without a head: audio and text, and perhaps the text normalised or the speaker."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    delimiter = _detect_delimiter(lines)
    if delimiter is None:
        raise FileError("table-unknown", f"{name} has no columns: {lines[0]!r:.80}" if lines else f"{name} is empty")
    cells = list(_parse_cells(text, delimiter, name))
    head = next((cell for cell in cells if not isinstance(cell, SourceProblem)), None)
    if head is not None and _is_header_row(head[1]):
        yield from _rows_with_header(cells, head[1], name)
    else:
        yield from _rows_without_header(cells, name)


def _detect_delimiter(lines: Sequence[str]) -> str | None:
    """The mark that most lines have; of several the one that texts have least."""
    seen = lines[:200]
    return next((mark for mark in TABLE_DELIMITERS if sum(mark in line for line in seen) * 2 > len(seen)), None)


def _parse_cells(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]] | SourceProblem]:
    """Cells of every line that is not empty. Only commas and semicolons come with quotes."""
    stream = io.StringIO(text, newline="")
    if delimiter in ",;":
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    behind = 0
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield SourceProblem("table-line", f"broken: {error}", name, behind + 1, reader.line_num)
            behind = reader.line_num
            continue
        if cells is None:
            return
        first, behind = behind + 1, reader.line_num
        if any(cell.strip() for cell in cells):
            yield first, [cell.strip() for cell in cells]


def _is_header_row(cells: Sequence[str]) -> bool:
    names = {cell.lower() for cell in cells}
    return bool(names & set(COLUMN_ALIASES["text"])) and bool(
        names & (set(COLUMN_ALIASES["audio"]) | set(COLUMN_ALIASES["id"]))
    )


def _rows_with_header(
    cells: Sequence[tuple[int, list[str]] | SourceProblem], head: list[str], name: str
) -> RowsOrProblems:
    for item in cells:
        if isinstance(item, SourceProblem):
            yield item
            continue
        line, values = item
        if values == head:
            continue
        if len(values) != len(head):
            yield SourceProblem("table-line", f"{len(values)} columns under a head of {len(head)}", name, line)
            continue
        named = dict(zip(head, values, strict=True))
        made = parse_transcript_row(named, line)
        yield _row_problem(made, named, name, line) if isinstance(made, str) else made


def _row_problem(found: str, values: object, name: str, line: int) -> SourceProblem:
    """What is wrong with a row; a text that is there and empty has a cure of its own."""
    given = {str(key).strip().lower(): value for key, value in values.items()} if isinstance(values, dict) else {}
    is_empty = found.startswith("no text") and any(given.get(key) == "" for key in COLUMN_ALIASES["text"])
    return SourceProblem("transcript-empty" if is_empty else "table-line", found, name, line)


def _rows_without_header(cells: Sequence[tuple[int, list[str]] | SourceProblem], name: str) -> RowsOrProblems:
    third = [item[1][2] for item in cells if not isinstance(item, SourceProblem) and len(item[1]) == 3]
    speakers = _is_speaker_column(third)
    for item in cells:
        if isinstance(item, SourceProblem):
            yield item
            continue
        line, values = item
        if len(values) in (2, 3) and values[0] and not values[1]:
            yield SourceProblem("transcript-empty", f"{values[0]} has no text", name, line)
            continue
        if len(values) not in (2, 3) or not values[0]:
            told = f"{len(values)} columns" if len(values) not in (2, 3) else "an empty column"
            yield SourceProblem("table-line", f"{told}, expected audio and text: {values!r:.80}", name, line)
            continue
        audio, text, more = (*values, "")[:3]
        said = text if speakers or not more else more
        yield TranscriptRow(line, audio, said, text, speaker=more if speakers else "")


def _is_speaker_column(third: Sequence[str]) -> bool:
    """Whether a third column names speakers: few names, each of them often, none a sentence."""
    names = {name for name in third if name}
    few = len(third) >= 4 and len(names) <= max(1, _MAX_SPEAKER_SHARE * len(third))
    return few and not any(" " in name for name in names)


def read_sidecar_rows(folder: Path, sounds: Sequence[Path], encoding: str | None = None) -> RowsOrProblems:
    """A row for each sound that has a text of the same name beside it."""
    for number, sound in enumerate(sounds, 1):
        text = find_sidecar(sound)
        name = str(sound.relative_to(folder))
        if text is None:
            yield SourceProblem("text-missing", f"no text beside {name}", name)
            continue
        beside = os.path.relpath(text, folder)
        try:
            # A file without a byte is read as a text without a letter: to whoever wrote it they are the same.
            said = " ".join(read_encoded_text(text, encoding).split()) if text.stat().st_size else ""
        except VoxgraftError as error:
            yield SourceProblem.of(error, beside, parse_error_line(error))
            continue
        if not said:
            yield SourceProblem("transcript-empty", f"the text of {name} is empty", beside, 1)
            continue
        yield TranscriptRow(number, name, said, said)


def find_sidecar(sound: Path) -> Path | None:
    """The text of the same name beside a sound, or where VCTK has it: txt/p225/x.txt for wav48/p225/x.wav."""
    beside = next((path for ending in SIDECAR_SUFFIXES if is_file(path := sound.with_suffix(ending))), None)
    if beside or sound.parent.parent.name not in VCTK_AUDIO_FOLDERS or first_microphone_name(sound):
        return beside
    stem = _MICROPHONE_SUFFIX.sub("", sound.stem)
    path = sound.parent.parent.parent / "txt" / sound.parent.name / f"{stem}.txt"
    return path if is_file(path) else None


def find_vctk_audio(text: Path) -> Path | None:
    """The sound that a text in VCTK's folder of texts belongs to."""
    if text.suffix != ".txt" or text.parent.parent.name != "txt":
        return None
    root = text.parent.parent.parent
    places = (root / folder / text.parent.name / text.stem for folder in VCTK_AUDIO_FOLDERS)
    names = (
        f"{place}{mark}{ending}" for place in places for mark in ("", "_mic1", "_mic2") for ending in (".flac", ".wav")
    )
    return next((path for name in names if is_file(path := Path(name))), None)


def first_microphone_name(sound: Path) -> str:
    """The name of the same sound by the first microphone, where this is the second; else empty."""
    if not sound.stem.endswith("_mic2"):
        return ""
    first = sound.with_stem(sound.stem.removesuffix("2") + "1")
    return first.name if is_file(first) else ""


def is_audio_file(path: Path) -> bool:
    """Whether a file's name is that of a sound file."""
    return path.suffix.lower() in AUDIO_SUFFIXES
