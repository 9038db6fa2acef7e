"""From what a user names to everything that can be told of it: opens, measures, asks for the verdict. Writes nothing.

The faults are found by `findings`, as in `check`; here the comparisons behind them are kept, for rows and layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from voxgraft.bases import base_folder
from voxgraft.checkpoints.flat import flat_values
from voxgraft.checkpoints.model import Checkpoint
from voxgraft.checkup_settings import DiagnoseSettings
from voxgraft.codes import CATALOGUE
from voxgraft.diagnosing.layers import Layer, layers_of
from voxgraft.diagnosing.merged_card import keeps_old_languages
from voxgraft.diagnosing.parts import low_rank_findings, refuse_part_of_ours
from voxgraft.diagnosing.rows import BROKEN, ZERO, RowTable, row_tables
from voxgraft.diagnosing.verdict import MOST, Case, Verdict, verdict_of
from voxgraft.errors import CheckpointError, ConfigError, FileError, Finding, VoxgraftError, finding
from voxgraft.evaluating.sentences import built_in_set
from voxgraft.families.base import Family
from voxgraft.files import is_folder, is_there
from voxgraft.findings import Subject, look_at, opened
from voxgraft.findings import base_rows as base_row_topic
from voxgraft.findings import body as body_topic
from voxgraft.findings import optimizer as optimizer_topic
from voxgraft.findings.body import Body
from voxgraft.findings.optimizer import Optimizer, RowMoments
from voxgraft.findings.sizes import size_table
from voxgraft.findings.text_tables import is_stand_in, text_tables
from voxgraft.results import Table
from voxgraft.run_settings import TokenizerSettings
from voxgraft.settings import CheckSettings
from voxgraft.text.texts import Texts

__all__ = ["NAMES", "Diagnosis", "examined", "look", "require_grounds"]

NAMES = {"chatterbox": "Chatterbox", "indextts2": "IndexTTS-2", "tiny": "the tiny base"}
_MEASURED = ("base rows", "body", "optimizer state")
"""Topics whose comparisons are kept here."""
_SENTENCES = 200
Made = TypeVar("Made")


@dataclass(slots=True)
class Diagnosis:
    """All that was found of one checkpoint."""

    path: Path
    case: Case
    what: str
    family: str
    verdict: Verdict
    findings: list[Finding]
    checked: list[str]
    not_checked: dict[str, str]
    tables: list[RowTable] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    distance: float | None = None
    """How far the body moved, by its length."""
    unusable: tuple[str, ...] = ()
    """Tensors of the body that are of another form, or in which nothing of the base is left."""
    optimizer: Optimizer | None = None
    moments: list[RowMoments] = field(default_factory=list)
    sizes: Table | None = None
    heard: list[dict[str, Any]] = field(default_factory=list)
    """What was listened to: language, who, phone error."""
    not_heard: str = ""
    """Why nothing was listened to, where it was asked for."""

    @property
    def readable(self) -> bool:
        return bool(self.tables or self.layers or self.case.run)

    def judge_anew(self, *, kept: bool) -> None:
        """The verdict with what ears have found of the old languages."""
        self.case = replace(self.case, kept=kept)
        self.verdict = verdict_of(self.findings, self.case, readable=self.readable)

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
            "optimizer": self.optimizer.to_json() if self.optimizer else None,
            "findings": [item.to_json() for item in self.findings],
            "checked": self.checked,
            "not_checked": self.not_checked,
            "heard": self.heard,
            "not_heard": self.not_heard,
        }


def look(settings: DiagnoseSettings) -> Diagnosis:
    """Everything about a checkpoint file, or about the one checkpoint in a folder."""
    if settings.base is None:
        cure = "name the folder of the base that it was made from with --base FOLDER."
        raise ConfigError("config-missing", "`base` is not given", expected="--base", cure=cure)
    if not is_there(settings.checkpoint):
        raise FileError("file-missing", f"{settings.checkpoint.name} is not there", where=settings.checkpoint)
    refuse_part_of_ours(settings.checkpoint)
    base = base_folder(settings.base)
    with opened(_check_settings(settings, base)) as subject:
        require_grounds(subject)
        _read_built_in_texts(subject)
        kept = keeps_old_languages(subject.checkpoint.path) if subject.checkpoint is not None else None
        file = subject.settings.checkpoint if is_folder(settings.checkpoint) else None
        named = settings.checkpoint, settings.base, settings.tokenizer
        case = Case(*named, file=file, language=settings.language, kept=kept)
        return examined(subject, case, low_rank_findings(subject))


def require_grounds(subject: Subject) -> None:
    """Raise what is wrong with the base, or with a tokenizer that was named: without them there is no verdict."""
    whole = subject.base is not None and subject.base_checkpoint is not None and subject.base_tokenizer is not None
    if whole and (subject.grown is not None or subject.settings.tokenizer.file is None):
        return
    for item in subject.findings:
        raise CheckpointError.of(item)
    raise ConfigError("config-missing", "`base` is not given", expected="--base")


def _check_settings(settings: DiagnoseSettings, base: Path) -> CheckSettings:
    """The same for `findings`; of a folder its checkpoint, and its tokenizer unless another is named."""
    checkpoint, tokenizer = settings.checkpoint, settings.tokenizer
    if is_folder(checkpoint):
        checkpoint, beside = _files_in(checkpoint, base, settings.family)
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


def _files_in(folder: Path, base: Path, name: str | None) -> tuple[Path, Path | None]:
    """A folder that something like the base's own files stand in: merged, exported, or a copy."""
    from voxgraft.bases import base_family

    family = base_family(base, name)
    for checkpoint in (folder / file for file in family.checkpoint_names):
        if checkpoint.is_file():
            names = (folder / file for file in family.tokenizer_names)
            return checkpoint, next((path for path in names if path.is_file()), None)
    files = family.files(folder)
    return files.checkpoint, files.tokenizer


def _read_built_in_texts(subject: Subject) -> None:
    """Our own sentences of the language, where the user names no texts: enough to see letters without a piece."""
    language = subject.settings.language
    own = built_in_set(language) if language and subject.texts is None and subject.grown is not None else None
    if own is not None:
        subject.texts = Texts(tuple(one.text for one in own.spread(_SENTENCES).sentences))


def examined(subject: Subject, case: Case, more: Sequence[Finding] = ()) -> Diagnosis:
    """Look at all topics, keep what was measured, and judge. `case` says what it is about; the rest is filled in here.

    `more` are findings from elsewhere.
    """
    outcome, family = look_at(subject, data=case.run is not None, without=_MEASURED), subject.family
    measured = _Measured(subject, [*more, *(_levelled(subject, case, item) for item in outcome.findings)])
    tables, body = measured.rows(), measured.body()
    findings = list(dict.fromkeys(measured.findings))
    case = replace(
        case,
        family=NAMES.get(family.name, family.name) if family else "",
        base_tokenizer=subject.base.tokenizer if subject.base else None,
        base_suffix=subject.base.checkpoint.suffix if subject.base else case.base_suffix,
        distance=_judged_distance(body),
        unusable=body.unusable_share if body else 0.0,
        empty_rows=_most_of_new(tables, ZERO),
        ruined_rows=_most_of_new(tables, BROKEN),
        sounds=bool(family and family.shipped()),
        data_to_come=case.steps is None and any(_is_missing_data(item) for item in outcome.findings),
        has_optimizer=measured.optimizer is not None,
        has_new_rows=any(len(table.kinds) > table.num_base + (subject.spare_rows or 0) for table in tables),
    )
    return Diagnosis(
        path=case.checkpoint,
        case=case,
        what=_what(subject.checkpoint, family),
        family=family.name if family else "",
        verdict=verdict_of(findings, case, readable=subject.checkpoint is not None or case.run is not None),
        findings=findings,
        checked=[*outcome.checked, *measured.checked],
        not_checked={**outcome.not_checked, **measured.not_checked},
        tables=tables,
        layers=layers_of(body, family) if body and family else [],
        distance=body.distance if body else None,
        unusable=body.unusable if body else (),
        optimizer=measured.optimizer,
        moments=measured.moments,
        sizes=size_table(subject),
    )


def _most_of_new(tables: list[RowTable], kind: str) -> float:
    """The share of a kind among new rows, in the table that has most."""
    return max((table.share_of_new(kind) for table in tables), default=0.0)


def _judged_distance(body: Body | None) -> float | None:
    """What the verdict goes by: a few lost tensors are a fault of their own, and say nothing of the others."""
    if body is None or body.not_finite:
        return None
    return body.distance_of_usable if body.unusable_share < MOST else body.distance


def _levelled(subject: Subject, case: Case, item: Finding) -> Finding:
    """More rows than the base's own tokenizer has pieces are no fault where the grown one was not named.

    Data that is not there is still to come in a run that was never trained, and gone in one that was. A wrapper's
    name before all others only has to be known: the trainer that wrote it takes it away again.
    """
    if item.code == "checkpoint-prefixed":
        return replace(item, level="note")
    if case.steps is not None and _is_missing_data(item):
        return replace(item, level="error")
    if item.code == "rows-vs-tokenizer" and subject.settings.tokenizer.file is None:
        cure = "name the tokenizer that it was trained with: --tokenizer FILE."
        return replace(item, level="note", cure=cure)
    return item


def _is_missing_data(item: Finding) -> bool:
    return item.level == "note" and CATALOGUE[item.code].area == "data" and CATALOGUE[item.code].level == "error"


class _Measured:
    """The topics whose comparisons are kept. One of our errors in a topic is a finding; the others go on."""

    def __init__(self, subject: Subject, findings: list[Finding]) -> None:
        self.subject, self.findings = subject, findings
        self.checked: list[str] = []
        self.not_checked: dict[str, str] = {}
        self.optimizer: Optimizer | None = None
        self.moments: list[RowMoments] = []

    def rows(self) -> list[RowTable]:
        """All text tables, with what the optimizer keeps of them."""
        subject = self.subject
        if subject.checkpoint is None or subject.family is None:
            self.not_checked |= dict.fromkeys(_MEASURED, "needs a checkpoint of a known family")
            return []
        self.findings += _odd_tables(subject.checkpoint, subject.family)
        self._attempt("checksums of the text tables", self._check_sums)
        self._attempt("optimizer state", self._read_optimizer)
        comparisons = self._attempt("base rows", lambda: base_row_topic.row_comparisons(subject)) or []
        self.findings += base_row_topic.told(subject, comparisons)
        return self._attempt("rows one by one", lambda: row_tables(subject, comparisons, self.moments)) or []

    def body(self) -> Body | None:
        """Everything else."""
        body = self._attempt("body", lambda: body_topic.measured_body(self.subject))
        if body is not None:
            _require_finite_base(self.subject, body)
            self.findings += body_topic.told(self.subject, body)
        return body

    def _check_sums(self) -> None:
        checkpoint, family = self.subject.checkpoint, self.subject.family
        if checkpoint is None or family is None or checkpoint.format != "torch-zip":
            return
        for info in text_tables(checkpoint, family).values():
            for _ in flat_values(checkpoint, info):
                pass

    def _read_optimizer(self) -> None:
        subject = self.subject
        if subject.checkpoint is None or subject.family is None:
            return
        self.optimizer = optimizer_topic.optimizer_of(subject.checkpoint)
        if self.optimizer is not None:
            tables = list(text_tables(subject.checkpoint, subject.family).values())
            self.moments = optimizer_topic.row_moments(subject.checkpoint, self.optimizer, tables)
            self.findings += optimizer_topic.told(subject, self.optimizer, self.moments)

    def _attempt(self, topic: str, make: Callable[[], Made]) -> Made | None:
        try:
            made = make()
        except VoxgraftError as error:
            self.findings.append(replace(error.finding, level="error"))
            self.not_checked[topic] = f"stopped by {error.code}"
            return None
        self.checked.append(topic)
        return made


def _require_finite_base(subject: Subject, body: Body) -> None:
    """A distance from what is not finite is none; the checkpoint is not to blame for it."""
    odd = next((one.name for one in body.changes if not math.isfinite(one.base)), None)
    if odd is not None and subject.base is not None:
        found = f"{odd} of the base holds values that are not finite, or far too large"
        raise CheckpointError("base-not-finite", found, where=subject.base.checkpoint)


def _odd_tables(checkpoint: Checkpoint, family: Family) -> list[Finding]:
    """Tensors with the name of a text table that are none, so that nothing else is said of them."""
    known = {info.name for info in text_tables(checkpoint, family).values()}
    names = [point.tensor for point in family.graft_points if point.tensor in checkpoint.tensors]
    odd = [checkpoint.tensors[name] for name in names if name not in known and not is_stand_in(checkpoint)]
    return [
        finding("tensor-shape", f"{info.name} is {info.dtype} {list(info.shape)}", where=checkpoint.path)
        for info in odd
    ]


def _what(checkpoint: Checkpoint | None, family: Family | None) -> str:
    """The file in a few words: which model, how it is kept, how large it is."""
    if checkpoint is None:
        return "a file that cannot be read as a checkpoint of a known family"
    kinds = sorted({info.dtype for info in checkpoint.tensors.values()})
    size = checkpoint.source.size
    shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    name = NAMES.get(family.name, family.name) if family else "a model"
    model = "a stand-in" if is_stand_in(checkpoint) else name
    table = next(iter(text_tables(checkpoint, family).values()), None) if family else None
    rows = f", {table.shape[0]:,} text rows" if table else ""
    kind = "safetensors" if checkpoint.format == "safetensors" else "a torch archive"
    inside = f" under `{checkpoint.wrapper}`" if checkpoint.wrapper else ""
    extras = f", {len(checkpoint.extras)} other things beside them" if checkpoint.extras else ""
    return (
        f"{model} in {kind}, {shown}: {len(checkpoint.tensors):,} tensors of {', '.join(kinds)}{inside}{rows}{extras}"
    )
