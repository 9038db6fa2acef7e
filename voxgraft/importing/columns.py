"""Datasets of the datasets library, on disk (arrow) or as parquet: rows one batch at a time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from voxgraft.errors import ConfigError, FileError
from voxgraft.files import reason_of
from voxgraft.importing.problems import Problem
from voxgraft.importing.rows import COLUMNS, Row, row_of

__all__ = ["COLUMN_ENDINGS", "read_columns"]

COLUMN_ENDINGS = (".parquet", ".arrow")
ROWS_AT_ONCE = 64
"""Sounds lie inside the rows, so that a few of them are megabytes."""


def read_columns(path: Path) -> Iterator[Row | Problem]:
    """Rows of one file in their order, and a problem for each that is none."""
    arrow = _pyarrow()
    wanted = {name for names in COLUMNS.values() for name in names}
    number = 0
    try:
        for batch in _batches(arrow, path, wanted):
            for values in batch.to_pylist():
                number += 1
                made = row_of(values, number)
                yield Problem("table-line", made, path.name, number) if isinstance(made, str) else made
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise FileError("table-unknown", f"{path.name}: {reason_of(error)}", where=path) from None


def _batches(arrow: ModuleType, path: Path, wanted: set[str]) -> Iterator[Any]:
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as table:
            names = [name for name in table.schema_arrow.names if name.lower() in wanted]
            yield from table.iter_batches(batch_size=ROWS_AT_ONCE, columns=names)
        return
    with arrow.memory_map(str(path)) as stream:
        for batch in _opened(arrow, stream):
            names = [name for name in batch.schema.names if name.lower() in wanted]
            chosen = batch.select(names)
            for first in range(0, chosen.num_rows, ROWS_AT_ONCE):
                yield chosen.slice(first, ROWS_AT_ONCE)


def _opened(arrow: ModuleType, stream: Any) -> Iterator[Any]:
    """Batches of either of the two forms that arrow files have."""
    try:
        reader = arrow.ipc.open_file(stream)
    except arrow.ArrowInvalid:
        stream.seek(0)
        yield from arrow.ipc.open_stream(stream)
        return
    for place in range(reader.num_record_batches):
        yield reader.get_batch(place)


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        cure = "pip install 'voxgraft[parquet]'"
        raise ConfigError("extra-missing", "reading parquet and arrow files needs pyarrow", cure=cure) from None
    made: ModuleType = pyarrow
    return made
