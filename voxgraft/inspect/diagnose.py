"""The command `diagnose`: what is this checkpoint or run, what happened to it, and what to do with it. Changes nothing.

Opens the parts, runs the checks of `check`, keeps the comparisons behind them (rows, body, optimizer), optionally
speaks and listens, and asks `verdict` for the answer. Drawing and HTML are in `diagnosis_report`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from voxgraft.checkpoints import open_any_checkpoint
from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import find_shards, iter_values
from voxgraft.checkpoints.steps import (
    STEP_MANIFEST_NAME,
    STEP_STATE_NAME,
    StepFolder,
    damaged_step_finding,
    find_step_damage,
    list_step_folders,
    read_step_values,
)
from voxgraft.checkpoints.torch_file import TEXT_TABLE_NAMES
from voxgraft.config.base import parse_settings, read_settings_values
from voxgraft.config.commands import CheckSettings, DiagnoseSettings
from voxgraft.config.run import RunSettings, TokenizerSettings
from voxgraft.config.train_options import rename_saved_mode
from voxgraft.core.errors import CATALOGUE, CheckpointError, ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.families import FAMILIES
from voxgraft.core.files import (
    atomic_write,
    atomic_write_folder,
    is_file,
    is_folder,
    path_exists,
    write_json,
    write_text,
)
from voxgraft.core.results import LEVEL_STYLES, Line, Table, format_bytes, style_line
from voxgraft.core.run import History, RunFolder, RunJournal
from voxgraft.dataset.run_data import format_prepare_command
from voxgraft.evaluation.scores import (
    SpeechRenderer,
    Transcriber,
    choose_eval_voices,
    compute_error_rates,
    open_speech_renderer,
    open_transcriber,
    synthesize_sentences,
)
from voxgraft.evaluation.sentences import SentenceSet, load_built_in_sentences, load_sentence_sets
from voxgraft.graft.folder import (
    GRAFT_CARD_NAME,
    find_merged_card,
    find_text_rules,
    is_of_last_training,
    keeps_old_languages,
)
from voxgraft.inspect.body import (
    BodyComparison,
    LayerChange,
    OptimizerSnapshot,
    RowMoments,
    body_comparison_findings,
    compare_body,
    examine_optimizer,
    find_new_rows_with_gradients,
    measure_blend_distance,
    summarize_layers,
)
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.rows import (
    ROW_NONFINITE,
    ROW_OVERWRITTEN,
    ROW_ZERO,
    RowMove,
    RowTable,
    classify_rows,
    compare_base_rows,
    find_row_moves,
    read_moved_rows,
    row_comparison_findings,
    row_move_findings,
)
from voxgraft.inspect.subject import CheckSubject, find_text_tables, is_stand_in, open_check_subject, to_check_settings
from voxgraft.inspect.text import count_padding_rows, has_second_spare_row, size_table
from voxgraft.inspect.verdict import (
    FAR_DISTANCE,
    MAJORITY_SHARE,
    MOVED_DISTANCE,
    DiagnosisCase,
    Verdict,
    decide_verdict,
    estimate_repair_point,
    is_body_far,
)
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import BaseFiles, Family
from voxgraft.synthesis.engine import ModelContext, SpeakingModel, open_base_model
from voxgraft.synthesis.inputs import ReferenceVoice
from voxgraft.text.encoder import TextEncoder
from voxgraft.text.normalize import NO_RULES, TextRules
from voxgraft.tokenizers import TextCorpus, open_tokenizer

DIAGNOSIS_REPORT_NAME, DIAGNOSIS_PICTURE_NAME, DIAGNOSIS_JSON_NAME = "report.html", "diagnosis.png", "diagnosis.json"
VERDICT_STYLES = {"RESUME": "bold green", "REPAIR": "bold yellow", "START FRESH": "bold red"}
_MAX_LAYERS_SHOWN = 5
# Phone error that an old language may have more than from the base; the default of `repair --choose` too.
MAX_PHONE_ERROR_INCREASE = 0.05
# Topics of `check` whose comparisons are kept here, so that `check` does not do them a second time.
# Measured here in more detail, or no property of a checkpoint.
_MEASURED_TOPICS = ("base rows", "backbone", "optimizer state", "evaluation")
_NEW_ROW_CODES = ("new-rows-zero", "new-rows-equal", "new-rows-scale", "new-rows-random")
_MAX_BUILT_IN_SENTENCES = 200
# How far all steps together could have carried a value, by its size, for gradients to have taught it something.
_MIN_LEARNED_REACH = 0.1
# PEFT's names: the factors, and the matrix that they are to be added to.
_LORA_NAME = re.compile(r"(?:^|\.)(?:lora_[A-Za-z]+|base_layer)(?:\.|$)")
# Folders of a run in which training leaves one ordinary checkpoint.
_FINAL_CHECKPOINT_FOLDERS = ("merged", "masked-finetune")
_MAX_JOURNAL_FINDINGS = 20
TopicT = TypeVar("TopicT")


@dataclass(slots=True)
class Diagnosis:
    """All that was found of one checkpoint."""

    path: Path
    case: DiagnosisCase
    what: str
    family: str
    verdict: Verdict
    findings: list[Finding]
    checked: list[str]
    not_checked: dict[str, str]
    tables: list[RowTable] = field(default_factory=list)
    layers: list[LayerChange] = field(default_factory=list)
    distance: float | None = None
    """How far the backbone moved, by its length."""
    unusable: tuple[str, ...] = ()
    """Tensors of the backbone that are of another form, or in which nothing of the base is left."""
    not_finite: tuple[str, ...] = ()
    """Tensors of the backbone with values that are not finite."""
    lost_rows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tables of the backbone of which single rows are lost, and which."""
    moves: list[RowMove] = field(default_factory=list)
    """Text tables whose new rows are not in their places."""
    num_pieces_with_rows: int = 0
    """Pieces that the embedding has rows for."""
    num_unread: int = 0
    """Rows behind the pieces and the spare row that were provably never read."""
    optimizer: OptimizerSnapshot | None = None
    moments: list[RowMoments] = field(default_factory=list)
    sizes: Table | None = None
    heard: list[dict[str, Any]] = field(default_factory=list)
    """What was listened to: language, who, phone error."""
    not_heard: str = ""
    """Why nothing was listened to, where it was requested."""

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self.path),
            "what": self.what,
            "family": self.family,
            "verdict": self.verdict.to_json(),
            "sizes": self.sizes.to_json() if self.sizes else [],
            "rows": [table.to_json() for table in self.tables],
            "body_distance": self.distance,
            "layers": [layer.to_json() for layer in self.layers],
            "unusable": list(self.unusable),
            "not_finite": list(self.not_finite),
            "lost_rows": {name: list(rows) for name, rows in self.lost_rows.items()},
            "optimizer": self.optimizer.to_json() if self.optimizer else None,
            "findings": [item.to_json() for item in self.findings],
            "checked": self.checked,
            "not_checked": self.not_checked,
            "heard": self.heard,
            "not_heard": self.not_heard,
        }


@dataclass(frozen=True, slots=True)
class DiagnoseResult:
    """What was found, and where the report is."""

    found: Diagnosis
    folder: Path | None

    @property
    def exit_code(self) -> int:
        return 0 if self.found.verdict.word == "RESUME" else 1

    def to_json(self) -> dict[str, Any]:
        return {**self.found.to_json(), "report": str(self.folder / DIAGNOSIS_REPORT_NAME) if self.folder else None}

    def lines(self) -> list[Line]:
        found, verdict = self.found, self.found.verdict
        lines: list[Line] = [f"{found.path.name}: {found.what}"]
        lines += [found.sizes] if found.sizes else []
        rows = [
            (table.tensor, f"{len(table.kinds):,}", ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
            for table in found.tables
            if (counts := table.counts)
        ]
        lines += [Table(("table", "rows", "of which"), tuple(rows))] if rows else []
        moved = [layer for layer in found.layers if layer.changed]
        if moved and found.distance is not None:
            farthest = sorted(moved, key=lambda layer: -layer.distance)[:_MAX_LAYERS_SHOWN]
            listed = ", ".join(f"{layer.name} {layer.distance:.2%}" for layer in farthest)
            lines.append(f"backbone: changed by {found.distance:.2%} of its norm; largest changes: {listed}")
        error_rows = [(entry["language"], entry["who"], f"{entry['phone_error']:.1%}") for entry in found.heard]
        if found.not_heard:
            lines.append(f"not transcribed: {found.not_heard}")
        elif error_rows:
            lines.append(Table(("language", "model", "phone error"), tuple(error_rows)))
        for level, style in LEVEL_STYLES.items():
            items = [item for item in found.findings if item.level == level]
            lines += [style_line((item.lines()[0], style)) for item in items]
        lines += ["", style_line((verdict.word, VERDICT_STYLES[verdict.word]), f": {verdict.sentence}")]
        # Some are done in another trainer, and are no command lines.
        steps = (f"  {'$' if text.startswith('voxgraft ') else 'next:'} {text}" for text in verdict.commands)
        lines += [f"  why: {verdict.reason}", *steps]
        return [*lines, f"report: {self.folder / DIAGNOSIS_REPORT_NAME}"] if self.folder else lines


def diagnose(settings: DiagnoseSettings) -> DiagnoseResult:
    """Look at a checkpoint or a run; with `report` also draw and write what was found."""
    path, folder = settings.checkpoint, None
    if settings.report:
        folder = settings.output or Path(f"diagnosis-{path.name or path.resolve().name}")
        if path_exists(folder) and not settings.overwrite:  # refused before anything is measured
            cure = "choose another report folder with --output, or use --overwrite."
            raise FileError("file-exists", f"the report folder {folder.name} exists already", where=folder, cure=cure)
    found = diagnose_run(settings) if is_file(RunFolder(path).settings) else diagnose_checkpoint(settings)
    if settings.listen:
        _measure_phone_errors(found, settings)
    if folder is not None:
        from voxgraft.inspect.diagnosis_report import diagnosis_report_html, draw_diagnosis

        picture = draw_diagnosis(found) if found.tables or found.layers else None
        with atomic_write_folder(folder) as new:
            write_json(new / DIAGNOSIS_JSON_NAME, found.to_json())
            write_text(new / DIAGNOSIS_REPORT_NAME, diagnosis_report_html(found, picture))
            if picture is not None:
                with atomic_write(new / DIAGNOSIS_PICTURE_NAME) as stream:
                    stream.write(picture)
    return DiagnoseResult(found, folder)


def diagnose_checkpoint(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a checkpoint file, or about the one checkpoint in a folder."""
    path = settings.checkpoint
    if settings.base is None:
        cure = "add --base FOLDER: the folder of the base from which the checkpoint was trained."
        raise ConfigError("config-missing", "`base` is not given", expected="--base", cure=cure)
    if not path_exists(path):
        raise FileError("file-missing", f"{path.name} does not exist", where=path)
    # A graft, a saved step and the files in them say nothing alone: what belongs to them is in their run.
    for folder in [path] if is_folder(path) else [path.parent, path.parent.parent]:
        is_graft = is_file(folder / GRAFT_CARD_NAME)
        if is_graft or (is_file(folder / STEP_MANIFEST_NAME) and is_file(folder / STEP_STATE_NAME)):
            found = f"{path.name} is {'a graft' if is_graft else 'a checkpoint of a run'}, or part of one"
            expected = "a checkpoint file of a complete model, or a run"
            raise CheckpointError("checkpoint-part", f"{found}, not a complete model", expected=expected, where=path)
    base = resolve_base_folder(settings.base)
    with open_check_subject(_to_check_settings(settings, base)) as subject:
        require_base_and_tokenizer(subject)
        language = settings.language
        if language and subject.texts is None and subject.grown is not None:
            # Our own sentences of the language, where the user names no texts: enough to see letters without a piece.
            sentence_set = load_built_in_sentences(language)
            if sentence_set is not None:
                subject.texts = TextCorpus(
                    tuple(sentence.text for sentence in sentence_set.spread(_MAX_BUILT_IN_SENTENCES).sentences)
                )
        keeps_languages = keeps_old_languages(subject.checkpoint.path) if subject.checkpoint is not None else None
        file = subject.settings.checkpoint if is_folder(path) else None
        case = DiagnosisCase(
            path, settings.base, settings.tokenizer, file=file, language=language, kept=keeps_languages
        )
        return examine_subject(subject, case, lora_findings(subject))


def require_base_and_tokenizer(subject: CheckSubject) -> None:
    """Raise what is wrong with the base, or with a tokenizer that was named: without them there is no verdict."""
    whole = subject.base is not None and subject.base_checkpoint is not None and subject.base_tokenizer is not None
    if whole and (subject.grown is not None or subject.settings.tokenizer.file is None):
        return
    for item in subject.findings:
        raise CheckpointError.of(item)
    raise ConfigError("config-missing", "`base` is not given", expected="--base")


def _to_check_settings(settings: DiagnoseSettings, base: Path) -> CheckSettings:
    """The settings of `check`; of a folder its checkpoint, and its tokenizer unless another is named."""
    checkpoint, tokenizer = settings.checkpoint, settings.tokenizer
    if is_folder(folder := checkpoint):  # merged, exported, or a copy: something like the base's own files is in it
        family = resolve_base_family(base, settings.family)
        whole = (path for name in family.checkpoint_names if (path := folder / name).is_file())
        found = find_shards(folder) or next(whole, None) or (_find_only_model(folder) if tokenizer else None)
        if found is not None:
            tokenizers = (path for name in family.tokenizer_names if (path := folder / name).is_file())
            checkpoint, tokenizer = found, tokenizer or next(tokenizers, None)
        else:
            try:
                files = family.files(folder)
            except FileError as error:
                # What the family says of the folder is about a base, and the base is another folder.
                text = f"{folder.name or folder} contains no checkpoint of {family.name}"
                raise CheckpointError("checkpoint-missing", text, where=folder) from error
            checkpoint, tokenizer = files.checkpoint, tokenizer or files.tokenizer
    return CheckSettings(
        base=base,
        checkpoint=checkpoint,
        tokenizer=TokenizerSettings(file=tokenizer),
        family=settings.family,
        language=settings.language,
        texts=settings.texts,
        training_config=settings.training_config,
        prepared=settings.prepared,
    )


def _find_only_model(folder: Path) -> Path | None:
    """The one file with a text table in a trainer's folder, where optimizer and random states are beside it."""
    models = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".pt", ".pth", ".bin", ".ckpt") and is_file(path):
            with contextlib.suppress(VoxgraftError), open_any_checkpoint(path) as checkpoint:
                if any(name.endswith(TEXT_TABLE_NAMES) for name in checkpoint.tensors):
                    models.append(path)
    return models[0] if len(models) == 1 else None


def examine_subject(subject: CheckSubject, case: DiagnosisCase, more: Sequence[Finding] = ()) -> Diagnosis:
    """Look at all topics, keep what was measured, and judge. `case` says what it is about; the rest is filled in here.

    `more` are findings from elsewhere.
    """
    outcome = run_checks(subject, with_data=case.run is not None, skip_topics=_MEASURED_TOPICS)
    checkpoint, base, family = subject.checkpoint, subject.base_checkpoint, subject.family
    findings = list(more)
    for item in outcome.findings:
        if item.code == "checkpoint-prefixed":  # the trainer that wrote a wrapper's name takes it away again
            item = replace(item, level="note")
        elif (
            item.code == "proof-unreachable"
        ):  # a row that is never read does no harm to what was learned in the others
            cure = "no action needed; a tokenizer from `voxgraft tokenizer train` has none of them."
            item = replace(item, level="note", cure=cure)
        elif case.steps is not None and _is_missing_data(item):
            # Data that does not exist is still to come in a run that was never trained, and gone in one that was.
            item = replace(item, level="error")
        elif item.code == "rows-vs-tokenizer" and subject.settings.tokenizer.file is None:
            # More rows than the base's own tokenizer has pieces are no fault where the grown one was not named.
            # Nothing is expected either: how many rows it should have, only that tokenizer could tell.
            cure = "give the tokenizer that it was trained with: --tokenizer FILE."
            found = item.found.replace("the tokenizer has", "the base's own tokenizer has")
            item = replace(item, level="note", cure=cure, found=found, expected="")
        findings.append(item)
    checked, not_checked = list(outcome.checked), dict(outcome.not_checked)
    tables, moves, optimizer, moments, body = _compare_with_base(subject, findings, checked, not_checked)
    findings = list(dict.fromkeys(findings))
    codes = {item.code for item in findings}
    # Whether every tensor is the base's, and none has a row more.
    is_base = False
    if base is not None and checkpoint is not None and family is not None and tables:
        base_shapes, tuned_shapes = (
            {point: info.shape for point, info in find_text_tables(one, family).items()} for one in (base, checkpoint)
        )
        same_bits = {"base-rows-same", "base-rows-rounded"} & codes and {"body-same", "body-rounded"} & codes
        is_base = (
            bool(same_bits) and base_shapes == tuned_shapes and not codes & {"base-rows-changed", "base-rows-shrunk"}
        )
    num_rows, num_required, num_pieces_with_rows, num_unread = _count_embedding_rows(subject)
    moved = {one.tensor for one in moves}
    embeddings = [table for table in tables if table.role == "embedding" and table.tensor not in moved]
    embedding_name = family.graft_points[0].tensor if family else ""
    moved_rows = next(
        (read_moved_rows(subject, one) for one in moves if one.tensor == embedding_name), np.empty((0, 1))
    )
    moved_empty = float((~moved_rows.any(axis=1)).mean()) if len(moved_rows) else 0.0
    moved_ruined = float((~np.isfinite(moved_rows).all(axis=1)).mean()) if len(moved_rows) else 0.0
    not_finite = [one for one in body.changes if one.num_bad] if body else []
    case = replace(
        case,
        family=FAMILIES[family.name].title if family else "",
        base_tokenizer=subject.base.tokenizer if subject.base else None,
        base_suffix=subject.base.checkpoint.suffix if subject.base else case.base_suffix,
        distance=body.verdict_distance if body else None,
        unusable=body.unusable_share if body else 0.0,
        not_finite=body.not_finite_share if body else 0.0,
        dead_rows=any(one.dead for one in body.lost_rows.values()) if body else False,
        empty_rows=max((table.share_of_new(ROW_ZERO) for table in embeddings), default=moved_empty),
        ruined_rows=max((table.share_of_new(ROW_NONFINITE) for table in embeddings), default=moved_ruined),
        learnt_by_moments=_has_learned(subject, optimizer, moments, tables),
        noise=any(item.code == "new-rows-random" and embedding_name in item.found for item in findings),
        short_rows=num_required > num_rows >= (subject.base_pieces or 0) > 0,
        cut_rows=0 < num_rows < (subject.base_pieces or 0) <= num_required
        and not moves
        and all(table.counts.get(ROW_OVERWRITTEN, 0) < MAJORITY_SHARE * len(table.kinds) for table in tables),
        moved_fits=any(one.how == "shifted" and num_rows == num_required + one.shift for one in moves),
        sharded=checkpoint is not None and find_shards(checkpoint.path) is not None,
        is_base=is_base,
        sounds=bool(family and family.shipped_folder()),
        data_to_come=case.steps is None and any(_is_missing_data(item) for item in outcome.findings),
        has_optimizer=optimizer is not None,
        has_new_rows=any(len(table.kinds) > table.num_base + (subject.spare_rows or 0) for table in tables),
    )
    repairable = body is not None and (case.distance or 0) < FAR_DISTANCE and body.unusable_share < MAJORITY_SHARE
    if body is not None and repairable and is_body_far(case) and not case.sounds:
        # The point that `repair` is proposed to take, measured by the same comparison that judges its result. Distances
        # are nearly proportional to the point, but rounding adds to them: step down until the measured one fits.
        point = estimate_repair_point(case.distance or MOVED_DISTANCE)
        while point > 0 and (distance := measure_blend_distance(subject, body, point)) >= MOVED_DISTANCE:
            point = min(math.floor(100 * point * 0.99 * MOVED_DISTANCE / distance) / 100, round(point - 0.01, 2))
        case = replace(case, point=max(point, 0.0))
    return Diagnosis(
        path=case.checkpoint,
        case=case,
        what=_describe_checkpoint(checkpoint, family),
        family=family.name if family else "",
        verdict=decide_verdict(findings, case, readable=checkpoint is not None or case.run is not None),
        findings=findings,
        checked=checked,
        not_checked=not_checked,
        tables=tables,
        layers=summarize_layers(body, family) if body and family else [],
        distance=body.distance if body else None,
        unusable=tuple(one.name for one in body.unusable) if body else (),
        not_finite=tuple(one.name for one in not_finite),
        lost_rows={name: one.rows for name, one in body.lost_rows.items()} if body else {},
        moves=moves,
        num_pieces_with_rows=num_pieces_with_rows,
        num_unread=num_unread,
        optimizer=optimizer,
        moments=moments,
        sizes=size_table(subject),
    )


def _compare_with_base(
    subject: CheckSubject, findings: list[Finding], checked: list[str], not_checked: dict[str, str]
) -> tuple[list[RowTable], list[RowMove], OptimizerSnapshot | None, list[RowMoments], BodyComparison | None]:
    """Row tables, moved rows, optimizer, its moments of the rows, and the backbone. Adds to the three collections."""
    checkpoint, family = subject.checkpoint, subject.family

    def attempt(topic: str, make: Callable[[], TopicT]) -> TopicT | None:
        # One of our errors in a topic is a finding; the other topics are still looked at.
        try:
            result = make()
        except VoxgraftError as error:
            findings.append(replace(error.finding, level="error"))
            not_checked[topic] = f"stopped by {error.code}"
            return None
        checked.append(topic)
        return result

    optimizer: OptimizerSnapshot | None = None
    moments: list[RowMoments] = []
    moves: list[RowMove] = []
    tables: list[RowTable] = []
    if checkpoint is None or family is None:
        not_checked |= dict.fromkeys(_MEASURED_TOPICS, "needs a checkpoint of a known family")
    else:
        text_tables = list(find_text_tables(checkpoint, family).values())
        known = {info.name for info in text_tables}
        for point in family.graft_points if not is_stand_in(checkpoint) else ():
            info = checkpoint.tensors.get(point.tensor)
            if info is not None and info.name not in known:  # the name of a text table, but not the form of one
                found = f"{info.name} is {info.dtype} {list(info.shape)}"
                code = "tensor-shape" if point.role == "embedding" else "head-missing"
                findings.append(finding(code, found, where=checkpoint.path))

        def verify_checksums(opened: Checkpoint) -> None:
            for info in text_tables if opened.format == "torch-zip" else ():
                for _ in iter_values(opened, info):
                    pass

        attempt("checksums of the text tables", lambda: verify_checksums(checkpoint))
        if (examined := attempt("optimizer state", lambda: examine_optimizer(subject))) is not None:
            optimizer, moments, items = examined
            findings += items
        comparisons = attempt("base rows", lambda: compare_base_rows(subject)) or []
        moves = attempt("places of the rows", lambda: find_row_moves(subject, comparisons)) or []
        findings += row_comparison_findings(subject, comparisons, [entry.tensor for entry in moves])
        # What was found of rows in the new rows' places is about other rows where these moved.
        elsewhere = [entry.tensor for entry in moves]
        findings[:] = [
            item
            for item in findings
            if item.code not in _NEW_ROW_CODES or not any(name in item.found for name in elsewhere)
        ]
        findings += row_move_findings(subject, moves)
        tables = attempt("rows one by one", lambda: classify_rows(subject, comparisons, moments)) or []
    body = attempt("backbone", lambda: compare_body(subject))
    if body is not None:
        # A distance from what is not finite is none; the checkpoint is not to blame for it.
        nonfinite_name = next((entry.name for entry in body.changes if not math.isfinite(entry.base)), None)
        if nonfinite_name is not None and subject.base is not None:
            found = f"{nonfinite_name} of the base contains NaN, infinite or far too large values"
            raise CheckpointError("base-not-finite", found, where=subject.base.checkpoint)
        findings += body_comparison_findings(subject, body)
    return tables, moves, optimizer, moments, body


def _has_learned(
    subject: CheckSubject, optimizer: OptimizerSnapshot | None, moments: list[RowMoments], tables: list[RowTable]
) -> bool:
    """Whether the optimizer shows that new rows had gradients, and steps that could carry them somewhere."""
    had = find_new_rows_with_gradients(subject, moments)
    if optimizer is None or had is None or had.mean() < MAJORITY_SHARE:
        return False
    table = next((one for one in tables if one.role == "embedding"), None)
    rate = max((*optimizer.first_rates, *optimizer.rates), default=None)
    if table is None or rate is None or optimizer.step is None:
        return True
    shape = subject.checkpoint.tensors[table.tensor].shape if subject.checkpoint is not None else ()
    width = shape[1] if len(shape) == 2 else 1
    # AdamW moves a value by about the rate per step, so this is the typical size of one value, not of a row.
    typical = float(np.nanmedian(table.lengths[table.num_base :])) / math.sqrt(max(width, 1))
    return rate * optimizer.step >= _MIN_LEARNED_REACH * typical


def _count_embedding_rows(subject: CheckSubject) -> tuple[int, int, int, int]:
    """Rows of the embedding, rows that its tokenizer needs, pieces that it has rows for, and rows behind all of these
    that were provably never read.
    """
    checkpoint, family, tokenizer = subject.checkpoint, subject.family, subject.tokenizer
    table = find_text_tables(checkpoint, family).get(family.graft_points[0]) if checkpoint and family else None
    if table is None or family is None or tokenizer is None or subject.base_pieces is None:
        return 0, 0, 0, 0
    rows, spare = table.shape[0], family.spare_rows
    required_rows = tokenizer.size + spare
    is_short = rows < required_rows and rows != subject.base_pieces + spare
    if spare and is_short and not has_second_spare_row(subject, rows - 1):
        spare = 0  # nothing shows that the last row is the spare one, and a trained row is never cut off
    num_unread = count_padding_rows(subject, tokenizer.size)
    if spare and rows == required_rows + spare and has_second_spare_row(subject, tokenizer.size):
        num_unread = spare
    return rows, required_rows, max(rows - spare, 0), num_unread


def _is_missing_data(item: Finding) -> bool:
    return item.level == "note" and CATALOGUE[item.code].area == "data" and CATALOGUE[item.code].level == "error"


def lora_findings(subject: CheckSubject) -> list[Finding]:
    """A finding if the file holds low-rank factors that are not merged into the model."""
    path = subject.settings.checkpoint
    if path is None:
        return []
    names = list(subject.checkpoint.tensors) if subject.checkpoint is not None else []
    if subject.checkpoint is None:
        try:  # perhaps no checkpoint of a family; what cannot be read at all has another finding
            with open_any_checkpoint(path) as checkpoint:
                names = list(checkpoint.tensors)
        except VoxgraftError:
            return []
    own = [name for name in names if _LORA_NAME.search(name)]
    if not own:
        return []
    found = f"{len(own):,} of {len(names):,} tensors belong to an unmerged LoRA adapter ({own[0]}, ...)"
    return [finding("checkpoint-low-rank", found, where=path)]


def _describe_checkpoint(checkpoint: Checkpoint | None, family: Family | None) -> str:
    """The file in a few words: which model, how it is kept, how large it is."""
    if checkpoint is None:
        return "a file that cannot be read as a checkpoint of a known family"
    kinds = sorted({info.dtype for info in checkpoint.tensors.values()})
    size = format_bytes(checkpoint.source.size)
    name = FAMILIES[family.name].title if family else "a model"
    model = "a stand-in" if is_stand_in(checkpoint) else name
    table = next(iter(find_text_tables(checkpoint, family).values()), None) if family else None
    rows = f", {table.shape[0]:,} text rows" if table else ""
    kinds_of_file = {"safetensors": "safetensors", "torch-legacy": "a torch file from before torch 1.6"}
    kind = kinds_of_file.get(checkpoint.format, "a torch archive")
    inside = f" under `{checkpoint.wrapper}`" if checkpoint.wrapper else ""
    extras = f", {len(checkpoint.extras)} other entries" if checkpoint.extras else ""
    return f"{model} in {kind}, {size}: {len(checkpoint.tensors):,} tensors of {', '.join(kinds)}{inside}{rows}{extras}"


def diagnose_run(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a run."""
    run = RunFolder(settings.checkpoint)
    run_settings = parse_settings(RunSettings, read_settings_values(RunSettings, run.settings), run.settings)
    base = settings.base or run_settings.base
    if base is not None:
        run_settings = run_settings.model_copy(update={"base": resolve_base_folder(base)})
    folders = list_step_folders(run)
    damaged = {folder: damage for folder in folders if (damage := find_step_damage(folder)) is not None}
    complete = tuple(folder.step for folder in folders if folder not in damaged)
    findings = [damaged_step_finding(*item) for item in damaged.items()]
    journal: list[dict[str, Any]] = []
    try:
        journal = RunJournal(run.journal).read()
    except VoxgraftError as error:
        findings.append(error.finding)
    history = History.of(journal)
    # What the journal warned of, the latest of each code.
    warned = [event for event in history.findings if event.values.get("level") in ("warning", "error")]
    latest = {str(event.values.get("code")): event for event in warned}
    for code, event in list(latest.items())[-_MAX_JOURNAL_FINDINGS:]:
        if code in CATALOGUE:
            message = f"at step {event.step:,}: {event.values.get('found', '')}"
            # An error that stopped the run would do so again, unless a step was saved since then.
            stops = event.values.get("level") == "error" and event.step >= (complete[-1] if complete else 0)
            findings.append(finding(code, message, where=run.journal, level="error" if stops else "warning"))
    # The checkpoint that training has left, if it leaves one; not that of a training before the last.
    mode = rename_saved_mode(next((line.get("mode") for line in reversed(journal) if line["kind"] == "start"), None))
    cards = {name: find_merged_card(run.path / name / "checkpoint") for name in _FINAL_CHECKPOINT_FOLDERS}
    outputs = (
        run.path / name / str(card["checkpoint"])
        for name, card in cards.items()
        if card is not None and (mode != name or is_of_last_training(card, journal))
    )
    checkpoint = next(outputs, None)
    with open_check_subject(to_check_settings(run_settings, run.path, checkpoint)) as subject:
        if subject.base_checkpoint is None:
            require_base_and_tokenizer(subject)
        steps, keeps_languages = complete if folders else None, keeps_old_languages(checkpoint) if checkpoint else None
        case = DiagnosisCase(
            run.path,
            base,
            None,
            file=checkpoint,
            run=run.path,
            steps=steps,
            flags=_read_training_flags([*damaged, *(folder for folder in folders if folder not in damaged)]),
            prepare=format_prepare_command(run, run_settings),
            language=run_settings.language,
            kept=keeps_languages,
        )
        found = examine_subject(subject, case, findings)
    name = FAMILIES[found.family].title if found.family in FAMILIES else found.family or "an unknown base"
    saved = f"{len(folders)} checkpoints, {len(complete)} of them complete" if folders else "no checkpoint"
    newest = f", the newest complete one is {complete[-1]:,}" if complete else ""
    state = f"; state in the journal: {history.state.values['state']}" if history.state else ""
    return replace(found, what=f"a voxgraft run on {name}: {saved}{newest}{state}")


def _read_training_flags(steps: Sequence[StepFolder]) -> tuple[str, ...]:
    """The flags of the training that has saved the last of these steps; steps of older versions do not have them."""
    for step in reversed(steps):
        with contextlib.suppress(VoxgraftError):  # a damaged step is reported elsewhere
            flags = read_step_values(step).get("flags")
            return tuple(map(str, flags)) if isinstance(flags, list) else ()
    return ()


# Phone error rates by language.
PhoneErrors = dict[str, float]


@dataclass(frozen=True)
class ListeningTest:
    """A base with everything that is needed to listen to it and to what was made of it."""

    context: ModelContext
    base: SpeakingModel
    sets: dict[str, SentenceSet]
    voices: list[ReferenceVoice]
    sound: SpeechRenderer
    transcriber: Transcriber
    tokenizer: Path | None
    language: str | None
    """The new language; None where only old ones are spoken."""
    seed: int

    def base_errors(self) -> PhoneErrors:
        """Of the languages that the base knows."""
        return self._errors(self.base, [name for name in self.sets if name != self.language])

    def errors(self, checkpoint: Path, label: str) -> PhoneErrors:
        """Of a checkpoint of the same family; an error of voxgraft where it makes no whole model."""
        files = replace(
            self.context.files, checkpoint=checkpoint, tokenizer=self.tokenizer or self.context.files.tokenizer
        )
        base_tokenizer = open_tokenizer(self.context.files.tokenizer)
        grown = open_tokenizer(self.tokenizer) if self.tokenizer else None
        # Nothing is known of how others normalized their texts, so they are read as they are.
        rules = (find_text_rules(self.tokenizer) if self.tokenizer else None) or TextRules(NO_RULES)
        text_encoder = TextEncoder.of(
            self.context.family, base_tokenizer, grown, self.language if grown else None, rules
        )
        system = SpeakingModel(label, self.context.family, self.context.model(files), text_encoder, None, "checkpoint")
        return self._errors(system, list(self.sets))

    def _errors(self, system: SpeakingModel, languages: list[str]) -> PhoneErrors:
        errors: PhoneErrors = {}
        for language in languages:
            sentences = self.sets[language].sentences
            label = f"{system.name}, {language}"
            utterances = synthesize_sentences(
                system, sentences, self.voices, self.seed, label, latents=self.sound.needs_latents
            )
            transcripts = self.transcriber.transcribe(
                self.sound.waves(utterances, label), self.sound.rate, language, label
            )
            value = compute_error_rates(sentences, transcripts, self.seed)["phone_error"].value
            if value is not None:
                errors[language] = value
        return errors


def open_listening_test(
    family: Family, files: BaseFiles, tokenizer: Path | None, language: str | None, sentences: int, seed: int
) -> ListeningTest:
    """Everything opened; an error that says what is missing where nothing could be transcribed."""
    context = ModelContext(family, files, "cpu", torch.float32)
    sound, transcriber = open_speech_renderer(context), open_transcriber(None)
    if why := sound.why or transcriber.why:
        raise ConfigError("nothing-to-hear", why)
    languages = [*family.languages, *([language] if language and tokenizer else [])]
    sets = load_sentence_sets([name for name in languages if not transcriber.why_unsupported(name)], (), sentences)
    if not sets:
        raise ConfigError("nothing-to-hear", f"there are no sentences in {', '.join(languages)}")
    new = language if language in sets and language not in family.languages else None
    base = open_base_model(context)
    voices = choose_eval_voices(base, files, (), (), 0.0, seed)
    return ListeningTest(context, base, sets, voices, sound, transcriber, tokenizer, new, seed)


def _measure_phone_errors(found: Diagnosis, settings: DiagnoseSettings) -> None:
    """Speak and listen where that can be done; else the reason is in the report beside the rest."""
    try:
        if settings.base is None or not is_file(settings.checkpoint):
            raise ConfigError(
                "nothing-to-hear", "the model can be judged only if one checkpoint file and --base are given"
            )
        family = resolve_base_family(resolve_base_folder(settings.base), settings.family)
        files = family.files(resolve_base_folder(settings.base))
        options = settings.tokenizer, settings.language, settings.max_sentences, settings.seed
        test = open_listening_test(family, files, *options)
        by_role = {"base": test.base_errors(), "checkpoint": test.errors(settings.checkpoint, "checkpoint")}
        found.heard = [
            {
                "language": language,
                "who": role,
                "sentences": len(test.sets[language].sentences),
                "phone_error": error,
            }
            for role, errors in by_role.items()
            for language, error in errors.items()
        ]
        if (keeps_languages := keeps_base_languages(found)) is not None:
            found.case = replace(found.case, kept=keeps_languages)
            readable = bool(found.tables or found.layers or found.case.run)
            found.verdict = decide_verdict(found.findings, found.case, readable=readable)
    except VoxgraftError as error:
        found.not_heard = error.finding.found


def keeps_base_languages(found: Diagnosis) -> bool | None:
    """Whether no language of the base has clearly more phone errors; None where none was transcribed from the base."""
    errors = {(str(entry["who"]), str(entry["language"])): float(entry["phone_error"]) for entry in found.heard}
    old = [(error, errors.get(("checkpoint", name))) for (role, name), error in errors.items() if role == "base"]
    return all(now is not None and now <= error + MAX_PHONE_ERROR_INCREASE for error, now in old) if old else None
