"""The verb `train`: look at all that could go wrong, then train a run's graft, from the start or from where it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from voxgraft import progress
from voxgraft.corpus.stream import items_of
from voxgraft.course import Course, open_course
from voxgraft.errors import ConfigError, Finding, GraftError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.opening import open_model
from voxgraft.findings import look_at, opened
from voxgraft.opening_lines import opening_lines
from voxgraft.results import Line
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.settings import CheckSettings, TrainVerbSettings
from voxgraft.trained_graft import write_trained
from voxgraft.training.examples import Examples
from voxgraft.training.loop import Loop, Outcome
from voxgraft.training.parts import Trained, make_optimizer, prepare
from voxgraft.training.processes import Processes, is_first_of_all, processes
from voxgraft.training.resuming import go_on
from voxgraft.training.step import Stepper
from voxgraft.training.validation import Validation

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
ENDINGS = {"done": "done", "told": "stopped as told", "no-better": "stopped: no longer getting better"}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How training ended."""

    outcome: Outcome
    start: int
    graft: str
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.outcome.step,
            "started_from": self.start,
            "ended": self.outcome.reason,
            "best_step": self.outcome.standing.best_step,
            "best_loss": self.outcome.standing.best_loss,
            "graft": self.graft,
        }

    def lines(self) -> list[Line]:
        best = self.outcome.standing
        lines: list[Line] = [f"{ENDINGS[self.outcome.reason]}, at step {self.outcome.step:,}"]
        if best.best_loss is not None:
            lines.append(f"best: step {best.best_step:,}, speech loss {best.best_loss:.4f} on held-out recordings")
        if self.outcome.reason == "told":
            lines.append("the same command goes on from here")
        return [*lines, f"graft: {self.graft}"]


def train(settings: TrainVerbSettings) -> TrainResult:
    """Train a run. A run with saved steps goes on from the newest whole one by itself."""
    if settings.fresh and settings.from_step is not None:
        raise ConfigError("config-value", "--fresh and --from-step are both given", expected="one of the two")
    run = RunFolder(settings.run)
    family, files = _without_errors(settings)
    course = open_course(run, settings, family, files)
    _refuse(course.findings)
    with run.lock() if is_first_of_all() else nullcontext(), processes(course.device) as group:
        loop = _loop(course, group)
        start = go_on(loop, fresh=settings.fresh, from_step=settings.from_step)
        progress.tell("opening", start, {"lines": opening_lines(course, loop, start)})
        outcome = loop.go(start)
        graft = write_trained(course, loop, outcome) if group.is_first else run.graft
    return TrainResult(outcome, start, str(graft))


def _without_errors(settings: TrainVerbSettings) -> tuple[Family, BaseFiles]:
    """What `check` finds must hold no error; gives the base that it looked at."""
    values = {name: getattr(settings, name) for name in RunSettings.model_fields}
    with opened(CheckSettings(run=settings.run, **values)) as subject:
        _refuse(look_at(subject).findings)
        if subject.family is None or subject.base is None:
            raise ConfigError("config-missing", "`base` is not given", where=settings.run / RUN_FILE)
        return subject.family, subject.base


def _refuse(findings: Sequence[Finding]) -> None:
    """Raise the first error, and say how many more there are."""
    errors = [item for item in findings if item.level == "error"]
    if not errors:
        return
    others = ", ".join(dict.fromkeys(item.code for item in errors[1:]))
    more = f" {len(errors) - 1} more: {others}; `voxgraft check` shows all." if others else ""
    first = errors[0]
    raise GraftError(first.code, first.found, expected=first.expected, where=first.where, cure=first.cure + more)


def _loop(course: Course, group: Processes) -> Loop:
    """Everything fitted together, before the first step."""
    trained = _model(course)
    options = course.options
    order = course.stream.options
    examples = Examples(course.family, trained.model, course.train, options.emotion_from)
    stepper = Stepper(trained, make_optimizer(trained, options), examples, options, group)
    validations = {}
    for language, sets in course.valid.items():
        held_out = Examples(course.family, trained.model, sets, options.emotion_from)
        items = items_of(sets, options.seed, order)
        validations[language] = Validation(trained, held_out, items, options.pack_tokens)
    loop = Loop(course.run, stepper, course.stream, validations, course.every)
    loop.identity = course.identity
    loop.observers.append(progress.tell)
    return loop


def _model(course: Course) -> Trained:
    """A body that is not trained is kept in half precision where there is one; a trained one in float32."""
    options = course.options
    body_trained = options.full_body or options.mode == "as-in-the-seeds"
    dtype = torch.float32 if body_trained else HALF.get(options.precision, torch.float32)
    model = open_model(course.family, course.files, device=course.device, dtype=dtype)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    return prepare(model, rows, options)
