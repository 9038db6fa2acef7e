"""Lists of recordings with texts, as other programs write them, one `TranscriptRow` per line.

Tables with `|`, tab, comma or semicolon, JSON lines, parquet and arrow files, and folders with a text beside each audio
file. Every line gives a row or a problem. Opens no audio.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from voxgraft.audio.files import AUDIO_SUFFIXES
from voxgraft.core.errors import ConfigError, FileError, VoxgraftError
from voxgraft.core.files import format_error_reason, is_encodable_text, is_file, parse_json
from voxgraft.data.manifest import SourceProblem
from voxgraft.data.subtitles import parse_error_line, read_encoded_text, read_text_skipping_bad_lines

# Column names in lists that people have; the first that exists counts.
COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "audio": tuple("audio audio_path audio_filepath audio_file file_name filename file path wav wav_path".split()),
    "text": ("text", "normalized_text", "normalised_text", "sentence", "transcription", "transcript", "raw_text"),
    "speaker": ("speaker", "speaker_id", "speaker_name", "spk", "client_id"),
    "recording": ("recording", "source_file", "recording_id", "session"),
    "start": ("start", "start_time", "offset"),
    "end": ("end", "end_time"),
    "seconds": ("duration", "seconds"),
    "language": ("language", "lang", "locale"),
    "id": ("id", "segment_id", "utt_id", "utt"),
}
AUDIO_FOLDERS = ("", "wavs", "wav", "audio", "clips", "audios")
MIN_RECORDINGS = 3


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """One line of a list."""

    line: int
    audio: str
    """As written in the list."""
    text: str
    original_text: str = ""
    speaker: str = ""
    recording: str = ""
    language: str = ""
    """Empty if the list does not say."""
    start: float = 0.0
    end: float | None = None
    """None: the whole file."""
    data: bytes | None = None
    """The audio file itself, if the list holds it."""

    @property
    def is_part(self) -> bool:
        return self.end is not None


def parse_transcript_row(values: Mapping[str, Any], line: int) -> TranscriptRow | str:
    """A row by the names of its columns, or what is wrong with it."""
    given = {str(name).strip().lower(): value for name, value in values.items() if value not in (None, "")}
    found = {
        kind: next((given[name] for name in names if name in given), None) for kind, names in COLUMN_ALIASES.items()
    }
    audio: Any = found["audio"]
    data: bytes | None = None
    if isinstance(audio, Mapping):  # as the Hugging Face datasets library stores audio
        data = audio.get("bytes")
        if data is not None and not isinstance(data, bytes):
            return f"the bytes of its sound are {data!r:.40}, which are none"
        audio = audio.get("path") or f"row-{line}.wav"
    audio = audio or found["id"]
    if not is_encodable_text(audio) or not is_encodable_text(found["text"]):
        missing = "no recording" if not is_encodable_text(audio) else "no text"
        return f"{missing} among {', '.join(map(repr, values))}"
    times = _parse_row_times(found)
    if isinstance(times, str):
        return times
    # Speakers are often numbers, and the first of them is 0.
    names = {
        name: "" if found[name] is None else str(found[name]).strip() for name in ("speaker", "recording", "language")
    }
    if not all(map(is_encodable_text, names.values())):
        return "a name holds half of a character"
    text = str(found["text"])
    start, end = times
    return TranscriptRow(line, str(audio), text, text, **names, start=start, end=end, data=data)


def _parse_row_times(found: Mapping[str, Any]) -> tuple[float, float | None] | str:
    """Start and end of the row in its file. A duration alone means the whole file."""
    numbers: dict[str, float] = {}
    for name in ("start", "end", "seconds"):
        if found[name] is None:
            continue
        try:
            numbers[name] = float(found[name])
        except (TypeError, ValueError, OverflowError):
            return f"{name} is {found[name]!r:.40}, which is no number of seconds"
        if not math.isfinite(numbers[name]) or numbers[name] < 0:
            return f"{name} is {found[name]!r:.40}, which is no number of seconds"
    if "start" not in numbers and "end" not in numbers:
        return 0.0, None
    start = numbers.get("start", 0.0)
    end = numbers.get("end", start + numbers["seconds"] if "seconds" in numbers else None)
    if end is None:
        return f"a start ({start} s) without an end or a duration"
    return (start, end) if end > start else f"it ends at {end} s, before it begins at {start} s"


def find_audio_file(folder: Path, name: str) -> Path | None:
    """The file that a list means; suffix and the usual folders may be left out."""
    given = Path(name.replace("\\", "/") if "/" not in name else name)
    for place in AUDIO_FOLDERS:
        for ending in ("", *AUDIO_SUFFIXES):
            path = folder / place / (str(given) + ending)
            if is_file(path):
                return path
    return None


def infer_recordings(rows: Sequence[TranscriptRow]) -> dict[int, str]:
    """The recording of each row, by its line: as stated, else the file name without the number at its end.

    If that leaves hardly any recordings, every file is one.
    """
    stems = {row.line: Path(row.recording or row.audio).stem or row.audio for row in rows}
    short = {}
    for row in rows:
        stem = short[row.line] = stems[row.line]
        if not row.recording:
            # No regex: it would take quadratic time on a long run of digits.
            end = len(stem)
            while end and stem[end - 1].isdecimal():
                end -= 1
            short[row.line] = stem if end == len(stem) else stem[:end].rstrip("-_. \t\r\n\f\v")
    useful = all(short.values()) and len(set(short.values())) >= min(MIN_RECORDINGS, len(set(stems.values())))
    return short if useful else stems


SIDECAR_SUFFIXES = (".normalized.txt", ".txt", ".lab")
# Folders of audio in VCTK and its copies at other rates, beside the folder `txt`.
VCTK_AUDIO_FOLDERS = ("wav48_silence_trimmed", "wav48", "wav24", "wav22", "wav16")
_MICROPHONE_SUFFIX = re.compile(r"_mic[12]$")
TABLE_DELIMITERS = ("|", "\t", ";", ",")
MAX_CSV_FIELD_CHARACTERS = 1 << 20
_MAX_SPEAKER_SHARE = 0.34
RowsOrProblems = Iterator[TranscriptRow | SourceProblem]


def read_transcript_list(path: Path, encoding: str | None = None) -> RowsOrProblems:
    """Rows of a list in order, and a problem for each line that is none."""
    text, broken = read_text_skipping_bad_lines(path, encoding)
    parsed = parse_transcript_jsonl if path.suffix.lower() in (".jsonl", ".json") else parse_transcript_table
    yield from (SourceProblem("text-encoding", found, path.name, line) for line, found in broken.items())
    yield from parsed(text, path.name)


def parse_transcript_jsonl(text: str, name: str) -> RowsOrProblems:
    """JSON lines as speech programs write them; the header of a manifest of ours is no row."""
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
    """A table with or without a header: audio and text, and perhaps the normalized text or the speaker."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    # The first mark that most lines have, in order of rarity in texts.
    seen = lines[:200]
    delimiter = next((mark for mark in TABLE_DELIMITERS if sum(mark in line for line in seen) * 2 > len(seen)), None)
    if delimiter is None:
        raise FileError("table-unknown", f"{name} has no columns: {lines[0]!r:.80}" if lines else f"{name} is empty")
    cells = list(_parse_cells(text, delimiter, name))
    head = next((values for line in cells if not isinstance(line, SourceProblem) for values in [line[1]]), [])
    names = {cell.lower() for cell in head}
    if names & {*COLUMN_ALIASES["text"]} and names & {*COLUMN_ALIASES["audio"], *COLUMN_ALIASES["id"]}:
        yield from _rows_with_header(cells, head, name)
    else:
        yield from _rows_without_header(cells, name)


def _parse_cells(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]] | SourceProblem]:
    """Cells of every line that is not empty. Only commas and semicolons are used with quotes."""
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
    """What is wrong with a row; an empty text has its own code."""
    given = {str(key).strip().lower(): value for key, value in values.items()} if isinstance(values, dict) else {}
    is_empty = found.startswith("no text") and any(given.get(key) == "" for key in COLUMN_ALIASES["text"])
    return SourceProblem("transcript-empty" if is_empty else "table-line", found, name, line)


def _rows_without_header(cells: Sequence[tuple[int, list[str]] | SourceProblem], name: str) -> RowsOrProblems:
    # A third column names speakers if there are few names, each of them often, and none is a sentence.
    third = [item[1][2] for item in cells if not isinstance(item, SourceProblem) and len(item[1]) == 3]
    names = {value for value in third if value}
    is_few = len(third) >= 4 and len(names) <= max(1, _MAX_SPEAKER_SHARE * len(third))
    speakers = is_few and not any(" " in value for value in names)
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


def read_sidecar_rows(folder: Path, sounds: Sequence[Path], encoding: str | None = None) -> RowsOrProblems:
    """A row for each audio file with a text of the same name beside it."""
    for number, sound in enumerate(sounds, 1):
        text = find_sidecar(sound)
        name = str(sound.relative_to(folder))
        if text is None:
            yield SourceProblem("text-missing", f"no text beside {name}", name)
            continue
        beside = os.path.relpath(text, folder)
        try:
            # An empty file counts as an empty text, not as an unreadable file.
            said = " ".join(read_encoded_text(text, encoding).split()) if text.stat().st_size else ""
        except VoxgraftError as error:
            yield SourceProblem.of(error, beside, parse_error_line(error))
            continue
        if not said:
            yield SourceProblem("transcript-empty", f"the text of {name} is empty", beside, 1)
            continue
        yield TranscriptRow(number, name, said, said)


def find_sidecar(sound: Path) -> Path | None:
    """The text of the same name beside an audio file, or as in VCTK: txt/p225/x.txt for wav48/p225/x.wav."""
    beside = next((path for ending in SIDECAR_SUFFIXES if is_file(path := sound.with_suffix(ending))), None)
    if beside or sound.parent.parent.name not in VCTK_AUDIO_FOLDERS or first_microphone_name(sound):
        return beside
    stem = _MICROPHONE_SUFFIX.sub("", sound.stem)
    path = sound.parent.parent.parent / "txt" / sound.parent.name / f"{stem}.txt"
    return path if is_file(path) else None


def find_vctk_audio(text: Path) -> Path | None:
    """The audio file that a text in VCTK's folder of texts belongs to."""
    if text.suffix != ".txt" or text.parent.parent.name != "txt":
        return None
    root = text.parent.parent.parent
    places = (root / folder / text.parent.name / text.stem for folder in VCTK_AUDIO_FOLDERS)
    names = (
        f"{place}{mark}{ending}" for place in places for mark in ("", "_mic1", "_mic2") for ending in (".flac", ".wav")
    )
    return next((path for name in names if is_file(path := Path(name))), None)


def first_microphone_name(sound: Path) -> str:
    """VCTK recorded with two microphones: for a file of the second, the name of the first; else empty."""
    if not sound.stem.endswith("_mic2"):
        return ""
    first = sound.with_stem(sound.stem.removesuffix("2") + "1")
    return first.name if is_file(first) else ""


def is_audio_file(path: Path) -> bool:
    """Whether a file has the suffix of an audio file."""
    return path.suffix.lower() in AUDIO_SUFFIXES


COLUMNAR_SUFFIXES = (".parquet", ".arrow")
# Rows can hold their audio, so a few of them are megabytes.
ARROW_BATCH_ROWS = 64


def read_arrow_rows(path: Path) -> Iterator[TranscriptRow | SourceProblem]:
    """Rows of a parquet or arrow file in order, and a problem for each that is none."""
    arrow = _import_pyarrow()
    wanted = {name for names in COLUMN_ALIASES.values() for name in names}
    number = 0
    try:
        for batch in _iter_arrow_batches(arrow, path, wanted):
            for values in batch.to_pylist():
                number += 1
                made = parse_transcript_row(values, number)
                yield SourceProblem("table-line", made, path.name, number) if isinstance(made, str) else made
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FileError("table-unknown", f"{path.name}: {format_error_reason(error)}", where=path) from None


def read_arrow_audio_names(path: Path) -> Iterator[str]:
    """Names of the audio files of the rows, without reading the audio itself."""
    arrow = _import_pyarrow()
    try:
        for batch in _iter_arrow_batches(arrow, path, {*COLUMN_ALIASES["audio"], *COLUMN_ALIASES["id"]}, sounds=False):
            for values in batch.to_pylist():
                row = parse_transcript_row({**values, "text": "x"}, 0)
                if isinstance(row, TranscriptRow):
                    yield row.audio
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FileError("table-unknown", f"{path.name}: {format_error_reason(error)}", where=path) from None


def _iter_arrow_batches(arrow: ModuleType, path: Path, wanted: set[str], *, sounds: bool = True) -> Iterator[Any]:
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as table:
            fields = [field for field in table.schema_arrow if field.name.lower() in wanted]
            names = [name for field in fields for name in _parquet_columns(arrow, field, sounds=sounds)]
            yield from table.iter_batches(batch_size=ARROW_BATCH_ROWS, columns=names)
        return
    with arrow.memory_map(str(path)) as stream:
        try:
            reader = arrow.ipc.open_file(stream)
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        except arrow.ArrowInvalid:  # the other of the two arrow formats
            stream.seek(0)
            batches = arrow.ipc.open_stream(stream)
        for batch in batches:
            chosen = batch.select([name for name in batch.schema.names if name.lower() in wanted])
            if not sounds:
                chosen = _drop_audio_bytes(arrow, chosen)
            for first in range(0, chosen.num_rows, ARROW_BATCH_ROWS):
                yield chosen.slice(first, ARROW_BATCH_ROWS)


def _parquet_columns(arrow: ModuleType, field: Any, *, sounds: bool) -> list[str]:
    """A column as parquet names it: whole, or only its parts without audio bytes."""
    if sounds or not arrow.types.is_struct(field.type):
        return [field.name]
    return [f"{field.name}.{part.name}" for part in field.type if part.name != "bytes"]


def _drop_audio_bytes(arrow: ModuleType, batch: Any) -> Any:
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if arrow.types.is_struct(column.type):
            if column.type.get_field_index("path") < 0:
                continue
            column = arrow.StructArray.from_arrays([column.field("path")], ["path"])
        columns[name] = column
    return arrow.RecordBatch.from_pydict(columns)


def _import_pyarrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        cure = "pip install 'voxgraft[parquet]'"
        raise ConfigError("extra-missing", "reading parquet and arrow files needs pyarrow", cure=cure) from None
    made: ModuleType = pyarrow
    return made
