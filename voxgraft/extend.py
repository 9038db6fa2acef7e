"""The verb `extend`: one checkpoint file in, the same file with rows for every piece of a grown tokenizer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxgraft.checkpoints import (
    GrowthPlan,
    GrowthProof,
    GrowthReport,
    TableGrowth,
    grow_checkpoint,
    open_checkpoint,
    verify_growth,
)
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.errors import CheckpointError
from voxgraft.files import require_output_path
from voxgraft.reports import format_growth, format_new_rows
from voxgraft.results import Line
from voxgraft.rows import RowReport
from voxgraft.settings import ExtendSettings
from voxgraft.spelling import TextEncoder
from voxgraft.tables import (
    RowCount,
    build_new_rows,
    detect_checkpoint_family,
    find_tokenizer_beside,
    require_extended_tokenizer,
)
from voxgraft.tokenizers import open_tokenizer


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """What was copied, what grew, and whether every old bit was read back."""

    base_tokenizer: str
    counts: RowCount
    methods: dict[str, int]
    samples: tuple[RowReport, ...]
    report: GrowthReport
    proof: GrowthProof | None
    """What was read back and found the same bits; None where that was not asked for."""
    output: Path
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "base_tokenizer": self.base_tokenizer,
            "rows": self.counts.to_json(),
            "methods": self.methods,
            "samples": [sample.to_json() for sample in self.samples],
            "growth": self.report.to_json(),
            "read_back": self.proof.to_json() if self.proof else None,
            "output": str(self.output),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"base tokenizer: {self.base_tokenizer}"]
        lines += [self.counts.table(), *filter(None, [self.counts.spare_note()])]
        lines += format_new_rows(self.methods, self.samples)
        lines += format_growth(self.report)
        if self.proof:
            rows, tensors, compared = (
                f"{count:,}"
                for count in (self.proof.rows_identical, self.proof.tensors_identical, self.proof.bytes_compared)
            )
            lines.append(
                f"old rows are the same bits: {rows} old rows and {tensors} other tensors read back, {compared} bytes"
            )
        return [*lines, f"written to {self.output}"]


def extend(settings: ExtendSettings) -> ExtendResult:
    """Grow the text tables of a checkpoint. The input is only read; the output appears whole or not at all."""
    require_output_path(settings.output, overwrite=settings.overwrite)
    grown = open_tokenizer(settings.tokenizer)
    with open_checkpoint(settings.checkpoint) as checkpoint:
        _require_matching_suffix(checkpoint, settings.output)
        family = detect_checkpoint_family(checkpoint, settings.family)
        base_path = settings.base_tokenizer or find_tokenizer_beside(settings.checkpoint, family)
        base = open_tokenizer(base_path)
        require_extended_tokenizer(base, grown)
        made = build_new_rows(checkpoint, TextEncoder.of(family, base, grown, None), settings.rows)
        counts = RowCount(base.size, grown.size - base.size, family.spare_rows)
        plan = GrowthPlan({name: TableGrowth(base.size, family.spare_rows, rows) for name, rows in made.rows.items()})
        report = grow_checkpoint(checkpoint, plan, settings.output, overwrite=settings.overwrite, hashed=settings.hash)
        proof = _verify_extended(checkpoint, plan, settings.output) if settings.verify else None
    chosen = f"{base_path} (sha256 {base.sha256})"
    return ExtendResult(chosen, counts, made.methods, made.samples, report, proof, settings.output)


def _require_matching_suffix(checkpoint: Checkpoint, output: Path) -> None:
    """The format is kept, so a name that promises the other one would mislead every loader."""
    others = (".pt", ".pth", ".bin", ".ckpt") if checkpoint.format == "safetensors" else (".safetensors",)
    if output.suffix in others:
        found = f"the output is called {output.name}, and the input is a {checkpoint.format} file"
        raise CheckpointError("output-suffix", found, where=output)


def _verify_extended(checkpoint: Checkpoint, plan: GrowthPlan, output: Path) -> GrowthProof:
    """Prove the written file; one that fails is not left lying about."""
    try:
        with open_checkpoint(output) as written:
            return verify_growth(checkpoint, written, plan)
    except CheckpointError:
        output.unlink(missing_ok=True)
        raise
