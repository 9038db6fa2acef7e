"""The verb `train`: look at all that could go wrong, then train a run's graft, from the start or from where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from voxgraft import __version__, progress
from voxgraft.corpus.stream import list_samples
from voxgraft.corpus.verification import ShardVerifier
from voxgraft.course import HALF_PRECISION_DTYPES, TrainingSetup, build_training_setup, choose_device
from voxgraft.errors import CheckpointError, ConfigError, raise_first_error
from voxgraft.evaluating.light import InTrainingEvaluation, build_in_training_evaluation, spoken_steps
from voxgraft.families.base import BaseFiles, Family
from voxgraft.families.model import SpeechModel
from voxgraft.families.opening import load_model
from voxgraft.findings import open_check_subject, run_checks
from voxgraft.journal import RunJournal
from voxgraft.merged_folder import MergedCheckpoint, write_merged_folder
from voxgraft.only_now import find_overrides
from voxgraft.opening_lines import format_training_summary
from voxgraft.results import Line
from voxgraft.run import RUN_FILE, RunFolder
from voxgraft.run_settings import RunSettings
from voxgraft.sample_texts import build_sample_sentences, collect_texts
from voxgraft.settings import CheckSettings, TrainCommandSettings
from voxgraft.tensorboard import TensorBoardWriter
from voxgraft.trained_graft import is_graft_current, write_trained_graft
from voxgraft.training.examples import BatchBuilder
from voxgraft.training.loop import Trainer, TrainOutcome
from voxgraft.training.parts import TrainableModel, build_optimizer, make_trainable
from voxgraft.training.probe import fit_microbatch_tokens
from voxgraft.training.processes import DistributedContext, join_distributed
from voxgraft.training.resuming import ResumeChange, resume_training
from voxgraft.training.samples import SampleCallback, SampleSentence
from voxgraft.training.seeds_way import MASKED_BASELINE_LABEL
from voxgraft.training.step import TrainStep
from voxgraft.training.step_folders import list_step_folders
from voxgraft.training.validation import Validator
from voxgraft.training.watch import LearningMonitor
from voxgraft.training.watch_rows import DeadRowMonitor

ENDING_DESCRIPTIONS = {"done": "done", "told": "stopped as told", "no-better": "stopped: no longer getting better"}
EXIT_INTERRUPTED = 130
"""What was saved is whole, but it is not what was asked for: who waits for the end of training must not go on."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How training ended."""

    outcome: TrainOutcome
    start: int
    graft: str | None
    merged: MergedCheckpoint | None = None
    label: str = ""
    continue_hint: str = ""
    """Where nothing was left to train: what would make it go on."""
    only_now: Mapping[str, str] = field(default_factory=dict)
    """Settings of this call that run.yaml does not have."""

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
            "already": bool(self.continue_hint),
            "best_step": self.outcome.best_state.best_step,
            "best_loss": self.outcome.best_state.best_loss,
            "graft": self.graft,
            "graft_step": self.graft_step if self.graft else None,
            "merged": str(self.merged.folder) if self.merged else None,
            "why": self.outcome.why,
            "label": self.label,
            "only_now": dict(self.only_now),
        }

    @property
    def graft_step(self) -> int:
        """The step that the graft is made of: the best, or the last where none is better."""
        return self.outcome.best_state.best_step or self.outcome.step

    def lines(self) -> list[Line]:
        best = self.outcome.best_state
        ending = f"{ENDING_DESCRIPTIONS[self.outcome.reason]}, at step {self.outcome.step:,}"
        if self.continue_hint:
            ending = f"nothing is left to train: {ending}. To go on: {self.continue_hint}; to begin again: --fresh"
        lines: list[Line] = [f"trained {self.label}"] if self.label else []
        lines.append(f"stopped: {self.outcome.why}" if self.outcome.why else ending)
        if best.best_loss is not None:
            lines.append(f"best: step {best.best_step:,}, speech loss {best.best_loss:.4f} on held-out recordings")
        if self.outcome.choice:
            lines.append(f"  {self.outcome.choice}")
        if self.was_interrupted:
            lines.append("the same command goes on from here")
        if self.graft is not None:
            lines.append(f"graft: {self.graft}, with what was trained up to step {self.graft_step:,}")
        lines += _format_merged_lines(self.merged) if self.merged else ()
        if self.only_now:
            listed = ", ".join(f"{key}: {value}" for key, value in self.only_now.items())
            lines.append(f"only this time, since {RUN_FILE} says otherwise: {listed}")
            lines.append(f"  to go on with these, give them again; to keep them, write them into {RUN_FILE}")
        return lines


def train(settings: TrainCommandSettings) -> TrainResult:
    """Train a run. A run with saved steps goes on from the newest whole one by itself."""
    if settings.fresh and settings.from_step is not None:
        raise ConfigError("config-value", "--fresh and --from-step are both given", expected="one of the two")
    run = RunFolder(settings.run)
    with ExitStack() as stack:
        # Before anything that one process might meet alone: only who has joined can tell the others.
        group = stack.enter_context(join_distributed(choose_device(settings.train.device)))
        family, files = _load_checked_base(settings)
        stack.enter_context(run.lock() if group.is_main_process else nullcontext())
        course = build_training_setup(run, settings, family, files, as_in_the_seeds=settings.as_in_the_seeds)
        raise_first_error(course.findings)
        _refuse_missing_steps(course, settings)
        group.require_same(_rank_fingerprint(course))
        loop = _build_loop(course, group)
        watch = _build_monitor(course, loop, _load_sample_sentences(course, settings))
        if settings.train.listen_every:
            loop.validation_callbacks.append(build_in_training_evaluation(course, loop, settings.train.listener))
        elif not settings.as_in_the_seeds:
            loop.compare_speech = spoken_steps(course, loop)
        if settings.train.tensorboard:
            loop.journal_callbacks.append(TensorBoardWriter(run, loop.write).observe)
        changed: list[ResumeChange] = []
        loop.journal_callbacks.append(lambda kind, _step, values: changed.extend(_parse_change(kind, values)))
        start = resume_training(loop, fresh=settings.fresh, from_step=settings.from_step)
        group.require_same({"step to go on from": str(start), "best step so far": str(loop.best_state)})
        _fit_microbatches(course, loop, start)
        if group.is_main_process:
            _report_summary(course, loop, start, changed)
            for item in watch.tell(start, course.findings):
                progress.report_event("finding", start, item.to_json())  # it stands in the journal already
        further = _continue_hint(loop, start)
        loop.verification = verification = ShardVerifier(chain(*course.valid.values()), course.train)
        stack.callback(verification.stop)
        verification.start()
        outcome = _run_loop(loop, start)
        return replace(
            _write_outputs(course, loop, outcome, start), continue_hint=further, only_now=find_overrides(run, settings)
        )


def _refuse_missing_steps(course: TrainingSetup, settings: TrainCommandSettings) -> None:
    """A run that was trained, and has no step to go on from, is not begun again without a word from the user."""
    run, trained = course.run, course.graft.card.method.get("trained")
    if settings.fresh or settings.from_step is not None or list_step_folders(run):
        return
    last = max((entry["step"] for entry in RunJournal(run.journal).read()), default=0)
    found, cure = f"no saved step is there, and the journal tells of step {last:,}", "or begin again with --fresh."
    if isinstance(trained, dict):
        found = f"no saved step is there, and the graft's rows are those of step {trained['step']:,} of a training"
        cure = f"or begin again with --fresh: from these rows, or from new ones after `voxgraft graft {run.path}`."
    if last > 0 or isinstance(trained, dict):
        raise CheckpointError("steps-gone", found, where=run.steps, cure=f"put {run.steps.name}/ back, {cure}")


def _rank_fingerprint(course: TrainingSetup) -> dict[str, str]:
    """What several processes must see alike, on whatever machine they are."""
    identity = course.identity
    options = {f"train.{key}": value for key, value in identity.pop("options").items()}
    steps = [folder.path.name for folder in list_step_folders(course.run)]
    seen = {"voxgraft": __version__, "torch": torch.__version__, **identity, **options, "saved steps": steps}
    return {key: json.dumps(value, ensure_ascii=False) for key, value in {**seen, **asdict(course.every)}.items()}


def _fit_microbatches(course: TrainingSetup, loop: Trainer, start: int) -> None:
    """On a CUDA device packs are as large as there is room for, unless the run says how large."""
    over = loop.has_started and loop.stop_reason_at(start)
    if over or course.settings.train.pack_tokens is not None or not course.device.startswith("cuda"):
        return
    before = loop.pack_tokens
    found = loop.pack_tokens = fit_microbatch_tokens(loop.stepper, course.stream, before)
    for validation in loop.validations.values():
        validation.pack_tokens = min(validation.pack_tokens, found)
    if before is not None and before != found:
        loop.write("changed", start, key="packs that fit", was=before, now=found)


def _run_loop(loop: Trainer, start: int) -> TrainOutcome:
    try:
        return loop.train(start)
    except torch.OutOfMemoryError:
        found = "the device has no memory left for a validation or for speaking"
        expected = f"train.pack_tokens smaller than {loop.stepper.options.pack_tokens:,}, which leaves more of it"
        raise ConfigError("memory-too-small", found, expected=expected) from None


def _continue_hint(loop: Trainer, start: int) -> str:
    """What would make a run go on that is over already."""
    over = loop.stop_reason_at(start) if loop.has_started else None
    if over == "done":
        return f"more --train.steps than {loop.stepper.options.steps:,}"
    return f"a larger --train.patience than {loop.every.patience:,}" if over else ""


def _write_outputs(course: TrainingSetup, loop: Trainer, outcome: TrainOutcome, start: int) -> TrainResult:
    """What training leaves in the run. A merged checkpoint is large: who interrupts does not wait for one."""
    mode, label = course.options.mode, MASKED_BASELINE_LABEL if course.options.mode == "as-in-the-seeds" else ""
    over = outcome.reason != "told" or bool(outcome.why)
    hear = next((judge.error for judge in loop.validation_callbacks if isinstance(judge, InTrainingEvaluation)), None)
    merged = (
        write_merged_folder(course, loop, outcome, hear) if over and mode in ("merged", "as-in-the-seeds") else None
    )
    # Rows that were trained with another body than the base's are no graft.
    is_graft = "body" not in loop.stepper.trained.parameters
    if is_graft and loop.first and not is_graft_current(course, outcome):
        write_trained_graft(course, loop, outcome)
    return TrainResult(outcome, start, str(course.run.graft) if is_graft else None, merged, label)


def _format_merged_lines(merged: MergedCheckpoint) -> list[Line]:
    lines: list[Line] = [
        f"{merged.folder.name}: {merged.folder}, a share of {merged.point.share:g} of step {merged.step:,}"
    ]
    return lines + [
        f"  {name}: speech loss {merged.first[name]:.4f} before, {loss:.4f} now"
        for name, loss in merged.point.losses.items()
        if name in merged.first
    ]


def _report_summary(course: TrainingSetup, loop: Trainer, start: int, changed: Sequence[ResumeChange]) -> None:
    """Tell what is about to be trained, and what the journal knows so far."""
    lines = format_training_summary(course, loop, start, changed)
    length = {"steps": course.options.steps, "positions": course.options.tokens_per_step}
    progress.report_event("opening", start, {"lines": lines, **length, "entries": loop.journal.read()})


def _parse_change(kind: str, values: Mapping[str, Any]) -> list[ResumeChange]:
    return [ResumeChange(values["key"], values["was"], values["now"], False)] if kind == "changed" else []


def _load_checked_base(settings: TrainCommandSettings) -> tuple[Family, BaseFiles]:
    """What `check` finds, but for the data, must hold no error; gives the base that it looked at."""
    values = {name: getattr(settings, name) for name in RunSettings.model_fields}
    with open_check_subject(CheckSettings(run=settings.run, **values)) as subject:
        raise_first_error(run_checks(subject, with_data=False).findings)
        if subject.family is None or subject.base is None:
            raise ConfigError("config-missing", "`base` is not given", where=settings.run / RUN_FILE)
        return subject.family, subject.base


def _build_loop(course: TrainingSetup, group: DistributedContext) -> Trainer:
    """Everything fitted together, before the first step."""
    trained = _build_trainable_model(course)
    options = course.options
    order = course.stream.options
    near, unscored = course.near, course.unscored
    examples = BatchBuilder(course.family, trained.model, course.train, options.emotion_from, near, unscored)
    frozen = _load_frozen_base(course) if near and trained.gate is None else None
    stepper = TrainStep(trained, build_optimizer(trained, options), examples, options, group, frozen)
    validations = {}
    for language, sets in course.valid.items():
        held_out = BatchBuilder(course.family, trained.model, sets, options.emotion_from)
        items = list_samples(sets, options.seed, order)
        # A base language is spoken with the gate closed, unless the adapter is to be folded in.
        is_open = options.mode == "merged" or language == course.graft.card.language
        validations[language] = Validator(trained, held_out, items, options.pack_tokens, is_open=is_open)
    loop = Trainer(course.run, stepper, course.stream, validations, course.every)
    loop.identity, loop.bound = course.identity, course.bound
    loop.is_trained_graft = "trained" in course.graft.card.method
    loop.pieces = [piece or "" for piece in course.graft.tokenizer.pieces[course.graft.card.base_pieces :]]
    loop.journal_callbacks.append(progress.report_event)
    return loop


def _load_sample_sentences(course: TrainingSetup, settings: TrainCommandSettings) -> list[SampleSentence]:
    held_out = collect_texts(course.valid[course.graft.card.language])
    return build_sample_sentences(course.spelling, settings.train.sample_texts, held_out, course.options.seed)


def _build_monitor(course: TrainingSetup, loop: Trainer, sentences: Sequence[SampleSentence]) -> LearningMonitor:
    """What looks whether the model learns, and speaks some sentences on the way."""
    if sentences:
        sounds = loop.first and course.settings.train.sample_sound
        vocoder = course.family.vocoder(course.files, course.device) if sounds else None
        loop.sample_callbacks.append(SampleCallback(loop, sentences, vocoder))
    pieces, stepper = course.graft.tokenizer.pieces, loop.stepper
    rows = DeadRowMonitor(stepper.trained, stepper.optimizer, course.stream, course.train, lambda at: str(pieces[at]))
    return LearningMonitor(loop, rows)


def _load_frozen_base(course: TrainingSetup) -> SpeechModel:
    """The base, to stay near to where the body itself is trained."""
    dtype = HALF_PRECISION_DTYPES.get(course.options.precision, torch.float32)
    return load_model(course.family, course.files, device=course.device, dtype=dtype)


def _build_trainable_model(course: TrainingSetup) -> TrainableModel:
    """The body is kept in half precision where there is one; what is trained of it has float32 masters."""
    options = course.options
    dtype = HALF_PRECISION_DTYPES.get(options.precision, torch.float32)
    model = load_model(course.family, course.files, device=course.device, dtype=dtype)
    rows = {name: torch.from_numpy(values) for name, values in course.graft.rows.items()}
    return make_trainable(model, rows, options)
