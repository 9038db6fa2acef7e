"""The verb `repair`: a new file in which what was damaged is the base's again, and what was learnt has stayed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from voxgraft.bases import resolve_base_family, resolve_base_folder
from voxgraft.checkpoints import Checkpoint, open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.forms import forms_of, in_forms
from voxgraft.checkpoints.model import CheckpointExtra
from voxgraft.checkpoints.prefixes import find_model_prefix, list_other_model_tensors, strip_model_prefix
from voxgraft.checkpoints.shards import find_shards
from voxgraft.checkup_settings import DiagnoseSettings, RepairSettings
from voxgraft.diagnosing.looking import Diagnosis, diagnose_checkpoint
from voxgraft.diagnosing.verdict import Verdict
from voxgraft.errors import CheckpointError, ConfigError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.files import compute_sha256, require_output_path, write_json
from voxgraft.findings.text_tables import find_text_tables, table_names
from voxgraft.repairing.plan import RepairAction, RepairInputs, RepairOptions, plan_repair
from voxgraft.repairing.writing import OUTPUT_SUFFIXES, list_dropped_extras, write_repaired_checkpoint
from voxgraft.results import Line, Table, style_line
from voxgraft.rows import Float32Array, RowPlan, init_rows
from voxgraft.spelling import TextEncoder
from voxgraft.tables import build_new_rows, iter_base_tables
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

__all__ = ["RepairResult", "repair"]

REPORT_SUFFIX = ".repair.json"
_MAX_TENSORS_SHOWN = 12
_CODES_BY_REPAIR = {
    "rows": (
        "base-rows-changed",
        "base-rows-shrunk",
        "tensor-not-finite",
        "rows-shifted",
        "rows-swapped",
        "table-transposed",
    ),
    "spare": ("spare-row-copied", "spare-counted-twice"),
    "head": ("head-not-grown", "embedding-not-grown", "bias-not-grown", "head-missing"),
    "missing": ("body-missing", "body-form", "body-lost", "body-not-finite", "body-overflow", "speech-rows-lost"),
    "grow": ("ids-past-table", "rows-vs-tokenizer"),
}
"""By repair: findings of which the new file must have none."""
_REPAIR_VERDICT_STYLES = {"RESUME": "bold green", "REPAIR": "bold yellow", "START FRESH": "bold red"}


@dataclass(slots=True)
class RepairResult:
    """What was done, what is left out, and what a second look says of the new file."""

    input: Path
    output: Path
    report: Path
    repairs: RepairOptions
    before: Verdict
    after: Diagnosis
    done: list[RepairAction]
    left: list[CheckpointExtra]
    sha256: dict[str, str]
    tried_points: list[Any] = field(default_factory=list)
    """Points that were listened to."""

    @property
    def exit_code(self) -> int:
        return 0

    def to_json(self) -> dict[str, Any]:
        return {
            "input": str(self.input),
            "output": str(self.output),
            "sha256": self.sha256,
            "repairs": self.repairs.to_json(),
            "done": [one.to_json() for one in self.done],
            "left_out": [extra.name for extra in self.left],
            "points": [one.to_json() for one in self.tried_points],
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [f"before: {self.before.word}: {self.before.sentence}"]
        lines += [f"  {one.tensor}: {one.what}" for one in self.done[:_MAX_TENSORS_SHOWN]]
        lines += (
            [f"  and {len(self.done) - _MAX_TENSORS_SHOWN:,} tensors more"]
            if len(self.done) > _MAX_TENSORS_SHOWN
            else []
        )
        lines += [f"  left out: {extra.name} ({extra.description})" for extra in self.left]
        lines += self._tried_point_lines()
        word = self.after.verdict.word
        lines.append(style_line("after: ", (word, _REPAIR_VERDICT_STYLES[word]), f": {self.after.verdict.sentence}"))
        return [*lines, f"written to {self.output}", f"report: {self.report}"]

    def _tried_point_lines(self) -> list[Line]:
        if not self.tried_points:
            return []
        languages = list(self.tried_points[0].errors)
        rows = tuple(
            (
                f"{one.share:g}",
                *(f"{one.errors[name]:.1%}" for name in languages),
                "chosen" if one.share == self.repairs.share else "" if one.within else "loses old languages",
            )
            for one in self.tried_points
        )
        return [Table(("point", *(f"phone error {name}" for name in languages), ""), rows)]


def repair(settings: RepairSettings) -> RepairResult:
    """Repair what is asked for, or what a diagnosis names. The input is only read; the output appears whole or not."""
    folder = resolve_base_folder(settings.base)
    family = resolve_base_family(folder, settings.family)
    files = family.files(folder)
    report = settings.output.with_name(settings.output.name + REPORT_SUFFIX)
    _require_repair_outputs(settings, files, report)
    before = diagnose_checkpoint(_build_diagnose_settings(settings, settings.checkpoint))
    repairs = _choose_repairs(settings, before)
    with _open_repair_inputs(settings, family, files, before) as parts:
        tried: list[Any] = []
        if settings.choose:
            share, tried = _choose_body_share(settings, parts, files, repairs)
            repairs = replace(repairs, share=share)
        tensors, done = plan_repair(parts, repairs)
        written = write_repaired_checkpoint(parts.tuned, tensors, settings.output, overwrite=settings.overwrite)
        left = list_dropped_extras(parts.tuned, settings.output)
    after = _verify_repaired(settings, repairs)
    sha256 = {
        "input": _compute_checkpoint_sha256(settings.checkpoint),
        "base": compute_sha256(files.checkpoint),
        "output": written,
    }
    result = RepairResult(
        settings.checkpoint, settings.output, report, repairs, before.verdict, after, done, left, sha256, tried
    )
    write_json(report, result.to_json(), overwrite=settings.overwrite)
    return result


def _compute_checkpoint_sha256(path: Path) -> str:
    """Of a file; of a model in several files, that of all their bytes one after another."""
    if find_shards(path) is None:
        return compute_sha256(path)
    with open_any_checkpoint(path) as checkpoint:
        digest = hashlib.sha256()
        for chunk in checkpoint.source.chunks(0, checkpoint.source.size):
            digest.update(chunk)
        return digest.hexdigest()


def _require_repair_outputs(settings: RepairSettings, files: BaseFiles, report: Path) -> None:
    """Refuse what would only fail after minutes of work."""
    for path in (settings.output, report):
        require_output_path(path, overwrite=settings.overwrite)
    if settings.output.suffix not in OUTPUT_SUFFIXES:
        expected = f"a name that ends with {', '.join(OUTPUT_SUFFIXES)}"
        found = f"the output is called {settings.output.name}"
        raise CheckpointError("output-suffix", found, expected=expected, where=settings.output)
    for path in (settings.checkpoint, files.checkpoint):
        if settings.output.exists() and path.exists() and settings.output.samefile(path):
            found = f"{settings.output.name} is an input itself"
            raise CheckpointError("growth-onto-input", found, where=settings.output)
    if settings.choose and settings.body is not None:
        raise ConfigError("config-value", "--choose and --body are both given", expected="one of the two")


def _build_diagnose_settings(settings: RepairSettings, checkpoint: Path) -> DiagnoseSettings:
    return DiagnoseSettings(
        checkpoint=checkpoint,
        base=settings.base,
        tokenizer=settings.tokenizer,
        family=settings.family,
        report=False,
    )


def _choose_repairs(settings: RepairSettings, found: Diagnosis) -> RepairOptions:
    """What was named; else what the diagnosis names."""
    asked = set(settings.only) | ({"body"} if settings.body is not None or settings.choose else set())
    verdict = found.verdict
    names = asked or set(verdict.repairs)
    for item in found.findings:
        if item.code == "checkpoint-low-rank":  # what is missing would come from the base, and what was learnt be lost
            raise CheckpointError.of(item)
    if not names and verdict.word == "REPAIR":
        cure = "; ".join((verdict.reason, *verdict.commands))
        raise CheckpointError("repair-by-hand", verdict.sentence, where=settings.checkpoint, cure=cure)
    if not asked and verdict.word == "START FRESH":
        raise CheckpointError("repair-hopeless", verdict.sentence, where=settings.checkpoint)
    if not names and not _changes_format(settings):
        raise CheckpointError("repair-needless", verdict.sentence, where=settings.checkpoint)
    if not settings.only and not asked - {"body"} and verdict.word == "REPAIR":
        names = names | set(verdict.repairs)  # a point alone does not leave damaged rows as they are
    share = settings.body
    if share is None and "body" in names and not settings.choose:
        found_body = "a body is to be repaired, and its point between base and tuned is not said"
        raise ConfigError("config-missing", found_body, expected="--body SHARE, or --choose")
    # Rows that were only rounded are no fault, but a file that is written anew can have the base's own bits.
    rounded = not settings.only and any(item.code == "base-rows-rounded" for item in found.findings)
    return RepairOptions(
        rows="rows" in names or (rounded and bool(names - {"resave"})),
        spare="spare" in names,
        head="head" in names,
        missing="missing" in names,
        grow="grow" in names,
        share=share,
        unusable=found.unusable,
        not_finite=found.not_finite,
        lost_rows=found.lost_rows,
        moves={move.tensor: move for move in found.moves},
    )


def _changes_format(settings: RepairSettings) -> bool:
    """Whether the output is another format than the input, or has other names: then saving it again is the repair."""
    with open_any_checkpoint(settings.checkpoint) as checkpoint:
        converts = (settings.output.suffix == ".safetensors") != (checkpoint.format == "safetensors")
        old = checkpoint.format == "torch-legacy" or find_shards(settings.checkpoint) is not None
        return converts or old or bool(find_model_prefix(checkpoint) or list_other_model_tensors(checkpoint))


@contextmanager
def _open_repair_inputs(
    settings: RepairSettings, family: Family, files: BaseFiles, found: Diagnosis
) -> Iterator[RepairInputs]:
    own = open_tokenizer(files.tokenizer)
    grown = open_tokenizer(settings.tokenizer) if settings.tokenizer else None
    with ExitStack() as stack:
        base = stack.enter_context(open_checkpoint(files.checkpoint))
        tuned = strip_model_prefix(stack.enter_context(open_any_checkpoint(settings.checkpoint)))
        tuned = in_forms(tuned, forms_of(tuned, base, table_names(family)))
        pieces = grown.size if grown else _infer_num_pieces(tuned, family, own)

        @cache
        def made() -> dict[str, Float32Array]:
            return _build_repair_rows(settings, family, base, own, grown, pieces)

        yield RepairInputs(family, base, tuned, own.size, pieces, made, found.num_pieces_with_rows, found.second_spare)


def _infer_num_pieces(tuned: Checkpoint, family: Family, own: Tokenizer) -> int:
    """Without a tokenizer: as many as the largest table has rows for."""
    rows = [info.shape[0] for info in find_text_tables(tuned, family).values()]
    return max([own.size, *(count - family.spare_rows for count in rows)])


def _build_repair_rows(
    settings: RepairSettings, family: Family, base: Checkpoint, own: Tokenizer, grown: Tokenizer | None, pieces: int
) -> dict[str, Float32Array]:
    """New rows as `extend` makes them; without a tokenizer they start from the mean of the base's."""
    if grown is not None:
        return build_new_rows(base, TextEncoder.of(family, own, grown, None), settings.rows).rows
    everything = tuple(range(own.size))
    plans = [RowPlan(token, "", "mean", "", everything) for token in range(own.size, pieces)]
    tables = iter_base_tables(base, family, own.size)
    return {tensor: init_rows(table, plans, settings.rows, role) for tensor, role, table in tables}


def _choose_body_share(
    settings: RepairSettings, parts: RepairInputs, files: BaseFiles, repairs: RepairOptions
) -> tuple[float, list[Any]]:
    from voxgraft.diagnosing.hearing import open_listening_test
    from voxgraft.repairing.choosing import choose_repair_point

    asked = settings.tokenizer, settings.language, settings.sentences, settings.seed
    hearing = open_listening_test(parts.family, files, *asked)

    def write(share: float, path: Path) -> None:
        tensors, _ = plan_repair(parts, replace(repairs, share=share))
        write_repaired_checkpoint(parts.tuned, tensors, path, overwrite=False)

    return choose_repair_point(hearing, settings.points, settings.worse, write)


def _verify_repaired(settings: RepairSettings, repairs: RepairOptions) -> Diagnosis:
    """A second look at what was written; a file that still has what was to be put right is not left lying about."""
    after = diagnose_checkpoint(_build_diagnose_settings(settings, settings.output))
    codes = {code for name, mended in _CODES_BY_REPAIR.items() if getattr(repairs, name) for code in mended}
    wrong = [item for item in after.findings if item.code in codes and item.level == "error"]
    if wrong:
        settings.output.unlink(missing_ok=True)
        raise CheckpointError("repair-differs", wrong[0].found, where=settings.output)
    return after
