"""Going on from a saved step: what may have changed since, what may not, and what becomes of rows that were added.

Compares what the step says of itself with what the run is now; decides nothing in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from voxgraft.errors import CheckpointError, GraftError
from voxgraft.nn.frozen import load_new_state
from voxgraft.training.loop import Loop, Standing
from voxgraft.training.parts import restore_optimizer
from voxgraft.training.saving import load_step, set_aside
from voxgraft.training.schedule import rate_share
from voxgraft.training.state import TrainState
from voxgraft.training.step_folders import step_folders

__all__ = ["Change", "changes", "go_on", "refuse_changes"]

FIXED = ("family", "language", "base_sha256", "tokenizer_sha256", "num_rows")
GROWN = ("tokenizer_sha256", "num_rows")
"""What changes when a tokenizer gets more pieces."""
INCOMPARABLE = ("tokenizer_sha256", "held_out")
"""What the losses of the new language's held-out recordings depend on."""
FIXED_OPTIONS = ("mode", "full_body", "rank", "alpha", "seed")
"""Options that the saved tensors, or the meaning of their moments, depend on."""
SCHEDULE = ("schedule", "steps", "warmup_steps", "final_share")
"""Options that the rates of every step depend on."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was when the step was saved."""

    key: str
    was: Any
    now: Any
    fixed: bool

    def __str__(self) -> str:
        return f"{self.key}: was {_brief(self.was)}, is {_brief(self.now)}"


def go_on(loop: Loop, *, fresh: bool = False, from_step: int | None = None) -> int:
    """Put the newest whole step into a training that has not begun, or the one that is named; gives its number.

    Later steps are set aside, never removed, and the journal is cut after the step. 0 where nothing is saved yet.
    With `fresh` it begins again with the rows that the graft first had, whatever became of them since.
    """
    run = loop.run_folder
    if fresh:
        _begin_again(loop)
        return 0
    if not step_folders(run):
        if from_step is not None:
            load_step(run, from_step)  # says that nothing is there
        _cut(loop, -1)
        return 0
    loaded = load_step(run, from_step)
    state = loaded.state
    found = changes(state.values["identity"], loop.identity)
    grew = _grew(state, loop)
    refuse_changes(
        [change for change in found if not (grew and change.key in GROWN)], state.step, _other_piece(state, loop)
    )
    groups = _grown_groups(state, loop) if grew else state.tensors
    _cut(loop, state.step)
    loop.stepper.trained.restore({name: group for name, group in groups.items() if name != "optimizer"})
    restore_optimizer(loop.stepper.optimizer, groups["optimizer"])
    loop.stepper.scaler.load_state_dict(state.values["scaler"])
    loop.standing = _standing(state, found)
    loop.begun = _has_begun(loop, state.step)
    loop.pack_tokens = state.values.get("pack_tokens")
    for item in loaded.findings:
        loop.write("finding", state.step, **item.to_json())
    for change in [*found, *_changed_rates(found, state, loop), *_forgotten(state, loop)]:
        loop.write("changed", state.step, key=change.key, was=change.was, now=change.now)
    return state.step


def _standing(state: TrainState, found: Sequence[Change]) -> Standing:
    """How the run stood; but no step is the best any more if the loss was one of other clips, or of other ids."""
    standing = Standing(**state.values["standing"])
    if any(change.key in INCOMPARABLE and change.was is not None for change in found):
        return replace(standing, best_step=0, best_loss=None, rounds_without_better=0)
    return standing


def _cut(loop: Loop, step: int, *, journal: int | None = None) -> None:
    if loop.first:
        set_aside(loop.run_folder, step)
        loop.journal.cut_after(step if journal is None else journal)
    loop.stepper.group.wait()


def _has_begun(loop: Loop, step: int) -> bool:
    """Whether step 0 is in the journal too: who begins again and is killed at that has cut it, and kept the step."""
    lost = loop.first and step == 0 and not any(entry["kind"] == "start" for entry in loop.journal.read())
    return not loop.stepper.group.any(lost, loop.stepper.trained.model.device)


def _begin_again(loop: Loop) -> None:
    """From the graft as it is; rows that were trained since become again what they were at step 0.

    That step then stays where it is until the new one takes its place: nothing else knows the first rows.
    """
    trained = loop.stepper.trained
    rows = _first_rows(loop) if loop.is_trained_graft and "rows" in trained.parameters else None
    if rows is not None:
        load_new_state(trained.model, rows)
    _cut(loop, -1 if rows is None else 0, journal=-1)


def _first_rows(loop: Loop) -> dict[str, Tensor] | None:
    """The rows of step 0, with new ones behind them where the tokenizer grew; None if they belong to another graft."""
    run = loop.run_folder
    if not step_folders(run):
        return None
    try:
        state = load_step(run, 0).state
    except CheckpointError as error:
        cure = f"make the rows anew with `voxgraft graft {run.path}`, then begin again with --fresh."
        found = f"the graft's rows are trained, and its first ones are in step 0: {error.finding.found}"
        raise CheckpointError(error.code, found, where=error.finding.where, cure=cure) from None
    if _grew(state, loop):
        return _grown_groups(state, loop)["rows"]
    same = state.values["identity"].get("tokenizer_sha256") == loop.identity.get("tokenizer_sha256")
    return dict(state.tensors["rows"]) if same and "rows" in state.tensors else None


def _forgotten(state: TrainState, loop: Loop) -> list[Change]:
    was, now = state.values["standing"]["best_step"], loop.standing.best_step
    return [Change("best step so far", was, "none: other held-out ids", False)] if was != now else []


def _changed_rates(found: Sequence[Change], state: TrainState, loop: Loop) -> list[Change]:
    """What other steps, warm-up or schedule do to the rates from here on."""
    keys = {f"train.{name}" for name in SCHEDULE}
    if not any(change.key in keys for change in found):
        return []
    options, saved = loop.stepper.options, state.values["identity"].get("options", {})
    before = replace(options, **{name: saved[name] for name in SCHEDULE if name in saved})
    was, now = (round(rate_share(state.step + 1, one), 4) for one in (before, options))
    return [Change(f"share of the rates at step {state.step + 1:,}", was, now, False)] if was != now else []


def _grew(state: TrainState, loop: Loop) -> bool:
    """Whether the tokenizer of the run is that of the step with more pieces behind, and nothing else."""
    before, now = state.values.get("pieces", []), loop.pieces
    return len(before) < len(now) and now[: len(before)] == before


def _grown_groups(state: TrainState, loop: Loop) -> dict[str, dict[str, Tensor]]:
    """Saved rows with the new ones behind them, and their moments with zeros: what stayed keeps its state."""
    rows = loop.stepper.trained.tensors()["rows"]
    kept = {name: torch.cat([saved, rows[name][len(saved) :]]) for name, saved in state.tensors["rows"].items()}
    shapes = {name: value.shape for name, value in loop.stepper.trained.named().items()}
    moments = {}
    for key, value in state.tensors["optimizer"].items():
        missing = shapes[key.rpartition("/")[0]][0] - len(value) if value.dim() else 0
        moments[key] = torch.cat([value, value.new_zeros(missing, *value.shape[1:])]) if missing else value
    return {**{name: dict(group) for name, group in state.tensors.items()}, "rows": kept, "optimizer": moments}


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Every difference between two identities, options one by one."""
    found = [
        Change(key, saved.get(key), now.get(key), key in FIXED)
        for key in dict.fromkeys((*saved, *now))
        if key != "options" and saved.get(key) != now.get(key)
    ]
    old, new = saved.get("options", {}), now.get("options", {})
    return found + [
        Change(f"train.{key}", old.get(key), new.get(key), key in FIXED_OPTIONS)
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


def refuse_changes(found: list[Change], step: int, remark: str = "") -> None:
    """Raise, with both columns, if something has changed that a saved step depends on."""
    fixed = [change for change in found if change.fixed]
    if not fixed:
        return
    rows = [("", f"step {step:,}", "this run")]
    rows += [(change.key, _brief(change.was), _brief(change.now)) for change in fixed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    text = f"step {step:,} was made with other settings:\n    " + "\n    ".join([*lines, *filter(None, [remark])])
    raise GraftError("resume-changed", text, expected="what the step was made with")


def _other_piece(state: TrainState, loop: Loop) -> str:
    """The first of the graft's pieces that is not the one that the step was made with."""
    before, now = state.values.get("pieces", []), loop.pieces
    for at, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return f"new piece {at + 1:,} of {len(now):,} is {new!r} now, and was {old!r} of {len(before):,}"
    return ""


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
