"""The lines that training opens with: what is trained, on what, from where, and what stays as it is.

Every figure is read off the parts themselves; the one that is an estimate says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from voxgraft.amounts import format_bytes, format_count, format_duration, format_learning_rate
from voxgraft.course import TrainingSetup
from voxgraft.history import SPEED_WINDOW_STEPS, History
from voxgraft.nn.frozen import TrainableReport, build_trainable_report
from voxgraft.only_now import find_overrides
from voxgraft.training.gauges import estimate_memory, read_memory_usage
from voxgraft.training.loop import Trainer
from voxgraft.training.options import TrainOptions
from voxgraft.training.replay import is_self_replay
from voxgraft.training.resuming import ResumeChange

__all__ = ["format_training_summary"]

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
    "as-in-the-seeds": "as-in-the-seeds (for comparison only: the base is NOT safe)",
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
    return f"{_join_pairs(parts)}; in all {format_count(report.trained)} of {format_count(total)} ({report.trained / total:.1%})"


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
        "checkpointing": options.checkpointing,
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
    packs = f"in packs of at most {loop.stepper.options.pack_tokens:,}"
    return f"{options.tokens_per_step:,} positions, about {clips:,} clip{'s' if clips != 1 else ''}, {packs}"


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
    return f"{steps:,} in all, {passes}, {length}; validated every {every.validate:,}, saved every {every.save:,}"


def _describe_memory(loop: Trainer) -> str:
    """On a processor the program itself counts too, which already holds the weights."""
    found, device = estimate_memory(loop.stepper), loop.stepper.trained.model.device
    held = {"weights": found.weights}
    if device.type != "cuda":
        held = {"program and weights": max(found.weights, read_memory_usage(device)["memory_process_bytes"])}
    parts = {**held, "gradients and optimizer": found.optimizer, "activations": found.activations}
    sizes = {name: format_bytes(size) for name, size in parts.items()}
    return f"about {format_bytes(sum(parts.values()))} (estimate): {_join_pairs(sizes)}"


def _describe_duration(loop: Trainer, start: int) -> str:
    """Told by the steps before, whose speed in positions holds for steps of another size too."""
    left, positions = loop.stepper.options.steps - start, loop.stepper.options.tokens_per_step
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
