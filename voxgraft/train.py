"""The verb `train`: look at all that could go wrong, then train a run's graft, from the start or from where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from voxgraft import progress
from voxgraft.corpus.stream import items_of
from voxgraft.course import HALF, Course, open_course
from voxgraft.errors import ConfigError, Finding, GraftError
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import open_model
from voxgraft.findings import look_at, opened
from voxgraft.merged_folder import Merged, write_merged
from voxgraft.opening_lines import opening_lines
from voxgraft.results import Line
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.sample_texts import held_out_texts, sentences_of
from voxgraft.settings import CheckSettings, TrainVerbSettings
from voxgraft.tensorboard import EventFiles
from voxgraft.trained_graft import is_written, write_trained
from voxgraft.training.examples import Examples
from voxgraft.training.loop import Loop, Outcome
from voxgraft.training.parts import Trained, make_optimizer, prepare
from voxgraft.training.processes import Processes, is_first_of_all, processes
from voxgraft.training.resuming import Change, go_on
from voxgraft.training.samples import Sampler, Sentence
from voxgraft.training.seeds_way import LABEL
from voxgraft.training.step import Stepper
from voxgraft.training.validation import Validation
from voxgraft.training.watch import Watch
from voxgraft.training.watch_rows import RowWatch

ENDINGS = {"done": "done", "told": "stopped as told", "no-better": "stopped: no longer getting better"}
EXIT_INTERRUPTED = 130
"""What was saved is whole, but it is not what was asked for: who waits for the end of training must not go on."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How training ended."""

    outcome: Outcome
    start: int
    graft: str | None
    merged: Merged | None = None
    label: str = ""
    further: str = ""
    """Where nothing was left to train: what would make it go on."""

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.was_interrupted else 0

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal has ended it."""
        return self.outcome.reason == "told" and not self.outcome.why

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.outcome.step,
            "started_from": self.start,
            "ended": self.outcome.reason,
            "already": bool(self.further),
            "best_step": self.outcome.standing.best_step,
            "best_loss": self.outcome.standing.best_loss,
            "graft": self.graft,
            "merged": str(self.merged.folder) if self.merged else None,
            "why": self.outcome.why,
            "label": self.label,
        }

    def lines(self) -> list[Line]:
        best = self.outcome.standing
        ending = f"{ENDINGS[self.outcome.reason]}, at step {self.outcome.step:,}"
        if self.further:
            ending = f"nothing is left to train: {ending}. To go on: {self.further}; to begin again: --fresh"
        lines: list[Line] = [f"trained {self.label}"] if self.label else []
        lines.append(f"stopped: {self.outcome.why}" if self.outcome.why else ending)
        if best.best_loss is not None:
            lines.append(f"best: step {best.best_step:,}, speech loss {best.best_loss:.4f} on held-out recordings")
        if self.was_interrupted:
            lines.append("the same command goes on from here")
        if self.graft is not None:
            lines.append(f"graft: {self.graft}")
        return [*lines, *(_merged_lines(self.merged) if self.merged else ())]


def train(settings: TrainVerbSettings) -> TrainResult:
    """Train a run. A run with saved steps goes on from the newest whole one by itself."""
    if settings.fresh and settings.from_step is not None:
        raise ConfigError("config-value", "--fresh and --from-step are both given", expected="one of the two")
    run = RunFolder(settings.run)
    family, files = _without_errors(settings)
    with ExitStack() as stack:
        stack.enter_context(run.lock() if is_first_of_all() else nullcontext())
        course = open_course(run, settings, family, files, as_in_the_seeds=settings.as_in_the_seeds)
        _refuse(course.findings)
        sentences = _sentences(course, settings)
        group = stack.enter_context(processes(course.device))
        loop = _loop(course, group)
        watch = _watch(course, loop, sentences)
        if settings.train.tensorboard:
            loop.observers.append(EventFiles(run, loop.write).observe)
        changed: list[Change] = []
        loop.observers.append(lambda kind, _step, values: changed.extend(_change(kind, values)))
        start = go_on(loop, fresh=settings.fresh, from_step=settings.from_step)
        if group.is_first:
            _open(course, loop, start, changed)
            for item in watch.tell(start, course.findings):
                progress.tell("finding", start, item.to_json())  # it stands in the journal already
        further = _further(loop, start)
        outcome = loop.go(start)
        return replace(_left(course, loop, outcome, start), further=further)


def _further(loop: Loop, start: int) -> str:
    """What would make a run go on that is over already."""
    over = loop.over_at(start) if loop.begun else None
    if over == "done":
        return f"more --train.steps than {loop.stepper.options.steps:,}"
    return f"a larger --train.patience than {loop.every.patience:,}" if over else ""


def _left(course: Course, loop: Loop, outcome: Outcome, start: int) -> TrainResult:
    """What training leaves in the run. A merged checkpoint is large: who interrupts does not wait for one."""
    mode, label = course.options.mode, LABEL if course.options.mode == "as-in-the-seeds" else ""
    over = outcome.reason != "told" or bool(outcome.why)
    merged = write_merged(course, loop, outcome) if over and mode in ("merged", "as-in-the-seeds") else None
    # Rows that were trained with another body than the base's are no graft.
    is_graft = "body" not in loop.stepper.trained.parameters
    if is_graft and loop.first and not is_written(course, outcome):
        write_trained(course, loop, outcome)
    return TrainResult(outcome, start, str(course.run.graft) if is_graft else None, merged, label)


def _merged_lines(merged: Merged) -> list[Line]:
    lines: list[Line] = [
        f"{merged.folder.name}: {merged.folder}, a share of {merged.point.share:g} of step {merged.step:,}"
    ]
    return lines + [
        f"  {name}: speech loss {merged.first[name]:.4f} before, {loss:.4f} now"
        for name, loss in merged.point.losses.items()
        if name in merged.first
    ]


def _open(course: Course, loop: Loop, start: int, changed: Sequence[Change]) -> None:
    """Tell what is about to be trained, and what the journal knows so far."""
    lines = opening_lines(course, loop, start, changed)
    progress.tell("opening", start, {"lines": lines, "steps": course.options.steps, "entries": loop.journal.read()})


def _change(kind: str, values: Mapping[str, Any]) -> list[Change]:
    return [Change(values["key"], values["was"], values["now"], False)] if kind == "changed" else []


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
    near, unscored = course.near, course.unscored
    examples = Examples(course.family, trained.model, course.train, options.emotion_from, near, unscored)
    frozen = _frozen_copy(course) if near and trained.gate is None else None
    stepper = Stepper(trained, make_optimizer(trained, options), examples, options, group, frozen)
    validations = {}
    for language, sets in course.valid.items():
        held_out = Examples(course.family, trained.model, sets, options.emotion_from)
        items = items_of(sets, options.seed, order)
        # A base language is spoken with the gate closed, unless the adapter is to be folded in.
        is_open = options.mode == "merged" or language == course.graft.card.language
        validations[language] = Validation(trained, held_out, items, options.pack_tokens, is_open=is_open)
    loop = Loop(course.run, stepper, course.stream, validations, course.every)
    loop.identity, loop.bound = course.identity, course.bound
    loop.is_trained_graft = "trained" in course.graft.card.method
    loop.pieces = [piece or "" for piece in course.graft.tokenizer.pieces[course.graft.card.base_pieces :]]
    loop.observers.append(progress.tell)
    return loop


def _sentences(course: Course, settings: TrainVerbSettings) -> list[Sentence]:
    held_out = held_out_texts(course.valid[course.graft.card.language])
    return sentences_of(course.spelling, settings.train.sample_texts, held_out, course.options.seed)


def _watch(course: Course, loop: Loop, sentences: Sequence[Sentence]) -> Watch:
    """What looks whether the model learns, and speaks some sentences on the way."""
    if sentences:
        loop.samplers.append(Sampler(loop, sentences))
    pieces, stepper = course.graft.tokenizer.pieces, loop.stepper
    rows = RowWatch(stepper.trained, stepper.optimizer, course.stream, course.train, lambda at: str(pieces[at]))
    return Watch(loop, rows)


def _frozen_copy(course: Course) -> SpeechModel:
    """The base, to stay near to where the body itself is trained."""
    dtype = HALF.get(course.options.precision, torch.float32)
    return open_model(course.family, course.files, device=course.device, dtype=dtype)


def _model(course: Course) -> Trained:
    """The body is kept in half precision where there is one; what is trained of it has float32 masters."""
    options = course.options
    dtype = HALF.get(options.precision, torch.float32)
    model = open_model(course.family, course.files, device=course.device, dtype=dtype)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    return prepare(model, rows, options)
