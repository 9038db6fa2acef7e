"""Watching that a model really learns: the state word in every validation, and what is wrong as findings.

A finding is written once, and again only when it has changed. All that is known comes from the journal and from the
training's own state, so that a run that was stopped and gone on with is told the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxgraft.core.errors import Finding, finding
from voxgraft.core.journal import History, as_finite_float
from voxgraft.dataset.checks import count_text_ids
from voxgraft.dataset.sampler import DeterministicSampler
from voxgraft.dataset.shards import ClipDataset
from voxgraft.nn.rows import GrownLayer, RowLayout
from voxgraft.training.callbacks import Callback
from voxgraft.training.learning_status import (
    LearningStatus,
    LearningThresholds,
    ValidationPoint,
    assess_learning,
    list_validation_points,
)
from voxgraft.training.trainable import TrainableModel
from voxgraft.training.trainer import Trainer
from voxgraft.training.validation import ValidationMetrics

DEAD_ROW_WINDOW_STEPS = 250
"""Steps before a look whose texts count. A moment fades, but not within so few steps."""
MIN_CLIPS_SEEN = 3
"""Clips that must have had a piece: under a loss scaler, steps may be left out at the beginning."""
MAX_ROWS_NAMED = 8


class DeadRowMonitor:
    """Looks for dead rows of one training."""

    def __init__(
        self,
        trained: TrainableModel,
        optimizer: torch.optim.Optimizer,
        stream: DeterministicSampler,
        sets: Sequence[ClipDataset],
        piece_of: Callable[[int], str],
    ) -> None:
        """`piece_of` gives the piece of an id, as people know it."""
        self._trained, self._optimizer, self._piece_of = trained, optimizer, piece_of
        self._stream, self._sets = stream, sets
        self._in_data: NDArray[np.bool_] | None = None

    def findings(self, step: int) -> list[Finding]:
        """Dead rows of each text table after a step. The same rows give the same text."""
        layers = self._layers()
        if not layers or step < 1:
            return []
        layout = next(iter(layers.values())).rows
        still = {name: self._rows_in_data(layout) & ~self._rows_with_gradient(layer) for name, layer in layers.items()}
        if not any(rows.any() for rows in still.values()):
            return []
        met = self._count_clips_seen(step, layout) >= MIN_CLIPS_SEEN
        return [
            self._finding(name, np.flatnonzero(rows & met) + layout.base_pieces, int(met.sum()))
            for name, rows in still.items()
            if (rows & met).any()
        ]

    def _layers(self) -> Mapping[str, GrownLayer]:
        model = self._trained.model
        names = (model.text_embedding_name, model.text_head_name)
        modules = {name: model.get_submodule(name) for name in names}
        return {name: found for name, found in modules.items() if isinstance(found, GrownLayer) and found.rows.num_new}

    def _rows_in_data(self, layout: RowLayout) -> NDArray[np.bool_]:
        """Rows whose pieces stand in the data at all, counted once. [N]"""
        if self._in_data is None:
            self._in_data = count_text_ids(self._sets, layout.num_ids)[layout.base_pieces :] > 0
        return self._in_data

    def _count_clips_seen(self, step: int, layout: RowLayout) -> NDArray[np.int64]:
        """In how many clips of the last steps each new row's piece was to be seen. [N]"""
        met = np.zeros(layout.num_new, dtype=np.int64)
        for number in range(max(1, step - DEAD_ROW_WINDOW_STEPS + 1), step + 1):
            for item in self._stream.step(number):
                if not item.silent:
                    rows = np.unique(self._sets[item.set].text_ids(item.clip)) - layout.base_pieces
                    met[rows[(rows >= 0) & (rows < layout.num_new)]] += 1
        return met

    def _rows_with_gradient(self, layer: GrownLayer) -> NDArray[np.bool_]:
        """Rows whose weight has had a gradient, as the moments tell. [N]"""
        moments = self._optimizer.state.get(layer.new_weight, {})
        alive = torch.zeros(layer.rows.num_new, dtype=torch.bool, device=layer.new_weight.device)
        for name in ("exp_avg", "exp_avg_sq"):
            if isinstance(moments.get(name), Tensor):
                alive |= (moments[name] != 0).any(dim=1)
        found: NDArray[np.bool_] = alive.cpu().numpy()
        return found

    def _finding(self, table: str, ids: NDArray[np.int64], num_met: int) -> Finding:
        named = ", ".join(f"{self._piece_of(token)!r} ({token})" for token in ids[:MAX_ROWS_NAMED].tolist())
        more = f" and {len(ids) - MAX_ROWS_NAMED:,} more" if len(ids) > MAX_ROWS_NAMED else ""
        text = f"{len(ids):,} new rows whose pieces were learnt from have had no gradient: {named}{more}"
        return finding("dead-rows", text, expected=f"none of {num_met:,}", where=table)


class LearningMonitor(Callback):
    """Watches one training, on the process that writes."""

    def __init__(
        self, loop: Trainer, rows: DeadRowMonitor | None = None, limits: LearningThresholds | None = None
    ) -> None:
        self._trainer, self._rows, self._limits = loop, rows, limits or LearningThresholds()
        self._history: History | None = None
        self._status: LearningStatus | None = None
        loop.callbacks.append(self)

    def tell(self, step: int, findings: Iterable[Finding]) -> list[Finding]:
        """Write findings that are not in the journal yet, or no longer what it says; gives those that are there."""
        known: list[Finding] = []
        for item in findings if self._trainer.first else ():
            if self._last(item) == item.to_json():
                known.append(item)
            else:
                self._trainer.write("finding", step, **item.to_json())
        return known

    def on_validation(self, step: int, metrics: dict[str, ValidationMetrics]) -> dict[str, Any]:
        """The learning status: its word, and why."""
        now = next(iter(metrics.values()), None)
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

    def stop_reason(self, step: int, _metrics: dict[str, ValidationMetrics]) -> None:
        """After the validation's line: write what is wrong. Never a reason to stop; the user decides that."""
        if self._trainer.first:
            judged = self._status.findings if self._status else ()
            self.tell(step, (*judged, *(self._rows.findings(step) if self._rows else ())))

    def on_log(self, kind: str, step: int, values: dict[str, Any]) -> None:
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
