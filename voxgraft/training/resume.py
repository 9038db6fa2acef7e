"""Going on from a saved step: what may have changed since, what may not, and what becomes of rows that were added.

Compares what the step says of itself with what the run is now; decides nothing in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from voxgraft.checkpoints.steps import TrainState, list_step_folders, load_step
from voxgraft.config.train_options import RESUME_RULES, options_with_rule
from voxgraft.core.errors import CheckpointError, GraftError
from voxgraft.nn.rows import load_new_rows
from voxgraft.training.checkpoint import move_later_steps_aside
from voxgraft.training.options import learning_rate_factor
from voxgraft.training.trainable import restore_optimizer_state
from voxgraft.training.trainer import BestStepState, Trainer

__all__ = ["FIXED_IDENTITY_LABELS", "ResumeChange", "compare_identities", "require_no_fixed_changes", "resume_training"]

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
