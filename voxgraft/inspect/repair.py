"""The verb `repair`: a new file in which what was damaged is the base's again, and what was learnt has stayed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from voxgraft.checkpoints import open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.base import ByteSink, Checkpoint, CheckpointExtra
from voxgraft.checkpoints.grow import check_output_path
from voxgraft.checkpoints.load import (
    find_model_prefix,
    find_shards,
    forms_of,
    in_forms,
    list_other_model_tensors,
    strip_model_prefix,
)
from voxgraft.checkpoints.torch_file import STATE_DICT_KEYS
from voxgraft.checkpoints.write import STORAGE_CLASSES, TensorBytes, write_safetensors, write_torch
from voxgraft.config.commands import DiagnoseSettings, RepairSettings
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError
from voxgraft.core.files import atomic_write, compute_sha256, require_output_path, write_json
from voxgraft.core.results import Line, Table, style_line
from voxgraft.graft.rows import Float32Array, RowPlan, build_new_rows, init_rows, iter_base_tables
from voxgraft.inspect.diagnose import ListeningTest, PhoneErrors
from voxgraft.inspect.diagnosis import Diagnosis, diagnose_checkpoint
from voxgraft.inspect.repair_plan import RepairAction, RepairInputs, RepairOptions, plan_repair
from voxgraft.inspect.subject import find_text_tables, table_names
from voxgraft.inspect.verdict import Verdict
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer
from voxgraft.tokenizers.base import Tokenizer

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
OUTPUT_SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def write_repaired_checkpoint(
    tuned: Checkpoint, tensors: Mapping[str, TensorBytes], output: Path, *, overwrite: bool
) -> str:
    """Write all tensors, whole or not at all; the SHA-256 of the file."""
    if output.suffix not in OUTPUT_SUFFIXES:
        expected = f"a name that ends with {', '.join(OUTPUT_SUFFIXES)}"
        raise CheckpointError("output-suffix", f"the output is called {output.name}", expected=expected, where=output)
    size = sum(tensor.num_bytes for tensor in tensors.values())
    check_output_path(tuned, output, size)
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in STORAGE_CLASSES]
    if odd and output.suffix in TORCH_SUFFIXES:
        found = f"{odd[0]} is {tensors[odd[0]].dtype}, which is not written into torch archives here"
        raise CheckpointError("output-suffix", found, expected="NAME.safetensors", where=output)
    with (
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=True, advance=advance)
        if output.suffix in TORCH_SUFFIXES:
            write_torch(sink, tensors, wrapper=_output_wrapper_key(tuned), extras=_kept_extras(tuned))
        else:
            write_safetensors(sink, tensors, tuned.metadata)
        tuned.source.check_unchanged()
    assert sink.sha256 is not None
    return sink.sha256


def _output_wrapper_key(tuned: Checkpoint) -> str | None:
    """The key that the new file keeps its tensors under. Other programs do not know a pipeline's own (`t3`, `gpt`)."""
    return tuned.wrapper if tuned.wrapper in STATE_DICT_KEYS else None


def list_dropped_extras(tuned: Checkpoint, output: Path) -> list[CheckpointExtra]:
    """What the new file does not have: everything that is no tensor of the model and no plain value beside it."""
    kept = _kept_extras(tuned) if output.suffix in TORCH_SUFFIXES else {}
    return [extra for extra in tuned.extras if extra.name not in kept]


def _kept_extras(tuned: Checkpoint) -> dict[str, bool | int | float | str | None]:
    if _output_wrapper_key(tuned) is None:
        return {}
    return {extra.name: extra.value for extra in tuned.extras if extra.kept and extra.name != tuned.wrapper}


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
    from voxgraft.inspect.diagnose import open_listening_test

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


PointWriter = Callable[[float, Path], None]
"""Writes the whole file with the body at a point."""


@dataclass(frozen=True, slots=True)
class PointTrial:
    """What was heard at one point."""

    share: float
    errors: PhoneErrors
    """Phone errors by language."""
    within: bool
    """Whether no old language is worse than the base by more than was allowed."""

    def to_json(self) -> dict[str, Any]:
        return {"share": self.share, "phone_error": self.errors, "within": self.within}


def choose_repair_point(
    listening_test: ListeningTest, points: Sequence[float], max_worse: float, write: PointWriter
) -> tuple[float, list[PointTrial]]:
    """The best point of those given, and all of them."""
    tried = try_repair_points(listening_test, points, max_worse, write)
    return select_best_point(tried, listening_test.language).share, tried


def try_repair_points(
    listening_test: ListeningTest, points: Sequence[float], max_worse: float, write: PointWriter
) -> list[PointTrial]:
    """Every point, from the base on."""
    own = listening_test.base_errors()
    tried = []
    shares = sorted(set(points))
    with tempfile.TemporaryDirectory() as folder, progress.progress_task("listening to points", len(shares)) as advance:
        for share in shares:
            path = Path(folder) / "point.safetensors"
            write(share, path)
            errors = listening_test.errors(path, f"point {share:g}")
            within = all(errors.get(language, 1.0) <= error + max_worse for language, error in own.items())
            tried.append(PointTrial(share, errors, within))
            path.unlink()
            advance(1)
    return tried


def select_best_point(tried: Sequence[PointTrial], language: str | None) -> PointTrial:
    """Of the points that keep the old languages the one that is best in the new; where none keeps them, the nearest
    to the base. Without a new language, the farthest that keeps them. Of two that are equal the one nearer to the base.
    """
    within = [one for one in tried if one.within]
    if not within:
        return min(tried, key=lambda one: one.share)
    if language is None:
        return max(within, key=lambda one: one.share)
    return min(within, key=lambda one: (one.errors.get(language, 1.0), one.share))
