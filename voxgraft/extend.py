"""The verb `extend`: one checkpoint file in, the same file with rows for every piece of a grown tokenizer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.checkpoints.grow import GrowthPlan, GrowthReport, TableGrowth, grow, verify_growth
from voxgraft.checkpoints.opening import open_checkpoint
from voxgraft.errors import CheckpointError
from voxgraft.graft import make_tables, row_lines
from voxgraft.results import Line
from voxgraft.rows import RowReport
from voxgraft.settings import ExtendSettings
from voxgraft.spelling import Spelling
from voxgraft.tables import RowCount, family_of_checkpoint, require_fit, require_grown, tokenizer_beside
from voxgraft.tokenizers import open_tokenizer


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """What was copied, what grew, and whether every old bit was read back."""

    base_tokenizer: str
    counts: RowCount
    methods: dict[str, int]
    samples: tuple[RowReport, ...]
    report: GrowthReport
    verified: bool
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "base_tokenizer": self.base_tokenizer,
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [sample.to_json() for sample in self.samples],
            "growth": self.report.to_json(),
            "verified": self.verified,
            "output": str(self.output),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"base tokenizer: {self.base_tokenizer}"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += row_lines(self.methods, self.samples)
        lines += self.report.lines()
        if self.verified:
            lines.append("read back: every tensor and row that is not new is the same bits")
        return [*lines, f"written to {self.output}"]


def extend(settings: ExtendSettings) -> ExtendResult:
    """Grow the text tables of a checkpoint. The input is only read; the output appears whole or not at all."""
    grown = open_tokenizer(settings.tokenizer)
    with open_checkpoint(settings.checkpoint) as checkpoint:
        family = family_of_checkpoint(checkpoint, settings.family)
        base_path = settings.base_tokenizer or tokenizer_beside(settings.checkpoint, family)
        base = open_tokenizer(base_path)
        require_grown(base, grown)
        require_fit(checkpoint, family, base.size)
        spelling = Spelling.of(family, base, grown, None)
        made = make_tables(settings.checkpoint, spelling, settings.rows)
        counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
        plan = GrowthPlan({name: TableGrowth(base.size, family.spare_rows, rows) for name, rows in made.rows.items()})
        report = grow(checkpoint, plan, settings.output, overwrite=settings.overwrite, hashed=settings.hash)
        if settings.verify:
            with open_checkpoint(settings.output) as written:
                for difference in verify_growth(checkpoint, written, plan):
                    raise CheckpointError("growth-differs", difference, where=settings.output)
    chosen = f"{base_path} (sha256 {base.sha256})"
    return ExtendResult(chosen, counts, made.methods, made.samples, report, settings.verify, settings.output)
