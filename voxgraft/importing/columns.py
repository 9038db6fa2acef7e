"""Datasets of the datasets library, on disk (arrow) or as parquet: rows one batch at a time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from voxgraft.errors import ConfigError, FileError
from voxgraft.files import format_error_reason
from voxgraft.importing.problems import SourceProblem
from voxgraft.importing.rows import COLUMN_ALIASES, TranscriptRow, parse_transcript_row

__all__ = ["COLUMNAR_SUFFIXES", "read_arrow_audio_names", "read_arrow_rows"]

COLUMNAR_SUFFIXES = (".parquet", ".arrow")
ARROW_BATCH_ROWS = 64
"""Sounds lie inside the rows, so that a few of them are megabytes."""


def read_arrow_rows(path: Path) -> Iterator[TranscriptRow | SourceProblem]:
    """Rows of one file in their order, and a problem for each that is none."""
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
    """Names of sounds that a file's rows mean, without the sounds themselves."""
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
        for batch in _iter_record_batches(arrow, stream):
            chosen = batch.select([name for name in batch.schema.names if name.lower() in wanted])
            if not sounds:
                chosen = _drop_audio_bytes(arrow, chosen)
            for first in range(0, chosen.num_rows, ARROW_BATCH_ROWS):
                yield chosen.slice(first, ARROW_BATCH_ROWS)


def _parquet_columns(arrow: ModuleType, field: Any, *, sounds: bool) -> list[str]:
    """A column as parquet names it: whole, or only the parts of it that hold no sound."""
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


def _iter_record_batches(arrow: ModuleType, stream: Any) -> Iterator[Any]:
    """Batches of either of the two forms that arrow files have."""
    try:
        reader = arrow.ipc.open_file(stream)
    except arrow.ArrowInvalid:
        stream.seek(0)
        yield from arrow.ipc.open_stream(stream)
        return
    for place in range(reader.num_record_batches):
        yield reader.get_batch(place)


def _import_pyarrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        cure = "pip install 'voxgraft[parquet]'"
        raise ConfigError("extra-missing", "reading parquet and arrow files needs pyarrow", cure=cure) from None
    made: ModuleType = pyarrow
    return made
