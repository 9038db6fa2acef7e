"""The training loop and how it resumes: steps, logging, validation, samples, saving, early stop.

All state between steps is in `BestStepState`, which every saved step holds; the rest is a function of the step number.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from voxgraft.checkpoints.steps import TrainState, list_step_folders, load_step
from voxgraft.config.train_options import RESUME_RULES, TrainIntervals, options_with_rule
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, GraftError, VoxgraftError, finding
from voxgraft.core.run import RunFolder, RunJournal
from voxgraft.dataset.sampler import DeterministicSampler
from voxgraft.dataset.sets import ShardVerifier
from voxgraft.nn.rows import hash_base_tensors, load_new_rows, require_same_base
from voxgraft.training.callbacks import Callback
from voxgraft.training.checkpoint import move_later_steps_aside, save_step
from voxgraft.training.step import TrainStep, count_output_classes, read_memory_usage
from voxgraft.training.trainable import copy_optimizer_state, learning_rate_factor, restore_optimizer_state
from voxgraft.training.validation import RetentionBound, Validator

StopReason = Literal["done", "stopped", "no-better"]
# Steps between two comparisons of the trained bits of several processes; also at the first step and at every save.
SYNC_CHECK_INTERVAL = 10
# What a saved step belongs to beside its options, with the words for it. None of it may change.
FIXED_IDENTITY_LABELS = {
    "family": "family",
    "language": "language",
    "base_sha256": "base",
    "tokenizer_sha256": "tokenizer",
    "num_rows": "number of rows",
}
# What changes when a tokenizer gets more pieces.
TOKENIZER_GROWTH_KEYS = ("tokenizer_sha256", "num_rows")
# What the losses of the new language's held-out recordings depend on.
VALIDATION_IDENTITY_KEYS = ("tokenizer_sha256", "held_out")
SCHEDULE_OPTIONS = options_with_rule("schedule")


@dataclass(frozen=True, slots=True)
class BestStepState:
    """What early stopping and the choice of the best step need."""

    best_step: int = 0
    best_loss: float | None = None
    rounds_without_better: int = 0
    first: dict[str, float] = field(default_factory=dict)
    """Speech losses of step 0; the bound on base languages is relative to them."""


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """How training ended."""

    step: int
    reason: StopReason
    best_state: BestStepState
    why: str = ""
    """Why a callback, or the bound on base languages, stopped it."""
    choice: str = ""
    """Why the last step was preferred to one with a lower loss; empty where the loss decided."""


class Trainer:
    """Training from one step to the end."""

    def __init__(
        self,
        run: RunFolder,
        stepper: TrainStep,
        stream: DeterministicSampler,
        validations: dict[str, Validator],
        intervals: TrainIntervals,
    ) -> None:
        """The first of the validations is the new language's; it decides which step is the best."""
        self.run_folder, self.stepper, self.stream = run, stepper, stream
        self.validations, self.intervals = validations, intervals
        self.identity: dict[str, Any] = {}
        # The graft's own pieces in the order of their ids: shows whether a tokenizer only grew.
        self.pieces: list[str] = []
        # Flags of this call that run.yaml does not have: with them, `diagnose` can say how to resume.
        self.flags: list[str] = []
        # Whether the rows that the model was given come from an earlier training of the run.
        self.is_trained_graft = False
        # The microbatch size that was found to fit, where none was given; a resumed run takes the same again.
        self.microbatch_tokens: int | None = None
        # Whether step 0 is saved, with everything that is measured from it.
        self.has_started = False
        self.best_state = BestStepState()
        self.callbacks: list[Callback] = []
        # Compares the data with its hashes beside the first steps.
        self.verification: ShardVerifier | None = None
        # What base languages may lose; past it no step is the best, and training stops.
        self.bound: RetentionBound | None = None
        self._stop_reason_text = ""
        self.journal = RunJournal(run.journal)
        # Only the masked-finetune baseline changes rows of the base.
        self._protects_base = stepper.options.mode != "masked-finetune"
        self._digests = hash_base_tensors(stepper.trained.model) if self._protects_base else {}
        self._interrupted = threading.Event()
        self._current_step = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.stepper.group.is_main_process

    def train(self, start: int) -> TrainOutcome:
        """Train the steps after `start` to the last."""
        last = self.stepper.options.steps
        with self._catch_signals():
            if not self.has_started:
                # Step 0 is what everything later is measured against.
                options = self.stepper.options
                text_classes, speech_classes = count_output_classes(self.stepper.trained.model)
                self.write(
                    "start",
                    0,
                    family=self.stepper.batch_builder.family.name,
                    language=next(iter(self.validations), ""),
                    mode=options.mode,
                    steps=options.steps,
                    text_classes=text_classes,
                    speech_classes=speech_classes,
                )
                self._validate(0)
                self._sample(0)
                self.save(0)
            elif over := self.stop_reason_at(start):
                return self._end(start, over)
            for number in range(start + 1, last + 1):
                self._step(number)
                reason = self.stop_reason_at(number)
                if reason != "done":
                    # A signal may reach any process; a callback's reason comes from the first one.
                    interrupted = self.stepper.group.any(self._interrupted.is_set(), self.stepper.trained.model.device)
                    reason = "stopped" if interrupted or self._stop_reason_text else reason
                if reason or number % self.intervals.save_every == 0 or number == self.best_state.best_step:
                    self.save(number)
                if reason:
                    return self._end(number, reason)
        return self._end(max(start, last), "done")

    def stop_reason_at(self, step: int) -> StopReason | None:
        """Why no step follows this one, if so."""
        if step >= self.stepper.options.steps:
            return "done"
        out_of_patience = 0 < self.intervals.patience <= self.best_state.rounds_without_better
        return "no-better" if out_of_patience and step >= self.intervals.min_steps else None

    def is_due(self, number: int, every: int) -> bool:
        """At every so many steps, and at the last one; every 0 steps is never."""
        return every > 0 and (number % every == 0 or number == self.stepper.options.steps)

    def save(self, number: int) -> None:
        """Save everything that the next step depends on, after comparing the base's bits with those at the start."""
        trained, group = self.stepper.trained, self.stepper.group
        self._report_progress("doing", number, what="saving")
        if self.verification is not None:
            # Nothing is saved that was trained on damaged data, or measured on it. Step 0 has trained on none.
            with self._findings_logged(number):
                self.verification.wait(held_out_only=number == 0)
        if self._protects_base:
            require_same_base(trained.model, self._digests)
        self._require_same_bits(number)
        group.wait()
        if self.first:
            self.journal.sync()
            tensors = {**trained.tensors(), "optimizer": copy_optimizer_state(self.stepper.optimizer)}
            # "standing" is the name of the best state in the file format.
            values = {
                "identity": self.identity,
                "pieces": self.pieces,
                "standing": asdict(self.best_state),
                "scaler": self.stepper.scaler.state_dict(),
                "world_size": group.world_size,
                "microbatch_tokens": self.microbatch_tokens,
                "flags": self.flags,
            }
            # The first step and the best are never pruned.
            keep = sorted({0, self.best_state.best_step})
            state = TrainState(number, tensors, values)
            _, findings = save_step(self.run_folder, state, keep_last=self.intervals.keep_last, keep=keep)
            for item in findings:
                self.write("finding", number, **item.to_json())
            self._report_progress("saved", number, best_step=self.best_state.best_step)
        group.wait()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write one line of the journal, and pass it to the callbacks."""
        if not self.first:
            return
        self.journal.write(kind, step, **values)
        for callback in self.callbacks:
            callback.on_log(kind, step, values)

    def _report_progress(self, kind: str, step: int, **values: Any) -> None:
        """Report what happens now to the display; it is not written to the journal."""
        if self.first:
            progress.report_event(kind, step, values)

    @contextmanager
    def _findings_logged(self, number: int) -> Iterator[None]:
        """An error that ends training is also a finding in the journal."""
        try:
            yield
        except VoxgraftError as error:
            self.write("finding", number, **error.finding.to_json())
            raise

    def _step(self, number: int) -> None:
        self._current_step = number
        self._report_progress("doing", number, what="step")
        started = time.perf_counter()
        items = self.stream.step(number)
        if number < self.stepper.options.steps:
            self.stepper.prefetcher.set_next_items(lambda: self.stream.step(number + 1))
        with self._findings_logged(number):
            report = self.stepper.step(number, items)
            if self.verification is not None:
                self.verification.look()
        if number % SYNC_CHECK_INTERVAL == 0 or number == 1:
            self._require_same_bits(number)
        seconds = time.perf_counter() - started
        if number % self.intervals.log_every == 0 or number == 1:
            self.write(
                "step",
                number,
                text_loss=report.text_loss,
                speech_loss=report.speech_loss,
                **({} if report.kl is None else {"kl": report.kl}),
                rates=report.rates,
                gradients=report.norms,
                epoch=round(self.stream.epoch_at(number), 4),
                positions=report.num_positions,
                clips=[self.stepper.batch_builder.name(item) for item in items],
                positions_per_second=round(report.num_positions / seconds, 1),
                **read_memory_usage(self.stepper.trained.model.device),
            )
        if self.is_due(number, self.intervals.sample_every):
            self._sample(number)
        intervals = self.intervals
        if any(
            self.is_due(number, one) for one in (intervals.valid_every, intervals.save_every, intervals.listen_every)
        ):
            self._validate(number)

    def _require_same_bits(self, number: int) -> None:
        """Processes that no longer train the same model must not leave a step that looks complete."""
        if self.stepper.group.world_size > 1:
            with self._findings_logged(number):
                self.stepper.group.require_same_bits(self.stepper.state_tensors(), number)

    def _validate(self, number: int) -> None:
        self._report_progress("doing", number, what="validating")
        found = {name: validation.run() for name, validation in self.validations.items()}
        losses = {name: metrics.speech_loss for name, metrics in found.items()}
        if number == 0:
            self.best_state = replace(self.best_state, first=losses)
        exceeded = self.bound.exceeded(self.best_state.first, losses) if self.bound else {}
        for index, (name, metrics) in enumerate(found.items()):
            extra: dict[str, Any] = {}
            if index == 0:  # the new language
                if number > 0:
                    best = self.best_state.best_loss
                    # A step past the bound on base languages is never better.
                    better = best is None or metrics.speech_loss < best - self.intervals.min_delta
                    if better and not exceeded:
                        self.best_state = replace(
                            self.best_state, best_step=number, best_loss=metrics.speech_loss, rounds_without_better=0
                        )
                    else:
                        rounds = self.best_state.rounds_without_better + 1
                        self.best_state = replace(self.best_state, rounds_without_better=rounds)
                extra = {"best_step": self.best_state.best_step}
                for callback in self.callbacks:
                    extra |= callback.on_validation(number, found)
            self.write("valid", number, set=name, **asdict(metrics), **extra)
        stop_reasons: list[str] = []
        if self.bound and exceeded:
            best_step = self.best_state.best_step
            rises = ", ".join(f"{name} by {100 * rise:.1f} %" for name, rise in exceeded.items())
            best_note = (
                f"step {best_step:,} is the best within the bound" if best_step else "no step was within the bound"
            )
            message = f"at step {number:,} the held-out speech loss of base languages had risen: {rises}; {best_note}"
            item = finding("retention-bound", message, expected=f"at most {100 * self.bound.share:g} %")
            self.write("finding", number, **item.to_json())
            self.write("stop-asked", number, why=item.found)
            stop_reasons.append(item.found)
        for callback in self.callbacks:
            if reason := callback.stop_reason(number, found):
                self.write("stop-asked", number, why=reason)
                stop_reasons.append(reason)
        # The first reason ever given stays.
        self._stop_reason_text = self._stop_reason_text or next(iter(stop_reasons), "")
        # Losses may differ in their last bits between devices. A process that decides otherwise than the others would
        # save, stop or write a checkpoint alone, and wait for them there for ever.
        self.best_state, self._stop_reason_text = self.stepper.group.broadcast_decision(
            (self.best_state, self._stop_reason_text)
        )

    def _sample(self, number: int) -> None:
        if self.first:
            self._report_progress("doing", number, what="sampling")
            for callback in self.callbacks:
                if (values := callback.on_sample(number)) is not None:
                    self.write("samples", number, **values)
        self.stepper.group.wait()

    def _end(self, number: int, reason: StopReason) -> TrainOutcome:
        choice = ""
        if self.first:
            ends = [line for line in self.journal.read() if line["kind"] == "end"]
            if ends and (ends[-1]["step"], ends[-1].get("reason")) == (number, reason):
                ended = ends[-1]  # decided before; it is not decided again
            else:
                ended = self._choose_final_step(number, reason)
                self.write("end", number, reason=reason, **ended)
                self.journal.sync()
            if ended.get("best_step") == number and self.best_state.best_step not in (0, number):
                loss = self._valid_lines(number)[next(iter(self.validations))]["speech_loss"]
                self.best_state = replace(self.best_state, best_step=number, best_loss=loss)
                found = ended.get("speech") or {}
                choice = (
                    f"step {ended.get('lowest_loss_step', 0):,} has the lowest loss, but "
                    f"{found.get('failed_before', 0):.0%} of {found.get('utterances', 0):,} held-out texts fail there "
                    f"when spoken (loops, no end, wrong length), and {found.get('failed', 0):.0%} at the last step"
                )
        self.best_state = self.stepper.group.broadcast_decision(self.best_state)
        return TrainOutcome(number, reason, self.best_state, self._stop_reason_text, choice)

    def _choose_final_step(self, number: int, reason: StopReason) -> dict[str, Any]:
        """What the journal's last line says of the best step.

        The held-out loss also rises when a model becomes overconfident, while it reads its text better and speaks
        better. So where the last step uses the text at least as much as the best one, speech decides between the two.
        The saved steps do not change: a resumed training compares losses as before.
        """
        best = self.best_state.best_step
        by_loss: dict[str, Any] = {"best_step": best}
        if reason == "stopped" or best in (0, number):
            return by_loss
        language, now = next(iter(self.validations)), self._valid_lines(number)
        before = self._valid_lines(best).get(language, {}).get("text_use")
        after = now.get(language, {}).get("text_use")
        losses = {name: line["speech_loss"] for name, line in now.items()}
        if before is None or after is None or after < before:
            return by_loss
        if self.bound and self.bound.exceeded(self.best_state.first, losses):
            return by_loss
        for callback in self.callbacks:
            if (found := callback.compare_steps(best, number)) is not None:
                chosen = number if found["better"] else best
                return {"best_step": chosen, "lowest_loss_step": best, "speech": dict(found)}
        return by_loss

    def _valid_lines(self, step: int) -> dict[str, dict[str, Any]]:
        """The journal's validations of one step, by set."""
        return {line["set"]: line for line in self.journal.read() if (line["kind"], line["step"]) == ("valid", step)}

    @contextmanager
    def _catch_signals(self) -> Iterator[None]:
        """The first interrupt finishes the step and saves; a second one acts as it would without us."""
        # Python sets signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def handle(number: int, _frame: FrameType | None) -> None:
            self._interrupted.set()
            signal.signal(number, before[number])
            self._report_progress("stopping", self._current_step, signal=signal.Signals(number).name)

        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for caught, handler in before.items():
                signal.signal(caught, handler)


@dataclass(frozen=True, slots=True)
class ResumeChange:
    """One thing that differs from when the step was saved."""

    key: str
    was: Any
    now: Any
    fixed: bool

    def __str__(self) -> str:
        return f"{self.key}: was {_shorten_change(self.was)}, is {_shorten_change(self.now)}"


def resume_training(loop: Trainer, *, fresh: bool = False, from_step: int | None = None) -> int:
    """Load the newest complete step, or the named one, into a training that has not begun; returns its number.

    Later steps are moved aside, never removed, and the journal is cut after the step. 0 where nothing is saved yet.
    With `fresh` training begins again with the rows that the graft first had, even if they were trained since.
    """
    run, trained = loop.run_folder, loop.stepper.trained
    if fresh:
        rows = _load_initial_rows(loop) if loop.is_trained_graft and "rows" in trained.parameters else None
        if rows is not None:
            load_new_rows(trained.model, rows)
        # Step 0 stays in its place until the new one replaces it: nothing else knows the first rows.
        _truncate_after(loop, -1 if rows is None else 0, journal=-1)
        return 0
    if not list_step_folders(run):
        if from_step is not None:
            load_step(run, from_step)  # raises that there is none
        _truncate_after(loop, -1)
        return 0
    loaded = load_step(run, from_step)
    state = loaded.state
    found = compare_identities(state.values["identity"], loop.identity)
    grew = _is_tokenizer_extended(state, loop)
    before, now = state.values.get("pieces", []), loop.pieces
    changed_piece = ""
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            changed_piece = f"new token {at + 1:,} of {len(now):,} is {new!r}, but was {old!r} of {len(before):,}"
            break
    fixed = [change for change in found if not (grew and change.key in TOKENIZER_GROWTH_KEYS)]
    require_no_fixed_changes(fixed, state.step, changed_piece)
    groups = _extend_saved_rows(state, loop) if grew else state.tensors
    _truncate_after(loop, state.step)
    trained.restore(groups)
    restore_optimizer_state(loop.stepper.optimizer, groups["optimizer"])
    loop.stepper.scaler.load_state_dict(state.values["scaler"])
    best_state = BestStepState(**state.values["standing"])
    # No step is the best any more if its loss was one of other clips, or of other ids.
    if any(change.key in VALIDATION_IDENTITY_KEYS and change.was is not None for change in found):
        best_state = replace(best_state, best_step=0, best_loss=None, rounds_without_better=0)
    loop.best_state = best_state
    # A fresh start that was killed early has cut the journal and kept step 0; then step 0 must be made again.
    lost = loop.first and state.step == 0 and not any(entry["kind"] == "start" for entry in loop.journal.read())
    loop.has_started = not loop.stepper.group.any(lost, trained.model.device)
    loop.microbatch_tokens = state.values.get("microbatch_tokens")
    for item in loaded.findings:
        loop.write("finding", state.step, **item.to_json())
    changes = list(found)
    if any(change.key in {f"train.{name}" for name in SCHEDULE_OPTIONS} for change in found):
        # What other steps, warm-up or schedule do to the learning rates from here on.
        options, saved = loop.stepper.options, state.values["identity"].get("options", {})
        old_options = replace(options, **{name: saved[name] for name in SCHEDULE_OPTIONS if name in saved})
        was, share = (round(learning_rate_factor(state.step + 1, one), 4) for one in (old_options, options))
        if was != share:
            changes.append(ResumeChange(f"learning rate factor at step {state.step + 1:,}", was, share, False))
    best_before = state.values["standing"]["best_step"]
    if best_before != best_state.best_step:
        changes.append(ResumeChange("best step so far", best_before, "none: other held-out ids", False))
    for change in changes:
        loop.write("changed", state.step, key=change.key, was=change.was, now=change.now)
    return state.step


def _truncate_after(loop: Trainer, step: int, *, journal: int | None = None) -> None:
    if loop.first:
        move_later_steps_aside(loop.run_folder, step)
        loop.journal.truncate_after(step if journal is None else journal)
    loop.stepper.group.wait()


def _load_initial_rows(loop: Trainer) -> dict[str, Tensor] | None:
    """The rows of step 0, with new ones after them where the tokenizer grew; None if they belong to another graft."""
    run = loop.run_folder
    if not list_step_folders(run):
        return None
    try:
        state = load_step(run, 0).state
    except CheckpointError as error:
        cure = f"create the rows again with `voxgraft graft {run.path}`, then start over with --fresh."
        found = f"the graft's rows are trained, and its initial rows in step 0 cannot be read: {error.finding.found}"
        raise CheckpointError(error.code, found, where=error.finding.where, cure=cure) from None
    if _is_tokenizer_extended(state, loop):
        return _extend_saved_rows(state, loop)["rows"]
    same = state.values["identity"].get("tokenizer_sha256") == loop.identity.get("tokenizer_sha256")
    return dict(state.tensors["rows"]) if same and "rows" in state.tensors else None


def _is_tokenizer_extended(state: TrainState, loop: Trainer) -> bool:
    """Whether the run's tokenizer is that of the step with more pieces at the end, and nothing else."""
    before, now = state.values.get("pieces", []), loop.pieces
    return len(before) < len(now) and now[: len(before)] == before


def _extend_saved_rows(state: TrainState, loop: Trainer) -> dict[str, dict[str, Tensor]]:
    """Saved rows with the new ones after them, and their moments with zeros: old rows keep their state."""
    rows = loop.stepper.trained.tensors()["rows"]
    extended_rows = {
        name: torch.cat([saved, rows[name][len(saved) :]]) for name, saved in state.tensors["rows"].items()
    }
    shapes = {name: value.shape for name, value in loop.stepper.trained.named().items()}
    moments = {}
    for key, value in state.tensors["optimizer"].items():
        # The moment "step" has no dimensions.
        missing = shapes[key.rpartition("/")[0]][0] - len(value) if value.dim() else 0
        moments[key] = torch.cat([value, value.new_zeros(missing, *value.shape[1:])]) if missing else value
    return {**{name: dict(group) for name, group in state.tensors.items()}, "rows": extended_rows, "optimizer": moments}


def compare_identities(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[ResumeChange]:
    """Every difference between two identities, options one by one."""
    found = [
        ResumeChange(key, saved.get(key), now.get(key), key in FIXED_IDENTITY_LABELS)
        for key in dict.fromkeys((*saved, *now))
        if key != "options" and saved.get(key) != now.get(key)
    ]
    old, new = saved.get("options", {}), now.get("options", {})
    return found + [
        ResumeChange(f"train.{key}", old.get(key), new.get(key), RESUME_RULES.get(key) == "fixed")
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


def require_no_fixed_changes(found: list[ResumeChange], step: int, remark: str = "") -> None:
    """Raise, with a table of old and new values, if something has changed that a saved step depends on."""
    fixed = [change for change in found if change.fixed]
    if not fixed:
        return
    rows = [("", f"step {step:,}", "now")]
    rows += [(change.key, _shorten_change(change.was), _shorten_change(change.now)) for change in fixed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    text = f"the checkpoint of step {step:,} was saved with other settings:\n    " + "\n    ".join(
        [*lines, *filter(None, [remark])]
    )
    raise GraftError("resume-changed", text)


def _shorten_change(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
