"""Watching that a model really learns: the state word in every validation, and what is wrong as findings.

A finding is written once, and again only when it has changed. All that is known comes from the journal and from the
training's own state, so that a run that was stopped and gone on with is told the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from voxgraft.errors import Finding, finding
from voxgraft.history import History, number
from voxgraft.training.loop import Loop
from voxgraft.training.state_word import Judgement, Look, Thresholds, judge, looks_of
from voxgraft.training.validation import Validity
from voxgraft.training.watch_rows import RowWatch

__all__ = ["Watch"]


class Watch:
    """Watches one training, on the process that writes."""

    def __init__(self, loop: Loop, rows: RowWatch | None = None, limits: Thresholds | None = None) -> None:
        self._loop, self._rows, self._limits = loop, rows, limits or Thresholds()
        self._history: History | None = None
        self._judgement: Judgement | None = None
        loop.judges.append(self._judge)
        loop.guards.append(self._look)
        loop.observers.append(self._add)

    def tell(self, step: int, findings: Iterable[Finding]) -> list[Finding]:
        """Write findings that are not in the journal yet, or no longer what it says; gives those that are there."""
        known: list[Finding] = []
        for item in findings if self._loop.first else ():
            if self._last(item) == item.to_json():
                known.append(item)
            else:
                self._loop.write("finding", step, **item.to_json())
        return known

    def _judge(self, step: int, found: dict[str, Validity]) -> dict[str, Any]:
        """What the validation's line says beside its figures."""
        now = next(iter(found.values()), None)
        if now is None or not self._loop.first:
            return {}
        self._judgement = self._judged(step, now)
        return {"state": self._judgement.state, "why": self._judgement.why}

    def _judged(self, step: int, now: Validity) -> Judgement:
        loss = number(now.speech_loss)
        if loss is None:
            item = finding("loss-not-finite", "the loss of held-out recordings is not finite", expected="a number")
            return Judgement("stuck", item.found, (item,))
        known = self._known()
        look = Look(step, loss, *map(number, (now.text_use, now.voice_use, now.text_loss)))
        looks = [*(one for one in looks_of(known) if one.step < step), look]
        return judge(looks, self._loop.stepper.options, known.chance.get("speech_loss"), self._limits)

    def _look(self, step: int, _found: dict[str, Validity]) -> str | None:
        """After the validation's line: what is wrong. Never a reason to stop; that is the user's to decide."""
        if self._loop.first:
            judged = self._judgement.findings if self._judgement else ()
            self.tell(step, (*judged, *(self._rows.findings(step) if self._rows else ())))
        return None

    def _add(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self._history is not None and kind != "step":  # many, long, and nothing here depends on them
            self._history.add(kind, step, values)

    def _known(self) -> History:
        """The journal so far. It is read late, when a run that is gone on with has cut it, and then kept up."""
        if self._history is None:
            self._history = History.of(entry for entry in self._loop.journal.read() if entry["kind"] != "step")
        return self._history

    def _last(self, item: Finding) -> dict[str, str] | None:
        """What the journal said last under this code of this place."""
        for event in reversed(self._known().findings):
            said = {name: str(event.values.get(name, "")) for name in item.to_json()}
            if (said["code"], said["where"]) == (item.code, item.where):
                return said
        return None
