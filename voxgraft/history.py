"""A run's journal as curves: losses, uses, rates, speed, retention, and what happened at which step.

Takes lines one by one, as a live view gets them, or all at once. Reads no file and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["CurvePoints", "History", "HistoryEvent", "as_finite_float"]

CurvePoints = list[tuple[int, float]]
"""Steps and values, by step."""
TEXT_LOSS, SPEECH_LOSS = "text_loss", "speech_loss"
SPEED_WINDOW_STEPS = 20
"""Steps over which a speed is taken."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that happened at a step, with what the journal says of it."""

    step: int
    values: Mapping[str, Any]


@dataclass
class History:
    """What is known of a run. A line about a step that is known already replaces what was known."""

    language: str = ""
    """The new language: the set whose held-out loss decides."""
    num_steps: int = 0
    """Steps that the run is to have; 0 where the journal does not say."""
    chance: dict[str, float] = field(default_factory=dict)
    """By loss: what a model that knows nothing would have."""
    steps: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    valid: dict[str, dict[int, Mapping[str, Any]]] = field(default_factory=dict)
    """By set."""
    findings: list[HistoryEvent] = field(default_factory=list)
    states: list[HistoryEvent] = field(default_factory=list)
    """Every state word with its reason: `state` and `why`."""
    samples: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    best_step: int = 0
    ended: HistoryEvent | None = None
    """How training ended, if it was not gone on with."""

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> History:
        """The history that a journal tells."""
        history = cls()
        for entry in entries:
            history.add(entry["kind"], entry["step"], entry)
        return history

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One more line. Kinds that tell nothing of curves are passed over."""
        if kind == "start":
            self._start(values)
        elif kind == "step":
            self.steps[step] = {key: value for key, value in values.items() if key != "clips"}
        elif kind == "valid":
            self._valid(step, values)
        elif kind == "samples":
            self.samples[step] = values
        elif kind == "finding":
            self.findings.append(HistoryEvent(step, values))
        elif kind == "changed" and values.get("key") == "train.steps" and isinstance(values.get("now"), int):
            self.num_steps = values["now"]
        if isinstance(values.get("state"), str):
            self.states.append(HistoryEvent(step, {"state": values["state"], "why": values.get("why")}))
        if kind == "end":
            self.ended = HistoryEvent(step, values)
            if isinstance(values.get("best_step"), int):
                self.best_step = values["best_step"]  # speech may have decided otherwise than the loss
        elif kind in ("start", "step"):
            self.ended = None

    @property
    def last_step(self) -> int:
        """The last step of which something is known."""
        return max([self.last_logged, *(step for known in self.valid.values() for step in known)])

    @property
    def last_logged(self) -> int:
        """The last step that has a line of its own."""
        return max(self.steps, default=0)

    @property
    def state(self) -> HistoryEvent | None:
        """The state word now."""
        return self.states[-1] if self.states else None

    @property
    def state_changed(self) -> bool:
        """Whether the last line that had a state word had another one than the line before it."""
        return len({event.values["state"] for event in self.states[-2:]}) == 2

    @property
    def base_languages(self) -> list[str]:
        """Sets on which retention is measured."""
        return [name for name in self.valid if name != self.language]

    def train(self, *keys: str) -> CurvePoints:
        """A value of the step lines, such as `text_loss` or `rates`, `rows`."""
        return _collect_points(self.steps, keys)

    def held_out(self, *keys: str, of: str | None = None) -> CurvePoints:
        """A value of the validations, of the new language unless another set is named."""
        return _collect_points(self.valid.get(self.language if of is None else of, {}), keys)

    def parts(self, key: str) -> list[str]:
        """What a value of the step lines is given for: the parts that have `rates`."""
        named = {name: None for values in self.steps.values() for name in values.get(key) or {}}
        return list(named)

    def initial_loss(self, key: str) -> float | None:
        """A held-out loss of the new language before the first step."""
        return as_finite_float(self.valid.get(self.language, {}).get(0, {}).get(key))

    def retention(self, language: str) -> CurvePoints:
        """By how much the speech loss of a base language has risen since step 0, as a share; nothing without step 0."""
        points = self.held_out(SPEECH_LOSS, of=language)
        if not points or points[0][0] != 0 or points[0][1] <= 0:
            return []
        return [(step, loss / points[0][1] - 1) for step, loss in points]

    def seconds_per_step(self, positions: int | None = None) -> float | None:
        """How long a step has taken of late, from what the journal says of speed; or one of so many positions would."""
        known = []
        for step in sorted(self.steps)[-SPEED_WINDOW_STEPS:]:
            length = positions or as_finite_float(self.steps[step].get("positions"))
            speed = as_finite_float(self.steps[step].get("positions_per_second"))
            if length and speed:
                known.append(length / speed)
        return median(known) if known else None

    def _start(self, values: Mapping[str, Any]) -> None:
        self.language = str(values.get("language") or self.language)
        self.num_steps = int(as_finite_float(values.get("steps")) or 0)
        for loss, classes in ((TEXT_LOSS, "text_classes"), (SPEECH_LOSS, "speech_classes")):
            count = as_finite_float(values.get(classes))
            if count is not None and count >= 1:
                self.chance[loss] = math.log(count)

    def _valid(self, step: int, values: Mapping[str, Any]) -> None:
        name = str(values.get("set", ""))
        self.language = self.language or name
        self.valid.setdefault(name, {})[step] = values
        if name == self.language and isinstance(values.get("best_step"), int):
            self.best_step = values["best_step"]


def as_finite_float(value: Any) -> float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _collect_points(lines: Mapping[int, Mapping[str, Any]], keys: tuple[str, ...]) -> CurvePoints:
    found: CurvePoints = []
    for step in sorted(lines):
        value: Any = lines[step]
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        known = as_finite_float(value)
        if known is not None:
            found.append((step, known))
    return found
