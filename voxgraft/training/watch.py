"""Watching that a model really learns: the state word in every validation, and what is wrong as findings.

A finding is written once, and again only when it has changed. All that is known comes from the journal and from the
training's own state, so that a run that was stopped and gone on with is told the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from voxgraft.errors import Finding, finding
from voxgraft.history import History, as_finite_float
from voxgraft.training.loop import Trainer
from voxgraft.training.state_word import (
    LearningStatus,
    LearningThresholds,
    ValidationPoint,
    assess_learning,
    list_validation_points,
)
from voxgraft.training.validation import ValidationMetrics
from voxgraft.training.watch_rows import DeadRowMonitor

__all__ = ["LearningMonitor"]


class LearningMonitor:
    """Watches one training, on the process that writes."""

    def __init__(
        self, loop: Trainer, rows: DeadRowMonitor | None = None, limits: LearningThresholds | None = None
    ) -> None:
        self._trainer, self._rows, self._limits = loop, rows, limits or LearningThresholds()
        self._history: History | None = None
        self._status: LearningStatus | None = None
        loop.validation_callbacks.append(self._add_learning_status)
        loop.stop_callbacks.append(self._look)
        loop.journal_callbacks.append(self._add)

    def tell(self, step: int, findings: Iterable[Finding]) -> list[Finding]:
        """Write findings that are not in the journal yet, or no longer what it says; gives those that are there."""
        known: list[Finding] = []
        for item in findings if self._trainer.first else ():
            if self._last(item) == item.to_json():
                known.append(item)
            else:
                self._trainer.write("finding", step, **item.to_json())
        return known

    def _add_learning_status(self, step: int, found: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """What the validation's line says beside its figures."""
        now = next(iter(found.values()), None)
        if now is None or not self._trainer.first:
            return {}
        self._status = self._judged(step, now)
        return {"state": self._status.state, "why": self._status.why}

    def _judged(self, step: int, now: ValidationMetrics) -> LearningStatus:
        loss = as_finite_float(now.speech_loss)
        if loss is None:
            item = finding("loss-not-finite", "the loss of held-out recordings is not finite", expected="a number")
            return LearningStatus("stuck", item.found, (item,))
        known = self._known()
        look = ValidationPoint(step, loss, *map(as_finite_float, (now.text_use, now.voice_use, now.text_loss)))
        looks = [*(one for one in list_validation_points(known) if one.step < step), look]
        return assess_learning(looks, self._trainer.stepper.options, known.chance.get("speech_loss"), self._limits)

    def _look(self, step: int, _found: dict[str, ValidationMetrics]) -> str | None:
        """After the validation's line: what is wrong. Never a reason to stop; that is the user's to decide."""
        if self._trainer.first:
            judged = self._status.findings if self._status else ()
            self.tell(step, (*judged, *(self._rows.findings(step) if self._rows else ())))
        return None

    def _add(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self._history is not None and kind != "step":  # many, long, and nothing here depends on them
            self._history.add(kind, step, values)

    def _known(self) -> History:
        """The journal so far. It is read late, when a run that is gone on with has cut it, and then kept up."""
        if self._history is None:
            self._history = History.of(entry for entry in self._trainer.journal.read() if entry["kind"] != "step")
        return self._history

    def _last(self, item: Finding) -> dict[str, str] | None:
        """What the journal said last under this code of this place."""
        for event in reversed(self._known().findings):
            said = {name: str(event.values.get(name, "")) for name in item.to_json()}
            if (said["code"], said["where"]) == (item.code, item.where):
                return said
        return None
