"""A checkpoint's text tables against a family and its tokenizer: do the rows fit, and what are the base's rows?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxgraft.checkpoints import Checkpoint
from voxgraft.checkpoints.dtypes import FLOAT_DTYPES
from voxgraft.errors import CheckpointError, FileError, Finding, TokenizerError, finding
from voxgraft.families import family_names, get_family
from voxgraft.families.base import Family
from voxgraft.results import Table
from voxgraft.rows import Float32Array, RowReport, build_row_reports, count_by_method, init_rows, plan_rows
from voxgraft.run_settings import RowSettings
from voxgraft.spelling import TextEncoder
from voxgraft.tokenizers.base import Tokenizer
from voxgraft.tokenizers.prove import check_tokenizer_structure


@dataclass(frozen=True, slots=True)
class RowCount:
    """The numbers that people look for, for one growth of a text table."""

    base_pieces: int
    new_pieces: int
    spare_rows: int

    @property
    def pieces(self) -> int:
        return self.base_pieces + self.new_pieces

    @property
    def rows(self) -> int:
        return self.pieces + self.spare_rows

    def table(self) -> Table:
        """Base pieces, new pieces, total, table rows, fixed, trained."""
        names = ("base pieces", "new pieces", "total", "spare", "table rows", "fixed", "trained")
        fixed = self.base_pieces + self.spare_rows
        values = (self.base_pieces, self.new_pieces, self.pieces, self.spare_rows, self.rows, fixed, self.new_pieces)
        return Table(names, (tuple(f"{value:,}" for value in values),))

    def spare_note(self) -> str | None:
        """Why there is a row more than pieces, where that is so."""
        if not self.spare_rows:
            return None
        return (
            f"{self.rows:,} rows for {self.pieces:,} pieces is right: the last row is a spare that no text indexes. "
            "It stays last, and no new piece starts from it."
        )

    def to_json(self) -> dict[str, int]:
        return {
            "base_pieces": self.base_pieces,
            "new_pieces": self.new_pieces,
            "pieces": self.pieces,
            "spare_rows": self.spare_rows,
            "table_rows": self.rows,
        }


def detect_checkpoint_family(checkpoint: Checkpoint, name: str | None) -> Family:
    """The family that was named, else the one whose text tables are in the file."""
    if name is not None:
        return get_family(name)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    families = list(map(get_family, family_names()))
    recognised = (candidate for candidate in families if candidate.matches_tensors(shapes))
    # The embedding: all call their head alike, and a file without a whole body can be grown too.
    tables = (candidate for candidate in families if candidate.graft_points[0].tensor in shapes)
    for candidate in (*recognised, *tables):
        return candidate
    looked = ", ".join(f"{kind}: {get_family(kind).graft_points[0].tensor}" for kind in family_names())
    found = f"no text table of a known family among {len(checkpoint.tensors):,} tensors (looked for {looked})"
    raise CheckpointError("checkpoint-family", found, where=checkpoint.path)


def text_table_findings(checkpoint: Checkpoint, found_family: Family, pieces: int) -> list[Finding]:
    """Every way in which the file's text tables do not fit a tokenizer of that many pieces."""
    expected = pieces + found_family.spare_rows
    rows: dict[str, int] = {}
    findings: list[Finding] = []
    where = checkpoint.path
    for point in found_family.graft_points:
        info = checkpoint.tensors.get(point.tensor)
        if info is None:
            findings.append(finding("tensor-missing", f"{point.tensor} is not in the file", where=where))
            continue
        if info.dtype not in FLOAT_DTYPES or len(info.shape) != (1 if point.role == "head-bias" else 2):
            found = f"{point.tensor} is {info.dtype} {list(info.shape)}"
            findings.append(finding("tensor-shape", found, expected="float rows", where=where))
            continue
        rows[point.tensor] = info.shape[0]
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{name} has {count:,} rows" for name, count in rows.items())
        short = {point.role for point in found_family.graft_points if rows.get(point.tensor, 0) < max(rows.values())}
        code = "embedding-not-grown" if "embedding" in short else "head-not-grown"
        if short == {"head-bias"}:
            code = "bias-not-grown"
        findings.append(finding(code, found, expected="equal row counts", where=where))
    for name, count in rows.items():
        if count != expected:
            code = "ids-past-table" if count < pieces else "rows-vs-tokenizer"
            spare = f" + {found_family.spare_rows} spare" if found_family.spare_rows else ""
            found = f"{name} has {count:,} rows, the tokenizer {pieces:,} pieces"
            findings.append(finding(code, found, expected=f"{pieces:,} pieces{spare} = {expected:,} rows", where=where))
            break
    return findings


def require_text_tables_fit(checkpoint: Checkpoint, found_family: Family, pieces: int) -> None:
    """Raise the first of `row_findings`."""
    for item in text_table_findings(checkpoint, found_family, pieces):
        raise CheckpointError.of(item)


def require_extended_tokenizer(base: Tokenizer, grown: Tokenizer) -> None:
    """The grown tokenizer must be the base's with pieces appended, without gaps: raise the first finding else."""
    for item in check_tokenizer_structure(base, grown, None):
        raise TokenizerError.of(item)


def iter_base_tables(
    checkpoint: Checkpoint, found_family: Family, pieces: int
) -> Iterator[tuple[str, str, Float32Array]]:
    """Tensor name, role and base rows (without the spare) of each text table, one at a time."""
    for point in found_family.graft_points:
        values = checkpoint.read_rows(point.tensor, 0, pieces)
        table = values.astype(np.float32, copy=False)
        if not np.isfinite(table).all():
            found = f"{point.tensor} holds values that are not finite"
            raise CheckpointError("tensor-not-finite", found, where=checkpoint.path)
        yield point.tensor, point.role, table


def find_tokenizer_beside(checkpoint: Path, found_family: Family) -> Path:
    """The tokenizer that lies in one base folder with its checkpoint."""
    try:
        return found_family.find_tokenizer(checkpoint)
    except FileError as error:
        found = f"the base's tokenizer is not beside {checkpoint.name}: {error.finding.found}"
        expected, cure = error.finding.expected, "name it with --base-tokenizer."
        raise FileError(error.code, found, expected=expected, where=checkpoint.parent, cure=cure) from None


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows by tensor, how many were made which way, and a sample to look at."""

    rows: dict[str, Float32Array]
    methods: dict[str, int]
    samples: tuple[RowReport, ...]


def build_new_rows(checkpoint: Checkpoint, spelling: TextEncoder, settings: RowSettings) -> NewRows:
    """New rows for every text table of a base checkpoint; an error if its rows do not fit the base's tokenizer."""
    require_text_tables_fit(checkpoint, spelling.family, spelling.base.size)
    plans = plan_rows(spelling, settings.init)
    rows: dict[str, Float32Array] = {}
    samples: tuple[RowReport, ...] = ()
    for tensor, role, table in iter_base_tables(checkpoint, spelling.family, spelling.base.size):
        rows[tensor] = init_rows(table, plans, settings, role)
        if role == "embedding":
            samples = tuple(build_row_reports(table, rows[tensor], plans, spelling))
    return NewRows(rows, count_by_method(plans), samples)
