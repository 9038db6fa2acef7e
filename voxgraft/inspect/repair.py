"""The command `repair`: write a new file in which what was damaged is the base's again, and what was learned stays.

`plan_repair` says for every tensor of the new file what it consists of: chunks of the checkpoint, of the base, and rows
that are built from the base's. A tensor is a function that gives its bytes, so nothing is read before it is written.
Which repairs are needed is decided by `verdict`; the result is diagnosed again before it is kept.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voxgraft.checkpoints import open_any_checkpoint, open_checkpoint
from voxgraft.checkpoints.base import (
    FLOAT_DTYPES,
    ByteSink,
    Checkpoint,
    CheckpointExtra,
    Scalar,
    TensorInfo,
    from_float32,
    pair_chunks,
    to_float32,
)
from voxgraft.checkpoints.load import (
    find_model_prefix,
    find_shards,
    forms_of,
    in_forms,
    iter_values,
    list_other_model_tensors,
    strip_model_prefix,
    unwrap_parts,
)
from voxgraft.checkpoints.torch_file import STATE_DICT_KEYS
from voxgraft.checkpoints.write import STORAGE_CLASSES, TensorBytes, check_output_path, write_safetensors, write_torch
from voxgraft.config.commands import DiagnoseSettings, RepairSettings
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, exclusive_error
from voxgraft.core.files import atomic_write, compute_sha256, require_output_path, write_json
from voxgraft.core.results import Line, Table, style_line
from voxgraft.graft.rows import Float32Array, RowPlan, build_new_rows, init_rows, iter_base_tables
from voxgraft.inspect.body import body_tensor_names, find_ruined_values
from voxgraft.inspect.diagnose import (
    VERDICT_STYLES,
    Diagnosis,
    ListeningTest,
    PhoneErrors,
    diagnose_checkpoint,
    open_listening_test,
)
from voxgraft.inspect.rows import SPARE_SAMPLE_ROWS, RowMove, is_spare_copy
from voxgraft.inspect.subject import BLOCK_ROWS, are_rows_finite, find_text_tables, table_names
from voxgraft.inspect.verdict import Verdict
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family
from voxgraft.text.encoder import TextEncoder
from voxgraft.tokenizers import open_tokenizer

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
OUTPUT_SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
REPORT_SUFFIX = ".repair.json"
MAX_FLOAT16 = 65504.0
_MAX_TENSORS_SHOWN = 12
# By repair: findings of which the new file must have none.
_CODES_BY_REPAIR = {
    "rows": "base-rows-changed base-rows-shrunk tensor-not-finite rows-shifted rows-swapped table-transposed".split(),
    "spare": ["spare-row-copied", "spare-counted-twice", "rows-padded"],
    "head": ["head-not-grown", "embedding-not-grown", "bias-not-grown", "head-missing"],
    "missing": "body-missing body-form body-lost body-not-finite body-overflow speech-rows-lost".split(),
    "grow": ["ids-past-table", "rows-vs-tokenizer"],
}
ChunkFactory = Callable[[], Iterator[bytes | memoryview]]


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What to repair. `share` is the backbone's point between the base (0) and the tuned one (1); None leaves it."""

    rows: bool = False
    spare: bool = False
    head: bool = False
    missing: bool = False
    grow: bool = False
    share: float | None = None
    unusable: tuple[str, ...] = ()
    """Tensors of the backbone that come from the base together with those that are missing."""
    not_finite: tuple[str, ...] = ()
    """Tensors of the backbone of which single values come from the base."""
    lost_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tables of the backbone of which single rows do."""
    moves: Mapping[str, RowMove] = field(default_factory=dict)
    """Text tables whose new rows are not in their places."""

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "moves"}
        moves = {name: {"how": move.how, "shift": move.shift} for name, move in self.moves.items()}
        return {**plain, "lost_rows": {name: list(rows) for name, rows in self.lost_rows.items()}, "moves": moves}

    def patches(self, tensor: str) -> bool:
        """Whether single values or rows of a tensor of the backbone come from the base."""
        return self.missing and (tensor in self.not_finite or tensor in self.lost_rows)


class RepairInputs(NamedTuple):
    """The two files, and what is known of their rows."""

    family: Family
    base: Checkpoint
    tuned: Checkpoint
    base_pieces: int
    pieces: int
    """Base pieces and new ones."""
    made: Callable[[], dict[str, Float32Array]]
    """New rows by tensor, built from the base when they are first needed."""
    num_pieces_with_rows: int = 0
    """Pieces that the embedding has rows for: all of its rows but a spare one behind them."""
    num_unread: int = 0
    """Rows behind the pieces that were provably never read, beside the spare one."""


class PointTrial(NamedTuple):
    """The transcript at one point between base and tuned."""

    share: float
    errors: PhoneErrors
    within: bool
    """Whether no old language is worse than the base by more than was allowed."""


# What was done: tensor, and words.
Actions = list[tuple[str, str]]


@dataclass(slots=True)
class RepairResult:
    """What was done, what is left out, and what a second diagnosis says of the new file."""

    input: Path
    output: Path
    report: Path
    repairs: RepairOptions
    before: Verdict
    after: Diagnosis
    done: Actions
    left: list[CheckpointExtra]
    sha256: dict[str, str]
    tried_points: list[PointTrial] = field(default_factory=list)
    unspoken: str = ""
    """Why the new language was not spoken to choose the point."""

    @property
    def exit_code(self) -> int:
        return 0

    def to_json(self) -> dict[str, Any]:
        return {
            "input": str(self.input),
            "output": str(self.output),
            "sha256": self.sha256,
            "repairs": self.repairs.to_json(),
            "done": [{"tensor": tensor, "what": what} for tensor, what in self.done],
            "left_out": [extra.name for extra in self.left],
            "points": [
                {"share": one.share, "phone_error": one.errors, "within": one.within} for one in self.tried_points
            ],
            "unspoken": self.unspoken,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }

    def lines(self) -> list[Line]:
        lines: list[Line] = [
            f"before: {self.before.word}: {self.before.sentence}",
            "repaired:" if self.done else "repaired: nothing",
        ]
        lines += [f"  {tensor}: {what}" for tensor, what in self.done[:_MAX_TENSORS_SHOWN]]
        if len(self.done) > _MAX_TENSORS_SHOWN:
            lines.append(f"  and {len(self.done) - _MAX_TENSORS_SHOWN:,} more tensors")
        lines += [f"  left out: {extra.name} ({extra.description})" for extra in self.left]
        lines += [f"warning: {self.unspoken}"] if self.unspoken else []
        if self.tried_points:
            languages = list(self.tried_points[0].errors)
            rows = tuple(
                (
                    f"{one.share:g}",
                    *(f"{one.errors[name]:.1%}" for name in languages),
                    "chosen" if one.share == self.repairs.share else "" if one.within else "loses old languages",
                )
                for one in self.tried_points
            )
            lines.append(Table(("point", *(f"phone error {name}" for name in languages), ""), rows))
        word = self.after.verdict.word
        more = "no further repair is needed; " if word == "RESUME" else ""
        lines.append(style_line("after: ", (word, VERDICT_STYLES[word]), f": {more}{self.after.verdict.sentence}"))
        return [*lines, f"written to {self.output}", f"report: {self.report}"]


def repair(settings: RepairSettings) -> RepairResult:
    """Repair what is requested, or what a diagnosis names. The input is only read; the output appears whole or not."""
    folder = resolve_base_folder(settings.base)
    family = resolve_base_family(folder, settings.family)
    files = family.files(folder)
    report = settings.output.with_name(settings.output.name + REPORT_SUFFIX)
    _require_repair_outputs(settings, files, report)
    _require_language_of_tokenizer(settings, family, files)
    before = diagnose_checkpoint(_build_diagnose_settings(settings, settings.checkpoint))
    repairs = _choose_repairs(settings, before)
    with _open_repair_inputs(settings, family, files, before) as parts:
        tried: list[PointTrial] = []
        unspoken = ""
        if settings.choose:
            options = settings.tokenizer, settings.language, settings.max_sentences, settings.seed
            listening_test = open_listening_test(family, files, *options)
            language = settings.language
            if language is not None and language not in (listening_test.language, *family.languages):
                why = listening_test.transcriber.why_unsupported(language)
                found = f"--language is {language}, but {why or 'there are no sentences to speak in it'}"
                unspoken = f"{found}: only old languages are spoken to choose the mix"
            tried = _try_points(settings, parts, repairs, listening_test)
            repairs = replace(repairs, share=select_best_point(tried, listening_test.language).share)
        tensors, done = plan_repair(parts, repairs)
        written = write_repaired_checkpoint(parts.tuned, tensors, settings.output, overwrite=settings.overwrite)
        # Everything that is no tensor of the model and no plain value beside it is left out.
        kept_extras = _kept_wrapper(parts.tuned)[1] if settings.output.suffix in TORCH_SUFFIXES else {}
        left_out = [extra for extra in parts.tuned.extras if extra.name not in kept_extras]
    after = diagnose_checkpoint(_build_diagnose_settings(settings, settings.output))
    codes = {
        code for name, repaired_codes in _CODES_BY_REPAIR.items() if getattr(repairs, name) for code in repaired_codes
    }
    for item in after.findings:
        if item.code in codes and item.level == "error":  # a file that still has the fault must not be left behind
            settings.output.unlink(missing_ok=True)
            raise CheckpointError("repair-differs", item.found, where=settings.output)
    if find_shards(settings.checkpoint) is None:
        input_sha256 = compute_sha256(settings.checkpoint)
    else:  # of a model in several files, that of all their bytes one after another
        with open_any_checkpoint(settings.checkpoint) as checkpoint:
            digest = hashlib.sha256()
            for chunk in checkpoint.source.chunks(0, checkpoint.source.size):
                digest.update(chunk)
            input_sha256 = digest.hexdigest()
    sha256 = {"input": input_sha256, "base": compute_sha256(files.checkpoint), "output": written}
    result = RepairResult(
        settings.checkpoint,
        settings.output,
        report,
        repairs,
        before.verdict,
        after,
        done,
        left_out,
        sha256,
        tried,
        unspoken,
    )
    write_json(report, result.to_json(), overwrite=settings.overwrite)
    return result


def _require_repair_outputs(settings: RepairSettings, files: BaseFiles, report: Path) -> None:
    """Refuse what would only fail after minutes of work."""
    for path in (settings.output, report):
        require_output_path(path, overwrite=settings.overwrite)
    if settings.output.suffix not in OUTPUT_SUFFIXES:
        expected = f"a name that ends with {', '.join(OUTPUT_SUFFIXES)}"
        found = f"the output is named {settings.output.name}"
        raise CheckpointError("output-suffix", found, expected=expected, where=settings.output)
    for path in (settings.checkpoint, files.checkpoint):
        if settings.output.exists() and path.exists() and settings.output.samefile(path):
            found = f"{settings.output.name} is an input file"
            raise CheckpointError("growth-onto-input", found, where=settings.output)
    if settings.choose and settings.body is not None:
        raise exclusive_error("--choose", "--body")


def _require_language_of_tokenizer(settings: RepairSettings, family: Family, files: BaseFiles) -> None:
    """Refuse a new language that the checkpoint's tokenizer does not have: its speech would say nothing."""
    language = settings.language
    if language is None or language in family.languages:
        return
    if not settings.choose:
        cure = "add --choose, or leave out --language."
        found = "--language is given without --choose"
        raise ConfigError("config-value", found, expected="--choose", where="command line", cure=cure)
    if settings.tokenizer is None:
        found = f"--language is {language}, but --tokenizer (the tokenizer with this language) is not given"
        cure = "add --tokenizer FILE. Or leave out --language: then the mix is chosen by speech in old languages only."
        raise ConfigError("config-missing", found, expected="--tokenizer FILE", where="command line", cure=cure)
    tokenizer, tag = open_tokenizer(settings.tokenizer), family.tag(language)
    if tag is not None and not tokenizer.has_control_token(tag):
        new = [piece for piece in tokenizer.pieces[open_tokenizer(files.tokenizer).size :] if piece]
        others = [piece[1:-1] for piece in new if len(piece) > 2 and family.tag(piece[1:-1]) == piece]
        found = f"--language is {language}, but {settings.tokenizer.name} has no tag {tag}"
        expected = f"one of {', '.join(others)}" if others else f"a tokenizer with {tag}"
        raise ConfigError("repair-language", found, expected=expected, where=settings.tokenizer)


def _build_diagnose_settings(settings: RepairSettings, checkpoint: Path) -> DiagnoseSettings:
    same = {"base": settings.base, "tokenizer": settings.tokenizer, "family": settings.family}
    return DiagnoseSettings(checkpoint=checkpoint, report=False, **same)


def _choose_repairs(settings: RepairSettings, found: Diagnosis) -> RepairOptions:
    """What was named; else what the diagnosis names."""
    requested = set(settings.only) | ({"body"} if settings.body is not None or settings.choose else set())
    verdict = found.verdict
    names = requested or set(verdict.repairs)
    for item in found.findings:
        if item.code == "checkpoint-low-rank":  # what is missing would come from the base, and what was learned be lost
            raise CheckpointError.of(item)
    if not names and verdict.word == "REPAIR":
        # "then voxgraft diagnose NEW" follows what is to be done by hand.
        steps = " ".join(f"Then run `{command.removeprefix('then ')}`." for command in verdict.commands)
        cure = f"{verdict.reason.removeprefix('by hand: ')} {steps}"
        raise CheckpointError("repair-by-hand", verdict.sentence, where=settings.checkpoint, cure=cure)
    if not requested and verdict.word == "START FRESH":
        fault, _, detail = verdict.sentence.partition(": ")
        commands = ", then ".join(f"`{command}`" for command in verdict.commands)
        cure = f"{verdict.reason}. To start over from the base: {commands}."
        text = f"{fault} ({detail})" if detail else fault
        raise CheckpointError("repair-hopeless", text, where=settings.checkpoint, cure=cure)
    if not names:
        # Where the output has another format or other names than the input, saving it again is the repair.
        with open_any_checkpoint(settings.checkpoint) as checkpoint:
            converts = (settings.output.suffix == ".safetensors") != (checkpoint.format == "safetensors")
            old = checkpoint.format == "torch-legacy" or find_shards(settings.checkpoint) is not None
            plain = unwrap_parts(checkpoint)
            renames = plain is not checkpoint or bool(find_model_prefix(plain) or list_other_model_tensors(plain))
        if not (converts or old or renames):
            raise CheckpointError("repair-needless", verdict.sentence, where=settings.checkpoint)
    if not settings.only and not requested - {"body"} and verdict.word == "REPAIR":
        names = names | set(verdict.repairs)  # a point alone does not leave damaged rows as they are
    share = settings.body
    if share is None and "body" in names and not settings.choose:
        found_body = "the backbone needs a repair, but its mix of base and trained weights is not set"
        raise ConfigError("config-missing", found_body, expected="--body SHARE, or --choose")
    # Rows that were only rounded are no fault, but a file that is written again can have the base's own bits.
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


@contextmanager
def _open_repair_inputs(
    settings: RepairSettings, family: Family, files: BaseFiles, found: Diagnosis
) -> Iterator[RepairInputs]:
    own = open_tokenizer(files.tokenizer)
    grown = open_tokenizer(settings.tokenizer) if settings.tokenizer else None
    with ExitStack() as stack:
        base = stack.enter_context(open_checkpoint(files.checkpoint))
        tuned = strip_model_prefix(stack.enter_context(open_any_checkpoint(settings.checkpoint)))
        tuned = in_forms(tuned, *forms_of(tuned, base, table_names(family)))
        # Without a tokenizer: as many pieces as the largest table has rows for.
        rows = [info.shape[0] - family.spare_rows for info in find_text_tables(tuned, family).values()]
        pieces = grown.size if grown else max([own.size, *rows])

        @cache
        def made() -> dict[str, Float32Array]:
            if grown is not None:  # new rows as `extend` makes them
                return build_new_rows(base, TextEncoder.of(family, own, grown, None), settings.rows).rows
            everything = tuple(range(own.size))  # without a tokenizer they start from the mean of the base's
            plans = [RowPlan(token, "", "mean", "", everything) for token in range(own.size, pieces)]
            tables = iter_base_tables(base, family, own.size)
            return {tensor: init_rows(table, plans, settings.rows, role) for tensor, role, table in tables}

        yield RepairInputs(family, base, tuned, own.size, pieces, made, found.num_pieces_with_rows, found.num_unread)


def write_repaired_checkpoint(
    tuned: Checkpoint, tensors: Mapping[str, TensorBytes], output: Path, *, overwrite: bool
) -> str:
    """Write all tensors atomically; the SHA-256 of the file."""
    size = sum(tensor.num_bytes for tensor in tensors.values())
    check_output_path(tuned, output, size)
    unsupported = [name for name, tensor in tensors.items() if tensor.dtype not in STORAGE_CLASSES]
    if unsupported and output.suffix in TORCH_SUFFIXES:
        found = f"{unsupported[0]} is {tensors[unsupported[0]].dtype}, which voxgraft cannot write into a torch file"
        raise CheckpointError("output-suffix", found, expected="NAME.safetensors", where=output)
    with (
        atomic_write(output, overwrite=overwrite) as stream,
        progress.progress_task(f"writing {output.name}", size) as advance,
    ):
        sink = ByteSink(stream, hashed=True, advance=advance)
        if output.suffix in TORCH_SUFFIXES:
            wrapper, extras = _kept_wrapper(tuned)
            write_torch(sink, tensors, wrapper=wrapper, extras=extras)
        else:
            write_safetensors(sink, tensors, tuned.metadata)
        tuned.source.check_unchanged()
    assert sink.sha256 is not None
    return sink.sha256


def _kept_wrapper(tuned: Checkpoint) -> tuple[str | None, dict[str, Scalar]]:
    """The key that the new torch file keeps its tensors under, and the plain values beside it.

    Other programs do not know a pipeline's own key (`t3`, `gpt`).
    """
    if tuned.wrapper not in STATE_DICT_KEYS:
        return None, {}
    extras = {extra.name: extra.value for extra in tuned.extras if extra.kept and extra.name != tuned.wrapper}
    return tuned.wrapper, extras


def _try_points(
    settings: RepairSettings, parts: RepairInputs, repairs: RepairOptions, listening_test: ListeningTest
) -> list[PointTrial]:
    """Write the file at every point between base and tuned, from the base on, and listen to each."""
    base_errors = listening_test.base_errors()
    tried = []
    shares = sorted(set(settings.points))
    with (
        tempfile.TemporaryDirectory() as folder,
        progress.progress_task("evaluating interpolation points", len(shares)) as advance,
    ):
        for share in shares:
            path = Path(folder) / "point.safetensors"
            tensors, _ = plan_repair(parts, replace(repairs, share=share))
            write_repaired_checkpoint(parts.tuned, tensors, path, overwrite=False)
            errors = listening_test.errors(path, f"point {share:g}")
            within = all(errors.get(name, 1.0) <= error + settings.worse for name, error in base_errors.items())
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


def plan_repair(parts: RepairInputs, repairs: RepairOptions) -> tuple[dict[str, TensorBytes], Actions]:
    """All tensors of the new file, in the order of the checkpoint's, and what is done to which of them."""
    done: Actions = []
    tables = _plan_tables(parts, repairs, done)
    body = dict.fromkeys(body_tensor_names(parts.base, parts.family))
    tuned = parts.tuned.tensors
    tensors: dict[str, TensorBytes] = {}
    for name, info in tuned.items():
        # A second name for a table (a tied head) gets the table's new bytes.
        alias = [one for one in tables if one in tuned and info.storage and info.same_bytes(tuned[one])]
        if name in tables or alias:
            tensors[name] = tables[name if name in tables else alias[0]]
        elif name in body and repairs.missing and name in repairs.unusable:
            tensors[name] = _take_from_base(parts, name, "because it was unusable", done)
        elif name in body and (repairs.share is not None or repairs.patches(name)):
            tensors[name] = _repair_body_tensor(parts, info, repairs, done)
        else:
            tensors[name] = _copy_tensor(parts.tuned, info)
    tensors |= {name: table for name, table in tables.items() if name not in tensors}
    if repairs.missing or repairs.share is not None:
        for name in [name for name in body if name not in tensors]:
            tensors[name] = _take_from_base(parts, name, "because it was missing", done)
    return tensors, done


def _take_from_base(parts: RepairInputs, name: str, why: str, done: Actions) -> TensorBytes:
    done.append((name, f"taken from the base, {why}"))
    return _copy_tensor(parts.base, parts.base.tensors[name])


def _copy_tensor(checkpoint: Checkpoint, info: TensorInfo) -> TensorBytes:
    return TensorBytes(info.dtype, info.shape, lambda: checkpoint.iter_bytes(info))


def _plan_tables(parts: RepairInputs, repairs: RepairOptions, done: Actions) -> dict[str, TensorBytes]:
    """The text tables: base rows, new rows, spare rows, each from where it is whole."""
    base_tables = find_text_tables(parts.base, parts.family)
    tables: dict[str, TensorBytes] = {}
    if not (repairs.rows or repairs.spare or repairs.head or repairs.grow):
        return tables
    tuned_tables = find_text_tables(parts.tuned, parts.family)
    for point, info in tuned_tables.items() if repairs.rows else ():
        move = repairs.moves.get(info.name)
        source = parts.tuned.tensors.get(move.source) if move is not None and move.how == "swapped" else None
        if source is not None:  # two tables were swapped: the other one has this one's rows
            tuned_tables[point] = replace(source, name=info.name)
    embedding = next((info for point, info in tuned_tables.items() if point.role == "embedding"), None)
    for point, old in base_tables.items() if repairs.head and embedding is not None else ():
        # A head that is missing, or is none by its form, is a table without rows, in the format of the embedding.
        if embedding is not None and point.role != "embedding" and point not in tuned_tables:
            tuned_tables[point] = replace(old, dtype=embedding.dtype, shape=(0, *old.shape[1:]), storage="")
    for point, info in tuned_tables.items():
        base_info = base_tables.get(point)
        if base_info is None or base_info.shape[1:] != info.shape[1:] or base_info.shape[0] < parts.base_pieces:
            found = f"{info.name} has the shape {list(info.shape)}; " + (
                f"in the base it is {list(base_info.shape)}" if base_info else "the base does not have it"
            )
            raise CheckpointError("repair-misfit", found, where=parts.tuned.path)
        tables[info.name] = _TableRepair(parts, repairs, base_info, info).tensor(done)
    return tables


class _TableRepair:
    """Puts one text table together: base rows, new rows and spare rows, each as a function that gives its bytes."""

    def __init__(self, parts: RepairInputs, repairs: RepairOptions, old: TensorInfo, tuned: TensorInfo) -> None:
        self.parts, self.repairs, self.old, self.tuned = parts, repairs, old, tuned
        self.move = repairs.moves.get(tuned.name) if repairs.rows or repairs.head else None
        self.shift = self.move.shift if self.move is not None and self.move.how in ("shifted", "swapped") else 0
        self.dtype = tuned.dtype
        if tuned.dtype == "F16":  # the checkpoint's own format, unless that cannot hold the base's rows
            rows = _read_floats(parts.base, old.rows(0, min(old.shape[0], parts.base_pieces)))
            self.dtype = "F32" if rows.size and float(np.abs(rows).max()) > MAX_FLOAT16 else "F16"

    def tensor(self, done: Actions) -> TensorBytes:
        parts, spare = self.parts, self.parts.family.spare_rows
        most = parts.pieces + spare + (parts.num_unread if self.repairs.spare else 0) + max(self.shift, 0)
        if self.tuned.shape[0] > most:  # to cut them off would throw away what was learned
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows for {parts.pieces:,} tokens"
            expected = f"{most:,} rows or fewer, or the tokenizer that it was trained with"
            raise CheckpointError("repair-misfit", found, expected=expected, where=parts.tuned.path)
        if self.move is not None and self.move.how != "copied":
            how = f"in {self.move.source}" if self.move.source else ""
            how += f"{' and ' if how else ''}{abs(self.shift):,} rows too far" if self.shift else ""
            done.append((self.tuned.name, f"new rows were {how}; moved back"))
        base, pieces = parts.base_pieces, parts.pieces
        if self.repairs.rows or (self.move is not None and self.move.how == "copied") or not self.tuned.shape[0]:
            done.append((self.tuned.name, f"rows 0 to {base - 1:,} are the base's"))
            segments = [self._chunks(parts.base, self.old, 0, base)]
        else:
            self._require(base)
            segments = [self._chunks(parts.tuned, self.tuned, 0, base)]
        # New rows from where they are, in runs of neighbours; rows without a position are made from the base's.
        positions = self._row_positions(done).tolist()
        start = 0
        while start < len(positions):
            stop, step = start + 1, int(positions[start] >= 0)
            while stop < len(positions) and positions[stop] == positions[start] + step * (stop - start):
                stop += 1
            if step:
                segments.append(self._chunks(parts.tuned, self.tuned, positions[start], positions[stop - 1] + 1))
            else:
                segments.append(partial(self._made_chunks, start, stop))
            start = stop
        if spare and self.old.shape[0] >= base + spare:  # nothing was ever to be learned in the spare row
            done.append((self.tuned.name, f"row {pieces:,}, the last, is the base's spare row"))
            segments.append(self._chunks(parts.base, self.old, base, base + spare))
        elif spare:
            self._require(pieces + spare)
            segments.append(self._chunks(parts.tuned, self.tuned, pieces, pieces + spare))
        shape = (pieces + spare, *self.tuned.shape[1:])

        def chunks() -> Iterator[bytes | memoryview]:
            for segment in segments:
                yield from segment()

        return TensorBytes(self.dtype, shape, chunks)

    def _row_positions(self, done: Actions) -> NDArray[np.int64]:
        """The position of each new row in the checkpoint; -1 for one that must be built."""
        parts, name, rows = self.parts, self.tuned.name, self.tuned.shape[0]
        first, last = parts.base_pieces, parts.pieces
        positions = np.arange(first, last, dtype=np.int64) + self.shift
        if self.move is not None and self.move.how == "copied":
            positions[:] = -1
        elif self.shift:
            # What is shifted past the end often comes in again at the start; a spare row may have stayed the last.
            tail = self.old.rows(first, self.old.shape[0])
            end = rows - tail.shape[0]
            stayed = self._row_bytes(parts.base, tail) == self._row_bytes(parts.tuned, self.tuned.rows(end, rows))
            positions[positions >= (end if stayed else rows)] -= end if stayed else rows
            at_start = np.flatnonzero((positions >= 0) & (positions < first + self.shift))
            if len(at_start):  # a row that is one of the base's, or was left empty, is no new row
                known = self._row_bytes(parts.base, self.old)
                candidates = positions[at_start].tolist()
                there = [
                    self._row_bytes(parts.tuned, self.tuned.rows(candidate, candidate + 1)) for candidate in candidates
                ]
                positions[at_start[[row_bytes <= known for row_bytes in there]]] = -1
            positions[positions < 0] = -1
        elif self.repairs.head or self.repairs.grow or rows < first:
            # Where a table has as many rows as the embedding, the same rows mean the same pieces.
            embedding = parts.tuned.tensors.get(parts.family.graft_points[0].tensor)
            like_embedding = embedding is not None and embedding.shape[0] == rows
            with_rows = parts.num_pieces_with_rows if like_embedding else max(rows - parts.family.spare_rows, 0)
            positions[positions >= with_rows] = -1
        else:
            self._require(last)
        if num_initialized := int((positions < 0).sum()):
            done.append((name, f"{num_initialized:,} new rows are initialized from the base's"))
        if self.repairs.rows:
            finite = np.ones(rows + 1, bool)  # one more for rows without a position
            taken = positions[positions >= 0]
            for start in range(int(taken.min()), int(taken.max()) + 1, BLOCK_ROWS) if len(taken) else ():
                stop = min(start + BLOCK_ROWS, int(taken.max()) + 1)
                values = _read_floats(parts.tuned, self.tuned.rows(start, stop))
                finite[start:stop] = are_rows_finite(values)
            if (bad := ~finite[positions]).any():
                done.append((name, f"{int(bad.sum()):,} new rows were not finite and are initialized from the base's"))
                positions[bad] = -1
        looks = self.repairs.spare and parts.family.spare_rows and not self.shift and self.old.shape[0] > first
        if looks and len(positions) and positions[0] >= 0:
            # Is the first new row a copy of the base's spare, trained on or not? By the rule of the finding.
            spare = _read_floats(parts.base, self.old.rows(first, first + 1))
            own = _read_floats(parts.tuned, self.tuned.rows(first, min(first + SPARE_SAMPLE_ROWS, last)))
            if is_spare_copy(spare.reshape(-1), own.reshape(len(own), -1)):
                done.append((name, f"row {first:,} was the spare row and is initialized from the base's"))
                positions[0] = -1
        return positions

    def _made_chunks(self, first: int, last: int) -> Iterator[bytes]:
        rows = self.parts.made()[self.old.name][first:last]
        yield from_float32(np.ascontiguousarray(rows, np.float32), self.dtype).tobytes()

    def _row_bytes(self, checkpoint: Checkpoint, info: TensorInfo) -> set[bytes]:
        """The rows of a table as float32 bytes, without those that are empty or not finite."""
        rows = _read_floats(checkpoint, info).reshape(info.shape[0], math.prod(info.shape[1:]))
        return {row.tobytes() for row in rows[rows.any(axis=1) & are_rows_finite(rows)]}

    def _chunks(self, checkpoint: Checkpoint, info: TensorInfo, first: int, last: int) -> ChunkFactory:
        """Some rows of a file as they are, or rounded where the new table has a shorter number format."""
        part = info.rows(first, last)
        return lambda: _convert_chunks(checkpoint, part, self.dtype)

    def _require(self, rows: int) -> None:
        if self.tuned.shape[0] < rows:
            found = f"{self.tuned.name} has {self.tuned.shape[0]:,} rows"
            raise CheckpointError("repair-misfit", found, expected=f"{rows:,} or more", where=self.parts.tuned.path)


def _repair_body_tensor(parts: RepairInputs, info: TensorInfo, repairs: RepairOptions, done: Actions) -> TensorBytes:
    """A tensor of the backbone at a point between base and tuned, with values and rows that are lost from the base.

    Between two forms there is no point: those are the base's.
    """
    old, name = parts.base.tensors[info.name], info.name
    share = 1.0 if repairs.share is None else repairs.share
    floats = old.dtype in FLOAT_DTYPES and info.dtype in FLOAT_DTYPES
    if old.shape != info.shape or (old.dtype != info.dtype and not floats):
        return _take_from_base(parts, name, "because it had another shape or type", done)
    patched = repairs.patches(name)
    if not floats or (share == 1 and not patched):
        return _copy_tensor(parts.tuned, info)
    rows = repairs.lost_rows.get(name, ()) if repairs.missing else ()
    if repairs.missing and name in repairs.not_finite:
        done.append((name, "values that were not finite, or absurdly large, are the base's"))
    if rows:
        done.append((name, f"{len(rows):,} lost rows are the base's"))
    if share != 1:
        done.append((name, "the base's" if share == 0 else f"{share:g} of the way from the base"))
    # What became infinite in fp16 does so again: such a tensor is kept in the base's own format.
    dtype = old.dtype if info.dtype == "F16" and name in repairs.not_finite else info.dtype
    if share == 0:
        return TensorBytes(dtype, info.shape, lambda: _convert_chunks(parts.base, old, dtype))
    width = old.num_values // max(old.shape[0], 1) if old.shape else 1
    lost = np.zeros(old.shape[0] if old.shape else 1, bool)
    lost[list(rows)] = True

    def chunks() -> Iterator[bytes]:
        start = 0
        for base_chunk, tuned_chunk in pair_chunks(iter_values(parts.base, old), iter_values(parts.tuned, info)):
            before, after = (
                to_float32(raw, tensor_info.dtype).astype(np.float32, copy=False)
                for raw, tensor_info in ((base_chunk, old), (tuned_chunk, info))
            )
            if patched:
                ruined = find_ruined_values(before, after)
                if rows:
                    ruined |= lost[np.arange(start, start + len(after)) // max(width, 1)]
                after = np.where(ruined, before, after)
            start += len(after)
            if share != 1:
                # Summed in float64, so that what did not move stays the same bits.
                wide = before.astype(np.float64)
                with np.errstate(over="ignore", invalid="ignore"):
                    after = (wide + share * (after.astype(np.float64) - wide)).astype(np.float32)
                if not np.isfinite(after).all():
                    found = f"{name} contains NaN or infinite values"
                    raise CheckpointError("body-not-finite", found, where=parts.tuned.path)
            yield from_float32(after, dtype).tobytes()

    return TensorBytes(dtype, info.shape, chunks)


def _convert_chunks(checkpoint: Checkpoint, info: TensorInfo, dtype: str) -> Iterator[bytes | memoryview]:
    """A tensor's bytes as they are, or its values in another format."""
    if info.dtype == dtype:
        yield from checkpoint.iter_bytes(info)
        return
    for raw in iter_values(checkpoint, info):
        yield from_float32(to_float32(raw, info.dtype).astype(np.float32, copy=False), dtype).tobytes()


def _read_floats(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    parts = [to_float32(raw, info.dtype).astype(np.float32) for raw in iter_values(checkpoint, info)]
    return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(info.shape)
