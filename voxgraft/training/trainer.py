"""Steps one after another: log, validate, sample, save when due, and stop when told, done, or no longer better.

All that it keeps between steps is in `BestStepState`, which every saved step holds; the rest is a function of the step.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from voxgraft.checkpoints.steps import TrainState, list_step_folders, load_step
from voxgraft.config.train_options import RESUME_RULES, TrainIntervals, options_with_rule
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, GraftError, VoxgraftError
from voxgraft.core.journal import RunJournal
from voxgraft.core.run import RunFolder
from voxgraft.dataset.sampler import DeterministicSampler
from voxgraft.dataset.sets import ShardVerifier
from voxgraft.nn.rows import hash_base_tensors, load_new_rows, require_same_base
from voxgraft.training.callbacks import Callback
from voxgraft.training.checkpoint import move_later_steps_aside, save_step
from voxgraft.training.options import RetentionBound, learning_rate_factor, retention_bound_finding
from voxgraft.training.step import TrainStep, count_output_classes, read_memory_usage
from voxgraft.training.trainable import copy_optimizer_state, restore_optimizer_state
from voxgraft.training.validation import Validator

StopReason = Literal["done", "told", "no-better"]
SYNC_CHECK_INTERVAL = 10
"""Steps after which several processes compare the bits of what they train; also at the first step and at every save."""


@dataclass(frozen=True, slots=True)
class BestStepState:
    """How the run stands: what early stop and the choice of the best step need."""

    best_step: int = 0
    best_loss: float | None = None
    rounds_without_better: int = 0
    first: dict[str, float] = field(default_factory=dict)
    """Speech losses of step 0, which the bound on base languages is measured from."""

    def after(self, step: int, loss: float, min_delta: float, *, within: bool = True) -> BestStepState:
        """With one more validation. A step that is not within the bound is never better."""
        if within and (self.best_loss is None or loss < self.best_loss - min_delta):
            return replace(self, best_step=step, best_loss=loss, rounds_without_better=0)
        return replace(self, rounds_without_better=self.rounds_without_better + 1)


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """How training ended."""

    step: int
    reason: StopReason
    best_state: BestStepState
    why: str = ""
    """Why a callback, or the bound on base languages, has stopped it."""
    choice: str = ""
    """Why the last step was preferred to one with a lower loss; empty where the loss has chosen."""


class Trainer:
    """Training from one step to the end."""

    def __init__(
        self,
        run: RunFolder,
        stepper: TrainStep,
        stream: DeterministicSampler,
        validations: dict[str, Validator],
        every: TrainIntervals,
    ) -> None:
        """The first of the validations is the new language's, and decides what is best."""
        self.run_folder, self.stepper, self.stream = run, stepper, stream
        self.validations, self.every = validations, every
        self.identity: dict[str, Any] = {}
        self.pieces: list[str] = []
        """The graft's own pieces in the order of their ids: shows whether a tokenizer only grew."""
        self.is_trained_graft = False
        """Whether the rows that the model was given come from an earlier training of the run."""
        self.microbatch_tokens: int | None = None
        """The size of packs that was found to fit, where none was given; a resumed run takes the same again."""
        self.has_started = False
        """Whether step 0 is saved, with everything that is measured from it."""
        self.best_state = BestStepState()
        self.callbacks: list[Callback] = []
        self.verification: ShardVerifier | None = None
        """Compares the data with its hashes beside the first steps."""
        self.bound: RetentionBound | None = None
        """What base languages may lose; past it no step is the best, and training stops."""
        self._stop_reason_text = ""
        self.journal = RunJournal(run.journal)
        # The masked-finetune baseline changes rows of the base.
        self._protects_base = stepper.options.mode != "masked-finetune"
        self._digests = hash_base_tensors(stepper.trained.model) if self._protects_base else {}
        self._told = threading.Event()
        self._current_step = 0

    @property
    def first(self) -> bool:
        """Whether this process writes."""
        return self.stepper.group.is_main_process

    def train(self, start: int) -> TrainOutcome:
        """Train the steps after `start` to the last."""
        last = self.stepper.options.steps
        with self._listening():
            if not self.has_started:
                self._begin()
            elif over := self.stop_reason_at(start):
                return self._end(start, over)
            for number in range(start + 1, last + 1):
                self._step(number)
                reason = self._find_stop_reason(number)
                if reason or number % self.every.save_every == 0 or number == self.best_state.best_step:
                    self.save(number)
                if reason:
                    return self._end(number, reason)
        return self._end(max(start, last), "done")

    def stop_reason_at(self, step: int) -> StopReason | None:
        """Why no step is to follow this one, if so."""
        if step >= self.stepper.options.steps:
            return "done"
        tired = 0 < self.every.patience <= self.best_state.rounds_without_better
        return "no-better" if tired and step >= self.every.min_steps else None

    def save(self, number: int) -> None:
        """Save everything that the next step depends on, after comparing the base's bits with what they were."""
        trained = self.stepper.trained
        self._report_progress("doing", number, what="saving")
        self._require_valid_data(number)
        if self._protects_base:
            require_same_base(trained.model, self._digests)
        self._require_same_bits(number)
        self.stepper.group.wait()
        if self.first:
            self.journal.sync()
            tensors = {**trained.tensors(), "optimizer": copy_optimizer_state(self.stepper.optimizer)}
            state = TrainState(number, tensors, self.values())
            saved = save_step(self.run_folder, state, keep_last=self.every.keep_last, keep=self._kept())
            for item in saved.findings:
                self.write("finding", number, **item.to_json())
            self._report_progress("saved", number, best_step=self.best_state.best_step)
        self.stepper.group.wait()

    def values(self) -> dict[str, Any]:
        """What a step holds beside tensors, as JSON gives it back."""
        return {
            "identity": self.identity,
            "pieces": self.pieces,
            "standing": asdict(self.best_state),
            "scaler": self.stepper.scaler.state_dict(),
            "world_size": self.stepper.group.world_size,
            "microbatch_tokens": self.microbatch_tokens,
        }

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One line of the journal, and to everybody who watches."""
        if not self.first:
            return
        self.journal.write(kind, step, **values)
        for callback in self.callbacks:
            callback.on_log(kind, step, values)

    def _report_progress(self, kind: str, step: int, **values: Any) -> None:
        """What is worth a look now, but no line of the journal."""
        if self.first:
            progress.report_event(kind, step, values)

    def _begin(self) -> None:
        """Step 0: what everything later is measured against."""
        self.write("start", 0, **self._describe_start())
        self._validate(0)
        self._sample(0)
        self.save(0)

    def _describe_start(self) -> dict[str, Any]:
        """What a reader of the journal needs to know before the first step."""
        options, model = self.stepper.options, self.stepper.trained.model
        text_classes, speech_classes = count_output_classes(model)
        return {
            "family": self.stepper.batch_builder.family.name,
            "language": next(iter(self.validations), ""),
            "mode": options.mode,
            "steps": options.steps,
            "text_classes": text_classes,
            "speech_classes": speech_classes,
        }

    def _step(self, number: int) -> None:
        self._current_step = number
        self._report_progress("doing", number, what="step")
        started = time.perf_counter()
        items = self.stream.step(number)
        if number < self.stepper.options.steps:
            self.stepper.prefetcher.set_next_items(lambda: self.stream.step(number + 1))
        try:
            report = self.stepper.step(number, items)
            if self.verification is not None:
                self.verification.look()
        except VoxgraftError as error:
            self.write("finding", number, **error.finding.to_json())
            raise
        if number % SYNC_CHECK_INTERVAL == 0 or number == 1:
            self._require_same_bits(number)
        seconds = time.perf_counter() - started
        if number % self.every.log_every == 0 or number == 1:
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
        if self.is_due(number, self.every.sample_every):
            self._sample(number)
        if any(
            self.is_due(number, every)
            for every in (self.every.valid_every, self.every.save_every, self.every.listen_every)
        ):
            self._validate(number)

    def _require_valid_data(self, number: int) -> None:
        """Nothing is saved that was learnt from damaged data, or measured on it. Step 0 has learnt from none."""
        if self.verification is None:
            return
        try:
            self.verification.wait(held_out_only=number == 0)
        except VoxgraftError as error:
            self.write("finding", number, **error.finding.to_json())
            raise

    def _require_same_bits(self, number: int) -> None:
        """Processes that no longer train the same model must not leave a step that looks whole."""
        group = self.stepper.group
        if group.world_size == 1:
            return
        try:
            group.require_same_bits(self.stepper.state_tensors(), number)
        except VoxgraftError as error:
            self.write("finding", number, **error.finding.to_json())
            raise

    def is_due(self, number: int, every: int) -> bool:
        """At every so many steps, and at the last one; every 0 steps is never."""
        return every > 0 and (number % every == 0 or number == self.stepper.options.steps)

    def _validate(self, number: int) -> None:
        self._report_progress("doing", number, what="validating")
        found = {name: validation.run() for name, validation in self.validations.items()}
        passed = self._find_exceeded_languages(number, {name: validity.speech_loss for name, validity in found.items()})
        for at, (name, validity) in enumerate(found.items()):
            if at == 0 and number > 0:
                loss, delta = validity.speech_loss, self.every.min_delta
                self.best_state = self.best_state.after(number, loss, delta, within=not passed)
            said: dict[str, Any] = {"best_step": self.best_state.best_step} if at == 0 else {}
            for callback in self.callbacks if at == 0 else ():
                said |= callback.on_validation(number, found)
            self.write("valid", number, set=name, **asdict(validity), **said)
        if self.bound and passed:
            item = retention_bound_finding(self.bound, passed, number, self.best_state.best_step)
            self.write("finding", number, **item.to_json())
            self._request_stop(number, item.found)
        for callback in self.callbacks:
            if reason := callback.stop_reason(number, found):
                self._request_stop(number, reason)
        # Losses may differ in their last bits between devices. Who decides otherwise than the others would save, stop
        # or write a checkpoint alone, and wait for them there for ever.
        self.best_state, self._stop_reason_text = self.stepper.group.broadcast_decision(
            (self.best_state, self._stop_reason_text)
        )

    def _find_exceeded_languages(self, number: int, losses: dict[str, float]) -> dict[str, float]:
        """Base languages that are past the bound, and by how much."""
        if number == 0:
            self.best_state = replace(self.best_state, first=losses)
        return self.bound.exceeded(self.best_state.first, losses) if self.bound else {}

    def _request_stop(self, number: int, why: str) -> None:
        self.write("stop-asked", number, why=why)
        self._stop_reason_text = self._stop_reason_text or why

    def _sample(self, number: int) -> None:
        if self.first:
            self._report_progress("doing", number, what="sampling")
            for callback in self.callbacks:
                if (values := callback.on_sample(number)) is not None:
                    self.write("samples", number, **values)
        self.stepper.group.wait()

    def _find_stop_reason(self, number: int) -> StopReason | None:
        over = self.stop_reason_at(number)
        if over == "done":
            return over
        # A signal may reach any process; what a callback said is the first one's.
        told = self.stepper.group.any(self._told.is_set(), self.stepper.trained.model.device)
        return "told" if told or self._stop_reason_text else over

    def _end(self, number: int, reason: StopReason) -> TrainOutcome:
        choice = ""
        if self.first:
            ended = self._end_line(number, reason)
            if ended is None:
                ended = self._final_choice(number, reason)
                self.write("end", number, reason=reason, **ended)
                self.journal.sync()
            if ended.get("best_step") == number and self.best_state.best_step not in (0, number):
                loss = self._valid_lines(number)[next(iter(self.validations))]["speech_loss"]
                self.best_state = replace(self.best_state, best_step=number, best_loss=loss)
                choice = _choice_in_words(ended)
        self.best_state = self.stepper.group.broadcast_decision(self.best_state)
        return TrainOutcome(number, reason, self.best_state, self._stop_reason_text, choice)

    def _final_choice(self, number: int, reason: StopReason) -> dict[str, Any]:
        """What the line of the end says of the best step.

        The held-out loss also rises when a model becomes too sure of itself, while it reads its text better and speaks
        better. So where the last step uses the text at least as much as the best one, speech decides between the two.
        The saved steps are not changed by it: a training that is continued compares losses as before.
        """
        best = self.best_state.best_step
        by_loss: dict[str, Any] = {"best_step": best}
        if reason == "told" or best in (0, number):
            return by_loss
        language, now = next(iter(self.validations)), self._valid_lines(number)
        then = self._valid_lines(best).get(language, {})
        before, after = then.get("text_use"), now.get(language, {}).get("text_use")
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

    def _end_line(self, step: int, reason: StopReason) -> dict[str, Any] | None:
        """The end that the journal has of this step: what was decided then is not decided again."""
        ends = [line for line in self.journal.read() if line["kind"] == "end"]
        return ends[-1] if ends and (ends[-1]["step"], ends[-1].get("reason")) == (step, reason) else None

    def _kept(self) -> Sequence[int]:
        """Steps that are never pruned: the first, and the best."""
        return sorted({0, self.best_state.best_step})

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """The first interrupt finishes the step and saves; a second one is the user's own business."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def hear(number: int, _frame: FrameType | None) -> None:
            self._told.set()
            signal.signal(number, before[number])
            self._report_progress("stopping", self._current_step, signal=signal.Signals(number).name)

        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, hear)
        try:
            yield
        finally:
            for heard, handler in before.items():
                signal.signal(heard, handler)


def _choice_in_words(ended: dict[str, Any]) -> str:
    found = ended.get("speech") or {}
    shares = [f"{found.get(name, 0):.0%}" for name in ("failed_before", "failed")]
    return (
        f"step {ended.get('lowest_loss_step', 0):,} has the lowest loss, but {shares[0]} of "
        f"{found.get('utterances', 0):,} held-out texts fail there when spoken (loops, no end, wrong length), "
        f"and {shares[1]} at the last step"
    )


FIXED_IDENTITY_LABELS = {
    "family": "family",
    "language": "language",
    "base_sha256": "base",
    "tokenizer_sha256": "tokenizer",
    "num_rows": "number of rows",
}
"""What a saved step belongs to beside its options, by the words for it. None of it may change."""
TOKENIZER_GROWTH_KEYS = ("tokenizer_sha256", "num_rows")
"""What changes when a tokenizer gets more pieces."""
VALIDATION_IDENTITY_KEYS = ("tokenizer_sha256", "held_out")
"""What the losses of the new language's held-out recordings depend on."""
SCHEDULE_OPTIONS = options_with_rule("schedule")


@dataclass(frozen=True, slots=True)
class ResumeChange:
    """One thing that is not as it was when the step was saved."""

    key: str
    was: Any
    now: Any
    fixed: bool

    def __str__(self) -> str:
        return f"{self.key}: was {_shorten_change(self.was)}, is {_shorten_change(self.now)}"


def resume_training(loop: Trainer, *, fresh: bool = False, from_step: int | None = None) -> int:
    """Put the newest whole step into a training that has not begun, or the one that is named; gives its number.

    Later steps are set aside, never removed, and the journal is cut after the step. 0 where nothing is saved yet.
    With `fresh` it begins again with the rows that the graft first had, whatever became of them since.
    """
    run = loop.run_folder
    if fresh:
        _restart_training(loop)
        return 0
    if not list_step_folders(run):
        if from_step is not None:
            load_step(run, from_step)  # says that nothing is there
        _truncate_after(loop, -1)
        return 0
    loaded = load_step(run, from_step)
    state = loaded.state
    found = compare_identities(state.values["identity"], loop.identity)
    grew = _is_tokenizer_extended(state, loop)
    require_no_fixed_changes(
        [change for change in found if not (grew and change.key in TOKENIZER_GROWTH_KEYS)],
        state.step,
        _find_changed_piece(state, loop),
    )
    groups = _extend_saved_rows(state, loop) if grew else state.tensors
    _truncate_after(loop, state.step)
    loop.stepper.trained.restore({name: group for name, group in groups.items() if name != "optimizer"})
    restore_optimizer_state(loop.stepper.optimizer, groups["optimizer"])
    loop.stepper.scaler.load_state_dict(state.values["scaler"])
    loop.best_state = _restore_best_state(state, found)
    loop.has_started = _has_started(loop, state.step)
    loop.microbatch_tokens = state.values.get("microbatch_tokens")
    for item in loaded.findings:
        loop.write("finding", state.step, **item.to_json())
    for change in [*found, *_learning_rate_change(found, state, loop), *_best_step_change(state, loop)]:
        loop.write("changed", state.step, key=change.key, was=change.was, now=change.now)
    return state.step


def _restore_best_state(state: TrainState, found: Sequence[ResumeChange]) -> BestStepState:
    """How the run stood; but no step is the best any more if the loss was one of other clips, or of other ids."""
    standing = BestStepState(**state.values["standing"])
    if any(change.key in VALIDATION_IDENTITY_KEYS and change.was is not None for change in found):
        return replace(standing, best_step=0, best_loss=None, rounds_without_better=0)
    return standing


def _truncate_after(loop: Trainer, step: int, *, journal: int | None = None) -> None:
    if loop.first:
        move_later_steps_aside(loop.run_folder, step)
        loop.journal.truncate_after(step if journal is None else journal)
    loop.stepper.group.wait()


def _has_started(loop: Trainer, step: int) -> bool:
    """Whether step 0 is in the journal too: who begins again and is killed at that has cut it, and kept the step."""
    lost = loop.first and step == 0 and not any(entry["kind"] == "start" for entry in loop.journal.read())
    return not loop.stepper.group.any(lost, loop.stepper.trained.model.device)


def _restart_training(loop: Trainer) -> None:
    """From the graft as it is; rows that were trained since become again what they were at step 0.

    That step then stays where it is until the new one takes its place: nothing else knows the first rows.
    """
    trained = loop.stepper.trained
    rows = _load_initial_rows(loop) if loop.is_trained_graft and "rows" in trained.parameters else None
    if rows is not None:
        load_new_rows(trained.model, rows)
    _truncate_after(loop, -1 if rows is None else 0, journal=-1)


def _load_initial_rows(loop: Trainer) -> dict[str, Tensor] | None:
    """The rows of step 0, with new ones behind them where the tokenizer grew; None if they belong to another graft."""
    run = loop.run_folder
    if not list_step_folders(run):
        return None
    try:
        state = load_step(run, 0).state
    except CheckpointError as error:
        cure = f"make the rows anew with `voxgraft graft {run.path}`, then begin again with --fresh."
        found = f"the graft's rows are trained, and its first ones are in step 0: {error.finding.found}"
        raise CheckpointError(error.code, found, where=error.finding.where, cure=cure) from None
    if _is_tokenizer_extended(state, loop):
        return _extend_saved_rows(state, loop)["rows"]
    same = state.values["identity"].get("tokenizer_sha256") == loop.identity.get("tokenizer_sha256")
    return dict(state.tensors["rows"]) if same and "rows" in state.tensors else None


def _best_step_change(state: TrainState, loop: Trainer) -> list[ResumeChange]:
    was, now = state.values["standing"]["best_step"], loop.best_state.best_step
    return [ResumeChange("best step so far", was, "none: other held-out ids", False)] if was != now else []


def _learning_rate_change(found: Sequence[ResumeChange], state: TrainState, loop: Trainer) -> list[ResumeChange]:
    """What other steps, warm-up or schedule do to the rates from here on."""
    keys = {f"train.{name}" for name in SCHEDULE_OPTIONS}
    if not any(change.key in keys for change in found):
        return []
    options, saved = loop.stepper.options, state.values["identity"].get("options", {})
    before = replace(options, **{name: saved[name] for name in SCHEDULE_OPTIONS if name in saved})
    was, now = (round(learning_rate_factor(state.step + 1, one), 4) for one in (before, options))
    return [ResumeChange(f"share of the rates at step {state.step + 1:,}", was, now, False)] if was != now else []


def _is_tokenizer_extended(state: TrainState, loop: Trainer) -> bool:
    """Whether the tokenizer of the run is that of the step with more pieces behind, and nothing else."""
    before, now = state.values.get("pieces", []), loop.pieces
    return len(before) < len(now) and now[: len(before)] == before


def _extend_saved_rows(state: TrainState, loop: Trainer) -> dict[str, dict[str, Tensor]]:
    """Saved rows with the new ones behind them, and their moments with zeros: what stayed keeps its state."""
    rows = loop.stepper.trained.tensors()["rows"]
    kept = {name: torch.cat([saved, rows[name][len(saved) :]]) for name, saved in state.tensors["rows"].items()}
    shapes = {name: value.shape for name, value in loop.stepper.trained.named().items()}
    moments = {}
    for key, value in state.tensors["optimizer"].items():
        missing = shapes[key.rpartition("/")[0]][0] - len(value) if value.dim() else 0
        moments[key] = torch.cat([value, value.new_zeros(missing, *value.shape[1:])]) if missing else value
    return {**{name: dict(group) for name, group in state.tensors.items()}, "rows": kept, "optimizer": moments}


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
    """Raise, with both columns, if something has changed that a saved step depends on."""
    fixed = [change for change in found if change.fixed]
    if not fixed:
        return
    rows = [("", f"step {step:,}", "this run")]
    rows += [(change.key, _shorten_change(change.was), _shorten_change(change.now)) for change in fixed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    text = f"step {step:,} was made with other settings:\n    " + "\n    ".join([*lines, *filter(None, [remark])])
    raise GraftError("resume-changed", text, expected="what the step was made with")


def _find_changed_piece(state: TrainState, loop: Trainer) -> str:
    """The first of the graft's pieces that is not the one that the step was made with."""
    before, now = state.values.get("pieces", []), loop.pieces
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return f"new piece {at + 1:,} of {len(now):,} is {new!r} now, and was {old!r} of {len(before):,}"
    return ""


def _shorten_change(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
