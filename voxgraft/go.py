"""The verb `go`: all stages of a run one after another, each by its own verb; those that are finished are skipped.

It calls other verbs, as `demo` does: it stands in for the person at the keyboard. Everything lies in the run folder, so
a `go` that was killed goes on with the same command.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from voxgraft import progress
from voxgraft.amounts import brief_seconds
from voxgraft.errors import VoxgraftError
from voxgraft.going.data_stages import IMPORT, PREPARE, SPLIT
from voxgraft.going.ending_stages import EVALUATE, EXPORT
from voxgraft.going.preconditions import require_for_later
from voxgraft.going.settings import GoSettings
from voxgraft.going.stage import Decision, Stage, Work
from voxgraft.going.training_stages import CHECK, GRAFT, TRAIN, require_steps_left
from voxgraft.only_now import only_now
from voxgraft.results import Line, Result, Table, styled
from voxgraft.run_yaml import set_in_run_yaml
from voxgraft.train import EXIT_INTERRUPTED

__all__ = ["STAGES", "GoResult", "StageOutcome", "go"]

STAGES = (IMPORT, SPLIT, GRAFT, PREPARE, CHECK, TRAIN, EVALUATE, EXPORT)
Word = Literal["done", "skipped", "ended here", "would run", "not known yet"]
LEAVE_NOTHING = ("check", "evaluate")
"""Stages by which no later one decides."""
AFTER_TRAINING = ("evaluate", "export")
POINTS_ON = "next: voxgraft "
"""How a verb says what its user does next. Inside `go` nobody does it: it is what `go` does next itself."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What became of one stage, and why it ran or did not."""

    name: str
    word: Word
    why: str
    seconds: float = 0.0
    result: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class GoResult:
    """All stages up to the last that was asked for, or to the one that ended it."""

    run: Path
    stages: tuple[StageOutcome, ...]
    exit_code: int = 0
    """That of the stage that ended it."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of run.yaml that were given as flags, with their values. They are in the file now, but for a dry run."""

    def to_json(self) -> dict[str, Any]:
        stages = [stage.to_json() for stage in self.stages]
        return {"run": str(self.run), "stages": stages, "changes": dict(self.changes)}

    def lines(self) -> list[Line]:
        rows = tuple(
            (one.name, one.word, brief_seconds(one.seconds) if one.seconds >= 0.5 else "", one.why)
            for one in self.stages
        )
        lines: list[Line] = [Table(("stage", "", "took", "why"), rows)]
        again, last = f"voxgraft go {shlex.quote(str(self.run))}", self.stages[-1].name
        if self.exit_code == EXIT_INTERRUPTED:
            lines.append(f"`{last}` was interrupted; `{again}` goes on there.")
        elif self.exit_code:
            lines.append(f"`{last}` has said no, above. When that is mended, `{again}` goes on there.")
        elif (follows := _follower(last)) and "done" in (one.word for one in self.stages):
            lines.append(f"next: `{again}` goes on with `{follows}`.")
        return lines


def go(settings: GoSettings) -> GoResult:
    """Run every stage that is not finished, or only say which those are."""
    stages = STAGES[: _last(settings) + 1]
    work = Work(settings)
    changes = only_now(work.run, work.settings)
    require_for_later(work, _coming(work, stages))
    planned = _planned(settings, stages) if settings.dry_run or changes else None
    require_steps_left(work, changes)
    if settings.dry_run and planned is not None:
        return replace(planned, changes=changes)
    if changes:  # what is refused with these values must not be written down
        with work.run.lock("go"):
            set_in_run_yaml(work.run, work.settings)
        progress.chapter([_changed(key, value) for key, value in changes.items()])
    return replace(_gone(settings, stages), changes=changes)


def _coming(work: Work, stages: tuple[Stage, ...]) -> list[str]:
    """Stages after training that are not finished, by what is there now."""
    decisions = {stage.name: _decided(stage, work, known=False) for stage in stages if stage.name in AFTER_TRAINING}
    return [name for name, decision in decisions.items() if decision is None or decision.runs]


def _changed(key: str, value: str) -> Line:
    return styled("run.yaml: ", (key, "bold"), f" is {value or 'empty'} now")


def _last(settings: GoSettings) -> int:
    names = [stage.name for stage in STAGES]
    return names.index(settings.until) if settings.until else len(names) - 1


def _follower(name: str) -> str:
    """The stage after this one; empty after the last."""
    names = [stage.name for stage in STAGES]
    return next(iter(names[names.index(name) + 1 :]), "") if name in names else ""


def _gone(settings: GoSettings, stages: tuple[Stage, ...]) -> GoResult:
    outcomes: list[StageOutcome] = []
    for stage in stages:
        work = Work(settings)  # anew each time: the stage before has changed what lies there
        decision = stage.decide(work)
        progress.chapter([_headline(stage, decision)])
        if not decision.runs:
            outcomes.append(StageOutcome(stage.name, "skipped", decision.why))
            continue
        if stage is TRAIN:  # the data is there now, which a check at the start may not have had
            require_for_later(work, _coming(work, stages), again=True)
        began = time.monotonic()
        try:
            result: Result = stage.work(work)
        except KeyboardInterrupt:  # `train` ends by itself then; whatever the others have finished is kept
            outcomes.append(StageOutcome(stage.name, "ended here", decision.why, time.monotonic() - began))
            return GoResult(settings.run, tuple(outcomes), EXIT_INTERRUPTED)
        word: Word = "ended here" if result.exit_code else "done"
        seconds = time.monotonic() - began
        progress.chapter([line for line in result.lines() if not str(line).startswith(POINTS_ON)])
        outcomes.append(StageOutcome(stage.name, word, decision.why_done, seconds, result.to_json()))
        if result.exit_code:
            return GoResult(settings.run, tuple(outcomes), result.exit_code)
    return GoResult(settings.run, tuple(outcomes))


def _planned(settings: GoSettings, stages: tuple[Stage, ...]) -> GoResult:
    """By what lies there now. What a stage that has yet to run will leave is not guessed at."""
    outcomes: list[StageOutcome] = []
    first = ""
    for stage in stages:
        decision = _decided(stage, Work(settings), known=not first)
        word: Word = "skipped"
        if decision is not None and decision.runs:
            first, word = first or ("" if stage.name in LEAVE_NOTHING else stage.name), "would run"
        elif first:
            word = "not known yet"
        why = decision.why if decision is not None and word != "not known yet" else f"depends on what `{first}` leaves"
        outcomes.append(StageOutcome(stage.name, word, why))
    return GoResult(settings.run, tuple(outcomes))


def _decided(stage: Stage, work: Work, *, known: bool) -> Decision | None:
    """None where an earlier stage must leave something first."""
    try:
        return stage.decide(work)
    except VoxgraftError:
        if known:
            raise
        return None


def _headline(stage: Stage, decision: Decision) -> Line:
    word = "runs" if decision.runs else "skipped"
    return styled((stage.name, "bold"), f": {word}: {decision.why}")
