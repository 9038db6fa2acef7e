"""Going on from a saved step: what may have changed since, what may not, and what becomes of rows that were added.

Compares what the step says of itself with what the run is now; decides nothing in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxgraft.errors import GraftError
from voxgraft.training.loop import Loop, Standing
from voxgraft.training.parts import restore_optimizer
from voxgraft.training.saving import load_step, set_aside
from voxgraft.training.step_folders import step_folders

__all__ = ["Change", "changes", "go_on", "refuse_changes"]

FIXED = ("family", "language", "base_sha256", "tokenizer_sha256", "num_rows")
FIXED_OPTIONS = ("mode", "full_body", "rank", "alpha", "seed")
"""Options that the saved tensors, or the meaning of their moments, depend on."""


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
    """
    run = loop.run_folder
    if not step_folders(run):
        if from_step is not None:
            load_step(run, from_step)  # says what is there
        return 0
    loaded = load_step(run, 0 if fresh else from_step)
    state = loaded.state
    found = changes(state.values["identity"], loop.identity)
    if not fresh:
        refuse_changes(found, state.step)
    if loop.first:
        set_aside(run, state.step)
        loop.journal.cut_after(state.step)
    loop.stepper.group.wait()
    if not fresh:
        loop.stepper.trained.restore({name: group for name, group in state.tensors.items() if name != "optimizer"})
        restore_optimizer(loop.stepper.optimizer, state.tensors["optimizer"])
        loop.stepper.scaler.load_state_dict(state.values["scaler"])
        loop.standing = Standing(**state.values["standing"])
    for item in loaded.findings:
        loop.write("finding", state.step, **item.to_json())
    for change in found:
        loop.write("changed", state.step, key=change.key, was=change.was, now=change.now)
    return state.step


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


def refuse_changes(found: list[Change], step: int) -> None:
    """Raise, with both columns, if something has changed that a saved step depends on."""
    fixed = [change for change in found if change.fixed]
    if fixed:
        text = f"step {step:,} was made with other settings: {'; '.join(map(str, fixed))}"
        raise GraftError("resume-changed", text, expected="what the step was made with")


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
