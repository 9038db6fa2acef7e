"""The verb `train`: look at all that could go wrong, then train a run's graft, from the start or from where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from voxgraft import __version__
from voxgraft.checkpoints.steps import list_step_folders
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import find_overrides
from voxgraft.config.train_options import TrainOptions
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, raise_first_error
from voxgraft.core.journal import SPEED_WINDOW_STEPS, History, RunJournal
from voxgraft.core.results import (
    EXIT_INTERRUPTED,
    Line,
    format_bytes,
    format_count,
    format_duration,
    format_learning_rate,
)
from voxgraft.core.run import RUN_FILE, RunFolder
from voxgraft.dataset.held_out import is_self_replay
from voxgraft.dataset.sampler import list_samples
from voxgraft.dataset.sets import ShardVerifier
from voxgraft.evaluation.in_training import InTrainingEvaluation, build_in_training_evaluation, spoken_steps
from voxgraft.graft.folder import MASKED_BASELINE_LABEL
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.subject import open_check_subject, to_check_settings
from voxgraft.models.base import BaseFiles, Family
from voxgraft.models.load import HALF_PRECISION_DTYPES, choose_device, load_model
from voxgraft.models.speech_model import SpeechModel
from voxgraft.nn.rows import TrainableReport, build_trainable_report
from voxgraft.training.callbacks import LogCallback, TensorBoardWriter
from voxgraft.training.distributed import DistributedContext, join_distributed
from voxgraft.training.monitors import DeadRowMonitor, LearningMonitor
from voxgraft.training.outputs import MergedCheckpoint, is_graft_current, write_merged_folder, write_trained_graft
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.samples import SampleCallback, SampleSentence, build_sample_sentences, collect_texts
from voxgraft.training.setup import TrainingSetup, build_training_setup
from voxgraft.training.step import TrainStep, estimate_memory, fit_microbatch_tokens, read_memory_usage
from voxgraft.training.trainable import TrainableModel, build_optimizer, make_trainable
from voxgraft.training.trainer import ResumeChange, Trainer, TrainOutcome, resume_training
from voxgraft.training.validation import AsrErrorFunction, Validator

HASH_PREFIX_LENGTH = 12
BASE_PARTS = ("base rows", "body")
METRICS_LEGEND = (
    "text and speech are losses in nats, lower is better; held out: on recordings that are never learnt from; "
    "text use: above 0 the text is read; step 0 and chance: where it began, and what knowing nothing gives"
)
MODE_DESCRIPTIONS = {
    "gated": "gated (the base never changes)",
    "merged": "merged (adapter, to be folded into the base)",
    "rows-only": "rows-only (the base never changes)",
    "masked-finetune": "masked-finetune (for comparison only: the base is NOT safe)",
}


def format_training_summary(
    course: TrainingSetup, loop: Trainer, start: int, changed: Sequence[ResumeChange] = ()
) -> list[str]:
    """About a dozen lines; `changed` is what is not as it was when the step was saved that training goes on from."""
    report = build_trainable_report(loop.stepper.trained.model)
    lines = {
        **_describe_model(course, report),
        "trained": _describe_trainable(report, course.options),
        "fixed": _describe_frozen(report),
        "device": _describe_device(loop),
        "data": _describe_data(course, loop),
        "replay": _describe_replay(course, loop),
        "a step": _describe_batch(course, loop, start),
        "rates": _describe_learning_rates(loop),
        "steps": _describe_steps(course, loop),
        "memory": _describe_memory(loop),
        "time": _describe_duration(loop, start),
        "start": _describe_start(course, loop, start),
        "this time": _join_pairs(find_overrides(course.run, course.settings), ": "),
        "changed": "; ".join(str(part) for change in changed for part in _split_change(change)),
    }
    return [f"{name + ':':<11}{text}" for name, text in {**lines, "reading": METRICS_LEGEND}.items() if text]


def _describe_model(course: TrainingSetup, report: TrainableReport) -> dict[str, str]:
    card, mode = course.graft.card, MODE_DESCRIPTIONS[course.options.mode]
    if course.options.full_body:
        mode = "merged (the body itself is trained)"
    base_hash, own_hash = (
        card.base["checkpoint_sha256"][:HASH_PREFIX_LENGTH],
        card.tokenizer_sha256[:HASH_PREFIX_LENGTH],
    )
    tables = {name: str(rows) for name, rows in report.tables.items()}
    numbers = sum(part.trained + part.fixed for part in report.parts if part.part in BASE_PARTS)
    same = len(set(tables.values())) == 1
    rows = f"{', '.join(tables)}: {next(iter(tables.values()))}" if same else _join_pairs(tables)
    return {
        "run": f"{course.run.path}: {card.language} onto {course.family.name}, {mode}",
        "base": f"{card.base['checkpoint']}, sha256 {base_hash}, {format_count(numbers)} numbers",
        "tokenizer": f"{card.tokenizer}, sha256 {own_hash}, {course.graft.tokenizer.size:,} pieces",
        "text rows": rows,
    }


def _describe_trainable(report: TrainableReport, options: TrainOptions) -> str:
    total = report.trained + report.fixed
    parts = {part.part: format_count(part.trained) for part in report.parts if part.trained}
    if "adapter" in parts:
        parts["adapter"] += f" (rank {options.rank})"
    share = f"{format_count(report.trained)} of {format_count(total)} ({report.trained / total:.1%})"
    return f"{_join_pairs(parts)}; in all {share}"


def _describe_frozen(report: TrainableReport) -> str:
    """Which bits of the base cannot change, from what asks for a gradient and what does not."""
    moving = [part.part for part in report.parts if part.trained and part.part in BASE_PARTS]
    size = format_bytes(report.fixed_base_bytes)
    if not moving:
        return f"every bit of the base, {size}; compared at every save"
    return f"{size} of the base, compared at every save; NOT fixed: {', '.join(moving)}"


def _describe_device(loop: Trainer) -> str:
    device, options = loop.stepper.trained.model.device, loop.stepper.options
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    count = loop.stepper.group.world_size
    words = [f"{device}{name}", options.precision, f"{count} process{'es' if count > 1 else ''}"]
    chosen = {
        "compiled": options.compile,
        "deterministic": options.deterministic,
        "gradient checkpointing": options.gradient_checkpointing,
    }
    return ", ".join([*words, *(word for word, is_on in chosen.items() if is_on)])


def _describe_data(course: TrainingSetup, loop: Trainer) -> str:
    held_out = {name: f"{len(validation.items):,} clips" for name, validation in loop.validations.items()}
    reports = course.stream.report()
    learnt = [f"{report.used:,} of {report.clips:,} clips in {report.name}" for report in reports]
    seconds = sum(info.seconds for clips in course.train for info in clips.infos[: len(clips)])
    return f"{', '.join(learnt)}, {format_duration(seconds)}; held out: {_join_pairs(held_out) or 'nothing'}"


def _describe_replay(course: TrainingSetup, loop: Trainer) -> str:
    """What holds a merged model to its base: sets of base languages, nearness to the base, and the bound."""
    if not course.replay:
        return ""
    kinds = {
        at: "spoken by the base itself" if is_self_replay(course.train[at]) else "recorded" for at in course.replay
    }
    sets = [f"{course.train[at].name} ({kinds[at]})" for at in sorted(course.replay)]
    share = sum(course.weights[at] for at in course.replay) / sum(course.weights)
    words = [f"{share:.0%} of every step from {', '.join(sets)}", f"KL to the base weighs {course.options.kl_weight:g}"]
    if loop.stepper.base is not None and loop.stepper.base.gate is None:
        words.append("the base is in memory a second time")
    if course.bound is not None:
        languages = ", ".join(sorted(course.bound.languages))
        words.append(f"stops when the loss of {languages} has risen by {course.bound.share:.1%}")
    return "; ".join(words)


def _describe_batch(course: TrainingSetup, loop: Trainer, start: int) -> str:
    options = course.options
    clips = len(course.stream.step(start + 1))
    packs = f"in packs of at most {loop.stepper.options.microbatch_tokens:,}"
    return f"{options.batch_tokens:,} positions, about {clips:,} clip{'s' if clips != 1 else ''}, {packs}"


def _describe_learning_rates(loop: Trainer) -> str:
    options = loop.stepper.options
    rates = {part: format_learning_rate(options.rates[part]) for part in loop.stepper.trained.parameters}
    warmup, steps = options.warmup_steps, options.steps
    if warmup > steps:
        share = f"only {steps / warmup:.1%} of these at the last of {_format_step_count(steps)}"
        return f"{_join_pairs(rates)}; warm-up {_format_step_count(warmup)}, longer than the run: {share}"
    before = f"warm-up {_format_step_count(warmup)}, then" if warmup else "no warm-up,"
    return f"{_join_pairs(rates)}; {before} {options.schedule}"


def _describe_steps(course: TrainingSetup, loop: Trainer) -> str:
    every, steps, stream = loop.every, course.options.steps, course.stream
    each = stream.steps_per_epoch
    passes = f"{stream.epoch_at(steps):,.1f} passes over the data"
    # A step that is longer than all data together has some of it more than once.
    length = f"of {each:,.{0 if each >= 10 else 1}f} steps" if each >= 1 else f"{1 / each:,.1f} in every step"
    return (
        f"{steps:,} in all, {passes}, {length}; validated every {every.valid_every:,}, saved every {every.save_every:,}"
    )


def _describe_memory(loop: Trainer) -> str:
    """On a processor the program itself counts too, which already holds the weights."""
    found, device = estimate_memory(loop.stepper), loop.stepper.trained.model.device
    held = {"weights": found["weights"]}
    if device.type != "cuda":
        held = {"program and weights": max(found["weights"], read_memory_usage(device)["memory_process_bytes"])}
    parts = {**held, "gradients and optimizer": found["optimizer"], "activations": found["activations"]}
    sizes = {name: format_bytes(size) for name, size in parts.items()}
    return f"about {format_bytes(sum(parts.values()))} (estimate): {_join_pairs(sizes)}"


def _describe_duration(loop: Trainer, start: int) -> str:
    """Told by the steps before, whose speed in positions holds for steps of another size too."""
    left, positions = loop.stepper.options.steps - start, loop.stepper.options.batch_tokens
    seconds = History.of(loop.journal.read()).seconds_per_step(positions) if start else None
    if left <= 0:
        return "no step is left"
    if seconds is None:
        return f"known after {SPEED_WINDOW_STEPS} steps"
    return f"about {format_duration(left * seconds)} for {_format_step_count(left)}, at the speed of those before"


def _describe_start(course: TrainingSetup, loop: Trainer, start: int) -> str:
    if not start:
        return f"step 0, from {_describe_initial_rows(course, loop)}"
    best = loop.best_state
    known = f"; best so far: step {best.best_step:,}, {best.best_loss:.4f}" if best.best_loss is not None else ""
    return f"goes on from step {start:,}{known}"


def _describe_initial_rows(course: TrainingSetup, loop: Trainer) -> str:
    """Whose rows the model holds: those that `graft` made, or those that an earlier training left in their place."""
    trained = course.graft.card.method.get("trained")
    if not isinstance(trained, Mapping):
        return "the graft's own rows"
    rows = loop.stepper.trained.tensors().get("rows", {})
    if any(not np.array_equal(course.graft.rows[name], values.float().cpu().numpy()) for name, values in rows.items()):
        return "the rows that the graft had before it was trained"
    anew = "; its adapter is not used, a new one is trained" if "adapter" in loop.stepper.trained.parameters else ""
    return f"the rows that an earlier training left in the graft, of its step {trained['step']:,}{anew}"


def _format_step_count(count: int) -> str:
    return f"{count:,} step{'s' if count != 1 else ''}"


def _split_change(change: ResumeChange) -> list[ResumeChange]:
    """A change of several values at once, such as the rates, as one of each."""
    was, now = change.was, change.now
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return [change]
    keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
    return [ResumeChange(f"{change.key}.{key}", was.get(key), now.get(key), change.fixed) for key in keys]


def _join_pairs(texts: Mapping[Any, str], between: str = " ") -> str:
    return ", ".join(f"{name}{between}{text}" for name, text in texts.items())


ENDING_DESCRIPTIONS = {"done": "done", "told": "stopped as told", "no-better": "stopped: no longer getting better"}


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
        # What was saved is whole, but training is not done: a script that waits for its end must not continue.
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
        course = build_training_setup(run, settings, family, files, baseline=settings.baseline)
        raise_first_error(course.findings)
        _refuse_missing_steps(course, settings)
        group.require_same(_rank_fingerprint(course))
        loop = _build_loop(course, group)
        watch = _build_monitor(course, loop, _load_sample_sentences(course, settings))
        evaluation: InTrainingEvaluation | None = None
        if settings.train.listen_every:
            evaluation = build_in_training_evaluation(course, loop, settings.train.recognizer)
            loop.callbacks.append(evaluation)
        elif settings.baseline is None:
            loop.callbacks.append(spoken_steps(course, loop))
        if settings.train.tensorboard:
            loop.callbacks.append(TensorBoardWriter(run, loop.write))
        changed: list[ResumeChange] = []
        loop.callbacks.append(LogCallback(lambda kind, _step, values: changed.extend(_parse_change(kind, values))))
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
            _write_outputs(course, loop, outcome, start, None if evaluation is None else evaluation.error),
            continue_hint=further,
            only_now=find_overrides(run, settings),
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
    if over or course.settings.train.microbatch_tokens is not None or not course.device.startswith("cuda"):
        return
    before = loop.microbatch_tokens
    found = loop.microbatch_tokens = fit_microbatch_tokens(loop.stepper, course.stream, before)
    for validation in loop.validations.values():
        validation.microbatch_tokens = min(validation.microbatch_tokens, found)
    if before is not None and before != found:
        loop.write("changed", start, key="packs that fit", was=before, now=found)


def _run_loop(loop: Trainer, start: int) -> TrainOutcome:
    try:
        return loop.train(start)
    except torch.OutOfMemoryError:
        found = "the device has no memory left for a validation or for speaking"
        expected = (
            f"train.microbatch_tokens smaller than {loop.stepper.options.microbatch_tokens:,}, which leaves more of it"
        )
        raise ConfigError("memory-too-small", found, expected=expected) from None


def _continue_hint(loop: Trainer, start: int) -> str:
    """What would make a run go on that is over already."""
    over = loop.stop_reason_at(start) if loop.has_started else None
    if over == "done":
        return f"more --train.steps than {loop.stepper.options.steps:,}"
    return f"a larger --train.patience than {loop.every.patience:,}" if over else ""


def _write_outputs(
    course: TrainingSetup, loop: Trainer, outcome: TrainOutcome, start: int, hear: AsrErrorFunction | None
) -> TrainResult:
    """What training leaves in the run. A merged checkpoint is large: who interrupts does not wait for one."""
    mode, label = course.options.mode, MASKED_BASELINE_LABEL if course.options.mode == "masked-finetune" else ""
    over = outcome.reason != "told" or bool(outcome.why)
    merged = (
        write_merged_folder(course, loop, outcome, hear) if over and mode in ("merged", "masked-finetune") else None
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
    length = {"steps": course.options.steps, "positions": course.options.batch_tokens}
    progress.report_event("opening", start, {"lines": lines, **length, "entries": loop.journal.read()})


def _parse_change(kind: str, values: Mapping[str, Any]) -> list[ResumeChange]:
    return [ResumeChange(values["key"], values["was"], values["now"], False)] if kind == "changed" else []


def _load_checked_base(settings: TrainCommandSettings) -> tuple[Family, BaseFiles]:
    """What `check` finds, but for the data, must hold no error; gives the base that it looked at."""
    with open_check_subject(to_check_settings(settings, settings.run)) as subject:
        raise_first_error(run_checks(subject, with_data=False).findings)
        return subject.require_base()


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
        validations[language] = Validator(trained, held_out, items, options.microbatch_tokens, is_open=is_open)
    loop = Trainer(course.run, stepper, course.stream, validations, course.every)
    loop.identity, loop.bound = course.identity, course.bound
    loop.is_trained_graft = "trained" in course.graft.card.method
    loop.pieces = [piece or "" for piece in course.graft.tokenizer.pieces[course.graft.card.base_pieces :]]
    loop.callbacks.append(LogCallback(progress.report_event))
    return loop


def _load_sample_sentences(course: TrainingSetup, settings: TrainCommandSettings) -> list[SampleSentence]:
    held_out = collect_texts(course.valid[course.graft.card.language])
    return build_sample_sentences(course.spelling, settings.train.sample_texts, held_out, course.options.seed)


def _build_monitor(course: TrainingSetup, loop: Trainer, sentences: Sequence[SampleSentence]) -> LearningMonitor:
    """What looks whether the model learns, and speaks some sentences on the way."""
    if sentences:
        sounds = loop.first and course.settings.train.sample_sound
        vocoder = course.family.vocoder(course.files, course.device) if sounds else None
        loop.callbacks.append(SampleCallback(loop, sentences, vocoder))
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
