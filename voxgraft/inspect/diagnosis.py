"""From what a user names to everything that can be told of it: opens, measures, asks for the verdict. Writes nothing.

The faults are found by `findings`, as in `check`; here the comparisons behind them are kept, for rows and layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from voxgraft.checkpoints import open_any_checkpoint
from voxgraft.checkpoints.base import Checkpoint
from voxgraft.checkpoints.load import find_shards, iter_values
from voxgraft.checkpoints.steps import STEP_MANIFEST_NAME, STEP_STATE_NAME
from voxgraft.config.commands import CheckSettings, DiagnoseSettings
from voxgraft.config.run import TokenizerSettings
from voxgraft.core.errors import CATALOGUE, CheckpointError, ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.core.files import is_file, is_folder, path_exists
from voxgraft.core.results import Table
from voxgraft.evaluation.sentences import load_built_in_sentences
from voxgraft.graft.folder import GRAFT_CARD_NAME
from voxgraft.graft.merged import keeps_old_languages
from voxgraft.inspect import base_rows
from voxgraft.inspect.base_rows import RowMove, find_row_moves, row_move_findings
from voxgraft.inspect.body import (
    BodyComparison,
    TensorChange,
    body_comparison_findings,
    compare_body,
    measure_blend_distance,
    relative_distance,
)
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.new_rows import ROW_NONFINITE, ROW_ZERO, RowTable, classify_rows
from voxgraft.inspect.optimizer import (
    OptimizerSnapshot,
    RowMoments,
    find_new_rows_with_gradients,
    optimizer_snapshot_findings,
    read_optimizer_snapshot,
    read_row_moments,
)
from voxgraft.inspect.sizes import has_second_spare_row, size_table
from voxgraft.inspect.subject import CheckSubject, find_text_tables, is_stand_in, open_check_subject
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
from voxgraft.models import resolve_base_folder
from voxgraft.models.base import Family
from voxgraft.tokenizers.base import TextCorpus


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The tensors of one part, or of one numbered layer of it, together."""

    part: str
    number: int | None
    tensors: int
    changed: int
    distance: float
    """Length of the change by length of the base's values; infinite where values are not finite."""

    @property
    def name(self) -> str:
        return self.part if self.number is None else f"{self.part} {self.number}"

    def to_json(self) -> dict[str, Any]:
        finite = self.distance if self.distance != float("inf") else None
        return {"layer": self.name, "tensors": self.tensors, "changed": self.changed, "distance": finite}


def summarize_layers(body: BodyComparison, family: Family) -> list[LayerChange]:
    """Parts in the order of the base's tensors, their layers by number."""
    groups: dict[tuple[str, int | None], list[TensorChange]] = {}
    for one in body.changes:
        part = family.get_part_name(one.name)
        if part is not None:
            groups.setdefault((part, _parse_layer_number(one.name)), []).append(one)
    order = {part: at for at, part in enumerate(dict.fromkeys(part for part, _ in groups))}
    ordered = sorted(groups.items(), key=lambda item: (order[item[0][0]], -1 if item[0][1] is None else item[0][1]))
    return [_summarize_layer(part, number, changes) for (part, number), changes in ordered]


def _summarize_layer(part: str, number: int | None, changes: list[TensorChange]) -> LayerChange:
    changed = sum(one.how in ("changed", "form") for one in changes)
    finite = all(one.is_finite for one in changes)
    return LayerChange(part, number, len(changes), changed, relative_distance(changes) if finite else float("inf"))


def _parse_layer_number(name: str) -> int | None:
    return next((int(word) for word in name.split(".") if word.isdecimal() and len(word) < 5), None)


_LORA_NAME = re.compile(r"(?:^|\.)(?:lora_[A-Za-z]+|base_layer)(?:\.|$)")
"""PEFT's names: the factors, and the matrix that they are to be added to."""


def lora_findings(subject: CheckSubject) -> list[Finding]:
    """Whether what was learnt stands in factors that are still to be multiplied into the model."""
    path = subject.settings.checkpoint
    if path is None:
        return []
    names = subject.checkpoint.tensors if subject.checkpoint is not None else _read_tensor_names(path)
    own = [name for name in names if _LORA_NAME.search(name)]
    if not own:
        return []
    found = f"{len(own):,} of {len(names):,} tensors belong to a low-rank adapter that is not merged ({own[0]}, ...)"
    return [finding("checkpoint-low-rank", found, where=path)]


def _read_tensor_names(path: Path) -> Collection[str]:
    """Of a file that is no checkpoint of a family; none where it cannot be read, which is told elsewhere."""
    try:
        with open_any_checkpoint(path) as checkpoint:
            return list(checkpoint.tensors)
    except VoxgraftError:
        return []


def refuse_partial_model(path: Path) -> None:
    """A graft, a saved step and the files in them say nothing alone: what belongs to them is in their run."""
    folders = [path] if is_folder(path) else [path.parent, path.parent.parent]
    for folder in folders:
        if is_file(folder / GRAFT_CARD_NAME):
            what = "a graft"
        elif is_file(folder / STEP_MANIFEST_NAME) and is_file(folder / STEP_STATE_NAME):
            what = "a saved step of a run"
        else:
            continue
        found = f"{path.name} is {what}, or a part of it, and no whole model"
        raise CheckpointError("checkpoint-part", found, expected="a checkpoint, or a run", where=path)


FAMILY_TITLES = {"chatterbox": "Chatterbox", "indextts2": "IndexTTS-2", "tiny": "the tiny base"}
_MEASURED_TOPICS = ("base rows", "body", "optimizer state")
"""Topics whose comparisons are kept here."""
_MAX_BUILT_IN_SENTENCES = 200
_MIN_LEARNED_REACH = 0.1
"""How far all steps together could have carried a value, by its size, for gradients to have taught it something."""
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
    """How far the body moved, by its length."""
    unusable: tuple[str, ...] = ()
    """Tensors of the body that are of another form, or in which nothing of the base is left."""
    not_finite: tuple[str, ...] = ()
    """Tensors of the body with values that are not finite."""
    lost_rows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tables of the body of which single rows are lost, and which."""
    moves: list[RowMove] = field(default_factory=list)
    """Text tables whose new rows are not in their places."""
    num_pieces_with_rows: int = 0
    """Pieces that the embedding has rows for."""
    second_spare: bool = False
    """Whether a row behind the pieces was provably never read."""
    optimizer: OptimizerSnapshot | None = None
    moments: list[RowMoments] = field(default_factory=list)
    sizes: Table | None = None
    heard: list[dict[str, Any]] = field(default_factory=list)
    """What was listened to: language, who, phone error."""
    not_heard: str = ""
    """Why nothing was listened to, where it was asked for."""

    @property
    def readable(self) -> bool:
        return bool(self.tables or self.layers or self.case.run)

    def update_verdict(self, *, kept: bool) -> None:
        """The verdict with what ears have found of the old languages."""
        self.case = replace(self.case, kept=kept)
        self.verdict = decide_verdict(self.findings, self.case, readable=self.readable)

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


def diagnose_checkpoint(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a checkpoint file, or about the one checkpoint in a folder."""
    if settings.base is None:
        cure = "name the folder of the base that it was made from with --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", expected="--base", cure=cure)
    if not path_exists(settings.checkpoint):
        raise FileError("file-missing", f"{settings.checkpoint.name} is not there", where=settings.checkpoint)
    refuse_partial_model(settings.checkpoint)
    base = resolve_base_folder(settings.base)
    with open_check_subject(_to_check_settings(settings, base)) as subject:
        require_base_and_tokenizer(subject)
        _read_built_in_texts(subject)
        kept = keeps_old_languages(subject.checkpoint.path) if subject.checkpoint is not None else None
        file = subject.settings.checkpoint if is_folder(settings.checkpoint) else None
        named = settings.checkpoint, settings.base, settings.tokenizer
        case = DiagnosisCase(*named, file=file, language=settings.language, kept=kept)
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
    """The same for `findings`; of a folder its checkpoint, and its tokenizer unless another is named."""
    checkpoint, tokenizer = settings.checkpoint, settings.tokenizer
    if is_folder(checkpoint):
        checkpoint, beside = _find_files_in_folder(checkpoint, base, settings.family)
        tokenizer = tokenizer or beside
    return CheckSettings(
        base=base,
        checkpoint=checkpoint,
        tokenizer=TokenizerSettings(file=tokenizer),
        family=settings.family,
        language=settings.language,
        texts=settings.texts,
        base_config=settings.base_config,
        prepared=settings.prepared,
    )


def _find_files_in_folder(folder: Path, base: Path, name: str | None) -> tuple[Path, Path | None]:
    """A folder that something like the base's own files stand in: merged, exported, or a copy."""
    from voxgraft.models import resolve_base_family

    family = resolve_base_family(base, name)
    if (shards := find_shards(folder)) is not None:
        tokenizers = (folder / file for file in family.tokenizer_names)
        return shards, next((path for path in tokenizers if path.is_file()), None)
    for checkpoint in (folder / file for file in family.checkpoint_names):
        if checkpoint.is_file():
            names = (folder / file for file in family.tokenizer_names)
            return checkpoint, next((path for path in names if path.is_file()), None)
    files = family.files(folder)
    return files.checkpoint, files.tokenizer


def _read_built_in_texts(subject: CheckSubject) -> None:
    """Our own sentences of the language, where the user names no texts: enough to see letters without a piece."""
    language = subject.settings.language
    own = (
        load_built_in_sentences(language) if language and subject.texts is None and subject.grown is not None else None
    )
    if own is not None:
        subject.texts = TextCorpus(tuple(one.text for one in own.spread(_MAX_BUILT_IN_SENTENCES).sentences))


def examine_subject(subject: CheckSubject, case: DiagnosisCase, more: Sequence[Finding] = ()) -> Diagnosis:
    """Look at all topics, keep what was measured, and judge. `case` says what it is about; the rest is filled in here.

    `more` are findings from elsewhere.
    """
    outcome, family = run_checks(subject, with_data=case.run is not None, skip_topics=_MEASURED_TOPICS), subject.family
    measured = _Measurements(subject, [*more, *(_adjust_level(subject, case, item) for item in outcome.findings)])
    tables, body = measured.rows(), measured.body()
    findings = list(dict.fromkeys(measured.findings))
    seats = _EmbeddingRows.of(subject)
    case = replace(
        case,
        family=FAMILY_TITLES.get(family.name, family.name) if family else "",
        base_tokenizer=subject.base.tokenizer if subject.base else None,
        base_suffix=subject.base.checkpoint.suffix if subject.base else case.base_suffix,
        distance=_distance_for_verdict(body),
        unusable=body.unusable_share if body else 0.0,
        not_finite=body.not_finite_share if body else 0.0,
        dead_rows=any(one.dead for one in body.lost_rows.values()) if body else False,
        empty_rows=_max_share_of_new([table for table in tables if table.role == "embedding"], ROW_ZERO),
        ruined_rows=_max_share_of_new([table for table in tables if table.role == "embedding"], ROW_NONFINITE),
        learnt_by_moments=measured.has_learned(tables),
        noise=any(item.code == "new-rows-random" and _mentions_embedding(subject, item) for item in findings),
        short_rows=seats.wanted > seats.rows >= (subject.base_pieces or 0) > 0,
        moved_fits=any(one.how == "shifted" and seats.rows == seats.wanted + one.shift for one in measured.moves),
        sharded=subject.checkpoint is not None and find_shards(subject.checkpoint.path) is not None,
        is_base=_is_base_itself(subject, findings, tables),
        sounds=bool(family and family.shipped_folder()),
        data_to_come=case.steps is None and any(_is_missing_data(item) for item in outcome.findings),
        has_optimizer=measured.optimizer is not None,
        has_new_rows=any(len(table.kinds) > table.num_base + (subject.spare_rows or 0) for table in tables),
    )
    case = replace(case, point=_measure_repair_point(subject, body, case))
    return Diagnosis(
        path=case.checkpoint,
        case=case,
        what=_describe_checkpoint(subject.checkpoint, family),
        family=family.name if family else "",
        verdict=decide_verdict(findings, case, readable=subject.checkpoint is not None or case.run is not None),
        findings=findings,
        checked=[*outcome.checked, *measured.checked],
        not_checked={**outcome.not_checked, **measured.not_checked},
        tables=tables,
        layers=summarize_layers(body, family) if body and family else [],
        distance=body.distance if body else None,
        unusable=body.unusable if body else (),
        not_finite=tuple(body.not_finite) if body else (),
        lost_rows={name: one.rows for name, one in body.lost_rows.items()} if body else {},
        moves=measured.moves,
        num_pieces_with_rows=seats.num_pieces_with_rows,
        second_spare=seats.second_spare,
        optimizer=measured.optimizer,
        moments=measured.moments,
        sizes=size_table(subject),
    )


@dataclass(frozen=True, slots=True)
class _EmbeddingRows:
    """How many rows the embedding has, how many its tokenizer needs, and how many of them stand for pieces."""

    rows: int = 0
    wanted: int = 0
    num_pieces_with_rows: int = 0
    second_spare: bool = False

    @classmethod
    def of(cls, subject: CheckSubject) -> _EmbeddingRows:
        checkpoint, family, tokenizer = subject.checkpoint, subject.family, subject.tokenizer
        table = find_text_tables(checkpoint, family).get(family.graft_points[0]) if checkpoint and family else None
        if table is None or family is None or tokenizer is None or subject.base_pieces is None:
            return cls()
        rows, wanted = table.shape[0], tokenizer.size + family.spare_rows
        spare = family.spare_rows
        if (
            spare
            and rows < wanted
            and rows != subject.base_pieces + spare
            and not has_second_spare_row(subject, rows - 1)
        ):
            spare = 0  # nothing shows that the last row is the spare one, and a trained row is never cut off
        second = bool(spare) and rows == wanted + spare and has_second_spare_row(subject, tokenizer.size)
        return cls(rows, wanted, max(rows - spare, 0), second)


def _mentions_embedding(subject: CheckSubject, item: Finding) -> bool:
    return subject.family is not None and subject.family.graft_points[0].tensor in item.found


def _is_base_itself(subject: CheckSubject, findings: Sequence[Finding], tables: list[RowTable]) -> bool:
    """Whether every tensor is the base's, and none has a row more."""
    base, checkpoint, family = subject.base_checkpoint, subject.checkpoint, subject.family
    codes = {item.code for item in findings}
    if base is None or checkpoint is None or family is None or not tables:
        return False
    ours, theirs = find_text_tables(base, family), find_text_tables(checkpoint, family)
    grown = {point: info.shape for point, info in theirs.items()} != {point: info.shape for point, info in ours.items()}
    whole = {"base-rows-same", "base-rows-rounded"} & codes and {"body-same", "body-rounded"} & codes
    return bool(whole) and not grown and "base-rows-changed" not in codes and "base-rows-shrunk" not in codes


def _max_share_of_new(tables: list[RowTable], kind: str) -> float:
    """The share of a kind among new rows, in the table that has most."""
    return max((table.share_of_new(kind) for table in tables), default=0.0)


def _distance_for_verdict(body: BodyComparison | None) -> float | None:
    """What the verdict goes by: a few lost tensors are a fault of their own, and say nothing of the others."""
    if body is None:
        return None
    return body.usable_distance if body.unusable_share < MAJORITY_SHARE else body.distance


def _measure_repair_point(subject: CheckSubject, body: BodyComparison | None, case: DiagnosisCase) -> float | None:
    """The point that `repair` is proposed to take, measured by the same comparison that judges its result.

    None where there is nothing to repair, or where what is too far away cannot be mended by a point.
    """
    far = (
        body is not None
        and is_body_far(case)
        and (case.distance or 0) < FAR_DISTANCE
        and body.unusable_share < MAJORITY_SHARE
    )
    if not far or body is None or case.sounds:
        return None
    point = estimate_repair_point(case.distance or MOVED_DISTANCE)
    while point > 0 and (distance := measure_blend_distance(subject, body, point)) >= MOVED_DISTANCE:
        point = min(math.floor(100 * point * 0.99 * MOVED_DISTANCE / distance) / 100, round(point - 0.01, 2))
    return max(point, 0.0)


def _adjust_level(subject: CheckSubject, case: DiagnosisCase, item: Finding) -> Finding:
    """More rows than the base's own tokenizer has pieces are no fault where the grown one was not named.

    Data that is not there is still to come in a run that was never trained, and gone in one that was. A wrapper's
    name before all others only has to be known: the trainer that wrote it takes it away again.
    """
    if item.code == "checkpoint-prefixed":
        return replace(item, level="note")
    if item.code == "proof-unreachable":  # a row that is never read does no harm to what was learnt in the others
        cure = "none is needed; the next tokenizer can do without them: `voxgraft tokenizer train`."
        return replace(item, level="note", cure=cure)
    if case.steps is not None and _is_missing_data(item):
        return replace(item, level="error")
    if item.code == "rows-vs-tokenizer" and subject.settings.tokenizer.file is None:
        cure = "name the tokenizer that it was trained with: --tokenizer FILE."
        return replace(item, level="note", cure=cure)
    return item


def _is_missing_data(item: Finding) -> bool:
    return item.level == "note" and CATALOGUE[item.code].area == "data" and CATALOGUE[item.code].level == "error"


class _Measurements:
    """The topics whose comparisons are kept. One of our errors in a topic is a finding; the others go on."""

    def __init__(self, subject: CheckSubject, findings: list[Finding]) -> None:
        self.subject, self.findings = subject, findings
        self.checked: list[str] = []
        self.not_checked: dict[str, str] = {}
        self.optimizer: OptimizerSnapshot | None = None
        self.moments: list[RowMoments] = []
        self.moves: list[RowMove] = []

    def has_learned(self, tables: list[RowTable]) -> bool:
        """Whether the optimizer shows that new rows had gradients, and steps that could carry them somewhere."""
        found, had = self.optimizer, find_new_rows_with_gradients(self.subject, self.moments)
        if found is None or had is None or had.mean() < MAJORITY_SHARE:
            return False
        table = next((one for one in tables if one.role == "embedding"), None)
        rate = max((*found.first_rates, *found.rates), default=None)
        if table is None or rate is None or found.step is None:
            return True
        width = self._width(table.tensor)
        typical = float(np.nanmedian(table.lengths[table.num_base :])) / math.sqrt(max(width, 1))
        return rate * found.step >= _MIN_LEARNED_REACH * typical

    def _width(self, tensor: str) -> int:
        shape = self.subject.checkpoint.tensors[tensor].shape if self.subject.checkpoint is not None else ()
        return shape[1] if len(shape) == 2 else 1

    def rows(self) -> list[RowTable]:
        """All text tables, with what the optimizer keeps of them."""
        subject = self.subject
        if subject.checkpoint is None or subject.family is None:
            self.not_checked |= dict.fromkeys(_MEASURED_TOPICS, "needs a checkpoint of a known family")
            return []
        self.findings += _malformed_table_findings(subject.checkpoint, subject.family)
        self._try_topic("checksums of the text tables", self._verify_checksums)
        self._try_topic("optimizer state", self._read_optimizer)
        comparisons = self._try_topic("base rows", lambda: base_rows.compare_base_rows(subject)) or []
        self.moves = self._try_topic("places of the rows", lambda: find_row_moves(subject, comparisons)) or []
        self.findings += base_rows.row_comparison_findings(subject, comparisons, [one.tensor for one in self.moves])
        self.findings += row_move_findings(subject, self.moves)
        return self._try_topic("rows one by one", lambda: classify_rows(subject, comparisons, self.moments)) or []

    def body(self) -> BodyComparison | None:
        """Everything else."""
        body = self._try_topic("body", lambda: compare_body(self.subject))
        if body is not None:
            _require_finite_base(self.subject, body)
            self.findings += body_comparison_findings(self.subject, body)
        return body

    def _verify_checksums(self) -> None:
        checkpoint, family = self.subject.checkpoint, self.subject.family
        if checkpoint is None or family is None or checkpoint.format != "torch-zip":
            return
        for info in find_text_tables(checkpoint, family).values():
            for _ in iter_values(checkpoint, info):
                pass

    def _read_optimizer(self) -> None:
        subject = self.subject
        if subject.checkpoint is None or subject.family is None:
            return
        self.optimizer = read_optimizer_snapshot(subject.checkpoint)
        if self.optimizer is not None:
            tables = list(find_text_tables(subject.checkpoint, subject.family).values())
            pieces, spare = subject.base_pieces, subject.family.spare_rows
            self.moments = read_row_moments(subject.checkpoint, self.optimizer, tables, pieces, spare)
            self.findings += optimizer_snapshot_findings(subject, self.optimizer, self.moments)

    def _try_topic(self, topic: str, make: Callable[[], TopicT]) -> TopicT | None:
        try:
            made = make()
        except VoxgraftError as error:
            self.findings.append(replace(error.finding, level="error"))
            self.not_checked[topic] = f"stopped by {error.code}"
            return None
        self.checked.append(topic)
        return made


def _require_finite_base(subject: CheckSubject, body: BodyComparison) -> None:
    """A distance from what is not finite is none; the checkpoint is not to blame for it."""
    odd = next((one.name for one in body.changes if not math.isfinite(one.base)), None)
    if odd is not None and subject.base is not None:
        found = f"{odd} of the base holds values that are not finite, or far too large"
        raise CheckpointError("base-not-finite", found, where=subject.base.checkpoint)


def _malformed_table_findings(checkpoint: Checkpoint, family: Family) -> list[Finding]:
    """Tensors with the name of a text table that are none, so that nothing else is said of them."""
    known = {info.name for info in find_text_tables(checkpoint, family).values()}
    names = [point.tensor for point in family.graft_points if point.tensor in checkpoint.tensors]
    odd = [checkpoint.tensors[name] for name in names if name not in known and not is_stand_in(checkpoint)]
    return [
        finding("tensor-shape", f"{info.name} is {info.dtype} {list(info.shape)}", where=checkpoint.path)
        for info in odd
    ]


def _describe_checkpoint(checkpoint: Checkpoint | None, family: Family | None) -> str:
    """The file in a few words: which model, how it is kept, how large it is."""
    if checkpoint is None:
        return "a file that cannot be read as a checkpoint of a known family"
    kinds = sorted({info.dtype for info in checkpoint.tensors.values()})
    size = checkpoint.source.size
    shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    name = FAMILY_TITLES.get(family.name, family.name) if family else "a model"
    model = "a stand-in" if is_stand_in(checkpoint) else name
    table = next(iter(find_text_tables(checkpoint, family).values()), None) if family else None
    rows = f", {table.shape[0]:,} text rows" if table else ""
    kinds_of_file = {"safetensors": "safetensors", "torch-legacy": "a torch file from before torch 1.6"}
    kind = kinds_of_file.get(checkpoint.format, "a torch archive")
    inside = f" under `{checkpoint.wrapper}`" if checkpoint.wrapper else ""
    extras = f", {len(checkpoint.extras)} other things beside them" if checkpoint.extras else ""
    return (
        f"{model} in {kind}, {shown}: {len(checkpoint.tensors):,} tensors of {', '.join(kinds)}{inside}{rows}{extras}"
    )
