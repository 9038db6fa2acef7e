"""The command `train`: run every check, then train a run's graft from the start or from its newest saved step.

This module puts the trainer together, prints its summary and writes what it leaves; the loop is `training.trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from voxgraft import __version__
from voxgraft.checkpoints.steps import list_step_folders
from voxgraft.config.commands import TrainCommandSettings
from voxgraft.config.run import find_overrides, format_override_flags
from voxgraft.core import progress
from voxgraft.core.errors import CheckpointError, ConfigError, exclusive_error, raise_first_error
from voxgraft.core.results import (
    EXIT_INTERRUPTED,
    Line,
    format_bytes,
    format_count,
    format_duration,
    format_learning_rate,
    pluralize,
)
from voxgraft.core.run import RUN_FILE, SPEED_WINDOW_STEPS, History, RunFolder, RunJournal
from voxgraft.dataset.run_data import find_recordings, is_self_replay
from voxgraft.dataset.sampler import list_samples
from voxgraft.dataset.sets import ShardVerifier
from voxgraft.evaluation.in_training import (
    InTrainingEvaluation,
    SampleCallback,
    build_in_training_evaluation,
    build_sample_sentences,
    collect_texts,
    spoken_steps,
)
from voxgraft.graft.folder import MASKED_BASELINE_LABEL
from voxgraft.inspect.check import run_checks
from voxgraft.inspect.subject import open_check_subject, to_check_settings
from voxgraft.models.speech_model import HALF_PRECISION_DTYPES, choose_device, load_model
from voxgraft.nn.rows import build_trainable_report
from voxgraft.training.callbacks import LogCallback, TensorBoardWriter
from voxgraft.training.distributed import DistributedContext, join_distributed
from voxgraft.training.prefetch import BatchBuilder
from voxgraft.training.setup import (
    MergedCheckpoint,
    TrainingSetup,
    build_training_setup,
    is_graft_current,
    write_merged_folder,
    write_trained_graft,
)
from voxgraft.training.step import TrainStep, estimate_memory, fit_microbatch_tokens, read_memory_usage
from voxgraft.training.trainable import build_optimizer, make_trainable
from voxgraft.training.trainer import ResumeChange, Trainer, TrainOutcome, resume_training
from voxgraft.training.validation import DeadRowMonitor, LearningMonitor, Validator

HASH_PREFIX_LENGTH = 12
BASE_PARTS = ("base rows", "body")
METRICS_LEGEND = (
    "text, speech: losses in nats per token, lower is better; held out: losses on recordings that are not used for "
    "training; text use: above 0, the model uses the text; step 0: losses before training; chance: losses of a guess"
)
MODE_DESCRIPTIONS = {
    "gated": "gated (the weights of the base do not change)",
    "merged": "merged (the adapter is merged into the base at the end)",
    "rows-only": "rows-only (the weights of the base do not change)",
    "masked-finetune": "masked-finetune (for comparison only: the weights of the base change)",
}


def format_training_summary(
    setup: TrainingSetup, loop: Trainer, start: int, changed: Sequence[ResumeChange] = ()
) -> list[str]:
    """About a dozen lines; `changed` lists values that differ from those of the saved step it resumes from."""
    changes: list[str] = []
    for change in changed:
        was, now = change.was, change.now
        if isinstance(was, Mapping) and isinstance(now, Mapping):  # several values at once, such as the rates
            keys = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
            changes += [
                str(ResumeChange(f"{change.key}.{key}", was.get(key), now.get(key), change.fixed)) for key in keys
            ]
        else:
            changes.append(str(change))
    lines = {
        **_describe_model(setup, loop),
        **_describe_data(setup, loop, start),
        **_describe_schedule(setup, loop, start),
        "flags": _join_pairs(find_overrides(setup.run, setup.settings), ": "),
        "changed": "; ".join(changes),
        "legend": METRICS_LEGEND,
    }
    return [f"{name + ':':<11}{text}" for name, text in lines.items() if text]


def _describe_model(setup: TrainingSetup, loop: Trainer) -> dict[str, str]:
    """Base, tokenizer, rows, what is trained, what cannot change, and the device."""
    card, options, report = setup.graft.card, setup.options, build_trainable_report(loop.stepper.trained.model)
    mode = "merged (the backbone itself is trained)" if options.full_backbone else MODE_DESCRIPTIONS[options.mode]
    numbers = sum(sum(counts) for part, counts in report.parts.items() if part in BASE_PARTS)
    tables = {name: str(rows) for name, rows in report.tables.items()}
    rows = _join_pairs(tables)
    if len(set(tables.values())) == 1:
        rows = f"{', '.join(tables)}: {next(iter(tables.values()))}"

    total = report.trained + report.fixed
    parts = {part: format_count(trained) for part, (trained, _) in report.parts.items() if trained}
    if "adapter" in parts:
        parts["adapter"] += f" (rank {options.rank})"
    share = f"{format_count(report.trained)} of {format_count(total)} parameters ({report.trained / total:.1%})"

    # By what asks for a gradient, not by the mode: the line stays true whatever a mode does.
    moving = [part for part, (trained, _) in report.parts.items() if trained and part in BASE_PARTS]
    size = format_bytes(report.fixed_base_bytes)
    fixed = f"all weights of the base, {size}; verified at every save"
    if moving:
        fixed = f"{size} of the base, verified at every save; NOT fixed: {', '.join(moving)}"

    device, used = loop.stepper.trained.model.device, loop.stepper.options
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    count = loop.stepper.group.world_size
    details = [f"{device}{name}", used.precision, f"{count} process{'es' if count > 1 else ''}"]
    details += ["compiled"] if used.compile else []
    details += ["deterministic"] if used.deterministic else []
    details += ["gradient checkpointing"] if used.gradient_checkpointing else []

    base_hash, own_hash = card.base["checkpoint_sha256"], card.tokenizer_sha256
    return {
        "run": f"{setup.run.path}: adds {card.language} to {setup.family.name}; mode {mode}",
        "base": (
            f"{card.base['checkpoint']}, sha256 {base_hash[:HASH_PREFIX_LENGTH]}, {format_count(numbers)} parameters"
        ),
        "tokenizer": (
            f"{card.tokenizer}, sha256 {own_hash[:HASH_PREFIX_LENGTH]}, {setup.graft.tokenizer.size:,} tokens"
        ),
        "text rows": rows,
        "trained": f"{_join_pairs(parts)}; in total {share}",
        "fixed": fixed,
        "device": ", ".join(details),
    }


def _describe_data(setup: TrainingSetup, loop: Trainer, start: int) -> dict[str, str]:
    """What is trained on, replay, and the size of a step."""
    options = setup.options
    held_out = {name: f"{len(validation.items):,} clips" for name, validation in loop.validations.items()}
    train_sets = [f"{flow.used:,} of {flow.clips:,} clips in {flow.name}" for flow in setup.stream.streams]
    seconds = sum(info.seconds for clips in setup.train for info in clips.infos[: len(clips)])

    replay = ""
    if setup.replay:  # what holds a merged model to its base: old languages, nearness to the base, and the bound
        sets = []
        for index in sorted(setup.replay):
            source = "spoken by the base itself" if is_self_replay(setup.train[index]) else "recorded"
            sets.append(f"{setup.train[index].name} ({source})")
        share = sum(setup.weights[index] for index in setup.replay) / sum(setup.weights)
        details = [
            f"{share:.0%} of every step from {', '.join(sets)}",
            f"weight of the KL to the base: {options.kl_weight:g}",
        ]
        if loop.stepper.base is not None and loop.stepper.base.gate is None:
            details.append("the base is kept in memory twice")
        if setup.bound is not None:
            languages = ", ".join(sorted(setup.bound.languages))
            details.append(f"training stops if the loss of {languages} rises by {setup.bound.share:.1%}")
        replay = "; ".join(details)

    clips = len(setup.stream.step(start + 1))
    packs = f"in microbatches of at most {loop.stepper.options.microbatch_tokens:,}"
    return {
        "data": f"{', '.join(train_sets)}, {format_duration(seconds)}; held out: {_join_pairs(held_out) or 'nothing'}",
        "replay": replay,
        "a step": f"{options.batch_tokens:,} positions, about {clips:,} clip{'s' if clips != 1 else ''}, {packs}",
    }


def _describe_schedule(setup: TrainingSetup, loop: Trainer, start: int) -> dict[str, str]:
    """Rates, steps, memory, time, and where training starts."""
    options, every, stream = loop.stepper.options, loop.intervals, setup.stream
    warmup = options.warmup_steps
    rates = _join_pairs({part: format_learning_rate(options.rates[part]) for part in loop.stepper.trained.parameters})
    if warmup > options.steps:
        share = f"only {options.steps / warmup:.1%} of these at the last of {pluralize(options.steps, 'step')}"
        rates += f"; warm-up {pluralize(warmup, 'step')} (longer than the run): {share}"
    else:
        rates += f"; warm-up {pluralize(warmup, 'step')}, then" if warmup else "; no warm-up,"
        rates += f" {options.schedule}"

    steps, each = setup.options.steps, stream.steps_per_epoch
    # A step that is longer than all data together has some of it more than once.
    epochs = f"{stream.epoch_at(steps):,.1f} epochs"
    length = (
        f"{epochs} of {each:,.{0 if each >= 10 else 1}f} steps" if each >= 1 else f"{epochs}, {1 / each:,.1f} per step"
    )

    found, device = estimate_memory(loop.stepper), loop.stepper.trained.model.device
    held = {"weights": found["weights"]}
    if device.type != "cuda":
        held = {"program and weights": max(found["weights"], read_memory_usage(device)["memory_process_bytes"])}
    sizes = {**held, "gradients and optimizer": found["optimizer"], "activations": found["activations"]}

    left = options.steps - start
    # The speed of the steps before, in positions, also holds for steps of another size.
    seconds = History.of(loop.journal.read()).seconds_per_step(options.batch_tokens) if start else None
    if left <= 0:
        duration = "no steps left"
    elif seconds is None:
        duration = f"known after {SPEED_WINDOW_STEPS} steps"
    else:
        duration = f"about {format_duration(left * seconds)} for {pluralize(left, 'step')}, at the speed so far"

    best = loop.best_state
    known = f"; best so far: step {best.best_step:,}, {best.best_loss:.4f}" if best.best_loss is not None else ""
    return {
        "rates": rates,
        "steps": (
            f"{steps:,} in total ({length}); "
            f"validation every {every.valid_every:,} steps, save every {every.save_every:,} steps"
        ),
        "memory": (
            f"about {format_bytes(sum(sizes.values()))} (estimate): "
            f"{_join_pairs({name: format_bytes(size) for name, size in sizes.items()})}"
        ),
        "time": duration,
        "start": (
            f"resumes from step {start:,}{known}" if start else f"step 0, from {_describe_initial_rows(setup, loop)}"
        ),
    }


def _describe_initial_rows(setup: TrainingSetup, loop: Trainer) -> str:
    """Whose rows the model holds: those that `graft` made, or those that an earlier training left in their place."""
    trained = setup.graft.card.method.get("trained")
    if not isinstance(trained, Mapping):
        return "the initial rows of the graft"
    rows = loop.stepper.trained.tensors().get("rows", {})
    if any(not np.array_equal(setup.graft.rows[name], values.float().cpu().numpy()) for name, values in rows.items()):
        return "the initial rows of the graft"
    anew = "; its adapter is not used, a new one is trained" if "adapter" in loop.stepper.trained.parameters else ""
    return f"the graft's rows from step {trained['step']:,} of an earlier training{anew}"


def _join_pairs(texts: Mapping[Any, str], between: str = " ") -> str:
    return ", ".join(f"{name}{between}{text}" for name, text in texts.items())


ENDING_DESCRIPTIONS = {
    "done": "done",
    "stopped": "stopped on request",
    "no-better": "stopped early, without improvement,",
}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How training ended."""

    outcome: TrainOutcome
    start: int
    graft: str | None
    merged: MergedCheckpoint | None = None
    label: str = ""
    continue_hint: str = ""
    """Where nothing was left to train: what would make it continue."""
    only_now: Mapping[str, str] = field(default_factory=dict)
    """Settings of this call that run.yaml does not have."""

    @property
    def exit_code(self) -> int:
        # What was saved is whole, but training is not done: a script that waits for its end must not continue.
        return EXIT_INTERRUPTED if self.was_interrupted else 0

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal has ended it."""
        return self.outcome.reason == "stopped" and not self.outcome.why

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
        ending = f"{ENDING_DESCRIPTIONS[self.outcome.reason]} at step {self.outcome.step:,}"
        if self.continue_hint:
            ending = f"nothing left to train ({ending}). To continue: {self.continue_hint}; to start over: --fresh"
        lines: list[Line] = [f"trained {self.label}"] if self.label else []
        lines.append(f"stopped: {self.outcome.why}" if self.outcome.why else ending)
        if best.best_loss is not None:
            lines.append(f"best: step {best.best_step:,}, speech loss {best.best_loss:.4f} on held-out recordings")
        if self.outcome.choice:
            lines.append(f"  {self.outcome.choice}")
        if self.was_interrupted:
            lines.append("run the same command to resume")
        if self.graft is not None:
            lines.append(f"graft: {self.graft}, with the weights of step {self.graft_step:,}")
        if (merged := self.merged) is not None:
            share = f"interpolation weight {merged.point.share:g} at step {merged.step:,}"
            lines.append(f"{merged.folder.name}: {merged.folder}, {share}")
            lines += [
                f"  {name}: speech loss {merged.first[name]:.4f} before, {loss:.4f} now"
                for name, loss in merged.point.losses.items()
                if name in merged.first
            ]
        if self.only_now:
            lines.append(f"for this command only (not in {RUN_FILE}): {_join_pairs(self.only_now, ': ')}")
            lines.append(f"  to use them again, repeat the flags; to keep them, write them into {RUN_FILE}")
        return lines


def train(settings: TrainCommandSettings) -> TrainResult:
    """Train a run. A run with saved steps resumes from the newest whole one on its own."""
    if settings.fresh and settings.from_step is not None:
        raise exclusive_error("--fresh", "--from-step")
    run = RunFolder(settings.run)
    with ExitStack() as stack:
        # Before anything that one process might fail at alone: only a process that has joined can tell the others.
        group = stack.enter_context(join_distributed(choose_device(settings.train.device, "train.device")))
        with open_check_subject(to_check_settings(settings, settings.run)) as subject:
            raise_first_error(run_checks(subject, with_data=False).findings)  # the data is checked by the setup
            family, files = subject.require_base()
        # One process holds the lock for all of them.
        stack.enter_context(run.lock() if group.is_main_process else nullcontext())
        setup = build_training_setup(run, settings, family, files, baseline=settings.baseline)
        raise_first_error(setup.findings)
        if not settings.fresh and settings.from_step is None:
            _refuse_missing_steps(setup)
        # Processes that disagree would deadlock or average gradients of different models. Only what they must have in
        # common on whatever machine they run.
        identity = setup.identity
        options = {f"train.{key}": value for key, value in identity.pop("options").items()}
        steps = [folder.path.name for folder in list_step_folders(run)]
        common = {"voxgraft": __version__, "torch": torch.__version__, **identity, **options, "saved steps": steps}
        common |= asdict(setup.intervals)
        group.require_same({key: json.dumps(value, ensure_ascii=False) for key, value in common.items()})
        loop = _build_loop(setup, group)
        baseline = ["--baseline", settings.baseline] if settings.baseline else []
        loop.flags = [*baseline, *format_override_flags(run, settings)]
        watch = _build_monitor(setup, loop)
        evaluation = _add_speech_judges(setup, loop, settings)
        if settings.train.tensorboard:
            loop.callbacks.append(TensorBoardWriter(run, loop.write))
        changed: list[ResumeChange] = []

        def note_change(kind: str, _step: int, values: Mapping[str, Any]) -> None:
            if kind == "changed":
                changed.append(ResumeChange(values["key"], values["was"], values["now"], False))

        loop.callbacks.append(LogCallback(note_change))
        # After the callbacks are attached: resuming reports changed settings through them.
        start = resume_training(loop, fresh=settings.fresh, from_step=settings.from_step)
        group.require_same({"step to resume from": str(start), "best step so far": str(loop.best_state)})
        over = loop.stop_reason_at(start) if loop.has_started else None
        # On CUDA, microbatches are as large as memory allows, unless the run says how large.
        if not over and settings.train.microbatch_tokens is None and setup.device.startswith("cuda"):
            before = loop.microbatch_tokens
            found = loop.microbatch_tokens = fit_microbatch_tokens(loop.stepper, setup.stream, before)
            for validation in loop.validations.values():
                validation.microbatch_tokens = min(validation.microbatch_tokens, found)
            if before is not None and before != found:
                loop.write("changed", start, key="packs that fit", was=before, now=found)
        if group.is_main_process:
            lines = format_training_summary(setup, loop, start, changed)
            length = {"steps": setup.options.steps, "positions": setup.options.batch_tokens}
            progress.report_event("opening", start, {"lines": lines, **length, "entries": loop.journal.read()})
            for item in watch.tell(start, setup.findings):
                progress.report_event("finding", start, item.to_json())  # it is in the journal already
        further = ""
        if over:
            further = f"a larger --train.patience than {loop.intervals.patience:,}"
            if over == "done":
                further = f"more --train.steps than {loop.stepper.options.steps:,}"
        # Hashes of all shards are verified in the background, beside the first steps.
        loop.verification = verification = ShardVerifier(chain(*setup.valid.values()), setup.train)
        stack.callback(verification.stop)
        verification.start()
        try:
            outcome = loop.train(start)
        except torch.OutOfMemoryError:
            most = f"{loop.stepper.options.microbatch_tokens:,}"
            reason = "the device has no memory left for validation or samples"
            expected = f"a train.microbatch_tokens below {most}"
            raise ConfigError("memory-too-small", reason, expected=expected) from None
        mode, merged = setup.options.mode, None
        # A merged checkpoint is large: a user who interrupts does not wait for one.
        if (outcome.reason != "stopped" or outcome.why) and mode in ("merged", "masked-finetune"):
            merged = write_merged_folder(setup, loop, outcome, None if evaluation is None else evaluation.error)
        # Rows that were trained with another body than the base's are no graft.
        is_graft = "body" not in loop.stepper.trained.parameters
        if is_graft and loop.first and not is_graft_current(setup, outcome):
            write_trained_graft(setup, loop, outcome)
        return TrainResult(
            outcome,
            start,
            str(run.graft) if is_graft else None,
            merged,
            label=MASKED_BASELINE_LABEL if mode == "masked-finetune" else "",
            continue_hint=further,
            only_now=find_overrides(run, settings),
        )


def _refuse_missing_steps(setup: TrainingSetup) -> None:
    """A run that was trained and has no step to resume from starts again only with --fresh."""
    run, trained = setup.run, setup.graft.card.method.get("trained")
    if list_step_folders(run):
        return
    last = max((entry["step"] for entry in RunJournal(run.journal).read()), default=0)
    found, cure = f"there is no checkpoint, but the journal has step {last:,}", "or start over with --fresh."
    if isinstance(trained, dict):
        found = f"there is no checkpoint, but the graft's rows are trained (step {trained['step']:,})"
        cure = f"or start over from these rows with --fresh. For new rows, first run `voxgraft graft {run.path}`."
    if last > 0 or isinstance(trained, dict):
        raise CheckpointError("steps-gone", found, where=run.steps, cure=f"restore {run.steps.name}/, {cure}")


def _build_loop(setup: TrainingSetup, group: DistributedContext) -> Trainer:
    """Model, optimizer, data and validations put together, before the first step."""
    options, order, kl_sets = setup.options, setup.stream.options, setup.kl_sets
    # The backbone is kept in half precision where there is one; what is trained of it has float32 master weights.
    dtype = HALF_PRECISION_DTYPES.get(options.precision, torch.float32)
    model = load_model(setup.family, setup.files, device=setup.device, dtype=dtype)
    rows = {name: torch.from_numpy(values) for name, values in setup.graft.rows.items()}
    trained = make_trainable(model, rows, options)
    gated = options.mode == "gated"
    examples = BatchBuilder(
        setup.family, trained.model, setup.train, options.emotion_from, kl_sets, setup.unscored, gated
    )
    # KL needs the base's own output. With a gate that is the same model with the gate closed; else a second copy.
    frozen = None
    if kl_sets and trained.gate is None:
        frozen = load_model(setup.family, setup.files, device=setup.device, dtype=dtype)
    stepper = TrainStep(trained, build_optimizer(trained, options), examples, options, group, frozen)
    validations = {}
    for language, sets in setup.valid.items():
        held_out = BatchBuilder(setup.family, trained.model, sets, options.emotion_from, gated=gated)
        items = list_samples(sets, options.seed, order)
        # A base language is spoken with the gate closed, unless the adapter is to be folded in.
        is_open = options.mode == "merged" or language == setup.graft.card.language
        validations[language] = Validator(trained, held_out, items, options.microbatch_tokens, is_open=is_open)
    loop = Trainer(setup.run, stepper, setup.stream, validations, setup.intervals)
    loop.identity, loop.bound = setup.identity, setup.bound
    loop.is_trained_graft = "trained" in setup.graft.card.method
    loop.pieces = [piece or "" for piece in setup.graft.tokenizer.pieces[setup.graft.card.base_pieces :]]
    loop.callbacks.append(LogCallback(progress.report_event))
    return loop


def _build_monitor(setup: TrainingSetup, loop: Trainer) -> LearningMonitor:
    """What looks whether the model learns, and speaks some sentences during training."""
    settings, held_out = setup.settings.train, collect_texts(setup.valid[setup.graft.card.language])
    sentences = build_sample_sentences(setup.text_encoder, settings.sample_texts, held_out, setup.options.seed)
    if sentences:
        sounds = loop.first and settings.sample_sound
        vocoder = setup.family.vocoder(setup.files, setup.device) if sounds else None
        recordings = find_recordings(setup.run, setup.settings.data.dataset) if vocoder else {}
        loop.callbacks.append(SampleCallback(loop, sentences, vocoder, recordings))
    pieces, stepper = setup.graft.tokenizer.pieces, loop.stepper
    rows = DeadRowMonitor(stepper.trained, stepper.optimizer, setup.stream, setup.train, lambda at: str(pieces[at]))
    return LearningMonitor(loop, rows)


def _add_speech_judges(
    setup: TrainingSetup, loop: Trainer, settings: TrainCommandSettings
) -> InTrainingEvaluation | None:
    """What chooses the best step by its speech: a recognizer every `listen_every` steps, else loops and lengths.

    With few clips the held-out loss alone prefers a step that loops. So where nothing is transcribed, the step of the
    lowest loss and the last one say the same texts at the end.
    """
    evaluation: InTrainingEvaluation | None = None
    if settings.train.listen_every:
        evaluation = build_in_training_evaluation(setup, loop, settings.train.recognizer)
        loop.callbacks.append(evaluation)
    if settings.baseline is None and (evaluation is None or evaluation.why_unheard):
        loop.callbacks.append(spoken_steps(setup, loop))
    return evaluation
