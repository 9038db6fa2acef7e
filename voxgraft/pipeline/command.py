"""The verb `go`: all stages of a run one after another, each by its own verb; those that are finished are skipped.

It calls other verbs, as `demo` does: it stands in for the person at the keyboard. Everything lies in the run folder, so
a `go` that was killed goes on with the same command.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from voxgraft.config.commands import GoSettings
from voxgraft.config.run import find_overrides, update_run_yaml
from voxgraft.core import progress
from voxgraft.core.errors import ConfigError, GraftError, VoxgraftError
from voxgraft.core.files import is_folder, require_disk_space
from voxgraft.core.results import EXIT_INTERRUPTED, CommandResult, Line, Table, format_duration, style_line
from voxgraft.data.selection import resolve_manifest_path
from voxgraft.evaluation.scores import require_recognizer
from voxgraft.evaluation.sentences import load_sentence_sets, require_sentences
from voxgraft.export.command import (
    SHAREABLE_KINDS,
    choose_export_kind,
    require_export_folder,
    require_export_kind,
)
from voxgraft.models import resolve_base_family, resolve_base_folder
from voxgraft.models.base import Family
from voxgraft.pipeline.stages import (
    CHECK_STAGE,
    EVALUATE_STAGE,
    EXPORT_STAGE,
    GRAFT_STAGE,
    IMPORT_STAGE,
    PREPARE_STAGE,
    SPLIT_STAGE,
    TRAIN_STAGE,
    PipelineContext,
    PipelineStage,
    StageDecision,
    require_steps_left,
)
from voxgraft.tokenizers import open_tokenizer

EXPORT_CHECKPOINT_COPIES = 3
"""Checkpoints of the base's size that an export for the stock program needs room for: two, and one being saved."""


def require_later_stages(work: PipelineContext, stages: Collection[str], *, after_data: bool = False) -> None:
    """Raise the error that `evaluate` or `export` would end with. `again`: only what the data can have changed."""
    settings = work.settings
    if settings.base is None or settings.language is None:
        return  # the stages that need them first say so
    folder = resolve_base_folder(settings.base)
    family = resolve_base_family(folder, settings.family)
    if "evaluate" in stages:
        if not after_data:
            require_recognizer(settings.evaluate.recognizer, settings.language)
            _require_sentence_files(work, family, folder)
        manifest = resolve_manifest_path(settings.data.dataset, work.run.data)
        valid = settings.data.valid or (work.run.data_set("valid"),)
        require_sentences(manifest, valid, settings.language, work.told.sentences)
    if "export" in stages:
        _require_export_possible(work, family, folder)


def _require_sentence_files(work: PipelineContext, family: Family, folder: Path) -> None:
    """Files with sentences must be sets of a language that is spoken."""
    if work.told.sentences:
        files = family.files(folder)
        base = family.describe(files, open_tokenizer(files.tokenizer).size + family.spare_rows).languages
        load_sentence_sets(
            [work.language, *(name for name in base if name != work.language)],
            work.told.sentences,
            work.told.max_sentences,
        )


def _require_export_possible(work: PipelineContext, family: Family, folder: Path) -> None:
    """The kind must be one of this base and of this training, and its folder free or an export of ours."""
    train = work.settings.train
    merged = train.mode == "merged"
    kind = work.told.to or choose_export_kind(family.name, merged=merged)
    require_export_kind(family, kind)
    if kind == "peft" and train.mode == "rows-only":
        found = "--to peft, and train.mode is rows-only: there will be no adapter"
        raise ConfigError("export-kind", found, expected=f"graft, {family.name}", where=work.run.settings)
    if kind in SHAREABLE_KINDS and merged and train.full_body:
        found = f"--to {kind}, and train.full_body changes the body itself: what it leaves is no graft"
        raise GraftError("export-kind", found, expected=f"--to {family.name}", where=work.run.settings)
    output = work.run.export / kind
    require_export_folder(output, overwrite=is_folder(output))
    if kind not in SHAREABLE_KINDS:
        size = EXPORT_CHECKPOINT_COPIES * family.files(folder).checkpoint.stat().st_size
        require_disk_space(output, size, "the export")


PIPELINE_STAGES = (
    IMPORT_STAGE,
    SPLIT_STAGE,
    GRAFT_STAGE,
    PREPARE_STAGE,
    CHECK_STAGE,
    TRAIN_STAGE,
    EVALUATE_STAGE,
    EXPORT_STAGE,
)
StageStatus = Literal["done", "skipped", "ended here", "would run", "not known yet"]
STAGES_WITHOUT_OUTPUT = ("check", "evaluate")
"""Stages by which no later one decides."""
STAGES_AFTER_TRAINING = ("evaluate", "export")
NEXT_COMMAND_PREFIX = "next: voxgraft "
"""How a verb says what its user does next. Inside `go` nobody does it: it is what `go` does next itself."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What became of one stage, and why it ran or did not."""

    name: str
    word: StageStatus
    why: str
    seconds: float = 0.0
    result: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class GoResult:
    """All stages up to the last that was asked for, or to the one that ended it."""

    run: Path
    stages: tuple[StageResult, ...]
    exit_code: int = 0
    """That of the stage that ended it."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of run.yaml that were given as flags, with their values. They are in the file now, but for a dry run."""

    def to_json(self) -> dict[str, Any]:
        stages = [stage.to_json() for stage in self.stages]
        return {"run": str(self.run), "stages": stages, "changes": dict(self.changes)}

    def lines(self) -> list[Line]:
        rows = tuple(
            (one.name, one.word, format_duration(one.seconds) if one.seconds >= 0.5 else "", one.why)
            for one in self.stages
        )
        lines: list[Line] = [Table(("stage", "", "took", "why"), rows)]
        again, last = f"voxgraft go {shlex.quote(str(self.run))}", self.stages[-1].name
        if self.exit_code == EXIT_INTERRUPTED:
            lines.append(f"`{last}` was interrupted; `{again}` goes on there.")
        elif self.exit_code:
            lines.append(f"`{last}` has said no, above. When that is mended, `{again}` goes on there.")
        elif (follows := _find_next_stage(last)) and "done" in (one.word for one in self.stages):
            lines.append(f"next: `{again}` goes on with `{follows}`.")
        return lines


def run_pipeline(settings: GoSettings) -> GoResult:
    """Run every stage that is not finished, or only say which those are."""
    stages = PIPELINE_STAGES[: _last_stage_index(settings) + 1]
    work = PipelineContext(settings)
    changes = find_overrides(work.run, work.settings)
    require_later_stages(work, _find_pending_stages(work, stages))
    planned = _plan_stages(settings, stages) if settings.dry_run or changes else None
    require_steps_left(work, changes)
    if settings.dry_run and planned is not None:
        return replace(planned, changes=changes)
    if changes:  # what is refused with these values must not be written down
        with work.run.lock("go"):
            update_run_yaml(work.run, work.settings)
        progress.report_lines([_format_changed_setting(key, value) for key, value in changes.items()])
    return replace(_run_stages(settings, stages), changes=changes)


def _find_pending_stages(work: PipelineContext, stages: tuple[PipelineStage, ...]) -> list[str]:
    """Stages after training that are not finished, by what is there now."""
    decisions = {
        stage.name: _decide_stage(stage, work, known=False) for stage in stages if stage.name in STAGES_AFTER_TRAINING
    }
    return [name for name, decision in decisions.items() if decision is None or decision.runs]


def _format_changed_setting(key: str, value: str) -> Line:
    return style_line("run.yaml: ", (key, "bold"), f" is {value or 'empty'} now")


def _last_stage_index(settings: GoSettings) -> int:
    names = [stage.name for stage in PIPELINE_STAGES]
    return names.index(settings.until) if settings.until else len(names) - 1


def _find_next_stage(name: str) -> str:
    """The stage after this one; empty after the last."""
    names = [stage.name for stage in PIPELINE_STAGES]
    return next(iter(names[names.index(name) + 1 :]), "") if name in names else ""


def _run_stages(settings: GoSettings, stages: tuple[PipelineStage, ...]) -> GoResult:
    outcomes: list[StageResult] = []
    for stage in stages:
        work = PipelineContext(settings)  # anew each time: the stage before has changed what lies there
        decision = stage.decide(work)
        progress.report_lines([_format_stage_headline(stage, decision)])
        if not decision.runs:
            outcomes.append(StageResult(stage.name, "skipped", decision.why))
            continue
        if stage is TRAIN_STAGE:  # the data is there now, which a check at the start may not have had
            require_later_stages(work, _find_pending_stages(work, stages), after_data=True)
        began = time.monotonic()
        try:
            result: CommandResult = stage.work(work)
        except KeyboardInterrupt:  # `train` ends by itself then; whatever the others have finished is kept
            outcomes.append(StageResult(stage.name, "ended here", decision.why, time.monotonic() - began))
            return GoResult(settings.run, tuple(outcomes), EXIT_INTERRUPTED)
        word: StageStatus = "ended here" if result.exit_code else "done"
        seconds = time.monotonic() - began
        progress.report_lines([line for line in result.lines() if not str(line).startswith(NEXT_COMMAND_PREFIX)])
        outcomes.append(StageResult(stage.name, word, decision.why_done, seconds, result.to_json()))
        if result.exit_code:
            return GoResult(settings.run, tuple(outcomes), result.exit_code)
    return GoResult(settings.run, tuple(outcomes))


def _plan_stages(settings: GoSettings, stages: tuple[PipelineStage, ...]) -> GoResult:
    """By what lies there now. What a stage that has yet to run will leave is not guessed at."""
    outcomes: list[StageResult] = []
    first = ""
    for stage in stages:
        decision = _decide_stage(stage, PipelineContext(settings), known=not first)
        word: StageStatus = "skipped"
        if decision is not None and decision.runs:
            first, word = first or ("" if stage.name in STAGES_WITHOUT_OUTPUT else stage.name), "would run"
        elif first:
            word = "not known yet"
        why = decision.why if decision is not None and word != "not known yet" else f"depends on what `{first}` leaves"
        outcomes.append(StageResult(stage.name, word, why))
    return GoResult(settings.run, tuple(outcomes))


def _decide_stage(stage: PipelineStage, work: PipelineContext, *, known: bool) -> StageDecision | None:
    """None where an earlier stage must leave something first."""
    try:
        return stage.decide(work)
    except VoxgraftError:
        if known:
            raise
        return None


def _format_stage_headline(stage: PipelineStage, decision: StageDecision) -> Line:
    word = "runs" if decision.runs else "skipped"
    return style_line((stage.name, "bold"), f": {word}: {decision.why}")
